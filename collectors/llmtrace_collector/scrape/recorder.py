"""Write readings of engines and GPUs to the store, once an interval.

What the store does not take is dropped and counted: new readings are worth more than old.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from llmtrace.core.failopen import internal_error
from llmtrace_collector.scrape.samples import facts_of, of_machine, of_targets
from llmtrace_collector.scrape.scraper import TargetState
from llmtrace_collector.signals.normalise import Measured
from llmtrace_collector.store import Store


class Recorder:
    """Writes what was read to the store, from `run` until it is cancelled.

    Args:
        store: where to.
        states: what returns every target's state.
        local: what returns the signals of this machine; called in a thread.
        machine: what this machine is called.
        interval_s: between two writings.

    Attributes:
        written: samples the store took; `dropped` = those it did not.
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
        self._store = store
        self._states = states
        self._local = local
        self._machine = machine
        self._interval_s = interval_s
        self._pages: Counter[str] = Counter()

    async def run(self) -> None:
        """Write what was scraped, once an interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.write()

    async def write(self) -> None:
        """Write what was read since the last time."""
        try:
            await asyncio.to_thread(self._write, tuple(self._states()))
        except Exception as error:  # noqa: BLE001 - reading and serving go on without it
            internal_error("collector.signals", error)

    def _write(self, states: Sequence[TargetState]) -> None:
        now = time.time_ns()
        # A target that was not read since has said nothing new; that it is down is worth saying.
        fresh = [
            state
            for state in states
            if state.up is False or state.pages != self._pages[state.target.url]
        ]
        self._pages = Counter({state.target.url: state.pages for state in states})
        samples = [*of_targets(fresh, now)]
        if self._local is not None:
            samples += of_machine(self._local(), self._machine, now)
        if samples:
            try:
                self._store.insert_signals(samples)
            except Exception:
                self.dropped += len(samples)
                raise
            self.written += len(samples)
        # The store keeps what is new of them, and nothing else.
        self._store.insert_facts([*facts_of(fresh, now)])
