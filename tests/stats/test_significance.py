"""Do the figures about chance agree with those of textbooks?"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.stats import quantiles
from llmtrace.stats.significance import (
    binomial_tail,
    clustered,
    false_discovery,
    more_than,
    quantile,
    quantile_bounds,
    share_bounds,
)

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@given(values, st.floats(0.01, 0.99))
def test_a_quantile_is_the_one_shown_elsewhere(some, q):
    """One definition in all of llmtrace: nearest rank."""
    assert quantile(np.array(some), q) == quantiles.quantile(sorted(some), q)


@given(values, st.integers(1, 5), st.floats(0.01, 0.99))
def test_equal_weights_change_nothing(some, weight, q):
    """A weight says how many, and everybody has the same."""
    column = np.array(some)

    assert quantile(column, q, np.full(len(column), float(weight))) == quantile(column, q)


def test_a_weight_is_so_many_values():
    """Three of a value are a value of weight 3."""
    some, weights = np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 38.0])

    assert quantile(some, 0.04, weights) == 2.0
    assert quantile(some, 0.06, weights) == 3.0


@pytest.mark.parametrize("n", [72, 100, 200, 500, 1000, 2000])
def test_bounds_of_a_quantile_are_those_shown_elsewhere(n):
    """The interval of order statistics, as `llmtrace.stats.quantiles` has it."""
    some = np.arange(1.0, n + 1)
    found = quantile_bounds(some, 0.95)
    shown = quantiles.interval(some.tolist(), 0.95)

    assert found == (shown.low, shown.high)


def test_too_few_values_bound_nothing():
    """Of 71 values none bounds the p95 from above."""
    assert quantile_bounds(np.arange(71.0), 0.95)[1] is None


def test_values_that_share_fate_bound_less():
    """Ten to a cluster, the interval is wider."""
    some = np.arange(2000.0)
    low, high = quantile_bounds(some, 0.95)
    low_10, high_10 = quantile_bounds(some, 0.95, 10)

    assert low_10 < low < high < high_10


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(0, 10, 0.0, 0.3085), (5, 10, 0.1871, 0.8129), (10, 10, 0.6915, 1.0),
     (212, 900, 0.2082, 0.2647)],
)  # fmt: skip
def test_an_interval_of_a_share_is_clopper_and_pearsons(k, n, low, high):
    """Figures from tables."""
    assert share_bounds(k, n) == (pytest.approx(low, abs=2e-4), pytest.approx(high, abs=2e-4))


@given(st.integers(0, 30), st.integers(1, 30), st.floats(0.01, 0.99))
def test_the_tail_of_a_binomial_is_its_sum(k, n, p):
    """The continued fraction gives what adding up gives."""
    summed = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))

    assert binomial_tail(k, n, p) == pytest.approx(min(summed, 1.0), abs=1e-9)


def test_the_tea_tasting_lady():
    """Fisher's own table: 3 of 4 against 1 of 4 has a chance of 17 in 70."""
    assert more_than(3, 4, 1, 4) == pytest.approx(17 / 70)


def test_nothing_is_not_more():
    """No requests, or none of a kind, prove nothing."""
    assert more_than(0, 100, 5, 100) == 1.0
    assert more_than(3, 0.4, 1, 100) == 1.0


def test_independent_requests_are_not_clustered():
    """The variance of counts is what it would be by chance."""
    r = np.random.default_rng(1)

    assert clustered(np.sort(r.uniform(0, 3600, 5000)), r.random(5000) < 0.05) < 1.6


def test_bursts_are_seen():
    """Ten slow requests at a time say as much as about one."""
    r = np.random.default_rng(2)
    t = np.sort(r.uniform(0, 3600, 6000))
    slow = np.zeros(6000, bool)
    for begin in r.integers(0, 5990, 30):
        slow[begin : begin + 10] = True

    assert 4 < clustered(t, slow) < 50


def test_what_a_window_of_the_same_length_does_by_itself_counts():
    """Load that comes and goes over half an hour is invisible to bins of minutes, and no news."""
    r = np.random.default_rng(3)
    t = np.sort(r.uniform(0, 6 * 3600, 20000))
    slow = r.random(20000) < 0.05 * (1 + 0.5 * np.sin(t / 3600 * np.pi))

    assert clustered(t, slow, 1800) > 2 * clustered(t, slow)


@pytest.mark.parametrize("slow", [np.zeros(50, bool), np.ones(50, bool), np.zeros(0, bool)])
def test_nothing_slow_or_all_of_it_is_no_cluster(slow):
    """There is no pattern in a constant."""
    assert clustered(np.arange(float(len(slow))), slow) == 1.0


@given(st.lists(st.floats(0, 1), max_size=20))
def test_discoveries_are_never_surer_than_their_tests(p_values):
    """A q is not below its p, not above 1, and keeps their order."""
    q = false_discovery(p_values)

    assert all(p <= one <= 1 for p, one in zip(p_values, q, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert all(q[a] <= q[b] for a, b in pairwise(order))
