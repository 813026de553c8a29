"""Print which tests needed another go, and keep count over runs; `.ci/run` calls it.

`begin` notes how busy the machine is; `report` prints the tests that failed and were run again,
and adds a line to `.ci/retried.jsonl`: time, commit, cores, load at the start, names. A run is
quiet if that load was below half the cores. Exit status 1 if a test was run again in each of the
last three quiet runs: then it is not the machine. Where no earlier run has left the file, nothing
is claimed about them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
NAMES: Final = ROOT / ".pytest_cache" / "retried"  # a line for each go, by `run_tests.py --again`
BEGAN: Final = ROOT / ".pytest_cache" / "began.json"
HISTORY: Final = ROOT / ".ci" / "retried.jsonl"
_IN_A_ROW: Final = 3


def begin(began: Path = BEGAN, names: Path = NAMES) -> int:
    """Note the machine's load before the tests, and forget the names of an earlier run."""
    began.parent.mkdir(exist_ok=True)
    for note in (names, names.with_name("over")):  # `run_tests.py` notes there what it came to
        note.unlink(missing_ok=True)
    began.write_text(json.dumps({"load": os.getloadavg()[0], "cores": os.cpu_count() or 1}))
    return 0


def report(began: Path = BEGAN, names: Path = NAMES, history: Path = HISTORY) -> int:
    """Print what was run again, in this run and over all; return the exit status."""
    retried = sorted(set(names.read_text().split("\n")) - {""}) if names.exists() else []
    earlier = _read(history)
    run = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        **json.loads(began.read_text()),
        "retried": retried,
    }
    print(f"retried: {_count(len(retried), 'test')}{'' if quiet(run) else ' (on a busy machine)'}")
    for name in retried:
        print(f"  {name}")
    if not earlier:
        print("no history: this is the first run whose retried tests are kept")
    try:
        with history.open("a") as file:
            file.write(json.dumps(run) + "\n")
    except OSError as error:
        print(f"no history: {history} cannot be written: {error}")
    runs = [*earlier, run]
    if earlier:
        counts = Counter(name for one in runs for name in one["retried"])
        print(f"over {_count(len(runs), 'run')}, {sum(map(quiet, runs))} of them quiet:")
        for name, times in counts.most_common():
            print(f"  {_count(times, 'time')} {name}")
    for name in steady(runs):
        print(f"run again in each of the last {_IN_A_ROW} quiet runs: {name}", file=sys.stderr)
    return 1 if steady(runs) else 0


def quiet(run: dict[str, Any]) -> bool:
    """Say whether a run began on a machine that did next to nothing else."""
    return float(run["load"]) < int(run["cores"]) / 2


def steady(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tests that needed another go in each of the last quiet runs."""
    last = [set(run["retried"]) for run in runs if quiet(run)][-_IN_A_ROW:]
    return sorted(set.intersection(*last)) if len(last) == _IN_A_ROW else []


def _read(history: Path) -> list[dict[str, Any]]:
    if not history.exists():
        return []
    return [json.loads(line) for line in history.read_text().splitlines()]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    ).stdout.strip()  # fmt: skip


if __name__ == "__main__":
    sys.exit({"begin": begin, "report": report}[sys.argv[1]]())
