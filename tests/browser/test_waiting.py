"""Do rows wait for their pages, and go on once each, whatever comes and whatever does not?"""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.browser import Beacon
from llmtrace.browser.pending_rows import PendingRows
from llmtrace.core.browser_timing import Browser
from llmtrace.core.failopen import internal_errors
from llmtrace.core.stages import Timeline
from llmtrace.testing import make_row
from tests.support.internal_errors import reset_internal_errors

MS = 1_000_000
SPAN = "2" * 16
BEGAN = 1_700_000_000_000_000_000


def page(number: int) -> str:
    """Make the trace id of a page's request."""
    return f"{number + 1:032x}"


def beacon(number: int = 0, e2e_ms: int = 1500) -> Beacon:
    """Make a page's beacon of one request."""
    browser = Browser(e2e_ns=e2e_ms * MS, ttft_ns=300 * MS, chunks=2)
    return Beacon(trace_id=page(number), span_id=SPAN, browser=browser)


ROW = make_row(start=BEGAN + 25 * MS, timeline=Timeline(e2e=1000 * MS, ttft=200 * MS))


class Pages:
    """What waits, the clock it goes by, and what has gone on."""

    def __init__(self, **settings: float) -> None:
        self.now = 0.0
        self.gone: list = []
        self.waiting = PendingRows(
            clock=lambda: self.now, wall=lambda: BEGAN, **{"wait_s": 10, **settings}
        )
        self.waiting._worker.begin_close()  # here, time passes only when advanced

    def row(self, asked, row=ROW) -> None:
        """Finish a row that a page requested."""
        self.waiting.row(asked, row, self.gone.append)

    def later(self, seconds: float) -> None:
        """Let time pass, and look."""
        self.now += seconds
        self.waiting.release()


@pytest.fixture
def pages():
    """Make an empty one."""
    reset_internal_errors()
    return Pages()


def test_a_row_goes_on_joined_once_its_page_has_reported(pages):
    """It waits for the page, and what lay before the call is the application's own time."""
    asked = pages.waiting.begin(page(0))
    pages.row(asked)
    pages.waiting.end(asked)
    assert pages.gone == []

    assert pages.waiting.beacon(beacon())

    [row] = pages.gone
    assert (row.e2e_ns, row.browser.app_e2e_ns) == (1500 * MS, 1000 * MS)
    assert row.stages.gateway == 25 * MS
    assert len(pages.waiting) == 0


def test_a_page_that_gives_up_may_tell_before_the_server_notices(pages):
    """The beacon waits for the row as well."""
    asked = pages.waiting.begin(page(0))
    pages.waiting.beacon(beacon())
    pages.row(asked)
    assert pages.gone == []
    pages.waiting.end(asked)

    assert pages.gone[0].browser is not None


def test_a_row_may_come_after_all_the_rest(pages):
    """Of a cancelled request, whose outcome is settled a moment later."""
    asked = pages.waiting.begin(page(0))
    pages.waiting.end(asked)
    pages.waiting.beacon(beacon())
    pages.row(asked)

    assert pages.gone[0].browser is not None


def test_a_page_that_never_tells_costs_its_row_a_while(pages):
    """It goes on as it is; what comes later is too late."""
    asked = pages.waiting.begin(page(0))
    pages.row(asked)
    pages.waiting.end(asked)
    pages.later(9)
    assert pages.gone == []
    pages.later(1)

    assert pages.gone == [ROW]
    assert not pages.waiting.beacon(beacon())
    assert pages.gone == [ROW]


def test_an_answer_that_is_still_sent_has_more_time(pages):
    """A slow page delays the sending, after the row is finished."""
    asked = pages.waiting.begin(page(0))
    pages.row(asked)
    pages.later(60)
    assert pages.gone == []
    pages.later(40)

    assert pages.gone == [ROW]
    pages.waiting.end(asked)
    assert len(pages.waiting) == 0


def test_a_second_beacon_changes_nothing(pages):
    """The first one counts, before the row is there and after."""
    asked = pages.waiting.begin(page(0))
    pages.waiting.beacon(beacon())
    pages.waiting.beacon(beacon(e2e_ms=9000))
    pages.row(asked)
    pages.waiting.end(asked)

    assert [row.e2e_ns for row in pages.gone] == [1500 * MS]
    assert not pages.waiting.beacon(beacon(e2e_ms=9000))


def test_an_unknown_page_is_not_known(pages):
    """A beacon alone keeps nothing."""
    assert not pages.waiting.beacon(beacon())
    assert len(pages.waiting) == 0


def test_a_request_without_rows_is_forgotten_soon(pages):
    """Not every request of a page goes to a model."""
    pages.waiting.end(pages.waiting.begin(page(0)))
    pages.later(5)

    assert len(pages.waiting) == 0


def test_only_the_pages_own_row_is_joined():
    """Of several, the others go on as they are."""
    pages = Pages()
    asked = pages.waiting.begin(page(0))
    inner = replace(ROW, span_id="b" * 16, parent_span_id=ROW.span_id)
    pages.row(asked, inner)
    pages.row(asked)
    pages.waiting.end(asked)
    pages.waiting.beacon(beacon())

    assert [row.browser is None for row in pages.gone] == [True, False]


def test_what_waits_is_bounded():
    """Above the most, the oldest goes on; and no page keeps more than so many rows."""
    reset_internal_errors()
    pages = Pages(max_pending=3)
    for number in range(10):
        asked = pages.waiting.begin(page(number))
        pages.row(asked)
        pages.waiting.end(asked)
    assert (len(pages.waiting), len(pages.gone)) == (3, 7)
    assert internal_errors()["browser.too_many"] == 7

    asked = pages.waiting.begin(page(99))
    for _ in range(100):
        pages.row(asked)
    assert len(asked.rows) == 64


def test_everything_goes_on_when_the_process_ends():
    """Nothing is lost at exit."""
    pages = Pages()
    pages.row(pages.waiting.begin(page(0)))
    pages.waiting.release_all()

    assert pages.gone == [ROW]


def test_a_sink_that_fails_costs_the_others_nothing():
    """Each row goes on by itself."""
    reset_internal_errors()
    pages = Pages()
    asked = pages.waiting.begin(page(0))

    def broken(_row):
        raise OSError

    pages.waiting.row(asked, ROW, broken)
    pages.row(asked)
    pages.waiting.release_all()

    assert pages.gone == [ROW]
    assert internal_errors()["browser"] == 1


def test_time_passes_by_itself():
    """A thread lets rows go on that have waited long enough."""
    waiting = PendingRows(wait_s=0.05)
    gone = threading.Event()
    asked = waiting.begin(page(0))
    waiting.row(asked, ROW, lambda _row: gone.set())
    waiting.end(asked)

    assert gone.wait(30)
    waiting._worker.close()


def test_what_has_gone_is_not_kept():
    """Neither the rows nor the request they belong to stay in memory."""
    pages = Pages()
    asked = pages.waiting.begin(page(0))
    kept = make_row()
    alive = weakref.ref(kept)
    pages.row(asked, kept)
    pages.waiting.end(asked)
    pages.waiting.beacon(beacon())
    pages.gone.clear()
    del kept, asked
    gc.collect()

    assert alive() is None


steps = st.lists(
    st.tuples(
        st.sampled_from(["begin", "row", "end", "beacon", "later", "release"]),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(steps, st.integers(1, 3))
def test_every_row_goes_on_exactly_once(steps, max_pending):
    """In whatever order things come, and however many pages there are."""
    pages = Pages(max_pending=max_pending)
    asked: dict[int, list] = {}
    made = 0
    for step, number in steps:
        running = asked.setdefault(number, [])
        if step == "begin":
            running.append(pages.waiting.begin(page(number)))
        elif step == "row" and running:
            pages.row(running[-1], replace(ROW, request_id=str(made)))
            made += 1
        elif step == "end" and running and running[0].running:
            pages.waiting.end(running[0])
        elif step == "beacon":
            pages.waiting.beacon(beacon(number))
        elif step == "later":
            pages.later(number * 4)
        elif step == "release":
            pages.waiting.release_all()
        assert len(pages.waiting) <= max_pending
    pages.waiting.release_all()

    assert sorted(int(row.request_id) for row in pages.gone) == list(range(made))
    assert all(row.stages.total == row.e2e_ns for row in pages.gone)
