"""The signals of all engines, gateways and GPUs, and how several series of one are merged.

One table, signals.toml. Profiles map an engine's metrics to these signals; everything downstream
uses only the signals.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, Literal

Subsystem = Literal["engine", "gateway", "gpu"]
Kind = Literal["gauge", "counter", "histogram"]
Merge = Literal["sum", "mean", "max"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal, the same for every source.

    Attributes:
        name: as in profiles.
        subsystem: what reports it; its metric is `llmtrace_{subsystem}_...`.
        kind: counters and histograms count from the start of the process that reports them.
        metric: the name it is exposed under, with its unit.
        merge: how several series of one engine are merged. A ratio is averaged, never summed.
        help: what it is, in one sentence.
        label: its own label, in addition to those every signal has.
    """

    name: str
    subsystem: Subsystem
    kind: Kind
    metric: str
    merge: Merge
    help: str
    label: str | None = None


def suffixes(kind: str) -> tuple[str, ...]:
    """Return the suffixes of a metric's series, by its kind."""
    return ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)


def _signals(subsystems: Mapping[Subsystem, Mapping[str, Mapping[str, Any]]]) -> Iterator[Signal]:
    for subsystem, signals in subsystems.items():
        for name, written in signals.items():
            yield Signal(
                name=name if subsystem == "engine" else f"{subsystem}_{name}",
                subsystem=subsystem,
                kind=written["kind"],
                metric=f"llmtrace_{subsystem}_{written.get('metric', name)}",
                merge=written.get("merge", "mean" if subsystem == "gpu" else "sum"),
                help=written["help"],
                label=written.get("label"),
            )


_TABLE: Final[Any] = tomllib.loads(
    files("llmtrace_collector.signals").joinpath("signals.toml").read_text(encoding="utf-8")
)
SIGNALS: Final[Mapping[str, Signal]] = {signal.name: signal for signal in _signals(_TABLE)}
