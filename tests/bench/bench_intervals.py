"""How often do the intervals of a triage hold the truth?

    python -m tests.bench.bench_intervals [--draws N]

Of a p95 whose requests remember each other (AR(0.9)), of an onset, and of the parts of a change:
each is said to hold the truth in 95 % of cases. The truth of parts is what very many requests
divide into. Where requests say too little, a p95 has no interval; those are counted apart. Exits
with 1 where less than 90 % of the intervals hold the truth. A minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from llmtrace.dataset.case import Case, Window, no_signals
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import Result
from tests.bench.bench_search import noise
from tests.triage.days import START, Kind, day, requests

BAR: Final = 0.90
MEMORY: Final = 0.9
PARTS: Final = ("mix", "queue", "prefill")
SLOWER: Final = Kind(queue=4.0, prefill=1.6, prompts=1.2)
_TRUE_P95: Final = float(np.exp(1.6448536 * 0.5))  # of `noise`
_SIZES: Final = (1200, 4800)  # requests in two windows
_MANY: Final = 60_000
_RESAMPLED: Final = 100


def p95_held(seed: int, size: int) -> bool | None:
    """Return whether the interval of the p95 holds the true one, of requests that cluster.

    `None` = it has none.
    """
    t, value = noise(np.random.default_rng(seed), size, MEMORY, own=False)
    rows = requests(size, Kind(), seed)
    numbers = {**rows.numbers, "ttft_s": value, "e2e_s": value + 1.0}
    rows = replace(rows, start=((START + t) * 1e9).astype(np.int64), numbers=numbers)
    half = START + 1800.0
    windows = Window(START, half), Window(half, START + 3601.0)
    case = Case(rows, no_signals(), before=windows[0], after=windows[1], metric="ttft")
    low, high = triage(case, Settings(bootstrap=0)).before.p95_ci
    return None if low is None or high is None else low <= _TRUE_P95 <= high


def onset_held(seed: int) -> bool:
    """Return whether the interval of the onset meets the time between usual and slow requests."""
    case = day(Kind(), SLOWER, n=(1500, 300), seed=seed, windows=False)
    onset = triage(case, Settings(bootstrap=0)).onset
    first, last = (case.rows.start[k] / 1e9 for k in (1500, 1499))
    return onset is not None and onset.earliest <= first and onset.latest >= last


def _divided(seed: int, n: tuple[int, int], times: int) -> Result:
    case = day(Kind(), SLOWER, n=n, seed=seed, metric="ttft")
    return triage(case, Settings(bootstrap=times, seed=seed))


def parts_held(seeds: Sequence[int]) -> Iterator[tuple[str, bool]]:
    """Yield each part of each draw, and whether its interval holds the truth."""
    truth = {p.name: p.seconds for p in _divided(0, (_MANY, _MANY), 0).contributions}
    for seed in seeds:
        for part in _divided(seed, (2000, 600), _RESAMPLED).contributions:
            low, high = part.ci
            if part.name in PARTS and low is not None and high is not None:
                yield part.name, low <= truth[part.name] <= high


def main() -> int:
    """Print the shares, and compare them with the bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=100, help="of each (default: 100)")
    seeds = range(1, parser.parse_args().draws + 1)
    held: dict[str, list[bool]] = {}
    for size in _SIZES:
        found = [p95_held(seed, size) for seed in seeds]
        held[f"p95 of {size:,} at AR({MEMORY:g})"] = [one for one in found if one is not None]
    held["onset"] = [onset_held(seed) for seed in seeds]
    for name, holds_it in parts_held(seeds):
        held.setdefault(f"part: {name}", []).append(holds_it)
    for name, holds in held.items():
        none = f"; {len(seeds) - len(holds)} have none" if name.startswith("p95") else ""
        print(f"{name:24}{sum(holds)} of {len(holds)} hold the truth (bar: {BAR:.0%}){none}")
    return int(any(np.mean(holds) < BAR for holds in held.values() if holds))


if __name__ == "__main__":
    raise SystemExit(main())
