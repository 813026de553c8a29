"""Is the fault of the demo named, from the cases that runs of it saved?

They are what `llmtrace demo --fault NAME` wrote on a busy machine with two cores, and name no
windows. `python -m tests.bench.bench_demo` plays all faults anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmtrace.dataset.case import read_case
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import NAMED

SAVED = sorted(path.parent for path in Path(__file__).parent.glob("demo/*/truth.json"))


@pytest.mark.parametrize("folder", SAVED, ids=lambda path: path.name)
def test_the_fault_is_found_and_named_first(folder):
    """The search finds when it began, and the rules say what it was."""
    case = read_case(folder)
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))

    result = triage(case, Settings(bootstrap=50))

    assert case.before is None
    assert case.after is None
    assert abs(result.after.window.start - truth["began"]) <= 15.0
    assert [one.id for one in result.causes if one.status in NAMED][:1] == [truth["fault"]]


@pytest.mark.parametrize("folder", SAVED, ids=lambda path: path.name)
def test_no_other_cause_is_confirmed(folder):
    """What a fault does to the rest (retries leave an engine with less to do) is no second one."""
    result = triage(read_case(folder), Settings(bootstrap=0))
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))

    confirmed = {one.id for one in result.causes if one.status == "confirmed"}
    assert confirmed <= {truth["fault"]}
