"""Assess how far the data support the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from llmtrace.core.row import TURN
from llmtrace.dataset.columns import Columns, Doubt
from llmtrace.stats.quantiles import least_values
from llmtrace.triage.attribution.components import Values, unreported
from llmtrace.triage.attribution.divide_change import Divided
from llmtrace.triage.attribution.workload_mix import lengths_unknown
from llmtrace.triage.comparison.p95_change import Compared
from llmtrace.triage.report.naming import number_of
from llmtrace.triage.result import Q, Quality
from llmtrace.triage.verdict import BURSTS

_FEW: Final = 200
_MIN_COVERAGE: Final = 0.8
_CENSORED: Final = 0.05
_SHOWN: Final = 3
_NEW: Final = 0.01  # share of requests, for a new kind to be mentioned
_SAMPLED: Final = 1.01  # requests per row, beyond rounding of weights


def quality_of(
    both: tuple[Values, Values],
    compared: Compared,
    divided: Divided,
    *,
    rows: tuple[Columns, Columns],
    there: int,
    stands_for: float,
    duplicates: int,
    warnings: Sequence[str],
    intervals: bool,
) -> Quality:
    """Assess how far to trust a triage.

    Args:
        both: the metric of the rows before and after.
        compared: the metric compared.
        divided: its change by parts.
        rows: of the windows, as used.
        there: rows in the windows.
        stands_for: requests that those were sampled from, by their weights.
        duplicates: repeated rows that were removed.
        warnings: from reading the data.
        intervals: whether intervals were computed, if any were requested.
    """
    found = Quality(
        n=(len(both[0]), len(both[1])), coverage=_coverage(divided),
        censored=(len(both[0].censored), len(both[1].censored)),
        clustered=max(compared.design), duplicates=duplicates,
        unmatched_share=divided.cells.unmatched_share,
        effective_n=None if divided.found is None else divided.found.effective_n,
        matched_on=divided.cells.matched_on,
        unreported=(*(["mix"] if lengths_unknown(rows, both[0].metric) else []),
                    *unreported(rows)),
        values={name: len(np.unique(rows[1].words[name].codes[rows[1].words[name].codes >= 0]))
                for name in ("model", "route", "region", "replica", "tenant")},
        sampled=sum(map(len, rows)) / there if there else 1.0,
    )  # fmt: skip
    notes = [*warnings, *_of_the_rows(found, both[1].metric, there, stands_for)]
    notes += _without(rows, both)
    notes += [
        f"{100 * share:.0f} % of the requests are new: {kind}"
        for kind, share in divided.cells.new[:_SHOWN]
        if share >= _NEW
    ]
    if duplicates:
        notes.append(f"{duplicates:,} rows were there twice, and left out once")
    if not intervals:
        notes.append("no intervals: a window is too short to resample in blocks of 10 s")
    return replace(
        found,
        doubts=tuple(one for one in notes if isinstance(one, Doubt)),
        warnings=tuple(dict.fromkeys(one for one in notes if not isinstance(one, Doubt))),
    )


def _of_the_rows(found: Quality, metric: str, there: int, stands_for: float) -> Iterator[str]:
    """Yield doubts about the rows themselves."""
    if stands_for > _SAMPLED * there:
        yield (
            f"a sample: these {there:,} rows stand for {stands_for:,.0f} requests; rates and "
            "shares are of all of them, counts of rows"
        )
    n, censored = found.n, found.censored
    if least_values(Q) <= min(n) < _FEW:
        yield f"few requests ({n[0]:,} before, {n[1]:,} after): wide intervals"
    if found.coverage == 0:
        yield "no stages are reported: all of the time is unattributed"
    elif found.coverage is not None and found.coverage < _MIN_COVERAGE:
        yield (
            f"stages are known for {100 * found.coverage:.0f} % of the typical request's time: "
            "the rest is unattributed"
        )
    if found.clustered is not None and found.clustered > BURSTS:
        yield f"slow requests come in bursts: wide intervals (design effect {found.clustered:.0f})"
    if censored[1] > _CENSORED * max(n[1], 1) and censored[1] > censored[0]:
        yield (
            f"{number_of(censored[1])} ended before {metric} was known: "
            "the true p95 after is higher"
        )


def _without(rows: tuple[Columns, Columns], both: tuple[Values, Values]) -> Iterator[str]:
    """Say how many successful requests lack the metric, and so are left out."""
    metric = both[0].metric
    done = [side.words["outcome"].where("success") & ~side.words["operation"].where(TURN)
            for side in rows]  # fmt: skip
    lacking = [mask & np.isnan(side.numbers[f"{metric}_s"])
               for side, mask in zip(rows, done, strict=True)]  # fmt: skip
    n, lack = ([int(mask.sum()) for mask in masks] for masks in (done, lacking))
    if all(lack[i] <= _CENSORED * n[i] for i in (0, 1)):
        return
    unsaid = np.isnan(rows[1].numbers["stream"][lacking[1]]).any() and metric == "ttft"
    hint = "; `stream: false` says of a request that it was not streamed" if unsaid else ""
    yield (
        f"left out, as they report no {metric}: {lack[0]:,} of {number_of(n[0])} that succeeded "
        f"before, {lack[1]:,} of {n[1]:,} after{hint}"
    )


def _coverage(divided: Divided) -> float | None:
    """Return the median share of a request's time after that has a known stage."""
    value = divided.after.value
    positive = value > 0
    if not positive.any():
        return None
    unknown = divided.after.staged.parts[positive, -1] / value[positive]
    return float(np.clip(1.0 - np.median(unknown), 0.0, 1.0))
