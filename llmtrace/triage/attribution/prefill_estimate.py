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
_AT_ONCE: Final = 200_000  # requests of draws that are fitted together, so that memory is bounded
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
    slopes, bases, masks = _fit(tokens[None], ttft[None])
    slope, base, kept = float(slopes[0]), float(bases[0]), masks[0]
    rng = np.random.default_rng(seed)
    at_once = max(1, _AT_ONCE // len(tokens))
    draws = []
    for start in range(0, _DRAWS, at_once):
        size = min(at_once, _DRAWS - start), len(tokens)
        pick = rng.integers(0, len(tokens), size)
        draws.append(_fit(tokens[pick], ttft[pick])[0])
    bounds = np.quantile(np.concatenate(draws), (0.025, 0.975))
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


def _fit(x: Floats, y: Floats) -> tuple[Floats, Floats, Mask]:
    """Fit lines by least squares, and again without the requests farthest above each.

    Args:
        x: tokens of the requests of a draw, a row for every draw.
        y: their TTFTs, seconds; of the same shape.

    Returns:
        slope and base of every draw, and which of its requests were kept.
    """
    kept = np.ones(x.shape, bool)
    for _ in range(_ROUNDS):
        slope, base = _lines(x, y, kept)
        line = base[:, None] + slope[:, None] * x
        off = (y - line) / np.maximum(line, 1e-6)
        kept = off <= np.quantile(off, 1 - _TRIMMED, axis=1, keepdims=True)
    return slope, base, kept


def _lines(x: Floats, y: Floats, kept: Mask) -> tuple[Floats, Floats]:
    """Return the slope and base of the line through every row's requests that are kept."""
    x_mean, y_mean = (one.mean(axis=1, where=kept) for one in (x, y))
    off = x - x_mean[:, None]
    spread = (off**2).sum(axis=1, where=kept)
    shared = (off * (y - y_mean[:, None])).sum(axis=1, where=kept)
    slope = np.divide(shared, spread, out=np.zeros(len(x)), where=spread > 0)
    return slope, y_mean - slope * x_mean


def _fit_quality(x: Floats, y: Floats, slope: float, base: float) -> float:
    total = float(((y - y.mean()) ** 2).sum())
    if total <= 0:
        return 0.0
    return max(0.0, 1.0 - float(((y - base - slope * x) ** 2).sum()) / total)
