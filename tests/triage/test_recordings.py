"""Are the recorded incidents of a real vLLM whole, and does triage name what really went wrong?

`python -m tests.bench.bench_recordings` prints what is named for each, beside simpler guesses.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmtrace.core.stages import STAGES
from llmtrace.dataset.case import read_case
from llmtrace.triage.causes.scoring import moves
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import CAUSES, NAMED, Result

RECORDED = sorted(path.parent for path in Path(__file__).parent.glob("recorded/*/truth.json"))
MIN_COUNT = 72  # below that a p95 has no interval
SURE = ("confirmed", "likely")
WORKLOAD = ("workload", "new_workload", "mixed")


def truth_of(folder: Path) -> dict:
    """Return the true causes, those accepted beside them, and whether only the work differs."""
    return json.loads((folder / "truth.json").read_text(encoding="utf-8"))


def named(result: Result) -> list[str]:
    """Return the causes a result names, best first."""
    return [one.id for one in result.causes if one.status in NAMED]


@pytest.fixture(scope="module")
def said() -> dict[Path, Result]:
    """Return what triage says of each recording."""
    return {folder: triage(read_case(folder), Settings(bootstrap=0)) for folder in RECORDED}


def test_there_are_recordings():
    """It would be noticed if they went, or if a kind of them did."""
    assert len(RECORDED) >= 40
    assert {cause for folder in RECORDED for cause in truth_of(folder)["causes"]} >= {
        "queue_saturation", "kv_exhaustion", "long_prompts", "longer_outputs", "head_of_line",
        "prefix_cache_collapse", "cold_start", "slow_renderer", "proxy_buffering",
        "network_path", "gateway_overhead", "rate_limit_retries", "idle_timeout",
        "midstream_errors", "low_spec_acceptance", "client_give_ups", "client_gate",
        "frontend_cpu", "batch_size", "engine_paused", "engine_down",
    }  # fmt: skip


@pytest.mark.parametrize("folder", RECORDED, ids=lambda path: path.name)
def test_a_recording_is_whole(folder):
    """Rows in both windows whose stages add up, signals, and the truth in a file of its own."""
    case = read_case(folder)
    truth = truth_of(folder)
    number = case.rows.numbers
    stages = [np.nan_to_num(number[f"{stage}_s"]) for stage in STAGES]
    total = sum(np.rint(stage * 1e9).astype(np.int64) for stage in stages)
    total = total + np.rint(number["unattributed_s"] * 1e9).astype(np.int64)

    assert case.warnings == ()
    assert np.array_equal(total, np.rint(number["e2e_s"] * 1e9).astype(np.int64))
    for window in (case.before, case.after):
        assert case.rows.within(window.start, window.end).n >= MIN_COUNT
    assert {"running", "waiting", "kv_usage"} <= set(case.signals.signal.names)
    assert {*truth["causes"], *truth["accept"]} <= set(CAUSES)
    assert not {"truth", "causes"} & json.loads((folder / "case.json").read_text()).keys()
    assert sum(file.stat().st_size for file in folder.iterdir()) < 150_000


@pytest.mark.parametrize("folder", RECORDED, ids=lambda path: path.name)
def test_what_is_confirmed_is_true(folder, said):
    """A long prompt that holds all streams is no engine that stands still, say."""
    truth = truth_of(folder)
    confirmed = {one.id for one in said[folder].causes if one.status == "confirmed"}

    assert confirmed <= {*truth["causes"], *truth["accept"]}


@pytest.mark.parametrize("folder", RECORDED, ids=lambda path: path.name)
def test_what_went_wrong_is_named(folder, said):
    """Every true cause is among the first three; of a quiet day nothing is said with certainty."""
    truth, result = truth_of(folder), said[folder]

    if truth["causes"]:
        first = set(named(result)[:3])
        assert all(first & {cause, *truth["accept"]} for cause in truth["causes"])
    else:
        assert [one.id for one in result.causes if one.status in SURE] == []
    if truth["shift"]:
        assert result.verdict in WORKLOAD


@pytest.mark.parametrize("folder", RECORDED, ids=lambda path: path.name)
def test_no_line_that_reads_the_same_before_and_after_has_points(folder, said):
    """What did not move, as printed, is no evidence of any cause."""
    points = [point for one in said[folder].causes for point in one.evidence if point.points]

    assert [point.text for point in points if not moves(point.text)] == []


def test_it_is_named_first(said):
    """In nine of ten recordings of something that went wrong, as triage-accuracy.md says."""
    wrong = [folder for folder in RECORDED if truth_of(folder)["causes"]]
    first = [
        named(said[folder])[:1] != []
        and named(said[folder])[0] in {*truth_of(folder)["causes"], *truth_of(folder)["accept"]}
        for folder in wrong
    ]

    assert np.mean(first) >= 0.9


@pytest.mark.parametrize(
    "name",
    ["kv-preempted-mild", "kv-small-more-load", "prefix-off-1", "midstream-mild", "frontend-cpu"],
)
def test_minutes_that_were_not_recorded_hide_no_cause(name):
    """Their windows lie minutes apart; taken away, they are found, and the cause is the same."""
    folder = next(folder for folder in RECORDED if folder.name == name)
    case = replace(read_case(folder), before=None, after=None, metric=None)

    assert named(triage(case, Settings(bootstrap=0)))[:1] == truth_of(folder)["causes"]
