"""Which spans do the HTTP attempts of a request become?

One each, under the request's span, where there was more than one or where one failed. They are not
stages: they lie beside those, and over the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from llmtrace.semconv_table import ATTEMPT
from llmtrace.spans import Span, Value
from llmtrace.tries import MOST_TRIES, Try

if TYPE_CHECKING:
    from llmtrace.rows import Row

_NS: Final = 1_000_000_000
_HTTP_ERROR: Final = 400

# What an attempt's span id is to that of its request: fixed, so that a row sent twice is one row.
_IDS: Final = tuple(
    int.from_bytes(blake2b(f"llmtrace.attempt.{index}".encode(), digest_size=8).digest())
    for index in range(MOST_TRIES)
)


def attempts(row: Row) -> Iterator[tuple[int, Try]]:
    """Yield each attempt that a row tells of, with its number: 1 is the first."""
    last = len(row.tries)
    for number, one in enumerate(row.tries, 1):
        forgotten = number == last == MOST_TRIES
        yield (max(number, row.attempts) if forgotten else number), one


def attempt_spans(row: Row) -> Iterator[Span]:
    """Make the span of each attempt."""
    for index, (number, one) in enumerate(attempts(row)):
        error = error_of(one)
        attributes: dict[str, Value] = {ATTEMPT: number}
        if number > 1:
            attributes["http.request.resend_count"] = number - 1
        if one.status is not None:
            attributes["http.response.status_code"] = one.status
        if error is not None:
            attributes["error.type"] = error
        if one.retry_after_ns is not None:
            attributes["llmtrace.retry_after"] = one.retry_after_ns / _NS
        if one.backoff_ns:
            attributes["llmtrace.backoff"] = one.backoff_ns / _NS
        yield Span(
            name=f"attempt {number}",
            kind="client",
            trace_id=row.trace_id,
            span_id=f"{(int(row.span_id, 16) ^ _IDS[index]) or 1:016x}",
            parent_span_id=row.span_id,
            service=row.service,
            start=row.start + one.start_ns,
            duration_ns=one.duration_ns,
            attributes=attributes,
            error=error,
        )


def error_of(one: Try) -> str | None:
    """Name what went wrong with an attempt, as OpenTelemetry does; `None` if nothing did."""
    if one.error_type is not None:
        return one.error_type
    return str(one.status) if one.status is not None and one.status >= _HTTP_ERROR else None
