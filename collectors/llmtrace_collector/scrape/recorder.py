"""Write readings of engines and GPUs to the store, once per interval.

Samples that the store does not take are dropped and counted: new readings matter more than old.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from llmtrace.core.failopen import count_internal
from llmtrace_collector.scrape.samples import facts_of, of_measured, of_targets
from llmtrace_collector.scrape.scraper import TargetState
from llmtrace_collector.signals.normalise import Measured
from llmtrace_collector.store import Store

logger = logging.getLogger("llmtrace.collector")


class Recorder:
    """Writes readings to the store, from `run` until it is cancelled.

    Args:
        store: where they go.
        states: returns the state of every target.
        local: returns the signals of this machine; called in a thread.
        machine: the name of this machine.
        interval_s: between two writes.

    Attributes:
        written: samples that the store took.
        dropped: samples that it did not take.
    """

    def __init__(
        self,
        store: Store,
        states: Callable[[], Sequence[TargetState]],
        local: Callable[[], Sequence[Measured]] | None,
        *,
        machine: str,
        interval_s: float,
    ) -> None:
        self.written = 0
        self.dropped = 0
        self._failing = False
        self._store = store
        self._states = states
        self._local = local
        self._machine = machine
        self._interval_s = interval_s
        self._pages: Counter[str] = Counter()

    async def run(self) -> None:
        """Write what was read, once per interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.write()

    async def write(self) -> None:
        """Write what was read since the last time."""
        try:
            await asyncio.to_thread(self._write, tuple(self._states()))
        except Exception as error:  # noqa: BLE001 - reading and serving go on without it
            count_internal("collector.signals")
            if not self._failing:
                logger.warning(
                    "signals of engines and GPUs are not stored, and are dropped until this is "
                    "over: %s", error,
                )  # fmt: skip
            self._failing = True
        else:
            if self._failing:
                logger.info("signals are stored again; %d samples were dropped", self.dropped)
            self._failing = False

    def _write(self, states: Sequence[TargetState]) -> None:
        now = time.time_ns()
        # A target that was not read since has nothing new, unless it is down.
        fresh = [
            state
            for state in states
            if state.up is False or state.pages != self._pages[state.target.url]
        ]
        self._pages = Counter({state.target.url: state.pages for state in states})
        samples = [*of_targets(fresh, now)]
        if self._local is not None:
            samples += of_measured(self._local(), self._machine, {}, now)
        if samples:
            try:
                self._store.insert_signals(samples)
            except Exception:
                self.dropped += len(samples)
                raise
            self.written += len(samples)
        # The store writes only facts that changed.
        self._store.insert_facts([*facts_of(fresh, now)])
