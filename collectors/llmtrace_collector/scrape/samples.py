"""Convert signals into samples for the store, so that triage needs no Prometheus.

Pure: the targets' last readings in, samples out. Gauges and counters as they are; of a histogram
its sum and count, which give the mean of any time range. Percentiles are computed from rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from llmtrace_collector.scrape.scraper import TargetState
from llmtrace_collector.signals.normalise import Distribution, Labels, Measured, Reading
from llmtrace_collector.signals.profile import show_version
from llmtrace_collector.store import Facts, SignalSample

_MAX_LABEL_TEXT: Final = 200


def of_targets(states: Sequence[TargetState], now_ns: int) -> Iterator[SignalSample]:
    """Yield samples of each target's last reading; of one that is down, only that it is.

    A sample has the time at which its page arrived, which may be most of an interval ago; that
    of a target that is down is of now.
    """
    for state in states:
        instance, reading = state.target.instance, state.reading
        t_ns = now_ns if reading is None or state.read_ns is None else state.read_ns
        own = state.target.more_labels
        if state.up is not None:
            yield SignalSample(t_ns, instance, "up", float(state.up), own)
        if reading is None:
            continue
        yield from of_reading(reading, instance, own, t_ns)
        for interval in state.intervals:
            if interval.frontend_s is not None:
                labels = {**own, **_short(interval.labels)}
                yield SignalSample(t_ns, instance, "frontend_time", interval.frontend_s, labels)


def of_reading(
    reading: Reading, instance: str, own: Mapping[str, str], t_ns: int
) -> Iterator[SignalSample]:
    """Yield samples of one page's signals, of the start of its process and its CPU time.

    Args:
        reading: of the page.
        instance: of the target.
        own: labels of the target, for all samples.
        t_ns: unix nanoseconds.
    """
    yield from of_measured(reading.measured, instance, own, t_ns)
    if reading.started is not None:
        yield SignalSample(t_ns, instance, "started", reading.started, own)
    if reading.cpu_s is not None and _is_engine(reading):
        yield SignalSample(t_ns, instance, "api_cpu_seconds", reading.cpu_s, own)


def of_measured(
    measured: Iterable[Measured], instance: str, own: Mapping[str, str], t_ns: int
) -> Iterator[SignalSample]:
    """Yield samples of normalised series; arguments as of `of_reading`."""
    for one in measured:
        labels = {**own, **_short(one.labels)}
        name, value = one.signal.name, one.value
        if isinstance(value, Distribution):
            yield SignalSample(t_ns, instance, f"{name}_sum", value.sum, labels)
            yield SignalSample(t_ns, instance, f"{name}_count", value.count, labels)
        else:
            yield SignalSample(t_ns, instance, name, value, labels)


def _short(labels: Labels) -> dict[str, str]:
    return {name: value[:_MAX_LABEL_TEXT] for name, value in labels}


def _is_engine(reading: Reading) -> bool:
    return any(one.signal.subsystem == "engine" for one in reading.measured)


def facts_of(states: Sequence[TargetState], t_ns: int) -> Iterator[Facts]:
    """Yield the facts of each engine that is up: its kind, version, cache sizes and start."""
    for state in states:
        reading = state.reading
        if reading is None or not _is_engine(reading):
            continue  # a GPU exporter may have the same instance, and must not replace its facts
        known: dict[str, Any] = {"engine": reading.profiles[0], **reading.kv_cache}
        if reading.oldest is not None:
            known["version_at_least"] = show_version(reading.oldest)
        if reading.started is not None:
            known["started"] = reading.started
        yield Facts(t_ns, state.target.instance, known)
