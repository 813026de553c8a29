"""Is a difference called only where there is one, and found where there is?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmtrace.run_comparison import effects as effects_module
from llmtrace.run_comparison.effects import Sample, effects
from llmtrace.run_comparison.wording import verdict


@pytest.fixture
def few_resamples(monkeypatch):
    """Leave the intervals rough, where only what is called counts."""
    monkeypatch.setattr(effects_module, "_RESAMPLES", 20)


def sample(seed: int, count: int = 400, factor: float = 1.0, correlation: float = 0.0) -> Sample:
    """Draw log-normal values; each may be like the one before it."""
    draws = np.random.default_rng(seed)
    noise = draws.normal(size=count)
    for i in range(1, count):
        noise[i] = correlation * noise[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
    return Sample(0.3 * factor * np.exp(0.4 * noise), np.ones(count))


def only(before: Sample, after: Sample):
    """Compare one duration."""
    (effect,) = effects({"ttft": (before, after)})
    return effect


@pytest.mark.usefixtures("few_resamples")
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_chance_alone_is_seldom_called_a_difference(correlation):
    """In 200 comparisons of a run with itself, also where requests are like their neighbours."""
    called = sum(
        only(sample(2 * i, 200, correlation=correlation),
             sample(2 * i + 1, 200, correlation=correlation)).direction is not None
        for i in range(200)
    )  # fmt: skip
    assert called <= 10


@pytest.mark.usefixtures("few_resamples")
def test_a_tenth_more_is_found():
    """At 1,000 requests a side, in 19 of 20 comparisons at least."""
    found = sum(
        only(sample(2 * i, 1000), sample(2 * i + 1, 1000, 1.1)).direction == "slower"
        for i in range(40)
    )
    assert found >= 38


def test_a_tail_alone_is_found():
    """One request in ten takes four times as long; the median stays."""
    before, after = sample(1, 1000), sample(2, 1000)
    after.values[::10] *= 4
    assert only(before, after).direction == "slower"


def test_the_interval_holds_the_truth():
    """About as often as it promises: 95 % of the intervals of a median that moved by 60 ms."""
    truth = 0.3 * 0.2
    inside = 0
    for i in range(60):
        change = only(sample(2 * i, 300), sample(2 * i + 1, 300, 1.2)).changes[0.5]
        inside += change.low <= truth <= change.high
    assert inside >= 51


def test_what_would_have_been_found_is_about_what_is():
    """At the size stated as the smallest, four of five comparisons find the change."""
    smallest = only(sample(1, 500), sample(2, 500)).smallest
    found = sum(
        only(sample(2 * i, 500), sample(2 * i + 1, 500, 1 + smallest)).direction == "slower"
        for i in range(40)
    )
    assert found >= 24


def test_no_duration_falls_by_more_than_all_of_it():
    """The median before is not known exactly, but what is left after is not negative."""
    before = Sample(np.random.default_rng(1).uniform(0.001, 0.02, 900), np.ones(900))
    effect = effects({"render": (before, Sample(np.full(900, 1e-4), np.ones(900)))})[0]
    assert before.quantile(0.5) + effect.changes[0.5].low >= 0


@pytest.mark.parametrize(
    ("smallest", "words"),
    [(0.12, "at p50 only one above 12\N{NO-BREAK SPACE}% would have"),
     (109_253.58, "at p50 only one far above 1,000\N{NO-BREAK SPACE}% would have")],
)  # fmt: skip
def test_what_would_have_been_visible_is_capped(smallest, words):
    """A change of so many times is no figure that anybody reads."""
    effect = replace(only(sample(1, 500), sample(2, 500)), smallest=smallest, direction=None)

    assert words in verdict(effect)


def test_a_constant_has_no_smallest_change():
    """A width of zero is no change that would have been shown."""
    same = Sample(np.full(400, 0.02), np.ones(400))
    assert verdict(effects({"network": (same, same)})[0]) == "no difference shown"


def test_too_few_requests_show_nothing():
    """Ten are needed; a p95 needs twenty, or it is the maximum."""
    few = only(sample(1, 9), sample(2, 400))
    assert (few.p_value, few.direction, few.changes) == (None, None, {})
    assert 0.95 not in only(sample(1, 15), sample(2, 15)).changes


def test_equal_values_are_no_difference():
    """Nothing varies, so nothing is shown."""
    same = Sample(np.full(50, 0.2), np.ones(50))
    assert only(same, same).direction is None


def test_a_constant_that_moved_is_found():
    """No noise at all is no reason to divide by it."""
    before, after = (Sample(np.full(50, value), np.ones(50)) for value in (0.2, 0.3))
    assert only(before, after).direction == "slower"


@pytest.mark.usefixtures("few_resamples")
def test_many_durations_are_not_many_chances():
    """Ten durations that did not move are called as seldom as one."""
    called = 0
    for i in range(40):
        pairs = {
            str(n): (sample(100 * i + n, 120), sample(100 * i + n + 50, 120)) for n in range(10)
        }
        called += any(effect.direction for effect in effects(pairs))
    assert called <= 5


def test_weights_count_requests():
    """A request of weight 3 is three requests."""
    before, after = sample(1, 400), sample(2, 400)
    heavy = Sample(after.values, np.where(np.arange(400) % 2, 3.0, 1.0))
    thrice = np.repeat(after.values, np.where(np.arange(400) % 2, 3, 1))
    found = only(before, heavy)
    assert found.after.quantile(0.5) == Sample(thrice, np.ones(800)).quantile(0.5)
    assert found.changes[0.5].low < found.changes[0.5].high
