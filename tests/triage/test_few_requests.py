"""Are incidents found that hit few requests, or few windows, and are quiet ones left alone?"""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.dataset.case import Case, Window, no_signals
from llmtrace.dataset.columns import concatenate, from_dicts
from llmtrace.triage.attribution.components import Values, values
from llmtrace.triage.comparison import extreme_waits
from llmtrace.triage.comparison.p95_change import CERTAIN, LEAST, compare, measured
from llmtrace.triage.comparison.within_groups import clearest_group
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import NOTHING_FOUND, SURE
from tests.triage.days import START, Kind, day, requests

QUICK = Settings(bootstrap=0)


def waits(t: list[float], value: list[float]) -> Values:
    """Make the times to first token of requests."""
    none = np.array([])
    return Values(
        metric="ttft", index=np.arange(len(t)), t=np.array(t), value=np.array(value),
        weight=np.ones(len(t)), censored=np.array([], np.intp), censored_t=none, at_least=none,
    )  # fmt: skip


def usual(n: int, seed: int, spread: float = 0.4) -> Values:
    """Draw times of which the longest are so heavy."""
    r = np.random.default_rng(seed)
    return waits(list(np.arange(float(n))), list(0.05 * np.exp(r.normal(0, spread, n))))


def far_beyond(before: Values, after: Values) -> float:
    """Return the chance of as many waits as far beyond the longest before."""
    return extreme_waits.far_beyond(before.value, after.value, after.t)


def with_long(one: Values, places: list[int], seconds: float) -> Values:
    """Make some of the requests wait so long."""
    value = one.value.copy()
    value[places] = seconds
    return waits(list(one.t), list(value))


@pytest.mark.parametrize("seed", range(5))
def test_one_in_ten_that_waits_many_times_longer_than_any_before_is_beyond_chance(seed):
    """Though neither p50 nor p80 moved, and sixty requests tell nothing of a p95."""
    long = with_long(usual(60, seed + 100), [4, 13, 27, 38, 49, 57], 2.0)

    assert far_beyond(usual(60, seed), long) < 1e-3


def test_a_burst_counts_once():
    """Requests that wait at the same time, or one after the other, wait for one thing."""
    long = with_long(usual(60, 101), [20, 21, 22, 23, 24, 26], 3.0)

    assert far_beyond(usual(60, 1), long) == 1.0


def test_one_outage_of_half_a_minute_counts_where_many_wait_for_its_end():
    """Twenty that come within it wait for its end; a hiccup that three wait for is none."""
    t = np.arange(100.0)
    held = np.where((t >= 40) & (t < 75) & (t % 2 == 0), 75.0 - t, 0.1)
    hiccup = np.where((t >= 40) & (t < 43), 44.0 - t, 0.1)

    assert far_beyond(usual(60, 1), waits(t, held)) < CERTAIN
    assert far_beyond(usual(60, 1), waits(t, hiccup)) == 1.0


@pytest.mark.parametrize("spread", [0.4, 1.0, 2.0])
def test_chance_is_taken_for_what_it_is_however_heavy_the_longest_are(spread):
    """Of quiet windows hardly any are called far beyond."""
    found = [far_beyond(usual(60, n, spread), usual(60, 1000 + n, spread)) for n in range(300)]

    assert np.mean(np.array(found) < 0.01) <= 0.01


def test_a_few_requests_before_tell_no_tail():
    """Nor do waits that were all alike."""
    long = with_long(usual(60, 2), [4, 13, 27, 38], 9.0)

    assert far_beyond(usual(20, 1), long) == 1.0
    assert far_beyond(waits([0.0, 1.0] * 30, [0.1] * 60), long) == 1.0


def test_some_that_wait_for_seconds_are_a_regression():
    """In windows of 70 requests, of which one in eight waits."""
    usually, now = Kind(rate=0.3), Kind(rate=0.3, queued_share=0.13, queued_s=8.0)
    moved = [triage(day(usually, now, n=(70, 70), seed=n), QUICK).verdict for n in range(12)]

    assert sum(verdict not in NOTHING_FOUND for verdict in moved) >= 9


def test_a_few_of_very_many_do_not_move_a_p95():
    """Three of 220 wait far longer than any before, and the p95 is higher by chance alone."""
    before, after = usual(220, 0), with_long(usual(220, 9), [50, 100, 150], 30.0)
    rows = [from_dicts([{"start": round(t * 1e9), "ttft_s": value, "e2e_s": 40.0}
                        for t, value in zip(side.t, side.value, strict=True)])
            for side in (before, after)]  # fmt: skip
    window = Window(0.0, 220.0)

    found = compare(measured((rows[0], rows[1]), (window, window), "ttft")).change

    assert found.grew[0] > LEAST
    assert far_beyond(before, after) < CERTAIN
    assert not found.significant


def wandering(seed: int, n: int = 60) -> Case:
    """Make two quiet windows of an engine whose pace wanders for seconds."""
    rows = requests(2 * n, Kind(), seed)
    r = np.random.default_rng(seed)
    level = np.zeros(2 * n)
    for i in range(1, 2 * n):
        level[i] = 0.9 * level[i - 1] + r.normal(0, 0.15)
    rows.numbers["tpot_s"] *= np.exp(level)
    middle = float(rows.start[n] / 1e9)
    last = float(rows.start[-1] / 1e9) + 1
    return Case(rows, no_signals(), before=Window(START, middle), after=Window(middle, last))


def test_a_level_that_wanders_is_no_change():
    """Windows of a few dozen requests differ by as much as their own fifths do."""
    found = [triage(wandering(seed), QUICK).verdict for seed in range(60)]

    assert sum(verdict not in NOTHING_FOUND for verdict in found) <= 7


def test_few_that_fail_are_a_regression_where_none_did():
    """Eleven of 110, beside none of 90: what is given has not been chosen among many."""
    before, after = requests(90, Kind(), 1), requests(110, Kind(), 2, START + 100)
    after.words["outcome"].codes[::10] = after.words["outcome"].names.index("error")
    rows = concatenate([before, after])
    case = Case(
        rows, no_signals(), before=Window(START, START + 100), after=Window(START + 100, 2e9)
    )

    result = triage(case, QUICK)

    assert result.outcomes.significant
    assert result.verdict == "regression"


def test_what_is_not_quite_beyond_chance_is_possible_and_no_more():
    """Of 90 requests whose responses are a third longer; and of as many that are as ever."""
    longer, quiet = (
        [triage(day(Kind(), kind, n=(90, 90), seed=seed), QUICK).causes for seed in range(8)]
        for kind in (Kind(outputs=1.35), Kind())
    )
    first = [next(iter(causes)) for causes in longer]

    assert sum((one.id, one.status) == ("longer_outputs", "possible") for one in first) >= 5
    assert not any(one.status in SURE for causes in (*longer, *quiet) for one in causes)
    assert sum(any(one.status == "possible" for one in causes) for causes in quiet) <= 1


def test_a_whole_that_is_seldom_waited_for_counts_when_streaming_stops_for_some():
    """A fifth of the requests of one route show nothing before their end any more."""
    before, after = requests(60, Kind(), 3), requests(75, Kind(), 4, START + 100)
    unary = np.arange(len(after)) % 5 == 0
    for rows, stream in ((before, np.ones(60)), (after, np.where(unary, 0.0, 1.0))):
        rows.numbers["stream"][:] = stream
    after.numbers["ttft_s"][unary] = np.nan
    rows = concatenate([before, after])
    windows = {"before": Window(START, START + 100), "after": Window(START + 100, 2e9)}

    result = triage(Case(rows, no_signals(), **windows), QUICK)

    assert len(values(after, "ttft")) < len(after)
    assert result.verdict not in NOTHING_FOUND


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_one_replica_that_is_slow_is_found_among_its_own_requests(seed):
    """A quarter of the requests, whose typical one takes much longer; the p95 is others'."""
    usually = Kind(queued_share=0.15)
    case = day(usually, Kind(queued_share=0.15, slow_replica=3.0), n=(400, 200), seed=seed)

    result = triage(case, QUICK)

    assert result.verdict == "regression"
    assert dict(result.cohorts[0].attributes) == {"replica": "vllm-0"}
    assert result.cohorts[0].n == pytest.approx(50, rel=0.3)
    assert result.reason.startswith("replica=vllm-0 alone")
    assert result.state == "ongoing"
    assert result.onset.earliest - 1 <= case.after.start <= result.onset.latest + 10


def test_a_kind_that_is_slow_is_found_though_all_together_are_faster():
    """Shorter responses end sooner, which hides that a replica is slow to begin."""
    result = triage(day(after=Kind(outputs=0.5, slow_replica=3.0), n=(800, 400)), QUICK)

    assert result.verdict == "regression"
    assert dict(result.cohorts[0].attributes) == {"replica": "vllm-0"}
    assert result.metric == "ttft"


def test_faster_tokens_are_no_good_news_beside_waits_that_are_four_times_as_long():
    """Crowds of requests wait, as shorter waits came before: that may be chance, and is said."""
    case = day(after=Kind(decode=0.6), n=(2000, 400))
    i = np.arange(len(case.rows))
    waits_s = np.where(i < 2000, 0.6 * (i % 500 < 40), 3.0 * (i % 50 < 12))
    for name in ("queue_s", "ttft_s", "e2e_s"):
        case.rows.numbers[name][:] += waits_s

    result = triage(case, QUICK)

    assert (result.verdict, result.metric) == ("not_enough_data", "ttft")
    assert result.moved == ("tpot",)


def test_a_metric_that_was_not_reported_before_hides_no_improvement():
    """Nothing can be said of how far it rose."""
    case = day(after=Kind(decode=0.6), n=(2000, 400))
    case.rows.numbers["ttft_s"][:2000] = np.nan

    result = triage(case, QUICK)

    assert (result.verdict, result.metric) == ("improvement", "tpot")


def test_of_quiet_windows_no_kind_of_request_stands_out():
    """However many kinds there are, one of them rises by chance as seldom as all."""
    cases = [day(n=(400, 300), seed=seed) for seed in range(40)]
    sides = [[case.rows.within(w.start, w.end) for w in (case.before, case.after)]
             for case in cases]  # fmt: skip
    found = [
        clearest_group((before, after), (case.before, case.after))
        for case, (before, after) in zip(cases, sides, strict=True)
    ]

    assert sum(one is not None for one in found) <= 1


def test_a_kind_that_nearly_all_are_of_and_one_of_a_few_are_no_groups():
    """Of the one it is all requests that moved, and of the other too little is known."""
    rare = day(after=Kind(prefill=3.0), n=(60, 60))
    alone = day(Kind(), Kind(model="m"), n=(300, 300))
    for case in (rare, alone):
        before, after = (case.rows.within(w.start, w.end) for w in (case.before, case.after))
        windows = (case.before, case.after)

        found = clearest_group((before, after), windows)

        assert found is None
