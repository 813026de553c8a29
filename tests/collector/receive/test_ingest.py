"""Does everything that was acknowledged get into the store, once?"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import contextmanager

import pytest

from llmtrace.core.errors import ConfigError
from llmtrace_collector.receive import Admission, Ingest, IngestSettings, Spool, SpoolLimits
from llmtrace_collector.receive import ingest as ingest_module
from llmtrace_collector.receive.quarantine import Quarantine
from llmtrace_collector.store.records import JoinReport, StoreError
from tests.collector.receive.parts import MemoryStore, body, numbers, undelimited
from tests.support.taking_time import spend
from tests.support.waiting import until

QUICK = IngestSettings(interval_s=0.01, join_s=0.01, backoff_s=0.01, most_backoff_s=0.02)


@contextmanager
def opened(folder):
    """Open a spool, and close it."""
    spool = Spool(folder, SpoolLimits(free_bytes=0))
    try:
        yield spool
    finally:
        spool.close()


def append(spool, *spans):
    """Append one request a span."""

    async def run():
        for number in spans:
            await spool.append(body(number), 1)

    asyncio.run(run())


def test_what_is_acknowledged_is_stored_and_joined(tmp_path):
    """From the spool into the store, and the files go."""
    store = MemoryStore()
    with opened(tmp_path) as spool:
        ingest = Ingest(spool, store, QUICK)
        ingest.start()
        append(spool, *range(30))

        assert until(lambda: len(store.stored) == 30)
        assert ingest.stop()
        assert list(range(30)) == store.stored
        assert ingest.counted.spans == 30
        assert store.joins >= 1
        assert ingest.lag_s == 0


def test_a_long_join_after_everything_is_stored_is_no_lag(tmp_path):
    """Nothing waits while it runs."""
    store, joining, go_on = MemoryStore(), threading.Event(), threading.Event()

    def join(_now_ns):
        joining.set()
        go_on.wait(30)
        return JoinReport(0)

    store.join = join
    with opened(tmp_path) as spool:
        append(spool, 1)
        ingest = Ingest(spool, store, QUICK)
        ingest.start()
        assert joining.wait(30)
        lag_s = ingest.lag_s
        go_on.set()
        assert ingest.stop()
    assert (store.stored, lag_s) == ([1], 0.0)


def test_stopping_stores_what_is_left(tmp_path):
    """An orderly end leaves an empty spool, and joined rows."""
    store = MemoryStore()
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        ingest = Ingest(spool, store, IngestSettings(interval_s=600, join_s=600))
        ingest.start()

        assert ingest.stop()
        assert list(range(10)) == store.stored
        assert store.joins >= 1


def test_a_store_that_fails_is_asked_again_with_the_same_token(tmp_path):
    """Nothing is dropped, and the failures are counted."""
    store = MemoryStore(failing=3)
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        ingest = Ingest(spool, store, QUICK)
        ingest.start()

        assert until(lambda: store.stored)
        assert ingest.stop()
        assert list(range(10)) == store.stored
        assert ingest.counted.failures == {"insert": 3}
        assert ingest.counted.problem is None


def test_an_insert_whose_answer_was_lost_is_stored_once(tmp_path):
    """The same token again stores nothing."""
    store = MemoryStore(failing=2, fails_after=True)
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        ingest = Ingest(spool, store, QUICK)
        ingest.start()

        assert until(lambda: store.again == 2)
        assert ingest.stop()
        assert list(range(10)) == store.stored


def test_a_crash_between_the_insert_and_its_note_stores_nothing_twice(tmp_path):
    """The next process inserts the same batch under the same token, with more spans waiting."""
    store = MemoryStore()
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        batch = spool.next_batch(1 << 20, 4)
        store.insert_otlp(batch.body, batch.token)  # and here it dies

    with opened(tmp_path) as spool:
        append(spool, *range(10, 20))
        Ingest(spool, store, QUICK).drain()

    assert list(range(20)) == store.stored
    assert store.again == 1


def test_a_store_that_is_gone_for_good_does_not_hold_up_the_end(tmp_path):
    """It stops in time, and what is not stored is there for the next start."""
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        ingest = Ingest(spool, MemoryStore(failing=1 << 30), QUICK)
        ingest.start()
        assert until(lambda: ingest.counted.failures["insert"] > 2)
        assert ingest.lag_s > 0
        assert "not now" in ingest.counted.problem

        assert not ingest.stop(timeout_s=0.2)
    store = MemoryStore()
    with opened(tmp_path) as spool:
        Ingest(spool, store, QUICK).drain()

    assert list(range(10)) == store.stored


def test_a_request_that_can_never_be_stored_is_put_aside(tmp_path):
    """And only that one; all around it are stored once."""
    store = MemoryStore(poison=4)
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        ingest = Ingest(spool, store, QUICK)
        ingest.drain()

        assert sorted(store.stored) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
        assert ingest.counted.quarantined == {"unreadable": 1}
        assert spool.backlog_bytes == 0
        [kept] = spool.quarantine.entries()
        assert (kept.reason, kept.error, kept.spans) == ("unreadable", "no spans", 1)
        assert numbers(spool.quarantine.payload(kept.name)) == [4]


def test_a_store_that_fails_during_the_search_for_a_bad_request_stores_nothing_twice(tmp_path):
    """Going one by one can be interrupted anywhere."""

    class Flaky(MemoryStore):
        calls = 0

        def insert_otlp(self, body, token):
            self.calls += 1
            if self.calls in {3, 5}:
                super().insert_otlp(body, token)
                raise StoreError("the answer was lost")
            super().insert_otlp(body, token)

    store = Flaky(poison=4)
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        ingest = Ingest(spool, store, QUICK)
        ingest.drain()

    assert sorted(store.stored) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_a_full_disk_under_the_cursor_stores_nothing_twice(tmp_path, monkeypatch):
    """What was inserted and could not be noted is inserted again, under its token."""
    store = MemoryStore()
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        ingest = Ingest(spool, store, QUICK)
        real, calls = os.pwrite, []

        def sometimes(file, data, place):
            calls.append(place)
            if len(calls) in {1, 3}:
                raise OSError(28, "no space left on device")
            return real(file, data, place)

        monkeypatch.setattr(os, "pwrite", sometimes)
        ingest.drain()

        assert list(range(10)) == store.stored
        assert ingest.counted.failures == {"spool": 2}
        assert spool.backlog_bytes == 0


def test_a_join_that_fails_does_not_hold_up_storing(tmp_path):
    """It is counted, and tried again."""

    class NoJoin(MemoryStore):
        def join(self, now_ns: int) -> JoinReport:
            super().join(now_ns)
            raise StoreError("too busy")

    store = NoJoin()
    with opened(tmp_path) as spool:
        ingest = Ingest(spool, store, QUICK)
        ingest.start()
        append(spool, *range(5))

        assert until(lambda: store.joins >= 2)
        ingest.stop()
        assert list(range(5)) == store.stored
        assert ingest.counted.failures["join"] >= 2


def test_what_is_not_joined_is_lag_and_the_log_has_begin_and_end(tmp_path, caplog):
    """Alerts, the live page and doctor go by these; storing in between is no sign of health."""
    caplog.set_level("INFO", "llmtrace.collector")
    store, now = MemoryStore(), [0.0]
    join = store.join

    def fail(_now_ns):
        raise StoreError("damaged")

    with opened(tmp_path) as spool:
        ingest = Ingest(spool, store, QUICK, monotonic=lambda: now[0])
        store.join = fail
        for now[0] in (10.0, 150.0):
            append(spool, int(now[0]))
            ingest.drain()
            ingest._join_if_due()
        assert (ingest.lag_s, ingest.counted.problem) == (140.0, "join: damaged")
        store.join = join
        now[0] += 100.0
        ingest._join_if_due()
        assert (ingest.lag_s, ingest.counted.problem) == (0.0, None)
    assert caplog.messages == [
        "join failed, and is tried again: damaged", "join works again",
    ]  # fmt: skip


def test_an_unforeseen_error_does_not_end_the_thread(tmp_path):
    """It is counted as a failure of the insert."""

    class Odd(MemoryStore):
        def insert_otlp(self, body, token):
            if self.failing:
                self.failing -= 1
                raise ZeroDivisionError
            super().insert_otlp(body, token)

    store = Odd(failing=1)
    with opened(tmp_path) as spool:
        append(spool, 0)
        Ingest(spool, store, QUICK).drain()

    assert store.stored == [0]


def test_a_clock_that_jumps_changes_nothing(tmp_path):
    """The wall clock is passed to the join, and used for nothing else."""
    store = MemoryStore()
    hours = iter([10**18, 10**9, 4 * 10**18, *[0] * 10_000])
    with opened(tmp_path) as spool:
        ingest = Ingest(spool, store, QUICK, wall=lambda: next(hours))
        ingest.start()
        append(spool, *range(5))

        assert until(lambda: store.joins >= 4)
        assert ingest.stop()
    assert list(range(5)) == store.stored


def test_rows_of_a_quiet_collector_appear_within_seconds(tmp_path):
    """However long it takes to plan an insert and a join, a second request is seen soon."""

    class Slow(MemoryStore):
        joined = 0

        def insert_otlp(self, body, token):
            spend(0.3)
            super().insert_otlp(body, token)

        def join(self, now_ns: int) -> JoinReport:
            spend(0.4)
            self.joined = len(self.stored)
            return super().join(now_ns)

    store = Slow()
    with opened(tmp_path) as spool:
        ingest = Ingest(spool, store)
        ingest.start()
        append(spool, 0)
        assert until(lambda: store.joined == 1)
        append(spool, 1)
        # At most 4 s to the insert and 9 to the join, and what both take.
        assert until(lambda: store.joined == 2, within_s=18)
        assert ingest.stop()


class Counting(MemoryStore):
    """Counts what has been joined."""

    joined = 0

    def join(self, now_ns: int) -> JoinReport:
        """Take all that is stored for joined."""
        self.joined = len(self.stored)
        return super().join(now_ns)


@contextmanager
def waiting_for_a_reader(folder, store):
    """Open a spool, and an ingest that has made the first row and lets what comes next wait."""
    with opened(folder) as spool:
        ingest = Ingest(spool, store, IngestSettings(interval_s=0.01, wait_s=600))
        ingest.start()
        append(spool, 0)
        assert until(lambda: store.joined == 1)
        assert until(lambda: ingest._waiting)
        yield spool, ingest


def test_a_little_waits_until_it_is_read(tmp_path):
    """Where only this process reads the store; a reader gets it with the next answer."""
    store = Counting(shared=False)
    with waiting_for_a_reader(tmp_path, store) as (spool, ingest):
        append(spool, 1, 2)
        assert until(lambda: ingest.incomplete_s > 0.3)
        assert (store.stored, ingest.lag_s) == ([0], 0.0)

        ingest.catch_up()
        assert (store.stored, store.joined, ingest.incomplete_s) == ([0, 1, 2], 3, 0.0)
        assert ingest.stop()


def test_a_little_is_stored_in_the_end_without_a_reader(tmp_path):
    """After the time that it may wait."""
    store = Counting(shared=False)
    with opened(tmp_path) as spool:
        ingest = Ingest(spool, store, IngestSettings(interval_s=0.01, join_s=0.01, wait_s=0.3))
        ingest.start()
        for number in range(3):
            append(spool, number)
            assert until(lambda: store.joined == number + 1)  # noqa: B023 - called at once
        assert ingest.stop()


@pytest.mark.parametrize("ends", ["enough", "stop"])
def test_what_waits_for_a_reader_ends_its_wait(tmp_path, monkeypatch, ends):
    """When it is enough for an insert of its own, and when the collector ends."""
    monkeypatch.setattr(ingest_module, "_LITTLE", 1000)
    store = Counting(shared=False)
    with waiting_for_a_reader(tmp_path, store) as (spool, ingest):
        append(spool, *range(1, 20 if ends == "enough" else 3))
        if ends == "enough":
            assert until(lambda: len(store.stored) > 5)
        assert ingest.stop()
    assert store.joined == (20 if ends == "enough" else 3)


def test_what_a_store_that_fails_does_not_take_is_not_complete_for_long(tmp_path):
    """What is counted meanwhile waits for it, but not for good."""
    now = [0.0]
    with opened(tmp_path) as spool:
        ingest = Ingest(spool, MemoryStore(), monotonic=lambda: now[0])
        assert ingest.incomplete_s == 0.0
        append(spool, 0)
        assert ingest.incomplete_s == 60.0
        ingest.drain()
        ingest._join()
        assert ingest.incomplete_s == 0.0
        now[0] = 7.0
        append(spool, 1)
        assert ingest.incomplete_s == 7.0


@pytest.mark.parametrize("shared", [False, True])
def test_an_idle_collector_joins_only_what_others_may_have_stored(tmp_path, shared):
    """What was stored is joined, and once more for what came meanwhile; then there is nothing."""
    store, now = MemoryStore(shared=shared), [0.0]
    with opened(tmp_path) as spool:
        ingest = Ingest(spool, store, monotonic=lambda: now[0])

        def pass_an_hour():
            for _ in range(3_600):
                now[0] += 1.0
                ingest.drain()
                ingest._join_if_due()
            return store.joins

        append(spool, 0)
        first = pass_an_hour()
        append(spool, 1)
        then = pass_an_hour() - first

    assert store.stored == [0, 1]
    if shared:
        assert min(first, then) > 100
    else:
        assert (first, then) == (2, 2)


def test_a_batch_does_not_wait_when_there_is_enough(tmp_path):
    """Enough bytes end the wait before the interval does."""
    store = MemoryStore()
    with opened(tmp_path) as spool:
        settings = IngestSettings(interval_s=600, batch_bytes=1000, join_s=600)
        ingest = Ingest(spool, store, settings)
        ingest.start()
        append(spool, *range(20))

        assert until(lambda: len(store.stored) > 5)
        ingest.stop()


def test_wrong_settings_are_reported_at_set_up():
    """By name."""
    with pytest.raises(ConfigError, match=r"ingest\.interval_s"):
        IngestSettings(interval_s=0)


def test_nothing_of_it_outlives_the_stop(tmp_path):
    """No thread is left."""
    before = threading.active_count()
    with opened(tmp_path) as spool:
        ingest = Ingest(spool, MemoryStore(), QUICK)
        ingest.start()
        ingest.stop()

    assert before == threading.active_count()


class Choosy(MemoryStore):
    """Takes everything but some spans; the error is not one of unreadable bytes."""

    bad: frozenset[int] = frozenset()

    def insert_otlp(self, body, token):
        """Refuse what has one of the bad spans in it."""
        if self.bad & set(numbers(*undelimited(body))):
            raise StoreError("Code: 241. memory limit exceeded", "memory")
        super().insert_otlp(body, token)


def own(store):
    """The numbers stored, without those of spans that asked whether the store works."""
    return sorted(number for number in store.stored if number < 1000)


@pytest.mark.parametrize("bad", [{0}, {4}, {9}, {0, 1, 2, 3}, {1, 5, 9}, set(range(10))])
def test_what_the_store_does_not_take_is_set_aside_and_holds_up_nothing(tmp_path, bad):
    """Whatever the reason, and wherever it lies; all else is stored once."""
    store = Choosy()
    store.bad = frozenset(bad)
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        ingest = Ingest(spool, store, QUICK)
        ingest.drain()
        append(spool, 20)
        ingest.drain()

        assert own(store) == sorted({*range(10), 20} - bad)
        assert ingest.counted.quarantined == {"memory": len(bad)}
        assert spool.backlog_bytes == 0
    with opened(tmp_path) as spool:  # and after a restart
        entries = spool.quarantine.entries()
        assert {entry.reason for entry in entries} == {"memory"}
        kept = [numbers(spool.quarantine.payload(entry.name))[0] for entry in entries]
        assert sorted(kept) == sorted(bad)
        assert spool.next_batch(1 << 20, 100) is None


def test_a_request_is_tried_alone_three_times_before_it_is_set_aside(tmp_path):
    """What failed twice may have been unlucky."""
    tries = []

    class Counting(Choosy):
        def insert_otlp(self, body, token):
            tries.append(numbers(*undelimited(body)))
            super().insert_otlp(body, token)

    store = Counting()
    store.bad = frozenset({2})
    with opened(tmp_path) as spool:
        append(spool, *range(4))
        Ingest(spool, store, QUICK).drain()

    assert tries.count([2]) >= 3


def test_a_store_that_takes_nothing_quarantines_nothing(tmp_path):
    """Neither at once nor when it goes away while a bad request is looked for."""
    store = Choosy()
    store.bad = frozenset({3})

    class Going(Choosy):
        left = 3

        def insert_otlp(self, body, token):
            self.left -= 1
            if self.left < 0:
                raise StoreError("Code: 243. no space left", "disk")
            super().insert_otlp(body, token)

    gone = Going()
    gone.bad = frozenset({3})
    with opened(tmp_path) as spool:
        append(spool, *range(8))
        for broken in (MemoryStore(failing=1 << 30), gone):
            ingest = Ingest(spool, broken, QUICK)
            ingest.start()
            assert until(lambda ingest=ingest: ingest.counted.failures["insert"] > 12)
            assert not ingest.stop(timeout_s=0.1)
            assert not ingest.counted.quarantined
        assert spool.quarantine.count == 0
        Ingest(spool, store, QUICK).drain()
        assert own(store) == sorted(set(range(8)) - {3} - {*own(gone)})


def test_a_full_disk_quarantines_nothing(tmp_path):
    """Though it takes small batches still, as it does one that asks whether it takes any."""

    class Full(MemoryStore):
        full = True

        def insert_otlp(self, body, token):
            if self.full and not token.startswith("probe"):
                raise StoreError("Code: 243. no space left", "disk")
            super().insert_otlp(body, token)

    store = Full()
    with opened(tmp_path) as spool:
        append(spool, *range(8))
        ingest = Ingest(spool, store, QUICK)
        ingest.start()
        assert until(lambda: ingest.counted.failures["insert"] > 30)
        store.full = False
        assert ingest.stop()
        assert own(store) == [*range(8)]
        assert spool.quarantine.count == 0


def test_what_is_in_quarantine_is_replayed(tmp_path):
    """Once the store takes it, it is stored; what it still does not take comes back."""
    store = Choosy()
    store.bad = frozenset({1, 2})
    with opened(tmp_path) as spool:
        append(spool, *range(4))
        ingest = Ingest(spool, store, QUICK)
        ingest.drain()
        store.bad = frozenset({2})

        assert asyncio.run(Admission(spool).replay()) == 2
        assert spool.quarantine.count == 0
        ingest.drain()

        assert own(store) == [0, 1, 3]
        [left] = spool.quarantine.entries()
        assert numbers(spool.quarantine.payload(left.name)) == [2]


def test_two_replays_at_once_store_each_request_once(tmp_path):
    """As two people may press for it."""
    store = Choosy()
    store.bad = frozenset({1, 2})

    async def twice(admission):
        return await asyncio.gather(admission.replay(), admission.replay())

    with opened(tmp_path) as spool:
        append(spool, *range(4))
        ingest = Ingest(spool, store, QUICK)
        ingest.drain()
        store.bad = frozenset()

        assert sum(asyncio.run(twice(Admission(spool)))) == 2
        ingest.drain()

        assert own(store) == [0, 1, 2, 3]


def test_the_quarantine_is_bounded(tmp_path):
    """The oldest go, and are counted; a name from outside reaches no other file."""
    quarantine = Quarantine(tmp_path / "q", 250)
    for number in range(5):
        quarantine.add(f"{number}", b"x" * 100, 1, "memory", "words")

    assert [entry.name for entry in quarantine.entries()] == ["3", "4"]
    assert (quarantine.dropped, quarantine.size) == (3, 200)
    assert sorted(path.name for path in (tmp_path / "q").iterdir()) == [
        "3.json", "3.otlp", "4.json", "4.otlp",
    ]  # fmt: skip
    (tmp_path / "secret.otlp").write_bytes(b"no")
    assert quarantine.payload("../secret") is None


def test_a_batch_is_bounded_by_what_it_becomes(tmp_path):
    """Bytes on the wire say little of what a store has to write."""
    with opened(tmp_path) as spool:

        async def run():
            for number in range(6):
                await spool.append(body(number), 1, 100 << 20)

        asyncio.run(run())
        batch = spool.next_batch(1 << 20, 1000, 256 << 20)
        assert len(batch.records) == 2
