"""Are the signals of a Prometheus those that it scraped, and at the time it did?"""

from __future__ import annotations

from typing import Any

import pytest

from llmtrace.api_clients.prometheus_client import Prometheus
from llmtrace.dataset.case import Window
from llmtrace_collector.scrape import from_prometheus

STEP = 15.0
NAMES = (
    "vllm_num_requests_running",
    "vllm_time_to_first_token_seconds_bucket",
    "vllm_time_to_first_token_seconds_count",
    "vllm_time_to_first_token_seconds_sum",
)


def test_what_a_step_has_from_the_last_scrape_is_not_another_sample(
    monkeypatch: pytest.MonkeyPatch,
):
    """For five minutes after the last scrape, Prometheus answers with its values again."""
    scraped = [15.0, 30.0, 45.0, 600.0, 615.0]
    steps = [STEP * number for number in range(45)]
    seen = {t: [at for at in scraped if at <= t < at + 300] for t in steps}

    def ask(_self: Prometheus, path: str, **parameters: Any) -> list[Any]:
        if path.startswith("label"):
            return [] if "match[]" in parameters else [*NAMES]
        query = parameters["query"]
        if "timestamp(" in query:
            values = [(t, str(there[-1])) for t, there in seen.items() if there]
            return [{"metric": {"instance": "a"}, "values": values}]
        return [
            {
                "metric": {"__name__": name, "instance": "a", "job": "vllm", "model_name": "m"},
                "values": [(t, str(len(there))) for t, there in seen.items() if there],
            }
            for name in NAMES
            if name in query
        ]

    monkeypatch.setattr(Prometheus, "ask", ask)
    window = Window(0.0, 700.0)
    signals, _ = from_prometheus.read_signals("http://p", None, window, lambda *_: None)
    assert set(signals.t.tolist()) == set(scraped)
    assert {"running", "ttft_sum", "ttft_count"} <= {*signals.signal.names}


def test_buckets_are_counted_by_either_spelling(monkeypatch: pytest.MonkeyPatch):
    """Percentiles are known, too, where OpenMetrics turned the colon into an underscore."""

    def ask(_self: Prometheus, _path: str, **parameters: Any) -> list[Any]:
        if "vllm_time_to_first_token_seconds_bucket" not in parameters["query"]:
            return []
        return [
            {"metric": {"le": bound}, "value": [0, count]}
            for bound, count in (("0.5", "9"), ("+Inf", "10"))
        ]

    monkeypatch.setattr(Prometheus, "ask", ask)
    found = from_prometheus.read_buckets("http://p", None, "ttft", Window(0.0, 60.0))
    assert found == [(0.5, 9.0), (float("inf"), 10.0)]
