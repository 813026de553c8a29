"""What do stored rows add up to, for applications that send spans and no metrics?

The metrics are those an application would expose itself, counted into the same histograms. A
counter may only rise, and a row may change while late parts of its request come. So a row is
counted once, when nothing of it has changed for a while; what comes even later is counted as late
and changes nothing. What was counted is remembered by its ids for as long as it could come again.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from llmtrace.errors import DataError, LlmtraceError
from llmtrace.export.buckets import STAGE_LABELS
from llmtrace.failopen import internal_error
from llmtrace.rows import Row, from_dict
from llmtrace_collector.store import Store, read

_NS: Final = 1_000_000_000
# Rows are found by when they began. One whose parts are later than this is not counted.
_BACK_NS: Final = 1_800 * _NS
# Where others run the join, in the server, it has come so far at least.
_BLIND_NS: Final = 120 * _NS
_REMEMBERED: Final = 1_000_000
# Sampled rows stand for others; one that claims to stand for more than this is not believed.
_MOST_WEIGHT: Final = 1_000
_COUNTED: Final = (
    "outcome", "e2e_s", "ttft_s", "tpot_s", "output_tokens",
    *(f"{stage}_s" for stage in STAGE_LABELS),
)  # fmt: skip
Key = tuple[str, str]


class Tally:
    """Counts settled rows of requests and turns, from `run` until it is cancelled.

    Args:
        store: of the rows.
        count: counts one of them.
        settle_s: how long a row must not have changed.
        interval_s: between two looks.
        without: services whose rows are left out.
        wall: unix nanoseconds, by the clock that rows' versions are of.

    Attributes:
        rows: counted so far.
        late: rows that changed after they were counted.
        unread: rows that could not be understood.
        failures: looks at which the store did not answer.
    """

    def __init__(
        self,
        store: Store,
        count: Callable[[Row], None],
        *,
        settle_s: float,
        interval_s: float = 2.0,
        without: Collection[str] = (),
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self.rows = self.late = self.unread = self.failures = 0
        self._store = store
        self._add = count
        self._settle_ns = round(settle_s * _NS)
        self._interval_s = interval_s
        self._without = frozenset(without)
        self._wall = wall
        # What had settled when the process before this one ended, it has counted.
        self._until = self._joined() - self._settle_ns
        self._counted: OrderedDict[Key, tuple[int, int]] = OrderedDict()

    async def run(self) -> None:
        """Count, again and again."""
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
        until = min(self._wall() - self._settle_ns, self._joined())
        before = self.rows
        if until > self._until:
            for flat in read.changed(
                self._store, self._until, until, began_ns=self._until - _BACK_NS
            ):
                self._count(flat, until)
            self._until = until
            self._forget(until)
        return self.rows - before

    def _joined(self) -> int:
        """Return the version up to which no join is still writing rows."""
        now = self._wall()
        return min(now, read.joined_until(self._store) or now - _BLIND_NS)

    def _count(self, flat: Mapping[str, Any], until: int) -> None:
        key = str(flat.get("trace_id")), str(flat.get("span_id"))
        said = hash(tuple(flat.get(name) for name in _COUNTED))
        before = self._counted.get(key)
        self._counted[key] = until, said
        self._counted.move_to_end(key)
        if before is not None:
            # The join writes rows again also where nothing of them is new.
            self.late += before[1] != said
            return
        try:
            row: Row = from_dict(flat)
        except DataError:
            self.unread += 1
            return
        if row.service in self._without:
            return
        for _ in range(min(max(1, round(row.weight)), _MOST_WEIGHT)):
            self._add(row)
        self.rows += 1

    def _forget(self, until: int) -> None:
        while self._counted:
            at, _ = next(iter(self._counted.values()))
            if at > until - 2 * _BACK_NS and len(self._counted) <= _REMEMBERED:
                return
            self._counted.popitem(last=False)
