"""Signals by instance and time: gauges as sampled, counters as rates between samples.

The collector's own names of signals are understood as well as those of the case format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.dataset.case import Signals, Window
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.evidence.changes import Shift, share, shift, shift_of_samples

# The case format's names of signals: the collector's name for each, and the factor to apply.
_ALIASES: Final[Mapping[str, tuple[str, float]]] = {
    "tokens_in": ("prompt_tokens", 1.0),
    "tokens_out": ("generation_tokens", 1.0),
    "gpu_util": ("gpu_utilization", 1.0),
    "gpu_sm_clock_mhz": ("gpu_sm_clock", 1e-6),
    "gpu_mem_used_bytes": ("gpu_memory_used", 1.0),
    "gpu_power_w": ("gpu_power", 1.0),
    "gpu_temp_c": ("gpu_temperature", 1.0),
    "gpu_throttle": ("gpu_throttled", 1.0),
    "gpu_xid": ("gpu_last_xid", 1.0),
}
_AS_ONE: Final = 1.5  # times the typical change; an instance up to there moved like the others
_MAX: Final = 1e17  # larger values are not credible
# Gauges whose ranks or reasons add up; of a replica's GPUs the worst counts.
_SUMMED: Final = frozenset(
    {"running", "waiting", "waiting_deferred", "waiting_grammar", "kv_fetch", "lora_slots_used",
     "lora_slots"}
)  # fmt: skip
# Gauges that some engines report as one reason of `waiting_by_reason`.
_REASONS: Final = {"waiting_deferred": "deferred", "waiting_grammar": "grammar"}


@dataclass(frozen=True, slots=True)
class Series:
    """One signal of one instance by time; of a counter, its rate per second."""

    t: Floats
    value: Floats

    def within(self, window: Window) -> Series:
        """Return the samples in a window."""
        inside = (self.t >= window.start) & (self.t < window.end)
        return Series(self.t[inside], self.value[inside])


@dataclass(frozen=True)
class Moved:
    """A signal in both windows, by instance.

    Attributes:
        fleet: all instances' samples together, as of a typical instance.
        instances: each instance with enough samples in both windows.
        before, after: the samples in each window, by instance, however few.
    """

    fleet: Shift
    instances: Mapping[str, Shift]
    before: Mapping[str, Series]
    after: Mapping[str, Series]

    def most(self, *, down: bool = False) -> tuple[str | None, Shift]:
        """Return the instance that rose (`down`: fell) most, and its shift.

        If a typical instance moved much the same, return `None` and the shift of all.
        """
        sign = -1 if down else 1

        def by(shift: Shift) -> tuple[bool, float, float]:
            rose = shift.rose(0.0, 0.0) or shift.mean_rose(0.0, 0.0)
            sure = shift.fell(0.0, 0.0) if down else rose
            return sure, sign * shift.change, sign * shift.mean_change

        if len(self.instances) < 2:
            return None, self.fleet
        name, found = max(sorted(self.instances.items()), key=lambda item: by(item[1]))
        typical = float(np.median([sign * one.change for one in self.instances.values()]))
        as_one = sign * found.change <= _AS_ONE * max(typical, 0.0)
        return (None, self.fleet) if as_one else (name, found)

    def rose(self, floor: float, relative: float = 0.1) -> bool:
        """Return whether all instances together or any one of them is up."""
        return any(one.rose(floor, relative) for one in self._every)

    def mean_rose(self, floor: float, relative: float = 0.1) -> bool:
        """Return whether the mean of all instances together or of any one of them is up."""
        return any(one.mean_rose(floor, relative) for one in self._every)

    def more_often(self, sure: float) -> bool:
        """Return whether more samples are above 0; a gauge that is mostly 0 shows no more."""
        above = [np.concatenate([one.value > 0 for one in side.values()])
                 for side in (self.before, self.after)]  # fmt: skip
        return share(*above).rose(0.0, 2, sure)

    def fell(self, floor: float, relative: float = 0.1) -> bool:
        """Return whether all instances together or any one of them is down."""
        return any(one.fell(floor, relative) for one in self._every)

    @property
    def _every(self) -> list[Shift]:
        return [*self.instances.values(), self.fleet]


def gauges(signals: Signals, signal: str) -> dict[str, Series]:
    """Return a gauge's samples by instance."""
    chosen, factor = _chosen(signals, signal)
    if signal == "sleep" and not chosen.any():
        awake = gauges(signals, "awake")
        return {name: Series(one.t, 1.0 - one.value) for name, one in awake.items()}
    if signal == "api_cpu" and not chosen.any():
        return rates(signals, "api_cpu_seconds", {})
    if signal == "frontend_time" and not chosen.any():
        return _front_end(signals)
    if signal in _REASONS and not chosen.any():
        ours = [labels.get("reason") == _REASONS[signal] for labels in signals.label_sets]
        chosen = signals.signal.where("waiting_by_reason")
        chosen &= np.array(ours, bool)[signals.labels] if ours else False
    found = {}
    for name, inside in _by_instance(signals, chosen):
        t, value = signals.t[inside], signals.value[inside] * factor
        if signal in _SUMMED:
            found[name] = _added_up([Series(t, value)])
            continue
        times, where = np.unique(t, return_inverse=True)
        highest = np.full(len(times), -np.inf)
        np.maximum.at(highest, where, value)
        found[name] = Series(times, highest)
    return found


def rates(signals: Signals, signal: str, labels: Mapping[str, str]) -> dict[str, Series]:
    """Return a counter's rates a second by instance; one that falls was reset to 0.

    Args:
        signals: of the case.
        signal: the counter.
        labels: which of its series; all, if empty.
    """
    chosen, factor = _chosen(signals, signal)
    fits = [labels.items() <= dict(one).items() for one in signals.label_sets]
    if labels and fits:
        chosen = chosen & np.array(fits, bool)[signals.labels]
    found = {}
    for name, inside in _by_instance(signals, chosen):
        parts = []
        for code in np.unique(signals.labels[inside]):
            one = inside[signals.labels[inside] == code]
            t, value = signals.t[one], signals.value[one] * factor
            width, grown = np.diff(t), np.diff(value)
            grown = np.where(grown < 0, value[1:], grown)
            ok = width > 0
            parts.append(Series(t[1:][ok], grown[ok] / width[ok]))
        found[name] = _added_up(parts)
    return found


def means(signals: Signals, name: str) -> dict[str, Series]:
    """Return a duration's mean over the requests that ended between two scrapes, by instance.

    Args:
        signals: of the case, with the counters `<name>_sum`, seconds, and `<name>_count`.
        name: the duration that engines count: `queue`, `prefill`, `ttft`, ...
    """
    counts, found = rates(signals, f"{name}_count", {}), {}
    for engine, total in rates(signals, f"{name}_sum", {}).items():
        counted = counts.get(engine, Series(np.empty(0), np.empty(0)))
        t, mine, theirs = np.intersect1d(total.t, counted.t, return_indices=True)
        ended = counted.value[theirs] > 0
        value = total.value[mine][ended] / counted.value[theirs][ended]
        found[engine] = Series(t[ended], value)
    return found


def _front_end(signals: Signals) -> dict[str, Series]:
    """Return the mean time to first token without queue, prefill and KV transfer."""
    whole, queue, prefill, moves = (
        means(signals, name) for name in ("ttft", "queue", "prefill", "kv_transfer_time")
    )
    found = {}
    for engine in whole.keys() & queue.keys() & prefill.keys():
        parts = [one[engine] for one in (whole, queue, prefill, moves) if engine in one]
        t = reduce(np.intersect1d, (part.t for part in parts))
        first, *rest = (part.value[np.isin(part.t, t)] for part in parts)
        found[engine] = Series(t, first - sum(rest))
    return found


def moved(series: Mapping[str, Series], before: Window, after: Window) -> Moved | None:
    """Compare a signal between two windows; `None` = too few samples in one of them."""
    sides = [
        {name: one.within(window) for name, one in series.items()} for window in (before, after)
    ]
    if not any(len(one.t) for one in sides[1].values()):
        return None
    instances = {}
    for name in series:
        b, a = sides[0][name], sides[1][name]
        others = (one.value for other, one in sides[0].items() if other != name)
        found = shift(b.value, b.t, a.value, a.t) or shift_of_samples(b.value, a.value, others)
        if found is not None:
            instances[name] = found
    every = [
        np.concatenate([getattr(one, part) for one in side.values()])
        for side in sides
        for part in ("value", "t")
    ]
    fleet = shift(*every) or shift_of_samples(every[0], every[2])
    if fleet is None:
        return None
    return Moved(fleet, instances, sides[0], sides[1])


def _chosen(signals: Signals, signal: str) -> tuple[Mask, float]:
    believable = np.abs(signals.value) <= _MAX
    chosen = signals.signal.where(signal) & believable
    if chosen.any() or signal not in _ALIASES:
        return chosen, 1.0
    other, factor = _ALIASES[signal]
    return signals.signal.where(other) & believable, factor


def _by_instance(signals: Signals, chosen: Mask) -> Iterator[tuple[str, NDArray[np.int64]]]:
    index = np.flatnonzero(chosen)
    codes = signals.instance.codes[index]
    for code in np.unique(codes):
        yield signals.instance.names[code], index[codes == code]


def _added_up(parts: Sequence[Series]) -> Series:
    """Add values of the same time: ranks of an engine, or rates of several label sets."""
    t = np.concatenate([part.t for part in parts])
    value = np.concatenate([part.value for part in parts])
    times, where = np.unique(t, return_inverse=True)
    return Series(times, np.bincount(where, value, minlength=len(times)).astype(np.float64))
