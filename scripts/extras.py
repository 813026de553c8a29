"""Install each extra alone in a clean environment, and run the commands that it is documented for.

`python scripts/extras.py [EXTRA ...]` makes one environment after the other below a temporary
folder; pip's own cache is shared by all. Exit status 1 if a command does not run. For extras with
commands `tests/test_extras.py` checks the same in seconds, by hiding what they do not bring;
continuous integration runs it, and installs one extra of the library a run, by `--turn`.
`group-test` is the dependency group of the library's own tests, with which those are collected.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_INSTALL_S: Final = 900
_COMMAND_S: Final = 300

# What each extra is documented for: arguments of `llmtrace`, and the exit statuses that are right.
# Commands read what those before them wrote.
COMMANDS: Final[Mapping[str, Sequence[tuple[Sequence[str], Sequence[int]]]]] = {
    "demo": (
        (("demo", "--fault", "none", "--requests", "100", "--rows-out", "rows.jsonl"), (0,)),
        (("waterfall", "rows.jsonl"), (0,)),
        (("budget", "suggest", "rows.jsonl", "--out", "budget.yaml"), (0,)),
        (("demo",), (0,)),
    ),
    "simulate": (
        (("simulate", "--fault", "gpu_throttle", "--out", "incident"), (0,)),
        (("triage", "--case", "incident"), (10,)),
    ),
    "triage": (
        (("triage", "--rows", "given.jsonl"), (0, 10, 11)),
        (("budget", "report", "given.jsonl"), (0,)),
        (("waterfall", "given.jsonl"), (0,)),
    ),
    "collector": (
        (("collect", "--check", "--data-dir", "data", "--target", "engine:8000"), (0,)),
        (("doctor", "http://127.0.0.1:9/metrics"), (1,)),
        (("schema", "clickhouse"), (0,)),
    ),
    "dashboards": ((("slo", "rules", "--out", "rules"), (0,)),),
}
# Extras of the library: what must be importable.
MODULES: Final[Mapping[str, str]] = {
    "openai": "openai",
    "anthropic": "anthropic",
    "prometheus": "llmtrace.exporters.prometheus.sink",
    "grpc": "llmtrace.grpc",
    "websockets": "llmtrace.websocket",
    "langfuse": "langfuse",
}
TEST_GROUP: Final = "group-test"
_ROW: Final = (
    '{"start": 1790000000000000000, "service": "s", "request_id": "r", "trace_id": "t", '
    '"span_id": "s", "stream": true, "ttft_s": 0.3, "e2e_s": 2.0, "model": "m"}\n'
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the extras that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", metavar="EXTRA")
    parser.add_argument(
        "--turn",
        type=int,
        metavar="N",
        help="only one of the library's extras, another for each N",
    )
    options = parser.parse_args(arguments)
    wrong: list[str] = []
    extras = options.extras or [*COMMANDS, *MODULES, TEST_GROUP]
    if options.turn is not None:
        turns = [*MODULES, TEST_GROUP]
        extras = [turns[options.turn % len(turns)]]
    for extra in extras:
        with tempfile.TemporaryDirectory(prefix=f"llmtrace-{extra}-") as folder:
            check_one = collect if extra == TEST_GROUP else check
            wrong += check_one(extra, Path(folder))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def check(extra: str, folder: Path) -> list[str]:
    """Install one extra below a folder, run its commands there, and return what is wrong."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", f"{ROOT}[{extra}]"]
    subprocess.run(install, check=True, timeout=_INSTALL_S)
    work = folder / "work"
    work.mkdir()
    (work / "given.jsonl").write_text(_ROW * 100)
    calls: list[tuple[list[str], Sequence[int]]] = [
        (["-m", "llmtrace", *words], right) for words, right in COMMANDS.get(extra, ())
    ]
    if extra in MODULES:
        calls.append((["-c", f"import llmtrace, {MODULES[extra]}"], (0,)))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    wrong = []
    for words, right in calls:
        done = subprocess.run(
            [python, *words], cwd=work, env=environ, capture_output=True, text=True,
            timeout=_COMMAND_S, check=False,
        )  # fmt: skip
        print(f"[{extra}] {' '.join(words)}: {done.returncode}", flush=True)
        if done.returncode not in right or "is not installed" in done.stderr:
            said = (done.stderr.strip().splitlines() or [""])[-1]
            wrong.append(f"[{extra}] {' '.join(words)}: {done.returncode}, not {right}: {said}")
    return wrong


def collect(group: str, folder: Path) -> list[str]:
    """Install the group of the library's tests, collect them, and return what is wrong."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "pip>=25.1"], check=True, timeout=_INSTALL_S)
    given = ["--editable", ".", "--group", group.removeprefix("group-")]
    subprocess.run([*pip, *given], cwd=ROOT, check=True, timeout=_INSTALL_S)
    # In CI nothing may be left out: here something must be.
    environ = {
        k: v for k, v in os.environ.items() if k not in {"CI", "LLMTRACE_REAL", "PYTHONPATH"}
    }
    done = subprocess.run(
        [python, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"], cwd=ROOT,
        env=environ, capture_output=True, text=True, timeout=_COMMAND_S, check=False,
    )  # fmt: skip
    last = (done.stdout.strip().splitlines() or [""])[-1]
    print(f"[{group}] pytest --collect-only: {done.returncode}, {last}", flush=True)
    if done.returncode == 0 and "\nleft out " in done.stdout:
        return []
    errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
    return [f"[{group}] {line}" for line in errors or [last]]


if __name__ == "__main__":
    sys.exit(main())
