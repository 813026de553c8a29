"""Compute from a row the figures that other load generators would have reported.

Each defines TTFT and the time of a token differently. What a row cannot give stays apart: where
their clocks start (docs/reference/definitions.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from llmtrace.core.row import Row
from llmtrace.run_comparison.effects import QUANTILES, Sample
from llmtrace.run_comparison.wording import QUANTILE_NAMES

_NS: Final = 1e9
_FIRST_CONTENT: Final = "to the first content"
_MEAN_GAP: Final = "(last - first content) / (tokens - 1)"


class Figure(NamedTuple):
    """A tool's figure: its definition for people, and seconds of a row by it, `None` = unknown."""

    tool: str
    name: str
    means: str
    of: Callable[[Row], float | None]


def _between(start: str, end: str, fewer: int | None = None) -> Callable[[Row], float | None]:
    """Return what gives the seconds between two marks of a row, the first "" for its start.

    With `fewer`, they are divided by that many output tokens fewer than there are.
    """

    def of(row: Row) -> float | None:
        first, last = (getattr(row, start) if start else 0), getattr(row, end)
        tokens = 1 if fewer is None else (row.output_tokens or 0) - fewer
        if first is None or last is None or tokens < 1:
            return None
        return float((last - first) / tokens / _NS)

    return of


_TTFT: Final = _between("", "ttft_ns")
_TEXT: Final = _between("", "first_text_ns")
_TPOT: Final = _between("ttft_ns", "last_content_ns", 1)

FIGURES: Final = (
    Figure("llmtrace", "TTFT", _FIRST_CONTENT, _TTFT),
    Figure("llmtrace", "TPOT", _MEAN_GAP, _TPOT),
    Figure("vllm bench serve", "TTFT", "to the first event, of the role too",
           _between("", "first_event_ns")),
    Figure("vllm bench serve", "TPOT", "(last content - first event) / (tokens - 1)",
           _between("first_event_ns", "last_content_ns", 1)),
    Figure("GuideLLM", "TTFT", _FIRST_CONTENT, _TTFT),
    Figure("GuideLLM", "ITL", _MEAN_GAP, _TPOT),
    Figure("GuideLLM", "TPOT", "last content / tokens: TTFT is in it",
           _between("", "last_content_ns", 0)),
    Figure("AIPerf", "TTFT", _FIRST_CONTENT, _TTFT),
    Figure("AIPerf", "ITL", _MEAN_GAP, _TPOT),
    Figure("GenAI-Perf", "ITL", _MEAN_GAP, _TPOT),
    Figure("LLMPerf", "TTFT", "to the first visible text", _TEXT),
    Figure("inference-perf", "TTFT", "to the first visible text", _TEXT),
    Figure("inference-perf", "TPOT", "(last content - first visible text) / (tokens - 1)",
           _between("first_text_ns", "last_content_ns", 1)),
    Figure("sglang.bench_serving", "TTFT", _FIRST_CONTENT, _TTFT),
    Figure("sglang.bench_serving", "TPOT", "(end - first content) / (tokens - 1)",
           _between("ttft_ns", "e2e_ns", 1)),
    Figure("trtllm-bench", "TTFT", "to the first output, inside the engine's process", _TTFT),
    Figure("trtllm-bench", "TPOT", "(end - first output) / (tokens - 1)", _TPOT),
)  # fmt: skip


def summary(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return each figure's mean and quantiles over the requests that succeeded, as plain JSON.

    Figures that no request has are left out; a quantile that would be the maximum is `None`.
    """
    done, found = [row for row in rows if row.outcome == "success"], []
    for figure in FIGURES:
        known = [value for value in map(figure.of, done) if value is not None]
        if known:
            sample = Sample.of_known(np.array(known))
            figures = {f"{QUANTILE_NAMES[q]}_s": sample.quantile(q) for q in QUANTILES}
            found.append({"tool": figure.tool, "figure": figure.name, "definition": figure.means,
                          "requests": len(known), "mean_s": sample.mean, **figures})  # fmt: skip
    return found
