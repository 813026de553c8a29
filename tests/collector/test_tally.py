"""Do counters only rise, and count each request once, whatever comes late or twice?"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from llmtrace.export.aggregate import Aggregate
from llmtrace.testing import make_row
from llmtrace_collector import tally as module
from llmtrace_collector.store import StoreError
from llmtrace_collector.tally import Tally

S = 1_000_000_000
START = 1_000 * S


class Versions:
    """A store's rows by version, and how far its join has come, in place of `store.read`."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict]] = []
        self.joined = 0
        self.asked: list[tuple[int, int, int]] = []
        self.broken = False

    def add(self, version: int, **fields) -> None:
        """Write a row; one of the same ids is another version of it."""
        row = make_row(start=START, **fields).as_dict()
        ids = row["trace_id"], row["span_id"]
        self.rows = [one for one in self.rows if (one[1]["trace_id"], one[1]["span_id"]) != ids]
        self.rows.append((version, row))

    def joined_until(self, store) -> int:
        """Say how far it has come."""
        if self.broken:
            raise StoreError("away")
        return self.joined

    def changed(self, store, since, until, *, began_ns):
        """Return rows by their last version."""
        self.asked.append((since, until, began_ns))
        return [row for version, row in self.rows if since < version <= until]


@pytest.fixture
def versions(monkeypatch):
    """Put rows of ours in the store's place."""
    made = Versions()
    monkeypatch.setattr(module, "read", made)
    return made


class Clock:
    """Unix nanoseconds, as told."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        """Return the time."""
        return self.now


def counting(versions, **settings):
    """Return a tally, its aggregate and its clock; everything is joined at once."""
    clock = Clock()
    aggregate = Aggregate()
    versions.joined = versions.joined or START
    made = Tally(None, aggregate.add, settle_s=10.0, wall=clock, **settings)
    versions.joined = 10**18
    return made, aggregate, clock


def total(aggregate) -> int:
    """Return how many requests were counted."""
    return sum(cell.requests for cell in aggregate.by(lambda labels: labels.service).values())


def test_a_row_is_counted_when_it_has_settled(versions):
    """Not before, and not again."""
    tally, aggregate, clock = counting(versions)
    versions.add(START + S)
    clock.now = START + 10 * S
    assert tally.look() == 0
    clock.now = START + 12 * S
    assert tally.look() == 1
    clock.now = START + 60 * S
    assert tally.look() == 0

    assert total(aggregate) == 1


def test_a_row_that_keeps_changing_is_counted_as_it_ended(versions):
    """Its last version counts, once that has settled."""
    tally, aggregate, clock = counting(versions)
    for second in range(1, 30, 5):
        versions.add(START + second * S, model=f"m{second}")
        clock.now = START + (second + 4) * S
        tally.look()
    clock.now = START + 60 * S
    tally.look()

    assert aggregate.by(lambda labels: labels.model).keys() == {"m26"}
    assert (total(aggregate), tally.late) == (1, 0)


def test_what_comes_too_late_changes_no_counter(versions):
    """It is counted as late; the join writing the same row again is not."""
    tally, aggregate, clock = counting(versions)
    versions.add(START + S)
    clock.now = START + 20 * S
    tally.look()
    versions.add(START + 21 * S)  # the same again
    clock.now = START + 40 * S
    tally.look()
    assert tally.late == 0
    versions.add(START + 41 * S, outcome="error")
    clock.now = START + 60 * S
    tally.look()

    assert (total(aggregate), tally.late) == (1, 1)
    assert aggregate.by(lambda labels: labels.outcome).keys() == {"success"}


def test_a_join_that_is_still_running_is_waited_for(versions):
    """Its rows have a version that lies behind already, and come in sight later."""
    tally, aggregate, clock = counting(versions)
    versions.joined = START + S
    clock.now = START + 60 * S
    tally.look()
    versions.add(START + 2 * S)
    versions.joined = START + 60 * S
    tally.look()

    assert total(aggregate) == 1


def test_what_settled_before_this_process_began_is_not_counted(versions):
    """The process before counted it."""
    versions.add(START - 20 * S)
    tally, aggregate, clock = counting(versions)
    clock.now = START + 60 * S
    tally.look()

    assert total(aggregate) == 0


def test_what_had_not_settled_when_the_process_before_ended_is_counted(versions):
    """However long nobody was there."""
    versions.joined = START - 3_600 * S
    versions.add(START - 3_605 * S)
    tally, aggregate, clock = counting(versions)
    clock.now = START + S
    tally.look()

    assert total(aggregate) == 1


def test_where_others_run_the_join(versions):
    """How far it has come is not known here, so it is waited longer."""
    tally, _, clock = counting(versions)
    versions.joined = 0
    versions.add(START + S)
    clock.now = START + 60 * S
    assert tally.look() == 0
    clock.now = START + 130 * S
    assert tally.look() == 1


def test_weights_and_services(versions):
    """A sampled row stands for others, up to what can be believed; some services are left out."""
    tally, aggregate, clock = counting(versions, without={"quiet"})
    ids = (f"{n:032x}" for n in range(1, 9))
    versions.add(START + S, trace_id=next(ids), weight=10.0)
    versions.add(START + S, trace_id=next(ids), weight=1e9)
    versions.add(START + S, trace_id=next(ids), service="quiet")
    clock.now = START + 60 * S
    tally.look()

    assert total(aggregate) == 1_010
    assert tally.rows == 2


def test_a_row_that_is_none_is_left_out(versions):
    """And counted as such; the others count."""
    tally, aggregate, clock = counting(versions)
    versions.add(START + S)
    versions.rows.append((START + S, {"trace_id": "x", "span_id": "y", "e2e_s": "long"}))
    clock.now = START + 60 * S
    tally.look()

    assert (total(aggregate), tally.unread) == (1, 1)


def test_ids_are_forgotten_once_they_cannot_come_again(versions, monkeypatch):
    """After twice the time rows are looked for, or beyond what memory is given."""
    monkeypatch.setattr(module, "_REMEMBERED", 3)
    tally, _, clock = counting(versions)
    for number in range(1, 6):
        versions.add(START + S, trace_id=f"{number:032x}")
    clock.now = START + 60 * S
    tally.look()
    assert len(tally._counted) == 3
    clock.now += 3_700 * S
    tally.look()
    assert len(tally._counted) == 0


def test_a_store_that_is_away(versions):
    """It is looked again, and nothing is missed."""
    tally, aggregate, clock = counting(versions, interval_s=0.01)
    versions.add(START + S)
    versions.broken = True
    clock.now = START + 60 * S

    async def rounds() -> None:
        task = asyncio.create_task(tally.run())
        while tally.failures < 2:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
        versions.broken = False
        while not tally.rows:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(rounds(), 60))
    assert total(aggregate) == 1


def test_rows_are_made_of_what_is_stored(versions):
    """The stages that were stored are the stages that are counted."""
    tally, aggregate, clock = counting(versions)
    row = make_row()
    versions.add(START + S)
    clock.now = START + 60 * S
    tally.look()

    [cell] = aggregate.by(lambda _: None).values()
    assert cell.stages["decode"].total == row.stages.decode
    assert cell.unknown["queue"] == 1
    assert replace(row, start=START).e2e_ns == cell.e2e.total
