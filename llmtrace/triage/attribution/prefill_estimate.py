"""Estimate the prefill time of an engine that does not report it.

A line is fitted to TTFT over uncached prompt tokens, for each window: what grows with the prompt
is prefill. The estimate covers many requests, is marked as such, and is part of no sum.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.core.row import TURN
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.result import Estimate

_MIN_COUNT: Final = 72
_REPORTED: Final = 0.5  # share of rows with prefill from which no estimate is needed
_TRIMMED: Final = 0.1  # share of requests farthest above the line, which waited in a queue
_ROUNDS: Final = 3
_DRAWS: Final = 200
_MAX: Final = 20_000
_SPREAD: Final = 1.2  # p95 over p5 of prompt tokens, at least


def wants_estimate(rows: Columns) -> bool:
    """Return whether most requests report their TTFT but not their prefill."""
    reported = ~np.isnan(rows.numbers["ttft_s"]) & ~rows.words["operation"].where(TURN)
    if not reported.any():
        return False
    return bool((~np.isnan(rows.numbers["prefill_s"][reported])).mean() < _REPORTED)


def estimate_prefill(rows: Columns, seed: int) -> Estimate | None:
    """Fit the line; `None` = too few requests, or prompts all of the same length."""
    number = rows.numbers
    mine = ~rows.words["operation"].where(TURN) & ~(number["cache_hit"] == 1)
    known = mine & ~np.isnan(number["ttft_s"]) & ~np.isnan(number["prompt_tokens"])
    index = np.flatnonzero(known)
    index = index[:: -(-len(index) // _MAX) or 1]
    if len(index) < _MIN_COUNT:
        return None
    cached = np.nan_to_num(number["cached_tokens"][index], nan=0.0)
    tokens = np.maximum(number["prompt_tokens"][index] - cached, 0.0)
    ttft = number["ttft_s"][index]
    low, high = np.quantile(tokens, (0.05, 0.95))
    if high < _SPREAD * max(low, 1.0):
        return None
    slope, base, kept = _fit(tokens, ttft)
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(_DRAWS):
        pick = rng.integers(0, len(tokens), len(tokens))
        draws.append(_fit(tokens[pick], ttft[pick])[0])
    bounds = np.quantile(draws, (0.025, 0.975))
    return Estimate(
        what="prefill",
        source="estimated",
        n=len(index),
        per_token_s=slope,
        per_token_ci=(float(bounds[0]), float(bounds[1])),
        base_s=base,
        fit=_fit_quality(tokens[kept], ttft[kept], slope, base),
        prefill_p50_s=max(slope, 0.0) * float(np.median(tokens)),
    )


def _fit(x: Floats, y: Floats) -> tuple[float, float, Mask]:
    """Fit a line by least squares, and again without the requests farthest above it."""
    kept = np.ones(len(x), bool)
    slope = base = 0.0
    for _ in range(_ROUNDS):
        slope, base = _line(x[kept], y[kept])
        off = (y - base - slope * x) / np.maximum(base + slope * x, 1e-6)
        kept = off <= np.quantile(off, 1 - _TRIMMED)
    return slope, base, kept


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    spread = float(((x - x.mean()) ** 2).sum())
    if spread <= 0:
        return 0.0, float(y.mean())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    return slope, float(y.mean() - slope * x.mean())


def _fit_quality(x: Floats, y: Floats, slope: float, base: float) -> float:
    total = float(((y - y.mean()) ** 2).sum())
    if total <= 0:
        return 0.0
    return max(0.0, 1.0 - float(((y - base - slope * x) ** 2).sum()) / total)
