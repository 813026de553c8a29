"""Does the bench count what it says it counts?

The bench itself plays thousands of days and is run by hand: `python -m tests.bench.bench_triage`.
"""

from __future__ import annotations

import pytest

pytest.importorskip("numba", reason="the fleet simulator needs the extra `simulate`")

from llmtrace.simulator.fleet.scenario import Scenario
from llmtrace.triage.result import CAUSES, NOT_SIMULATED
from tests.bench import bench_triage
from tests.bench.bench_recordings import counted
from tests.bench.bench_triage import Answer, Task, answer, report, tasks

SIMULATED = [cause for cause in CAUSES if cause not in NOT_SIMULATED]


def test_a_simulated_fault_is_played_and_named():
    """One day from the simulator to the answer, with what simpler ways would have said."""
    day = Scenario(seed=5, faults=(("gateway_overhead", 3.0),), before_s=600, after_s=300)
    said = answer(Task("fault", day))

    assert said.dropped is None
    assert said.top[:1] == ("gateway_overhead",)
    assert said.sum_error == 0
    assert len(said.by_p95) == len(said.by_chance) == 3
    assert set(said.by_chance) <= set(CAUSES)


@pytest.mark.parametrize("shift", ["outputs", "prompts"])
def test_heavier_work_is_a_workload_where_all_wait_for_it(shift):
    """Longer answers fill the batch, longer prompts hold it up: the same work takes longer."""
    seed = {"outputs": 2_000_003, "prompts": 2_000_050}[shift]
    said = answer(Task("shift", Scenario(seed=seed, shift=shift)))

    assert said.dropped is None
    assert said.verdict == "workload"


def made(kind: str, truth: tuple[str, ...], top: tuple[str, ...], **more: object) -> Answer:
    """Return an answer as a day would have given it."""
    named = tuple((cause, "confirmed") for cause in top)
    return Answer(kind=kind, name="x", truth=truth, severity=1.0, named=named, **more)


def test_figures_are_counted_as_the_bars_mean_them(capsys):
    """First, among the first three, falsely, both: and what was dropped counts nowhere."""
    figures = report(
        [
            made("fault", ("cold_start",), ("cold_start",)),
            made("fault", ("cold_start",), ("head_of_line", "batch_size", "cold_start")),
            made("fault", ("cold_start",), ("a", "b", "c", "cold_start")),
            made("fault", ("cold_start",), (), dropped="moved nothing visibly"),
            made("quiet", (), ()),
            made("quiet", (), ("cold_start",)),
            made("shift", (), (), verdict="workload"),
            made("shift", (), (), verdict="regression"),
            made("pair", ("a", "b"), ("b", "c", "a")),
            made("pair", ("a", "b"), ("a", "c", "d", "b")),
        ]
    )

    assert figures == {
        "top-1 on faults": pytest.approx(1 / 3),
        "top-3 on faults": pytest.approx(2 / 3),
        "false causes on quiet days": 0.5,
        "workload shifts recognised": 0.5,
        "two faults, both in the top three": 0.5,
    }
    assert "head_of_line 1" in capsys.readouterr().out


def test_what_a_load_brings_about_by_itself_counts_as_its_cause():
    """Longer prompts fill the queue: to name the queue is right, and keeps the place."""
    said = made("fault", ("long_prompts",), ("cold_start", "queue_saturation", "long_prompts"))

    assert counted(said, ("queue_saturation",)).top == ("cold_start", "long_prompts")
    assert counted(said, ()).top == said.top


def test_every_cause_is_played_at_every_severity():
    """And on other days with every seed."""
    todo = [task.scenario for task in tasks(range(2), (), ("fault",))]

    assert {day.faults[0] for day in todo} == {
        (cause, severity) for cause in SIMULATED for severity in bench_triage.SEVERITIES
    }
    assert len({day.seed for day in todo}) == len(todo) == 2 * 3 * len(SIMULATED)
