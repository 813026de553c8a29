"""Does a question end when it has taken too long, or when its client has disconnected?"""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from llmtrace_collector.serve import store_access
from llmtrace_collector.serve.api import Api
from llmtrace_collector.store import SignalSample, open_store, read
from llmtrace_collector.store.query_deadline import QueryDeadline, QueryEndedError, within

NS = 10**9
DAY_NS = 86_400 * NS
HEAVY = "SELECT count() FROM numbers(1000000000000) WHERE NOT ignore(sipHash64(number))"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An embedded store with samples of three moments, far apart."""
    opened = open_store(tmp_path_factory.mktemp("store"))
    now = time.time_ns()
    opened.insert_signals(
        [SignalSample(now - ago, "a", "running", 1.0) for ago in (20 * DAY_NS, 2 * DAY_NS, NS)]
    )
    yield opened
    opened.close()


class Counted:
    """Counts the queries of a store."""

    def __init__(self, store):
        self._store = store
        self.queries = 0

    def query(self, sql, parameters=None):
        """Ask, and count it."""
        self.queries += 1
        return self._store.query(sql, parameters)


def test_days_without_samples_cost_a_query_and_not_one_for_each_ten_minutes(store):
    """And what lies between them is found."""
    counted = Counted(store)
    now = time.time_ns() + NS

    found = [*read.signals(counted, now - 399 * DAY_NS, now)]
    assert len(found) == 3
    assert counted.queries <= 3 * 3 + 2

    counted.queries, began = 0, time.monotonic()
    assert [*read.signals(counted, now - 800 * DAY_NS, now - 401 * DAY_NS)] == []
    assert counted.queries == 2
    assert time.monotonic() - began < 1


def test_a_query_has_what_is_left_of_its_deadline(store):
    """It ends by itself, and the next one does not begin."""
    began = time.monotonic()
    with within(QueryDeadline(0.5)):
        with pytest.raises(QueryEndedError):
            store.query(HEAVY)
        with pytest.raises(QueryEndedError, match=r"took longer than 0\.5 s"):
            store.query("SELECT 1")
    assert time.monotonic() - began < 5
    assert store.query("SELECT 1") == [(1,)]


def test_a_running_query_is_ended_from_another_thread(store):
    """By the name of its deadline, and no other query."""
    deadline, other = QueryDeadline(30), QueryDeadline(30)
    ended = []

    def ask():
        with within(deadline):
            try:
                store.query(HEAVY)
            except QueryEndedError as error:
                ended.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    time.sleep(0.5)
    store.end(other.name)
    asker.join(0.3)
    assert asker.is_alive()
    store.end(deadline.name)
    asker.join(10)
    assert ended


class Slow:
    """A store whose answers take until they are ended."""

    def __init__(self):
        self.ended = threading.Event()
        self.asked = 0

    def query(self, sql, parameters=None):
        """Wait."""
        self.asked += 1
        if not self.ended.wait(20):
            raise AssertionError
        raise QueryEndedError("ended")

    def end(self, name):
        """End all that wait."""
        self.ended.set()


@pytest.mark.parametrize("path", ["/signals", "/rows", "/coverage", "/slowest"])
def test_a_query_whose_client_disconnected_makes_room_for_others(path):
    """As many as there is room for, all of whom hang up."""
    slow = Slow()

    async def run():
        mounted = Api(slow, None).mount()

        async def ask():
            left = asyncio.Event()
            asyncio.get_running_loop().call_later(0.3, left.set)

            async def receive():
                await left.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                pass

            scope = {
                "type": "http", "method": "GET", "path": f"/api/v1{path}", "headers": [],
                "query_string": b"start=-399d", "root_path": "",
            }  # fmt: skip
            await mounted(scope, receive, send)

        began = time.monotonic()
        await asyncio.gather(*(ask() for _ in range(store_access.QUERIES)))
        return time.monotonic() - began

    took = asyncio.run(run())
    assert slow.asked == store_access.QUERIES
    assert slow.ended.is_set()
    assert took < 2.5
