"""Compare time per token with what the engine's batch size explains.

A straight line of time per token over requests running is fitted to the window before.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.triage.evidence.changes import MIN_COUNT, TAIL
from llmtrace.triage.evidence.evidence import Evidence, memoized
from llmtrace.triage.evidence.window_rows import Side

_MIN_SPREAD: Final = 0.08  # standard deviation of batch sizes over their mean
_SAME_BATCH: Final = 0.01  # range of typical batch sizes over the largest
_EXTRAPOLATE: Final = 2.5  # times the largest batch before
_PARTS: Final = 8  # of the requests, by batch size; each gives one point of the line


def tpot_over_expected(e: Evidence) -> float | None:
    """Return the median time per token after, over what the line gives for its batch size.

    1 = as fast as before at this batch size. `None` = not reported, batch sizes hardly differed
    before, or they are far larger now than any before.
    """
    return _over_expected(e)[0]


def slow_tpot_over_expected(e: Evidence) -> float | None:
    """Return the same ratio of the slow requests after, over that of the slow ones before.

    It shows what makes only some of them slow, which a median hides. Slow is above the p95 before.
    `None` also if there are too few.
    """
    return _over_expected(e)[1]


@memoized
def _over_expected(e: Evidence) -> tuple[float | None, float | None]:
    samples = []
    for side in (e.before, e.after):
        batch, tpot = side.sampled(_batch_sizes(e, side)), side.sampled(side.number("tpot_s"))
        known = np.isfinite(batch) & np.isfinite(tpot)
        if known.sum() < 3 * MIN_COUNT:
            return None, None
        samples.append((batch[known], tpot[known]))
    (batch_b, tpot_b), (batch_a, tpot_a) = samples
    if batch_b.std() < _MIN_SPREAD * max(float(batch_b.mean()), 1.0):
        return None, None
    if float(np.median(batch_a)) > _EXTRAPOLATE * max(float(batch_b.max()), 1.0):
        return None, None
    parts = np.array_split(np.argsort(batch_b, kind="stable"), _PARTS)
    x, y = np.array([np.median(np.c_[batch_b, tpot_b][part], axis=0) for part in parts]).T
    if np.ptp(x) <= _SAME_BATCH * float(x.max()):
        return None, None
    slope, base = np.polyfit(x, y, 1)
    line = np.poly1d((max(slope, 0.0), base))
    expected = float(line(np.median(batch_a)))
    typical = float(np.median(tpot_a)) / expected if expected > 0 else None
    limit = np.quantile(tpot_b, 1 - TAIL)
    slow_b, slow_a = ((tpot / line(batch))[tpot > limit] for batch, tpot in samples)
    if min(len(slow_b), len(slow_a)) < MIN_COUNT or float(np.median(slow_b)) <= 0:
        return typical, None
    return typical, float(np.median(slow_a) / np.median(slow_b))


def _batch_sizes(e: Evidence, side: Side) -> Floats:
    """Return the number of requests running on each row's engine during it, from the gauge."""
    words = side.rows.words["replica"]
    middle = side.t + side.number("ttft_s") + side.number("decode_s") / 2
    found = np.full(len(side), np.nan)
    for name, series in e.series("running").items():
        here = words.where(name) if name in words.names else words.codes < 0
        inside = series.within(side.window)
        if len(inside.t) >= 2 and here.any():
            found[here] = np.interp(middle[here], inside.t, inside.value)
    return found
