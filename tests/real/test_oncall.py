"""From a fault to an automatic report: how long does it take, and does it name the cause?

Real are all parts between: the embedded engine over HTTP, the SDK, `llmtrace collect`, Prometheus
with the rules of `llmtrace slo rules` (windows of seconds instead of hours), Alertmanager, and
`llmtrace triage serve`. Grafana and the chat are fakes that keep what they are sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from llmtrace.budget import Budget
from llmtrace.budget.file import as_yaml as budget_as_yaml
from llmtrace.simulator.engine.incidents import incident
from llmtrace.simulator.server import ServerConfig, serve
from llmtrace_dashboards.rules.burn_rate import RuleSettings, Window
from llmtrace_dashboards.rules.recording_rules import as_yaml, rule_files
from tests.collector.collecting import process

from .conftest import do_without
from .prometheus import (
    ALERTMANAGER,
    PROMETHEUS,
    alertmanager,
    alerts,
    missing,
    prometheus,
    query,
    scraping,
    to_webhook,
    wait_for,
)

CHAT: Final = Budget(name="chat", ttft_s=0.8, objective=0.95, route=("chat",))
SHORT: Final = RuleSettings(
    ladder=(Window("page", "6s", "12s", 14.4, 0.25),),
    period="1h",
    base="6s",
    interval="1s",
    period_interval="2s",
    least_requests=30,
    collector_job="collector",
)
QUIET: Final = 300  # requests before the fault: enough to know what is usual
# It takes some 20 s; a machine that is busy with other things may take its time.
AT_MOST_S: Final = 90.0
SHOP: Final = Path(__file__).parent / "programs" / "shop.py"
PAGE: Final = Path(__file__).parents[2] / "docs" / "on-call" / "on-call.md"
LISTEN_TOKEN: Final = "only-the-alertmanager-knows"
GRAFANA_TOKEN: Final = "only-grafana-knows"


@contextlib.contextmanager
def traffic(engine: str, model: str, otlp: str) -> Iterator[None]:
    """Run an application that is asked all the time."""
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{otlp}/v1/traces"}
    command = [sys.executable, str(SHOP), engine, model]
    with subprocess.Popen(command, env=environment) as running:
        try:
            yield
            assert running.poll() is None
        finally:
            running.terminate()
            assert running.wait(60) == 0


@contextlib.contextmanager
def hearing() -> Iterator[tuple[str, list[tuple[str, str | None, Any]]]]:
    """Stand in for Grafana and a chat: yield the address, and what was posted."""
    heard: list[tuple[str, str | None, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            heard.append((self.path, self.headers.get("Authorization"), body))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", heard
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def on_call(folder: Path, collector: str, others: str) -> Iterator[str]:
    """Run `llmtrace triage serve`; yield its address."""
    secrets = {"listen": LISTEN_TOKEN, "grafana": GRAFANA_TOKEN, "chat": f"{others}/chat/secret"}
    for name, secret in secrets.items():
        (folder / name).write_text(secret)
    command = [
        sys.executable, "-m", "llmtrace", "triage", "--url", collector, "serve",
        "--listen", "127.0.0.1:0", "--listen-token-file", str(folder / "listen"),
        "--reports", str(folder / "reports"), "--webhook-file", str(folder / "chat"),
        "--grafana", others, "--grafana-token-file", str(folder / "grafana"),
    ]  # fmt: skip
    log = folder / "serve.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as running,
    ):
        try:

            def address() -> str | None:
                assert running.poll() is None, log.read_text()
                found = re.search(r"reports at (http://\S+)/", log.read_text())
                return None if found is None else found[1]

            yield wait_for(address, "the server on call")
            running.terminate()
            status = running.wait(60)
            assert status == 0, f"{status}: {log.read_text()}"
            said = log.read_text()
            assert not [secret for secret in secrets.values() if secret in said]
            assert "Traceback" not in said
        finally:
            if running.poll() is None:
                running.kill()


def test_a_fault_becomes_a_report_that_names_it(tmp_path: Path, capsys: Any) -> None:
    """The gateway begins to dawdle; soon a report says so."""
    if reason := missing(PROMETHEUS, ALERTMANAGER):
        do_without(reason)
    budget = tmp_path / "budget.yml"
    budget.write_text(budget_as_yaml(CHAT))
    rules = [as_yaml(content) for content in rule_files([CHAT], SHORT).values()]
    well = ServerConfig(gateway_s=0.01)
    with contextlib.ExitStack() as open_:
        engine = open_.enter_context(serve(well))
        _, otlp, web = open_.enter_context(
            process(
                tmp_path / "data", "--budget", str(budget), "--target", f"{engine.root}/metrics",
                scrape_interval="1", scrape_timeout="1", metrics_settle="1", store_wait="1",
            )
        )  # fmt: skip
        others, heard = open_.enter_context(hearing())
        desk = open_.enter_context(on_call(tmp_path, web, others))
        config = to_webhook(f"{desk}/alerts")
        config["receivers"][0]["webhook_configs"][0]["http_config"] = {
            "authorization": {"credentials_file": str(tmp_path / "listen")}
        }
        manager = open_.enter_context(alertmanager(config))
        scraped = open_.enter_context(
            prometheus(scraping({"collector": f"{web}/metrics"}, alertmanager=manager), rules)
        )
        open_.enter_context(traffic(engine.url, well.model, otlp))

        counted = 'sum(llmtrace_requests_total{outcome="success"})'
        wait_for(
            lambda: [1 for _, n in query(scraped, counted) if n >= QUIET],
            "a quiet while",
            seconds=300,
        )
        # A busy machine may serve the collector's page later than a scrape waits.
        said = {one["labels"]["alertname"] for one in alerts(scraped)}
        assert said <= {"LlmtraceCollectorStalled"}
        assert heard == []

        onset = time.time()
        engine.change(incident(well, "gateway_overhead", 3))
        wait_for(lambda: len(heard) >= 2, "a report, sent to both", seconds=300)
        took = time.time() - onset
        report = read_report(desk)

    result, alert = report["result"], report["alert"]
    fired = alert["started"] - onset
    with capsys.disabled():
        print(f"\n  onset to alert {fired:.1f} s, to report {took:.1f} s")
    assert took < AT_MOST_S
    assert alert["name"] == "LlmtraceLatencyBudgetBurn"
    assert (result["verdict"], result["metric"]) == ("regression", "ttft")
    moved = max(result["contributions"], key=lambda one: abs(one["seconds"]))
    assert moved["name"] == "gateway"
    # It dawdles for one and a half; on a busy machine requests also wait for each other there.
    assert moved["seconds"] > max(1.2, 0.5 * result["delta_s"])
    named = [one["id"] for one in result["causes"] if one["status"] in {"likely", "confirmed"}]
    assert named[:1] == ["gateway_overhead"]
    assert abs(result["onset"]["best"] - onset) < 5

    by_path = {path: (token, body) for path, token, body in heard}
    assert len(heard) == len(by_path) == 2  # once each, however often Alertmanager repeats itself
    token, annotation = by_path["/api/annotations"]
    assert token == f"Bearer {GRAFANA_TOKEN}"
    assert annotation["tags"] == ["llmtrace", alert["name"], "regression"]
    assert abs(annotation["time"] / 1000 - onset) < 5
    _, message = by_path["/chat/secret"]
    assert "cause: gateway_overhead" in message["text"]
    assert f"{desk}/reports/{report['name']}" in message["text"]


def test_the_documented_configuration_is_one(tmp_path: Path) -> None:
    """Alertmanager's own checker takes what docs/on-call/on-call.md says to write."""
    if reason := missing("amtool"):
        do_without(reason)
    [block] = re.findall(r"(?ms)^```yaml\n(.+?)^```", PAGE.read_text(encoding="utf-8"))
    (tmp_path / "alertmanager.yml").write_text(block)
    command = ["amtool", "check-config", str(tmp_path / "alertmanager.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 receivers" in done.stdout


def read_report(desk: str) -> dict[str, Any]:
    """Return the only report; without the token there is none."""
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(f"{desk}/", timeout=30)
    refused.value.close()
    [name] = re.findall(r'href="reports/([^"]+)"', get(f"{desk}/"))
    assert "gateway" in get(f"{desk}/reports/{name}")
    report: dict[str, Any] = json.loads(get(f"{desk}/reports/{name}.json"))
    return report


def get(url: str) -> str:
    """Read a page, with the token."""
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {LISTEN_TOKEN}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return str(answer.read().decode())
