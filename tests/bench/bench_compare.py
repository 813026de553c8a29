"""How often does `llmtrace compare` call a difference where there is none, and find one there is?

Whole comparisons, all durations at once, of runs drawn like those of a load test: TTFT spread by
0.4 (log-normal), once each request for itself and once like the one before it. A/A: two runs of
one kind. Planted: TTFT and prefill take a tenth longer. A guard of p95 TTFT is judged on each.

    make bench-compare    # a few minutes
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path

from llmtrace.run_comparison.conditions import read_condition
from llmtrace.run_comparison.read_run import read_run
from llmtrace.run_comparison.runs import Comparison, compare
from llmtrace.stats.significance import share_bounds
from tests.run_comparison.made_runs import make_rows

PLANTED = 1.1
GUARD = read_condition("ttft.p95 > 10%")
LIKE = (0.0, 0.5)  # correlation of a request's TTFT with the one before it


def compared(folder: Path, seed: int, count: int, correlation: float, factor: float) -> Comparison:
    """Compare two runs that were drawn, through files as the command does."""
    runs = []
    for side, ttft in ((0, 1.0), (1, factor)):
        rows = make_rows(2 * seed + side, count, ttft=ttft, correlation=correlation)
        path = folder / f"{side}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        runs.append(read_run(path))
    return compare(*runs)


def report(folder: Path, runs: int, count: int, correlation: float, factor: float) -> None:
    """Print how many of so many comparisons call a difference, and in what."""
    called: Counter[str] = Counter()
    judged: Counter[str] = Counter()
    hits = alone = 0
    for seed in range(runs):
        found = compared(folder, seed, count, correlation, factor)
        moved = {effect.name: effect.direction for effect in found.moved}
        judged[GUARD.judge(found)[0]] += 1
        alone += any(effect.alone for effect in found.effects)
        called.update(moved.keys())
        hits += bool(moved) if factor == 1 else moved.get("ttft") == "slower"
    low, high = share_bounds(hits, runs)
    what = "A/A called different" if factor == 1 else f"{factor - 1:+.0%} TTFT found"
    names = ", ".join(f"{name} {times}" for name, times in called.most_common())
    print(
        f"{count} requests a run, correlation {correlation:g}: {what} in {hits} of {runs} "
        f"({low:.1%} to {high:.1%}); {names or 'nothing'}; '{GUARD.text}' {dict(judged)}; "
        f"some interval leaves out 0 in {alone}",
        flush=True,
    )


def main() -> None:
    """Print both, for each kind of run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmtrace-compare-") as name:
        for count, factor in ((200, 1.0), (1000, PLANTED)):
            for correlation in LIKE:
                report(Path(name), options.runs, count, correlation, factor)


if __name__ == "__main__":
    main()
