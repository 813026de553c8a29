"""Does a burning budget get from our exporter through a real Prometheus to a real Alertmanager?

The rules are those of `llmtrace slo rules`, with windows of seconds instead of hours.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from queue import Queue
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry

from llmtrace.budget import Budget, Budgets
from llmtrace.core.stages import Timeline
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.testing import make_row
from llmtrace_dashboards.rules.burn_rate import RuleSettings, Window
from llmtrace_dashboards.rules.recording_rules import as_yaml, rule_files
from llmtrace_dashboards.rules.recording_series import REMAINING, bad_ratio

from .conftest import do_without
from .prometheus import (
    ALERTMANAGER,
    PROMETHEUS,
    alertmanager,
    alerts,
    get,
    missing,
    prometheus,
    query,
    scraping,
    to_webhook,
    wait_for,
)

CHAT: Final = Budget(name="chat", ttft_s=1.0, availability=0.99, route=("chat",))
SHORT: Final = RuleSettings(
    ladder=(Window("page", "6s", "12s", 14.4, 0.25), Window("ticket", "12s", "5m", 3, 0.10)),
    period="1h",
    base="6s",
    interval="1s",
    period_interval="2s",
    least_requests=30,
    collector_job="app",
)
_MS: Final = 1_000_000


class Traffic:
    """An application that is asked twenty times a second, and shows what it measured.

    Attributes:
        url: of its metrics page.
        slow: whether its requests take 3 s until their first content.
        answered: how many there were.
    """

    def __init__(self) -> None:
        budgets = Budgets((CHAT,))
        self._sink = PrometheusSink(
            registry=CollectorRegistry(),
            thresholds_s=budgets.thresholds_s(),
            budget_seconds=budgets.allocations_s(),
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.url = f"http://127.0.0.1:{self._sink.serve(0)}"
        self.slow = False
        self.answered = 0
        self._thread.start()

    def _ask(self) -> None:
        while not self._over.wait(0.05):
            ttft = 3_000 * _MS if self.slow else 200 * _MS
            timeline = Timeline(e2e=ttft + 500 * _MS, ttft=ttft)
            now = time.time_ns()
            self._sink.write(
                make_row(
                    timeline=timeline, start=now, model="tiny", route="chat", region="eu",
                    output_tokens=20, last_content_ns=ttft + 400 * _MS,
                )
            )  # fmt: skip
            self.answered += 1

    def close(self) -> None:
        """Stop."""
        self._over.set()
        self._thread.join(10)
        self._sink.close()


@contextlib.contextmanager
def webhook() -> Iterator[tuple[str, Queue[dict[str, Any]]]]:
    """Listen for an Alertmanager; yield where, and what it sends."""
    notifications: Queue[dict[str, Any]] = Queue()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            notifications.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/alerts", notifications
        finally:
            server.shutdown()
            thread.join(10)


def firing(url: str) -> list[dict[str, Any]]:
    """Return the alerts that fire in a Prometheus."""
    return [one for one in alerts(url) if one["state"] == "firing"]


def test_a_burn_pages_through_prometheus_and_alertmanager():
    """Quick requests fire no alert; slow ones page, with what the person on call needs."""
    if reason := missing(PROMETHEUS, ALERTMANAGER):
        do_without(reason)
    files = rule_files([CHAT], SHORT)
    rules = [as_yaml(content) for content in files.values()]
    recorded = {
        rule["record"]
        for group in files["recording.yaml"]["groups"]
        if group["name"].startswith("llmtrace-slo")  # the others sum up what this app has none of
        for rule in group["rules"]
    }
    with contextlib.ExitStack() as open_:
        hook, notifications = open_.enter_context(webhook())
        manager = open_.enter_context(alertmanager(to_webhook(hook)))
        app = open_.enter_context(contextlib.closing(Traffic()))
        url = open_.enter_context(
            prometheus(scraping({"app": app.url}, alertmanager=manager), rules)
        )
        healthy = f'{bad_ratio("12s")}{{budget="chat", slo="ttft"}}'
        wait_for(lambda: [v for _, v in query(url, healthy) if v == 0.0], "a share of none")
        # All that is recorded has series, under the names that dashboards query.
        for name in sorted(recorded):
            wait_for(lambda name=name: query(url, name), name)
        wait_for(lambda: [v for _, v in query(url, REMAINING) if v == 1.0], "a whole budget")
        assert firing(url) == []

        app.slow, since = True, time.time()
        (page,) = wait_for(
            lambda: [one for one in firing(url) if one["labels"]["severity"] == "page"], "a page"
        )
        assert page["labels"] == {
            "alertname": "LlmtraceLatencyBudgetBurn", "severity": "page", "window": "12s",
            "budget": "chat", "slo": "ttft", "route": "chat",
        }  # fmt: skip

        notified = notifications.get(timeout=60)
        while notified["commonLabels"].get("severity") != "page":
            notified = notifications.get(timeout=60)
        at_manager = get(manager, "/api/v2/alerts", filter='severity="page"')
    assert [one["labels"] for one in at_manager] == [page["labels"]]
    (alert,) = notified["alerts"]
    assert alert["status"] == "firing"
    assert re.fullmatch(
        r"chat: [3-9]\d(\.\d+)?% of the requests of the last 12s are too slow \(ttft\)"
        r"|chat: 2[5-9](\.\d+)?% of the requests of the last 12s are too slow \(ttft\)",
        alert["annotations"]["summary"],
    )
    assert (
        alert["annotations"]["runbook_url"] == "docs/on-call/alerts.md#llmtracelatencybudgetburn"
    )
    command = re.fullmatch(
        r"llmtrace triage --after (\S+)/(\S+) --metric ttft --where route=chat",
        alert["annotations"]["triage"],
    )
    assert command is not None
    start, end = (datetime.strptime(t, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
                  for t in command.groups())  # fmt: skip
    assert (end - start).total_seconds() == pytest.approx(12, abs=1.1)
    assert since - 1 <= end.timestamp() <= time.time() + 1
    assert app.answered > SHORT.least_requests
