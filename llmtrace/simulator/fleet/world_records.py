"""Record a simulated day as its world would have: on its time scale, with what is known there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from llmtrace.dataset.case import Case, Facts, Signals, Window
from llmtrace.dataset.columns import SECONDS, Columns, Words
from llmtrace.simulator.fleet.worlds import World
from llmtrace.stats.arrays import Mask


def seen(world: World, case: Case) -> Case:
    """Return what is recorded of a case in its world, on its time scale."""
    zero = case.before.start if case.before else 0.0
    signals = _scraped(world, case, zero)
    rows = _recorded(world, case.rows)
    k = world.scale

    def later(t: float) -> float:
        return zero + (t - zero) * k

    numbers = dict(rows.numbers)
    for name in SECONDS:
        numbers[name] = numbers[name] * k
    start = int(zero * 1e9) + ((rows.start - int(zero * 1e9)) * k).astype(np.int64)
    durations = signals.signal.where("frontend_time")
    value = np.where(durations, signals.value * k, signals.value)
    started = signals.signal.where("started")
    value = np.where(started, zero + (value - zero) * k, value)
    instances = {
        name: {key: later(v) if key == "started" else v for key, v in facts.items()}
        for name, facts in case.facts.instances.items()
        if not world.hosted
    }
    return replace(
        case,
        rows=replace(rows, start=start, numbers=numbers),
        signals=replace(signals, t=zero + (signals.t - zero) * k, value=value),
        facts=Facts(
            instances=instances,
            events=tuple(replace(event, t=later(event.t)) for event in case.facts.events),
        ),
        before=_window(case.before, later),
        after=_window(case.after, later),
    )


def _window(window: Window | None, later: Callable[[float], float]) -> Window | None:
    return window and Window(later(window.start), later(window.end))


def _scraped(world: World, case: Case, zero: float) -> Signals:
    end = case.after.end if case.after else zero
    share = (case.signals.t - zero) / max(end - zero, 1e-9)
    kept = ~((share >= world.outage[0]) & (share < world.outage[1]))
    for name in world.hidden:
        if name.startswith("~"):
            kept &= ~case.signals.signal.where(name[1:])
    return _take(case.signals, kept)


def _take(signals: Signals, kept: Mask) -> Signals:
    return replace(
        signals,
        t=signals.t[kept],
        instance=Words(signals.instance.codes[kept], signals.instance.names),
        signal=Words(signals.signal.codes[kept], signals.signal.names),
        value=signals.value[kept],
        labels=signals.labels[kept],
    )


def _recorded(world: World, rows: Columns) -> Columns:
    """Return rows without the hidden fields, and with the queue as this engine counts it."""
    numbers, words = dict(rows.numbers), dict(rows.words)
    queue, prefill, first = (numbers[f"{one}_s"] for one in ("queue", "prefill", "first_chunk"))
    if world.queue == "sglang":  # from when the front end has it
        front = np.nan_to_num(numbers["first_chunk_frontend_s"])
        moved = np.minimum(front, np.nan_to_num(first))
        numbers["queue_s"], numbers["first_chunk_s"] = queue + moved, first - moved
        numbers["first_chunk_frontend_s"] = np.full(rows.n, np.nan)
    elif world.queue == "none":
        known = np.nan_to_num(queue) + np.nan_to_num(prefill) + np.nan_to_num(first)
        numbers["unattributed_s"] = numbers["unattributed_s"] + known
        for stage in ("queue", "prefill", "first_chunk"):
            numbers[f"{stage}_s"] = np.full(rows.n, np.nan)
            words[f"{stage}_source"] = Words(np.full(rows.n, -1, np.int32), ())
    for name in world.hidden:
        if name in numbers:
            numbers[name] = np.full(rows.n, np.nan)
        elif name in words:
            words[name] = Words(np.full(rows.n, -1, np.int32), ())
    return replace(rows, numbers=numbers, words=words)
