"""Make rows of Langfuse's observations, as its API returns them or an export writes them.

Those that llmtrace wrote come back whole, stages and all. Of the others, written by Langfuse's own
SDK or by another program, a row has what is known: start, end, first token, tokens, failure. Their
stages were not observed, so their time stays unattributed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final

from llmtrace.core.errors import DataError
from llmtrace.core.json_values import start_ns
from llmtrace.core.row import Row
from llmtrace.core.stages import Timeline
from llmtrace.semconv.convert import from_attributes, is_row, kind_of

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# What a server adds to the metadata of a span that was sent.
_OF_SERVER: Final = ("attributes.", "resourceAttributes.", "scope.", "scopeAttributes.")
_MAX_TEXT: Final = 200
_STATUS: Final = re.compile(r"Error code: ([45]\d\d)\b")  # in errors of the vendors' SDKs
_FIELDS: Final = (
    "id", "trace_id", "parent_observation_id", "start_time", "end_time", "completion_start_time",
    "model", "usage_details", "level", "status_message", "metadata", "version", "release",
    "environment", "trace_name", "user_id", "session_id", "tags",
)  # fmt: skip


def exported_rows(record: Mapping[str, Any]) -> Iterator[tuple[Row, bool] | None]:
    """Yield the row of an exported observation, and whether it says if it was streamed.

    In CSV, its objects are JSON as text. Other observations than generations are passed by, unless
    llmtrace wrote them. `None`: it is not over yet, or cannot be read.
    """
    given = dict.fromkeys(_FIELDS) | {
        re.sub("[A-Z]", lambda upper: f"_{upper[0].lower()}", name): _parsed(value) or None
        for name, value in record.items()
    }
    given["usage_details"] = given["usage_details"] or given.get("usage")
    if not isinstance(given["metadata"], dict):  # an application may write anything
        given["metadata"] = None
    row = row_of(SimpleNamespace(**given))
    if given.get("type") in {None, "GENERATION"} or (row is not None and row.timeline.watched):
        yield None if row is None else (row, row.timeline.watched or row.timeline.stream)


def row_of(observation: Any) -> Row | None:
    """Make a row of an observation as the `langfuse` client returns it.

    Returns:
        `None` if it is not over yet, or cannot be read as a request.
    """
    metadata = dict(_flat(observation.metadata or {}))
    # Where spans come through OpenTelemetry, some servers keep all their attributes, as text.
    sent = dict(_below("attributes.", metadata))
    attributes = {
        name: value
        for name, given in {**sent, **metadata}.items()
        if (value := _as_kind(name, given)) is not None
    }
    try:
        if is_row(attributes):
            return _own(observation, attributes)
        return _other(observation, metadata)
    except (AttributeError, DataError, OverflowError, TypeError):
        return None


def _own(observation: Any, attributes: Mapping[str, Any]) -> Row:
    return from_attributes(
        {
            **{name: one for name, one in attributes.items() if not name.startswith(_OF_SERVER)},
            **_of_trace(observation),
        },
        start=_ns(observation.start_time),
        trace_id=observation.trace_id or "",
        span_id=observation.id,
        parent_span_id=observation.parent_observation_id,
        resource=_resource(attributes),
    )


def _other(observation: Any, metadata: Mapping[str, Any]) -> Row | None:
    if observation.end_time is None:
        return None
    start, end = _ns(observation.start_time), _ns(observation.end_time)
    first = observation.completion_start_time
    ttft = None if first is None else min(max(0, _ns(first) - start), max(0, end - start))
    usage = observation.usage_details or {}
    failed = getattr(observation.level, "value", observation.level) == "ERROR"
    resource = _resource(metadata)
    status = observation.status_message
    said = str(status or "")
    code = _STATUS.search(said) if failed else None
    failure = {"langfuse.status_message": said[:_MAX_TEXT] or None} if failed else {}
    return Row(
        request_id=observation.id,
        trace_id=observation.trace_id or "",
        span_id=observation.id,
        parent_span_id=observation.parent_observation_id,
        start=start,
        service=str(resource.get("service.name") or "unknown_service"),
        model=observation.model,
        route=observation.trace_name,
        version=observation.version,
        outcome="error" if failed else "success",
        http_status=None if code is None else int(code[1]),
        prompt_tokens=_input(usage),
        cached_tokens=_first(usage, "input_cached_tokens", "input_cache_read"),
        output_tokens=_first(usage, "output", "completionTokens"),
        timeline=Timeline(
            e2e=max(0, end - start), ttft=ttft, stream=ttft is not None, watched=False
        ),
        attributes={
            name: value
            for name, value in {**failure, **_of_trace(observation)}.items()
            if value is not None
        },
    )


def _of_trace(observation: Any) -> dict[str, Any]:
    """Return Langfuse's own fields, by the names that rows have for them."""
    environment = observation.environment
    named = {
        "user.id": observation.user_id,
        "session.id": observation.session_id,
        "tag.tags": tuple(observation.tags or ()),
        "langfuse.environment": None if environment == "default" else environment,
        "langfuse.release": observation.release,
        "langfuse.trace.name": observation.trace_name,
    }
    return {name: value for name, value in named.items() if value}


def _resource(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_below("resourceAttributes.", metadata))


def _below(prefix: str, flat: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in flat.items():
        if name.startswith(prefix):
            yield name.removeprefix(prefix), value


def _input(usage: Mapping[str, int]) -> int | None:
    """Return the tokens of the prompt: Langfuse counts cached ones apart."""
    parts = [count for name, count in usage.items() if isinstance(count, int)
             and (name in {"input", "promptTokens"} or name.startswith("input_"))]  # fmt: skip
    return sum(parts) if parts else None


def _first(usage: Mapping[str, int], *names: str) -> int | None:
    return next((one for name in names if isinstance(one := usage.get(name), int)), None)


def _ns(at: object) -> int:
    if not isinstance(at, datetime):
        if (found := start_ns(at)) is None:
            raise DataError(f"{at!r} is no time")
        return found
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1) * 1000


def _flat(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield metadata by name; what the server has added, as an object or its text, in pieces."""
    for name, value in metadata.items():
        added = _parsed(value) if f"{name}." in _OF_SERVER else None
        if isinstance(added, Mapping):
            for inner, one in added.items():
                yield f"{name}.{inner}", one
        else:
            yield name, value


def _parsed(value: Any) -> Any:
    """Return the object or list whose JSON a text is; anything else as it is."""
    if isinstance(value, str) and value[:1] in {"{", "["}:
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _as_kind(name: str, value: Any) -> Any:
    """Return a value as the kind that its name has in rows; metadata may come back as text."""
    kind = kind_of(name)
    if kind is None:
        return value
    if kind == "string":
        return value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return [value] if kind == "string[]" else None
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
