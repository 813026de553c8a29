"""Read the metrics page of every target at its interval, and keep the last reading of each.

One task per target, each at its own moment of the interval: a slow target delays no other.
A failure is counted, and discards the target's last reading, which is no longer true; its
counters are kept, so that the next interval covers the time of the failure too.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

import aiohttp

from llmtrace.core.errors import ConfigError, DataError, LlmtraceError
from llmtrace.core.failopen import internal_error
from llmtrace_collector.scrape.fetch import FetchError, fetch, make_session, shown
from llmtrace_collector.scrape.targets import Target, TargetSource, WatchedSource
from llmtrace_collector.signals.exposition_parser import Limits
from llmtrace_collector.signals.interval import EngineInterval, engine_intervals
from llmtrace_collector.signals.normalise import Normaliser, Reading
from llmtrace_collector.signals.profile import Profile, ProfileKind, builtin_profiles

logger = logging.getLogger("llmtrace.collector")

# Parsing a page of this many characters for the first time takes tens of milliseconds.
_LONG_PAGE: Final = 1 << 20
# How long to wait for further changes when targets begin to change.
_SETTLE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeSettings:
    """How targets are read.

    Attributes:
        interval_s: between two readings of one target.
        timeout_s: for one whole reading.
        refresh_s: between two readings of the lists of targets.
        most_targets: maximum number of targets read; the rest is left out, and counted.
        large_pages: maximum number of pages above 256 KiB in memory at once.
        limits: how much of a page is read.
    """

    interval_s: float = 15.0
    timeout_s: float = 10.0
    refresh_s: float = 30.0
    most_targets: int = 5_000
    large_pages: int = 32
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: one is out of range.
        """
        for name in ("interval_s", "timeout_s", "refresh_s", "most_targets", "large_pages"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"scrape.{name}: {value!r} must be a number above 0")
        if self.timeout_s > self.interval_s:
            raise ConfigError(
                f"scrape.timeout: {self.timeout_s:g} is longer than scrape.interval, "
                f"{self.interval_s:g}; readings would overtake each other"
            )


@dataclass(slots=True)
class TargetState:
    """What is known of one target.

    Attributes:
        reading: the last, if the target is up, else `None`.
        read_ns: when that page arrived, unix nanoseconds; `None` = none has.
        last: the last reading, also while the target is down: what counters are compared with.
        intervals: what its engines did between the last two pages; empty while it is down.
        up: whether the last reading succeeded; `None` = none was tried yet.
        pages: read so far.
        failures: failed readings, by reason.
        problem: what went wrong last, in words; `None` while it is up.
        took_s: duration of the last reading, from the request to the parsed page.
        late: readings skipped because the previous one was not over.
    """

    target: Target
    normaliser: Normaliser
    reading: Reading | None = None
    read_ns: int | None = None
    last: Reading | None = None
    intervals: tuple[EngineInterval, ...] = ()
    up: bool | None = None
    pages: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    problem: str | None = None
    took_s: float | None = None
    late: int = 0
    reported_missing: frozenset[tuple[str, str]] = frozenset()

    @property
    def kind(self) -> ProfileKind | None:
        """What it is, by its last recognised page, also while it is down; `None` = unknown."""
        # Engines come first: a target that is both an engine and a gateway counts as an engine.
        return next((one.kind for one in self.normaliser.profiles), None)


class Scraper:
    """Reads all targets, again and again, from `async with` to its end.

    Attributes:
        source_failures: how often a source of targets could not be read, by its name.
        source_problems: why a source cannot be read now, in words, by its name.
        left_out: targets not read because there are too many.
    """

    def __init__(
        self,
        sources: Sequence[TargetSource],
        settings: ScrapeSettings | None = None,
        profiles: Sequence[Profile] | None = None,
    ) -> None:
        self.source_failures: Counter[str] = Counter()
        self.source_problems: dict[str, str] = {}
        self.left_out = 0
        self._sources = tuple(sources)
        self._settings = settings or ScrapeSettings()
        self._profiles = tuple(profiles if profiles is not None else builtin_profiles())
        self._states: dict[str, TargetState] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._listed: dict[str, Sequence[Target]] = {}
        self._session: aiohttp.ClientSession  # from `__aenter__` on
        self._large = asyncio.Semaphore(self._settings.large_pages)
        self._refreshing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._session = make_session()
        self._refreshing = asyncio.create_task(self._keep_refreshing())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks.values(), *([self._refreshing] if self._refreshing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        await self._session.close()

    def states(self) -> tuple[TargetState, ...]:
        """Return every target's state, in the order of their addresses."""
        states = self._states.copy()  # other threads call this while targets come and go
        return tuple(states[url] for url in sorted(states))

    def follow(self, sources: Sequence[TargetSource]) -> None:
        """Read the targets of other sources from now on, and at once."""
        self._sources = tuple(sources)
        # What a source that stays has listed is kept until it is read again.
        self.source_problems = {}
        keys = {f"{place} {source.name}" for place, source in enumerate(self._sources)}
        self._listed = {key: listed for key, listed in self._listed.items() if key in keys}
        if self._refreshing is not None:
            self._refreshing.cancel()
            self._refreshing = asyncio.create_task(self._keep_refreshing())

    async def _keep_refreshing(self) -> None:
        while True:
            try:
                await self._refresh()
            except Exception as error:  # noqa: BLE001 - one bad list must not end the reading
                internal_error("collector.targets", error)
            await self._until_changed()

    async def _until_changed(self) -> None:
        """Wait for the next refresh, or until a source reports a change."""
        pause_s = self._settings.refresh_s
        watched = [one for one in self._sources if isinstance(one, WatchedSource)]
        if not watched:
            await asyncio.sleep(pause_s)
            return
        tasks = [asyncio.create_task(one.changed(self._session)) for one in watched]
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if done:  # more may follow, as when all pods of a deployment are replaced
            await asyncio.sleep(min(_SETTLE_S, pause_s))

    async def _refresh(self) -> None:
        await asyncio.gather(*(self._list(place, one) for place, one in enumerate(self._sources)))
        wanted = {target.url: target for listed in self._listed.values() for target in listed}
        kept = dict(list(wanted.items())[: self._settings.most_targets])
        if len(wanted) - len(kept) > self.left_out:
            logger.warning(
                "%d targets are listed and %d read; the others are left out",
                len(wanted), len(kept),
            )  # fmt: skip
        self.left_out = len(wanted) - len(kept)
        for url in set(self._states) - set(kept):
            del self._states[url]
            self._tasks.pop(url).cancel()
        for url, target in kept.items():
            state = self._states.get(url)
            if state is None:
                normaliser = Normaliser(self._profiles, self._settings.limits)
                state = self._states[url] = TargetState(target, normaliser)
                self._tasks[url] = asyncio.create_task(self._watch(state))
            state.target = target

    async def _list(self, place: int, source: TargetSource) -> None:
        key = f"{place} {source.name}"
        try:
            self._listed[key] = await source.targets(self._session)
        except Exception as error:  # noqa: BLE001 - one bad list must not keep the others away
            words = f"{source.name} cannot be read; what it listed before stays in use: {error}"
            self.source_failures[source.name] += 1
            if not isinstance(error, LlmtraceError):
                internal_error("collector.targets", error)
            elif self.source_problems.get(source.name) != words:
                logger.warning(words)
            self.source_problems[source.name] = words
        else:
            if self.source_problems.pop(source.name, None):
                logger.info("%s is read again", source.name)

    async def _watch(self, state: TargetState) -> None:
        loop = asyncio.get_running_loop()
        interval = self._settings.interval_s
        # Each address has its own place in the interval, so that readings are spread over it.
        share = zlib.crc32(state.target.url.encode()) / (1 << 32)
        due = loop.time() + share * interval
        while True:
            await asyncio.sleep(max(0.0, due - loop.time()))
            try:
                await self.read(state)
            except Exception as error:  # noqa: BLE001 - one target must not end the others
                internal_error("collector.scrape", error)
            due += interval
            while due < loop.time():
                due += interval
                state.late += 1

    async def read(self, state: TargetState) -> None:
        """Read one target now, and keep the result in its state."""
        begun = time.monotonic()
        try:
            target, name = state.target, shown(state.target.url)
            text = await fetch(
                self._session,
                target.url,
                timeout_s=self._settings.timeout_s,
                size=self._settings.limits.size,
                authorization=target.credentials.authorization(name),
                tls=target.credentials.context(name),
                server_name=target.credentials.server_name,
                large=self._large,
            )
            arrived_ns = time.time_ns()
            if len(text) > _LONG_PAGE:
                reading = await asyncio.to_thread(state.normaliser.read, text)
            else:
                reading = state.normaliser.read(text)
        except FetchError as error:
            self._failed(state, error.reason, str(error))
        except DataError as error:
            self._failed(state, "page", f"{shown(state.target.url)}: {error}")
        else:
            state.read_ns = arrived_ns  # before `pages` shows that there is something new
            self._succeeded(state, reading)
        state.took_s = time.monotonic() - begun

    def _failed(self, state: TargetState, reason: str, words: str) -> None:
        state.failures[reason] += 1
        if state.problem != words:
            logger.warning("a target is not read: %s", words)
        state.up, state.problem, state.reading, state.intervals = False, words, None, ()

    def _succeeded(self, state: TargetState, reading: Reading) -> None:
        if state.up is False:
            logger.info("%s is read again", shown(state.target.url))
        before = state.last
        state.intervals = engine_intervals(before, reading) if before is not None else ()
        state.reading = state.last = reading
        state.up, state.problem = True, None
        state.pages += 1
        with suppress(Exception):  # a broken logging handler is no reason to stop
            self._log_missing(state, reading, before)

    def _log_missing(self, state: TargetState, reading: Reading, before: Reading | None) -> None:
        if not reading.profiles:
            if before is None or before.profiles:
                logger.warning("%s: no profile knows this page", shown(state.target.url))
            return
        unexplained = {
            (one.signal, ", ".join(one.names)) for one in reading.missing if not one.why
        }
        if new := sorted(unexplained - state.reported_missing):
            logger.warning(
                "%s: not reported on the page of %s: %s",
                shown(state.target.url), "/".join(reading.profiles),
                "; ".join(f"{signal} (no {names})" for signal, names in new),
            )  # fmt: skip
        state.reported_missing |= unexplained
