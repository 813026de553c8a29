"""The present state of each engine and each GPU, in one line.

Pure: the states of targets in, a line for each engine replica out. What is not reported is `None`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from llmtrace_collector.scrape.scraper import TargetState
from llmtrace_collector.signals.interval import EngineInterval
from llmtrace_collector.signals.normalise import Labels, Measured

_OF_REPLICA: Final = ("engine", "model", "replica")
_NOW: Final = ("running", "waiting", "kv_usage")
_OF_GATEWAY: Final = {"gateway_running": "running", "gateway_waiting": "waiting"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLine:
    """One engine replica, or gateway, or a target that is neither.

    Attributes:
        up: whether its last reading succeeded; `None` = none was tried yet.
        problem: why it did not, in words.
        kv_usage, prefix_hit_ratio: 0 to 1.
        queue_s, prefill_s, decode_s: averages of the requests between the last two readings.
    """

    instance: str
    up: bool | None
    problem: str | None = None
    engine: str | None = None
    model: str | None = None
    replica: str | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    queue_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prefix_hit_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLine:
    """One GPU.

    Attributes:
        utilization, memory: shares in use, 0 to 1.
        throttled: why its clocks are throttled now, in words; empty = they are not.
    """

    instance: str
    gpu: str
    model: str | None = None
    utilization: float | None = None
    memory: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttled: tuple[str, ...] = ()


def engine_lines(states: Sequence[TargetState]) -> tuple[EngineLine, ...]:
    """Return a line for each engine replica and gateway, down ones first."""
    lines = [line for state in states for line in _of_target(state)]
    return tuple(sorted(lines, key=lambda line: line.up is not False))


def _of_target(state: TargetState) -> Iterator[EngineLine]:
    instance, reading = state.target.instance, state.reading
    if reading is None:
        problem = state.problem.rpartition(": ")[2] if state.problem else None
        yield EngineLine(instance=instance, up=state.up, problem=problem)
        return
    found: dict[tuple[str | None, ...], dict[str, float]] = {}
    for one in reading.measured:
        name = _OF_GATEWAY.get(one.signal.name, one.signal.name)
        if one.signal.subsystem == "gpu" or not isinstance(one.value, float | int):
            continue
        values = found.setdefault(_replica(one.labels), {})
        if name in _NOW:
            values[name] = values.get(name, 0.0) + one.value
    intervals = {_replica(interval.labels): interval for interval in state.intervals}
    replicas = {key: values for key, values in found.items() if values}
    if not replicas and not any(one.signal.subsystem == "gpu" for one in reading.measured):
        replicas = dict(list(found.items())[:1]) or {(None, None, None): {}}
    for key, values in replicas.items():
        engine, model, replica = key
        interval = intervals.get(key)
        yield EngineLine(
            instance=instance,
            up=True,
            engine=engine or (reading.profiles[0] if reading.profiles else None),
            model=model,
            replica=replica,
            running=values.get("running"),
            waiting=values.get("waiting"),
            kv_usage=values.get("kv_usage"),
            queue_s=_mean(interval, "queue"),
            prefill_s=_mean(interval, "prefill"),
            decode_s=_mean(interval, "decode"),
            prefix_hit_ratio=None if interval is None else interval.prefix_hit_ratio,
        )


def _replica(labels: Labels) -> tuple[str | None, ...]:
    named = dict(labels)
    return tuple(named.get(name) for name in _OF_REPLICA)


def _mean(interval: EngineInterval | None, name: str) -> float | None:
    mean = None if interval is None else interval.means.get(name)
    return None if mean is None else mean.mean_s


def gpu_lines(
    states: Sequence[TargetState], local: Iterable[Measured], machine: str
) -> tuple[GpuLine, ...]:
    """Return a line for each GPU: those of exporters, and the `local` ones of this machine."""
    pages = [(state.target.instance, state.reading) for state in states]
    read = [(machine, tuple(local))]
    read += [(instance, reading.measured) for instance, reading in pages if reading is not None]
    found: dict[tuple[str, str], list[Measured]] = {}
    for instance, measured in read:
        for one in measured:
            if one.signal.subsystem == "gpu":
                named = dict(one.labels)
                where = named.get("host") or instance
                found.setdefault((where, named.get("gpu", "")), []).append(one)
    return tuple(_gpu(where, gpu, measured) for (where, gpu), measured in found.items())


def _gpu(instance: str, gpu: str, measured: Sequence[Measured]) -> GpuLine:
    values = {one.signal.name: one.value for one in measured if isinstance(one.value, float | int)}
    used, total = values.get("gpu_memory_used"), values.get("gpu_memory_total")
    if total is None and used is not None and (free := values.get("gpu_memory_free")) is not None:
        total = used + free
    return GpuLine(
        instance=instance,
        gpu=gpu,
        model=next((name for one in measured if (name := dict(one.labels).get("model"))), None),
        utilization=values.get("gpu_utilization"),
        memory=used / total if used is not None and total else None,
        power_w=values.get("gpu_power"),
        temperature_c=values.get("gpu_temperature"),
        throttled=tuple(
            dict(one.labels).get("reason", "")
            for one in measured
            if one.signal.name == "gpu_throttled" and one.value == 1
        ),
    )
