from __future__ import annotations

import logging
import threading

import pytest

from llmtrace.core.failopen import internal_errors
from llmtrace.exporters import queued_sink
from llmtrace.exporters.queued_sink import QueuedSink, RowsLost
from llmtrace.exporters.worker import Worker
from tests.exporters.samples import typical

LONG = 60.0  # an interval that no test waits for


@pytest.fixture
def sinks():
    """Make sinks that are closed at the end of the test."""
    made = []

    def make(deliver, **settings):
        sink = QueuedSink("export.test", deliver, **{"interval_s": LONG, **settings})
        made.append(sink)
        return sink

    yield make
    for sink in made:
        sink.close()


def test_rows_arrive_in_order(sinks):
    """A flush hands over every row, in the order of writing."""
    got = []
    sink = sinks(got.extend)
    rows = [typical(n) for n in range(5)]
    for row in rows:
        sink.write(row)

    assert sink.flush(5)
    assert rows == got


def test_no_thread_before_the_first_row(sinks):
    """A sink nothing is written to costs no thread."""
    before = threading.active_count()
    sink = sinks(lambda _: None)

    assert before == threading.active_count()
    assert sink.flush(0)


def test_a_full_batch_is_sent_at_once(sinks):
    """A full batch does not wait for the interval; what is short of one does."""
    arrived = threading.Event()
    got = []

    def deliver(rows):
        got.append(len(rows))
        arrived.set()

    sink = sinks(deliver, batch=3)
    for n in range(3):
        sink.write(typical(n))

    assert arrived.wait(5)
    assert got == [3]
    arrived.clear()
    sink.write(typical(3))
    assert not arrived.is_set()


def test_batches_are_no_larger_than_asked_for(sinks):
    """What has piled up is handed over in batches."""
    got = []
    sink = sinks(lambda rows: got.append(len(rows)), batch=4)
    blocked, go_on = threading.Event(), threading.Event()

    def first(rows):
        blocked.set()
        go_on.wait(5)
        got.append(len(rows))

    sink._deliver = first
    for n in range(4):
        sink.write(typical(n))
    assert blocked.wait(5)
    for n in range(10):
        sink.write(typical(n))
    go_on.set()

    assert sink.flush(5)
    assert sum(got) == 14
    assert max(got) == 4


def test_a_full_queue_drops_and_counts(sinks, caplog):
    """Rows that do not fit are dropped, counted, and warned about once."""
    blocked, go_on = threading.Event(), threading.Event()
    got = []

    def deliver(rows):
        blocked.set()
        go_on.wait(5)
        got.extend(rows)

    sink = sinks(deliver, capacity=4, batch=2)
    with caplog.at_level(logging.WARNING, "llmtrace"):
        sink.write(typical(0))
        sink.write(typical(1))
        assert blocked.wait(5)
        for n in range(2, 10):
            sink.write(typical(n))
    go_on.set()
    assert sink.flush(5)

    assert len(got) == 6
    assert internal_errors() == {"export.test.dropped": 4}
    assert len(caplog.records) == 1


def test_a_failing_backend_costs_only_its_batch(sinks):
    """A batch whose delivery raises is dropped and counted; later rows still go."""
    got = []

    def deliver(rows):
        if not got:
            got.append("failed")
            msg = "backend down"
            raise RuntimeError(msg)
        got.extend(rows)

    sink = sinks(deliver)
    sink.write(typical(0))
    sink.write(typical(1))
    assert not sink.flush(5)
    sink.write(typical(2))

    assert sink.flush(5)
    assert ["failed", typical(2)] == got
    assert internal_errors() == {"export.test": 1, "export.test.dropped": 2}


def test_only_what_was_lost_is_counted(sinks):
    """A delivery that knows how many rows it lost is believed."""

    def deliver(rows):
        raise RowsLost("half of it", 1)

    sink = sinks(deliver)
    sink.write(typical(0))
    sink.write(typical(1))

    assert not sink.flush(5)
    assert internal_errors()["export.test.dropped"] == 1


def test_flush_does_not_wait_longer_than_its_timeout(sinks):
    """A hanging backend holds a flush up only until its time-out."""
    go_on = threading.Event()
    sink = sinks(lambda _: go_on.wait(5) and None)
    sink.write(typical())

    assert not sink.flush(0.01)
    go_on.set()


def test_close_hands_over_the_rest(sinks):
    """Closing delivers what is queued; later rows are dropped and counted."""
    got = []
    sink = sinks(got.extend)
    sink.write(typical(0))
    sink.close()
    sink.write(typical(1))

    assert [typical(0)] == got
    assert internal_errors() == {"export.test.dropped": 1}
    assert sink.flush(5)


def test_close_does_not_wait_for_ever(sinks, caplog, monkeypatch):
    """A hanging backend holds `close` up only so long; what is on its way or left is counted."""
    blocked, go_on = threading.Event(), threading.Event()

    def deliver(rows):
        blocked.set()
        go_on.wait(5)
        raise OSError

    monkeypatch.setattr(queued_sink, "EXIT_LIMIT_S", 0.01)
    sink = sinks(deliver, batch=1)
    sink.write(typical(0))
    assert blocked.wait(5)
    sink.write(typical(1))
    sink.close()

    assert internal_errors() == {"export.test.dropped": 2}
    [said] = caplog.messages
    assert said == "llmtrace: export.test.dropped: 2 rows at exit: not sent within 0.01 s"
    go_on.set()
    assert not sink.flush(5)  # the worker has ended
    assert internal_errors() == {"export.test.dropped": 2, "export.test": 1}


def test_pausing_ends_with_close(sinks):
    """A wait between two attempts is given up when the sink is closed."""
    said = []
    waiting = threading.Event()

    def deliver(rows):
        waiting.set()
        said.append(sink.pause(LONG))

    sink = sinks(deliver, batch=1)
    sink.write(typical())
    assert waiting.wait(5)
    sink.close()

    assert said == [False]


def test_many_writers_lose_nothing(sinks):
    """Rows written from several threads at once all arrive, once."""
    got = []
    sink = sinks(got.extend, batch=16)

    def write(first):
        for n in range(first, first + 500):
            sink.write(typical(n))

    threads = [threading.Thread(target=write, args=(k * 500,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sink.flush(5)
    assert sorted(row.span_id for row in got) == [typical(n).span_id for n in range(2000)]


def test_no_thread_to_be_had(monkeypatch):
    """If no thread can be started, rows wait, a flush says so, and nothing raises."""

    def refuse(self):
        msg = "can't start new thread"
        raise RuntimeError(msg)

    sink = QueuedSink("export.test", lambda _: None, interval_s=LONG)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        sink.write(typical())
        assert not sink.flush(5)

    assert internal_errors()["export.test"] >= 1
    assert sink.flush(5)  # there are threads again
    sink.close()


def test_a_worker_runs_by_itself():
    """Without being woken, a worker does its work after each interval."""
    twice = threading.Semaphore(0)
    worker = Worker("export.test", twice.release, interval_s=0.001)
    worker.need()

    assert twice.acquire(timeout=5)
    assert twice.acquire(timeout=5)
    worker.close()


def test_restarting_in_a_child_forgets_the_parents_rows(sinks):
    """After a fork the queue is empty and a new thread serves the new rows."""
    got = []
    sink = sinks(got.extend)
    sink.write(typical(0))
    sink._worker.restart_in_child()
    sink.write(typical(1))

    assert sink.flush(5)
    assert [typical(1)] == got


def test_a_backend_that_failed_gets_no_more_of_the_exit(sinks):
    """While closing, the first failure ends it: what is left is dropped and counted."""
    tried = []
    blocked, go_on = threading.Event(), threading.Event()

    def deliver(rows):
        tried.append(len(rows))
        blocked.set()
        go_on.wait(5)
        msg = "backend down"
        raise RuntimeError(msg)

    sink = sinks(deliver, batch=2)
    sink.write(typical(0))
    sink.write(typical(1))
    assert blocked.wait(5)
    for n in range(2, 8):
        sink.write(typical(n))
    sink._worker.begin_close()
    go_on.set()
    sink.close()

    assert tried == [2, 2]
    assert internal_errors()["export.test.dropped"] == 8
