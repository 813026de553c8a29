"""Find the highest rate of requests at which an endpoint holds a latency budget.

The rate is doubled until the budget is broken, then halved in between, then measured around the
limit. A logistic curve through what was seen near it (share of requests inside over the logarithm
of the rate) gives the rate, with the certainty that the requests together allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.budget import Budget
from llmtrace.dataset.columns import Columns
from llmtrace.run_comparison.run_totals import inside_limits, succeeded
from llmtrace.stats.arrays import Floats, Mask

Measure = Callable[[float, int], Columns]

_NS: Final = 1_000_000_000
_SETTLING: Final = 0.2  # of a run, until the queue is as long as it stays
_GROWTH: Final = 0.05
_BATCHES: Final = 5
_MIN_BATCH: Final = 8
_SIGMA: Final = 1.9  # of about 7 degrees of freedom, one in 20 is further below
_DOUBLINGS: Final = 20
_BRACKET: Final = 1.12
_NEAR: Final = 1.3  # of the limit: what is further away says nothing about it
_AROUND: Final = (0.96, 1.03, 0.98, 1.0, 0.94, 1.02, 0.97, 0.99, 0.95, 1.01)  # of the limit
_MIN_AROUND: Final = 15  # with fewer, a limit that is too high by chance ends the search
_MAX_AROUND: Final = 60
_CLOSE: Final = 1.035  # the limit is this much above what is certain: near enough
_ITERATIONS: Final = 30
# Of a queue: a tenth more requests a second, and the odds of being inside are 2.7 times less.
_PRIOR: Final = np.array([0.0, -10.0])
_PRECISION: Final = np.diag([0.01, 0.03])
_RARE: Final = 0.02  # share outside, below which counts are too small to show how they vary
_PASSES: Final = 2
_GRID: Final = 400
_REACH: Final = math.log(2)  # below the limit, of what the curve is believed for


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTrial:
    """What was seen at one rate.

    Attributes:
        rate: requests a second that were sent, on average; by chance it differs by some per cent
            from the rate that was intended.
        requests: that count: those after the first fifth of the time.
        share: of them inside the limit that holds worst.
        spread: variance of one request's worth of that share.
        worst: the limit that holds worst, by its name.
        wanted: the share that must be inside that limit.
        keeps_up: responses end as often as requests start.
        goodput: requests a second inside all limits.
    """

    rate: float
    requests: int
    share: float
    spread: float
    worst: str
    wanted: float
    keeps_up: bool
    goodput: float

    @property
    def holds(self) -> bool:
        """Whether the budget holds by what was seen, chance apart."""
        return self.keeps_up and self.share >= self.wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        rate: requests a second at which the budget holds with 95 % certainty; `None` = none.
        limit: the rate at which it is as likely as not to hold; `None` = not reached, or none.
        trials: every rate that was measured, in that order.
    """

    rate: float | None
    limit: float | None
    trials: Sequence[RateTrial]


def find_rate(measure: Measure, budget: Budget, start: float, count: int) -> Found:
    """Search for the highest rate that holds a budget.

    Args:
        measure: sends so many requests at a rate, and returns their rows.
        budget: its limits for requests as their users see them (TTFT, TPOT, e2e), each for the
            budget's objective, and its availability.
        start: rate to begin with, a second.
        count: requests of one trial.
    """
    trials: list[RateTrial] = []

    def holds_at(rate: float) -> bool:
        trials.append(judge(measure(rate, count), budget, rate))
        return trials[-1].holds

    low, high = _bracket(holds_at, start)
    if low is None or high is None:
        return Found(rate=low, limit=None, trials=trials)
    while high / low > _BRACKET:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds_at(middle) else (low, middle)
    limit = math.sqrt(low * high)
    for i in range(_MAX_AROUND):
        certain, limit = crossing(trials, limit)
        if i >= _MIN_AROUND and limit <= _CLOSE * certain:
            break
        holds_at(_AROUND[i % len(_AROUND)] * limit)
    certain, limit = crossing(trials, limit)
    return Found(rate=certain or None, limit=limit, trials=trials)


def _bracket(holds_at: Callable[[float], bool], rate: float) -> tuple[float | None, float | None]:
    """Return a rate that holds and a higher one that does not, by doubling or halving."""
    low, high = None, None
    for _ in range(_DOUBLINGS):
        if holds_at(rate):
            low = rate
        else:
            high = rate
        if low is not None and high is not None:
            break
        rate *= 2 if high is None else 0.5
    return low, high


def crossing(trials: Sequence[RateTrial], about: float) -> tuple[float, float]:
    """Return the highest rate that holds with 95 % certainty, and the limit itself.

    By a logistic curve through the trials near the limit; where no rate near it is certain, the
    lowest near it is returned as the limit, and 0 as certain.
    """
    near = [one for one in trials if about / _NEAR <= one.rate <= about * _NEAR]
    at = np.log([one.rate / about for one in near])
    x = np.stack([np.ones(len(near)), at], axis=1)
    requests = np.array([one.requests for one in near], float)
    share = np.array([one.share if one.keeps_up else 0.0 for one in near])
    # From here on 0 is the share wanted, so that limits of several shares are on one curve.
    offset = np.array([math.log(one.wanted / (1 - one.wanted)) for one in near])
    alike = design(near)
    for _ in range(_PASSES):
        curve, spread = _logistic(x, offset, share, requests / alike)
        fitted = _share(x @ curve + offset)
        # Trials are separate runs: their differences show how far requests of one run share fate.
        alone = np.maximum(fitted * (1 - fitted), _RARE * (1 - _RARE))
        apart = requests * (share - fitted) ** 2 / alone
        alike = max(alike, float(apart.sum()) / max(len(near) - 2, 1))
    grid = np.linspace(-_REACH, math.log(_NEAR), _GRID)
    line = np.stack([np.ones(_GRID), grid], axis=1)
    middle = line @ curve
    below = middle - _SIGMA * np.sqrt(np.einsum("ij,jk,ik->i", line, spread, line))
    certain, limit = (grid[values >= 0] for values in (below, middle))
    highest = about * math.exp(limit.max(initial=grid[0]))
    return (about * math.exp(certain.max()) if len(certain) else 0.0), highest


def _logistic(x: Floats, offset: Floats, share: Floats, count: Floats) -> tuple[Floats, Floats]:
    """Fit a logistic curve to shares of so many requests; return it and its covariance."""
    curve: Floats = _PRIOR
    spread: Floats = np.eye(2)
    for _ in range(_ITERATIONS):
        fitted = _share(x @ curve + offset)
        weight = count * fitted * (1 - fitted)
        spread = np.linalg.inv((x.T * weight) @ x + _PRECISION).astype(float)
        step = spread @ (x.T @ (count * (share - fitted)) - _PRECISION @ (curve - _PRIOR))
        curve = curve + step / max(1.0, float(np.abs(step).max()) / 5)
    return curve, spread


def _share(logit: Floats) -> Floats:
    share: Floats = 1 / (1 + np.exp(-np.clip(logit, -20, 20)))
    return share


def judge(rows: Columns, budget: Budget, rate: float) -> RateTrial:
    """Return whether requests sent at a rate were inside a budget, and how certain that is."""
    rows = rows.take(np.argsort(rows.start, kind="stable"))
    t = (rows.start - rows.start[0]) / _NS
    settled = t >= _SETTLING * t[-1]
    keeps_up, seconds = _keeps_up(rows, t), float(t[-1] - t[settled][0])
    rows = rows.take(settled)
    inside = _inside(rows, budget)
    worst = min(inside, key=lambda name: float(inside[name][0].mean()) - inside[name][1])
    mask, wanted = inside[worst]
    everything = np.logical_and.reduce([mask for mask, _ in inside.values()])
    return RateTrial(
        rate=float((len(t) - 1) / t[-1]) if t[-1] > 0 else rate,
        requests=rows.n,
        share=float(mask.mean()),
        spread=_spread(mask),
        worst=worst,
        wanted=wanted,
        keeps_up=keeps_up,
        goodput=float(everything.sum()) / seconds if seconds > 0 else 0.0,
    )


def _inside(rows: Columns, budget: Budget) -> Mapping[str, tuple[Mask, float]]:
    """Return which requests are inside each limit, and the share that must be."""
    done = succeeded(rows)
    inside = {
        name: (done & mask, budget.objective) for name, mask in inside_limits(rows, budget).items()
    }
    inside["success"] = (done, budget.availability or budget.objective)
    return inside


def _spread(inside: Mask) -> float:
    """Return the variance of one request's worth of a share, by how much batches differ.

    It is `share * (1 - share)` where requests are independent, and more where they share fate.
    """
    n, share = len(inside), float(inside.mean())
    batches = min(_BATCHES, n // _MIN_BATCH)
    alone = share * (1 - share)
    if batches <= 1:
        return alone
    means = [float(part.mean()) for part in np.array_split(inside, batches)]
    return max(alone, float(np.var(means, ddof=1)) * n / batches)


def design(trials: Sequence[RateTrial]) -> float:
    """Return how many requests are worth one that shares fate with no other, at least 1."""
    alone = sum(one.requests * one.share * (1 - one.share) for one in trials)
    return max(1.0, sum(one.requests * one.spread for one in trials) / alone) if alone else 1.0


def _keeps_up(rows: Columns, t: Floats) -> bool:
    """Return whether as many responses ended as requests started, once the run had settled."""
    e2e = np.nan_to_num(rows.numbers["e2e_s"])
    first, last = _SETTLING * t[-1], t[-1]
    started, ended = (int(((at > first) & (at <= last)).sum()) for at in (t, t + e2e))
    usually_open = started / max(last - first, 1e-9) * float(np.median(e2e))
    return started - ended <= _GROWTH * started + 3 * math.sqrt(max(usually_open, 1.0))
