"""Are the recorded incidents of a real vLLM whole: readable, large enough, with a known cause?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from llmtrace.case import read_case
from llmtrace.stages import STAGES
from llmtrace.triage.result import CAUSES

RECORDED = sorted(path.parent for path in Path(__file__).parent.glob("recorded/*/truth.json"))
FEWEST = 72  # below that a p95 has no interval


def test_there_are_recordings():
    """Somebody would notice if they went."""
    assert len(RECORDED) >= 20


@pytest.mark.parametrize("folder", RECORDED, ids=lambda path: path.name)
def test_a_recording_is_whole(folder):
    """Rows in both windows whose stages add up, signals, and the truth in a file of its own."""
    case = read_case(folder)
    truth = json.loads((folder / "truth.json").read_text())
    number = case.rows.numbers
    stages = [np.nan_to_num(number[f"{stage}_s"]) for stage in STAGES]
    total = sum(np.rint(stage * 1e9).astype(np.int64) for stage in stages)
    total = total + np.rint(number["unattributed_s"] * 1e9).astype(np.int64)

    assert case.warnings == ()
    assert np.array_equal(total, np.rint(number["e2e_s"] * 1e9).astype(np.int64))
    for window in (case.before, case.after):
        assert case.rows.within(window.start, window.end).n >= FEWEST
    assert {"running", "waiting", "kv_usage"} <= set(case.signals.signal.names)
    assert {*truth["causes"], *truth["accept"]} <= set(CAUSES)
    assert not {"truth", "causes"} & json.loads((folder / "case.json").read_text()).keys()
