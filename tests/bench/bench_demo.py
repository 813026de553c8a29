"""How often does the demo name the fault it plays, for every fault it has?

    python -m tests.bench.bench_demo [--runs N] [--busy N] [--jobs N] [--keep FOLDER] [FAULT ...]

Each run is `llmtrace demo --fault NAME` in a process of its own, as a user starts it. With
`--busy` so many endless loops keep cores busy meanwhile. Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmtrace.demo.injected_faults import FAULTS

BAR: Final = 0.95
BAR_BUSY: Final = 0.9
_LIMIT_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class Run:
    """One demo: its fault, whether that was named first, what was said of it, and its seconds."""

    fault: str
    named: bool
    said: str
    seconds: float


def play(fault: str, folder: Path) -> Run:
    """Run the demo with a fault; what it writes goes to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "llmtrace", "demo", "--fault", fault],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},
    )
    (folder / "printed.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    head = re.search(r"^(.*p95: .*)$", done.stdout, re.MULTILINE)
    first = re.search(r"^1  (\S+  \S+)", done.stdout, re.MULTILINE)
    said = "; ".join(found[1] for found in (head, first) if found) or f"status {done.returncode}"
    named = "names it first" in done.stdout and done.returncode == 0
    return Run(fault, named, said, time.monotonic() - began)


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep so many cores busy."""
    idle = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in idle:
            one.kill()
            one.wait()


def play_all(faults: Sequence[str], runs: int, jobs: int, folder: Path) -> Iterator[Run]:
    """Play each fault so many times, and yield each run when it is over."""
    wanted = [(fault, folder / f"{fault}-{n}") for n in range(runs) for fault in faults]
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda one: play(*one), wanted)


def main() -> int:
    """Play the faults, and print what was named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="default: all")
    parser.add_argument("--runs", type=int, default=2, help="of each fault (default: 2)")
    parser.add_argument("--busy", type=int, default=0, help="loops beside it (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="demos at a time (default: 1)")
    parser.add_argument("--keep", type=Path, help="keep what the demos write there")
    given = parser.parse_args()
    faults = given.faults or sorted(FAULTS)
    named = dict.fromkeys(faults, 0)
    with tempfile.TemporaryDirectory() as scratch, busy(given.busy):
        for run in play_all(faults, given.runs, given.jobs, given.keep or Path(scratch)):
            named[run.fault] += run.named
            first = "first" if run.named else "-"
            print(f"{run.fault:24}{first:8}{run.seconds:5.0f} s  {run.said}", flush=True)
    print()
    for fault, count in named.items():
        print(f"{fault:24}named first in {count} of {given.runs}")
    total = sum(named.values()) / (len(faults) * given.runs)
    bar = BAR_BUSY if given.busy else BAR
    print(f"{'all':24}named first in {100 * total:.0f} % (bar: {100 * bar:.0f} %)")
    return int(total < bar)


if __name__ == "__main__":
    raise SystemExit(main())
