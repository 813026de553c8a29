"""Which tests are run again, and does the count of them say when a test is at fault?"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.conftest import can_be_late

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
retried = import_module("retried")
sys.path.pop(0)


@pytest.fixture
def reported(tmp_path, capsys):
    """Report a run that began at a load and needed another go for some tests."""
    history = tmp_path / "retried.jsonl"

    def run(load, *names):
        began, listed = tmp_path / "began.json", tmp_path / "retried"
        began.write_text(json.dumps({"load": load, "cores": 2}))
        listed.write_text("".join(f"{name}\n" for name in names))
        status = retried.report(began, listed, history)
        return status, capsys.readouterr()

    return run


def test_what_was_run_again_is_printed_also_when_nothing_was(reported):
    """Once each, and that nothing is known of earlier runs."""
    status, shown = reported(0.1)
    assert (status, shown.out) == (
        0, "retried: 0 tests\nno history: this is the first run whose retried tests are kept\n",
    )  # fmt: skip
    _, shown = reported(5.0, "a::one", "a::one", "b::two")
    assert shown.out == (
        "retried: 2 tests (on a busy machine)\n  a::one\n  b::two\n"
        "over 2 runs, 1 of them quiet:\n  1 time a::one\n  1 time b::two\n"
    )
    _, shown = reported(0.1, "a::one")
    assert shown.out == (
        "retried: 1 test\n  a::one\n"
        "over 3 runs, 2 of them quiet:\n  2 times a::one\n  1 time b::two\n"
    )


def test_a_test_that_needs_another_go_on_three_quiet_machines_in_a_row_fails_the_build(reported):
    """A busy machine's run in between counts neither way."""
    statuses = [
        reported(load, "a::one", *more)[0]
        for load, more in ((0.1, ["b::two"]), (9.0, []), (0.2, []), (0.0, ["b::two"]))
    ]
    assert statuses == [0, 0, 0, 1]
    status, shown = reported(0.0, "b::two")
    assert (status, shown.err) == (0, "")


def test_what_is_of_time_is_marked_by_what_modules_import(request):
    """Directly, or by another module of the tests; a pure function's test is never run again."""
    assert can_be_late(ROOT / "tests" / "instrumentation" / "test_truth.py")
    assert can_be_late(ROOT / "tests" / "collector" / "store" / "sent.py")
    assert not can_be_late(ROOT / "tests" / "core" / "test_row.py")
    assert not can_be_late(ROOT / "tests" / "stats" / "test_quantiles.py")
    assert "timing" not in request.node.keywords
