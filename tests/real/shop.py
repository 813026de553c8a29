"""Two applications, a real vLLM, `llmtrace collect`, a real Prometheus: all dashboards need.

What runs, each in a process of its own but for the first:

- *shop* asks the engine through a gateway that tells its own time, and sends its rows by OTLP to
  the collector, which counts them.
- *planner* is an application of agents, whose page Prometheus reads itself.
- The collector reads the engine's page, too, and one that was recorded: what a vLLM on the CPU
  cannot say, of speculative decoding and a GPU.
- Prometheus reads both pages every other second and evaluates the recording rules.

People ask calmly, then while the gateway is slow, then in a rush that the engine cannot keep up
with. Each phase ends when Prometheus has counted every request of it, however long that takes.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

import llmtrace
from llmtrace.budget import DEFAULT
from llmtrace.core.row import Row
from llmtrace.engines.local_vllm import Server
from llmtrace_dashboards.rules.burn_rate import RuleSettings
from llmtrace_dashboards.rules.recording_rules import as_yaml, rule_files
from tests.collector.collecting import process
from tests.collector.pages import DCGM
from tests.support.free_ports import free_port

from .kept import Kept
from .people import Doors, ask_for, ask_once, rush_in
from .prometheus import get, prometheus, query, wait_for

PROGRAMS: Final = Path(__file__).parent / "programs"
RECORDED: Final = Path(__file__).parents[1] / "collector" / "data"
# What else dcgm-exporter tells, of the same GPU.
_GPU: Final = DCGM + (
    'DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 80000\n'
)
# A busy machine takes its time to answer; who is not back after a scrape has failed it.
EVERY_S: Final = 2
USUAL_S, SLOW_S = 0.01, 1.5
_ROUGH: Final = {"rate": 3, "retry_after_s": 0.05, "break_share": 0.3}
_PATIENCE_S: Final = 120.0


@dataclass(frozen=True)
class Phase:
    """A stretch of time, in unix seconds; at its end all requests up to then were counted."""

    start: float
    end: float

    @property
    def seconds(self) -> int:
        """How long it is."""
        return math.ceil(self.end - self.start)


@dataclass(frozen=True)
class Shop:
    """What there is to look at.

    Attributes:
        prometheus: its URL.
        collector: of its live page.
        engine: the vLLM, as the collector's `instance` names it.
        calm, slow, rush: as usual; while the gateway is slow; more than the engine can do.
        rows: of all requests of the shop.
    """

    prometheus: str
    collector: str
    engine: str
    calm: Phase
    slow: Phase
    rush: Phase
    rows: tuple[Row, ...]


@contextlib.contextmanager
def open_shop(vllm: Server) -> Iterator[Shop]:
    """Let people ask, and yield what Prometheus has of it."""
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="llmtrace-shop-")))
        gateway = opened.enter_context(_gateway(vllm.url))
        rough = opened.enter_context(_gateway(vllm.url))
        page, recorded = free_port(), opened.enter_context(_recorded())
        otlp, web = opened.enter_context(_collecting(folder, f"{vllm.url}/metrics", recorded))
        variables = opened.enter_context(pytest.MonkeyPatch.context())
        variables.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{otlp}/v1/traces")
        agents = opened.enter_context(contextlib.ExitStack())
        agents.enter_context(_planner(f"{vllm.url}/v1", vllm.model, page))
        kept = Kept()
        llmtrace.init("shop", exporters=["otlp", kept], region="eu-west")
        opened.callback(llmtrace.shutdown)
        pages = {"planner": f"127.0.0.1:{page}", "llmtrace-collector": web.split("//")[1]}
        url = opened.enter_context(
            prometheus(_config(pages), [_rules()], flags=["--enable-feature=exemplar-storage"])
        )
        up = "sum(up) == 2 and count(llmtrace_target_up == 1) == 2"
        wait_for(
            lambda: query(url, up), "both pages and all targets are read", seconds=_PATIENCE_S
        )
        doors = Doors(
            gateway=f"{gateway}/v1", rough=f"{rough}/v1", engine=f"{vllm.url}/v1", model=vllm.model
        )

        def gateways(work_s: float) -> None:
            _set_mode(gateway, work_s=work_s)
            _set_mode(rough, **{**_ROUGH, "work_s": work_s})

        def counted(since: float) -> Phase:
            assert llmtrace.flush(60)
            end = wait_for(
                lambda: _counted(url, up, len(kept.rows)), "all is counted", seconds=_PATIENCE_S
            )
            return Phase(since, end)

        gateways(USUAL_S)
        ask_once(doors)
        opening = counted(time.time())
        ask_for(8, doors, users=4)
        calm = counted(opening.end)
        gateways(SLOW_S)
        ask_for(6, doors, users=7)
        slow = counted(calm.end)
        gateways(USUAL_S)
        for _ in range(2):  # what a new bucket begins with is in no figure, only what is added
            rush_in(doors, users=12)
            rush = counted(slow.end)
        agents.close()  # drawing is work enough
        engine = vllm.url.removeprefix("http://")
        yield Shop(url, web, engine, calm, slow, rush, tuple(kept.rows))


def _counted(url: str, up: str, requests: int) -> float | None:
    """Return the time it is, if these are counted and no page is stale just now."""
    now = time.time()
    all_counted = f'sum(llmtrace_requests_total{{service="shop"}}) == {requests}'
    answer = get(url, "/api/v1/query", query=f"({up}) and ({all_counted})", time=str(now))
    return now if answer["data"]["result"] else None


def _config(pages: Mapping[str, str]) -> dict[str, Any]:
    every = f"{EVERY_S:g}s"
    return {
        "global": {
            "scrape_interval": every, "scrape_timeout": every, "evaluation_interval": "1s",
        },
        # `instance` is the engine's, as the collector says it, and not the collector's own.
        "scrape_configs": [
            {"job_name": job, "honor_labels": True, "static_configs": [{"targets": [address]}]}
            for job, address in pages.items()
        ],
    }  # fmt: skip


def _rules() -> str:
    settings = RuleSettings(interval="1s", totals_interval="1s", base=f"{4 * EVERY_S}s")
    rules = rule_files([DEFAULT], settings)["recording.yaml"]
    for group in rules["groups"]:
        group["interval"] = "1s"  # the slow ones too
    # Under the names that dashboards ask for.
    return as_yaml(rules).replace(f"rate{settings.base}", "rate5m")


# --- what runs ----------------------------------------------------------------------------------


@contextlib.contextmanager
def _gateway(engine: str) -> Iterator[str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with _running(PROGRAMS / "faulty_gateway.py", str(port), engine):

        def answers() -> bool:
            with contextlib.suppress(OSError):
                _set_mode(url)
                return True
            return False

        wait_for(answers, "the gateway answers")
        yield url


def _set_mode(gateway: str, **mode: float) -> None:
    asked = urllib.request.Request(f"{gateway}/mode", json.dumps(mode).encode(), method="POST")
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked, timeout=30):
        pass


@contextlib.contextmanager
def _planner(engine: str, model: str, port: int) -> Iterator[None]:
    with _running(PROGRAMS / "planner.py", engine, model, str(port)):
        yield


@contextlib.contextmanager
def _running(program: Path, *arguments: str) -> Iterator[None]:
    with subprocess.Popen([sys.executable, str(program), *arguments]) as running:
        try:
            yield
            assert running.poll() is None, f"{program.name} ended"
        finally:
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0, program.name


@contextlib.contextmanager
def _collecting(folder: Path, *targets: str) -> Iterator[tuple[str, str]]:
    """Run `llmtrace collect`, one of whose targets is down; yield its OTLP and web addresses."""
    pages = [*targets, f"http://127.0.0.1:{free_port()}/metrics"]
    flags = [part for page in pages for part in ("--target", page)]
    settings = {
        "scrape_interval": str(EVERY_S),
        "scrape_timeout": str(EVERY_S),
        "metrics_settle": "1",
        "store_wait": "1",
        "metrics_without": "planner",
    }
    with process(folder, *flags, **settings) as (running, otlp, web):
        yield otlp, web
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0


@contextlib.contextmanager
def _recorded() -> Iterator[str]:
    """Serve what a real vLLM with speculative decoding once said, and a GPU; counters go on."""
    said = (RECORDED / "vllm-0.32-metrics-specdecode.txt").read_text(encoding="utf-8")
    began = time.monotonic()

    class Page(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            grown = 1 + 0.1 * (time.monotonic() - began)
            lines = [_grown(line, grown) for line in (said + _GPU).splitlines()]
            body = ("\n".join(lines) + "\n").encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _grown(line: str, times: float) -> str:
    name, _, value = line.rpartition(" ")
    counts = ("_total{", "_bucket{", "_sum{", "_count{", "_VIOLATION{", "_CONSUMPTION{")
    if line.startswith("#") or not any(ending in name for ending in counts):
        return line
    return f"{name} {float(value) * times}"
