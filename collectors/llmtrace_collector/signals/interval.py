"""Work out what an engine did between two readings: its stages' averages, rates and ratios.

Pure: two readings in, one `EngineInterval` for each engine replica out. A restart resets the
counters; then the interval begins at the restart. Averages are of the engine's own sums and
counts, so they are exact for the interval and approximate for any one request in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from llmtrace.core.stages import EngineFigures, Reported, reported
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.normalise import Distribution, Labels, Measured, Reading

_SECOND_NS: Final = 1_000_000_000
_DURATIONS: Final = ("queue", "prefill", "decode", "inference", "ttft", "itl", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Mean:
    """An average over an interval: of how many, and how long each took, in seconds."""

    count: float
    mean_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInterval:
    """What one engine replica did between two readings; `None` = not reported, or no work.

    Attributes:
        labels: `engine` and, where reported, `model` and `replica`.
        restarted: the engine began anew meanwhile, so this holds what came after that.
        means: average of each duration the engine times, by signal.
        frontend_s: TTFT less queue and prefill: template, tokenising, IPC; never below 0.
        prefix_hit_ratio, spec_accept_ratio: 0 to 1; `spec_accept_length` = tokens a draft yields.
        step_tokens: average an engine step.
        kv_usage: at the end of the interval, 0 to 1.
        running, waiting: at the end of the interval.
        finished: how many ended, by reason.
    """

    labels: Labels
    restarted: bool
    means: Mapping[str, Mean]
    frontend_s: float | None
    prefix_hit_ratio: float | None
    spec_accept_ratio: float | None
    spec_accept_length: float | None
    step_tokens: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    preemptions: float | None
    kv_usage: float | None
    running: float | None
    waiting: float | None
    finished: Mapping[str, float]

    def figures(self) -> EngineFigures:
        """Return the averages as what an engine tells of a request, marked `engine_window`."""
        return EngineFigures(
            queue=self._mean("queue"),
            prefill=self._mean("prefill"),
            decode=self._mean("decode"),
            frontend=reported(self.frontend_s, _SECOND_NS, "engine_window"),
            replica=dict(self.labels).get("replica"),
        )

    def _mean(self, name: str) -> Reported | None:
        mean = self.means.get(name)
        return reported(mean.mean_s, _SECOND_NS, "engine_window") if mean is not None else None


# A reading's series of one replica: signal and own label's value to value.
_Side = dict[tuple[str, str], float | Distribution]


def engine_intervals(before: Reading, after: Reading) -> tuple[EngineInterval, ...]:
    """Return an interval for each engine replica of the later reading.

    A replica that the earlier reading does not have began meanwhile: all it counts is of now.
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
        # What is turned away at the door is no replica's in particular.
        if one.signal.room == "engine" and one.signal.name != "rejected":
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

    def rise(name: str) -> float | None:
        return _rise(base.get((name, "")), new.get((name, "")))

    def ratio_of(name: str, counted: float | None, ratio: float | None) -> float | None:
        # An engine's counts are of this interval; its own ratio is of a time it does not state.
        return ratio if counted is not None else _level(new, name)

    queries, hits = rise("prefix_queries"), rise("prefix_hits")
    drafts, drafted, accepted = rise("spec_drafts"), rise("spec_drafted"), rise("spec_accepted")
    extra = _ratio(accepted, drafts)
    step = _mean(base.get(("step_tokens", "")), new.get(("step_tokens", "")))
    return EngineInterval(
        labels=labels,
        restarted=restarted and bool(old),
        means=means,
        frontend_s=_frontend(means),
        prefix_hit_ratio=ratio_of("prefix_hit_ratio", queries, _ratio(hits, queries)),
        spec_accept_ratio=ratio_of("spec_accept_ratio", drafted, _ratio(accepted, drafted)),
        spec_accept_length=ratio_of(
            "spec_accept_length", drafts, None if extra is None else 1 + extra
        ),
        step_tokens=step.mean_s if step is not None else None,
        prompt_tokens=rise("prompt_tokens"),
        generation_tokens=rise("generation_tokens"),
        preemptions=rise("preemptions"),
        kv_usage=_level(new, "kv_usage"),
        running=_level(new, "running"),
        waiting=_level(new, "waiting"),
        finished={
            own: risen
            for (name, own), value in new.items()
            if name == "finished" and (risen := _rise(base.get((name, own)), value)) is not None
        },
    )


def _count(value: float | Distribution) -> float:
    return value.count if isinstance(value, Distribution) else value


def _rise(old: float | Distribution | None, new: float | Distribution | None) -> float | None:
    return None if new is None else _count(new) - (_count(old) if old is not None else 0.0)


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
    # TTFT also counts requests that are aborted later, so in odd windows it may lie below.
    return max(0.0, ttft.mean_s - queue.mean_s - prefill.mean_s)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _level(side: _Side, name: str) -> float | None:
    value = side.get((name, ""))
    return value if isinstance(value, float) else None
