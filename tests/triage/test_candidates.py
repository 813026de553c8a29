"""Is an incident of a few requests dated by what else changed, and a quiet time left alone?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmtrace.dataset.case import Case, Event, Facts, Signals, Window, no_signals, signals_from
from llmtrace.dataset.columns import Columns, concatenate
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import NAMED, NOTHING_FOUND, OF_TRAFFIC, SURE
from llmtrace.triage.windows.candidates import Candidate, candidates
from llmtrace.triage.windows.choose import windows_of
from llmtrace.triage.windows.highest_stretch import Spike, autocorrelation_time
from tests.triage.days import START, Kind, requests

QUICK = Settings(bootstrap=0)
RATE = 2.0
BEFORE_S = 30.0


def short(n: tuple[int, int], now: Kind, seed: int) -> tuple[Columns, float]:
    """Return a few requests in a row, of which the later are of another kind, and since when."""
    quiet = requests(n[0], Kind(rate=RATE), seed)
    since = quiet.start[-1] / 1e9 + 0.2
    return concatenate([quiet, requests(n[1], replace(now, rate=RATE), seed + 1000, since)]), since


def dated(
    rows: Columns, *, signals: Signals | None = None, events: tuple[Event, ...] = ()
) -> list[Candidate]:
    """Return the times worth weighing, none of them because of a metric."""
    span = Window(rows.start[0] / 1e9, rows.start[-1] / 1e9 + 1e-3)
    return candidates(
        rows, lambda _name: [], span=span, signals=signals or no_signals(), events=events, gaps=()
    )


def of_engine(name: str, values: np.ndarray, step_s: float = 3.0) -> Signals:
    """Return the samples of one signal of one engine, one each few seconds."""
    found, _ = signals_from(
        {"t": START + i * step_s, "instance": "vllm-0", "signal": name, "value": float(value)}
        for i, value in enumerate(values)
    )
    return found


def shown(found: list[Candidate], by: str) -> list[Candidate]:
    """Return those that something shows."""
    return [one for one in found if by in one.shown_by]


@pytest.mark.parametrize("seed", range(4))
def test_a_deploy_dates_what_forty_requests_do_not(seed):
    """The same rows are a regression where the time of a deploy is known."""
    rows, since = short((45, 45), Kind(network=14.0), seed)
    deployed = Facts(events=(Event(since, "deploy", "new address"),))
    found = triage(Case(rows, no_signals(), deployed), QUICK)

    assert found.causes[0].id == "network_path"
    assert found.causes[0].status in SURE
    assert found.onset is not None
    assert found.onset.best == pytest.approx(since, abs=5.0)


@pytest.mark.parametrize("seed", range(12))
def test_a_deploy_that_does_nothing_is_no_cause(seed):
    """Quiet requests stay quiet, whatever was done beside them."""
    rows, since = short((50, 50), Kind(), seed)
    deployed = Facts(events=(Event(since, "deploy", "new colours"),))
    found = triage(Case(rows, no_signals(), deployed), QUICK)

    assert found.verdict in NOTHING_FOUND
    assert not [one.id for one in found.causes if one.status in SURE]


@pytest.mark.parametrize("seed", range(4))
def test_a_gap_in_the_recording_dates_what_sixty_requests_do_not(seed):
    """Nothing was recorded for ten minutes, and since then the way is longer."""
    before = requests(60, Kind(rate=RATE), seed)
    pause = before.start[-1] / 1e9 + 600.0
    rows = concatenate([before, requests(60, Kind(rate=RATE, network=1.6), seed + 1000, pause)])
    read = [np.arange(START, _end([before])), np.arange(pause, _end([rows]))]
    signals, _ = signals_from(
        {"t": float(t), "instance": "vllm-0", "signal": "running", "value": 1.0}
        for t in np.concatenate(read)
    )
    found = triage(Case(rows, signals), QUICK)

    assert found.causes[0].id == "network_path"
    assert found.causes[0].status in NAMED
    assert found.after.window.start == pytest.approx(pause, abs=3.0)


@pytest.mark.parametrize("seed", [3, 8, 11])
def test_a_change_in_a_fixed_split_counts_though_its_cause_is_uncertain(seed):
    """Half of the requests no longer come: no stretch shows it, the halves of the time do."""
    first = requests(80, Kind(rate=RATE), seed)
    later = requests(40, Kind(rate=0.5 * RATE), seed + 1000, _end([first]))
    rows = concatenate([first, later])
    found = triage(Case(rows, no_signals()), QUICK)

    assert (found.causes[0].id, found.causes[0].status) == ("traffic_lost", "possible")


def test_a_deploy_ends_where_what_began_with_it_ended():
    """Failures begin soon after it, and end before the data do."""
    rows, since = short((60, 40), Kind(failed=0.9), 1)
    later = requests(60, Kind(rate=RATE), 7, rows.start[-1] / 1e9 + 0.2)
    first = dated(concatenate([rows, later]), events=(Event(since - 2, "config", ""),))[0]

    assert first.shown_by == "an event, config"
    assert first.sure
    assert first.spike.start == pytest.approx(since, abs=4)
    assert first.spike.end == pytest.approx(later.start[0] / 1e9, abs=4)


@pytest.mark.parametrize("up", [True, False])
def test_a_signal_that_steps_dates_an_incident(up):
    """A gauge is compared as it is sampled, from below and from above."""
    r = np.random.default_rng(1)
    rows, _ = short((60, 60), Kind(), 3)
    step = np.append(np.full(15, 20.0), np.full(15, 30.0 if up else 10.0)) + r.normal(0, 1, 30)
    found = shown(dated(rows, signals=of_engine("kv_usage", step, 2.0)), "kv_usage")

    assert found[0].spike.start == pytest.approx(START + 30, abs=4)
    assert found[0].spike.end is None


def test_a_counter_is_compared_by_its_rate():
    """It grows all the time; faster from half of it on, beyond a restart."""
    r = np.random.default_rng(2)
    rows, _ = short((60, 60), Kind(), 3)
    grown = np.cumsum(np.append(r.uniform(4, 6, 14), r.uniform(19, 21, 14)))
    grown[4:] -= grown[4]
    found = shown(dated(rows, signals=of_engine("preemptions", grown, 2.0)), "preemptions")

    assert found[0].spike.start == pytest.approx(START + 27, abs=4)


def test_a_signal_that_stays_dates_nothing():
    """A constant has no stretch, and noise none that stands out."""
    r = np.random.default_rng(5)
    rows, _ = short((50, 50), Kind(), 3)

    assert not shown(dated(rows, signals=of_engine("up", np.ones(17))), "signal")
    assert not shown(dated(rows, signals=of_engine("kv_usage", r.normal(0, 1, 17))), "signal")


def test_a_kind_of_request_that_comes_for_a_while_dates_an_incident():
    """Its stretch is sure enough to have paid for all that were looked at."""
    rows, since = short((60, 50), Kind(model="other"), 4)
    later = requests(60, Kind(rate=RATE), 7, rows.start[-1] / 1e9 + 0.2)
    found = shown(dated(concatenate([rows, later])), "model")

    assert found[0].spike.start == pytest.approx(since, abs=3)
    assert found[0].spike.end == pytest.approx(later.start[0] / 1e9, abs=3)
    assert found[0].sure


def test_tools_that_no_longer_overlap_date_what_no_metric_of_requests_shows():
    """Turns are a few of the rows, and take longer by less than responses differ."""
    rows, since = short((900, 500), Kind(), 5)
    turns = np.arange(len(rows)) % 12 == 0
    serial = turns & (rows.start / 1e9 >= since)
    once = np.random.default_rng(5).uniform(1.6, 2.4, len(rows))
    for name, value in {
        "tool_calls": 3.0, "tool_critical_path_s": once, "tool_serial_s": 3 * once,
        "tool_wall_s": np.where(serial, 3 * once, once),
    }.items():  # fmt: skip
        rows.numbers[name][:] = np.where(turns, value, np.nan)
    rows.numbers["e2e_s"][serial] += 2 * once[serial]

    result = triage(Case(rows, no_signals()), QUICK)

    assert shown(dated(rows), "overlapped")[0].sure
    first = next(iter(result.causes))
    assert (first.id, first.status) == ("serial_tools", "confirmed")
    assert result.after.window.start == pytest.approx(since, abs=15)
    assert any("overlapped" in warning for warning in result.quality.warnings)


def test_what_is_shown_twice_is_weighed_once():
    """Failures are in the outcome and in what follows from it."""
    rows, since = short((60, 60), Kind(failed=0.9), 4)
    found = dated(rows, events=(Event(since, "deploy", ""), Event(since + 0.5, "config", "")))

    assert len([one for one in found if abs(one.spike.start - since) < 3]) == 1


def test_nothing_is_weighed_where_too_few_requests_came_before():
    """Nor where a stretch ends with the data that it begins."""
    rows, since = short((12, 90), Kind(failed=0.9), 4)

    assert not [one for one in dated(rows) if one.spike.start <= since + 1]
    assert all((one.spike.end or since + 99) > one.spike.start for one in dated(rows))


@pytest.mark.parametrize(
    ("end", "sure", "share"),
    [
        (None, True, 1 / 4),
        (None, False, 1 / 4 / 20),  # of 100 requests each bin may be the first
        (40.0, False, 1 / 4 / 200),  # or each two may be its edges
    ],
)
def test_a_stretch_shares_the_chance_of_a_false_alarm_with_those_it_was_chosen_of(
    end, sure, share
):
    """The more there were to choose from, the less is left to each."""
    t = np.arange(100.0)
    spike = Spike(30.0, end, 5.0, 0.8)
    chosen = windows_of(t, Candidate("x", spike, sure=sure), (), 100.0, among=4)

    assert chosen.alarm_share == pytest.approx(share)
    assert (chosen.before, chosen.after) == (Window(0, 30), Window(30, end or 100))
    assert (chosen.searched, chosen.dated) == (True, sure)


def test_what_rounding_leaves_of_two_levels_is_no_memory():
    """Else a kind of which all requests are inside a stretch would stand out less than others."""
    assert autocorrelation_time(np.full(34, 1e-17)) == 1.0
    assert autocorrelation_time(np.full(34, 1e-3)) > 10


@pytest.mark.parametrize("seed", [100, 200])
def test_what_comes_and_goes_is_dated_by_no_stretch_and_found_in_all_that_came_later(seed):
    """Ten of thirty turns have longer responses, and none of them stands out by itself."""
    parts = [requests(900, Kind(), seed)]
    for turn in range(30):
        kind = Kind(outputs=2.0) if turn % 3 == 0 else Kind()
        parts.append(requests(30, kind, seed + turn + 1, parts[-1].start[-1] / 1e9 + 0.1))
    found = triage(Case(concatenate(parts), no_signals()), QUICK)

    assert found.verdict == "workload"
    assert (found.causes[0].id, found.causes[0].status) == ("longer_outputs", "confirmed")
    assert any("nothing dates a change" in one for one in found.quality.warnings)
    assert found.onset is not None
    assert found.onset.best == pytest.approx(parts[1].start[0] / 1e9, abs=20)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_blip_gives_way_to_what_lasts_though_that_stands_out_less(seed):
    """Twelve requests waited long once; later a third of them have longer responses."""
    parts = [requests(400, Kind(), seed)]
    parts.append(requests(12, Kind(queued_share=1.0, queued_s=30.0), 7, _end(parts)))
    parts.append(requests(500, Kind(), seed + 50, _end(parts)))
    since = _end(parts)
    for turn in range(30):
        kind = Kind(outputs=3.0) if turn % 3 == 0 else Kind()
        parts.append(requests(30, kind, 100 * seed + turn, _end(parts)))
    found = triage(Case(concatenate(parts), no_signals()), QUICK)

    assert found.causes[0].id == "longer_outputs"
    assert found.onset is not None
    assert found.onset.best == pytest.approx(since, abs=20)


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_what_comes_nearest_is_possible_where_nothing_is_beyond_chance(seed):
    """Sixty responses, longer by three fifths, are dated by nothing for sure."""
    rows, _ = short((60, 60), Kind(outputs=1.6), seed)
    found = triage(Case(rows, no_signals()), QUICK)

    first = found.causes[0]
    assert found.verdict in NOTHING_FOUND
    assert (first.id, first.status) == ("longer_outputs", "possible")
    assert any("more requests" in one for one in first.missing)
    assert not [one.id for one in found.causes if one.status == "ruled_out"]


def test_hardly_anything_comes_near_where_nothing_happened():
    """Many windows are compared, but what stands out by chance is weak evidence."""
    named = 0
    for seed in range(40):
        found = triage(Case(requests(150, Kind(rate=RATE), 7000 + seed), no_signals()), QUICK)
        named += any(one.status in NAMED for one in found.causes)

    assert named <= 3


def test_that_the_data_end_is_no_silence():
    """Signals go on for a while after the last request, as a scrape takes longer to come."""
    rows = requests(1200, Kind(rate=RATE), 3)
    last = rows.start[-1] / 1e9
    t = np.arange(START, last + 20, 5.0)
    signals, _ = signals_from(
        {"t": float(one), "instance": "vllm-0", "signal": "waiting", "value": 0.0} for one in t
    )
    found = triage(Case(rows, signals), QUICK)

    assert not [one for one in found.causes if one.status in NAMED and one.id in OF_TRAFFIC]


def _end(parts: list[Columns]) -> float:
    """Return when the next request may come."""
    return float(parts[-1].start[-1]) / 1e9 + 0.1
