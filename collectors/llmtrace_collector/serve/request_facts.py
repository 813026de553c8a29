"""Collect the data of the request page: a request, its peers, trace and engine signals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from llmtrace.core.attempts import Attempt, from_plain
from llmtrace.core.errors import DataError
from llmtrace.core.row import Row, from_dict
from llmtrace.dataset.explain_request import ENGINE_SIGNALS, HOUR_NS, Explanation, explain
from llmtrace.semconv.attributes import ATTEMPT_LOG, RESPONSE_HEADER, TOOL_NAME
from llmtrace_collector.store import read, request_list
from llmtrace_collector.store.clickhouse_store import StoreReader

_NS: Final = 1_000_000_000
_MAX_PEERS: Final = 1_000
_MAX_SAMPLES: Final = 20_000
_AFTER_NS: Final = 60 * _NS
_SETTINGS: Final = "gen_ai.request."


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A request, tool call or turn that ran inside a turn.

    Attributes:
        kind: `request`, `tool` or `turn`.
        name: the model's, the tool's or the agent's.
        start_ns: from the turn's start; `None` = of another service, with another clock.
        duration_ns: of it.
        outcome: how it ended.
        depth: 1 in the turn itself.
        span_id: of its span.
    """

    kind: str
    name: str
    start_ns: int | None
    duration_ns: int
    outcome: str
    depth: int
    span_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """All that is known of one request.

    Attributes:
        row: the request, or turn.
        explanation: the request compared with those of the hour before.
        inside: of a turn: what ran in it, by start.
        turn: the span id of the turn that contains it; `None` = no such turn is stored.
        settings: of the request, by attribute name.
        engine: the settings of the engine that responded, by instance; empty = not known.
        others: how many more rows have the requested id.
    """

    row: Row
    explanation: Explanation
    inside: Sequence[Inside] = ()
    turn: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    engine: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    others: int = 0


def gather(store: StoreReader, name: str, span_id: str | None = None) -> RequestFacts | None:
    """Return what is known of a request; `None` = there is none.

    Args:
        store: that has it.
        name: its request, response or trace id.
        span_id: chooses one of several rows; `None` = the one that is not nested.

    Raises:
        DataError: its stored row is invalid.
    """
    rows = [from_dict(flat) for flat in read.request(store, name)]
    row = _chosen(rows, span_id)
    if row is None:
        return None
    trace = read.trace(store, row.trace_id)
    spans = {span["span_id"]: span for span in trace["spans"]}
    own = spans[row.span_id]["attributes"] if row.span_id in spans else {}
    row = replace(
        row,
        response_headers={
            key.removeprefix(RESPONSE_HEADER): value
            for key, value in own.items() if key.startswith(RESPONSE_HEADER)
        },
        attempt_log=_attempt_log(own.get(ATTEMPT_LOG)),
    )  # fmt: skip
    same = [from_dict(flat) for flat in trace["rows"]]
    parents = {span["span_id"]: span["parent_span_id"] for span in trace["spans"]}
    parents |= {one.span_id: one.parent_span_id or "" for one in same}
    turns = {one.span_id for one in same if one.is_turn}
    facts = read.facts(store, row.start)
    return RequestFacts(
        row=row,
        explanation=_explained(store, row),
        inside=_inside(row, same, trace["spans"], parents) if row.is_turn else (),
        turn=next((one for one in _above(row.span_id, parents) if one in turns), None),
        settings={
            key.removeprefix(_SETTINGS): value for key, value in own.items()
            if key.startswith(_SETTINGS)
        },
        engine={one: facts[one] for one in (row.replica, row.server) if one in facts},
        others=len(rows) - 1,
    )  # fmt: skip


def _chosen(rows: Sequence[Row], span_id: str | None) -> Row | None:
    if span_id is not None:
        return next((row for row in rows if row.span_id == span_id), None)
    return next((row for row in rows if not row.nested), rows[0] if rows else None)


def _attempt_log(written: str | None) -> tuple[Attempt, ...]:
    """Read the attempts of a stored span: a list in JSON, or its only element."""
    if written is None:
        return ()
    try:
        found = json.loads(written)
        listed = found if isinstance(found, list) else [found]
        return from_plain([one if isinstance(one, dict) else json.loads(one) for one in listed])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{ATTEMPT_LOG} is no list of attempts: {error}") from error


def _explained(store: StoreReader, row: Row) -> Explanation:
    same = {name: value for name in ("model", "route", "operation")
            if (value := getattr(row, name)) is not None}  # fmt: skip
    found = request_list.peers(store, row.start - HOUR_NS, row.start, same, _MAX_PEERS)
    return explain(row, map(from_dict, found), _samples(store, row))


def _samples(store: StoreReader, row: Row) -> Iterable[Mapping[str, Any]]:
    """Return samples of the engine that responded; if it is not known, of all engines."""
    start, end = row.start - HOUR_NS, row.start + row.e2e_ns + _AFTER_NS
    for instance in dict.fromkeys(one for one in (row.replica, row.server) if one):
        found = [
            sample
            for sample in read.signals(store, start, end, instance=instance)
            if sample["signal"] in ENGINE_SIGNALS
        ]
        if found:
            return found
    return [
        sample
        for signal in ENGINE_SIGNALS
        for sample in islice(read.signals(store, start, end, signal=signal), _MAX_SAMPLES)
    ]


def _above(span_id: str, parents: Mapping[str, str]) -> list[str]:
    """Return the ancestors of a span, the nearest first; stops if the parents form a cycle."""
    found: list[str] = []
    at = parents.get(span_id, "")
    while at and at not in found:
        found.append(at)
        at = parents.get(at, "")
    return found


def _inside(
    turn: Row, rows: Sequence[Row], spans: Sequence[Mapping[str, Any]], parents: Mapping[str, str]
) -> list[Inside]:
    found: list[tuple[str, str, str, str, int, int, str]] = []
    for row in rows:
        name = (row.agent if row.is_turn else row.model) or row.operation
        found.append((row.span_id, "turn" if row.is_turn else "request", name, row.service,
                      row.start, row.e2e_ns, row.outcome))  # fmt: skip
    for span in spans:
        if tool := span["attributes"].get(TOOL_NAME):
            outcome = span["attributes"].get("llmtrace.outcome") or "success"
            found.append((span["span_id"], "tool", tool, span["service"], span["start"],
                          round(span["duration_s"] * _NS), outcome))  # fmt: skip
    known = {one[0] for one in found}
    parts = []
    for span_id, kind, name, service, start, duration, outcome in found:
        above = _above(span_id, parents)
        if turn.span_id in above:
            between = above[: above.index(turn.span_id)]
            parts.append(
                Inside(
                    kind=kind, name=name, duration_ns=duration, outcome=outcome, span_id=span_id,
                    start_ns=start - turn.start if service == turn.service else None,
                    depth=1 + sum(one in known for one in between),
                )
            )  # fmt: skip
    return sorted(parts, key=lambda part: part.start_ns or 0)
