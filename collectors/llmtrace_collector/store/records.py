"""What a store holds beside spans, how a join went, and the errors of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmtrace.core.errors import DataError, SourceError


class StoreError(SourceError):
    """The store failed: out of disk, unreachable, locked, too slow.

    What was to be inserted may be in the store, or may not: insert it again with the same token.

    Attributes:
        reason: in one word, for a counter.
    """

    def __init__(self, words: str, reason: str = "store") -> None:
        super().__init__(words)
        self.reason = reason


class BadBatch(DataError):  # noqa: N818 - it is the batch that is bad
    """These bytes are no OTLP spans: inserting them again will fail again."""

    reason = "unreadable"


@dataclass(frozen=True, slots=True)
class SignalSample:
    """One reading of one signal of one engine, gateway or GPU.

    Attributes:
        t_ns: unix nanoseconds.
        instance: whose; matches a row's `replica`.
        signal: its name, one of `signals.SIGNALS`.
        value: gauges as sampled, counters raw and cumulative.
        labels: what tells several readings of one signal apart.
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
    """What is known of one engine from this moment on.

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
        rows: written anew or again, because a part of them came late.
        seconds: how long it took.
        large_traces: of those with fresh parts, how many have too many to tell whose they are by
            their place in the trace.
        without_row: fresh spans that make no row, though they are of a request, by reason.
    """

    rows: int
    seconds: float
    large_traces: int = 0
    without_row: Mapping[str, int] = field(default_factory=dict)
