"""Split each request's metric into stages and `unattributed`.

The parts of every request add up to its metric. Time without a known stage is `unattributed`: one
piece, never guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.row import TURN
from llmtrace.core.stages import BEFORE_CONTENT, PARTITION, STAGES
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.result import Metric

METRICS: Final[tuple[Metric, ...]] = ("ttft", "tpot", "e2e", "render")

_STRAYS: Final = 1.63  # Kolmogorov-Smirnov statistic that chance exceeds once in a hundred
_ROUNDING_S: Final = 1e-6  # rows keep decimal seconds; less than this is 0


@dataclass(frozen=True, slots=True)
class Values:
    """A metric of the rows that report it.

    Attributes:
        index: the rows.
        t: when each started, unix seconds.
        value: the metric, seconds (per token, for tpot).
        weight: how many requests each row stands for.
        censored: rows that were cut short before the metric could be measured.
        censored_t: when each of those started, unix seconds.
        at_least: a lower bound of the metric of each of those, seconds.
    """

    metric: Metric
    index: NDArray[np.intp]
    t: Floats
    value: Floats
    weight: Floats
    censored: NDArray[np.intp]
    censored_t: Floats
    at_least: Floats

    def __len__(self) -> int:
        return len(self.value)


def first_content(rows: Columns) -> Columns:
    """Add a time to first content to unary responses that used to be streamed, or are elsewhere.

    A client sees the first content of a unary response at its end. That counts as `ttft` if the
    share of streamed requests of the same operation, model and route changed over time; requests
    that are never streamed have no TTFT. Rows are by start.
    """
    stream = rows.numbers["stream"]
    mine = ~rows.words["operation"].where(TURN) & ~np.isnan(stream)
    if not mine.any() or np.ptp(stream[mine]) == 0:
        return rows
    changed = np.zeros(len(rows), bool)
    key = np.zeros(int(mine.sum()), np.int64)
    for words in (rows.words[name] for name in ("operation", "model", "route")):
        key = key * (len(words.names) + 1) + words.codes[mine] + 1
    _, group = np.unique(key, return_inverse=True)
    order = np.argsort(group, kind="stable")
    edges = np.flatnonzero(np.diff(group[order])) + 1
    for index in np.split(np.flatnonzero(mine)[order], edges):
        share = float(stream[index].mean())
        # How far the cumulated count strays from an even one (Kolmogorov-Smirnov).
        strays = float(np.abs(np.cumsum(stream[index] - share)).max())
        spread = np.sqrt(len(index) * share * (1 - share))
        changed[index] = strays > _STRAYS * spread > 0
    whole = changed & (stream == 0) & rows.words["outcome"].where("success")
    whole &= np.isnan(rows.numbers["ttft_s"])
    ttft = np.where(whole, rows.numbers["e2e_s"], rows.numbers["ttft_s"])
    return replace(rows, numbers={**rows.numbers, "ttft_s": ttft})


def values(rows: Columns, metric: Metric) -> Values:
    """Return a metric of every row that reports it.

    `ttft` and `tpot` leave out turns of agents. `e2e` and `render` measure what users wait for:
    they leave out requests inside a turn, and those that failed or were cut short, whose full
    duration is unknown.
    """
    number = rows.numbers
    outcome = rows.words["outcome"]
    cut = outcome.where("timeout", "cancelled")
    if metric in ("ttft", "tpot"):
        mine = ~rows.words["operation"].where(TURN)
        reported = mine & ~np.isnan(number[f"{metric}_s"])
    else:
        cut |= outcome.where("truncated")
        mine = ~(number["nested"] == 1) & ~outcome.where("error")
        reported = mine & ~np.isnan(number[f"{metric}_s"]) & ~cut
    index = np.flatnonzero(reported)
    censored = np.flatnonzero(mine & cut & ~reported & ~np.isnan(number["e2e_s"]))
    if metric in ("tpot", "render"):
        censored = censored[:0]  # a partial duration is no bound of a pace
    return Values(
        metric=metric,
        index=index,
        t=rows.start[index] / 1e9,
        value=number[f"{metric}_s"][index],
        weight=rows.weights[index],
        censored=censored,
        censored_t=rows.start[censored] / 1e9,
        at_least=number["e2e_s"][censored],
    )


def unreported(sides: tuple[Columns, Columns]) -> tuple[str, ...]:
    """Return the stages that no row of either window reports."""
    return tuple(
        name for name in STAGES
        if all(np.isnan(rows.numbers[f"{name}_s"]).all() for rows in sides)
    )  # fmt: skip


def split(rows: Columns, metric: Metric, index: NDArray[np.intp]) -> Floats:
    """Split a metric of these rows into a column for each of `PARTITION`, adding up to it."""
    value = rows.numbers[f"{metric}_s"][index]

    def known(name: str) -> Floats:
        return np.nan_to_num(rows.numbers[name][index], nan=0.0)

    if metric == "ttft":
        columns = {name: known(f"{name}_s") for name in BEFORE_CONTENT}
        # The first content of a unary response comes after all of it is decoded.
        whole = rows.numbers["stream"][index] == 0
        columns["decode"] = np.where(whole, known("decode_s"), 0.0)
        consumer = np.minimum(known("held_before_s"), known("render_s"))
        return _fit(value, columns, "render", consumer)
    if metric == "tpot":
        gaps = np.maximum(known("output_tokens") - 1, 1)
        consumer = np.maximum(known("render_s") - known("held_before_s"), 0.0) / gaps
        render = np.minimum(consumer, value)
        waited = ~np.isnan(rows.numbers["decode_s"][index])
        return _fit(value, {"render": render, "decode": np.where(waited, value - render, 0.0)})
    if metric == "e2e":
        return _fit(value, {name: known(f"{name}_s") for name in STAGES})
    return _fit(value, {"render": value})


def _fit(
    value: Floats, columns: dict[str, Floats], last: str = "", most_last: Floats | None = None
) -> Floats:
    """Arrange columns so that they add up to `value`.

    Excess is cut from the last column backwards. A remainder goes to the stage `last`, up to
    `most_last`, and then to `unattributed`.
    """
    parts = np.zeros((len(value), len(PARTITION)))
    for name, column in columns.items():
        parts[:, PARTITION.index(name)] = column
    rest = value - parts.sum(axis=1)
    for name in reversed(list(columns)):
        if not (rest < 0).any():
            break
        column = parts[:, PARTITION.index(name)]
        cut = np.minimum(np.maximum(-rest, 0.0), column)
        column -= cut
        rest += cut
    if most_last is not None:
        taken = np.minimum(np.maximum(rest, 0.0), most_last)
        parts[:, PARTITION.index(last)] += taken
        rest = rest - taken
    # A rounding error goes to the largest part, not to `unattributed`.
    tiny = np.abs(rest) < _ROUNDING_S
    rows = np.flatnonzero(tiny)
    parts[rows, parts[rows].argmax(axis=1)] += rest[rows]
    parts[~tiny, -1] += rest[~tiny]
    return parts


def slow(one: Values, threshold: float) -> tuple[NDArray[np.intp], Mask]:
    """Return the requests and whether each is slower than a threshold, including those cut short.

    A request that was cut short below the threshold is left out: its full duration is unknown.

    Returns:
        The rows, in order of time, and whether each is slow.
    """
    surely = one.at_least > threshold
    index = np.concatenate([one.index, one.censored[surely]])
    above = np.concatenate([one.value > threshold, np.ones(int(surely.sum()), bool)])
    order = np.argsort(np.concatenate([one.t, one.censored_t[surely]]), kind="stable")
    return index[order], above[order]
