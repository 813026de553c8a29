"""Compute what an engine did between two readings: the average duration of its stages.

Pure: two readings in, one `EngineInterval` for each engine replica out. A restart resets the
counters; then the interval begins at the restart. Averages come from the engine's own sums and
counts, so they are exact for the interval and approximate for any single request in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.normalise import Distribution, Labels, Measured, Reading

_DURATIONS: Final = ("queue", "prefill", "decode", "inference", "ttft", "itl", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Mean:
    """An average over an interval: how many requests, and how many seconds each took."""

    count: float
    mean_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInterval:
    """What one engine replica did between two readings; `None` = not reported, or no work.

    Attributes:
        labels: `engine` and, where reported, `model` and `replica`.
        restarted: whether the engine restarted; then only what came after the restart counts.
        means: average of each duration the engine times, by signal.
        frontend_s: TTFT less queue and prefill: template, tokenising, IPC; never below 0.
        prefix_hit_ratio: 0 to 1.
    """

    labels: Labels
    restarted: bool
    means: Mapping[str, Mean]
    frontend_s: float | None
    prefix_hit_ratio: float | None


# A reading's series of one replica: signal and own label's value to value.
_Side = dict[tuple[str, str], float | Distribution]


def engine_intervals(before: Reading, after: Reading) -> tuple[EngineInterval, ...]:
    """Return an interval for each engine replica of the later reading.

    A replica missing from the earlier reading started in between: all its counts are new.
    """
    old, new = _by_replica(before), _by_replica(after)
    began = None not in (before.started, after.started) and before.started != after.started
    return tuple(
        _interval(labels, old.get(labels, {}), side, fresh=began or labels not in old)
        for labels, side in new.items()
    )


def _by_replica(reading: Reading) -> dict[Labels, _Side]:
    sides: dict[Labels, _Side] = {}
    for one in reading.measured:
        # A request rejected on arrival belongs to no replica.
        if one.signal.subsystem == "engine" and one.signal.name != "rejected":
            whose, own = _split(one)
            sides.setdefault(whose, {})[one.signal.name, own] = one.value
    return sides


def _split(one: Measured) -> tuple[Labels, str]:
    own = one.signal.label
    whose = tuple((name, value) for name, value in one.labels if name != own)
    return whose, next((value for name, value in one.labels if name == own), "")


def _interval(labels: Labels, old: _Side, new: _Side, *, fresh: bool) -> EngineInterval:
    restarted = fresh or any(
        key in old and _count(old[key]) > _count(value)
        for key, value in new.items()
        if SIGNALS[key[0]].kind != "gauge"
    )
    base: _Side = {} if restarted else old
    means = {
        name: mean
        for name in _DURATIONS
        if (mean := _mean(base.get((name, "")), new.get((name, "")))) is not None
    }
    return EngineInterval(
        labels=labels,
        restarted=restarted and bool(old),
        means=means,
        frontend_s=_frontend(means),
        prefix_hit_ratio=_prefix_hit_ratio(base, new),
    )


def _count(value: float | Distribution) -> float:
    return value.count if isinstance(value, Distribution) else value


def _rise(old: _Side, new: _Side, name: str) -> float | None:
    key = (name, "")
    return _count(new[key]) - _count(old.get(key, 0.0)) if key in new else None


def _mean(old: float | Distribution | None, new: float | Distribution | None) -> Mean | None:
    if not isinstance(new, Distribution):
        return None
    before = old if isinstance(old, Distribution) else Distribution((), (), 0.0, 0.0)
    count = new.count - before.count
    return Mean(count, max(0.0, new.sum - before.sum) / count) if count > 0 else None


def _frontend(means: Mapping[str, Mean]) -> float | None:
    ttft, queue, prefill = means.get("ttft"), means.get("queue"), means.get("prefill")
    if ttft is None or queue is None or prefill is None:
        return None
    # TTFT also counts requests that are aborted later, so it may be below the sum of the others.
    return max(0.0, ttft.mean_s - queue.mean_s - prefill.mean_s)


def _prefix_hit_ratio(old: _Side, new: _Side) -> float | None:
    queries, hits = _rise(old, new, "prefix_queries"), _rise(old, new, "prefix_hits")
    if queries is None:
        # The engine reports a ratio only, over a time that it does not state.
        ratio = new.get(("prefix_hit_ratio", ""))
        return ratio if isinstance(ratio, float) else None
    return hits / queries if hits is not None and queries else None
