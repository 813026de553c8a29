"""Compare the outcomes of two windows: whether more requests fail than by chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal

import numpy as np

from llmtrace.core.row import OUTCOMES, TURN
from llmtrace.core.row_fields import FAILED
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Mask
from llmtrace.stats.significance import clustered, effective_count, more_than
from llmtrace.triage.result import Outcomes

# The two endings that are counted, and the outcomes that each includes.
ENDINGS: Final[Mapping[Literal["errors", "cancelled"], tuple[str, ...]]] = {
    "errors": FAILED, "cancelled": ("cancelled",),
}  # fmt: skip
FOUND: Final = 0.001  # chance of a false alarm in windows that were searched for
_REFUSED: Final = 400  # HTTP status
_KINDS: Final = 10  # kinds of failures that are listed
_MIN: Final = 0.01  # rise of the share of requests, at least


def compare_outcomes(before: Columns, after: Columns, certain: float = FOUND) -> Outcomes:
    """Compare how requests before and after ended, without turns of agents.

    The chance of a false alarm stays below `certain`, for each of the two endings.
    """
    sides = [rows.take(~rows.words["operation"].where(TURN)) for rows in (before, after)]
    failed, cancelled = (
        [rows.words["outcome"].where(*names) for rows in sides] for names in ENDINGS.values()
    )
    p_failed, p_cancelled = (_rise(sides, masks) for masks in (failed, cancelled))
    shares, given_up = (
        [_share(rows, mask) for rows, mask in zip(sides, masks, strict=True)]
        for masks in (failed, cancelled)
    )
    return Outcomes(
        before=_count(sides[0]), after=_count(sides[1]), failed_before=shares[0],
        failed_after=shares[1], p_value=p_failed, significant=_matters(p_failed, shares, certain),
        cancelled_before=given_up[0], cancelled_after=given_up[1],
        gave_up=_matters(p_cancelled, given_up, certain),
        failures=_kinds(sides[1].take(failed[1])),
    )  # fmt: skip


def _rise(sides: list[Columns], masks: list[Mask]) -> float | None:
    """Return the chance of as many more of a mask, allowing for clustering in time."""
    if not all(len(mask) for mask in masks):
        return None
    pairs = zip(sides, masks, strict=True)
    design = max(clustered(rows.start / 1e9, mask) for rows, mask in pairs)
    # An outage is one cluster, but many failures are still evidence: limit the design effect.
    design = min(design, max(float(masks[1].sum()) / 8, 1.0))
    counts = [effective_count(rows.weights) / design for rows in sides]
    low, high = (_share(rows, mask) or 0.0 for rows, mask in zip(sides, masks, strict=True))
    return more_than(high * counts[1], counts[1], low * counts[0], counts[0])


def _share(rows: Columns, mask: Mask) -> float | None:
    """Return the share of the requests in a mask; `None` = no row has an outcome."""
    weights, known = rows.weights, rows.words["outcome"].codes >= 0
    return float(weights[mask].sum() / weights[known].sum()) if known.any() else None


def _matters(p_value: float | None, shares: list[float | None], certain: float) -> bool:
    low, high = shares
    if p_value is None or low is None or high is None:
        return False
    return p_value < certain and high - low >= _MIN


def _count(rows: Columns) -> dict[str, int]:
    words = rows.words["outcome"]
    counts = np.bincount(words.codes + 1, rows.weights, minlength=len(words.names) + 1)
    found = {words.names[i - 1]: round(counts[i]) for i in np.flatnonzero(counts) if i}
    if unknown := round(counts[0]):
        found["unknown"] = unknown
    order = (*OUTCOMES, *sorted(found.keys() - {*OUTCOMES}))
    return dict(sorted(found.items(), key=lambda item: order.index(item[0])))


def _kinds(failed: Columns) -> dict[str, int]:
    """Count failures by outcome, HTTP status and error type, the most common first."""
    counts: Counter[str] = Counter()
    words = [failed.words[name] for name in ("outcome", "error_type")]
    for status, weight, *codes in zip(
        failed.numbers["http_status"], failed.weights, *(one.codes for one in words), strict=True
    ):
        outcome, kind = (
            one.names[i] if i >= 0 else "" for one, i in zip(words, codes, strict=True)
        )
        answer = f"HTTP {status:.0f}" if status >= _REFUSED else ""
        known = outcome != "error" or not (answer or kind)
        counts[" ".join(filter(None, (outcome if known else "", answer, kind)))] += weight
    return {name: round(count) for name, count in counts.most_common(_KINDS)}
