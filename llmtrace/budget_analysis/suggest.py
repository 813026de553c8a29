"""Suggest an allocation that adds up, from where slow requests spend their time.

Percentiles of stages do not add up to the percentile of the whole, since the slowest requests of
each stage are rarely the same ones. So the time of the request *at* the percentile is allocated
instead: the Euler allocation, with Harrell and Davis's weights, whose parts add up exactly. For
comparison the common quantile is computed: the p at which the stages' own quantiles add up to the
total. Both are resampled by whole requests, so that correlated stages stay together.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from llmtrace.budget.model import Budget
from llmtrace.budget_analysis.check import FRONT
from llmtrace.core.errors import DataError
from llmtrace.core.row import TURN
from llmtrace.core.stages import PARTITION, STAGES, UNATTRIBUTED, StageName
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats
from llmtrace.stats.quantiles import least_values
from llmtrace.stats.significance import harrell_davis

_DRAWS: Final = 400
_MAX_DRAWN: Final = 4_000_000  # values sorted in all: seconds, not minutes
_STEPS: Final = 60
_SHORT_S: Final = 0.1  # below it milliseconds are too coarse
_FINE_S: Final = 1e-5  # then they are rounded to so much
_PLACES: Final = 9  # of seconds: a budget is written, and its bounds are, in whole nanoseconds
_THREE_DIGITS: Final = 100
_WIDTH: Final = 96


@dataclass(frozen=True, slots=True)
class Share:
    """The allocation of one stage. Durations in seconds; `None` = not reported.

    Attributes:
        name: of the stage, or `unattributed`.
        known: how many of the requests report it.
        p50_s: its median.
        high_s: its own quantile at the objective. These do not add up.
        spent_s: what the request at the objective spends in it. These do.
        euler_s: its allocation by that.
        low_s: between which `euler_s` lies in 95 % of the draws.
        top_s: its other end.
        common_s: its allocation by the common quantile.
    """

    name: str
    known: int
    p50_s: float | None
    high_s: float | None
    spent_s: float
    euler_s: float
    low_s: float
    top_s: float
    common_s: float | None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """An allocation, and what it is based on. Durations in seconds.

    Attributes:
        budget: the suggested one; it adds up.
        rows: requests that succeeded, which it is made of.
        shares: the allocation of each stage.
        measured_s: the quantile of e2e at the objective, as estimated here.
        sum_of_highs_s: what the stages' own quantiles come to.
        common_p: at which the stages' own quantiles add up to what is allocated; `None` = nowhere.
        all_within: share of the requests of which every stage is within its own quantile.
        kept: share of the requests within the total if every stage came down (or up) to its
            allocation, each request as it is; and between what that lies in 95 % of the draws.
        notes: remarks about the data and the result.
    """

    budget: Budget
    rows: int
    shares: tuple[Share, ...]
    measured_s: float
    sum_of_highs_s: float
    common_p: float | None
    all_within: float
    kept: tuple[float, float, float]
    notes: tuple[str, ...]


def suggest(
    rows: Columns,
    *,
    total_s: float | None = None,
    objective: float = 0.95,
    buffer: float = 0.0,
    name: str = "suggested",
    model: tuple[str, ...] = (),
    route: tuple[str, ...] = (),
) -> Suggestion:
    """Allocate a total to the stages, by what requests spend in them.

    Args:
        rows: requests; those that succeeded count.
        total_s: what the whole may take; default: what it takes now.
        objective: the quantile the total is for, 0 to 1.
        buffer: share of the total that is kept free, 0 to 1.
        name: of the budget.
        model: models that the budget covers; all rows are requests to them.
        route: the same for routes.

    Raises:
        DataError: too few requests succeeded to bound their quantile.
    """
    rows = _succeeded(rows, objective)
    whole = rows.numbers["e2e_s"]
    reported = np.column_stack([rows.numbers[f"{one}_s"] for one in PARTITION])
    parts = np.nan_to_num(reported)  # time not reported is in another stage of the same request
    weights = harrell_davis(rows.n, objective)
    spent = weights @ parts[np.argsort(whole, kind="stable")]
    measured = float(spent.sum())
    goal = _rounded_up(measured) if total_s is None else round(total_s, _PLACES)
    allocated = goal * (1 - buffer)
    limited = np.isfinite(reported).any(axis=0) & (np.array(PARTITION) != UNATTRIBUTED)
    euler = _whole_ms(spent * (allocated / measured), allocated, limited.astype(np.float64))
    common_p, common = _common(parts, allocated)
    scale = np.divide(euler, spent, out=np.ones_like(spent), where=spent > 0)
    drawn, kept = _draw(parts, whole, scale, (allocated, goal), objective=objective)
    highs = np.quantile(parts, objective, axis=0)
    share = partial(
        _share, reported, objective=objective, spent=spent, euler=euler, drawn=drawn, common=common
    )
    shares = tuple(
        share(i) for i in range(len(PARTITION)) if PARTITION[i] != UNATTRIBUTED or spent[i] > 0
    )
    budget, notes = _budget(rows, shares, goal, objective=objective, name=name, weights=weights)
    return Suggestion(
        budget=replace(budget, model=model, route=route),
        rows=rows.n,
        shares=shares,
        measured_s=measured,
        sum_of_highs_s=float(highs.sum()),
        common_p=common_p,
        all_within=float(np.mean(np.all(parts <= highs, axis=1))),
        kept=kept,
        notes=notes,
    )


def _succeeded(rows: Columns, objective: float) -> Columns:
    good = rows.words["outcome"].where("success") & ~rows.words["operation"].where(TURN)
    rows = rows.take(good & np.isfinite(rows.numbers["e2e_s"]))
    if rows.n < (least := least_values(objective)):
        raise DataError(
            f"{rows.n} requests succeeded; a p{100 * objective:g} has no upper bound with fewer "
            f"than {least}: measure more, or take a lower objective"
        )
    return rows


def _share(
    reported: Floats,
    i: int,
    *,
    objective: float,
    spent: Floats,
    euler: Floats,
    drawn: Floats,
    common: Floats | None,
) -> Share:
    known = reported[np.isfinite(reported[:, i]), i]
    low, top = np.quantile(drawn[:, i], (0.025, 0.975))
    return Share(
        name=PARTITION[i],
        known=len(known),
        p50_s=float(np.median(known)) if len(known) else None,
        high_s=float(np.quantile(known, objective)) if len(known) else None,
        spent_s=float(spent[i]),
        euler_s=float(euler[i]),
        low_s=float(low),
        top_s=float(top),
        common_s=None if common is None else float(common[i]),
    )


def _draw(
    parts: Floats,
    whole: Floats,
    scale: Floats,
    totals: tuple[float, float],
    *,
    objective: float,
) -> tuple[Floats, tuple[float, float, float]]:
    """Draw whole requests with replacement; return allocations, and the share within the total.

    `totals` are what is allocated, and the whole budget: that and the buffer.
    """
    allocated, goal = totals
    n = len(whole)
    draws = max(min(_DRAWS, _MAX_DRAWN // n), 50)
    chance = np.random.default_rng(0)
    weights = harrell_davis(n, objective)
    inside = parts @ scale <= goal * (1 + 1e-9)
    allocations = np.empty((draws, parts.shape[1]))
    kept = np.empty(draws)
    for i in range(draws):
        which = chance.integers(0, n, n)
        order = which[np.argsort(whole[which], kind="stable")]
        found = weights @ parts[order]
        allocations[i] = found * (allocated / found.sum())
        kept[i] = inside[which].mean()
    low, top = np.quantile(kept, (0.025, 0.975))
    return allocations, (float(inside.mean()), float(low), float(top))


def _common(parts: Floats, allocated: float) -> tuple[float | None, Floats | None]:
    """Return the p at which the stages' quantiles add up to what is allocated, and these."""
    low, top = 0.0, 1.0
    if not parts.min(axis=0).sum() <= allocated <= parts.max(axis=0).sum():
        return None, None
    ordered = np.sort(parts, axis=0)
    at = np.linspace(0, 1, len(ordered))

    def quantiles(p: float) -> Floats:
        found: Floats = np.array([np.interp(p, at, column) for column in ordered.T])
        return found

    for _ in range(_STEPS):
        middle = (low + top) / 2
        if quantiles(middle).sum() < allocated:
            low = middle
        else:
            top = middle
    return top, quantiles(top)


def _whole_ms(seconds: Floats, total: float, least: Floats) -> Floats:
    """Round to milliseconds, or to hundredths of them where the total is short.

    They add up to the total, rounded down to whole units. A stage gets at least `least` units, 1
    or 0: a stage with none would have no limit instead of a low one.
    """
    unit = 1e-3 if total >= _SHORT_S else _FINE_S
    there = math.floor(round(total / unit, 6))
    exact = seconds / unit
    floors = np.floor(exact)
    if there >= least.sum():
        floors = np.maximum(floors, least)
    missing = there - int(floors.sum())
    largest = np.argsort(floors - exact, kind="stable")[: max(missing, 0)]
    floors[largest] += 1
    for _ in range(-missing):
        floors[np.argmax(floors)] -= 1
    rounded: Floats = np.round(floors * unit, 5)
    return rounded


def _rounded_up(seconds: float) -> float:
    unit = 0.01 if seconds >= _SHORT_S else _FINE_S
    return round(math.ceil(round(seconds / unit, 6)) * unit, _PLACES)


def _budget(
    rows: Columns,
    shares: tuple[Share, ...],
    goal: float,
    *,
    objective: float,
    name: str,
    weights: Floats,
) -> tuple[Budget, tuple[str, ...]]:
    notes = []
    allocated: dict[StageName, float] = {
        stage: share.euler_s
        for stage in STAGES
        for share in shares
        if share.name == stage and share.known and share.euler_s > 0
    }
    unsplit = sum(share.euler_s for share in shares if share.name == UNATTRIBUTED)
    missing = [share.name for share in shares if not share.known]
    if missing:
        notes.append(
            f"not reported: {', '.join(missing)}; that time is in unattributed, and they get "
            "nothing"
        )
    together = math.fsum(allocated.values())
    front = math.fsum(allocated.get(stage, 0.0) for stage in FRONT)
    own = ttft = _ttft(rows, goal, objective)
    if any(stage in missing for stage in FRONT):
        # What could not be split lies before the first content: the limit on it covers both.
        together += unsplit
        ttft = None if own is None else round(front + unsplit, 5) or None
        if own is not None and ttft is not None and ttft < own:
            notes.append(
                f"ttft stands for the stages before the first content, so that all adds up: "
                f"{_ms(ttft)} ms; its own quantile at this total is {_ms(own)} ms"
            )
    else:
        if unsplit > 0:
            notes.append(f"{unsplit * 1000:.4g} ms could not be split, and are in the buffer")
        ttft = None if own is None else min(max(own, round(front, 5)), goal)
    rest = goal - together
    tokens, tpot = _tokens(rows, allocated.get("decode"), weights)
    return (
        Budget(
            name=name,
            objective=objective,
            total_s=goal,
            ttft_s=ttft,
            tpot_s=tpot,
            tokens=tokens,
            stages_s=allocated,
            buffer_s=max(round(rest, _PLACES), 0.0),
        ),
        tuple(notes),
    )


def _ttft(rows: Columns, goal: float, objective: float) -> float | None:
    """Return the limit that TTFT gets: its own quantile, brought down as the whole is."""
    ttft, whole = rows.numbers["ttft_s"], rows.numbers["e2e_s"]
    known = np.sort(ttft[np.isfinite(ttft)])
    if not len(known):
        return None
    high = harrell_davis(len(known), objective) @ known
    measured = harrell_davis(len(whole), objective) @ np.sort(whole)
    return math.ceil(float(high) * goal / float(measured) * 1000) / 1000


def _tokens(
    rows: Columns, decode: float | None, weights: Floats
) -> tuple[int | None, float | None]:
    """Return how many tokens the request at the quantile has, and what each may take."""
    tokens = rows.numbers["output_tokens"][np.argsort(rows.numbers["e2e_s"], kind="stable")]
    known = np.isfinite(tokens)
    if decode is None or not known.any() or weights[known].sum() <= 0:
        return None, None
    mean = float(weights[known] @ tokens[known] / weights[known].sum())
    count = max(round(mean), 1)
    # Faster than can be written down: there is no limit, rather than one that nothing meets.
    return count, math.floor(decode / count / _FINE_S) * _FINE_S or None


def as_text(suggestion: Suggestion) -> str:
    """Show each stage's allocation, and why it is not its own percentile."""
    budget = suggestion.budget
    high = f"p{100 * budget.objective:g}"
    heading = (
        "stage",
        "p50",
        f"stage {high}",
        f"{high} request",
        "allocation",
        "95% CI",
        "common",
    )
    rows = [
        (
            share.name,
            _ms(share.p50_s),
            _ms(share.high_s),
            _ms(share.spent_s),
            _ms(share.euler_s),
            f"{_ms(share.low_s)}-{_ms(share.top_s)}",
            _ms(share.common_s),
        )
        for share in suggestion.shares
    ]
    allocated = _ms(math.fsum(share.euler_s for share in suggestion.shares))
    highs, whole = _ms(suggestion.sum_of_highs_s), _ms(suggestion.measured_s)
    common = "-" if suggestion.common_p is None else allocated
    head = (
        f"{suggestion.rows} requests; the {high} of the whole is {whole} ms, and "
        f"{_ms(budget.total_s)} ms are to allocate. In ms:"
    )
    return "\n".join(
        [
            head,
            "",
            *_table([heading, *rows, ("sum", "", f"({highs})", whole, allocated, "", common)]),
            "",
            *(
                textwrap.fill(one, _WIDTH, subsequent_indent="  ")
                for one in _sentences(suggestion, high)
            ),
        ]
    )


def _sentences(suggestion: Suggestion, high: str) -> list[str]:
    """Say why the allocation is not each stage's own percentile, and what it is instead."""
    highs = _ms(suggestion.sum_of_highs_s)
    too_much = suggestion.sum_of_highs_s / suggestion.measured_s - 1
    more = "more" if too_much >= 0 else "less"
    at = (
        "there is none here"
        if suggestion.common_p is None
        else f"here p{100 * suggestion.common_p:.1f}"
    )
    kept, low, top = (f"{share:.1%}" for share in suggestion.kept)
    why = (
        f"Why not each stage's own {high}: they come to {highs} ms, {abs(too_much):.0%} {more} "
        f"than the {high} of the whole, and only {suggestion.all_within:.0%} of the requests are "
        "within all of them."
    )
    how = (
        f"{high} request: what a request at the {high} spends in each stage; it adds up. The "
        "allocation is that, scaled to the total; its 95% CI is from resampling whole "
        "requests."
    )
    other = (
        "Common: the stages' quantiles at the one p where they come to the total, "
        f"{at}. Every stage is exceeded as often; but what makes requests slow is given too "
        "little, and all else too much."
    )
    proof = (
        f"With every stage at its allocation {kept} of these requests would be within the "
        f"total ({low} to {top})."
    )
    notes = (f"Note: {note}." for note in suggestion.notes)
    return [why, how, other, proof, *notes]


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    value = seconds * 1000
    return f"{value:,.0f}" if value >= _THREE_DIGITS or value == 0 else f"{value:.3g}"
