"""The self time of a process is split from its waiting, to the nanosecond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmtrace
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import TEXT
from llmtrace.runtime import proxied_request
from llmtrace.runtime.proxied_request import ProxiedRequest, SelfTime, WaitIntervals
from llmtrace.testing import FakeClock, capture

US = 1_000


def spent(own: int = 0, upstream: int = 0, caller: int = 0, beside: int = 0) -> SelfTime:
    """Return what was spent, given in microseconds."""
    return SelfTime(own=own * US, upstream=upstream * US, caller=caller * US, beside=beside * US)


def total(split: SelfTime) -> int:
    """Receipt of the request to the first content sent."""
    return split.own + split.upstream + split.caller


class Bench:
    """A relay on a clock that counts microseconds, and what happens to it."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_000_000_000)
        self.relay = ProxiedRequest(self.clock, "order-7")

    def passes(self, us: int) -> None:
        """Let time pass."""
        self.clock.advance(us / 1e6)

    def call(self) -> Recording:
        """Begin an upstream call that is recorded; it waits from here on."""
        call = Recording(lambda _, __: None, {}, clock=self.clock)
        self.relay.calls_upstream(call)
        return call

    def finalize(self) -> SelfTime:
        """Send the first content."""
        return self.relay.finalize(self.clock())


@pytest.fixture
def bench() -> Bench:
    """A request that has just been received."""
    return Bench()


# --- one call -----------------------------------------------------------------------------------


def test_what_is_not_waiting_is_own(bench):
    """Before the call, between its reads and after its content the process works itself."""
    bench.passes(5)
    call = bench.call()
    bench.passes(100)
    call.switch_interval(reading=False)
    bench.passes(7)
    call.switch_interval(reading=True)
    bench.passes(30)
    call.switch_interval(reading=False)
    bench.passes(1)

    assert bench.finalize() == spent(own=13, upstream=130, beside=7)


def test_work_beside_an_answer_under_way_costs_nothing(bench):
    """Who still has to wait for the answer after his own work has not held anything up."""
    call = bench.call()
    bench.passes(10_000)
    call.switch_interval(reading=False)
    bench.passes(50_000)
    call.switch_interval(reading=True)
    bench.passes(200_000)
    call.switch_interval(reading=False)

    assert bench.finalize() == spent(upstream=260_000)


def test_work_after_the_answer_had_come_is_own(bench):
    """Where nothing is left to wait for, it held the answer up, at least in part."""
    call = bench.call()
    bench.passes(10_000)
    call.switch_interval(reading=False)
    bench.passes(300_000)
    call.switch_interval(reading=True)
    bench.passes(20)
    call.switch_interval(reading=False)
    bench.passes(5)

    known = bench.finalize()
    assert known == spent(own=300_005, upstream=10_020, beside=300_000)
    # In which part, the engine can tell.
    assert known.knowing(250_000 * US) == spent(own=60_025, upstream=250_000, beside=60_020)
    assert known.knowing(10_000 * US) == known
    assert known.knowing(900_000 * US) == spent(own=5, upstream=310_020)


def test_a_call_that_still_waits_has_waited_up_to_now(bench):
    """Content may be sent while another call goes on."""
    bench.call()
    bench.passes(40)

    assert bench.finalize() == spent(upstream=40)


def test_without_a_call_all_is_own(bench):
    """Nothing was waited for; whether that can be known is another question."""
    bench.passes(9)

    assert bench.finalize() == spent(own=9)
    assert not bench.relay.seen


def test_only_the_first_content_settles(bench):
    """What follows it changes nothing."""
    bench.passes(9)
    first = bench.finalize()
    bench.passes(9)

    assert bench.finalize() is first


def test_a_call_that_begins_after_the_content_is_not_asked(bench):
    """Calls of background tasks are none of this time."""
    bench.passes(3)
    bench.finalize()
    call = bench.call()

    assert bench.relay.calls == []
    assert type(call) is Recording


def test_a_settled_calls_recording_is_an_ordinary_one_again(bench):
    """From the first content on nothing is paid for what is not needed."""
    call = bench.call()
    bench.passes(5)
    call.switch_interval(reading=False)
    watched = type(call)
    bench.finalize()

    assert (watched is Recording, type(call) is Recording) == (False, True)
    assert (call.reading, call.waited) == (False, 5 * US)


# --- what was sent and what came to nothing -----------------------------------------------------


def test_getting_a_connection_is_own(bench):
    """Up to the sending of the request, nothing has been asked of the upstream."""
    call = bench.call()
    bench.passes(10)
    attempt = call.attempt()
    bench.passes(20)
    attempt.first_wire = bench.clock()
    bench.passes(30)
    attempt.send_started = bench.clock()
    bench.passes(200)
    attempt.answered = bench.clock()

    assert bench.finalize() == spent(own=60, upstream=200)


def test_a_connection_that_is_still_being_made_is_own(bench):
    """Another call may have answered meanwhile."""
    call = bench.call()
    attempt = call.attempt()
    attempt.first_wire = bench.clock()
    bench.passes(30)

    assert bench.finalize() == spent(own=30)


def test_without_word_from_the_http_library_it_waits_from_the_attempt_on(bench):
    """A transport that tells nothing is taken to send at once."""
    call = bench.call()
    bench.passes(10)
    call.attempt()
    bench.passes(50)

    assert bench.finalize() == spent(own=10, upstream=50)


def test_failed_attempts_and_their_backoff_are_own(bench):
    """Time lost to a refusal is the gateway's, as in its caller's row."""
    call = bench.call()
    refused = call.attempt()
    refused.send_started = bench.clock()
    bench.passes(20)
    refused.answered, refused.status = bench.clock(), 503
    bench.passes(500)
    second = call.attempt()
    second.send_started = bench.clock()
    bench.passes(70)
    second.answered, second.status = bench.clock(), 200

    assert bench.finalize() == spent(own=520, upstream=70)


@pytest.mark.parametrize("outcome", ["error", "timeout", "cancelled"])
def test_a_call_that_came_to_nothing_is_own(bench, outcome):
    """Falling back to another upstream has cost what the first one took."""
    failed = bench.call()
    bench.passes(300)
    failed.end(outcome)
    second = bench.call()
    bench.passes(80)
    second.switch_interval(reading=False)

    assert bench.finalize() == spent(own=300, upstream=80)


def test_a_call_that_broke_after_its_content_was_waited_on(bench):
    """What was got of it was worth the wait."""
    call = bench.call()
    bench.passes(50)
    call.switch_interval(reading=False)
    call.event(TEXT)
    call.end("error")

    assert bench.finalize() == spent(upstream=50)


@pytest.mark.parametrize(("stage", "own"), [("gateway", 40), ("render", 40), ("queue", 0)])
def test_marks_inside_a_call(bench, stage, own):
    """What is marked as one's own inside a decorated function is no waiting."""
    call = bench.call()
    bench.passes(10)
    bench.passes(40)
    call.add_mark(stage, 40 * US)
    bench.passes(5)

    assert bench.finalize() == spent(own=own, upstream=55 - own, beside=own)


def test_marks_inside_a_call_stay_own_before_a_real_wait(bench):
    """What is said to be own is, even if the answer was under way."""
    call = bench.call()
    bench.passes(50_000)
    call.add_mark("gateway", 40_000 * US)
    bench.passes(100_000)
    call.switch_interval(reading=False)

    assert bench.finalize() == spent(own=40_000, upstream=110_000, beside=40_000)


# --- several calls, and the caller --------------------------------------------------------------


def test_calls_one_after_another_add_up(bench):
    """A planner's call and then the answer's: both are waits, what lies between is own."""
    for us in (100, 200):
        call = bench.call()
        bench.passes(us)
        call.switch_interval(reading=False)
        bench.passes(3)

    assert bench.finalize() == spent(own=6, upstream=300)


def test_calls_side_by_side_count_once(bench):
    """Two calls at a time are one wait."""
    one = bench.call()
    bench.passes(10)
    other = bench.call()
    bench.passes(10)
    one.switch_interval(reading=False)
    bench.passes(10)
    other.switch_interval(reading=False)

    assert bench.finalize() == spent(upstream=30)


def test_an_upstream_that_is_not_recorded(bench):
    """What the application says of its waiting counts like a recorded call."""
    bench.passes(5)
    waits = bench.relay.upstream()
    waits.begin(bench.clock())
    bench.passes(60)
    waits.end(bench.clock())

    assert bench.finalize() == spent(own=5, upstream=60)
    assert bench.relay.seen


def test_waiting_for_the_rest_of_the_request_is_the_callers(bench):
    """A slow upload is no slow gateway; on an upstream it waits first of all."""
    bench.relay.receiving.begin(bench.clock())
    bench.passes(25)
    call = bench.call()
    bench.passes(5)
    bench.relay.receiving.end(bench.clock())
    bench.passes(10)
    call.switch_interval(reading=False)
    bench.passes(1)

    assert bench.finalize() == spent(own=1, upstream=15, caller=25)


# No wait among these is a real one, so that each gap between two is own time.
STEPS = st.lists(
    st.tuples(st.sampled_from(["pass", "begin", "end", "new", "receive"]), st.integers(0, 4),
              st.integers(0, 20)),
    max_size=40,
)  # fmt: skip


@given(STEPS)
def test_the_parts_add_up_and_are_right_for_any_interleaving(steps):
    """Own, upstream and caller are what a second book-keeping says, and the whole time."""
    bench = Bench()
    calls: list[Recording] = []
    waiting: set[int] = set()
    receiving = False
    own = upstream = caller = 0
    for what, which, us in steps:
        if what == "pass":
            bench.passes(us)
            if waiting:
                upstream += us
            elif receiving:
                caller += us
            else:
                own += us
        elif what == "new":
            waiting.add(len(calls))
            calls.append(bench.call())
        elif what == "receive":
            note = bench.relay.receiving.end if receiving else bench.relay.receiving.begin
            note(bench.clock())
            receiving = not receiving
        elif which < len(calls):
            calls[which].switch_interval(reading=what == "begin")
            (waiting.add if what == "begin" else waiting.discard)(which)

    found = bench.finalize()
    assert (found.own, found.upstream, found.caller) == (own * US, upstream * US, caller * US)
    assert total(found) == bench.clock() - bench.relay.start
    assert 0 <= found.beside <= found.own


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5000)), max_size=20),
    st.integers(0, 10**7),
)
def test_the_parts_add_up_whatever_the_engine_says(reads, engine_us):
    """However waits and work take turns, and however long the engine claims to have worked."""
    bench = Bench()
    call = bench.call()
    for reading, us in reads:
        call.switch_interval(reading=reading)
        bench.passes(us)
    plain = bench.finalize()
    known = plain.knowing(engine_us * US)

    assert total(plain) == total(known) == bench.clock() - bench.relay.start
    assert min(known.own, known.upstream, known.beside) >= 0
    assert plain.upstream <= known.upstream <= max(plain.upstream, engine_us * US)


@given(st.integers(1, 300))
def test_reads_before_the_content_are_counted_apart(reads):
    """A gateway that reads many chunks before it sends one has worked between them."""
    bench = Bench()
    call = bench.call()
    for _ in range(reads):
        call.wait_started = call.clock()
        bench.passes(3)
        call.mark = bench.clock()
        call.wait_started = 0
        bench.passes(1)

    found = bench.finalize()
    assert (found.own, found.upstream) == (reads * US, 3 * reads * US)


def test_memory_does_not_grow_with_the_reads():
    """A whole answer read before anything is sent is kept in bounds, and loses little."""
    waits = WaitIntervals()
    for read in range(10_000):
        waits.begin(10 * read)
        waits.end(10 * read + 9)

    [*kept] = waits.within(0, 1_000_000)
    assert len(kept) == 4096
    assert sum(end - start for start, end in kept) == pytest.approx(90_000, rel=0.1)


# --- ids, and what the runtime does with a relay ------------------------------------------------


def test_upstream_calls_go_by_the_requests_own_id():
    """The first call has the caller's id, by which all sides are joined; later ones their own."""
    clock = FakeClock(1)
    with capture(clock=clock) as rows:
        token = proxied_request.current.set(ProxiedRequest(clock, "order-7"))
        try:
            for _ in range(3):
                list(llmtrace.wrap(iter(["a"])))
        finally:
            proxied_request.current.reset(token)

    assert [row.request_id for row in rows] == ["order-7", "order-7-2", "order-7-3"]


def test_outside_a_gateway_nothing_is_watched():
    """A recording of an ordinary application is what it always was."""
    with capture() as rows:
        list(llmtrace.wrap(iter(["a"])))

    assert rows[0].request_id.startswith("lt-")
