"""Is what was not reported unknown, and is what was reported read as it was meant?"""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.dataset.case import Facts, no_signals, signals_from
from llmtrace.dataset.columns import from_dicts
from llmtrace.triage.causes import RULES, causes
from llmtrace.triage.evidence.changes import shift
from llmtrace.triage.evidence.evidence import gather
from llmtrace.triage.evidence.inside_engines import tpot_over_expected
from llmtrace.triage.evidence.signals import gauges, rates

from .incidents import AFTER, BEFORE, quiet, settle


def samples(signal, values, *, instance="a", every=5.0, labels=None, start=BEFORE.start):
    """Return samples of one signal."""
    return [
        {"t": start + i * every, "instance": instance, "signal": signal, "value": float(v),
         "labels": labels or {}}
        for i, v in enumerate(values)
    ]  # fmt: skip


def test_a_counter_that_falls_was_reset():
    """A restarted engine counts from 0: its rate is never negative."""
    signals, _ = signals_from(samples("preemptions", [0, 10, 20, 5, 15]))

    assert rates(signals, "preemptions", {})["a"].value.tolist() == [2, 2, 1, 2]


def test_series_of_one_instance_add_up():
    """Counters by reason are one counter; a label picks one of them."""
    signals, _ = signals_from(
        [*samples("finished", [0, 10, 20], labels={"reason": "stop"}),
         *samples("finished", [0, 5, 5], labels={"reason": "error"})]
    )  # fmt: skip

    assert rates(signals, "finished", {})["a"].value.tolist() == [3, 2]
    assert rates(signals, "finished", {"reason": "error"})["a"].value.tolist() == [1, 0]


def test_ranks_add_up_and_gpus_do_not():
    """Two ranks wait for five each; of two GPUs the hotter one counts."""
    signals, _ = signals_from(
        [*samples("waiting", [5], labels={"engine": "0"}),
         *samples("waiting", [5], labels={"engine": "1"}),
         *samples("gpu_temp_c", [60], labels={"gpu": "0"}),
         *samples("gpu_temp_c", [88], labels={"gpu": "1"})]
    )  # fmt: skip

    assert gauges(signals, "waiting")["a"].value.tolist() == [10]
    assert gauges(signals, "gpu_temp_c")["a"].value.tolist() == [88]


@pytest.mark.parametrize(
    ("theirs", "value", "ours", "expected"),
    [
        ("awake", 0.0, "sleep", 1.0),
        ("gpu_sm_clock", 1.98e9, "gpu_sm_clock_mhz", 1980.0),
        ("gpu_temperature", 70.0, "gpu_temp_c", 70.0),
        ("gpu_throttled", 1.0, "gpu_throttle", 1.0),
    ],
)
def test_the_collector_s_own_names_are_understood(theirs, value, ours, expected):
    """Signals straight from the collector need no translation."""
    signals, _ = signals_from(samples(theirs, [value]))

    assert gauges(signals, ours)["a"].value.tolist() == [pytest.approx(expected)]


def test_what_waits_deferred_may_come_by_reason():
    """VLLM tells it as a label of the waiting requests."""
    signals, _ = signals_from(
        [*samples("waiting_by_reason", [3], labels={"reason": "deferred"}),
         *samples("waiting_by_reason", [9], labels={"reason": "capacity"})]
    )  # fmt: skip

    assert gauges(signals, "waiting_deferred")["a"].value.tolist() == [3]


def test_cores_come_from_cpu_seconds():
    """A page counts CPU seconds; a restarted process begins at 0."""
    signals, _ = signals_from(samples("api_cpu_seconds", [10, 15, 2], every=5.0))

    assert gauges(signals, "api_cpu")["a"].value.tolist() == [1.0, 0.4]


def test_a_signal_nobody_reports_is_unknown_and_not_zero():
    """No samples, no statement; so with rows."""
    made = quiet()
    made.forget("waiting")
    made.forget_rows("queue_s")
    e = made.evidence()

    assert e.gauge("waiting") is None
    assert e.counted("waiting") is None
    assert e.row("queue_s") is None
    assert e.stage_rose("queue") is None
    assert e.up("queue_s") is None
    assert e.stage_rose("queue", "prefill") is False


def test_a_replica_that_alone_got_slower_is_found():
    """And one that is slow with all others is not singled out."""
    made = quiet()
    for row in made.after():
        if row["replica"] == "vllm-1":
            row["prefill_s"] += 1
    assert made.evidence().local("replica", "ttft_s").value == "vllm-1"
    for row in made.after():
        row["prefill_s"] += 1
    assert made.evidence().local("replica", "ttft_s") is None


@pytest.mark.parametrize(("exact_s", "rose"), [(0.0, False), (0.003, True)])
def test_one_step_of_a_rounded_duration_is_no_rise(exact_s, rose):
    """Of what is reported in steps of 0.1 s the median moves by a whole one, or not at all."""
    made = quiet()
    for place, row in enumerate(made.rows):
        often = 3 if row["start"] >= AFTER.start * 1e9 else 2  # of five are one step
        row["gateway_s"] = (
            0.1 * (place % 5 < often) + 0.2 * (place % 20 == 0) + exact_s * (place % 7)
        )

    found = made.evidence()

    assert found.row("gateway_s").after_p50 - found.row("gateway_s").before_p50 > 0.05
    assert found.up("gateway_s") == rose


def test_signals_of_the_fleet_hide_no_single_engine():
    """One of three engines preempts: a typical one does not, and it is seen all the same."""
    made = quiet()
    made.gauge("waiting", 20.0, 1.0, "vllm-2")
    moved = made.evidence().gauge("waiting")

    assert moved.rose(1.0)
    assert moved.most()[0] == "vllm-2"


def rows():
    """Return the rows of a quiet day."""
    made = quiet()
    for row in made.rows:
        settle(row)
    return made.rows


def named(rows_, signals=None, facts=None):
    """Return the causes that are named with confidence."""
    e = gather(from_dicts(rows_), signals or no_signals(), facts or Facts(), BEFORE, AFTER)
    found = causes(e)
    assert len(found) == len(RULES)
    return [one.id for one in found if one.status in ("confirmed", "likely")]


def names_nothing(rows_, signals=None, facts=None):
    """Return whether no cause is named with confidence."""
    return not named(rows_, signals, facts)


def test_no_rows_name_nothing():
    """Nothing, one row, one window alone; but requests that stop are seen to stop."""
    every = rows()

    assert names_nothing([])
    assert names_nothing(every[:1])
    assert named([row for row in every if row["start"] < AFTER.start * 1e9]) == ["traffic_lost"]
    assert names_nothing([row for row in every if row["start"] >= AFTER.start * 1e9])


@pytest.mark.parametrize("seed", range(5))
def test_rows_full_of_holes_name_nothing(seed):
    """A third of everything is unknown or NaN."""
    rng = np.random.default_rng(seed)
    holes = [
        {k: (None if k != "start" and rng.random() < 0.3 else
             float("nan") if isinstance(v, float) and rng.random() < 0.2 else v)
         for k, v in row.items()}
        for row in rows()
    ]  # fmt: skip

    assert names_nothing(holes)


def test_constant_rows_name_nothing():
    """Every duration is a second."""
    assert names_nothing([{k: 1.0 if isinstance(v, float) else v for k, v in r.items()}
                          for r in rows()])  # fmt: skip


def test_wild_signals_and_facts_break_nothing():
    """Numbers beyond belief, and facts of the wrong kind."""
    wild = [
        sample
        for name in ("running", "waiting", "kv_usage", "gpu_throttle", "gpu_xid", "preemptions",
                     "prefix_hits", "prefix_queries", "sleep", "started", "tokens_out")
        for sample in samples(name, [1e308, -1e308, 0.0], start=AFTER.start)
    ]  # fmt: skip
    facts = Facts({"a": {"started": True, "max_num_seqs": "many", "engine": 3, "version": [1]}})

    names_nothing(rows(), signals_from(wild)[0], facts)


def test_the_order_of_rows_does_not_matter():
    """Shuffled rows give the same findings, to the letter."""
    made = quiet()
    for row in made.after():
        row["queue_s"] += 1.0
    first = made.findings()
    np.random.default_rng(0).shuffle(made.rows)

    assert made.findings() == first


def test_a_million_rows_are_thinned_alike():
    """Percentiles are of a sample of the rows; which one is the same each time."""
    few = from_dicts(rows())
    many = few.take(np.tile(np.arange(few.n), 200))
    e = gather(many, no_signals(), Facts(), BEFORE, AFTER)
    some = e.after.sampled(e.after.number("ttft_s"))

    assert len(some) == 40_000
    assert np.array_equal(some, e.after.sampled(e.after.number("ttft_s")))
    assert e.row("ttft_s").before_p95 == pytest.approx(np.percentile(some, 95), rel=0.05)


def test_two_noisy_blocks_prove_no_rise():
    """What few requests say of their own spread is worth little."""
    r = np.random.default_rng(3)
    rose = 0
    for _ in range(2000):
        before, after = r.exponential(1.0, 28), r.exponential(1.0, 28)
        found = shift(before, np.arange(28.0), after, np.arange(28.0))
        rose += found.z >= 3.5 or found.mean_z >= 3.5

    assert rose <= 10


def test_a_batch_that_is_nearly_always_full_has_no_curve():
    """Few samples below do not make a line; nothing is fitted, and nothing is warned of."""
    rows_ = from_dicts(
        {
            "start": int((window.start + i) * 1e9),
            "ttft_s": 0.1,
            "tpot_s": 0.02 + 0.001 * (i % 5),
            "decode_s": 0.2,
            "outcome": "success",
        }
        for window in (BEFORE, AFTER)
        for i in range(96)
    )
    running = [1.0 if i in (20, 21, 22) else 6.0 for i in range(200)]
    both = [
        *samples("running", running, every=1.0),
        *samples("running", running, every=1.0, start=AFTER.start),
    ]
    found = gather(rows_, signals_from(both)[0], Facts({}, ()), BEFORE, AFTER)

    assert tpot_over_expected(found) is None


def gathered(times_before, times_after):
    """Return the evidence of requests that begin at these seconds of both windows."""
    starts = [BEFORE.start + t for t in times_before] + [AFTER.start + t for t in times_after]
    rows_ = from_dicts({"start": int(t * 1e9), "ttft_s": 0.1} for t in starts)
    return gather(rows_, no_signals(), Facts(), BEFORE, AFTER)


def test_a_burst_like_those_before_is_no_surge():
    """Three hundred requests in one tenth of each window, and twice as many: bursts differ."""
    tenth = BEFORE.seconds / 10
    once, twice = np.linspace(0, tenth, 300), np.linspace(0, tenth, 600)
    found = gathered(once, twice * AFTER.seconds / BEFORE.seconds)

    assert found.is_burst
    assert not found.more_requests


def test_twice_as_many_that_come_evenly_are_more_requests():
    """No stretch before had as many."""
    even = np.linspace(0, BEFORE.seconds - 1, 300)
    found = gathered(
        even, np.linspace(0, AFTER.seconds - 1, round(600 * AFTER.seconds / BEFORE.seconds))
    )

    assert not found.is_burst
    assert found.more_requests
