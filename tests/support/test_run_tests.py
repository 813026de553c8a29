"""Do the parts that `make test` runs side by side leave out no test, and run none twice?"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
run_tests, retried = import_module("run_tests"), import_module("retried")
sys.path.pop(0)


def test_every_part_is_run_and_what_it_names_is_there():
    """The last names nothing, so that it has all that is left."""
    assert sorted(run_tests._ORDER) == sorted(run_tests.PARTS)
    *_, last = run_tests.PARTS
    assert [part for part, paths in run_tests.PARTS.items() if not paths] == [last]
    named = [path for paths in run_tests.PARTS.values() for path in paths]
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert len(named) == len({*named})


def test_a_part_has_no_test_of_those_above_it():
    """A file of a folder may be in a part of its own; the folder's part leaves it out."""
    last = [*run_tests.PARTS][-1]
    ignored = {option.removeprefix("--ignore=") for option in run_tests.chosen(last)}

    assert ignored == {path for paths in run_tests.PARTS.values() for path in paths}
    assert run_tests.chosen("real")[0] == "tests/real"
    assert "--ignore=tests/real/test_vllm_plugin.py" in run_tests.chosen("real")
    assert "--ignore=tests/real" not in run_tests.chosen("engines")


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Stand in for pytest: keep its command lines, and end with the status that is set."""
    monkeypatch.setattr(run_tests, "CACHE", tmp_path)
    kept = SimpleNamespace(calls=[], status=0)

    def pytest_of(part, *arguments, **variables):
        kept.calls.append((part, *arguments))
        failed = tmp_path / part / run_tests.LAST_FAILED
        if "--last-failed" in arguments:  # those of time pass, and the others stay noted
            names = json.loads(failed.read_text())
            failed.write_text(json.dumps({name: True for name in names if "late" not in name}))
        return kept.status, f"{part} printed", 1.0

    monkeypatch.setattr(run_tests, "_pytest", pytest_of)
    return kept


def test_only_tests_of_time_are_run_again(ran, tmp_path, capsys):
    """Whatever else failed, a doctest too, has failed: pytest notes it until it passes."""
    for part, name in (("late", "a::late"), ("wrong", "c::d"), ("fine", None)):
        (tmp_path / part / "v" / "cache").mkdir(parents=True)
        if name:
            (tmp_path / part / run_tests.LAST_FAILED).write_text(json.dumps({name: True}))
    (tmp_path / run_tests.OVER).touch()

    assert run_tests.run_again(["late", "fine"]) == 0
    assert ran.calls == [("late", "--last-failed", "-m", "timing")]
    assert run_tests.run_again(["late", "wrong"]) == 1
    assert "c::d" in capsys.readouterr().out


def test_a_part_that_is_cut_short_fails_the_run_for_good(ran, tmp_path, capsys):
    """And notes of an earlier run are gone."""
    (tmp_path / "contact").mkdir()
    (tmp_path / "contact" / run_tests.CUT_SHORT).write_text("old::one\n")

    assert run_tests.run_all(["contact"], 2) == 0
    assert not (tmp_path / "contact" / run_tests.CUT_SHORT).exists()
    ran.status = 3
    assert run_tests.run_all(["contact"], 2) == 1
    assert "status 3" in (tmp_path / "contact" / run_tests.CUT_SHORT).read_text()
    assert "contact printed" in capsys.readouterr().out


def test_a_run_that_did_not_come_to_its_end_is_not_made_good(ran, tmp_path, capsys):
    """Such as one whose programs could not be installed: nothing failed, and nothing passed."""
    (tmp_path / "contact" / "v" / "cache").mkdir(parents=True)
    assert run_tests.run_again(["contact"]) == 1
    assert run_tests.run_all(["contact"], 2) == 0
    assert run_tests.run_again(["contact"]) == 0

    began, names = tmp_path / "began.json", tmp_path / "retried"
    retried.begin(began, names)
    assert run_tests.run_again(["contact"]) == 1
    assert "have not all been run" in capsys.readouterr().out


def test_a_part_tells_its_status_what_it_printed_and_its_cpu(tmp_path, monkeypatch):
    """Of a real pytest; compiled files are kept whatever the environment says."""
    monkeypatch.setattr(run_tests, "CACHE", tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    test = tmp_path / "test_it.py"
    test.write_text(
        "import os, sys\n"
        "def test_it():\n    assert os.environ['SAID'] == 'so' and not sys.dont_write_bytecode\n"
    )
    status, printed, cpu_s = run_tests._pytest("x", str(test), SAID="so")

    assert status == 0, printed
    assert "1 passed" in printed
    assert 0 < cpu_s < 60
