"""Run all tests, in parts side by side; `make test` and `.ci/run` call it.

A part is a pytest process with a cache of its own in `.pytest_cache`. Two parts more run at a time
than there are cores, since much of the real parts is waiting. What a part prints is shown once it
is over. With `--again` only those tests of time (marked `timing`) that failed before are run, one
after the other; any other failure stays one, and so does a run that did not come to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CACHE: Final = ROOT / ".pytest_cache"
CUT_SHORT: Final = "cut_short"  # a run that has not said what failed
LAST_FAILED: Final = "v/cache/lastfailed"  # pytest's own note, of all that has not passed since
OVER: Final = "over"  # in the cache: all parts have been run
# With a vLLM of their own, and with none: all others of tests/real share one.
_OWN_VLLM: Final = ("collector_ranks", "vllm_plugin")
_NO_VLLM: Final = (
    "alerts", "browser", "compose", "delays", "live_page", "oncall", "operator_manifests", "pages",
    "request_pages", "service_label", "slow_request", "triage_prometheus",
)  # fmt: skip
# The slowest files of tests/triage: in one part with the others, they would outlast all parts.
_SLOW_TRIAGE: Final = ("contact", "few_requests", "recordings", "recordings_unseen")
# A part has no tests of the parts above it; the last has all that are left.
PARTS: Final[Mapping[str, Sequence[str]]] = {
    "engines": [f"tests/real/test_{name}.py" for name in _OWN_VLLM],
    "programs": [f"tests/real/test_{name}.py" for name in _NO_VLLM],
    "real": ["tests/real"],
    "store": ["tests/collector/receive", "tests/collector/store"],
    "collector": ["tests/collector"],
    "demos": [
        "tests/demo",
        "tests/test_docs.py",
        "tests/test_examples.py",
        "tests/test_extras.py",
    ],
    "contact": ["tests/contact"],
    "instrumentation": ["tests/instrumentation", "tests/gateway", "tests/protocols"],
    "triage_slow": [f"tests/triage/test_{name}.py" for name in _SLOW_TRIAGE],
    "triage": [
        "tests/simulator",  # first: what it compiles others then find compiled
        "tests/triage",
        "tests/bench",
        "tests/load_test",
        "tests/run_comparison",
        "tests/stats",
    ],
    "others": [],
}
# So that, by a clock, four at a time end together; what triage compiles, demos find compiled.
_ORDER: Final = (
    "real", "triage", "triage_slow", "others", "demos", "store", "programs", "engines",
    "instrumentation", "collector", "contact",
)  # fmt: skip


def chosen(part: str) -> list[str]:
    """Return what pytest is given for a part: its paths, and those that it leaves to others."""
    above = [path for name in takewhile(lambda one: one != part, PARTS) for path in PARTS[name]]
    return [*PARTS[part], *(f"--ignore={path}" for path in above)]


def run_all(parts: Sequence[str], workers: int) -> int:
    """Run parts side by side, print what each printed, and return the exit status."""
    printing = Lock()

    def run(part: str) -> bool:
        began = time.monotonic()
        with printing:
            print(f"{part}: begun", flush=True)
        status, printed, cpu_s = _pytest(
            part, *chosen(part), "--durations=25", "--durations-min=3"
        )
        if status > 1:  # a run that is cut short has not said what failed
            (CACHE / part / CUT_SHORT).write_text(f"pytest ended with status {status}")
        with printing:
            took = f"{time.monotonic() - began:.0f} s, {cpu_s:.0f} s of CPU"
            print(f"\n{part}, {took}:\n{printed}", flush=True)
        return status == 0

    (CACHE / OVER).unlink(missing_ok=True)
    for part in parts:
        (CACHE / part).mkdir(parents=True, exist_ok=True)
        for note in (CUT_SHORT, LAST_FAILED):
            (CACHE / part / note).unlink(missing_ok=True)
    with ThreadPoolExecutor(workers) as pool:
        try:
            right = all([*pool.map(run, parts)])
        except KeyboardInterrupt:  # what runs has heard it, too
            pool.shutdown(cancel_futures=True)
            return 128 + signal.SIGINT
    (CACHE / OVER).touch()
    return 0 if right else 1


def run_again(parts: Sequence[str]) -> int:
    """Run the tests of time among what failed, and return the exit status."""
    if not (CACHE / OVER).exists():
        print("\nNothing to run again: the tests have not all been run.", flush=True)
        return 1
    print("\nOnce more, what failed:", flush=True)
    right = True
    for part in parts:
        cut_short, failed = CACHE / part / CUT_SHORT, CACHE / part / LAST_FAILED
        if cut_short.exists():
            print(f"{part}: {cut_short.read_text()}", flush=True)
            right = False
        if failed.exists() and failed.read_text().strip() != "{}":
            _, printed, _ = _pytest(part, "--last-failed", "-m", "timing",
                                    LLMTRACE_RETRIED=str(CACHE / "retried"))  # fmt: skip
            print(printed, flush=True)
        # Whatever it is that pytest chose to run: right is only what has passed since.
        if names := json.loads(failed.read_text()) if failed.exists() else {}:
            print("Failed, and not passed since:", *sorted(names), sep="\n  ", flush=True)
            right = False
    return 0 if right else 1


def _pytest(part: str, *arguments: str, **variables: str) -> tuple[int, str, float]:
    """Run pytest with a part's cache; return its exit status, what it printed, and CPU seconds.

    Those are of all its processes that were waited for: what is killed with its parent is not.
    """
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE / part}", *arguments]
    environment = {**os.environ, **variables}
    # What each of hundreds of processes would compile again, the first one keeps for all others.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        printed = running.stdout.read()
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    return running.returncode, printed, used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests, or once more those that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="only tests of time that failed")
    parser.add_argument(
        "--workers", type=int, default=(os.cpu_count() or 1) + 2, help="parts at a time"
    )
    options = parser.parse_args(arguments)
    # What a script runs in the background ignores Ctrl-C, which some of the tests are about.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_again(_ORDER) if options.again else run_all(_ORDER, options.workers)


if __name__ == "__main__":
    sys.exit(main())
