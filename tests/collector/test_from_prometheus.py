"""Are the signals of a Prometheus those that it scraped, and at the time it did?"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmtrace.api_clients.prometheus_client import HEADERS, Prometheus
from llmtrace.core.errors import ConfigError, DataError, SourceError
from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Doubt
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


class _Busy(BaseHTTPRequestHandler):
    seen: list[str | None] = []  # noqa: RUF012 - of all requests

    def do_GET(self) -> None:
        """Reject every other request, and what names no team."""
        self.seen.append(self.headers["X-Scope-OrgID"])
        self.send_response(503 if len(self.seen) % 2 else 200)
        self.end_headers()
        self.wfile.write(b'{"status": "success", "data": ["a"]}')

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_busy_server_is_asked_again_with_the_headers_it_requires(
    monkeypatch: pytest.MonkeyPatch,
):
    """As Mimir is, which also wants to know whose metrics."""
    monkeypatch.setattr(Prometheus, "retry_after_s", (0.0,))
    monkeypatch.setattr(_Busy, "seen", [])
    monkeypatch.setenv(HEADERS, "X-Scope-OrgID=team%201, x-other=b")
    with HTTPServer(("127.0.0.1", 0), _Busy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        found = Prometheus(f"http://127.0.0.1:{server.server_port}").ask("label/a/values")
        server.shutdown()
        thread.join()
    assert (found, _Busy.seen) == (["a"], ["team 1", "team 1"])


@pytest.mark.parametrize("text", ["X-Scope-OrgID", "a b=c", "a=b%0ac", "=x"])
def test_headers_that_are_none_are_an_error(monkeypatch: pytest.MonkeyPatch, text: str):
    """Which names the variable, and not its value: that may be secret."""
    monkeypatch.setenv(HEADERS, text)
    with pytest.raises(ConfigError, match=f"^{HEADERS}: write NAME=VALUE, separated by commas$"):
        Prometheus("http://127.0.0.1:9090")


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


def read(monkeypatch: pytest.MonkeyPatch, *targets: dict[str, str]) -> Any:
    """Read what targets count that differ in these labels: an eighth of a second each."""

    def get(_self: Prometheus, path: str, **parameters: Any) -> Any:
        if path.startswith("label"):
            return {"data": [] if "match[]" in parameters else [*NAMES]}
        query, found = parameters["query"], []
        for place, labels in enumerate(targets):
            values = [(t, str(t if "timestamp(" in query else t * (place + 1)))
                      for t in (15.0, 30.0, 45.0)]  # fmt: skip
            if "timestamp(" in query:
                found.append({"metric": labels, "values": values})
                continue
            found += [
                {"metric": {"__name__": name, "model_name": "m", **labels}, "values": values}
                for name in NAMES
                if name in query
            ]
        return {"data": {"result": found}, "warnings": ["store unavailable"]}

    monkeypatch.setattr(Prometheus, "get", get)
    return from_prometheus.read_signals("http://p", None, Window(0.0, 60.0), lambda *_: None)


def test_targets_of_one_address_in_two_clusters_are_two(monkeypatch: pytest.MonkeyPatch):
    """Pods of different clusters may have the same address; their counters are not added up."""
    west, east = ({"instance": "a:1", "cluster": name} for name in ("west", "east"))
    signals, _ = read(monkeypatch, west, east, {"instance": "b:1", "cluster": "east"})
    assert {*signals.instance.names} == {"a:1 west", "a:1 east", "b:1"}


def test_a_target_that_two_of_a_pair_scrape_is_one(monkeypatch: pytest.MonkeyPatch):
    """As by jobs or replicas of Prometheus: what it counts is not doubled."""
    pair = [{"instance": "a:1", "prometheus_replica": name} for name in ("0", "1")]
    signals, _ = read(monkeypatch, *pair)
    assert {*signals.instance.names} == {"a:1"}
    values = signals.value[signals.signal.where("ttft_count")]
    assert values.tolist() == [15.0, 30.0, 45.0]


def test_a_warning_in_an_answer_is_a_doubt(monkeypatch: pytest.MonkeyPatch):
    """Thanos answers without the stores that do not respond, and says so."""
    _, odd = read(monkeypatch, {"instance": "a:1"})
    assert [str(one) for one in odd if isinstance(one, Doubt)] == [
        "Prometheus warns: store unavailable"
    ]
