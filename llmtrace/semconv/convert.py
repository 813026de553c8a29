"""Convert a row to span attributes, and back.

By the table in `attributes.py`, which `llmtrace semconv` prints as docs/reference/semconv.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from llmtrace.core import content
from llmtrace.core.attempts import MAX_ATTEMPTS, Attempt, as_plain, from_plain
from llmtrace.core.browser_timing import ON_WIRE, flatten, unflatten
from llmtrace.core.errors import DataError
from llmtrace.core.json_values import (
    bounded,
    read_duration,
    read_flag,
    read_ns,
    read_reported,
    read_source,
)
from llmtrace.core.row import OUTCOMES, Row
from llmtrace.core.row_fields import MARKS, NETWORK, PLAIN, RAW, REPORTED, UNSPLIT
from llmtrace.core.stages import STAGES, Network, StageName, Stages, Timeline
from llmtrace.core.wire_names import Attribute, Kind
from llmtrace.semconv.attributes import (
    ATTEMPT_LOG,
    BROWSER,
    DERIVED,
    E2E,
    RESPONSE_HEADER,
    SPECIAL,
    STAGE_TIMES,
)

__all__ = [
    "Scalar",
    "Value",
    "from_attributes",
    "is_row",
    "kind_of",
    "reserved",
    "split_server",
    "to_attributes",
]

Scalar = str | bool | int | float
Value = Scalar | Sequence[str]

_NS: Final = 1_000_000_000
_MARKED: Final = {
    (when, stage): f"llmtrace.marked.{when}.{stage}"
    for when in ("before", "after")
    for stage in STAGES
}
_OWN: Final = "llmtrace."
_RESOURCE_ONLY: Final = frozenset({"service.name"})
_NAMES: Final = frozenset(
    line.name for table in (PLAIN, SPECIAL, DERIVED) for line in table
) | _RESOURCE_ONLY  # fmt: skip

_PLAIN_PAIRS: Final = tuple((line.field, line.name) for line in PLAIN)
_MARK_PAIRS: Final = tuple((f"{line.field}_ns", line.name) for line in MARKS)
_TIMELINE_PAIRS: Final = tuple((line.field, line.name) for line in RAW)
_REPORTED_NAMES: Final = tuple((line.field, line.name, f"{line.name}.source") for line in REPORTED)
_NETWORK_PAIRS: Final = tuple((line.field, line.name) for line in NETWORK)
_UNATTRIBUTED_PAIRS: Final = tuple((line.field, line.name) for line in UNSPLIT)
_STAGE_NAMES: Final = tuple((line.field, line.name, f"{line.name}.source") for line in STAGE_TIMES)


def reserved(name: str) -> bool:
    """Say whether an attribute name is llmtrace's own, so that no user attribute may have it."""
    return name.startswith(_OWN) or name in _NAMES or name in content.NAMES


_KINDS: Final[Mapping[str, Kind]] = {
    **{
        line.name: line.kind
        for table in (
            PLAIN, MARKS, RAW, REPORTED, UNSPLIT, NETWORK, STAGE_TIMES, SPECIAL, DERIVED,
            BROWSER,
        )
        for line in table
    },
    **dict.fromkeys(_MARKED.values(), "seconds"),
}  # fmt: skip


def kind_of(name: str) -> Kind | None:
    """Say of which kind the values of one of llmtrace's attributes are; `None` = not one of them.

    For stores that give everything back as text.

    Example:
        >>> kind_of("llmtrace.e2e"), kind_of("llmtrace.stage.queue.source"), kind_of("shop.cart")
        ('seconds', 'string', None)
    """
    kind = _KINDS.get(name)
    text = (
        name.startswith(RESPONSE_HEADER)
        or name in content.NAMES
        or (name.startswith(_OWN) and name.endswith(".source"))
    )
    return "string" if kind is None and text else kind


def to_attributes(row: Row) -> dict[str, Value]:
    """Flatten a row to span attributes; durations in seconds, unknown ones left out.

    The ids, `start` and `service` are not among them: the span and its resource carry those.
    """
    timeline = row.timeline
    out: dict[str, Value] = {
        name: value for name, value in row.attributes.items() if not reserved(name)
    }
    known = vars(row)
    out |= {name: value for key, name in _PLAIN_PAIRS if (value := known[key]) is not None}
    if row.server is not None:
        out["server.address"], port = split_server(row.server)
        if port is not None:
            out["server.port"] = port
    if timeline.stream:
        out["gen_ai.request.stream"] = True
    if row.nested:
        out["llmtrace.nested"] = True
    if not timeline.watched:
        out["llmtrace.unwatched"] = True
    if row.attempt_log:
        out[ATTEMPT_LOG] = tuple(
            json.dumps(one, separators=(",", ":")) for one in as_plain(row.attempt_log)
        )
    if row.finish_reason is not None:
        out["gen_ai.response.finish_reasons"] = (row.finish_reason,)
    for header, text in row.response_headers.items():
        out[RESPONSE_HEADER + header] = text
    if row.browser is not None:
        out |= flatten(row.browser, ON_WIRE)
    out[E2E] = timeline.e2e / _NS
    if timeline.ttft is not None:
        out["gen_ai.response.time_to_first_chunk"] = timeline.ttft / _NS
        if (tpot := row.tpot_s) is not None:
            out["llmtrace.tpot"] = tpot
        if (arrival := row.ttft_arrival_s) is not None:
            out["llmtrace.ttft_arrival"] = arrival
    out |= {name: ns / _NS for key, name in _MARK_PAIRS if (ns := known[key]) is not None}
    _add_timeline(out, timeline)
    _add_stages(out, row.stages)
    out |= row.content
    return out


def _add_timeline(out: dict[str, Value], timeline: Timeline) -> None:
    """Add what was measured and reported, uncut."""
    for key, name in _TIMELINE_PAIRS:
        if ns := getattr(timeline, key):
            out[name] = ns / _NS
    for key, name, source in _REPORTED_NAMES:
        if (reported := getattr(timeline, key)) is not None:
            out[name] = reported.ns / _NS
            out[source] = reported.source
    for key, name in _UNATTRIBUTED_PAIRS:
        if (ns := getattr(timeline, key)) is not None:
            out[name] = ns / _NS
    network = timeline.network
    for key, name in _NETWORK_PAIRS:
        if (ns := getattr(network, key)) is not None:
            out[name] = ns / _NS
    if network.rtt_source is not None:
        out["llmtrace.network.rtt.source"] = network.rtt_source
    for when, marked in (("before", timeline.marked_before), ("after", timeline.marked_after)):
        for stage, ns in marked.items():
            out[_MARKED[when, stage]] = ns / _NS


def _add_stages(out: dict[str, Value], stages: Stages) -> None:
    """Add the partition, and the source of each stage."""
    sources = stages.sources
    for key, name, source in _STAGE_NAMES:
        if (ns := getattr(stages, key)) is not None:
            out[name] = ns / _NS
            out[source] = sources[key]  # type: ignore[index]
    out["llmtrace.stage.unattributed"] = stages.unattributed / _NS
    if stages.inconsistent:
        out["llmtrace.inconsistent"] = stages.inconsistent


def from_attributes(
    attributes: Mapping[str, Any],
    *,
    start: int,
    trace_id: str,
    span_id: str,
    parent_span_id: str | None = None,
    resource: Mapping[str, Any] | None = None,
) -> Row:
    """Rebuild a row from the attributes of its span; the inverse of `to_attributes`.

    Attributes that are not llmtrace's become the row's own, if they are plain values.

    Args:
        attributes: of the span.
        start: the span's start, unix nanoseconds.
        trace_id: in hex, as the two span ids.
        span_id: of the span.
        parent_span_id: of its parent, if it has one.
        resource: attributes of the span's resource; `service`, `version` and `region` are taken
            from it where the span does not say.

    Raises:
        DataError: this is not the span of a row (`is_row`), or a value is of the wrong kind.
    """
    around = resource or {}
    try:
        marks: dict[str, Any] = {
            f"{line.field}_ns": read_ns(attributes, line.name) for line in MARKS
        }
        plain = {
            line.field: _as_kind(line, attributes[line.name])
            for line in PLAIN
            if attributes.get(line.name) is not None
        }
        plain.setdefault("version", around.get("service.version"))
        plain.setdefault("region", around.get("cloud.region"))
        _check_outcome(plain.get("outcome", "success"))
        return Row(
            trace_id=trace_id,
            span_id=span_id,
            parent_span_id=parent_span_id,
            start=start,
            service=_service(attributes, around),
            server=_server(attributes),
            attempt_log=_attempt_log(attributes.get(ATTEMPT_LOG)),
            finish_reason=_first(attributes.get("gen_ai.response.finish_reasons")),
            timeline=_timeline(attributes),
            nested=read_flag(attributes, "llmtrace.nested"),
            **_mappings(attributes),
            browser=unflatten(attributes, ON_WIRE),
            **marks,
            **plain,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"not the span of a row: {type(error).__name__}: {error}") from error


def is_row(attributes: Mapping[str, Any]) -> bool:
    """Say whether a span with these attributes is a row, and not one of its stages or another."""
    return E2E in attributes


def _mappings(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a row that hold any number of names and values."""
    texts = {name: value for name, value in attributes.items() if isinstance(value, str)}
    return {
        "attributes": {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in attributes.items()
            if not reserved(name) and _plain(value)
        },
        "content": {name: text for name, text in texts.items() if name in content.NAMES},
        "response_headers": {
            name.removeprefix(RESPONSE_HEADER): text
            for name, text in texts.items()
            if name.startswith(RESPONSE_HEADER)
        },
    }


def _service(*places: Mapping[str, Any]) -> str:
    for attributes in places:
        if name := attributes.get("service.name"):
            return str(name)
    return "unknown_service"


def _timeline(attributes: Mapping[str, Any]) -> Timeline:
    parts: dict[str, Any] = {line.field: read_ns(attributes, line.name) for line in NETWORK}
    raw: dict[str, Any] = {line.field: read_ns(attributes, line.name) or 0 for line in RAW}
    raw |= {line.field: read_ns(attributes, line.name) for line in UNSPLIT}
    reported: dict[str, Any] = {
        line.field: read_reported(attributes, line.name, f"{line.name}.source")
        for line in REPORTED
    }
    return Timeline(
        e2e=read_duration(attributes, E2E),
        ttft=read_ns(attributes, "gen_ai.response.time_to_first_chunk"),
        network=Network(
            **parts, rtt_source=read_source(attributes, "llmtrace.network.rtt.source")
        ),
        marked_before=dict(_marked(attributes, "before")),
        marked_after=dict(_marked(attributes, "after")),
        stream=read_flag(attributes, "gen_ai.request.stream"),
        watched=not read_flag(attributes, "llmtrace.unwatched"),
        **raw,
        **reported,
    )


def _marked(attributes: Mapping[str, Any], when: str) -> Iterator[tuple[StageName, int]]:
    for stage in STAGES:
        if (ns := read_ns(attributes, _MARKED[when, stage])) is not None:
            yield stage, ns


def _as_kind(line: Attribute, value: Any) -> Any:
    """Check a plain value's kind: what comes from the wire may be anything."""
    kinds: Any = {"string": str, "int": int, "double": int | float, "boolean": bool}[line.kind]
    if isinstance(value, bool) != (kinds is bool) or not isinstance(value, kinds):
        raise TypeError(f"{line.name} is {value!r}, not a {line.kind}")
    return bounded(line.name, value) if line.field.endswith("_s") else value


def _check_outcome(outcome: str) -> None:
    if outcome not in OUTCOMES:
        raise ValueError(f"llmtrace.outcome is {outcome!r}, not one of {', '.join(OUTCOMES)}")


def _plain(value: Any) -> bool:
    """Say whether a value is one that a row's own attribute can have."""
    if isinstance(value, list | tuple):
        return all(isinstance(one, str) for one in value)
    return isinstance(value, str | bool | int | float)


def _attempt_log(written: Any) -> tuple[Attempt, ...]:
    if written is None:
        return ()
    # Some stores flatten a list of one to its only element.
    listed = [written] if isinstance(written, str) else written
    return from_plain([json.loads(one) for one in listed[:MAX_ATTEMPTS]])


def _first(reasons: Any) -> str | None:
    # Some stores flatten a list of one to its only element.
    if isinstance(reasons, str):
        return reasons
    return str(reasons[0]) if reasons else None


_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}")


@lru_cache(maxsize=256)
def split_server(server: str) -> tuple[str, int | None]:
    """Split `host:port` into what OpenTelemetry's `server.address` and `server.port` hold.

    Example:
        >>> split_server("engine:8000")
        ('engine', 8000)
        >>> split_server("[::1]:8000")
        ('::1', 8000)
        >>> split_server("engine")
        ('engine', None)
    """
    host, colon, port = server.rpartition(":")
    if not colon or not _PORT.fullmatch(port):
        return server, None
    if host.startswith("[") and host.endswith("]") and ":" in host:
        return host[1:-1], int(port)
    if ":" in host or not host:
        return server, None
    return host, int(port)


def _server(attributes: Mapping[str, Any]) -> str | None:
    address, port = attributes.get("server.address"), attributes.get("server.port")
    if address is None or port is None:
        return None if address is None else str(address)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
