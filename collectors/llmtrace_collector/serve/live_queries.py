"""The queries behind the live page.

Each is one query over a bounded time range, so that the cost does not depend on how much is
stored. A request belongs to the time at which it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from llmtrace.budget import Budget, regex
from llmtrace.core.row import TURN
from llmtrace.core.stages import PARTITION
from llmtrace_collector.serve.live_model import Counted, Minutes, SlowRow
from llmtrace_collector.store import Store
from llmtrace_collector.store.read import MEASURED, column_of, level
from llmtrace_collector.store.sql_builder import from_file

_NS: Final = 1_000_000_000
_MINUTE_S: Final = 60
# Rows are found by their start: requests that took longer than this are not found.
_MAX_NS: Final = 30 * _MINUTE_S * _NS
_FEW: Final = 2
_BACK_MIN: Final = 60

_OVER: Final = "(toUnixTimestamp64Nano(start) + e2e_ns)"


def counted(
    store: Store, start_ns: int, end_ns: int, budget: Budget
) -> tuple[dict[str, int], dict[str, Counted]]:
    """Count the requests that ended in a time range.

    Returns:
        The counts by outcome; and each stage and metric over the requests that succeeded.
    """
    limits = budget.thresholds_s()
    columns = []
    for name in MEASURED:
        value = column_of(name)
        columns += [
            f"count({value})",
            f"quantilesExact({level(0.5)}, {level(budget.objective)})({value})",
            f"countIf({value} <= {round(limits.get(name, 0) * _NS)})",
            f"sum({value})",
        ]
        columns.append(_sources(name))
    where, given = _where(start_ns, end_ns, budget)
    found = store.query(from_file("live_outcomes", figures=", ".join(columns), where=where), given)
    outcomes = {str(row[0]): int(row[1]) for row in found}
    done = next((row for row in found if row[0] == "success"), None)
    if done is None:
        return outcomes, {}
    width = 5
    counts = {}
    for place, name in enumerate(MEASURED):
        known, both, within, total, sources = done[2 + width * place : 2 + width * (place + 1)]
        counts[name] = Counted(
            known=int(known),
            p50_ns=float(both[0]) if known else None,
            high_ns=float(both[1]) if known else None,
            within=int(within) if name in limits else 0,
            sum_ns=float(total or 0),
            sources=tuple(str(source) for source in sources),
        )
    return outcomes, counts


def _sources(name: str) -> str:
    if name in PARTITION[:-1]:
        source = f"toString({name}_source)"
        return f"topKIf({_FEW})({source}, {source} != '')"
    return "[]"


def minutes(store: Store, end_ns: int, budget: Budget) -> Minutes:
    """Return the budget's quantile of stages and metrics in each minute of the last hour.

    Of requests that succeeded before `end_ns`, in unix nanoseconds.
    """
    columns = ", ".join(
        f"quantileExact({level(budget.objective)})({column_of(name)})" for name in MEASURED
    )
    some = ", ".join(f"count({column_of(name)})" for name in MEASURED)
    start_ns = (end_ns // (_MINUTE_S * _NS) - _BACK_MIN) * _MINUTE_S * _NS
    where, given = _where(start_ns, end_ns, budget)
    found = store.query(
        from_file("live_minutes", over=_OVER, known=some, figures=columns, where=where), given
    )
    high: dict[str, list[float | None]] = {name: [] for name in MEASURED}
    for row in found:
        for name, known, value in zip(MEASURED, row[1], row[2:], strict=True):
            high[name].append(float(value) / _NS if known else None)
    return Minutes(
        t=tuple(int(row[0]) * _MINUTE_S for row in found),
        high_s={name: tuple(values) for name, values in high.items()},
    )


def slowest(store: Store, start_ns: int, end_ns: int, budget: Budget, most: int) -> list[SlowRow]:
    """Return the requests that took longest, with any outcome."""
    columns = ", ".join(f"{name}_ns" for name in PARTITION)
    where, given = _where(start_ns, end_ns, budget)
    found = store.query(
        from_file("live_slowest", stages=columns, where=where, limit=f"{most:d}"), given
    )
    return [_slow(row) for row in found]


def _slow(row: Sequence[Any]) -> SlowRow:
    trace_id, request_id, start, service, model, route, outcome, e2e, ttft, *stages = row
    return SlowRow(
        trace_id=str(trace_id),
        request_id=str(request_id),
        start=int(start) / _NS,
        service=str(service),
        model=str(model) or None,
        route=str(route) or None,
        outcome=str(outcome),
        e2e_s=int(e2e) / _NS,
        ttft_s=None if ttft is None else int(ttft) / _NS,
        stages={
            name: int(ns) / _NS
            for name, ns in zip(PARTITION, stages, strict=True)
            if ns is not None
        },
    )


def _where(start_ns: int, end_ns: int, budget: Budget) -> tuple[str, dict[str, object]]:
    given: dict[str, object] = {
        "earliest": start_ns - _MAX_NS, "since": start_ns, "until": end_ns, "turn": TURN,
    }  # fmt: skip
    words = from_file("over_within", over=_OVER)
    for name in ("model", "route"):
        patterns: Sequence[str] = getattr(budget, name)
        if patterns:
            given[name] = _pattern(patterns)
            words += f" AND match({name}, {{{name}:String}})"
    return words, given


def _pattern(patterns: Sequence[str]) -> str:
    """Write patterns such as `llama-*` as one regular expression."""
    return "^(?:" + "|".join(map(regex, patterns)) + ")$"
