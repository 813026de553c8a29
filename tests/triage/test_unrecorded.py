"""Is time of which nothing was recorded kept apart from time in which nothing came?"""

from __future__ import annotations

import numpy as np

from llmtrace.dataset.case import Signals, Window, signals_from
from llmtrace.stats.arrays import Floats
from llmtrace.triage.windows.unrecorded import (
    from_gap,
    pauses,
    recorded_part,
    recording_gaps,
    with_gaps,
    without_gaps,
)

FIRST, SECOND = np.arange(0.0, 60.0), np.arange(300.0, 360.0)
ROWS = np.concatenate([FIRST, SECOND])
GAP = Window(59.0, 300.0)


def sampled(*targets: Floats) -> Signals:
    """Return the samples of so many engines, each read at its own times."""
    return signals_from(
        {"t": float(t), "instance": f"vllm-{i}", "signal": "running", "value": 1.0}
        for i, times in enumerate(targets)
        for t in times
    )[0]


def test_time_without_samples_or_requests_was_not_recorded():
    """It says nothing of traffic."""
    both = np.concatenate([FIRST[::2], SECOND[::2]])

    assert recording_gaps(ROWS, sampled(both)) == (GAP,)


def test_time_with_samples_was_recorded():
    """The pages were read, and no request came."""
    assert recording_gaps(ROWS, sampled(np.arange(0.0, 360.0, 2.0))) == ()


def test_each_target_is_read_at_times_of_its_own():
    """Two engines read one right after the other are not read every few milliseconds."""
    every = np.arange(0.0, 360.0, 2.0)

    assert recording_gaps(ROWS, sampled(every, every + 0.01)) == ()


def test_requests_alone_show_no_gap():
    """Without signals it is not known what was recorded."""
    assert recording_gaps(ROWS, sampled()) == ()


def test_no_window_that_is_found_holds_a_gap():
    """The part with the most requests is left, and what follows a gap is one piece."""
    before = recorded_part(Window(0.0, 310.0), [GAP], ROWS)

    assert before.start == 0.0
    assert 59.0 <= before.end < 60.0
    assert recorded_part(Window(310.0, 350.0), [GAP], ROWS) == Window(310.0, 350.0)
    assert from_gap(before, Window(320.0, 350.0), [GAP]).start == 300.0
    assert from_gap(Window(300.0, 310.0), Window(320.0, 350.0), [GAP]).start == 320.0


def test_gaps_are_left_out_and_put_back():
    """As often as there are gaps."""
    gaps = [GAP, Window(310.0, 320.0)]
    closed = without_gaps(np.array([10.0, 300.0, 330.0]), gaps)

    assert closed.tolist() == [10.0, 59.0, 79.0]
    assert [with_gaps(float(t), gaps) for t in closed] == [10.0, 300.0, 330.0]


def test_two_recordings_in_one_file_have_one_pause():
    """A time far longer than any other between requests; a lull among lulls is none."""
    assert pauses(ROWS) == (GAP,)
    assert pauses(FIRST) == ()
    assert pauses(np.concatenate([FIRST, SECOND, SECOND + 200.0])) == ()
    assert pauses(FIRST[:3]) == ()


def test_a_window_within_a_gap_stays():
    """Nothing is left of it to compare; it has no requests either way."""
    inside = Window(100.0, 200.0)

    assert recorded_part(inside, [GAP], ROWS) == inside
