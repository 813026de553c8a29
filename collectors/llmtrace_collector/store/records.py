"""The records of a store besides spans, the result of a join, and the errors of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmtrace.core.errors import DataError, SourceError


class StoreError(SourceError):
    """The store failed: out of disk, unreachable, locked, too slow.

    Whether an insert took effect is not known: repeat it with the same token.

    Attributes:
        reason: in one word, for a counter.
    """

    def __init__(self, words: str, reason: str = "store") -> None:
        super().__init__(words)
        self.reason = reason


class BadBatch(DataError):  # noqa: N818 - it is the batch that is bad
    """These bytes are not OTLP spans: inserting them again will fail again."""

    reason = "unreadable"


@dataclass(frozen=True, slots=True)
class SignalSample:
    """One reading of one signal of one engine, gateway or GPU.

    Attributes:
        t_ns: unix nanoseconds.
        instance: the target; matches a row's `replica`.
        signal: its name, one of `signals.SIGNALS`.
        value: gauges as sampled, counters raw and cumulative.
        labels: distinguish several readings of one signal.
    """

    t_ns: int
    instance: str
    signal: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """A change that was made to the system: a deploy, a scaling, a change of settings.

    Attributes:
        t_ns: unix nanoseconds.
        kind: `deploy`, `scale`, `config`, or a word of one's own.
        text: what was done, for people.
        instance: to which engine; empty = to all.
        labels: anything else, such as `version` or `service`.
    """

    t_ns: int
    kind: str
    text: str
    instance: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one engine from this moment on.

    Attributes:
        t_ns: unix nanoseconds.
        instance: the engine.
        facts: by the names of a case's `facts.json` (`engine`, `version`, `max_num_seqs`, …);
            values of JSON.
    """

    t_ns: int
    instance: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JoinReport:
    """What one run of the join did.

    Attributes:
        rows: written for the first time, or again because a part came late.
        large_traces: traces with new parts that are too large to match parts by their place.
        without_row: new spans of requests that make no row, by reason.
    """

    rows: int
    large_traces: int = 0
    without_row: Mapping[str, int] = field(default_factory=dict)
