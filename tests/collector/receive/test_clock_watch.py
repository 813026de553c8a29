"""Is a clock that was set noticed, and one that is only corrected not?"""

from __future__ import annotations

import pytest

from llmtrace_collector.receive.clock_watch import ClockWatch

NS = 10**9
START_S = 1_790_000_000


class Clocks:
    """A clock that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall_s, self.steady_s = float(START_S), 100.0

    def pass_s(self, seconds, *, set_by=0.0):
        """Let time pass, and have the clock set."""
        self.steady_s += seconds
        self.wall_s += seconds + set_by

    def watch(self, stored_until_s=0):
        """Make a watch on them."""
        return ClockWatch(
            round(stored_until_s * NS),
            wall=lambda: round(self.wall_s * NS),
            steady=lambda: self.steady_s,
        )


@pytest.mark.parametrize(
    ("set_by", "words"), [(3_600, "set 3,600 s ahead"), (-7_200, "set 7,200 s back")]
)
def test_a_clock_that_was_set_is_said_for_an_hour(set_by, words):
    """With how far and how long ago; then no more."""
    clocks = Clocks()
    watch = clocks.watch()
    clocks.pass_s(10)
    assert watch.look() is None

    clocks.pass_s(10, set_by=set_by)
    assert words in watch.look()
    clocks.pass_s(1_800)
    assert f"{words}, 1,800 s ago" in watch.look()
    clocks.pass_s(1_900)

    assert watch.look() is None
    assert watch.jumps == 1


def test_a_clock_that_is_corrected_is_no_jump():
    """By less than a minute at a time, however often."""
    clocks = Clocks()
    watch = clocks.watch()
    for _ in range(100):
        clocks.pass_s(10, set_by=-2)
        assert watch.look() is None


def test_a_clock_that_was_ahead_before_the_start_is_said():
    """What is stored is of a time that is not yet."""
    assert "set 3,600 s back" in Clocks().watch(START_S + 3_600).look()
    assert Clocks().watch(START_S - 3_600).look() is None
