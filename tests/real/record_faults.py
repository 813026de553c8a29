"""What do rows and signals look like when a real vLLM is really in trouble?

    python tests/real/netns_run.py -m tests.real.record_faults DIR [NAME ...]

For each `Fault`: a real vLLM on the CPU, our SDK around the OpenAI client, our scraper on its
metrics page; a quiet window, then one with the fault. Each becomes a case folder in DIR, with the
true cause in a file of its own (`truth.json`) that no analysis reads. Faults of one server share
its quiet window. Times depend on the machine; that they are compared on one machine is the point.
Run in a network of its own (netns_run.py), where a round trip can be made longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import httpx
import openai

import llmtrace
from llmtrace.core.row import Row
from llmtrace.dataset.case import Case, Event, Facts, Window, signals_from, write_case
from llmtrace.dataset.columns import from_rows
from llmtrace.engines import local_vllm
from llmtrace.testing import capture
from llmtrace_collector.scrape.samples import of_targets
from llmtrace_collector.scrape.scraper import Scraper, ScrapeSettings
from llmtrace_collector.scrape.targets import StaticTargets, Target
from tests.support.free_ports import free_port

from .delays import DelayProxy, delayed_network
from .proxies import haproxy, nginx

_HERE: Final = Path(__file__).parent
_BEFORE_S: Final = 36.0
_AFTER_S: Final = 34.0
_DRAIN_S: Final = 10.0
_SCRAPE_S: Final = 2.0
_WORDS: Final = ("stream", "token", "cache", "batch", "prompt", "queue", "latency", "window")
_TENANTS: Final = ("acme", "globex", "initech")


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked: requests a second, tokens of prompt and answer, and how it is read."""

    rate: float = 5.0
    prompt: tuple[int, int] = (80, 500)
    output: tuple[int, int] = (20, 44)
    shared: int = 0  # tokens at the front of every prompt that are the same
    stamped: bool = False  # ... with the time before them, so that none are
    long_share: float = 0.0  # of requests have a prompt of `long` tokens
    long: int = 0
    temperature: float = 1.0
    repeat: str = ""  # prompts that repeat `one` word or their `own`, as n-gram drafts like
    hold_s: float = 0.0  # the reader's own time for a chunk
    give_up_s: float | None = None  # without a first chunk until then, the reader goes
    connections: int = 64
    retries: int = 2
    top_logprobs: int = 0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One recording.

    Attributes:
        name: of its folder.
        causes: the true ones; none = a quiet day.
        metric: what one would have been paged for.
        after: the load in the second window.
        during: what is done meanwhile: given the site, a context for the second window.
        events: what a deploy log would say.
        after_s: how long the second window is.
        shift: whether nothing is broken, and only what is asked differs.
        accept: causes that this one brings about by itself here, so that naming them is no error.
    """

    name: str
    causes: tuple[str, ...]
    metric: str | None
    after: Load
    during: str = ""
    value: float = 0.0
    events: tuple[tuple[str, str], ...] = ()
    after_s: float = _AFTER_S
    shift: bool = False
    accept: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Server:
    """How vLLM is started, the load of its quiet window, and what is recorded on it.

    Attributes:
        quiet_flags: of the server the quiet window is recorded on; `None` = the same one.
        path: what stands between client and engine: `direct`, `gateway`, `nginx`, `haproxy`.
    """

    flags: tuple[str, ...]
    base: Load
    faults: tuple[Fault, ...]
    quiet_flags: tuple[str, ...] | None = None
    path: str = "direct"
    facts: dict[str, Any] = field(default_factory=dict)


_SEATS: Final = ("--max-num-seqs", "16")
_PLAIN: Final = Load()
_TWO_SEATS: Final = ("--max-num-seqs", "2")
_WHOLE: Final = (
    "--max-model-len", "8192", "--max-num-batched-tokens", "8192", "--no-enable-chunked-prefill",
)  # fmt: skip
# Tries to connect once a second until there is an engine, keeps requests until then, silently.
HOLDS: Final[Mapping[str, str]] = {
    "timeout connect 5s": "timeout connect 1s\n  timeout queue 2m\n  retries 100",
    "http-response add-header Server-Timing": "# http-response add-header Server-Timing",
}
# Neither holds up a stream by itself: vLLM's chunks are passed on, and compressed one by one.
GATHERS: Final[Mapping[str, str]] = {
    "proxy_buffering off;": "proxy_buffering on;",
    "gzip off;": "gzip on; gzip_types text/event-stream;",
}
_NGRAM: Final = (
    '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, '
    '"prompt_lookup_min": 2}'
)
_FULL: Final = ("queue_saturation",)
_CALM: Final = Load(rate=2.8)  # what two cores shared with others take without queueing
_SHARED: Final = Load(rate=2.7, shared=1300, prompt=(60, 200))
_HELD: Final = Load(rate=4.0, prompt=(150, 500), output=(60, 120))
_LARGE: Final = Load(rate=2.6, prompt=(500, 900), output=(40, 80))
_GROWING: Final = Load(rate=2.6, prompt=(90, 120), output=(100, 180))
_LOOPING: Final = Load(rate=3.6, output=(60, 100), temperature=0.0, repeat="own")


def _fault(name: str, cause: str | None, metric: str | None, **given: Any) -> Fault:
    causes = () if cause is None else (cause,)
    return Fault(name=name, causes=causes, metric=metric, **{"after": _PLAIN, **given})


def _small_cache(name: str, blocks: int, load: Load, after: Load | None = None) -> Server:
    """Return a server whose cache has so many blocks of 128 tokens, one of them never used."""
    tokens = 128 * (blocks - 1)
    flags = ("--max-model-len", str(tokens), "--num-gpu-blocks-override", str(blocks))
    return Server(
        flags=(*_SEATS, *flags),
        quiet_flags=_SEATS,
        base=load,
        facts={"max_num_seqs": 16, "max_model_len": tokens, "kv_cache_tokens": tokens},
        faults=(_fault(name, "kv_exhaustion", "ttft", after=after or load),),
    )


def _drafting(load: Load, *faults: tuple[str, float]) -> Server:
    """Return a server that drafts by n-grams; names and temperatures of what spoils its drafts."""
    both = ("low_spec_acceptance", "prefix_cache_collapse")
    causes = both if load.repeat == "one" else both[:1]
    return Server(
        flags=(*_SEATS, "--speculative-config", _NGRAM),
        base=load,
        facts={"spec_decode": True, "max_num_seqs": 16},
        faults=tuple(
            Fault(name=name, causes=causes, metric="tpot",
                  after=replace(load, temperature=temperature, repeat=""))
            for name, temperature in faults
        ),
    )  # fmt: skip


def plan() -> tuple[Server, ...]:
    """Return everything that is recorded, a server after the other."""
    plain = _PLAIN
    longer = replace(plain, output=(60, 110))
    calmer = replace(_CALM, output=(50, 90))
    return (
        Server(flags=_SEATS, base=plain, facts={"max_num_seqs": 16}, faults=(
            _fault("quiet-1", None, "ttft"),
            _fault("long-prompts-mild", "long_prompts", "ttft", shift=True, accept=_FULL,
                   after=replace(plain, prompt=(1200, 1900))),
            _fault("batch-size-mild", "batch_size", "tpot", accept=_FULL,
                   after=replace(plain, rate=14)),
            _fault("batch-size-severe", "batch_size", "tpot", accept=_FULL,
                   after=replace(plain, rate=20)),
            _fault("slow-renderer-mild", "slow_renderer", "tpot",
                   after=replace(plain, hold_s=0.04)),
            _fault("slow-renderer-medium", "slow_renderer", "tpot",
                   after=replace(plain, hold_s=0.08)),
            _fault("slow-renderer-severe", "slow_renderer", "tpot",
                   after=replace(plain, hold_s=0.15)),
            _fault("network-path-mild", "network_path", "ttft", during="rtt", value=0.25),
            _fault("network-path-medium", "network_path", "ttft", during="rtt", value=0.45),
            _fault("network-path-severe", "network_path", "ttft", during="rtt", value=0.8),
            _fault("client-gate-severe", "client_gate", "ttft",
                   after=replace(plain, connections=1, rate=7)),
            _fault("engine-paused-mild", "engine_paused", "ttft", during="pause", value=1.5),
            _fault("engine-paused-severe", "engine_paused", "ttft", during="pause", value=2.8),
            _fault("give-ups-mild", "client_give_ups", None,
                   after=replace(plain, give_up_s=0.15)),
            _fault("give-ups-severe", "client_give_ups", None,
                   after=replace(plain, give_up_s=0.06)),
            _fault("frontend-cpu", "frontend_cpu", "tpot",
                   after=replace(plain, top_logprobs=20, rate=8)),
            _fault("engine-down", "engine_down", None, during="kill"),
        )),
        Server(flags=_SEATS, base=_CALM, facts={"max_num_seqs": 16}, faults=(
            _fault("quiet-calm", None, "ttft", after=_CALM),
            _fault("longer-outputs-mild", "longer_outputs", "e2e", shift=True,
                   after=replace(_CALM, output=(50, 90))),
            _fault("longer-outputs-severe", "longer_outputs", "e2e", shift=True,
                   after=replace(_CALM, output=(90, 150))),
            _fault("long-prompts-light", "long_prompts", "ttft", shift=True, accept=_FULL,
                   after=replace(_CALM, prompt=(800, 1300))),
            _fault("client-gate-mild", "client_gate", "ttft",
                   after=replace(_CALM, connections=1)),
            _fault("prefix-stamped", "prefix_cache_collapse", "ttft",
                   after=replace(_SHARED, stamped=True),
                   events=(("deploy", "new prompt template"),)),
        )),
        Server(flags=_SEATS, base=plain, path="gateway", facts={"max_num_seqs": 16}, faults=(
            _fault("gateway-slow-mild", "gateway_overhead", "ttft", during="mode",
                   value=0.5),
            _fault("gateway-slow-severe", "gateway_overhead", "ttft", during="mode", value=1.2),
            _fault("rate-limit-mild", "rate_limit_retries", "ttft", during="rate", value=3.0),
            _fault("rate-limit-medium", "rate_limit_retries", "ttft", during="rate", value=2.4,
                   after=replace(plain, retries=4)),
            _fault("rate-limit-severe", "rate_limit_retries", "ttft", during="rate", value=1.8,
                   after=replace(plain, retries=5)),
            _fault("midstream-mild", "midstream_errors", None, during="break", value=0.1),
            _fault("midstream-severe", "midstream_errors", None, during="break", value=0.35),
            _fault("gateway-quiet", None, "ttft"),
        )),
        Server(flags=_SEATS, base=longer, path="nginx", facts={"max_num_seqs": 16}, faults=(
            _fault("idle-cut-mild", "idle_timeout", None, during="idle", value=1.0,
                   after=longer),
            _fault("idle-cut-severe", "idle_timeout", None, during="idle", value=0.6,
                   after=longer),
        )),
        Server(flags=_SEATS, base=calmer, path="nginx", facts={"max_num_seqs": 16}, faults=(
            _fault("proxy-gzip", "proxy_buffering", "ttft", during="gzip", after=calmer),
        )),
        Server(flags=_TWO_SEATS, base=plain, facts={"max_num_seqs": 2}, faults=(
            _fault("saturation-mild", "queue_saturation", "ttft", after=replace(plain, rate=13)),
            _fault("saturation-medium", "queue_saturation", "ttft",
                   after=replace(plain, rate=17)),
            _fault("saturation-severe", "queue_saturation", "ttft",
                   after=replace(plain, rate=22)),
        )),
        Server(flags=_WHOLE, base=plain,
               facts={"chunked_prefill": False, "max_num_batched_tokens": 8192}, faults=(
            _fault("head-of-line-mild", "head_of_line", "ttft",
                   after=replace(plain, long_share=0.045, long=7000)),
            _fault("head-of-line-severe", "head_of_line", "ttft",
                   after=replace(plain, long_share=0.07, long=7600)),
        )),
        Server(flags=(*_SEATS, "--no-enable-prefix-caching"), quiet_flags=_SEATS, base=_SHARED,
               facts={"prefix_caching": False, "max_num_seqs": 16}, faults=(
            _fault("prefix-off-1", "prefix_cache_collapse", "ttft", after=_SHARED,
                   events=(("config", "--no-enable-prefix-caching"),)),
        )),
        _small_cache("kv-small-more-load", 17, _HELD, after=replace(_HELD, rate=9.0)),
        _small_cache("kv-small-mild", 13, _LARGE),
        _small_cache("kv-small-severe", 9, _LARGE),
        _small_cache("kv-preempted-mild", 9, _GROWING),
        _small_cache("kv-preempted-severe", 7, _GROWING),
        _drafting(_LOOPING, ("acceptance-mild", 0.9), ("acceptance-severe", 1.5)),
        # Prompts that all begin alike are cached too, until they are others.
        _drafting(replace(_LOOPING, repeat="one"),
                  ("acceptance-and-prefix-mild", 0.9), ("acceptance-and-prefix-severe", 1.5)),
        Server(flags=_SEATS, base=_CALM, path="haproxy", facts={"max_num_seqs": 16}, faults=(
            _fault("cold-start-mild", "cold_start", "ttft", during="restart", value=22.0,
                   after=_CALM, events=(("deploy", "new image"),)),
            _fault("cold-start-severe", "cold_start", "ttft", during="restart", value=12.0,
                   after=_CALM, events=(("deploy", "new image"),)),
        )),
    )  # fmt: skip


# --- the client ---------------------------------------------------------------------------------


def _text(load: Load, rng: random.Random, number: int) -> str:
    """Return a prompt; a byte is a token."""
    size = load.long if rng.random() < load.long_share else rng.randint(*load.prompt)
    lead = (" ".join(_WORDS) + " ") * (load.shared // 56 + 1)
    lead = lead[: load.shared]
    if load.stamped:
        lead = f"{number:08d} {rng.random():.12f} " + lead
    if load.repeat:
        own = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=4))
        word = own if load.repeat == "own" else "abcd"
        return lead + (f"{word} " * (size // 5 + 1))[:size]
    return lead + "".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(size))


async def _ask(client: openai.AsyncOpenAI, load: Load, rng: random.Random, number: int) -> None:
    messages: Any = [{"role": "user", "content": _text(load, rng, number)}]
    extra: dict[str, Any] = {"extra_body": {"ignore_eos": True}}
    if load.top_logprobs:
        extra |= {"logprobs": True, "top_logprobs": load.top_logprobs}
    with contextlib.suppress(openai.OpenAIError, httpx.HTTPError, TimeoutError):
        async with asyncio.timeout(load.give_up_s) as patience:
            stream = await client.chat.completions.create(
                model="tiny", messages=messages, stream=True, temperature=load.temperature,
                max_tokens=rng.randint(*load.output), **extra,
            )  # fmt: skip
            llmtrace.annotate(tenant=rng.choice(_TENANTS), route="chat")
            async with stream:
                async for _chunk in stream:
                    patience.reschedule(None)
                    if load.hold_s:
                        await asyncio.sleep(load.hold_s)


async def _drive(urls: Sequence[tuple[str, float]], load: Load, seconds: float, seed: int) -> None:
    """Ask at random times, whatever engine answers, until all are recorded."""
    rng = random.Random(seed)
    limits = httpx.Limits(max_connections=load.connections)
    clients = [
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=load.retries, timeout=60,
            http_client=openai.DefaultAsyncHttpxClient(limits=limits),
        )
        for url, _ in urls
    ]  # fmt: skip
    tasks: set[asyncio.Task[None]] = set()
    due = time.monotonic()
    end = due + seconds
    number = 0
    while due < end:
        await asyncio.sleep(max(due - time.monotonic(), 0))
        client = rng.choices(clients, [share for _, share in urls])[0]
        task = asyncio.create_task(_ask(client, load, rng, number))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        number += 1
        due += rng.expovariate(load.rate)  # a late request does not make the next one late
    await asyncio.sleep(max(end - time.monotonic(), 0))
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=_DRAIN_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    for client in clients:
        await client.close()


# --- the signals --------------------------------------------------------------------------------


class Signals:
    """Scrapes in a thread of its own, so that the client's clock is not held up."""

    def __init__(self, url: str, every_s: float = _SCRAPE_S, instance: str = "vllm-0") -> None:
        self.samples: list[dict[str, Any]] = []
        self._url, self._every_s, self._instance = url, every_s, instance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._scrape()))

    async def _scrape(self) -> None:
        target = Target(f"{self._url}/metrics")
        settings = ScrapeSettings(
            interval_s=self._every_s, timeout_s=min(_SCRAPE_S, self._every_s)
        )
        async with Scraper([StaticTargets((target,))], settings) as scraper:
            pages = 0
            while not self._stop.is_set():
                await asyncio.sleep(self._every_s)
                states = [one for one in scraper.states() if not one.up or one.pages != pages]
                pages = sum(one.pages for one in scraper.states())
                for sample in of_targets(states, time.time_ns()):
                    self.samples.append(
                        {
                            "t": sample.t_ns / 1e9,
                            "instance": self._instance,
                            "signal": sample.signal,
                            "value": sample.value,
                            "labels": dict(sample.labels),
                        }
                    )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


# --- faults -------------------------------------------------------------------------------------


@dataclass
class Site:
    """A running server and what stands before it."""

    server: local_vllm.Server
    url: str
    slow_url: str | None = None

    def engine_pids(self) -> list[int]:
        """Return the processes of the engine, which are the API server's children."""
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _parent(entry) == self.server.pid
        ]


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


@contextlib.contextmanager
def _during(site: Site, fault: Fault) -> Iterator[list[tuple[str, float]]]:
    """Bring the fault about; yield where the client goes, with shares."""
    usual = [(site.url, 0.75 if site.slow_url else 1.0)]
    if site.slow_url:
        usual.append((site.slow_url, 0.25))
    if fault.during == "rtt":
        with delayed_network(fault.value) as host:
            yield [(f"http://{host}:{site.server.url.rpartition(':')[2]}", 1.0)]
    elif fault.during == "pause":
        with again(lambda: _pause(site, fault.value), every_s=5.0):
            yield usual
    elif fault.during == "kill":
        timer = threading.Timer(6.0, lambda: _signal(site, signal.SIGKILL))
        timer.start()
        yield usual
        timer.join()
    elif fault.during in ("mode", "rate", "break"):
        field_name = {"mode": "work_s", "rate": "rate", "break": "break_share"}[fault.during]
        _set_mode(site.url, {field_name: fault.value})
        yield usual
        _set_mode(site.url, {})
    elif fault.during == "gzip":
        with nginx(site.server.url, GATHERS) as (url, _):
            yield [(url, 1.0)]
    elif fault.during == "idle":
        timeout = f"proxy_read_timeout {int(fault.value * 1000)}ms;"
        with (
            DelayProxy(site.server.url, chunk_s=1.3) as slow,
            nginx(slow.url, {"proxy_read_timeout 3600s;": timeout}) as cutting,
        ):
            yield [(site.url, 0.75), (cutting[0], 0.25)]
    else:
        yield usual


def _pause(site: Site, seconds: float) -> None:
    _signal(site, signal.SIGSTOP)
    time.sleep(seconds)
    _signal(site, signal.SIGCONT)


def _signal(site: Site, number: int) -> None:
    for pid in site.engine_pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def again(what: Callable[[], None], every_s: float) -> Iterator[None]:
    """Do something every few seconds, in a thread, until the block is left."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(every_s):
            what()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _set_mode(url: str, mode: dict[str, Any]) -> None:
    request = urllib.request.Request(f"{url}/mode", json.dumps(mode).encode(), method="POST")
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


@contextlib.contextmanager
def _before_it(server: Server, vllm: local_vllm.Server, with_slow: bool) -> Iterator[Site]:
    """Put up what stands between client and engine."""
    if server.path == "gateway":
        port = free_port()
        program = [sys.executable, str(_HERE / "programs" / "faulty_gateway.py")]
        process = subprocess.Popen([*program, str(port), vllm.url])
        try:
            _wait(port)
            yield Site(vllm, f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait()
    elif server.path == "haproxy":
        with haproxy(vllm.url, HOLDS) as url:
            yield Site(vllm, url)
    elif server.path == "nginx":
        with nginx(vllm.url) as (url, _), contextlib.ExitStack() as stack:
            slow = None
            if with_slow:
                proxy = stack.enter_context(DelayProxy(vllm.url, chunk_s=1.3))
                slow, _ = stack.enter_context(nginx(proxy.url))
            yield Site(vllm, url, slow)
    else:
        yield Site(vllm, vllm.url)


def _wait(port: int) -> None:
    import socket

    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


# --- one server after the other -----------------------------------------------------------------


@dataclass(frozen=True)
class _Window:
    window: Window
    rows: list[Row]
    samples: list[dict[str, Any]]


def _window(
    urls: Sequence[tuple[str, float]], load: Load, seconds: float, metrics: str
) -> _Window:
    with Signals(metrics) as signals, capture(service="recorder") as rows:
        start = time.time()
        asyncio.run(_drive(urls, load, seconds, seed=int(start)))
    # What is still open when a window is looked at has no row yet.
    latest = start + seconds + _DRAIN_S - 0.5
    ended = [
        row for row in rows if row.outcome != "cancelled" or row.start / 1e9 + row.e2e_s < latest
    ]
    return _Window(Window(start, start + seconds), ended, signals.samples)


class Recorder:
    """Records faults, a server after the other; one that fits goes on, and so do quiet windows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._vllm: local_vllm.Server | None = None
        self._flags: tuple[str, ...] = ()
        self._quiet: dict[tuple[object, ...], _Window] = {}

    def serve(self, flags: tuple[str, ...]) -> local_vllm.Server:
        """Return a running server with these flags."""
        vllm = self._vllm
        if vllm is None or flags != self._flags or not vllm.is_running():
            self.stop()
            # On every address of this network: the delayed one appears later.
            vllm = local_vllm.start(flags=flags, host="0.0.0.0", log=_tell)
            vllm.url = vllm.url.replace("0.0.0.0", "127.0.0.1")
            self._vllm, self._flags = vllm, flags
        return vllm

    def stop(self) -> None:
        """Stop the server that runs."""
        if self._vllm is not None:
            self._vllm.stop()
            self._vllm = None

    def quiet(self, server: Server, fault: Fault) -> _Window:
        """Return the quiet window that a fault is compared with, recorded if it was not yet."""
        flags = server.quiet_flags or server.flags
        load = _SHARED if fault.after.shared else server.base
        slow = fault.during == "idle"
        key = (flags, server.path, load, slow)
        if key not in self._quiet:
            with (
                _before_it(server, self.serve(flags), slow) as site,
                _during(site, replace(fault, during="", after=load)) as urls,
            ):
                _window(urls, load, 4.0, site.server.url)  # warm up
                self._quiet[key] = _window(urls, load, _BEFORE_S, site.server.url)
        return self._quiet[key]

    def restarted(self, server: Server, fault: Fault) -> _Window:
        """Return a window in which requests come to an engine that is still starting."""
        self.stop()
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        with ThreadPoolExecutor(1) as pool, haproxy(url, HOLDS) as held:
            new = pool.submit(local_vllm.start, flags=server.flags, port=port, log=_tell)
            time.sleep(fault.value)
            try:
                return _window([(held, 1.0)], fault.after, fault.after_s, url)
            finally:
                self._vllm, self._flags = new.result(), server.flags

    def record(self, server: Server, fault: Fault) -> None:
        """Record one fault."""
        before = self.quiet(server, fault)
        if fault.during == "restart":
            after = self.restarted(server, fault)
        else:
            with (
                _before_it(server, self.serve(server.flags), fault.during == "idle") as site,
                _during(site, fault) as urls,
            ):
                after = _window(urls, fault.after, fault.after_s, site.server.url)
        _write(server, fault, before, after, self.folder / fault.name)


def _tell(line: str) -> None:
    print("  ", line, flush=True)


def _write(server: Server, fault: Fault, before: _Window, after: _Window, folder: Path) -> None:
    signals, odd = signals_from([*before.samples, *after.samples])
    facts = {
        "engine": "vllm", "version": "0.32.0", "max_model_len": 4096, "chunked_prefill": True,
        "prefix_caching": True, "spec_decode": False, **server.facts,
    }  # fmt: skip
    case = Case(
        rows=from_rows([*before.rows, *after.rows]),
        signals=signals,
        facts=Facts(
            instances={"vllm-0": facts},
            events=tuple(Event(after.window.start, kind, text) for kind, text in fault.events),
        ),
        before=before.window,
        after=after.window,
        metric=fault.metric,
    )
    write_case(folder, case, compress=True)
    truth = {
        "causes": list(fault.causes),
        "accept": list(fault.accept),
        "shift": fault.shift,
    }
    (folder / "truth.json").write_text(json.dumps(truth) + "\n", encoding="utf-8")
    ttft = [
        sorted(r.ttft_s for r in w.rows if r.ttft_s is not None) or [0.0] for w in (before, after)
    ]
    said = " -> ".join(f"{1000 * t[int(0.95 * len(t))]:.0f}" for t in ttft)
    odd_words = f"; {odd}" if odd else ""
    print(
        f"{fault.name}: {len(before.rows)} + {len(after.rows)} rows, "
        f"{len(case.signals)} samples, ttft p95 {said} ms{odd_words}",
        flush=True,
    )


def main(folder: Path, names: Sequence[str]) -> None:
    """Record everything, or what is named; what goes wrong is printed and left out."""
    recorder = Recorder(folder)
    chosen = [(s, f) for s in plan() for f in s.faults if not names or f.name in names]
    try:
        for server, fault in chosen:  # while the servers they need run anyhow
            if server.quiet_flags == _SEATS and any(s.flags == _SEATS for s, _ in chosen):
                recorder.quiet(server, fault)
        for server, fault in chosen:
            try:
                recorder.record(server, fault)
            except Exception as error:
                print(f"{fault.name} was not recorded: {error!r}", flush=True)
    finally:
        recorder.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
