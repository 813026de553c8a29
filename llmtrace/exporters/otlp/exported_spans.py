"""Make rows of the spans in OTLP's JSON, as the OpenTelemetry Collector's file exporter writes it.

Spans of llmtrace come back whole. Of requests that another instrumentation recorded by the current
GenAI conventions, a row has what the span says; the collector of llmtrace knows other conventions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from llmtrace.core.errors import DataError
from llmtrace.core.row import Row
from llmtrace.semconv.attributes import E2E
from llmtrace.semconv.convert import from_attributes, is_row, kind_of

_REQUESTS: Final = {"chat", "generate_content", "text_completion"}
_FAILED: Final = {2, "STATUS_CODE_ERROR"}
_UNREADABLE: Final = (AttributeError, DataError, KeyError, TypeError, ValueError)


def exported_rows(record: Mapping[str, Any]) -> Iterator[tuple[Row, bool] | None]:
    """Yield the rows of one export of traces, and whether they say if they were streamed.

    `None`: one of its spans cannot be read.
    """
    for batch in record["resourceSpans"] or ():
        try:
            resource = _attributes(batch.get("resource") or {})
            spans = [span for scope in batch.get("scopeSpans") or ()
                     for span in scope.get("spans") or ()]  # fmt: skip
        except _UNREADABLE:
            yield None
            continue
        for span in spans:
            try:
                yield from [*_rows(span, resource)]
            except _UNREADABLE:
                yield None


def _rows(span: Mapping[str, Any], resource: Mapping[str, Any]) -> Iterator[tuple[Row, bool]]:
    """Yield the row of a span, if it is a request's."""
    attributes, start = _attributes(span), int(span["startTimeUnixNano"])
    if not is_row(attributes):
        if attributes.get("gen_ai.operation.name") not in _REQUESTS:
            return
        failed = (span.get("status") or {}).get("code") in _FAILED or "error.type" in attributes
        # Others' spans may hold prompts and keys.
        attributes = {name: one for name, one in attributes.items() if kind_of(name)} | {
            E2E: (int(span["endTimeUnixNano"]) - start) / 1e9,
            "llmtrace.outcome": "error" if failed else "success",
            "llmtrace.unwatched": True,
        }
    row = from_attributes(
        attributes,
        start=start,
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_span_id=span.get("parentSpanId") or None,
        resource=resource,
    )
    yield row, row.timeline.watched or "gen_ai.request.stream" in attributes


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    found = {one["key"]: _value(one.get("value") or {}) for one in holder.get("attributes") or ()}
    return {name: value for name, value in found.items() if value is not None}


def _value(value: Mapping[str, Any]) -> Any:
    """Return an attribute's value; in JSON, a whole number of 64 bits is text. `None` = unset."""
    held: Any
    kind, held = next(iter(value.items()), ("", None))
    if kind == "arrayValue":
        return [_value(one) for one in held.get("values") or ()]
    whole = kind == "intValue" or (kind == "doubleValue" and float(held).is_integer())
    return int(held) if whole else held
