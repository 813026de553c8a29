"""How often does the search find a spike where there is none, and miss one that is there?

    python -m tests.bench.bench_search [--draws N] [--arrivals FILE ...]

Noise is log-normal, independent or autoregressive from request to request (in a second row,
with noise of its own for each beside it); spikes are ten times as slow, with one edge or two.
With recorded arrivals, it tells in how many pieces of them the number of requests is said to have
changed. Exits with 1 where a bar is missed. Two minutes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import numpy as np

from llmtrace.dataset.arrivals import read_arrivals
from llmtrace.dataset.columns import Floats
from llmtrace.triage.windows.bins import bins_for
from llmtrace.triage.windows.highest_stretch import MIN_SCORE, Spike
from llmtrace.triage.windows.spike import find_slow, find_traffic

# How strongly requests remember the one before, and how often the search may be wrong then.
BARS: Final = {0.0: 0.01, 0.9: 0.05, 0.98: 0.10}
SIZES: Final = (160, 400, 1200, 4000)
PLACES: Final = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9)
BINS: Final = range(8, 61)
PIECES: Final = (86, 200, 400, 800, 1500, 3000)  # requests of recorded arrivals
_MOST_PIECES: Final = 60
PER_BIN: Final = 20
_SPAN_S: Final = 3600.0
_SPREAD: Final = 0.5


def noise(r: np.random.Generator, n: int, memory: float, *, own: bool) -> tuple[Floats, Floats]:
    """Return the times and durations of so many requests with nothing wrong.

    Args:
        r: draws them.
        n: how many.
        memory: correlation of a request with the one before.
        own: whether each has noise of its own beside it.
    """
    x = r.normal(0.0, 1.0, n)
    if memory:
        kept = np.empty(n)
        kept[0] = x[0]
        for i in range(1, n):
            kept[i] = memory * kept[i - 1] + np.sqrt(1 - memory**2) * x[i]
        x = kept
    own_part = r.normal(0.0, _SPREAD, n) if own else 0.0
    return np.sort(r.uniform(0, _SPAN_S, n)), np.exp(_SPREAD * x + own_part)


def searched(t: Floats, value: Floats) -> Spike | None:
    """Return the spike, if one stands out."""
    bins = bins_for(t)
    found = None if bins is None else find_slow(t, value, bins)
    return found if found is not None and found.score >= MIN_SCORE else None


def false_alarms(memory: float, n: int, draws: int, *, own: bool) -> float:
    """Return the share of series without a spike in which one is found."""
    return float(
        np.mean(
            [
                searched(*noise(np.random.default_rng(seed), n, memory, own=own)) is not None
                for seed in range(draws)
            ]
        )
    )


def finds(bins: int, place: float, seed: int, *, two_edges: bool) -> bool:
    """Return whether a tenfold rise is found, and where it is."""
    n = bins * PER_BIN
    t, value = noise(np.random.default_rng(seed), n, 0.0, own=False)
    begin = place * _SPAN_S
    end = min(begin + _SPAN_S / 4, _SPAN_S) if two_edges else _SPAN_S + 1
    found = searched(t, value * np.where((t >= begin) & (t < end), 10.0, 1.0))
    return found is not None and abs(found.start - begin) <= 3 * _SPAN_S * PER_BIN / n


def traffic_changes(t: Floats) -> bool:
    """Return whether the number of requests is found to change."""
    found = (
        find_traffic(t, float(t[0]), float(t[-1]) + 1e-3, more=more) for more in (True, False)
    )
    return any(one is not None and one.score >= MIN_SCORE for one in found)


def changing_pieces(t: Floats, n: int) -> tuple[int, int]:
    """Return in how many pieces of so many requests traffic changes, and of how many."""
    starts = range(0, len(t) - n, max(n, (len(t) - n) // _MOST_PIECES))
    return sum(traffic_changes(t[i : i + n]) for i in starts), len(starts)


def main() -> int:
    """Print all, and compare with the bars."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=200, help="of each size (default: 200)")
    parser.add_argument("--arrivals", type=Path, nargs="*", default=[], metavar="FILE",
                        help="recorded: Azure's CSV or Mooncake's JSON lines")  # fmt: skip
    options = parser.parse_args()
    draws, missed = options.draws, False
    for file in options.arrivals:
        t = np.sort(read_arrivals(file).start_s)
        pieces = {n: changing_pieces(t, n) for n in PIECES}
        said = "  ".join(f"{n:,}: {some} of {many}" for n, (some, many) in pieces.items())
        print(f"traffic changes in pieces of {file.name}  {said}")
    for memory, bar in BARS.items():
        for own in (False, True):
            shares = [false_alarms(memory, n, draws, own=own) for n in SIZES]
            text = "  ".join(f"{n:,}: {100 * s:.1f} %" for n, s in zip(SIZES, shares, strict=True))
            kind = f"AR({memory:g}){' and noise of its own' if own else ''}"
            mean = float(np.mean(shares))
            missed |= mean > bar
            print(f"false alarms, {kind:28}{100 * mean:5.1f} % (bar {100 * bar:g} %)  {text}")
    for two_edges in (False, True):
        found = [
            finds(bins, place, seed, two_edges=two_edges)
            for bins in BINS
            for place in PLACES
            for seed in range(2)
        ]
        missed |= not all(found)
        print(f"tenfold, {'two edges' if two_edges else 'one edge'}: {sum(found)} of {len(found)}")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
