"""Are the signals of a Prometheus those that it scraped, and at the time it did?"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmtrace.api_clients.prometheus_client import Prometheus
from llmtrace.core.errors import ConfigError, DataError, SourceError
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


class _Guarded(BaseHTTPRequestHandler):
    """A Prometheus without metrics that requires a user and password, or behind such a proxy."""

    def do_GET(self) -> None:
        """Answer who may ask."""
        allowed = self.headers["Authorization"] == f"Basic {SECRET}"
        self.send_response(200 if allowed else 401)
        if not allowed:
            self.send_header("WWW-Authenticate", 'Basic realm="metrics"')
        self.end_headers()
        self.wfile.write(b'{"status": "success", "data": []}')

    def log_message(self, *_: object) -> None:
        """Print nothing."""


SECRET = base64.b64encode(b"user:password").decode()


@pytest.fixture
def guarded() -> Iterator[str]:
    """Serve `_Guarded`; its address."""
    with HTTPServer(("127.0.0.1", 0), _Guarded) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_user_and_password_are_sent_from_a_file(guarded: str, tmp_path: Path):
    """Without them, what to write and which option names it is said."""
    file, window = tmp_path / "secret", Window(1795723974.0, 1795731174.0)
    file.write_text(f"Basic {SECRET}\n", encoding="utf-8")

    with pytest.raises(SourceError, match=r"`Basic ` and the base64 .* --prometheus-token-file"):
        from_prometheus.read_signals(guarded, None, window, lambda *_: None)
    with pytest.raises(ConfigError, match=r"out of the address.*--prometheus-token-file"):
        Prometheus(guarded.replace("//", "//user:password@"))
    with pytest.raises(DataError, match=r"between 2026-11-2\d .* and 2026-11-2\d"):
        from_prometheus.read_signals(guarded, file, window, lambda *_: None)


def test_a_file_without_a_token_is_called_by_its_option(tmp_path: Path):
    """Which is not that of a collector."""
    file = tmp_path / "empty"
    file.write_text("Basic a b", encoding="utf-8")

    with pytest.raises(ConfigError, match="--prometheus-token-file"):
        Prometheus("http://127.0.0.1:9090", file)
