"""Is a sample of rows the same whichever way they come, and does it stand for all of them?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmtrace.dataset.sampling import Sample
from llmtrace.triage.pipeline import Settings, triage
from tests.triage.days import Kind, day


def sampled(rows, most, pieces=1, order=None):
    """Sample rows that come in pieces."""
    sample = Sample(most)
    for piece in np.array_split(np.arange(rows.n) if order is None else order, pieces):
        sample.add(rows.take(piece))
    return sample.rows()


ROWS = day(after=Kind(queued_share=0.2), n=(8000, 4000)).rows


def test_few_rows_are_all_kept():
    """And nothing is said of a sample."""
    kept = sampled(ROWS, 20_000, 3)

    assert kept.n == ROWS.n
    assert kept.warnings == ()


def test_a_sample_depends_on_neither_pieces_nor_order():
    """What a row is decides whether it is in."""
    one = sampled(ROWS, 4000)
    other = sampled(ROWS, 4000, 7, np.random.default_rng(1).permutation(ROWS.n))

    assert sorted(one.start.tolist()) == sorted(other.start.tolist())
    assert 1500 < one.n <= 4000


def test_each_row_stands_for_those_left_out():
    """The weights come to about as many as there were."""
    kept = sampled(ROWS, 4000, 5)

    assert kept.weights.sum() == pytest.approx(ROWS.n, rel=0.1)
    assert any("one in 4" in warning for warning in kept.warnings)


def test_a_sample_tells_the_same():
    """The same verdict, and nearly the same seconds."""
    case = day(after=Kind(queued_share=0.2), n=(8000, 4000))
    all_ = triage(case, Settings(bootstrap=0))
    some = triage(replace(case, rows=sampled(case.rows, 8000)), Settings(bootstrap=0))

    assert (some.verdict, some.metric) == (all_.verdict, all_.metric)
    assert some.delta_s == pytest.approx(all_.delta_s, rel=0.15)
    assert some.load["after"].requests_per_s == pytest.approx(
        all_.load["after"].requests_per_s, rel=0.1
    )
