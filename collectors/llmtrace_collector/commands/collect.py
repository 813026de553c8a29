"""Run `llmtrace collect`: start its parts, and stop them in order.

One process receives spans into a spool, moves them into the store, reads the metrics of engines
and GPUs, and serves all of it. Requests are on disk before they are acknowledged, so that none is
lost however the process ends; a graceful shutdown also stores them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import GaugeMetricFamily
from starlette.applications import Starlette
from starlette.types import ASGIApp

from llmtrace import __version__
from llmtrace.core.errors import ConfigError, LlmtraceError, SourceError
from llmtrace.core.failopen import internal_error
from llmtrace.core.listen_address import listen
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace_collector import receive
from llmtrace_collector.commands import banner
from llmtrace_collector.commands.logs import logging_to
from llmtrace_collector.commands.reload import Reloader
from llmtrace_collector.config.fields import Key
from llmtrace_collector.config.schema import Address, Config, as_yaml, exposed, load, tls
from llmtrace_collector.metrics.endpoint import OwnMetrics
from llmtrace_collector.metrics.request_metrics import RequestMetrics
from llmtrace_collector.metrics.target_metrics import TargetMetrics
from llmtrace_collector.receive.clock_watch import ClockWatch
from llmtrace_collector.receive.counters import Received
from llmtrace_collector.receive.discard import OtlpDiscard
from llmtrace_collector.receive.receiver_metrics import by_label, counter, gauge
from llmtrace_collector.scrape.gpu import GpuReader
from llmtrace_collector.scrape.recorder import Recorder
from llmtrace_collector.scrape.scraper import Scraper
from llmtrace_collector.serve.api import Api
from llmtrace_collector.serve.app import make_app
from llmtrace_collector.serve.auth import hosts_for
from llmtrace_collector.serve.how_to_send import Places
from llmtrace_collector.serve.live_view import LiveView
from llmtrace_collector.serve.pages import Pages
from llmtrace_collector.signals.profile import builtin_profiles, load_profiles
from llmtrace_collector.store import read
from llmtrace_collector.store.clickhouse_store import Store
from llmtrace_collector.store.open_store import open_store

logger = logging.getLogger("llmtrace.collector")

# The share of the time for a graceful shutdown that storing the spool may take.
_FOR_STORING: Final = 0.6
_GRPC_GRACE_S: Final = 2.0
_HURRIED: Final = 130
_MAX_LABEL_SETS: Final = 500  # of all services together
_SAME_SIGNAL_S: Final = 0.3
_WEB_CONNECTIONS: Final = 1_000
_TRIM_EVERY_S: Final = 600.0
_CLOCK_EVERY_S: Final = 10.0


def run(
    file: Path | None, flags: Mapping[Key, Any], *, check: bool = False, print_config: bool = False
) -> None:
    """Collect until a signal ends it: the command `llmtrace collect`.

    Raises:
        ConfigError: a setting is wrong, or a port, folder or certificate cannot be used.
        SourceError: the store does not answer.
    """
    config = load(file, flags)
    if print_config:
        sys.stdout.write(as_yaml(config))
        return
    if check:
        given = (str(file or ""), "the options" if any(flags.values()) else "")
        where = " and ".join(filter(None, given)) or "the defaults"
        sys.stdout.write(f"{where}: no problems found\n")
        return
    with logging_to(None, config.log.format, config.log.level):
        asyncio.run(collect(config, lambda: load(file, flags)))


@dataclass(slots=True)
class State:
    """The state of this process, for readiness checks."""

    clock: ClockWatch
    problems: Mapping[str, str] = field(default_factory=dict)  # what fails now, and why
    began: float = 0.0
    ready: bool = False
    stopping: bool = False

    def stop(self) -> None:
        """Note that the process is about to end."""
        self.stopping = True

    def why_not(self, spool: receive.Spool) -> str | None:
        """Return why it should get no requests now, in words; `None` = it is ready."""
        if self.stopping:
            return "stopping"
        if not self.ready:
            return "starting"
        full = spool.why_full()
        return None if full is None else full.words

    def notes(self, spool: receive.Spool) -> dict[str, Any]:
        """Return what is wrong although it may get requests, by name; without reasons or paths."""
        steps = ", ".join(tuple(self.problems))
        found = {
            "quarantined_requests": spool.quarantine.count,
            "clock": self.clock.look(),
            "problem": steps and f"failing, and tried again: {steps}; the log says why",
        }
        return {name: value for name, value in found.items() if value}


async def collect(config: Config, read: Callable[[], Config] | None = None) -> None:
    """Run everything until SIGTERM or SIGINT, then shut down. A second signal ends it at once.

    At SIGHUP, `read` reads the settings again; see `reload`.

    Raises:
        ConfigError: a port, folder or certificate cannot be used.
        SourceError: the store does not answer.
    """
    for words in exposed(config):
        logger.warning("%s", words)
    stop, reloader = asyncio.Event(), Reloader(config, read)
    with _signals(stop, reloader):
        async with running(config, reloader) as places:
            banner.show(config, places, sys.stderr)
            await stop.wait()
            logger.info(
                "stopping: storing what is spooled first; press Ctrl-C again to end at once"
            )
    logger.info("stopped")


@asynccontextmanager
async def running(config: Config, reloader: Reloader | None = None) -> AsyncIterator[Places]:
    """Run everything while the block runs, then shut down. Yields the addresses it listens on.

    Raises:
        ConfigError: a port, folder or certificate cannot be used.
        SourceError: the store does not answer.
    """
    began = time.monotonic()
    reloader = reloader or Reloader(config)
    _check_addresses(config)
    _make_folder(config.data)
    context_of = tls(config)
    async with AsyncExitStack() as last:
        store = await asyncio.to_thread(open_store, config.store_place, keep=config.store.keep())
        last.callback(store.close)
        spool, ingest, admission = _receiver(config, store, last)
        gpus, scraper = await _sources(config, last)
        local = None if gpus is None else gpus.read
        machine = socket.gethostname()
        interval_s = config.scrape.interval
        recorder = Recorder(store, scraper.states, local, machine=machine, interval_s=interval_s)
        registry = CollectorRegistry()
        tally = _request_metrics(config, store, registry, ingest, last)
        registry.register(TargetMetrics(scraper.states, local))
        registry.register(OwnMetrics(lambda: receive.own_metrics(admission, spool, ingest)))
        clock = ClockWatch(await asyncio.to_thread(read.joined_until_ns, store))
        state = State(clock, ingest.counted.problems, began)
        discard = OtlpDiscard(reloader.send_token, admission.limits.body_bytes)
        registry.register(
            OwnMetrics(lambda: _of_collector(state, recorder, tally, discard, scraper))
        )
        live_view = LiveView(
            store, config.budget, scraper=scraper, local=local, ingest=ingest, spool=spool,
            admission=admission, machine=machine, began=began, unread=tally.missed.total,
        )  # fmt: skip
        places = live_view.places
        places.gpus, places.tls = 0 if gpus is None else gpus.count, context_of is not None
        api = Api(store, live_view, admission=admission, catch_up=ingest.catch_up)
        places.web = await _serve(reloader, registry, api, state=state, spool=spool, last=last)
        # The order of shutdown matters from here on: first stop receiving, then store the spool.
        last.push_async_callback(_drain, ingest, config)
        ingest.start()
        await _receive(reloader, admission, discard, places, last)
        reloader.applies(partial(_follow, admission, spool, scraper))
        for job in _jobs(config, store, recorder, tally, _watch(state, spool)):
            last.push_async_callback(_end, asyncio.create_task(job))
        state.ready = True
        last.callback(state.stop)
        yield places


def _jobs(
    config: Config,
    store: Store,
    recorder: Recorder,
    tally: RequestMetrics,
    watch: Coroutine[Any, Any, None],
) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield the tasks that run until the end."""
    yield recorder.run()
    yield watch
    if config.metrics.requests:
        yield tally.run()
    if config.store.disk_bytes is not None:
        yield _keep_small(store, config.store.disk_bytes)


def _follow(
    admission: receive.Admission, spool: receive.Spool, scraper: Scraper, new: Config
) -> None:
    """Apply what may change while the collector runs."""
    admission.limits = new.receive.limits()
    spool.limits = new.spool.limits()
    spool.quarantine.max_bytes = spool.limits.quarantine_bytes
    scraper.follow(new.scrape.sources())


def _receiver(
    config: Config, store: Store, last: AsyncExitStack
) -> tuple[receive.Spool, receive.Ingest, receive.Admission]:
    """Make the parts that receive spans, and store them."""
    spool = receive.Spool(config.data / "spool", config.spool.limits())
    last.push_async_callback(asyncio.to_thread, spool.close)
    ingest = receive.Ingest(spool, store, receive.IngestSettings(wait_s=config.store.wait))
    return spool, ingest, receive.Admission(spool, config.receive.limits())


async def _sources(config: Config, last: AsyncExitStack) -> tuple[GpuReader | None, Scraper]:
    """Make the reader of this machine's GPUs, and the scraper of engines and gateways."""
    gpus = last.enter_context(_gpus(config.scrape.gpu))
    profiles = config.scrape.profiles
    scraper = Scraper(
        config.scrape.sources(),
        config.scrape.settings(),
        builtin_profiles() if profiles is None else load_profiles(profiles),
    )
    return gpus, await last.enter_async_context(scraper)


def _request_metrics(
    config: Config,
    store: Store,
    registry: CollectorRegistry,
    ingest: receive.Ingest,
    last: AsyncExitStack,
) -> RequestMetrics:
    """Make the part that counts stored requests into the metrics of a registry."""
    sink = PrometheusSink(
        thresholds_s=config.budget.thresholds_s(),
        budget_seconds=config.budget.allocations_s(),
        max_label_sets=_MAX_LABEL_SETS,
        registry=registry,
    )
    last.callback(sink.close)
    return RequestMetrics(
        store, sink.write, settle_s=config.metrics.settle,
        incomplete_s=lambda: ingest.incomplete_s, without=config.metrics.without,
    )  # fmt: skip


def _check_addresses(config: Config) -> None:
    """Check that the addresses are available, before anything slow begins.

    Raises:
        ConfigError: one is not.
    """
    for name, at in config.listen.addresses.items():
        setting = f"--{name.replace('_', '-')} ADDRESS or listen.{name}"
        listen(at.host, at.port, setting).close()


def _make_folder(data: Path) -> None:
    """Make the folder of the data, readable by its owner alone.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"data: cannot make the folder {data}: {error.strerror or error}; "
            f"give one this user may write to, by --data-dir"
        ) from error


async def _keep_small(store: Store, most_bytes: int) -> None:
    """Drop the oldest days while the store is larger than it may be."""
    while True:
        try:
            trimmed = await asyncio.to_thread(store.trim, most_bytes)
        except LlmtraceError as error:
            internal_error("collector.trim", error)
        else:
            if trimmed.dropped:
                logger.info(
                    "the store was too large: %d days of tables dropped, %d MiB freed",
                    len(trimmed.dropped), trimmed.freed >> 20,
                )  # fmt: skip
        await asyncio.sleep(_TRIM_EVERY_S)


async def _watch(state: State, spool: receive.Spool) -> None:
    """Log when it becomes ready or not, and check the clock often enough to distinguish jumps."""
    before: str | None = ""
    while True:
        if (reason := state.why_not(spool)) != before:
            before = reason
            if reason is None:
                logger.info("ready")
            else:
                logger.warning("not ready: %s; senders have to retry later", reason)
        await asyncio.sleep(_CLOCK_EVERY_S)
        state.clock.look()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _drain(ingest: receive.Ingest, config: Config) -> None:
    """Store the spool, for as long as `stop_after` allows."""
    stored = await asyncio.to_thread(ingest.stop, config.stop_after * _FOR_STORING)
    if not stored:
        logger.warning(
            "the store did not take all in time; the rest is in %s for the next start",
            config.data / "spool",
        )


@contextmanager
def _gpus(wanted: str) -> Iterator[GpuReader | None]:
    with ExitStack() as kept:
        reader = None
        if wanted != "off":
            try:
                reader = kept.enter_context(GpuReader())
            except SourceError as error:
                if wanted == "on":
                    raise
                logger.debug("%s", error)
        yield reader


async def _start_http(
    reloader: Reloader,
    app: ASGIApp,
    at: Address,
    *,
    limits: receive.ReceiveLimits,
    counted: Received,
    last: AsyncExitStack,
    client_ca: Path | None = None,
) -> Address:
    """Serve an application over HTTP until the end, and return its address.

    Its certificate is that of the settings, also after they were reloaded.
    """
    access = reloader.config.access
    server = receive.HttpServer(
        app, at.host, at.port, limits, counted,
        certificate=access.certificate, key=access.key, client_ca=client_ca,
    )  # fmt: skip
    reloader.applies(lambda new: server.take_certificate(new.access.certificate, new.access.key))
    await server.start()
    last.push_async_callback(server.stop)
    return replace(at, port=server.port)


async def _serve(
    reloader: Reloader,
    registry: CollectorRegistry,
    api: Api,
    *,
    state: State,
    spool: receive.Spool,
    last: AsyncExitStack,
) -> Address | None:
    """Serve pages, metrics and the API; return the address, if there is one."""
    config = reloader.config
    at = config.listen.web
    if at is None:
        return None
    hosts = hosts_for(at, config.access.hosts)
    app = make_app(
        registry,
        api.mount(),
        lambda: state.why_not(spool),
        pages=Pages(api.access, lambda: reloader.config.links).routes(),
        token=reloader.read_token,
        hosts=None if hosts is None else frozenset(hosts),
        notes=lambda: state.notes(spool),
    )
    limits = receive.ReceiveLimits(connections=_WEB_CONNECTIONS)
    return await _start_http(reloader, app, at, limits=limits, counted=Received(), last=last)


async def _receive(
    reloader: Reloader,
    admission: receive.Admission,
    discard: OtlpDiscard,
    places: Places,
    last: AsyncExitStack,
) -> None:
    config = reloader.config
    client_ca = config.receive.client_ca_file
    places.token, places.client_certificate = bool(config.receive.token_file), bool(client_ca)
    if (at := config.listen.otlp_http) is not None:
        access = receive.HttpAccess(
            token=reloader.send_token, origins=frozenset(config.receive.origins)
        )
        app = Starlette(routes=[*receive.routes(admission, access), *discard.routes()])
        places.otlp_http = await _start_http(
            reloader,
            app,
            at,
            limits=admission.limits,
            counted=admission.counted,
            last=last,
            client_ca=client_ca,
        )
    if (at := config.listen.otlp_grpc) is not None:
        credentials = None
        if config.access.certificate is not None and config.access.key is not None:
            credentials = grpc.dynamic_ssl_server_credentials(
                _grpc_certificates(config),
                # Read at each handshake: what is in effect then.
                lambda: _grpc_certificates(reloader.config),
                require_client_authentication=client_ca is not None,
            )
        grpc_server, port = await receive.start_grpc(
            admission, str(at), token=reloader.send_token, credentials=credentials
        )
        grpc_server.add_generic_rpc_handlers(discard.handlers())
        last.push_async_callback(grpc_server.stop, _GRPC_GRACE_S)
        places.otlp_grpc = replace(at, port=port)


def _grpc_certificates(config: Config) -> grpc.ServerCertificateConfiguration:
    """Return the certificate of gRPC's listener, and the CA of its clients."""
    access, client_ca = config.access, config.receive.client_ca_file
    assert access.key is not None  # noqa: S101 - the caller has looked
    assert access.certificate is not None  # noqa: S101
    return grpc.ssl_server_certificate_configuration(
        [(access.key.read_bytes(), access.certificate.read_bytes())],
        None if client_ca is None else client_ca.read_bytes(),
    )


def _of_collector(
    state: State,
    recorder: Recorder,
    tally: RequestMetrics,
    discard: OtlpDiscard,
    scraper: Scraper,
) -> list[Metric]:
    info = GaugeMetricFamily(
        "llmtrace_collector_info", "Which collector this is.", labels=["version"]
    )
    info.add_metric([__version__], 1)
    return [
        info,
        gauge("llmtrace_collector_up_seconds", "Since this process began.",
              time.monotonic() - state.began),
        by_label("llmtrace_collector_signals", "Samples of signals, by what became of them.",
                 "state", {"stored": recorder.written, "dropped": recorder.dropped}),
        counter("llmtrace_collector_rows_counted", "Rows counted into the request metrics.",
                tally.rows),
        counter("llmtrace_collector_rows_late",
                "Rows that changed after they were counted, and stay counted as they were.",
                tally.late),
        by_label("llmtrace_collector_rows_missed",
                 "Rows that are stored and in no request metric, by why not.", "reason",
                 tally.missed),
        counter("llmtrace_collector_clock_jumps",
                "Times the machine's clock was set by more than a minute.", state.clock.jumps),
        by_label("llmtrace_collector_target_list_failures",
                 "Times a list of targets could not be read, by its source.", "source",
                 scraper.source_failures),
        by_label("llmtrace_collector_unwanted_requests",
                 "OTLP requests of metrics and logs, which are taken and dropped.", "kind",
                 discard.requests),
    ]  # fmt: skip


@contextmanager
def _signals(stop: asyncio.Event, reloader: Reloader) -> Iterator[None]:
    """Set the event at the first signal; end the process at the second. SIGHUP reloads."""
    loop = asyncio.get_running_loop()
    heard_at = 0.0

    def heard() -> None:
        nonlocal heard_at
        now = loop.time()
        # A supervisor often signals the process and its group: then one signal arrives twice.
        if stop.is_set() and now - heard_at < _SAME_SIGNAL_S:
            return
        heard_at = now
        if stop.is_set():
            # Everything acknowledged is in the spool, for the next start.
            sys.stderr.write("llmtrace collect: ended at once\n")
            sys.stderr.flush()
            os._exit(_HURRIED)
        stop.set()

    wanted: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
    for one in wanted:
        loop.add_signal_handler(one, heard)
    reloading: set[asyncio.Task[bool]] = set()

    def reload() -> None:
        task = loop.create_task(reloader.reload())
        reloading.add(task)
        task.add_done_callback(reloading.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        for one in (*wanted, signal.SIGHUP):
            loop.remove_signal_handler(one)
