r"""Is a spike found where it is, dated, and not found where there is none?

p95 ____________/‾‾‾‾‾‾\__________
             start     end
"""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import concatenate
from llmtrace.triage.windows.bins import bins_for
from llmtrace.triage.windows.changepoint import date_change
from llmtrace.triage.windows.choose import Chosen, choose
from llmtrace.triage.windows.failure_stretch import stretch_of_failures
from llmtrace.triage.windows.highest_stretch import MIN_SCORE
from llmtrace.triage.windows.spike import find_failures, find_slow
from tests.bench.bench_search import BARS, PLACES, false_alarms, finds
from tests.triage.days import Kind, requests

HOURS = 2 * 3600.0


def series(seed=1, n=6000, factor=1.0, begin=0.6, end=0.8):
    """Make requests over two hours whose metric is higher for a while."""
    r = np.random.default_rng(seed)
    t = np.sort(r.uniform(0, HOURS, n))
    value = np.exp(r.normal(0, 0.5, n))
    return t, value * np.where((t >= begin * HOURS) & (t < end * HOURS), factor, 1.0)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_a_spike_is_found_with_its_start_and_its_end(seed, factor):
    """To within a bin or two."""
    t, value = series(seed, factor=factor)
    bins = bins_for(t)
    found = find_slow(t, value, bins)

    assert found.score > MIN_SCORE
    assert found.start == pytest.approx(0.6 * HOURS, abs=3 * bins.width)
    assert found.end == pytest.approx(0.8 * HOURS, abs=3 * bins.width)


def test_a_spike_that_lasts_has_no_end():
    """It goes on to the last request."""
    t, value = series(1, factor=2.0, end=1.0)

    assert find_slow(t, value, bins_for(t)).end is None


@pytest.mark.parametrize("seed", range(10))
def test_a_quiet_series_has_none(seed):
    """The best stretch of noise stays below what counts."""
    t, value = series(seed)
    found = find_slow(t, value, bins_for(t))

    assert found is None or found.score < MIN_SCORE


def test_of_two_spikes_the_one_asked_for_is_found():
    """`at` points at the smaller one."""
    t, value = series(1, factor=4.0)
    value = value * np.where((t > 0.2 * HOURS) & (t < 0.3 * HOURS), 2.0, 1.0)

    found = find_slow(t, value, bins_for(t), at=0.25 * HOURS)

    assert found.start == pytest.approx(0.2 * HOURS, abs=120)
    assert found.end == pytest.approx(0.3 * HOURS, abs=120)


def test_failures_are_found():
    """A tenth of requests fail for a while."""
    t, _ = series(1)
    r = np.random.default_rng(5)
    inside = (t > 0.5 * HOURS) & (t < 0.6 * HOURS)
    failed = r.random(len(t)) < np.where(inside, 0.2, 0.01)

    found = find_failures(t, failed, bins_for(t))

    assert found.score > MIN_SCORE
    assert found.start == pytest.approx(0.5 * HOURS, abs=120)


@pytest.mark.parametrize("n", [0, 1, 39])
def test_too_few_requests_have_no_bins(n):
    """Nothing is looked for in them."""
    assert bins_for(np.arange(float(n))) is None


def test_requests_of_one_moment_have_no_bins():
    """A series needs time."""
    assert bins_for(np.zeros(1000)) is None


def test_a_change_is_dated_to_the_request():
    """And how far off that may be is shown."""
    r = np.random.default_rng(1)
    t = np.sort(r.uniform(0, 1000, 4000))
    slow = r.random(4000) < np.where(t > 600, 0.4, 0.05)

    dated = date_change(t, slow, 500, 700)

    assert dated.best == pytest.approx(600, abs=10)
    assert dated.earliest <= 600 <= dated.latest


def test_where_nothing_rises_there_is_no_date():
    """Fewer slow requests are no onset."""
    t = np.arange(1000.0)
    slow = t < 500

    assert date_change(t, slow, 400, 600) is None
    assert date_change(t, slow, 2000, 3000) is None


@pytest.mark.parametrize("two_edges", [False, True])
@pytest.mark.parametrize("bins", range(8, 61, 4))
def test_a_tenfold_rise_is_found_in_few_requests(bins, two_edges):
    """Wherever it is, in 160 requests as in 1,200."""
    assert all(finds(bins, place, 1, two_edges=two_edges) for place in PLACES)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("memory", BARS)
def test_noise_that_wanders_is_no_spike(memory, own):
    """Not oftener than the bars, and what thirty draws leave open; the bench has the figures."""
    shares = [false_alarms(memory, n, 30, own=own) for n in (160, 400, 1200)]

    assert np.mean(shares) <= BARS[memory] + 0.03


def busy(seed: int, n: int = 6000, slots: int = 16, load: float = 0.75):
    """Make requests of a quiet engine with so many slots, for which they wait now and then."""
    r = np.random.default_rng(seed)
    t = np.cumsum(r.exponential(4.0 / (slots * load), n))
    service = 4.0 * np.exp(r.normal(-0.25, 0.7, n))
    free, begin = [0.0] * slots, np.empty(n)
    for i in range(n):
        begin[i] = max(float(t[i]), heapq.heappop(free))
        heapq.heappush(free, begin[i] + service[i])
    return t, begin - t + 0.1 * np.exp(r.normal(0, 0.3, n))


def test_of_the_bursts_of_a_queue_the_highest_is_seldom_a_spike():
    """Load that comes and goes makes them all the time, each higher than any other noise."""
    found = [find_slow(t, value, bins_for(t)).score for t, value in map(busy, range(20))]

    assert np.mean(np.array(found) >= MIN_SCORE) <= 0.3


def test_a_rise_beyond_the_bursts_of_a_queue_is_found():
    """For ten minutes of half an hour requests wait five seconds more."""
    for seed in range(3):
        t, value = busy(seed)
        value = value + 5.0 * ((t >= 1000) & (t < 1600))
        found = find_slow(t, value, bins_for(t))

        assert found.score > MIN_SCORE
        assert found.start == pytest.approx(1000, abs=30)


def test_two_spikes_alike_are_no_noise_to_each_other():
    """The earlier or the later of them is found."""
    t, value = series(3, n=800, factor=10.0, begin=0.2, end=0.3)
    value = value * np.where((t >= 0.7 * HOURS) & (t < 0.8 * HOURS), 10.0, 1.0)

    found = find_slow(t, value, bins_for(t))

    assert found.score > MIN_SCORE
    assert min(abs(found.start / HOURS - at) for at in (0.2, 0.7)) < 0.02


def test_a_silence_is_no_part_of_what_follows_it():
    """A stretch begins with its own requests, not with the last one before the silence."""
    r = np.random.default_rng(4)
    t = np.concatenate([np.sort(r.uniform(0, 40, 100)), np.sort(r.uniform(340, 380, 100))])
    value = np.exp(r.normal(0, 0.5, 200)) * np.where(t > 100, 5.0, 1.0)

    assert find_slow(t, value, bins_for(t)).start == pytest.approx(340, abs=2)


def failing(share: float, *, burst: int, n: int = 264, begin: float = 0.68):
    """Make requests of which a share fails from a time on, or so many in a row."""
    r = np.random.default_rng(4)
    t = np.sort(r.uniform(0, 300.0, n))
    first = int(begin * n)
    failed = (np.arange(n) >= first) & (r.random(n) < share)
    failed[first : first + burst] = True
    return t, failed, t[first]


def test_few_failures_where_there_were_none_are_a_stretch():
    """Twenty among eighty, as long as they come one by one."""
    t, failed, begin = failing(0.25, burst=0)
    found = find_failures(t, failed, bins_for(t))

    assert 15 <= failed.sum() <= 30
    assert found.score > MIN_SCORE
    assert found.start == pytest.approx(begin, abs=10.0)
    assert found.end is None


def test_failures_that_follow_one_another_are_one_event():
    """Four requests of one burst say no more than one."""
    t, failed, _ = failing(0.0, burst=4)

    assert find_failures(t, failed, bins_for(t)).score < MIN_SCORE
    assert stretch_of_failures(t, failed) is None


@pytest.mark.parametrize("share", [0.003, 0.02, 0.2])
def test_independent_failures_make_no_stretch(share):
    """In a hundred series of each share."""
    found = []
    for seed in range(100):
        r = np.random.default_rng([7, seed])
        t = np.sort(r.uniform(0, HOURS, 400))
        found.append(stretch_of_failures(t, r.random(400) < share))

    assert not [one for one in found if one is not None and one.score > MIN_SCORE]


def windows(head: int, slow: int, tail: int, after: Window | None = None) -> tuple[Chosen, list]:
    """Choose windows of requests that are slow between a head and a tail; return their times."""
    parts = [requests(head, Kind(), 1)]
    for number, kind in ((slow, Kind(prefill=6.0)), (tail, Kind())):
        start = parts[-1].start[-1] / 1e9 + 0.2
        parts.append(requests(number, kind, len(parts) + 1, start))
    rows = concatenate(parts)
    t, ttft = rows.start / 1e9, rows.numbers["ttft_s"]
    if after is not None:
        after = Window(t[0] + after.start, t[0] + after.end)
    found = choose(
        rows, lambda name: [(t, ttft)] if name == "ttft" and after is None else [],
        before=None, after=after, at=None, metric="ttft",
    )  # fmt: skip
    return found, t.tolist()


@pytest.mark.parametrize(("head", "found"), [(24, False), (200, True)])
def test_a_level_that_the_data_begin_with_is_the_normal_one(head, found):
    """Three requests in a hundred before it are a start; a fourth of them were another time."""
    assert (windows(head, 800 - head, 0)[0].spike is not None) is found


def test_the_end_of_a_level_that_the_data_begin_with_is_what_is_new():
    """Most were slow: what is compared is how they are since."""
    found, t = windows(24, 500, 276)

    assert found.after.start == pytest.approx(t[524], abs=10)
    assert (found.before.start, found.before.end) == (t[0], pytest.approx(t[516], abs=10))


def test_the_window_before_never_begins_before_the_data():
    """Nor is it an hour of which nothing is known, where the incident begins with them."""
    found, t = windows(24, 776, 0, after=Window(0.0, 240.0))

    assert t[0] - 1 <= found.before.start < found.before.end <= found.after.start
