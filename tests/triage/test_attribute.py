"""Does a change of a p95 divide into parts that add up, and name the one that moved?"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrace.core.stages import PARTITION
from llmtrace.stats.significance import harrell_davis, quantile
from llmtrace.triage.attribution.attribute import NAMES, attribute, bootstrap, requests
from llmtrace.triage.attribution.result_parts import anatomy

Q = 0.95


def window(seed, n=300, factors=(1,) * 8, cells=4, weight=None):
    """Draw requests whose parts are lognormal, times factors."""
    r = np.random.default_rng(seed)
    parts = np.exp(r.normal(-3, 1, (n, len(PARTITION)))) * np.array(factors)
    parts[r.random(parts.shape) < 0.2] = 0.0  # many stages are often nothing
    start = np.sort(r.integers(0, 600 * 10**9, n)) + 10**18
    return requests(
        start,
        parts.sum(axis=1),
        parts,
        np.ones(n) if weight is None else weight(r, n),
        r.integers(0, cells, n),
    )


factors = st.tuples(*[st.floats(0.1, 10)] * len(PARTITION))
windows = st.builds(
    window, st.integers(0, 2**32), st.integers(3, 200), factors, st.integers(1, 5),
    st.sampled_from([None, lambda r, n: r.integers(1, 5, n).astype(float)]),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(windows, windows)
def test_the_parts_come_to_the_change(before, after):
    """Mix, stages and co-occurrence add up to the p95 after less the p95 before."""
    found = attribute(before, after, Q)

    low, high = (quantile(one.value, Q, one.weight) for one in (before, after))
    if found is not None:
        assert found.seconds.sum() == pytest.approx(high - low, abs=1e-9)
        assert (found.before, found.after) == (low, high)


@settings(max_examples=60, deadline=None)
@given(windows, windows)
def test_exchanging_the_windows_flips_every_sign(before, after):
    """What one window has more of, the other has less of."""
    there, back = attribute(before, after, Q), attribute(after, before, Q)

    assert (there is None) == (back is None)
    if there is not None and back is not None:
        np.testing.assert_allclose(there.seconds, -back.seconds, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(windows, windows, st.integers(0, 2**32))
def test_the_order_of_rows_means_nothing(before, after, seed):
    """Shuffled rows come to the same parts."""
    r = np.random.default_rng(seed)
    mixed = []
    for one in (before, after):
        order = r.permutation(len(one))
        mixed.append(
            requests(
                one.start[order],
                one.value[order],
                one.staged.parts[order],
                one.weight[order],
                one.cell[order],
            )
        )

    straight, shuffled = attribute(before, after, Q), attribute(mixed[0], mixed[1], Q)

    if straight is not None and shuffled is not None:
        np.testing.assert_allclose(straight.seconds, shuffled.seconds, atol=1e-9)


@given(windows)
def test_a_window_beside_itself_has_not_changed(one):
    """Every part is nothing."""
    found = attribute(one, one, Q)

    assert found is not None
    np.testing.assert_allclose(found.seconds, 0, atol=1e-9)


@pytest.mark.parametrize("stage", PARTITION)
def test_a_stage_that_alone_got_slower_is_named(stage):
    """Its part is by far the largest, and about the whole change."""
    slower = [5.0 if name == stage else 1.0 for name in PARTITION]
    found = attribute(window(1, 3000), window(2, 1500, slower), Q)

    assert found is not None
    assert NAMES[int(np.argmax(np.abs(found.seconds)))] == stage
    assert found.seconds[NAMES.index(stage)] == pytest.approx(found.delta, rel=0.25)


def test_a_mix_that_alone_changed_is_named():
    """The same work in other shares: what moved is the mix, and no stage."""
    r = np.random.default_rng(3)
    sides = []
    for share, n in ((0.05, 4000), (0.2, 2000)):
        cell = (r.random(n) < share).astype(np.int64)
        parts = np.zeros((n, len(PARTITION)))
        parts[:, 3] = np.exp(r.normal(-1, 0.2, n)) * np.where(cell == 1, 6.0, 1.0)
        start = np.arange(n) * 10**9
        sides.append(requests(start, parts.sum(axis=1), parts, np.ones(n), cell))

    found = attribute(sides[0], sides[1], Q)

    assert found is not None
    assert found.delta > 0.5
    assert found.seconds[0] == pytest.approx(found.delta, rel=0.1)


def test_stages_that_become_slow_together_are_told_apart_from_slower_stages():
    """The same times in each stage, but in the same requests: only co-occurrence is left."""
    r = np.random.default_rng(4)
    n = 4000
    one, two = (np.where(r.random(n) < 0.04, 2.0, 0.1) + r.random(n) * 0.01 for _ in range(2))
    apart, together = np.zeros((n, len(PARTITION))), np.zeros((n, len(PARTITION)))
    apart[:, 2], apart[:, 3] = one, two
    together[:, 2], together[:, 3] = np.sort(one), np.sort(two)
    start, cell = np.arange(n) * 10**9, np.zeros(n, np.int64)
    sides = [
        requests(start, parts.sum(axis=1), parts, np.ones(n), cell) for parts in (apart, together)
    ]

    found = attribute(sides[0], sides[1], 0.97)

    assert found is not None
    assert found.delta > 1.5
    assert found.seconds[-1] == pytest.approx(found.delta, rel=0.05)


def test_weights_count_as_so_many_requests():
    """A row of weight 3 is three rows of weight 1."""
    plain = window(5, 200, weight=lambda r, n: np.ones(n))
    heavy = window(6, 200, weight=lambda r, n: r.integers(1, 4, n).astype(float))
    times = heavy.weight.astype(int)
    repeated = requests(
        np.repeat(heavy.start, times),
        np.repeat(heavy.value, times),
        np.repeat(heavy.staged.parts, times, axis=0),
        np.ones(times.sum()),
        np.repeat(heavy.cell, times),
    )

    one, other = attribute(plain, heavy, Q), attribute(plain, repeated, Q)

    assert one is not None
    assert other is not None
    assert one.after == other.after
    np.testing.assert_allclose(one.seconds, other.seconds, atol=0.03)


def test_windows_with_no_work_in_common_cannot_be_divided():
    """There is nothing to compare."""
    one, other = window(7), window(8)
    nothing = requests(
        other.start, other.value, other.staged.parts, other.weight, other.cell + 100
    )

    assert attribute(one, nothing, Q) is None


def test_intervals_hold_what_was_found_and_nothing_more_than_it_must():
    """The interval of the stage that moved leaves 0 out; those of the others hold it."""
    slower = [3.0 if name == "queue" else 1.0 for name in PARTITION]
    before, after = window(9, 1500), window(10, 1500, slower)
    found = attribute(before, after, Q)
    assert found is not None

    spread = bootstrap(before, after, Q, found, times=60, seed=1, progress=lambda _: None)

    assert spread is not None
    queue = NAMES.index("queue")
    assert 0 < spread.low[queue] < found.seconds[queue] < spread.high[queue]
    others = [i for i, name in enumerate(NAMES) if name not in ("queue", "co_occurrence")]
    hold = [spread.low[i] <= 0 <= spread.high[i] for i in others]
    assert sum(hold) >= len(hold) - 1  # each leaves the truth out one time in twenty


def test_what_is_drawn_is_put_into_cells_anew():
    """By the cut that is given, which sees the rows of each draw; none in common is no draw."""
    before, after = window(11, 400), window(12, 300)
    found = attribute(before, after, Q)
    assert found is not None
    seen = []

    def cut(*rows):
        seen.append([len(one) for one in rows])
        return tuple(np.full(len(one), side) for side, one in enumerate(rows))

    spread = bootstrap(before, after, Q, found, times=4, seed=3, progress=lambda _: None, cut=cut)

    assert spread is None
    assert len({tuple(one) for one in seen}) == 4


def test_the_same_seed_gives_the_same_interval():
    """Nothing is left to chance that is not seeded."""
    before, after = window(11, 400), window(12, 300)
    found = attribute(before, after, Q)
    assert found is not None

    one, other = (
        bootstrap(before, after, Q, found, times=5, seed=3, progress=lambda _: None)
        for _ in range(2)
    )

    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.low, other.low)


@settings(deadline=None)
@given(windows)
def test_the_parts_of_a_request_at_the_p95_come_to_it(one):
    """Its anatomy adds up to the p95 as reported."""
    at = quantile(one.value, Q)
    found = anatomy(one.value, one.staged.parts, Q, at)

    assert sum(found.values()) == pytest.approx(at if found else 0.0)


@given(st.integers(1, 2000), st.floats(0.05, 0.99))
def test_the_weights_of_ordered_values_add_up(n, q):
    """They come to 1, and none is negative."""
    weights = harrell_davis(n, q)

    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()


def test_a_request_of_no_length_has_no_parts():
    """Nothing took nothing."""
    assert anatomy(np.zeros(3), np.zeros((3, len(PARTITION))), Q, 0.0) == {}
