"""An application, its engines and their collector, all real, scraped by a real Prometheus.

Users ask a simulated engine over HTTP through the OpenAI SDK, and a real vLLM if there is one:
calmly, then in a rush, in which the engine has to queue. llmtrace records them, its Prometheus
exporter and the collector's are scraped every second, and the recording rules are evaluated.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import openai
from prometheus_client import CollectorRegistry, start_http_server

import llmtrace
from llmtrace.budget import DEFAULT
from llmtrace.demo.workload import jobs
from llmtrace.export.prometheus import PrometheusSink
from llmtrace.failopen import count_internal, reset_internal_errors
from llmtrace.sim.faults import HEADER
from llmtrace.sim.model import EngineConfig
from llmtrace.sim.server import ServerConfig, serve
from llmtrace_collector.expose import TargetMetrics
from llmtrace_collector.scrape import Scraper, ScrapeSettings
from llmtrace_collector.targets import StaticTargets, Target
from llmtrace_dashboards.rules import as_yaml, rule_files
from llmtrace_dashboards.windows import RuleSettings
from tests.collector.pages import DCGM

from .prometheus import free_port, get, prometheus, query, wait_for

# What else dcgm-exporter tells, of the same GPU.
_GPU: Final = DCGM + (
    'DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 80000\n'
)
RECORDED: Final = Path(__file__).parents[1] / "collector" / "data"
# Counters begin at nothing; what rises before that settles is in no figure.
WARM_S, CALM_S, RUSH_S = 6.0, 10.0, 12.0
# A busy machine takes its time to answer; who is not back after a scrape has failed it.
EVERY_S: Final = 2


@dataclass(frozen=True)
class Shop:
    """What there is to look at.

    Attributes:
        prometheus: its URL.
        start, rush, end: unix seconds: the first request, the rush, when all was scraped.
        traces: of the requests made.
    """

    prometheus: str
    start: float
    rush: float
    end: float
    traces: frozenset[str]


class _Kept:
    """A sink that keeps the trace ids of rows."""

    every_row = True

    def __init__(self) -> None:
        self.traces: set[str] = set()

    def write(self, row: Any) -> None:
        self.traces.add(row.trace_id)

    def flush(self, timeout_s: float) -> bool:
        del timeout_s
        return True

    def close(self) -> None:
        pass


@contextlib.contextmanager
def open_shop(vllm: tuple[str, str] | None) -> Iterator[Shop]:
    """Let people ask, and yield what Prometheus has of it.

    Args:
        vllm: base URL and model of a real vLLM.
    """
    config = ServerConfig(
        engine=EngineConfig(prefix_hit_share=0.4), gateway_s=0.012, answer_tokens=40
    )
    with contextlib.ExitStack() as opened:
        engine = opened.enter_context(serve(config))
        # Behind no gateway, so that one stage is not reported.
        bare = opened.enter_context(serve(ServerConfig(answer_tokens=12)))
        targets = [engine.root, opened.enter_context(_replayed())]
        if vllm is not None:
            targets.append(vllm[0].removesuffix("/v1"))
        application = CollectorRegistry()
        sink = PrometheusSink(
            registry=application,
            thresholds_s=DEFAULT.thresholds_s(),
            budget_seconds=DEFAULT.allocations_s(),
            tenants=True,
        )
        kept = _Kept()
        llmtrace.init("shop", exporters=[sink, kept], region="eu-west", budget=DEFAULT)
        opened.callback(reset_internal_errors)
        opened.callback(llmtrace.shutdown)
        pages = {
            "shop": opened.enter_context(_served(application)),
            "llmtrace-collector": opened.enter_context(_collecting([*targets, _nobody()])),
        }
        rules = rule_files([DEFAULT], RuleSettings(interval="1s", base=f"{4 * EVERY_S}s"))[
            "recording.yaml"
        ]
        for group in rules["groups"]:
            group["interval"] = "1s"  # the slow ones too
        url = opened.enter_context(
            prometheus(
                _config(pages),
                [as_yaml(rules)],
                flags=["--enable-feature=exemplar-storage"],
            )
        )
        up = "sum(up) == 2 and count(llmtrace_target_up == 1) == " + str(len(targets))
        wait_for(lambda: query(url, up), "both pages and all targets are read")
        start = time.time()
        rush = asyncio.run(_day(engine.url, bare.url, config.model, vllm))
        time.sleep(3 * EVERY_S)  # the last answers are scraped, and looked at by the rules
        end = wait_for(lambda: _all_is_there(url, up), "a moment at which all pages are there")
        yield Shop(url, start, rush, end, frozenset(kept.traces))


def _all_is_there(url: str, expression: str) -> float | None:
    """Return the time it is, if nothing is stale just now."""
    now = time.time()
    answer = get(url, "/api/v1/query", query=expression, time=str(now))
    return now if answer["data"]["result"] else None


def _config(pages: dict[str, str]) -> dict[str, Any]:
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


# --- people -------------------------------------------------------------------------------------


async def _day(url: str, bare: str, model: str, vllm: tuple[str, str] | None) -> float:
    """Do business, and close what streams left behind while there is a loop to close it on."""
    rush = await _business(url, bare, model, vllm)
    gc.collect()
    await asyncio.sleep(0.5)
    return rush


async def _business(url: str, bare: str, model: str, vllm: tuple[str, str] | None) -> float:
    """Let people come and go; return when the rush began."""
    async with _client(url) as client, contextlib.AsyncExitStack() as stack:
        planner = await stack.enter_async_context(_client(bare))
        others = None
        if vllm is not None:
            others = (await stack.enter_async_context(_client(vllm[0])), vllm[1])
        for users, seconds in ((3, WARM_S), (2, CALM_S), (14, RUSH_S)):
            rush = time.time()
            async with asyncio.TaskGroup() as group:
                for number in range(users):
                    group.create_task(_user(client, model, number, seconds))
                group.create_task(_agent(planner, model, seconds))
                group.create_task(_unlucky(url, model, seconds))
                if others is not None:
                    group.create_task(_user(*others, 0, seconds))
    return rush


async def _user(client: Any, model: str, number: int, seconds: float) -> None:
    over = time.monotonic() + seconds
    for job in jobs(seed=number, longest_prompt=2_500):
        if time.monotonic() > over:
            return
        leaves = 3 if number % 3 == 2 else None
        await _ask(client, model, job.messages, job.route, f"tenant-{number % 2}", leaves=leaves)
        await asyncio.sleep(0.05)


@llmtrace.trace
async def _stream(client: Any, model: str, messages: Any, route: str, tenant: str) -> Any:
    llmtrace.annotate(route=route, tenant=tenant)
    return await client.chat.completions.create(
        model=model, messages=messages, stream=True, max_tokens=30
    )


async def _ask(
    client: Any,
    model: str,
    messages: Any,
    route: str,
    tenant: str,
    *,
    leaves: int | None = None,
) -> None:
    with contextlib.suppress(openai.OpenAIError):
        async with await _stream(client, model, messages, route, tenant) as stream:
            read = 0
            async for _ in stream:
                read += 1
                await asyncio.sleep(0.002)  # drawing it
                if read == leaves:
                    return


async def _unlucky(url: str, model: str, seconds: float) -> None:
    """Ask what fails, is cut off, or is refused at first."""
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        count_internal("shop.example", 1)  # something for the panel of what llmtrace lost
        for fault in ("error_after=4", "cut_after=4", "reject_first=1, retry_after_s=0.05"):
            async with _client(url, headers={HEADER: fault}) as client:
                await _ask(client, model, [{"role": "user", "content": "hm"}], "chat", "tenant-0")
        await asyncio.sleep(0.3)


@llmtrace.tool
async def search(words: str) -> str:
    """Find something."""
    await asyncio.sleep(0.04)
    return words.upper()


@llmtrace.tool
async def weather(place: str) -> str:
    """Look out of the window; now and then it is stuck."""
    await asyncio.sleep(0.02)
    if place.endswith("3"):
        raise LookupError(place)
    return "rain"


async def _agent(client: Any, model: str, seconds: float) -> None:
    over = time.monotonic() + seconds
    number = 0
    while time.monotonic() < over:
        number += 1
        with llmtrace.turn("planner"):
            await _ask(client, model, [{"role": "user", "content": "plan"}], "plan", "tenant-1")
            await search("museums")
            with contextlib.suppress(LookupError):
                await weather(f"Rome {number % 5}")


def _client(url: str, headers: dict[str, str] | None = None) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=url,
        api_key="none",
        default_headers=headers,
        timeout=60,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
    )


def _nobody() -> str:
    """Return an address where nothing answers."""
    return f"http://127.0.0.1:{free_port()}"


# --- pages --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _served(registry: CollectorRegistry) -> Iterator[str]:
    server, thread = start_http_server(0, "127.0.0.1", registry=registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def _collecting(roots: Sequence[str]) -> Iterator[str]:
    """Read targets in a thread of its own, as the collector does; serve what they come to."""
    stop, ready = threading.Event(), threading.Event()
    scrapers: list[Scraper] = []

    async def read() -> None:
        targets = StaticTargets(tuple(Target(f"{root}/metrics") for root in roots))
        settings = ScrapeSettings(interval_s=EVERY_S, timeout_s=EVERY_S)
        async with Scraper([targets], settings) as scraper:
            scrapers.append(scraper)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(read()))
    thread.start()
    try:
        assert ready.wait(30)
        registry = CollectorRegistry()
        registry.register(TargetMetrics(scrapers[0].states))
        with _served(registry) as address:
            yield address
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def _replayed() -> Iterator[str]:
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
        yield f"http://127.0.0.1:{server.server_port}"
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
