r"""Is what happens over time said as it was: when, how often, over or not, and for how many?

p95 ____/‾‾‾\______/‾‾‾‾‾‾    each stretch kept, the last of them ongoing
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmtrace.budget import Budget
from llmtrace.dataset.case import Case, Event, Facts, Window, no_signals, read_case, signals_from
from llmtrace.dataset.columns import Columns, concatenate
from llmtrace.triage.over_time import Incident, NearEvent, Onset
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.naming import verdict_words
from llmtrace.triage.report.sentences import event_text, when
from llmtrace.triage.result import NAMED
from llmtrace.triage.verdict import Judged, in_time
from llmtrace.triage.windows.changepoint import date_change
from llmtrace.triage.windows.choose import Chosen, quiet_time, same_hours_earlier
from llmtrace.triage.windows.highest_stretch import Spike
from llmtrace.triage.windows.moved import Moved
from llmtrace.triage.windows.onset import date_onset
from llmtrace.triage.windows.other_changes import with_bursts
from llmtrace.triage.windows.ramp import ramp_of
from tests.bench.bench_search import noise, searched
from tests.triage.days import START, Kind, requests

QUICK = Settings(bootstrap=0)
RATE = 3.0
DAY_S = 86_400.0


def course(*parts: tuple[float, Kind], seed: int = 1, start: float = START) -> Columns:
    """Draw requests of some kinds one after the other, each for so many seconds."""
    rows = []
    for number, (seconds, kind) in enumerate(parts):
        n = int(seconds * kind.rate * 2) + 50
        drawn = requests(n, kind, seed + 1000 * number, start)
        rows.append(drawn.within(start, start + seconds))
        start += seconds
    return concatenate(rows)


def of(rows: Columns, **more) -> Case:
    """Return a case of these rows, whose windows are not known."""
    return Case(rows, no_signals(), **more)


SLOW = Kind(prefill=6.0)
GIVEN_UP = Kind(cancelled=0.2)


def test_what_the_data_begin_with_is_no_incident_where_others_rise_when_it_ends():
    """Requests that are refused leave room to others, whose tokens come faster."""
    rows = course((600, Kind(decode=1.6)), (800, Kind(prefill=1.4, failed=0.2)), seed=3)

    result = triage(of(rows), QUICK)

    assert result.verdict == "regression"
    assert result.after.window.start - START == pytest.approx(600, abs=30)
    assert result.state == "ongoing"


# --- every stretch, and the state ----------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_every_stretch_is_kept_with_its_times(seed):
    """Two incidents an hour apart, each within a bin or two; the second lasts."""
    rows = course((1200, Kind()), (300, SLOW), (1800, Kind()), (400, SLOW), seed=seed)

    result = triage(of(rows), QUICK)
    found = [one for one in result.incidents if one.metric == "ttft" and one.direction == "up"]

    assert [one.start - START for one in found] == pytest.approx([1200, 3300], abs=40)
    assert found[0].end - START == pytest.approx(1500, abs=40)
    assert found[1].end is None
    assert all(one.level > 2 * one.usual and one.p_value <= 0.01 for one in found)


@pytest.mark.parametrize(
    ("parts", "state", "recovered"),
    [
        ([(1200, Kind()), (600, SLOW)], "ongoing", None),
        ([(1200, Kind()), (400, SLOW), (800, Kind())], "over", 1600),
        ([(400, SLOW), (1600, Kind())], "began_before_the_data", 400),
    ],
)
def test_it_is_said_whether_it_is_over(parts, state, recovered):
    """And since when, to within a minute."""
    result = triage(of(course(*parts)), QUICK)

    assert result.state == state
    if recovered is None:
        assert result.recovered_at is None
    else:
        assert result.recovered_at - START == pytest.approx(recovered, abs=60)


def test_windows_that_are_given_say_it_too():
    """The window ends with the incident, and the rows go on."""
    rows = course((1200, Kind()), (400, SLOW), (800, Kind()))
    given = replace(QUICK, before=Window(START, START + 1190),
                    after=Window(START + 1200, START + 1600))  # fmt: skip

    assert triage(of(rows), given).state == "over"


def some_slow(share: float, start: float, end: float, seed: int) -> Columns:
    """Return an hour of requests, of which a share take 3 s longer between two times."""
    r = np.random.default_rng(seed)
    t = np.sort(r.uniform(0, 3600, 3600))
    hit = (t >= start) & (t < end) & (r.random(len(t)) < share)
    return rows_of(1 + 3.0 * hit, t)


@pytest.mark.parametrize("share", [0.1, 0.2])
@pytest.mark.parametrize("given", [True, False])
def test_what_hits_few_requests_to_the_end_is_not_over(share, given):
    """The last of them may be quick by chance."""
    windows = {"before": Window(START, START + 1800), "after": Window(START + 1800, START + 3600)}
    settings = replace(QUICK, **windows) if given else QUICK
    results = [triage(of(some_slow(share, 1800, 3600, seed)), settings) for seed in range(6)]

    assert {one.recovered_at for one in results} == {None}
    assert [one.state for one in results].count("ongoing") >= 5


@pytest.mark.parametrize("share", [0.1, 0.2, 1.0])
def test_what_hits_few_requests_is_over_once_enough_followed(share):
    """By a quarter of an hour without any of it, dated to a few seconds of the last of them."""
    for seed in range(4):
        result = triage(of(some_slow(share, 1500, 2700, seed)), QUICK)

        assert result.state == "over"
        assert result.recovered_at - START == pytest.approx(2700, abs=45)
        assert result.onset.end == result.recovered_at
        assert result.onset.earliest - 1 <= START + 1500 <= result.onset.latest + 1


def test_a_few_quick_requests_at_the_end_are_counted_and_prove_nothing():
    """It may be over, and the screen says since when and by how many."""
    r = np.random.default_rng(1)
    t = np.sort(r.uniform(0, 3600, 3600))
    rows = rows_of(1 + 3.0 * ((t >= 1800) & (t < t[-12])), t)
    result = triage(of(rows, before=Window(START, START + 1800),
                       after=Window(START + 1800, START + 3600)), QUICK)  # fmt: skip

    assert (result.state, result.recovered_at, result.requests_since) == ("not_known", None, 12)
    assert any("UTC, for 12 requests: not known yet" in line for line in when(result))
    assert "over" not in verdict_words(result)[0]


@pytest.mark.parametrize("given", [True, False])
def test_what_is_quicker_since_and_stays_so_is_not_over(given):
    """An improvement has a state of its own."""
    rows = course((1800, Kind(prefill=3.0)), (1800, Kind()))
    windows = {"before": Window(START, START + 1800), "after": Window(START + 1800, START + 3600)}
    result = triage(of(rows), replace(QUICK, **windows) if given else QUICK)

    assert (result.verdict, result.state) == ("improvement", "ongoing")
    assert result.onset.earliest - 1 <= START + 1800 <= result.onset.latest + 1


def test_traffic_that_is_lost_and_stays_away_is_not_over():
    """A request now and then, each as quick as ever, is no recovery; the onset is of traffic."""
    rows = course((2400, Kind()), (1500, Kind(rate=0.08)))
    result = triage(of(rows), QUICK)

    assert (result.verdict, result.state) == ("traffic", "ongoing")
    assert (result.onset.metric, result.recovered_at) == ("traffic", None)
    assert result.onset.best - START == pytest.approx(2400, abs=15)


@pytest.mark.parametrize(("quiet_s", "state"), [(0, "ongoing"), (600, "over")])
def test_failures_have_an_onset_and_a_state_in_given_windows(quiet_s, state):
    """Though no metric moved."""
    rows = course((1800, Kind()), (900, Kind(failed=0.3)), (quiet_s, Kind()))
    result = triage(of(rows, before=Window(START, START + 1800),
                       after=Window(START + 1800, START + 2700)), QUICK)  # fmt: skip

    assert (result.onset.metric, result.state) == ("errors", state)
    assert result.onset.earliest - 1 <= START + 1800 <= result.onset.latest + 1


def test_a_quiet_day_has_no_state_and_no_stretch():
    """Nothing began, so nothing is over."""
    result = triage(of(course((3000, Kind()))), QUICK)

    assert (result.verdict, result.state, result.onset) == ("no_change", None, None)
    assert result.incidents == ()


def test_most_of_the_time_is_the_usual():
    """What was slow for an hour and is quick since is an improvement, not an incident."""
    result = triage(of(course((3000, SLOW), (900, Kind()))), QUICK)
    [ttft] = [one for one in result.incidents if one.metric == "ttft"]

    assert result.verdict == "improvement"
    assert (ttft.direction, ttft.end) == ("down", None)
    assert ttft.start - START == pytest.approx(3000, abs=60)


# --- onset ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(0.05, 0.3), (0.2, 0.5), (0.05, 0.9)])
def test_the_onset_is_in_its_interval_in_nineteen_of_twenty(before, after):
    """At least in nine of ten of these draws, and the interval is no whole window."""
    inside, width = [], []
    for seed in range(300):
        r = np.random.default_rng(seed)
        t = np.sort(r.uniform(0, 1000, 600))
        slow = r.random(600) < np.where(t >= 600, after, before)
        dated = date_change(t, slow, 300, 900)
        inside.append(dated is not None and dated.earliest <= 600 <= dated.latest)
        width.append(np.inf if dated is None else dated.latest - dated.earliest)

    assert np.mean(inside) >= 0.9
    assert np.median(width) < 200


@pytest.mark.parametrize("seed", range(4))
def test_the_onset_of_an_incident_is_an_interval(seed):
    """Which holds the true time."""
    onset = triage(of(course((1500, Kind()), (500, SLOW), seed=seed)), QUICK).onset

    assert onset.earliest - 2 <= START + 1500 <= onset.latest + 2
    assert onset.earliest <= onset.best <= onset.latest
    assert onset.latest - onset.earliest < 60


@pytest.mark.parametrize("seed", range(6))
def test_an_onset_is_dated_where_running_requests_feel_it(seed):
    """Steps take 2.5 times as long from a moment on, in responses of a minute that run, too."""
    rows = course((1500, Kind(decode=10)), (900, Kind(decode=10)), seed=seed)
    began = START + 1500
    decode = rows.numbers["decode_s"]
    first = rows.start / 1e9 + rows.numbers["ttft_s"]
    done = np.clip((began - first) / decode, 0.0, 1.0)  # of the response, by then
    longer = 1 + 1.5 * (1 - done)
    numbers = {
        **rows.numbers,
        "decode_s": decode * longer,
        "tpot_s": rows.numbers["tpot_s"] * longer,
        "e2e_s": rows.numbers["ttft_s"] + decode * longer,
    }
    onset = triage(of(replace(rows, numbers=numbers)), QUICK).onset

    assert onset.metric in ("tpot", "e2e")
    assert onset.earliest <= began <= onset.latest
    assert onset.latest - onset.earliest < 120


@pytest.mark.parametrize("seed", range(6))
def test_an_onset_is_where_a_gradual_rise_begins(seed):
    """A queue that builds up makes requests slow only when it is long."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 2400, 4000))
    wait = np.clip((t - 1500) * 0.05, 0, 8)
    windows = {"before": Window(START, START + 1500), "after": Window(START + 1500, START + 2400)}
    onset = triage(of(rows_of(1 + wait, t), **windows), QUICK).onset

    assert onset.earliest - 2 <= START + 1500 <= onset.latest + 2
    assert onset.latest - onset.earliest < 60


# --- ramps ---------------------------------------------------------------------------------------


def rows_of(value, t) -> Columns:
    """Return requests of these times whose prefill is as long as this."""
    drawn = requests(len(t), Kind(), 1)
    more = value - 1
    numbers = dict(drawn.numbers)
    for name in ("prefill_s", "ttft_s", "e2e_s"):
        numbers[name] = numbers[name] + more
    return replace(drawn, start=((START + t) * 1e9).astype(np.int64), numbers=numbers)


def test_a_level_that_rises_for_hours_drifts():
    """It has no edge, and is called neither a step nor a sudden regression."""
    t = np.sort(np.random.default_rng(3).uniform(0, 7200, 4000))
    result = triage(of(rows_of(1 + t / 7200, t)), QUICK)

    assert result.verdict == "drift"
    assert "ramp" in {one.shape for one in result.incidents if one.metric == "ttft"}


def test_failures_do_not_drift():
    """They began at once, while TTFT rose little by little, as it does in a morning."""
    ramp = Incident(metric="ttft", direction="up", shape="ramp", start=START, end=None,
                    began_before=False, usual=1.0, level=2.0, requests=9, p_value=0.0,
                    rise_s=3000.0)  # fmt: skip
    failing = Judged("regression", "6.4 % of requests fail.")
    verdicts = [
        in_time(failing, [ramp], {}, after=Window(START, START + 3600), span_s=3600.0,
                alike_days=None, rose=rose).verdict
        for rose in ("ttft", None)
    ]  # fmt: skip

    assert verdicts == ["drift", "regression"]


@pytest.mark.parametrize("rise", [0, 400, 1600])
def test_a_ramp_is_told_from_a_step(rise):
    """By a straight line that fits better than an edge; a step is none."""
    found = []
    for seed in range(20):
        r = np.random.default_rng(seed)
        t = np.sort(r.uniform(0, 3600, 1500))
        level = np.clip((t - 1500) / max(rise, 1e-9), 0, 1)
        found.append(ramp_of(t, np.exp(r.normal(0, 0.4, 1500) + 1.5 * level), 1500, 3600))
    ramps = [one for one in found if one is not None]

    assert len(ramps) <= 1 if rise == 0 else len(ramps) >= 18
    if rise:
        assert np.median([one.seconds for one in ramps]) == pytest.approx(rise, rel=0.4)


def test_a_rise_of_hours_began_where_it_began():
    """Its onset, its length and the quiet window before agree, and the last with the worst."""
    t = np.sort(np.random.default_rng(5).uniform(0, 14_400, 6000))
    result = triage(of(rows_of(1 + np.maximum(t - 4000, 0) / 4000, t)), QUICK)
    [ramp] = [one for one in result.incidents if one.metric == "ttft"]

    assert (result.verdict, result.state) == ("drift", "ongoing")
    assert result.onset.best == pytest.approx(ramp.start)
    assert result.onset.earliest <= START + 4000 <= result.onset.latest
    assert result.before.window.end <= result.onset.latest
    assert result.impact.now_s <= result.impact.worst_s


# --- traffic -------------------------------------------------------------------------------------


def test_requests_that_double_are_a_finding():
    """Though each is as quick as ever."""
    result = triage(of(course((1500, Kind()), (700, Kind(rate=2.2 * RATE)))), QUICK)
    [traffic] = [one for one in result.incidents if one.metric == "traffic"]

    assert result.verdict == "traffic"
    assert traffic.direction == "up"
    assert traffic.start - START == pytest.approx(1500, abs=40)
    assert traffic.level / traffic.usual == pytest.approx(2.2, rel=0.2)
    [cause] = [one for one in result.causes if one.status in NAMED]
    assert (cause.id, cause.or_else) == ("traffic_surge", ())  # the rates tell it from others


def test_requests_that_stop_are_a_finding():
    """The last row is long past, and the time that was read goes on."""
    rows = course((1500, Kind()))
    result = triage(of(rows, searched=Window(START, START + 2000)), QUICK)

    assert result.verdict == "traffic"
    assert result.state == "ongoing"
    assert "stopped" in result.reason
    assert [one.id for one in result.causes if one.status in NAMED] == ["traffic_lost"]
    assert "no request came at all" in [point.text for point in result.causes[0].evidence]


@pytest.mark.parametrize("seed", range(20))
def test_requests_that_come_as_ever_are_none(seed):
    """Chance makes gaps and crowds of its own."""
    found = triage(of(course((1500, Kind()), seed=seed)), QUICK).incidents

    assert [one for one in found if one.metric == "traffic"] == []


# --- earlier days --------------------------------------------------------------------------------


def a_morning(start: float, seed: int, factor: float = 2.5) -> Columns:
    """Draw a quiet hour, and a slower one of more requests, as every day has them."""
    return course((3600, Kind(rate=1.0)), (3600, Kind(rate=1.0, prefill=factor)),
                  seed=seed, start=start)  # fmt: skip


@pytest.mark.parametrize("days", [1, 7])
def test_what_happens_at_this_hour_every_day_is_no_regression(days):
    """It is compared with the same hours, and the result says so."""
    rows = concatenate([a_morning(START - days * DAY_S, 5), a_morning(START, 6)])
    result = triage(of(rows, searched=Window(START, START + 7200)), QUICK)

    assert result.verdict == "no_change"
    assert "same hours" in result.reason
    assert result.before.window.start == pytest.approx(START + 3600 - days * DAY_S, abs=120)
    assert all(one.usual_then for one in result.incidents)


def test_what_is_worse_than_at_this_hour_yesterday_is_a_regression():
    """A morning that is slow anyway is no excuse for one that is much slower."""
    rows = concatenate([a_morning(START - DAY_S, 5), a_morning(START, 6, factor=8.0)])
    result = triage(of(rows, searched=Window(START, START + 7200)), QUICK)

    assert result.verdict == "regression"
    assert result.before.window.start >= START


@pytest.mark.parametrize("given", [True, False])
def test_a_batch_that_ran_the_night_before_is_no_new_kind_of_work(given):
    """Its responses are short, so that some metrics are better than usual: so they were then."""
    nights = [
        course((36_000, Kind(rate=0.04)), (1800, Kind(rate=0.8, outputs=0.1, prompts=8.0)),
               (48_600, Kind(rate=0.04)), seed=seed, start=START + day * DAY_S)
        for day, seed in ((0, 5), (1, 50))
    ]  # fmt: skip
    since = START + DAY_S + 36_000
    after = Window(since, since + 1800) if given else None
    result = triage(of(concatenate(nights), after=after), QUICK)

    assert result.verdict == "no_change"
    assert "same hours a day ago" in result.reason
    assert not [one.id for one in result.causes if one.status in NAMED]
    assert result.before.n > 1000


def test_two_days_are_not_compared_with_a_day_that_is_one_of_them():
    """The hours of earlier days are over when those in question begin."""
    two_days = Window(START, START + 2 * DAY_S)

    assert [days for days, _ in same_hours_earlier(two_days)] == [7]
    assert [days for days, _ in same_hours_earlier(Window(START, START + DAY_S))] == [1, 7]


# --- p-values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_a_p_value_is_how_often_noise_stands_out_as_far(memory):
    """Or less often: of 200 draws of noise not more than that share and what chance adds."""
    from llmtrace.triage.windows.bins import bins_for
    from llmtrace.triage.windows.spike import find_slow

    found = []
    for seed in range(200):
        t, value = noise(np.random.default_rng(seed), 400, memory, own=False)
        spike = find_slow(t, value, bins_for(t))
        found.append(1.0 if spike is None else spike.p_value)
    for chance in (0.01, 0.05, 0.2):
        more = 2.5 * np.sqrt(chance * (1 - chance) / 200)
        allowed = {0.0: chance, 0.9: max(5 * chance, 0.05)}[memory]
        assert np.mean(np.array(found) < chance) <= allowed + more


def test_the_clearest_metric_is_the_one_of_the_least_chance():
    """A tenfold rise stands out further than a rise by half."""
    r = np.random.default_rng(1)
    t, value = noise(r, 800, 0.0, own=False)
    late = t > 2400

    assert searched(t, value * np.where(late, 10, 1)).p_value < (
        searched(t, value * np.where(late, 1.8, 1)).p_value
    )


def test_what_fails_first_is_when_it_began():
    """And not the slowness that follows on it, however clear that is."""
    rows = course((1500, Kind()), (30, Kind(failed=0.9)), (600, Kind(decode=1.5)))
    case = of(rows, before=Window(START, START + 1480), after=Window(START + 1495, START + 2130))
    onset = triage(case, QUICK).onset

    assert onset.metric == "errors"
    assert onset.best - START == pytest.approx(1500, abs=5)


def test_requests_that_are_given_up_outweigh_a_blip_that_is_over():
    """A fifth of them, ever since, beside some that were slow for a while; both are listed."""
    rows = course((1200, Kind()), (60, Kind(prefill=4.0)), (1000, Kind()), (900, GIVEN_UP))
    result = triage(of(rows), QUICK)

    assert (result.onset.metric, result.state) == ("cancelled", "ongoing")
    assert result.onset.best - START == pytest.approx(2260, abs=15)
    assert {one.metric for one in result.incidents} >= {"cancelled", "ttft"}
    assert result.impact.cancelled == pytest.approx(0.2 * 2700, rel=0.2)
    assert result.impact.cancelled <= result.impact.requests


# --- impact, events, growth ----------------------------------------------------------------------


def test_requests_that_did_not_come_are_counted():
    """By the rate before; where none came at all, too."""
    for rate in (0.6, 1e-6):
        rows = course((1500, Kind()), (600, Kind(rate=rate)))
        case = of(rows, searched=Window(START, START + 2100))
        impact = triage(case, QUICK).impact

        assert impact.lost == pytest.approx((3.0 - rate) * 600, rel=0.1)


def test_the_impact_is_counted_against_the_budget():
    """Requests beyond the limit, their tenants, and the share of what may fail."""
    rows = course((1500, Kind()), (500, SLOW))
    result = triage(of(rows, budget=Budget(ttft_s=0.5)), QUICK)
    impact = result.impact
    t, ttft = rows.start / 1e9, rows.numbers["ttft_s"]
    inside = t >= result.onset.best

    assert impact.from_budget
    assert impact.of == inside.sum()
    assert impact.requests == (inside & (ttft > 0.5)).sum()
    assert impact.tenants_hit == 6
    assert sum(impact.tenants.values()) == impact.requests
    assert impact.budget_used == pytest.approx(impact.requests / (0.05 * len(rows)))


def test_it_is_not_called_ongoing_while_the_last_requests_are_as_before():
    """One in 15 is slow, in bursts; that none of the last is says neither that it is over."""
    case = read_case(Path(__file__).parent / "recorded_fifth" / "machine-frozen")
    result = triage(case, QUICK)

    assert (result.state, result.requests_since) == ("not_known", 22)
    assert result.impact.now_s < result.before.p95
    assert any("not seen since 2026-11-23 20:44:41 UTC, for 22 requests" in one
               for one in when(result))  # fmt: skip


def test_now_is_compared_with_the_worst_of_it():
    """It was worst in the middle, and is half as bad by now."""
    rows = course((1500, Kind()), (300, Kind(prefill=12.0)), (300, Kind(prefill=5.0)))
    impact = triage(of(rows), QUICK).impact

    assert impact.worst_s > 1.5 * impact.now_s
    assert START + 1500 <= impact.worst_at < START + 1800


def test_events_near_the_onset_are_listed_with_their_distance():
    """Those reported, and those that signals and rows show; none of hours before."""
    rows = course((1500, Kind()), (500, SLOW))
    versions = rows.words["version"]
    codes = np.where(rows.start / 1e9 < START + 1490, 0, 1).astype(np.int32)
    rows = replace(rows, words={**rows.words, "version": replace(
        versions, codes=codes, names=("1.4", "1.5"))})  # fmt: skip
    samples = [
        {"t": START + s, "instance": "vllm-0", "signal": name, "value": value}
        for s in range(0, 2000, 10)
        for name, value in (("running", 3.0), ("started", START + 1400 if s > 1400 else 1.0))
    ]
    events = (Event(START - 9000, "deploy", "long ago"), Event(START + 1480, "config", "flags"))
    case = Case(rows, signals_from(samples)[0], Facts({}, events))

    found = {one.text: one.distance_s for one in triage(case, QUICK).events}

    assert found["flags"] == pytest.approx(-20, abs=15)
    assert found["vllm-0 restarted"] == pytest.approx(-100, abs=15)
    assert found["first request of version 1.5"] == pytest.approx(-10, abs=15)
    assert "long ago" not in found


def test_an_event_within_the_interval_of_the_onset_is_no_later_than_that():
    """By chance a request before the change was slow, so that a deploy seems to come late."""
    event = NearEvent(t=START + 5, kind="deploy", text="1.5", distance_s=4.0)
    dated = Onset(earliest=START - 9, best=START + 1, latest=START + 9, end=None, metric="ttft")

    assert "about when it began" in event_text(event, dated)
    assert "4 s after it began" in event_text(event, replace(dated, latest=START + 4))


def test_what_grew_in_the_mix_is_named():
    """Long prompts, whose share is a quarter more of all."""
    result = triage(of(course((2000, Kind()), (900, Kind(long_share=0.35)))), QUICK)

    assert any("prompt_tokens" in one.attributes for one in result.grew)
    assert all(one.share_after > one.share_before and one.seconds > 0 for one in result.grew)


def test_a_search_that_found_nothing_rules_nothing_out():
    """Its windows are any, and prove nothing of a cause."""
    result = triage(of(course((400, Kind(rate=0.3)))), QUICK)

    assert result.verdict in ("no_change", "not_enough_data")
    assert {one.status for one in result.causes} == {"unknown"}


def stretch(start: float, end: float | None, metric="ttft", p_value=1e-9) -> Incident:
    """Return a stretch in which a metric was ten times as high."""
    return Incident(
        metric=metric, direction="up", shape="step", start=start, end=end, began_before=False,
        usual=0.2, level=2.0, requests=600, p_value=p_value,
    )  # fmt: skip


def test_a_spike_within_a_longer_and_surer_stretch_is_a_part_of_it():
    """The worst minute of an hour in which first tokens are late is not when it began."""
    hour = stretch(1000.0, 4600.0)
    t = np.arange(0.0, 10_000.0, 10.0)

    whole = with_bursts((hour,), Spike(2000.0, 2060.0, 10.0, 1.5), t)
    alone = with_bursts((hour,), Spike(2000.0, 2060.0, 10.0, 5.0), t)

    assert (whole.start, whole.end) == (1000.0, 4600.0)
    assert alone.start == 2000.0


@pytest.mark.parametrize(("before", "start"), [
    (stretch(2000.0, 2010.0), 3000.0),  # ten seconds, and quiet for a quarter of an hour
    (stretch(2000.0, 2400.0), 2000.0),
    (stretch(2940.0, 2995.0), 2940.0),
    (stretch(2950.0, 3900.0, "e2e"), 2950.0),  # under way when it began
    (stretch(2950.0, 3900.0, "e2e", 9e-3), 3000.0),  # the same incident, dated worse
    (stretch(1000.0, 3020.0, "e2e"), 3000.0),  # over when it began
    (replace(stretch(2000.0, 2400.0), level=0.4), 3000.0),  # a small rise, as on any day
])  # fmt: skip
def test_a_blip_before_an_incident_is_no_burst_of_it(before, start):
    """Compared together they would be mostly quiet."""
    t = np.arange(0.0, 10_000.0, 10.0)
    there = (before, stretch(3000.0, None))

    found = with_bursts(there, Spike(3000.0, None, 10.0, 5.0), t)

    assert (found.start, found.end) == (start, None)


def test_the_time_before_is_not_of_the_incident():
    """A stretch of any metric that is under way when the window begins is the same incident."""
    t = np.arange(0.0, 6000.0, 1.0)
    e2e, tpot = stretch(3000.0, None, "e2e"), stretch(3100.0, 3190.0, "tpot")
    there = (stretch(1000.0, 1200.0), e2e, tpot)

    assert quiet_time(t, there, 3200.0, 200) == Window(1200.0, 3000.0)
    assert quiet_time(t, there[1:], 3200.0, 200).end == 3000.0
    assert quiet_time(t, (stretch(50.0, None),), 3200.0, 200).end == 3200.0  # nothing before that


@pytest.mark.parametrize("given", [False, True])
def test_traffic_that_is_lost_is_no_good_news(given):
    """The requests that are left are quicker, and those of before were as usual."""
    rows = course((600, Kind(decode=1.6)), (800, Kind(rate=RATE / 4)), seed=3)
    windows = {"before": Window(START, START + 600), "after": Window(START + 600, START + 1400)}

    result = triage(of(rows, **windows if given else {}), QUICK)

    assert (result.verdict, result.state) == ("traffic", "ongoing")
    assert result.after.window.start - START == pytest.approx(600, abs=30)
    assert result.onset.best - START == pytest.approx(600, abs=30)


def test_an_onset_is_dated_near_the_window_that_was_found():
    """A smaller rise long before it, which is surely there, is not when this began."""
    dice, t = np.random.default_rng(1), np.arange(0.0, 4000.0)
    shows = dice.random(4000) < np.select([t < 2000, t < 3600], [0.02, 0.1], 0.25)
    spike = Spike(3600.0, None, 10.0, 5.0)
    chosen = Chosen(Window(0.0, 3590.0), Window(3600.0, 4000.0), spike, searched=True)

    onset = date_onset(
        [Moved("ttft", up=True, t=t, known=t + 0.1, shows=shows, log_ratio=20.0)], chosen, (), None
    )

    assert onset is not None
    assert abs(onset.best - 3600) <= 60
