"""What a turn keeps of what runs inside it, within bounds."""

from __future__ import annotations

import gc
import threading
import weakref
from contextvars import copy_context
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context as otel_context

import llmtrace
from llmtrace.agents import scopes
from llmtrace.agents.scopes import ToolScope, TurnScope
from llmtrace.core.failopen import internal_errors
from llmtrace.core.recording import Recording
from llmtrace.core.row import TURN
from llmtrace.core.stages import Timeline
from llmtrace.runtime.scope import KEY, Scope, live
from llmtrace.testing import FakeClock, capture, make_row
from tests.support.internal_errors import reset_internal_errors

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=12)


def turn(clock):
    """Make a turn that begins now."""
    recording = Recording(lambda *_: None, {"operation": TURN, "agent": "x"}, clock=clock)
    return TurnScope(recording, clock, None)


def finished(running, e2e):
    """Return the row of a turn that took so long."""
    return running.complete(make_row(operation=TURN, timeline=Timeline(e2e=e2e, stream=False)))


def play(spans, most):
    """Run tool calls that begin and last so, and return the row of the turn around them."""
    clock = FakeClock()
    events = sorted(
        [(start, 0, n) for n, (start, _) in enumerate(spans)]
        + [(start + lasted, 1, n) for n, (start, lasted) in enumerate(spans)]
    )
    running, seen = turn(clock), {}
    with patch.object(scopes, "MAX_TOOLS", most):
        for at, ends, number in events:
            clock.advance((at - clock()) / 1e9)
            if ends:
                running.tool_ends(seen[number], "success", None)
            else:
                seen[number] = running.tool_begins("t", f"{number:016x}", [number], 1)
    reset_internal_errors()
    return finished(running, clock())


@given(SPANS)
def test_what_is_not_kept_is_counted_to_the_nanosecond(spans):
    """With room for two calls, calls, wall and sum are what they are with room for all."""
    all_kept, few_kept = play(spans, 100), play(spans, 2)

    for figure in ("tool_calls", "tool_wall_s", "tool_serial_s"):
        assert getattr(all_kept, figure) == getattr(few_kept, figure)
    assert len(few_kept.parts) <= 2
    assert (few_kept.tool_critical_path_s or 0) <= (all_kept.tool_critical_path_s or 0)
    assert (few_kept.tool_serial_loss_s or 0) >= 0


def test_memory_does_not_grow_with_the_turn():
    """However many calls with however much to look at, so much is kept and no more."""
    clock = FakeClock()
    running = turn(clock)
    for number in range(2_000):
        text = " ".join(f"word{number}x{n}" for n in range(300))
        seen = running.tool_begins("t", f"{number:016x}", [text], 1)
        running.tool_ends(seen, "success", text)
    reset_internal_errors()
    kept = [one for call in running._tools for one in (call.arguments, call.result) if one]

    assert len(running._tools) == scopes.MAX_TOOLS
    assert sum(prints.size for prints in kept) < 100_000


def test_prints_go_with_their_round():
    """Once the model was asked again, what the calls before it said is forgotten."""
    clock = FakeClock()
    running = turn(clock)
    seen = running.tool_begins("t", "0" * 16, ["an argument of some length"], 1)
    running.tool_ends(seen, "success", "a result of some length")
    assert seen.result is not None
    request = Recording(lambda *_: None, {"operation": "chat"}, clock=clock)
    running.request_begins(request, clock, 1)

    assert (seen.arguments, seen.result) == (None, None)


def test_calls_in_many_threads():
    """None is lost, however they interleave."""
    running = turn(FakeClock())

    def work():
        for number in range(20):
            seen = running.tool_begins("t", f"{number:016x}", [number], 1)
            running.tool_ends(seen, "success", number)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = finished(running, 0)

    assert row.tool_calls == 160
    assert len({part.number for part in row.parts}) == 160
    assert internal_errors() == {}


def test_what_is_around():
    """The innermost scope that is not over; code that outlives one belongs to what is above."""
    outer = turn(FakeClock())
    inner = ToolScope(outer)
    token = otel_context.attach(otel_context.set_value(KEY, inner))
    try:
        assert live() is inner
        inner.ended = True
        assert live() is outer
        outer.ended = True
        assert live() is None
    finally:
        otel_context.detach(token)
    assert live() is None


def test_scopes_without_end():
    """Tools that call themselves are counted for the turns close by, and take no time to find."""
    around: Scope = turn(FakeClock())
    for _ in range(10_000):
        around = ToolScope(around)

    assert list(around.turns()) == []


def test_turns_that_hand_on_to_each_other_do_not_keep_each_other():
    """Each begins inside the last, which then ends: an agent that never stops does not grow."""
    with capture():
        task, turn_ = copy_context(), llmtrace.turn("first")
        task.run(turn_.__enter__)
        first = weakref.ref(task.run(live).recording)
        for _ in range(3):
            following, next_turn = task.copy(), llmtrace.turn("following")
            following.run(next_turn.__enter__)
            task.run(turn_.__exit__, None, None, None)
            task, turn_ = following, next_turn
        del following
        gc.collect()

        assert first() is None
