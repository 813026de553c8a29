"""Is a change of the system found in requests whose own work differs tenfold?"""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.dataset.columns import from_dicts
from llmtrace.triage.attribution.components import values
from llmtrace.triage.windows.bins import bins_for
from llmtrace.triage.windows.highest_stretch import MIN_SCORE
from llmtrace.triage.windows.same_work import (
    find_workload_change,
    relative_to_work,
    searched_series,
)
from llmtrace.triage.windows.spike import find_slow


def requests(seed, factor, *, n=350, known=True):
    """Draw short questions and long documents; from 200 on each takes so many times longer."""
    r = np.random.default_rng(seed)
    tokens = np.where(r.random(n) < 0.7, r.integers(30, 200, n), r.integers(1500, 4000, n))
    ttft = 0.0002 * tokens * np.exp(r.normal(0, 0.2, n)) * np.where(np.arange(n) >= 200, factor, 1)
    return from_dicts(
        {
            "start": 1_700_000_000_000_000_000 + i * 200_000_000,
            "model": "m",
            "operation": "chat",
            "ttft_s": float(ttft[i]),
            "outcome": "success",
            **({"prompt_tokens": int(tokens[i])} if known else {}),
        }
        for i in range(n)
    )


def scores(rows):
    """Return how far the clearest stretch stands out in each series, and where it starts."""
    found = []
    for t, value in searched_series(rows, values(rows, "ttft")):
        spike = find_slow(t, value, bins_for(t))
        found.append((spike.score, spike.start - 1_700_000_000.0) if spike else (0.0, 0.0))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_step_hidden_by_what_people_send_is_found_relative_to_it(seed):
    """Prompts of 30 and of 4,000 tokens, all of which take twice as long."""
    (whole, _), (relative, start) = scores(requests(seed, 2.0))

    assert whole < MIN_SCORE < relative
    assert start == pytest.approx(40.0, abs=1.0)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_found_where_only_chance_chose_the_work(seed):
    """Neither in the metric nor relative to the work."""
    assert max(score for score, _ in scores(requests(seed, 1.0))) < MIN_SCORE


def test_rows_without_lengths_are_searched_as_they_are():
    """There is nothing to be relative to."""
    rows = requests(1, 1.0, known=False)

    assert relative_to_work(rows, values(rows, "ttft")) is None
    assert len(list(searched_series(rows, values(rows, "ttft")))) == 1


def test_requests_that_became_longer_are_found_as_other_work():
    """Where no metric shows it, their lengths do; of the same lengths nothing is found."""
    r = np.random.default_rng(2)

    def of(times):
        tokens = r.integers(100, 400, 300) * np.where(np.arange(300) >= 180, times, 1)
        return from_dicts(
            {"start": 1_700_000_000_000_000_000 + i * 10**9, "output_tokens": int(tokens[i])}
            for i in range(300)
        )

    assert find_workload_change(of(1)) is None
    assert find_workload_change(of(3)).start == pytest.approx(1_700_000_180.0, abs=2.0)
