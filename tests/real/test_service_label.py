"""Does the recipe for Prometheus Operator leave an application's own `service` on its metrics?

As docs/operate/dashboards.md has it, in the words of Prometheus, which the operator writes it in.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry

from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.testing import make_row

from .conftest import do_without
from .prometheus import PROMETHEUS, missing, prometheus, query, scraping, wait_for

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "dashboards.md"
WORDS = {"sourceLabels": "source_labels", "targetLabel": "target_label"}


def test_the_applications_own_service_wins_either_way() -> None:
    """By `honorLabels`, or copied back; without either it is renamed, which the recipe is for."""
    if reason := missing(PROMETHEUS):
        do_without(reason)
    [block] = re.findall(r"```yaml\n(endpoints:.*?)```", PAGE.read_text(), re.DOTALL)
    [endpoint] = yaml.safe_load(block)["endpoints"]
    relabelings = [
        {WORDS.get(key, key): value for key, value in one.items()}
        for one in endpoint["metricRelabelings"]
    ]
    ways = {
        "renamed": {},
        "honoured": {"honor_labels": endpoint["honorLabels"]},
        "copied": {"metric_relabel_configs": relabelings},
    }
    sink = PrometheusSink(registry=CollectorRegistry())
    with contextlib.closing(sink):
        sink.write(make_row(service="shop"))
        config = scraping(dict.fromkeys(ways, f"http://127.0.0.1:{sink.serve(0)}"))
        for job in config["scrape_configs"]:
            job.update(ways[job["job_name"]])
            # What the operator adds to every target of a Kubernetes Service.
            job["static_configs"][0]["labels"] = {"service": "shop-metrics"}
        with prometheus(config) as url:
            expression = "count by (job, service, exported_service) (llmtrace_requests_total) > 0"
            found = wait_for(
                lambda: len(seen := query(url, expression)) == len(ways) and seen, "all jobs"
            )
    labels = {one.pop("job"): one for one, _ in found}

    assert labels == {
        "renamed": {"service": "shop-metrics", "exported_service": "shop"},
        "honoured": {"service": "shop"},
        "copied": {"service": "shop"},
    }
