"""Choose the metric that a triage is about, and list all metrics that moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llmtrace.stats.quantiles import least_values
from llmtrace.triage.attribution.components import METRICS
from llmtrace.triage.comparison.p95_change import Compared
from llmtrace.triage.result import Metric, Outcomes, Q

_LONGER_ANSWERS: Final = 2.0  # times the relative change of TTFT and TPOT


def which_moved(compared: Mapping[Metric, Compared]) -> Metric:
    """Choose the metric that the triage is about.

    TTFT and TPOT show where time went. `e2e` depends mostly on the response's length, so it is
    only used if neither moved, or both by far less.
    """

    def relative(name: Metric) -> float:
        change = compared[name].change
        if not change.significant or not change.delta_s:
            return 0.0
        return change.grew[0]

    ttft, tpot, e2e = relative("ttft"), relative("tpot"), relative("e2e")
    if max(ttft, tpot) > 0:
        if e2e > _LONGER_ANSWERS * max(ttft, tpot):
            return "e2e"
        return "tpot" if tpot > 2 * max(ttft, 0.0) else "ttft"
    if e2e > 0:
        return "e2e"
    if relative("render") > 0:
        return "render"
    if min(ttft, tpot) < 0:
        return "ttft" if ttft <= tpot else "tpot"
    if e2e < 0:
        return "e2e"
    fewest = {name: min(c.change.before.n, c.change.after.n) for name, c in compared.items()}
    return next(
        (name for name in METRICS if fewest[name] >= least_values(Q)),
        max(METRICS, key=lambda name: fewest[name]),
    )


def all_moved(compared: Mapping[Metric, Compared], outcomes: Outcomes) -> tuple[str, ...]:
    """Return the metrics that moved beyond chance, with `errors` and `cancelled` if they rose."""
    moved: list[str] = [name for name in METRICS if compared[name].change.significant]
    if outcomes.significant:
        moved.append("errors")
    if outcomes.gave_up:
        moved.append("cancelled")
    return tuple(moved)
