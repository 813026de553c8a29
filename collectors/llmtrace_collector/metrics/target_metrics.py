"""Expose the targets' normalised signals, and the targets' own health.

A collector for prometheus_client's registry: whatever serves that registry serves these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.utils import floatToGoString

from llmtrace_collector.scrape.scraper import TargetState
from llmtrace_collector.signals.normalise import Distribution, Measured

# Labels of a target with these names get a prefix.
_OURS: Final = frozenset(
    {"engine", "model", "replica", "gpu", "uuid", "host", "instance", "kind", "le", "quantile",
     "reason", "source", "position", "step", "xid"}
)  # fmt: skip


class TargetMetrics:
    """Exposes the last readings of the targets, and the health of each.

    Args:
        states: returns the state of every target, as `Scraper.states` does.
        local: returns the signals of this machine, as `GpuReader.read` does.
    """

    def __init__(
        self,
        states: Callable[[], Sequence[TargetState]],
        local: Callable[[], Sequence[Measured]] | None = None,
    ) -> None:
        self._states = states
        self._local = local

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with the series of all targets."""
        states = self._states()
        metrics: dict[str, Metric] = {}
        for state in states:
            labels, reading = _target_labels(state), state.reading
            for one in reading.measured if reading is not None else ():
                _add(metrics, one, labels)
        for one in self._local() if self._local is not None else ():
            _add(metrics, one, {})
        yield from metrics.values()
        yield from _intervals(states)
        yield from _health(states)


def _target_labels(state: TargetState) -> dict[str, str]:
    own = {(f"target_{k}" if k in _OURS else k): v for k, v in state.target.more_labels.items()}
    return {**own, "instance": state.target.instance}


def _metric(metrics: dict[str, Metric], name: str, words: str, kind: str) -> Metric:
    found = metrics.get(name)
    if found is None:
        found = metrics[name] = Metric(name.removesuffix("_total"), words, kind)
    return found


def _add(metrics: dict[str, Metric], one: Measured, more: dict[str, str]) -> None:
    signal = one.signal
    metric = _metric(metrics, signal.metric, signal.help, signal.kind)
    labels = {**more, **dict(one.labels)}
    if not isinstance(one.value, Distribution):
        metric.add_sample(signal.metric, labels, one.value)
        return
    # The last bucket must equal the count, even if the page was read during an update.
    for bound, count in zip(one.value.bounds, one.value.counts, strict=True):
        if bound == math.inf:
            continue
        named = {**labels, "le": floatToGoString(bound)}  # type: ignore[no-untyped-call]
        metric.add_sample(f"{signal.metric}_bucket", named, count)
    metric.add_sample(f"{signal.metric}_bucket", {**labels, "le": "+Inf"}, one.value.count)
    metric.add_sample(f"{signal.metric}_count", labels, one.value.count)
    metric.add_sample(f"{signal.metric}_sum", labels, one.value.sum)


def _intervals(states: Sequence[TargetState]) -> Iterator[Metric]:
    frontend = Metric(
        "llmtrace_engine_frontend_mean_seconds",
        "TTFT less queue and prefill between the last two readings: the engine's front end.",
        "gauge",
    )
    for state in states:
        for interval in state.intervals:
            if interval.frontend_s is not None:
                labels = {**_target_labels(state), **dict(interval.labels)}
                frontend.add_sample(frontend.name, labels, interval.frontend_s)
    yield frontend


def _health(states: Sequence[TargetState]) -> Iterator[Metric]:
    up = Metric("llmtrace_target_up", "1 if the target's last reading came, 0 if not.", "gauge")
    took = Metric(
        "llmtrace_target_scrape_seconds", "How long the target's last reading took.", "gauge"
    )
    missing = Metric(
        "llmtrace_target_missing_signals",
        "Signals the target should report and does not, for no known reason.", "gauge",
    )  # fmt: skip
    failed = Metric(
        "llmtrace_target_failures", "Readings that did not come, by reason.", "counter"
    )
    dropped = Metric(
        "llmtrace_target_dropped", "Parts of the target's pages not read, by why not.", "counter"
    )
    late = Metric("llmtrace_target_late", "Readings left out: the last was not over.", "counter")
    for state in states:
        labels = _target_labels(state)
        if state.up is not None:
            known = labels if state.kind is None else {**labels, "kind": state.kind}
            up.add_sample(up.name, known, float(state.up))
        if state.took_s is not None:
            took.add_sample(took.name, labels, state.took_s)
        reading = state.reading
        if reading is not None:
            unexplained = sum(one.why is None for one in reading.missing)
            missing.add_sample(missing.name, labels, unexplained)
        for reason, count in tuple(state.failures.items()):
            failed.add_sample(
                "llmtrace_target_failures_total", {**labels, "reason": reason}, count
            )
        for reason, count in state.normaliser.dropped.items():
            dropped.add_sample(
                "llmtrace_target_dropped_total", {**labels, "reason": reason}, count
            )
        late.add_sample("llmtrace_target_late_total", labels, state.late)
    yield from (up, took, missing, failed, dropped, late)
