"""Measure the load of a window: requests and tokens per second, and typical lengths."""

from __future__ import annotations

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.significance import quantile
from llmtrace.triage.result import Load, Q


def load_of(rows: Columns, window: Window) -> Load:
    """Return a window's load; a sampled row counts by its weight."""
    seconds = window.seconds
    weight = rows.weights

    def rate(name: str | None) -> float | None:
        if name is None:
            return float(weight.sum()) / seconds
        column = rows.numbers[name]
        known = ~np.isnan(column)
        return float((column[known] * weight[known]).sum()) / seconds if known.any() else None

    def at(name: str, q: float) -> float | None:
        column = rows.numbers[name]
        known = ~np.isnan(column)
        return quantile(column[known], q, weight[known]) if known.any() else None

    return Load(
        requests_per_s=rate(None),
        prompt_tokens_per_s=rate("prompt_tokens"),
        output_tokens_per_s=rate("output_tokens"),
        prompt_tokens_p50=at("prompt_tokens", 0.5),
        prompt_tokens_p95=at("prompt_tokens", Q),
        output_tokens_p50=at("output_tokens", 0.5),
        output_tokens_p95=at("output_tokens", Q),
    )
