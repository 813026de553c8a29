"""Do counters only rise, and count each request once, whatever comes late or twice?"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from llmtrace.core.stages import Timeline
from llmtrace.exporters.prometheus.aggregate import Aggregate
from llmtrace.testing import make_row
from llmtrace_collector.metrics import request_metrics as module
from llmtrace_collector.metrics.request_metrics import RequestMetrics
from llmtrace_collector.store import StoreError
from tests.support.waiting import auntil

START = 1_000_000_000_000


class Versions:
    """A store's rows by version, and when each was written, in place of `store.read`."""

    def __init__(self, clock) -> None:
        self.rows: list[tuple[int, dict]] = []
        self.written: list[tuple[int, float]] = []  # version, at
        self.clock = clock
        self.broken = False

    def add(self, **fields) -> None:
        """Write a row; one of the same ids is another version of it."""
        row = make_row(**{"start": START, **fields}).as_dict()
        ids = row["trace_id"], row["span_id"]
        self.rows = [one for one in self.rows if (one[1]["trace_id"], one[1]["span_id"]) != ids]
        self.written.append((len(self.written) + 1, self.clock.now))
        self.rows.append((len(self.written), row))

    def settled(self, store, settle_s):
        """Return the last version that was written so long ago."""
        if self.broken:
            raise StoreError("away")
        until = self.clock.now - settle_s
        return max((version for version, at in self.written if at <= until), default=0)

    def settled_before(self, store, settle_s):
        """Return what had settled when the last version was written."""
        last = self.written[-1][1] if self.written else 0.0
        return max((v for v, at in self.written if at <= last - settle_s), default=0)

    def changed(self, store, since, until):
        """Return rows by their last version."""
        return [row for version, row in self.rows if since < version <= until]


class Clock:
    """Seconds, as set."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def versions(monkeypatch):
    """Put rows of ours in the store's place."""
    made = Versions(Clock())
    monkeypatch.setattr(module, "read", made)
    return made


def counting(versions, **settings):
    """Return a tally, its aggregate and its clock; everything is joined at once."""
    aggregate = Aggregate()
    made = RequestMetrics(None, aggregate.add, settle_s=10.0, monotonic=versions.clock, **settings)
    return made, aggregate, versions.clock


def total(aggregate) -> int:
    """Return how many requests were counted."""
    return sum(cell.requests for cell in aggregate.by(lambda labels: labels.service).values())


def test_a_row_is_counted_when_it_has_settled(versions):
    """Not before, and not again."""
    tally, aggregate, clock = counting(versions)
    versions.add()
    clock.now = 1_000.0 + 9
    assert tally.look() == 0
    clock.now = 1_000.0 + 12
    assert tally.look() == 1
    clock.now = 1_000.0 + 60
    assert tally.look() == 0

    assert total(aggregate) == 1


def test_a_row_that_keeps_changing_is_counted_as_it_ended(versions):
    """Its last version counts, once that has settled."""
    tally, aggregate, clock = counting(versions)
    for second in range(1, 30, 5):
        clock.now = 1_000.0 + second
        versions.add(model=f"m{second}")
        clock.now = 1_000.0 + second + 4
        tally.look()
    clock.now = 1_000.0 + 60
    tally.look()

    assert aggregate.by(lambda labels: labels.model).keys() == {"m26"}
    assert (total(aggregate), tally.late) == (1, 0)


def test_a_row_waits_for_what_came_before_it_would_have_settled(versions):
    """What is not joined yet may change it."""
    incomplete_s = 9.0
    tally, aggregate, clock = counting(versions, incomplete_s=lambda: incomplete_s)
    versions.add(model="early")
    clock.now = 1_000.0 + 12
    assert tally.look() == 0
    versions.add(model="late")
    clock.now, incomplete_s = 1_000.0 + 23, 0.0
    assert tally.look() == 1

    assert aggregate.by(lambda labels: labels.model).keys() == {"late"}


def test_what_comes_too_late_changes_no_counter(versions):
    """It is counted as late; the join writing the same row again is not."""
    tally, aggregate, clock = counting(versions)
    versions.add()
    clock.now = 1_000.0 + 20
    tally.look()
    versions.add()  # the same again
    clock.now = 1_000.0 + 40
    tally.look()
    assert tally.late == 0
    versions.add(outcome="error")
    clock.now = 1_000.0 + 60
    tally.look()

    assert (total(aggregate), tally.late) == (1, 1)
    assert aggregate.by(lambda labels: labels.outcome).keys() == {"success"}


def test_cache_hits_and_streams_are_counted(versions):
    """As of a row that an application counts itself; a hit that is reported late changes none."""
    tally, aggregate, clock = counting(versions)
    versions.add(trace_id="1" * 32, cache_hit=True)
    versions.add(trace_id="2" * 32, timeline=Timeline(e2e=60_000_000, stream=False))
    clock.now = 1_000.0 + 20
    tally.look()
    versions.add(
        trace_id="2" * 32, timeline=Timeline(e2e=60_000_000, stream=False), cache_hit=True
    )
    clock.now = 1_000.0 + 40
    tally.look()

    (cell,) = aggregate.by(lambda labels: labels.service).values()
    assert (cell.requests, cell.cache_hits, cell.streamed) == (2, 1, 1)
    assert tally.late == 1


def test_what_settled_before_this_process_began_is_not_counted(versions):
    """The process before counted it; what had not settled when that ended is counted."""
    versions.add(model="settled", trace_id="1" * 32)
    versions.clock.now += 60
    versions.add(model="not yet", trace_id="2" * 32)
    tally, aggregate, clock = counting(versions)
    clock.now += 60
    tally.look()

    assert aggregate.by(lambda labels: labels.model).keys() == {"not yet"}


def test_weights_and_services(versions):
    """A sampled row stands for others, up to what can be believed; some services are left out."""
    tally, aggregate, clock = counting(versions, without={"quiet"})
    ids = (f"{n:032x}" for n in range(1, 9))
    versions.add(trace_id=next(ids), weight=10.0)
    versions.add(trace_id=next(ids), weight=1e9)
    versions.add(trace_id=next(ids), service="quiet")
    clock.now = 1_000.0 + 60
    tally.look()

    assert total(aggregate) == 1_010
    assert tally.rows == 2


def test_a_row_that_is_none_is_left_out(versions):
    """And counted as such; the others count."""
    tally, aggregate, clock = counting(versions)
    versions.add()
    versions.rows.append((1, {"trace_id": "x", "span_id": "y", "e2e_s": "long"}))
    clock.now = 1_000.0 + 60
    tally.look()

    assert (total(aggregate), tally.missed["unreadable"]) == (1, 1)


def test_ids_are_forgotten_once_they_cannot_come_again(versions, monkeypatch):
    """After twice the time rows are looked for, or beyond what memory is given."""
    monkeypatch.setattr(module, "_REMEMBERED", 3)
    tally, _, clock = counting(versions)
    for number in range(1, 6):
        versions.add(trace_id=f"{number:032x}")
    clock.now = 1_000.0 + 60
    tally.look()
    assert len(tally._counted) == 3
    clock.now += 3_700
    tally.look()
    assert len(tally._counted) == 0


def test_a_store_that_is_away(versions):
    """It is looked again, and nothing is missed."""
    tally, aggregate, clock = counting(versions, interval_s=0.01)
    versions.add()
    versions.broken = True
    clock.now = 1_000.0 + 60

    async def rounds() -> None:
        task = asyncio.create_task(tally.run())
        await auntil(lambda: tally.failures >= 2)
        versions.broken = False
        await auntil(lambda: tally.rows)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(rounds(), 60))
    assert total(aggregate) == 1


def test_rows_are_made_of_what_is_stored(versions):
    """The stages that were stored are the stages that are counted."""
    tally, aggregate, clock = counting(versions)
    row = make_row()
    versions.add()
    clock.now = 1_000.0 + 60
    tally.look()

    [cell] = aggregate.by(lambda _: None).values()
    assert cell.stages["decode"].total == row.stages.decode
    assert cell.unknown["queue"] == 1
    assert replace(row, start=START).e2e_ns == cell.e2e.total


def test_what_is_counted_nowhere_is_missed_and_holds_up_nothing(versions):
    """A row whose counting fails, and what a row claims to stand for beyond all belief."""
    tally, aggregate, clock = counting(versions)
    count = tally._add

    def fails_once(row):
        if row.model == "bad":
            raise RuntimeError("a bug of ours")
        count(row)

    tally._add = fails_once
    versions.add(trace_id="1" * 32, model="bad")
    versions.add(trace_id="2" * 32)
    versions.add(trace_id="3" * 32, weight=5_000.0)
    clock.now = 1_000.0 + 20
    tally.look()
    clock.now = 1_000.0 + 40
    tally.look()

    assert total(aggregate) == 1 + 1_000
    assert dict(tally.missed) == {"unreadable": 0, "error": 1, "weight": 4_000}
