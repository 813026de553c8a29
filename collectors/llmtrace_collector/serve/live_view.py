"""Make the live view, once for all viewers.

At most once every two seconds; requests in between get the last one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from llmtrace import __version__
from llmtrace.budget import Budget, Budgets
from llmtrace.core.failopen import internal_errors
from llmtrace_collector.receive import Admission, Ingest, Spool
from llmtrace_collector.scrape.scraper import Scraper, TargetState
from llmtrace_collector.serve import live_model, live_queries
from llmtrace_collector.serve.engine_status import engine_lines, gpu_lines
from llmtrace_collector.serve.how_to_send import Places, how_to_send
from llmtrace_collector.serve.query_params import QueryParamError
from llmtrace_collector.signals.normalise import Measured
from llmtrace_collector.store import Store

WINDOW_S: Final = 300
_NS: Final = 1_000_000_000
_FRESH_S: Final = 2.0
# Past minutes do not change: no need to query them every two seconds.
_HOUR_FRESH_S: Final = 10.0
_HOUR_S: Final = 3_600
_SLOWEST: Final = 8
_BEHIND_S: Final = 30.0
_MIB: Final = 1 << 20


class LiveView:
    """Makes the live view.

    Args:
        store: of the rows.
        budgets: to choose from; the first is the default.
        scraper: of the targets.
        local: returns the signals of this machine; called in a thread.
        ingest, spool, admission: of the receiver.
        machine: the name of this machine.
        began: when this process began, by the monotonic clock.
        unread: returns how many stored rows cannot be read.

    Attributes:
        places: the addresses that the collector listens on, once it does.
    """

    def __init__(
        self,
        store: Store,
        budgets: Budgets,
        *,
        scraper: Scraper,
        local: Callable[[], Sequence[Measured]] | None,
        ingest: Ingest,
        spool: Spool,
        admission: Admission,
        machine: str,
        began: float,
        unread: Callable[[], int] = lambda: 0,
    ) -> None:
        self.places = Places()
        self._store = store
        self._budgets = {budget.name: budget for budget in budgets}
        self._scraper = scraper
        self._local = local
        self._ingest = ingest
        self._spool = spool
        self._admission = admission
        self._machine = machine
        self._began = began
        self._unread = unread
        self._asking = asyncio.Lock()
        self._last: dict[str, tuple[float, live_model.Live]] = {}
        self._hours: dict[
            str, tuple[float, live_model.Minutes, tuple[live_model.SlowRow, ...]]
        ] = {}

    async def look(self, name: str | None = None) -> live_model.Live:
        """Return the present live view.

        Args:
            name: of the budget to compare with; default: the first.

        Raises:
            QueryParamError: there is no such budget.
            StoreError: the store does not answer.
        """
        budget = next(iter(self._budgets.values())) if name is None else self._budgets.get(name)
        if budget is None:
            raise QueryParamError(f"no budget has that name; there are {', '.join(self._budgets)}")
        async with self._asking:
            at, last = self._last.get(budget.name, (0.0, None))
            if last is None or time.monotonic() - at > _FRESH_S:
                # The states belong to the event loop: copied here, read in the thread.
                last = await asyncio.to_thread(self._make, budget, self._scraper.states())
                self._last[budget.name] = time.monotonic(), last
        return last

    def _make(self, budget: Budget, states: Sequence[TargetState]) -> live_model.Live:
        self._ingest.catch_up()
        now = time.time_ns()
        outcomes, counted = live_queries.counted(self._store, now - WINDOW_S * _NS, now, budget)
        stages, metrics = live_model.lines(counted, budget)
        minutes, slowest = self._hour(now, budget)
        engines = engine_lines(states)
        return live_model.Live(
            now=now / _NS,
            budget=live_model.budget_line(budget),
            window=live_model.Window(
                seconds=WINDOW_S,
                requests=sum(outcomes.values()),
                succeeded=outcomes.get("success", 0),
                outcomes=live_model.outcomes_in_order(outcomes),
            ),
            stages=stages,
            metrics=metrics,
            minutes=minutes,
            slowest=slowest,
            engines=engines,
            gpus=gpu_lines(states, self._local() if self._local else (), self._machine),
            collector=live_model.CollectorNow(
                version=__version__,
                up_s=time.monotonic() - self._began,
                notes=self._notes(),
                problems=(
                    *live_model.problems(
                        engines, self._ingest.counted.problem, self._ingest.lag_s, _BEHIND_S
                    ),
                    *self._left_out(),
                ),
                how=how_to_send(self.places),
            ),
        )

    def _hour(
        self, now: int, budget: Budget
    ) -> tuple[live_model.Minutes, tuple[live_model.SlowRow, ...]]:
        at, minutes, slowest = self._hours.get(budget.name, (0.0, live_model.Minutes(), ()))
        if not minutes.t or time.monotonic() - at > _HOUR_FRESH_S:
            minutes = live_queries.minutes(self._store, now, budget)
            since = now - _HOUR_S * _NS
            slowest = tuple(live_queries.slowest(self._store, since, now, budget, _SLOWEST))
            self._hours[budget.name] = time.monotonic(), minutes, slowest
        return minutes, slowest

    def _left_out(self) -> Iterator[str]:
        """Yield what is not accepted now, and what was acknowledged but is in no figure."""
        if full := self._spool.why_full():
            yield f"{full.words}: senders have to retry later"
        yield from tuple(self._scraper.source_problems.values())
        if count := self._unread():
            rows = "row cannot be read, and is" if count == 1 else "rows cannot be read, and are"
            yield f"{count:,} stored {rows} in no metric"
        if count := internal_errors().get("export.metrics.label_sets", 0):
            counted = "request is" if count == 1 else "requests are"
            yield f"{count:,} {counted} in /metrics under `other`: there are too many label sets"
        if count := self._admission.quarantine.count:
            requests = "request is" if count == 1 else "requests are"
            yield f"{count:,} {requests} in quarantine: see `llmtrace quarantine`"

    def _notes(self) -> tuple[str, ...]:
        took, stored = self._admission.counted, self._ingest.counted
        notes = [f"{took.spans.total():,} spans received, {stored.spans:,} stored"]
        if backlog := self._spool.backlog_bytes:
            notes.append(f"{backlog / _MIB:,.1f} MiB wait for the store")
        if rejected := took.rejected.total() + took.rejected_spans.total():
            notes.append(f"{rejected:,} rejected")
        return tuple(notes)
