"""What does each panel's query cost Prometheus, on a fleet with many label sets?

    python -m tests.bench.bench_boards --sets 500 --hours 6

Makes blocks of a fleet: every series of the exporter's own page for each label set, and what the
recording rules make of a budget. Then asks every query of every panel, as Grafana would, and
prints what took longer than a second, or all of them. The exit status is 1 if one did.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from llmtrace.budget import DEFAULT
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.testing import make_row
from llmtrace_dashboards.boards import dashboards
from llmtrace_dashboards.lint.queries import chosen, expand, panels, targets
from llmtrace_dashboards.rules.recording_series import ALLOWED, bad_rate, bad_ratio, valid_rate
from tests.real.prometheus import missing, prometheus

END: Final = 1_760_000_400  # a whole hour, long ago
HOUR: Final = 3600
RECORDED_S: Final = 30
LIMIT_S: Final = 1.0
POINTS: Final = 1000  # of a graph
SLOS: Final = ("e2e", "ttft", "tpot", "availability")


def main() -> int:
    """Measure, print, and return the exit status."""
    options = _options()
    if reason := missing("prometheus", "promtool"):
        print(reason, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        print(f"making blocks of {options.sets} label sets, {options.hours} h ...", flush=True)
        data = _blocks(Path(folder), options)
        every = {"global": {"scrape_interval": f"{options.scrape}s"}}
        with prometheus(every, data=data) as url:
            return _measure(url, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=500, help="label sets of requests")
    parser.add_argument("--hours", type=int, default=6)
    parser.add_argument("--scrape", type=int, default=60, help="seconds between two scrapes")
    parser.add_argument("--all", action="store_true", help="print every query, not the slow ones")
    return parser.parse_args()


def _blocks(folder: Path, options: argparse.Namespace) -> Path:
    data = folder / "data"
    page = folder / "page.om"
    for start in range(END - options.hours * HOUR, END, HOUR):
        with page.open("w", encoding="utf-8") as file:
            file.writelines(_lines(start, options))
            file.write("# EOF\n")
        subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", page, data],
            check=True, capture_output=True,
        )  # fmt: skip
    return data


def _lines(start: int, options: argparse.Namespace) -> Iterator[str]:
    since = END - options.hours * HOUR
    scraped = range(start, start + HOUR, options.scrape)
    recorded = range(start, start + HOUR, RECORDED_S)
    for number in range(options.sets):
        labels = {
            "model": f"m{number % 5}", "route": f"r{number // 5 % 5}",
            "service": f"s{number // 25}", "region": "eu",
        }  # fmt: skip
        for name, own, value in _page():
            series_labels = _series_labels(
                {**own, **labels, "job": "app", "instance": f"i{number}:1"}
            )
            for at in scraped:
                yield f"{name}{series_labels} {value * (at - since):g} {at}\n"
        for slo in SLOS:
            series_labels = _series_labels({**labels, "budget": DEFAULT.name, "slo": slo})
            for at in recorded:
                yield f"{bad_rate()}{series_labels} {0.01 * (1 + at % 7):g} {at}\n"
                yield f"{valid_rate()}{series_labels} 2.5 {at}\n"
    for slo in SLOS:
        series_labels = _series_labels({"budget": DEFAULT.name, "slo": slo})
        for at in recorded:
            yield f"{ALLOWED}{series_labels} 0.05 {at}\n"
            for window in ("5m", "1h", "6h"):
                yield f"{bad_ratio(window)}{series_labels} 0.01 {at}\n"


_PAGE: list[tuple[str, dict[str, str], float]] = []


def _page() -> list[tuple[str, dict[str, str], float]]:
    """Return the samples of one label set as the exporter writes them: name, labels, value."""
    if not _PAGE:
        registry = CollectorRegistry()
        sink = PrometheusSink(
            registry=registry,
            thresholds_s=DEFAULT.thresholds_s(),
            budget_seconds=DEFAULT.allocations_s(),
        )
        sink.write(make_row(output_tokens=10, last_content_ns=900_000_000))
        for family in registry.collect():
            for sample in family.samples:
                if sample.labels.get("outcome", "success") == "success":
                    _PAGE.append((sample.name, dict(sample.labels), sample.value))
        sink.close()
    return _PAGE


def _series_labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "}"


def _measure(url: str, options: argparse.Namespace) -> int:
    shown_s = options.hours * HOUR
    spans = {
        "__rate_interval": f"{4 * options.scrape}s", "__range": f"{shown_s}s",
        "__range_s": str(shown_s), "budget": DEFAULT.name, "before": "1h",
    }  # fmt: skip
    slow = asked = 0
    for name, dashboard in dashboards().items():
        values = {**chosen(dashboard), **spans}
        for panel in panels(dashboard):
            for target in targets(panel):
                expression = expand(target["expr"], values)
                took_s, samples = _ask(
                    url, expression, shown_s, instant=bool(target.get("instant"))
                )
                asked += 1
                slow += took_s > LIMIT_S
                if options.all or took_s > LIMIT_S:
                    where = f"{name.removesuffix('.json')}: {panel['title']}, {target['refId']}"
                    print(f"{took_s:7.2f} s {samples:>12,} samples  {where}", flush=True)
    print(f"{asked} queries, {slow} of them longer than {LIMIT_S:g} s")
    return 1 if slow else 0


def _ask(url: str, expression: str, shown_s: int, *, instant: bool) -> tuple[float, int]:
    """Return how long Prometheus evaluated a query, in seconds, and how many samples it read."""
    given: dict[str, Any] = {"query": expression, "stats": "all", "timeout": "120s"}
    if instant:
        given["time"] = END - 60
    else:
        step = max(15, shown_s // POINTS)
        given |= {"start": END - shown_s, "end": END - 60, "step": step}
    path = "query" if instant else "query_range"
    body = urllib.parse.urlencode(given).encode()
    began = time.monotonic()
    with urllib.request.urlopen(f"{url}/api/v1/{path}", body, timeout=150) as answer:
        stats = json.load(answer)["data"]["stats"]
    waited_s = time.monotonic() - began
    took_s = float(stats["timings"].get("execTotalTime", waited_s))
    return took_s, int(stats["samples"]["totalQueryableSamples"])


if __name__ == "__main__":
    sys.exit(main())
