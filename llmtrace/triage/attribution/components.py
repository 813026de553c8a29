"""Split each request's metric into parts: stages and `unattributed`.

A metric is split so that every request's parts add up to it. What no stage is known for is
`unattributed`: one piece, never guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.row import TURN
from llmtrace.core.stages import PARTITION, STAGES
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.result import Metric

METRICS: Final[tuple[Metric, ...]] = ("ttft", "tpot", "e2e", "render")

_BEFORE_CONTENT: Final = ("network", "gateway", "queue", "prefill", "first_chunk")
_STRAYS: Final = 1.63  # by chance, one series in a hundred strays so far
_ROUNDING_S: Final = 1e-6  # rows keep decimal seconds: less than this is 0


@dataclass(frozen=True, slots=True)
class Values:
    """A metric of the rows that report it.

    Attributes:
        index: which rows these are.
        t: when each started, unix seconds.
        value: the metric, seconds (a token, for tpot).
        weight: how many requests each row stands for.
        censored: rows that were cut short before the metric could be measured.
        at_least: what the metric of each of those would have been at least.
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
    """Return the rows with a first content for requests that are no longer streamed.

    A client that gets a unary response sees its first content at the end. That counts as `ttft`
    where requests of the same operation, model and route were streamed at another time; what is
    never streamed has no first token.

    Args:
        rows: by start.
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
        # How far the count strays from an even one, as Kolmogorov and Smirnov measure it.
        strays = float(np.abs(np.cumsum(stream[index] - share)).max())
        spread = np.sqrt(len(index) * share * (1 - share))
        changed[index] = strays > _STRAYS * spread > 0
    whole = changed & (stream == 0) & rows.words["outcome"].where("success")
    whole &= np.isnan(rows.numbers["ttft_s"])
    ttft = np.where(whole, rows.numbers["e2e_s"], rows.numbers["ttft_s"])
    return replace(rows, numbers={**rows.numbers, "ttft_s": ttft})


def values(rows: Columns, metric: Metric) -> Values:
    """Read a metric off every row that reports it.

    Turns of agents have no first token of their own: `ttft` and `tpot` leave them out. `e2e` and
    `render` are of what a user waited for: requests inside a turn are left out there, and what
    failed or was cut short says nothing of how long it would have taken.
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
        censored = censored[:0]  # how far they had come says nothing of their pace
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
    """Split a metric of these rows: a column each of `PARTITION`, which come to the metric."""
    value = rows.numbers[f"{metric}_s"][index]

    def known(name: str) -> Floats:
        return np.nan_to_num(rows.numbers[name][index], nan=0.0)

    if metric == "ttft":
        columns = {name: known(f"{name}_s") for name in _BEFORE_CONTENT}
        # The client of a unary response waits for all of it to be decoded.
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
    """Lay columns side by side so that they add up to `value`.

    What is claimed beyond it is cut, from the last claimed back; what is left goes to `last` up
    to `most_last`, and then to `unattributed`.
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
    # What rounding leaves over belongs to the largest part, not to a stage of its own.
    tiny = np.abs(rest) < _ROUNDING_S
    rows = np.flatnonzero(tiny)
    parts[rows, parts[rows].argmax(axis=1)] += rest[rows]
    parts[~tiny, -1] += rest[~tiny]
    return parts


def slow(one: Values, threshold: float) -> tuple[NDArray[np.intp], Mask]:
    """Return which requests are slower than a threshold, those cut short included.

    Of those, one that was cancelled below the threshold might have become either, and is left out.

    Returns:
        Which rows, in order of time, and whether each is slow.
    """
    surely = one.at_least > threshold
    index = np.concatenate([one.index, one.censored[surely]])
    above = np.concatenate([one.value > threshold, np.ones(int(surely.sum()), bool)])
    order = np.argsort(np.concatenate([one.t, one.censored_t[surely]]), kind="stable")
    return index[order], above[order]
