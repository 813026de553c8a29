"""Read the durations that are compared out of a run's rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.core.stages import PARTITION
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats

METRICS: Final = ("first_content", "ttft", "tpot", "itl", "e2e")
DURATIONS: Final = (*METRICS, *PARTITION)


def perceived(rows: Columns) -> Floats:
    """Return seconds to the first content a user sees: TTFT, or e2e of a unary request.

    NaN = not reported, and not known to be unary.
    """
    unary = rows.numbers["stream"] == 0
    return np.where(unary, rows.numbers["e2e_s"], rows.numbers["ttft_s"])


def inter_token(rows: Columns) -> Floats:
    """Return each request's mean seconds between chunks with content; NaN = fewer than two."""
    gaps = rows.numbers["chunks"] - 1
    spent = rows.numbers["last_content_s"] - rows.numbers["ttft_s"]
    return np.where(gaps > 0, spent / np.maximum(gaps, 1), np.nan)


def durations(rows: Columns) -> dict[str, Floats]:
    """Return the values of `DURATIONS` in seconds, by name; NaN = not reported."""
    derived = {"first_content": perceived(rows), "itl": inter_token(rows)}
    return {
        name: derived[name] if name in derived else rows.numbers[f"{name}_s"] for name in DURATIONS
    }
