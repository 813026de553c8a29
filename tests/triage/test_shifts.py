"""Is a change distinguished from the usual unrest, and an unknown from a zero?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.triage.evidence.changes import (
    STANDS_OUT,
    Share,
    expected_percentile,
    ratio_at_same,
    shift,
    z_among_stretches,
    z_of_t,
)

T = np.arange(400.0)


def lognormal(seed: int, factor: float = 1.0) -> np.ndarray:
    """Return 400 waits of about a tenth of a second."""
    return factor * np.random.default_rng(seed).lognormal(np.log(0.1), 0.5, 400)


@pytest.mark.parametrize("seed", range(20))
def test_the_same_again_is_no_rise(seed):
    """Two draws of one distribution differ by chance alone."""
    found = shift(lognormal(seed), T, lognormal(1000 + seed), T)

    assert not found.rose(0.005)
    assert not found.fell(0.005)


@pytest.mark.parametrize("seed", range(10))
def test_half_as_long_again_is_a_rise(seed):
    """What every request feels shows in the median."""
    assert shift(lognormal(seed), T, lognormal(1000 + seed, 1.5), T).rose(0.005)


@pytest.mark.parametrize("seed", range(10))
def test_what_few_feel_is_a_rise_of_the_tail(seed):
    """One request in eight is three seconds late; the median has not moved."""
    after = lognormal(1000 + seed)
    after[::8] += 3
    found = shift(lognormal(seed), T, after, T)

    assert found.rose(0.005)
    assert found.tail_share > 0.1


@pytest.mark.parametrize(("slow", "rose"), [(1, False), (3, True)])
def test_means_of_many_requests_show_a_change_in_a_few_of_them(slow, rose):
    """Ten times as high in three of sixteen; one request can do that to one of them."""
    rng = np.random.default_rng(1)
    before, after = rng.normal(0.1, 0.02, (2, 16))
    after[4 : 4 + slow] = 1.0

    assert shift(before, T[:16], after, T[:16], of_means=True).rose(0.005) == rose
    assert not shift(before, T[:16], after, T[:16]).rose(0.005)


@pytest.mark.parametrize("seed", range(10))
def test_means_that_wander_are_no_rise(seed):
    """Each is much like the one before it, so that they are few that say something."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(0, 0.02, 32)
    for place in range(1, 32):
        steps[place] += 0.6 * steps[place - 1]
    before, after = np.split(0.1 + np.maximum(steps, -0.09), 2)

    assert not shift(before, T[:16], after, T[:16], of_means=True).rose(0.005)


def test_slow_spells_that_come_anyhow_are_no_rise():
    """Where slow requests cluster already, as many of them again are nothing new."""
    rng = np.random.default_rng(3)
    before, after = lognormal(1), lognormal(2)
    for values in (before, after):
        for at in rng.choice(380, 3, replace=False):
            values[at : at + 12] += 2
    found = shift(before, T, after, T)

    assert not found.rose(0.005)


def test_a_change_below_the_floor_is_none():
    """However certain, two milliseconds of forty are not what woke anybody."""
    found = shift(np.full(400, 0.040), T, np.full(400, 0.042), T)

    assert found.z > 4
    assert not found.rose(0.005)


def test_too_few_values_are_unknown():
    """NaN is not a value."""
    few = np.array([1.0] * 5 + [np.nan] * 100)

    assert shift(few, np.arange(105.0), lognormal(0), T) is None


def test_a_ratio_is_taken_between_like_and_like():
    """Prompts got longer at the same speed: at the same length nothing changed."""
    rng = np.random.default_rng(0)
    short, long = rng.uniform(100, 1000, 400), rng.uniform(300, 3000, 400)

    assert ratio_at_same(short / 1e3, short, long / 1e3, long) == pytest.approx(1, abs=0.05)
    assert ratio_at_same(short / 1e3, short, 2 * long / 1e3, long) == pytest.approx(2, abs=0.1)
    assert ratio_at_same(short, short, long * 100, long * 100) is None


def test_a_p95_is_foreseen_from_what_is_asked():
    """Twice as many long prompts as before: what the p95 will be; and of longer ones still."""
    rng = np.random.default_rng(0)
    by = np.where(rng.random(2000) < 0.04, 4000.0, 500.0)
    now = np.where(rng.random(2000) < 0.30, 4000.0, 500.0)
    took = by / 1000

    assert float(np.percentile(took, 95)) == 0.5
    assert expected_percentile(95, took, by, by) == pytest.approx(0.5)
    assert expected_percentile(95, took, by, now) == pytest.approx(4.0)
    assert expected_percentile(95, took, by, np.full(2000, 8_000.0)) == pytest.approx(8.0)
    assert expected_percentile(95, took, np.full(2000, 7.0), now) is None


@given(st.integers(0, 500), st.integers(1, 500), st.integers(0, 500), st.integers(1, 500))
def test_shares_are_defined_for_all_counts(k0, n0, k1, n1):
    """No counts divide by zero, and a share that fell never rose."""
    found = Share(min(k0, n0), n0, min(k1, n1), n1)

    assert np.isfinite(found.z)
    assert found.after > found.before or not found.rose(0.0)


values = st.lists(st.floats(0, 1e6) | st.just(float("nan")), min_size=0, max_size=60)


@given(values, values)
def test_any_values_give_a_shift_or_none(before, after):
    """Constant, empty and unknown values make no trouble."""
    b, a = np.array(before), np.array(after)
    found = shift(b, np.arange(float(len(b))), a, np.arange(float(len(a))))

    assert found is None or np.isfinite(found.z)


def test_a_level_that_wanders_hardly_ever_stands_out():
    """Lengths are alike for as long as a stretch: a few more stretches are no news."""
    found = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        levels = np.repeat(rng.normal(1000, 150, 10), 60)
        tokens = rng.lognormal(np.log(levels), 0.3)
        found.append(shift(tokens[:400], T, tokens[400:], T[:200]).stretch_z >= STANDS_OUT)

    assert np.mean(found) <= 0.01


def test_a_mean_of_several_stretches_is_surer_than_one_but_load_remembers():
    """Sixteen stretches say as much as four independent ones, and not as much as sixteen."""
    stretches = np.array([9.0, 11.0, 10.0, 9.5, 10.5, 10.0])
    one, several = (z_among_stretches(stretches, 12.0, 0.1, longer) for longer in (1.0, 16.0))
    spread = stretches.std(ddof=1)

    assert one < several
    assert several == pytest.approx(z_of_t(2.0 / (spread * np.sqrt(1 / 4 + 1 / 6)), 5))


@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_what_is_far_beyond_all_stretches_before_stands_out(times):
    """Twice as long as in any of them; shorter is no rise."""
    found = shift(lognormal(1), T, lognormal(2, times)[:100], T[:100])

    assert (found.stretch_z >= STANDS_OUT) == (times > 1)


def test_a_stretch_is_judged_by_the_order_of_time():
    """A stretch before was as high; at random times the same values make none."""
    before, after = lognormal(1), lognormal(2, 2.0)[:70]
    before[200:270] *= 2.0
    shuffled = np.random.default_rng(1).permutation(T)

    assert shift(before, T, after, T[:70]).stretch_z < STANDS_OUT
    assert shift(before, shuffled, after, T[:70]).stretch_z >= STANDS_OUT
