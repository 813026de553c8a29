"""List what was deployed, scaled, restarted or reconfigured near the onset.

Reported events, and changes seen in signals and rows: an engine's start time that moved, an
instance that appeared or stopped reporting, a new version of the application.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from llmtrace.dataset.case import Case, Signals, Window
from llmtrace.dataset.columns import Columns
from llmtrace.triage.over_time import NearEvent

EVENTS_BACK_S: Final = 1800.0
_LATER_S: Final = 120.0  # later events did not cause the onset
_MOVED_S: Final = 1.0  # change of a start time; less is rounding
_SILENT: Final = 5.0  # times the usual interval between two samples
_FEWEST: Final = 5  # requests of a version, or samples of an instance
_MOST: Final = 12
_SAME_S: Final = 30.0


def events_near(case: Case, rows: Columns, span: Window, onset: float) -> tuple[NearEvent, ...]:
    """Return the events from half an hour before the onset to two minutes after, nearest first."""
    reported = [(one.t, one.kind, one.text) for one in case.facts.events]
    seen = [
        one
        for one in (*_restarts(case.signals), *_instances(case.signals, span), *_versions(rows))
        if not any(abs(one[0] - t) < _SAME_S and _alike(one, text) for t, _, text in reported)
    ]
    near = [
        NearEvent(t=t, kind=kind, text=text, distance_s=t - onset)
        for t, kind, text in (*reported, *seen)
        if -EVENTS_BACK_S <= t - onset <= _LATER_S
    ]
    return tuple(sorted(near, key=lambda one: abs(one.distance_s))[:_MOST])


def _alike(seen: tuple[float, str, str], text: str) -> bool:
    """Return whether a reported event names the instance or version of a change that was seen."""
    return any(word in text for word in seen[2].replace(",", " ").split() if len(word) > len("to"))


def _restarts(signals: Signals) -> Iterator[tuple[float, str, str]]:
    started = signals.take(signals.signal.where("started"))
    for code, name in enumerate(started.instance.names):
        mine = started.instance.codes == code
        t, value = started.t[mine], started.value[mine]
        for i in np.flatnonzero(np.diff(value) > _MOVED_S):
            yield min(float(value[i + 1]), float(t[i + 1])), "restart", f"{name} restarted"


def _instances(signals: Signals, span: Window) -> Iterator[tuple[float, str, str]]:
    """Yield instances whose samples begin or end within the time searched."""
    load = signals.take(signals.signal.where("running", "waiting"))
    if not len(load):
        return
    first_t, last_t = float(load.t[0]), float(load.t[-1])
    for code, name in enumerate(load.instance.names):
        t = np.unique(load.t[load.instance.codes == code])
        if len(t) < _FEWEST:
            continue
        usual = _SILENT * float(np.median(np.diff(t)))
        if t[0] - max(first_t, span.start) > usual:
            yield float(t[0]), "scale", f"{name} is new"
        if min(last_t, span.end) - t[-1] > usual:
            yield float(t[-1]), "scale", f"{name} stopped reporting"


def _versions(rows: Columns) -> Iterator[tuple[float, str, str]]:
    words = rows.words["version"]
    if len(words.names) < 2:  # noqa: PLR2004 - one is no change
        return
    t = rows.start / 1e9
    first = float(t[0])
    for code, name in enumerate(words.names):
        mine = np.flatnonzero(words.codes == code)
        # A version that is rare may first be seen at any time, even if it was there before.
        if len(mine) >= _FEWEST and t[mine[0]] > first:
            earlier = int(mine[0])
            share = len(mine) / (len(rows) - earlier)
            if earlier * share > _FEWEST:
                yield float(t[mine[0]]), "deploy", f"first request of version {name}"
