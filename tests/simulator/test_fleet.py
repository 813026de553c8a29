"""Does a simulated fleet behave as engines, gateways and clients do, fault by fault?"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from llmtrace.cli import main
from llmtrace.core.errors import ConfigError
from llmtrace.core.row import TURN
from llmtrace.core.stages import STAGES
from llmtrace.dataset.case import Case, read_case
from llmtrace.dataset.columns import Columns
from llmtrace.simulator import EngineConfig, Request
from llmtrace.simulator import simulate as one_engine
from llmtrace.simulator.fleet import command
from llmtrace.simulator.fleet.deployment import Deployment, Region, Route, draw
from llmtrace.simulator.fleet.event_loop import WORK
from llmtrace.simulator.fleet.faults import FAULTS
from llmtrace.simulator.fleet.plan import Day
from llmtrace.simulator.fleet.run_fleet import run_requests
from llmtrace.simulator.fleet.scenario import Scenario, Simulated, simulate
from llmtrace.simulator.fleet.step_cost import StepCost
from llmtrace.simulator.fleet.traffic_shifts import SHIFTS
from llmtrace.triage.result import CAUSES, NOT_SIMULATED

# Long enough to see what a fault does, short enough for CI.
SHORT = {"before_s": 300.0, "after_s": 300.0}


@functools.cache
def played(cause: str | None, severity: float = 3.0, seed: int = 5) -> Simulated:
    """Simulate one short day; tests of one fault share it."""
    faults = () if cause is None else ((cause, severity),)
    return simulate(Scenario(seed=seed, faults=faults, **SHORT))


def sides(case: Case) -> tuple[Columns, Columns]:
    """Return the rows of the two windows."""
    return tuple(case.rows.within(w.start, w.end) for w in (case.before, case.after))


def mean(rows: Columns, name: str) -> float:
    """Return the mean of what is known."""
    return float(np.nanmean(rows.numbers[name]))


def signal(case: Case, name: str, instance: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return one signal's values before and after the onset."""
    which = case.signals.signal.where(name)
    if instance is not None:
        which &= case.signals.instance.where(instance)
    found = case.signals.take(which)
    late = found.t >= case.after.start
    return found.value[~late], found.value[late]


def grown(case: Case, name: str) -> tuple[float, float]:
    """Return by how much a counter grew in each window, over all instances."""
    total = [0.0, 0.0]
    for instance in case.signals.instance.names:
        for k, values in enumerate(signal(case, name, instance)):
            total[k] += float(np.maximum(np.diff(values), 0).sum())
    return total[0], total[1]


def test_every_cause_of_the_contract_can_be_injected():
    """None is missing, none is made up."""
    assert set(FAULTS) == set(CAUSES) - NOT_SIMULATED


@pytest.mark.parametrize("cause", [None, *FAULTS])
def test_stages_add_up_to_the_nanosecond(cause):
    """For every row of every fault, whatever its outcome."""
    rows = played(cause).case.rows
    stages = [rows.numbers[f"{stage}_s"] for stage in STAGES]
    ns = sum(np.rint(np.nan_to_num(s) * 1e9).astype(np.int64) for s in stages)
    ns = ns + np.rint(rows.numbers["unattributed_s"] * 1e9).astype(np.int64)

    assert np.array_equal(ns, np.rint(rows.numbers["e2e_s"] * 1e9).astype(np.int64))
    assert min(np.nanmin(s) for s in stages) >= 0
    for stage in STAGES:  # what is known has a source, and nothing else has
        known = ~np.isnan(rows.numbers[f"{stage}_s"])
        assert np.array_equal(known, rows.words[f"{stage}_source"].codes >= 0)


@pytest.mark.parametrize("cause", FAULTS)
def test_a_severe_fault_moves_what_it_is_known_to_move(cause):
    """One that does not is no incident, and the truth would say so."""
    if cause == "serial_tools":
        pytest.skip("tools are longer than this day is; the bench has it")
    assert played(cause).truth.shown


def test_a_quiet_day_is_quiet():
    """Without a fault no metric moves."""
    assert sum(bool(played(None, seed=seed).truth.shown) for seed in range(6)) <= 1


# What must be seen of a fault's mechanism, and by whom.
SEEN = {
    "queue_saturation": lambda c, b, a: mean(a, "queue_s") > 10 * mean(b, "queue_s"),
    "kv_exhaustion": lambda c, b, a: grown(c, "preemptions")[1] > grown(c, "preemptions")[0],
    "prefix_cache_collapse": lambda c, b, a: mean(a, "cached_tokens") < mean(b, "cached_tokens"),
    "gpu_throttle": lambda c, b, a: signal(c, "gpu_sm_clock_mhz")[1].min() < 1000,
    "low_spec_acceptance": lambda c, b, a: (
        grown(c, "spec_accepted")[1] / grown(c, "spec_drafted")[1]
        < 0.5 * grown(c, "spec_accepted")[0] / grown(c, "spec_drafted")[0]
    ),
    "proxy_buffering": lambda c, b, a: (
        mean(a, "burst_chunks") / mean(a, "chunks") > 0.8
        and mean(b, "burst_chunks") / mean(b, "chunks") < 0.2
    ),
    "rate_limit_retries": lambda c, b, a: (
        grown(c, "gateway_429")[1] > 0 == grown(c, "gateway_429")[0] and mean(a, "retry_s") > 0.05
    ),
    "client_gate": lambda c, b, a: mean(a, "network_client_wait_s") > 0.05,
    "slow_renderer": lambda c, b, a: mean(a, "render_s") > 5 * mean(b, "render_s"),
    "network_path": lambda c, b, a: mean(a, "network_s") > mean(b, "network_s") + 0.1,
    "gateway_overhead": lambda c, b, a: signal(c, "waiting")[1].mean() < 5,
    "kv_transfer": lambda c, b, a: signal(c, "waiting_deferred")[1].max() > 0,
    "lora_slots": lambda c, b, a: signal(c, "waiting_deferred")[1].max() > 0,
    "frontend_cpu": lambda c, b, a: (
        signal(c, "api_cpu")[1].mean() > 3 * signal(c, "api_cpu")[0].mean()
    ),
    "engine_down": lambda c, b, a: (
        a.words["outcome"].where("truncated").sum() > 0 and grown(c, "gateway_5xx")[1] > 0
    ),
    "engine_paused": lambda c, b, a: np.nanmax(a.numbers["max_gap_s"]) > 5,
    "idle_timeout": lambda c, b, a: a.words["outcome"].where("truncated").mean() > 0.02,
    "midstream_errors": lambda c, b, a: (
        a.words["outcome"].where("error").mean() > 0.05 and np.nanmax(a.numbers["attempts"]) == 2
    ),
    "client_give_ups": lambda c, b, a: a.words["outcome"].where("cancelled").mean() > 0.02,
    "cold_start": lambda c, b, a: np.ptp(signal(c, "started")[1]) > 0,
    "longer_outputs": lambda c, b, a: mean(a, "output_tokens") > 1.2 * mean(b, "output_tokens"),
    "long_prompts": lambda c, b, a: mean(a, "prompt_tokens") > 1.2 * mean(b, "prompt_tokens"),
    "batch_size": lambda c, b, a: (
        signal(c, "running")[1].mean() > 1.5 * signal(c, "running")[0].mean()
    ),
    "head_of_line": lambda c, b, a: np.nanmax(a.numbers["prompt_tokens"]) > 8000,
    "replica_imbalance": lambda c, b, a: (
        np.bincount(a.words["replica"].codes[a.words["replica"].codes >= 0]).max() > 0.6 * len(a)
    ),
    "serial_tools": lambda c, b, a: (
        np.nanmean(a.numbers["tool_serial_loss_s"])
        > 0.5
        > np.nanmax(b.numbers["tool_serial_loss_s"])
    ),
}


@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_shows_where_its_mechanism_is(cause):
    """Rows and signals follow from the model, and tell of it."""
    case = played(cause).case

    assert SEEN[cause](case, *sides(case))


def test_the_same_scenario_is_the_same_day():
    """To the bit, and another seed is another day."""
    first, second = (simulate(Scenario(seed=9, before_s=120, after_s=60)) for _ in range(2))
    other = simulate(Scenario(seed=10, before_s=120, after_s=60))

    for name, column in first.case.rows.numbers.items():
        assert np.array_equal(column, second.case.rows.numbers[name], equal_nan=True)
    assert np.array_equal(first.case.signals.value, second.case.signals.value)
    assert other.case.rows.n != first.case.rows.n


def test_what_a_client_could_not_know_is_unknown():
    """Engines report requests that ended well; a hosted API reports none."""
    rows = played("client_give_ups").case.rows
    gone = rows.words["outcome"].where("cancelled")
    hosted = simulate(Scenario(seed=5, engine_source="none", **SHORT)).case.rows

    assert gone.any()
    assert np.isnan(rows.numbers["queue_s"][gone]).all()
    assert np.isnan(rows.numbers["prompt_tokens"][gone]).all()
    assert np.isnan(hosted.numbers["prefill_s"]).all()
    assert (hosted.numbers["unattributed_s"] > 0).all()


def test_signals_are_what_a_scraper_reads():
    """Every 15 s; counters only fall where a process started anew; nothing of the truth."""
    case = played("engine_down").case
    times = np.unique(case.signals.t)
    started = signal(case, "started")[1]

    assert np.allclose(np.diff(times), 15)
    assert len(np.unique(started)) > 1
    for name in ("tokens_out", "prefix_queries"):
        falls = 0
        for instance in case.facts.instances:
            before, after = signal(case, name, instance)
            falls += int((np.diff(np.concatenate([before, after])) < 0).sum())
        assert falls == len(np.unique(started)) - 1
    waiting, deferred = signal(case, "waiting"), signal(case, "waiting_deferred")
    assert all((w >= d).all() for w, d in zip(waiting, deferred, strict=True))


def test_signals_that_were_not_scraped_are_missing():
    """Some, or all of them."""
    some = simulate(Scenario(seed=5, drop=("kv_usage",), **SHORT)).case
    none = simulate(Scenario(seed=5, drop=("*",), **SHORT)).case

    assert "kv_usage" not in some.signals.signal.names
    assert "running" in some.signals.signal.names
    assert len(none.signals) == 0


def test_turns_hold_their_requests_and_tools():
    """A turn is a row: the sums of its requests, its tools in `render`."""
    rows = played("serial_tools").case.rows
    turns = rows.take(rows.words["operation"].where(TURN))
    wall, serial = turns.numbers["tool_wall_s"], turns.numbers["tool_serial_s"]

    assert turns.n > 20
    assert (turns.numbers["render_s"] >= wall - 1e-9).all()
    assert (wall <= serial + 1e-6).all()
    assert (rows.numbers["nested"] == 1).any()
    assert np.isnan(turns.numbers["ttft_s"]).all()


def test_the_fleet_agrees_with_the_single_engine():
    """Two models written apart: one engine, the same requests, the same times within 2 %."""
    cost = StepCost(
        base_s=0.0075, prefill_token_s=90e-6, attention_s=3e-9, sequence_s=250e-6,
        context_s=0.1e-6, jitter=0.0, front_request_s=0.0, front_prompt_s=0.0, front_token_s=0.0,
    )  # fmt: skip
    rng = np.random.default_rng(4)
    start = np.sort(rng.random(120)) * 20
    prompt, output = rng.integers(50, 3000, 120), rng.integers(5, 150, 120)
    oracle = {
        figures.request.request_id: figures
        for figures in one_engine(
            EngineConfig(jitter=0.0, max_num_seqs=8),
            [
                Request(str(i), int(prompt[i]), int(output[i]), arrived_s=float(start[i]))
                for i in range(120)
            ],
        )
    }
    deployment = Deployment(
        model="one", cost=cost, replicas=1, rate=1.0, max_seqs=8, max_tokens=2048,
        max_model_len=16_384, blocks=4096, routes=(Route("r", 1, 100, 0, 100, 0),),
        regions=(Region("here", 1, 0.0),), apps=draw(rng).apps, tenants=(1.0,), gateway_s=0.0,
    )  # fmt: skip
    work = np.zeros(120, WORK).view(np.recarray)
    work.start, work.prompt, work.output = start, prompt, output
    for name in ("group", "adapter", "follow", "break_at"):
        work[name] = -1
    work.patience = work.timeout = 1e9
    fate, _ = run_requests(Day(rng, deployment, 10.0, 10.0), work, 1)

    queue = np.array([oracle[str(i)].queue_s for i in range(120)])
    prefill = np.array([oracle[str(i)].prefill_s for i in range(120)])
    decode = np.array([oracle[str(i)].decode_s for i in range(120)])
    assert queue.max() > 0.1
    assert fate.queue_s.sum() == pytest.approx(queue.sum(), rel=0.02)
    assert fate.prefill_s.sum() == pytest.approx(prefill.sum(), rel=0.02)
    assert (fate.last_token - fate.first_token).sum() == pytest.approx(decode.sum(), rel=0.02)


@pytest.mark.parametrize("shift", SHIFTS)
def test_people_may_ask_differently(shift):
    """Something moves, and nothing is broken: no queue, no preemptions, no request rejected."""
    played_day = simulate(Scenario(seed=5, shift=shift, **SHORT))
    before, after = sides(played_day.case)

    assert played_day.truth.shown
    assert played_day.truth.causes == ()
    assert mean(after, "queue_s") < mean(before, "queue_s") + 0.2
    assert after.words["outcome"].where("success").mean() > 0.99


def test_two_faults_at_once():
    """Each leaves its own mark."""
    faults = (("gateway_overhead", 2.0), ("gpu_throttle", 2.0))
    case = simulate(Scenario(seed=5, faults=faults, **SHORT)).case

    for cause, _ in faults:
        assert SEEN[cause](case, *sides(case))
    before, after = sides(case)
    assert mean(after, "gateway_s") > mean(before, "gateway_s") + 0.2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"faults": (("no_such", 2.0),)}, "no fault 'no_such'"),
        ({"faults": (("gpu_throttle", 9.0),)}, "severity"),
        ({"shift": "moon"}, "no shift 'moon'"),
        ({"seed": -1}, "seed"),
        ({"before_s": 0.0}, "windows"),
    ],
)
def test_a_day_that_cannot_be_is_refused(given, said):
    """With what is wrong, before anything runs."""
    with pytest.raises(ConfigError, match=said):
        Scenario(**{"seed": 1, **given})


def test_the_command_writes_a_case_and_the_truth(tmp_path, capsys):
    """A folder that reads back; the truth is in a file of its own; nothing is overwritten."""
    out = tmp_path / "case"
    assert main(["simulate", "--fault", "gpu_throttle", "--seed", "5", "--out", str(out)]) == 0
    case = read_case(out)

    assert case.rows.n > 1000
    assert case.before is not None
    assert case.note is not None
    assert case.note.startswith("simulated")
    assert "gpu_throttle" not in (out / "case.json").read_text()
    assert "gpu_throttle" in (out / "truth.json").read_text()
    assert main(["simulate", "--out", str(out)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert main(["simulate", "--list"]) == 0
    assert "kv_exhaustion" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--fault", "nope"], "no fault 'nope'"),
        (["--fault", "gpu_throttle"], "--out DIR is missing"),
    ],
)
def test_a_wrong_fault_is_said_before_a_missing_folder(given, words, capsys):
    """Who mistypes a fault need not name a folder to hear of it."""
    assert main(["simulate", *given]) == 2
    assert words in capsys.readouterr().err


def test_no_fault_can_be_named(tmp_path, monkeypatch):
    """As in the demo: `none` injects nothing."""
    injected = []
    monkeypatch.setattr(
        command, "write_day", lambda _out, faults, *_, **__: injected.append(faults)
    )
    given = ["simulate", "--fault", "none", "--out", str(tmp_path / "a")]

    assert main(given) == 0
    assert main([*given, "--fault", "gpu_throttle"]) == 0
    assert injected == [[], [("gpu_throttle", 2.0)]]
