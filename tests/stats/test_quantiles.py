"""Percentiles and their intervals."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.stats.quantiles import Interval, interval, least_values, quantile

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)
shares = st.floats(0.01, 0.99)


@given(values, shares, st.floats(0, 1e6))
def test_a_quantile_is_within_a_limit_when_that_share_of_the_values_is(numbers, q, limit):
    """The p95 is within a limit exactly if at least 95 % of the values are."""
    within = sum(number <= limit for number in numbers) / len(numbers)

    assert (within >= q - 1e-12) == (quantile(sorted(numbers), q) <= limit)


def test_a_rank_that_floating_point_overshoots_stays():
    """0.07 * 100 is more than 7 in floating point; the 7th value is still the p7."""
    assert quantile([float(n) for n in range(1, 101)], 0.07) == 7.0


@given(values, shares)
def test_the_interval_holds_the_quantile_of_its_own_values(numbers, q):
    """What the values show lies between the bounds they give."""
    ordered = sorted(numbers)
    bounds = interval(ordered, q)

    assert bounds.low is None or bounds.low <= quantile(ordered, q)
    assert bounds.high is None or bounds.high >= quantile(ordered, q)


def test_the_interval_is_that_of_the_binomial_distribution():
    """The ranks for the p95 of 200 values are those the exact distribution gives."""
    n, q, tail = 200, 0.95, 0.025
    chances = [1.0 * (1 - q) ** n]
    for k in range(n):
        chances.append(chances[-1] * (n - k) / (k + 1) * q / (1 - q))
    at_most = [sum(chances[: k + 1]) for k in range(n + 1)]
    low = max(rank for rank in range(1, n + 1) if at_most[rank - 1] <= tail)
    high = min(rank for rank in range(1, n + 1) if at_most[rank - 1] >= 1 - tail)

    assert Interval(low, high) == interval(range(1, n + 1), q)


def test_the_interval_holds_the_true_quantile_as_often_as_it_says():
    """Of 400 samples at least 95 % give an interval that holds the true p90, less chance."""
    draws = random.Random(1)
    held = 0
    for _ in range(400):
        bounds = interval(sorted(draws.random() for _ in range(100)), 0.9)
        held += bounds.low <= 0.9 <= bounds.high

    assert held >= 0.93 * 400


def test_many_values_do_not_underflow():
    """With 5,000 values the bounds are where the normal approximation has them."""
    bounds = interval(range(5000), 0.95)
    reach = 1.96 * (5000 * 0.95 * 0.05) ** 0.5

    assert (bounds.low, bounds.high) == pytest.approx((4750 - reach, 4750 + reach), abs=2)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_an_upper_bound_takes_a_number_of_values(q):
    """One value fewer than `least_values` has no upper bound."""
    enough = least_values(q)

    assert interval(range(enough), q).high == enough - 1
    assert interval(range(enough - 1), q).high is None


def test_no_values_have_no_bounds():
    """Of nothing, nothing is known."""
    assert interval([], 0.95) == Interval(None, None)
