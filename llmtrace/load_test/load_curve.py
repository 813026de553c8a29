"""Put what was measured at several settings of one thing on curves, one for each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from llmtrace.budget import Budget
from llmtrace.dataset.columns import Columns, from_rows
from llmtrace.load_test.send_plan import Measured, bottleneck
from llmtrace.run_comparison.durations import DURATIONS, durations
from llmtrace.run_comparison.effects import QUANTILES, Sample
from llmtrace.run_comparison.run_totals import Totals, succeeded, sum_up
from llmtrace.run_comparison.wording import QUANTILE_NAMES
from llmtrace.stats.arrays import Floats

_EXPONENTS: Final = np.linspace(0.0, 4.0, 401)
_DRAWS: Final = 200
_MIN_POINTS: Final = 3
_OUTSIDE: Final = (0.025, 0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What was measured at one setting.

    Attributes:
        value: of what is varied.
        rows: of the requests that succeeded.
        totals: of all requests.
        problem: how the client itself distorts it, in a sentence; `None` = it does not.
    """

    value: float
    rows: Columns
    totals: Totals
    problem: str | None

    def samples(self) -> dict[str, Sample]:
        """Return each duration that the requests report, by its name."""
        samples = {name: Sample.of_known(values) for name, values in durations(self.rows).items()}
        return {name: sample for name, sample in samples.items() if sample.values.any()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How a duration grows: as a constant plus the varied value to the power `exponent`.

    `low` and `high` are the bounds of the exponent's 95 % interval.
    """

    exponent: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What was measured at several settings of one thing, named by `what`, the lowest first."""

    what: str
    points: Sequence[Point]

    def names(self) -> list[str]:
        """Return the durations that any point reports, without one that duplicates another."""
        found = {name for point in self.points for name in point.samples()}
        if all((point.rows.numbers["stream"] == 1).all() for point in self.points):
            found.discard("first_content")  # it is TTFT
        return [name for name in DURATIONS if name in found]

    def growth(self) -> Mapping[str, Growth]:
        """Return how durations grow with the prompt, where that is what is varied."""
        if self.what != "prompt_tokens":
            return {}
        found = {name: grown(self.points, name) for name in ("ttft", "prefill")}
        return {name: growth for name, growth in found.items() if growth is not None}


def point(value: float, measured: Measured, budget: Budget) -> Point:
    """Return the point of a curve that a run is."""
    rows = from_rows(measured.rows)
    return Point(
        value=value,
        rows=rows.take(succeeded(rows)),
        totals=sum_up(rows, budget, measured.active_s or None),
        problem=bottleneck(measured),
    )


def grown(points: Sequence[Point], name: str) -> Growth | None:
    """Return how a duration's median grows with the tokens of the prompt; `None` = too little."""
    lengths, values = [], []
    for one in points:
        tokens, seconds = one.rows.numbers["prompt_tokens"], durations(one.rows)[name]
        known = ~np.isnan(tokens) & ~np.isnan(seconds)
        if known.any():
            lengths.append(float(np.median(tokens[known])))
            values.append(seconds[known])
    x = np.array(lengths)
    if len(np.unique(x)) < _MIN_POINTS:
        return None
    draws = np.random.default_rng(0)
    again = [
        _exponent(x, np.array([np.median(draws.choice(side, len(side))) for side in values]))
        for _ in range(_DRAWS)
    ]
    low, high = (float(bound) for bound in np.quantile(again, _OUTSIDE))
    exponent = _exponent(x, np.array([np.median(side) for side in values]))
    return Growth(exponent=exponent, low=min(low, exponent), high=max(high, exponent))


def _exponent(x: Floats, y: Floats) -> float:
    """Return k of the curve a + b * x ** k that is relatively closest to y; a is not below 0."""
    scaled = (x / x.max())[None, :] ** _EXPONENTS[:, None]
    weight = 1 / np.maximum(y, 1e-9) ** 2
    total = weight.sum()
    mean_x, mean_y = scaled @ weight / total, float(y @ weight / total)
    apart = scaled - mean_x[:, None]
    slope = (apart * weight) @ (y - mean_y) / np.maximum((apart**2) @ weight, 1e-30)
    base = mean_y - slope * mean_x
    through = (scaled * weight) @ y / ((scaled**2) @ weight)
    slope, base = np.where(base < 0, through, slope), np.maximum(base, 0.0)
    errors = ((base[:, None] + slope[:, None] * scaled - y) ** 2) @ weight
    return float(_EXPONENTS[int(errors.argmin())])


def as_dict(curve: Curve) -> dict[str, Any]:
    """Return a curve as plain JSON; durations in seconds, `null` = not known."""
    return {
        "what": curve.what,
        "points": [_point(one) for one in curve.points],
        "growth": {
            name: {"exponent": one.exponent, "low": one.low, "high": one.high}
            for name, one in curve.growth().items()
        },
    }


def _point(one: Point) -> dict[str, Any]:
    totals = one.totals
    return {
        "value": one.value,
        "requests": totals.requests,
        "succeeded": totals.succeeded,
        "inside_budget": totals.inside,
        "requests_per_s": totals.requests_per_s,
        "tokens_per_s": totals.tokens_per_s,
        "goodput_per_s": totals.goodput,
        "problem": one.problem,
        "durations": {
            name: {f"{QUANTILE_NAMES[q]}_s": sample.quantile(q) for q in QUANTILES}
            for name, sample in one.samples().items()
        },
    }
