"""Record what engines and GPUs report while something else runs: a load test.

`llmtrace bench --target URL` reads the pages itself, so that it needs no running collector.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import urlsplit

from llmtrace.core.errors import LlmtraceError
from llmtrace_collector.commands.doctor import Report, examine
from llmtrace_collector.scrape.gpu import GpuReader
from llmtrace_collector.scrape.samples import of_measured, of_targets
from llmtrace_collector.scrape.scraper import Scraper, ScrapeSettings, TargetState
from llmtrace_collector.scrape.targets import StaticTargets, Target
from llmtrace_collector.store import SignalSample

_LOOPBACK: Final = {"127.0.0.1", "localhost", "::1"}
_NS: Final = 1_000_000_000
_START_S: Final = 10.0
_INTERVAL_S: Final = 1.0
_LOOK_S: Final = 0.25  # between two checks for new readings


class Watch:
    """What targets reported so far.

    Attributes:
        samples: as in the `signals.jsonl` of a case.
        facts: of each engine by instance, as in `facts.json`.
        reports: of each target, as `llmtrace doctor --json` prints them.
        gpus: names of this machine's GPUs, if a target is on this machine.
    """

    def __init__(self, reports: Sequence[Report]) -> None:
        self.samples: list[dict[str, Any]] = []
        self.reports = [asdict(report) for report in reports]
        self.facts: dict[str, dict[str, Any]] = {
            Target(report.url).instance: _facts(report) for report in reports
        }
        self.gpus: list[str] = []

    def note_caches(self, states: Iterable[TargetState]) -> None:
        """Add the sizes of KV caches to the facts."""
        for state in states:
            if state.reading is not None:
                self.facts.setdefault(state.target.instance, {}).update(state.reading.kv_cache)

    def add(self, samples: Iterable[SignalSample]) -> None:
        """Add samples, converted to the format of a case."""
        for one in samples:
            sample: dict[str, Any] = {
                "t": one.t_ns / _NS, "instance": one.instance, "signal": one.signal,
                "value": one.value,
            }  # fmt: skip
            self.samples.append({**sample, "labels": dict(one.labels)} if one.labels else sample)


@contextmanager
def watching(urls: Sequence[str]) -> Iterator[Watch]:
    """Read engines, given by the URL of any of their pages, each second, while the block runs.

    Raises:
        SourceError: a target cannot be read, or is not recognised.
        ConfigError: an address is invalid.
    """
    reports = [asyncio.run(examine(url)) for url in urls]
    logging.getLogger("llmtrace.collector").setLevel(logging.ERROR)  # what is missing: `reports`
    watch, stop, started = Watch(reports), threading.Event(), threading.Event()
    with ExitStack() as kept:
        gpus = None
        if any(urlsplit(url).hostname in _LOOPBACK for url in urls):
            with suppress(LlmtraceError):  # without one, or its driver, there is nothing to read
                gpus = kept.enter_context(GpuReader())
        pages = tuple(Target(report.url) for report in reports)
        settings = ScrapeSettings(interval_s=_INTERVAL_S, timeout_s=_INTERVAL_S)
        scraper = Scraper([StaticTargets(pages)], settings)
        work = _read(watch, scraper, gpus, stop=stop, started=started)
        thread = threading.Thread(target=asyncio.run, args=(work,), name="llmtrace-watch")
        thread.start()
        try:
            started.wait(_START_S)
            yield watch
        finally:
            stop.set()
            thread.join()


async def _read(
    watch: Watch,
    scraper: Scraper,
    gpus: GpuReader | None,
    *,
    stop: threading.Event,
    started: threading.Event,
) -> None:
    async with scraper:
        seen: dict[str, int] = {}
        over = False
        while not over:
            over = await asyncio.to_thread(stop.wait, _LOOK_S)
            now = time.time_ns()
            fresh = [one for one in scraper.states() if one.pages != seen.get(one.target.url, 0)]
            seen |= {one.target.url: one.pages for one in fresh}
            watch.add(of_targets(fresh, now))
            watch.note_caches(fresh)
            if gpus is not None:
                measured = gpus.read()
                watch.add(of_measured(measured, socket.gethostname(), {}, now))
                names = {dict(one.labels).get("model", "") for one in measured}
                watch.gpus = sorted(names - {""})
            if fresh:
                started.set()


def _facts(report: Report) -> dict[str, Any]:
    """Return what is known of an engine as facts of a case, which are texts."""
    needed = [one.setting for one in report.settings if one.state == "needed"]
    facts = {"engine": " and ".join(report.engines), "version": report.version}
    return {**facts, "settings_needed": ", ".join(needed)} if needed else facts
