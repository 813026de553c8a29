"""Work out of a row what other load generators would have called its figures.

Each defines TTFT and the time of a token differently. What a row cannot give stays apart: where
their clocks start (docs/reference/definitions.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from llmtrace.core.row import Row
from llmtrace.run_comparison.effects import QUANTILES, Sample
from llmtrace.run_comparison.wording import QUANTILE_NAMES

_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of one tool.

    Attributes:
        tool: whose; `name` = what it calls the figure.
        means: its definition, for people.
        of: seconds of a row by that definition; `None` = the row cannot tell.
    """

    tool: str
    name: str
    means: str
    of: Callable[[Row], float | None]


def _ttft(row: Row) -> float | None:
    return row.ttft_s


def _first_event(row: Row) -> float | None:
    return None if row.first_event_ns is None else row.first_event_ns / _NS


def _first_text(row: Row) -> float | None:
    return None if row.first_text_ns is None else row.first_text_ns / _NS


def _per_token(start_ns: int | None, end_ns: int | None, tokens: int | None) -> float | None:
    if start_ns is None or end_ns is None or not tokens or tokens < 1:
        return None
    return (end_ns - start_ns) / tokens / _NS


def _after_first(start_ns: int | None, end_ns: int | None, row: Row) -> float | None:
    return _per_token(start_ns, end_ns, (row.output_tokens or 0) - 1)


def _tpot(row: Row) -> float | None:
    return row.tpot_s


_MEAN_GAP: Final = "(last - first content) / (tokens - 1)"

FIGURES: Final = (
    Figure("llmtrace", "TTFT", "start of the call to the first content", _ttft),
    Figure("llmtrace", "TPOT", _MEAN_GAP, _tpot),
    Figure("vllm bench serve", "TTFT", "to the first event, of the role too", _first_event),
    Figure("vllm bench serve", "TPOT", "(last content - first event) / (tokens - 1)",
           lambda row: _after_first(row.first_event_ns, row.last_content_ns, row)),
    Figure("GuideLLM", "TTFT", "to the first content", _ttft),
    Figure("GuideLLM", "ITL", _MEAN_GAP, _tpot),
    Figure("GuideLLM", "TPOT", "start to last content / tokens: TTFT is in it",
           lambda row: _per_token(0, row.last_content_ns, row.output_tokens)),
    Figure("AIPerf", "TTFT", "to the first content", _ttft),
    Figure("AIPerf", "ITL", _MEAN_GAP, _tpot),
    Figure("GenAI-Perf", "ITL", _MEAN_GAP, _tpot),
    Figure("LLMPerf", "TTFT", "to the first visible text", _first_text),
    Figure("inference-perf", "TTFT", "to the first visible text", _first_text),
    Figure("inference-perf", "TPOT", "(last content - first visible text) / (tokens - 1)",
           lambda row: _after_first(row.first_text_ns, row.last_content_ns, row)),
    Figure("sglang.bench_serving", "TTFT", "to the first content", _ttft),
    Figure("sglang.bench_serving", "TPOT", "(end - first content) / (tokens - 1)",
           lambda row: _after_first(row.ttft_ns, row.e2e_ns, row)),
    Figure("trtllm-bench", "TTFT", "to the first output, inside the engine's process", _ttft),
    Figure("trtllm-bench", "TPOT", "(end - first output) / (tokens - 1)",
           lambda row: _after_first(row.ttft_ns, row.last_content_ns, row)),
)  # fmt: skip


def summary(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return each figure's mean and quantiles over the requests that succeeded, as plain JSON.

    Figures that no request has are left out, and so is a quantile that would be the maximum.
    """
    done = [row for row in rows if row.outcome == "success"]
    return list(_summaries(done))


def _summaries(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    for figure in FIGURES:
        known = [value for value in map(figure.of, rows) if value is not None]
        if not known:
            continue
        sample = Sample(np.array(known), np.ones(len(known)))
        quantiles = {f"{QUANTILE_NAMES[q]}_s": sample.quantile(q) for q in QUANTILES}
        yield {
            "tool": figure.tool, "figure": figure.name, "definition": figure.means,
            "requests": len(known), "mean_s": sample.mean, **quantiles,
        }  # fmt: skip
