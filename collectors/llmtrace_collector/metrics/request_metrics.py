"""Count stored rows, for applications that send spans and no metrics.

The metrics are those an application would expose itself, counted into the same histograms. A
counter may only rise, but a row may change as late parts of its request arrive. So a row is
counted once, when it has not changed for a while; later changes are only counted as late. The ids
of counted rows are remembered for as long as they may come again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from llmtrace.core.errors import DataError, LlmtraceError
from llmtrace.core.failopen import internal_error
from llmtrace.core.row import Row, from_dict
from llmtrace.core.stages import PARTITION
from llmtrace_collector.store import Store, read

# How long counted rows are remembered.
_REMEMBERED_S: Final = 3_600.0
_REMEMBERED: Final = 1_000_000
# A sampled row counts for several requests, but for no more than this.
_MAX_WEIGHT: Final = 1_000
_MIN_INTERVAL_S: Final = 0.5
_REASONS: Final = ("unreadable", "error", "weight")
_COUNTED: Final = (
    "outcome", "e2e_s", "ttft_s", "tpot_s", "output_tokens", "cache_hit", "stream",
    *(f"{stage}_s" for stage in PARTITION),
)  # fmt: skip
Key = tuple[str, str]


class RequestMetrics:
    """Counts settled rows of requests and turns, from `run` until it is cancelled.

    Args:
        store: of the rows.
        count: counts one row.
        settle_s: how long a row must be unchanged.
        incomplete_s: returns how many seconds ago all received spans were in rows.
        interval_s: between two looks; `None` = half of `settle_s`, as a look costs little more
            than the planning of its query.
        without: services whose rows are left out.
        monotonic: seconds of this machine's clock.

    Attributes:
        rows: counted so far.
        late: rows that changed after they were counted.
        missed: requests that are in no metric, by reason: `unreadable`, `error` where counting
            failed, and `weight` for what a row counts for beyond the maximum.
        failures: looks at which the store did not answer.
    """

    def __init__(
        self,
        store: Store,
        count: Callable[[Row], None],
        *,
        settle_s: float,
        incomplete_s: Callable[[], float] = lambda: 0.0,
        interval_s: float | None = None,
        without: Collection[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows = self.late = self.failures = 0
        self.missed: Counter[str] = Counter(dict.fromkeys(_REASONS, 0))
        self._store = store
        self._add = count
        self._settle_s = settle_s
        self._incomplete_s = incomplete_s
        self._interval_s = interval_s or max(_MIN_INTERVAL_S, settle_s / 2)
        self._without = frozenset(without)
        self._monotonic = monotonic
        # What had settled before the previous process ended was counted by it.
        self._until = read.settled_before(store, settle_s)
        self._counted: OrderedDict[Key, tuple[float, int]] = OrderedDict()

    async def run(self) -> None:
        """Count the new rows, once per interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await asyncio.to_thread(self.look)
            except LlmtraceError as error:
                self.failures += 1
                if self.failures == 1:
                    internal_error("collector.tally", error)
            except Exception as error:  # noqa: BLE001 - receiving and serving go on without it
                self.failures += 1
                internal_error("collector.tally", error)

    def look(self) -> int:
        """Count what has settled since the last look; return how many rows.

        Raises:
            LlmtraceError: the store did not answer; nothing was counted.
        """
        until = read.settled(self._store, self._settle_s + self._incomplete_s())
        before, now_s = self.rows, self._monotonic()
        if until > self._until:
            for flat in read.changed(self._store, self._until, until):
                self._count(flat, now_s)
            self._until = until
        self._forget(now_s)
        return self.rows - before

    def _count(self, flat: Mapping[str, Any], now_s: float) -> None:
        key = str(flat.get("trace_id")), str(flat.get("span_id"))
        said = hash(tuple(flat.get(name) for name in _COUNTED))
        before = self._counted.get(key)
        self._counted[key] = now_s, said
        self._counted.move_to_end(key)
        if before is not None:
            # The join may write a row again without any change.
            self.late += before[1] != said
            return
        try:
            row: Row = from_dict(flat)
        except DataError:
            self.missed["unreadable"] += 1
            return
        if row.service in self._without:
            return
        weight = max(1, round(row.weight))
        try:
            for _ in range(min(weight, _MAX_WEIGHT)):
                self._add(row)
        except Exception as error:  # noqa: BLE001 - the rows after it are counted all the same
            self.missed["error"] += 1
            internal_error("collector.tally", error)
            return
        self.missed["weight"] += max(0, weight - _MAX_WEIGHT)
        self.rows += 1

    def _forget(self, now_s: float) -> None:
        while self._counted:
            at, _ = next(iter(self._counted.values()))
            if at > now_s - _REMEMBERED_S and len(self._counted) <= _REMEMBERED:
                return
            self._counted.popitem(last=False)
