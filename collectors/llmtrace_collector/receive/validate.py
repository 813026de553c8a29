"""Check that bytes are an OTLP trace request, and which of its spans can be stored.

The parsed messages are discarded: the sender's own bytes are stored, unless a span has to be left
out. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from llmtrace_collector.receive.limits import ReceiveLimits
from llmtrace_collector.receive.rejections import RejectedError
from llmtrace_collector.receive.split import readable

_TRACE_ID: Final = 16
_SPAN_ID: Final = 8
_NO_TRACE: Final = bytes(_TRACE_ID)
_NO_SPAN: Final = bytes(_SPAN_ID)

_WORDS: Final = {
    "ids": "a trace id is 16 bytes, a span id 8, and neither all zero",
    "text": "text that is not UTF-8, or a span that cannot be read",
    "attributes": f"more than {ReceiveLimits().attributes} attributes",
    "span_bytes": "a span is larger than the collector accepts",
    "expanded_bytes": "stored with a copy of resource and scope in each, these spans are larger "
    "than the collector accepts (receive.expanded_bytes)",
}


@dataclass(frozen=True, slots=True)
class Checked:
    """A request that can be stored.

    Attributes:
        payload: an `ExportTraceServiceRequest`.
        spans: number of spans in it.
        expanded: bytes of these spans, each with a copy of its resource and scope.
        rejected: spans that were left out, by reason.
    """

    payload: bytes
    spans: int
    expanded: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def response(self) -> ExportTraceServiceResponse:
        """Return the response to the sender: empty, or what was left out."""
        if not self.rejected:
            return ExportTraceServiceResponse()
        words = "; ".join(
            f"{count} rejected: {_WORDS[why]}" for why, count in self.rejected.items()
        )
        partial = ExportTracePartialSuccess(
            rejected_spans=self.rejected.total(), error_message=words
        )
        return ExportTraceServiceResponse(partial_success=partial)


def check(body: bytes, limits: ReceiveLimits) -> Checked:
    """Parse a request and return the part of it that can be stored.

    Args:
        body: `ExportTraceServiceRequest`, as bytes.
        limits: of a span and of the request.

    Raises:
        RejectedError: `bad_data`: the bytes are not such a request.
    """
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        return _without_bad_text(body, limits)
    return check_request(request, body, limits)


def _without_bad_text(body: bytes, limits: ReceiveLimits) -> Checked:
    """Leave out the spans whose text is not UTF-8, if nothing else is wrong with the request."""
    try:
        kept, left_out = readable(body)
    except DecodeError:
        kept, left_out = b"", 0
    if not kept:
        raise RejectedError("bad_data", "the body is not an OTLP trace request")
    found = check_request(ExportTraceServiceRequest.FromString(kept), kept, limits)
    return replace(found, rejected=found.rejected + Counter({"text": left_out}))


def check_request(
    request: ExportTraceServiceRequest, body: bytes, limits: ReceiveLimits
) -> Checked:
    """Return the part of a parsed request that can be stored; see `check`."""
    if body and not request.resource_spans:
        # Arbitrary bytes often parse as unknown fields.
        raise RejectedError("bad_data", "the body holds no resource spans")
    spans = 0
    wrong: list[tuple[ScopeSpans, int, str]] = []
    most, most_bytes = limits.attributes, limits.span_bytes
    sizes = len(body) > most_bytes
    expanded = len(body)
    for resource, scope in _scopes(request):
        over = len(resource.resource.attributes) > most or len(scope.scope.attributes) > most
        count = len(scope.spans)
        spans += count
        shared = resource.resource.ByteSize() + scope.scope.ByteSize()
        # Each span is stored with a copy of these: this many spans fit.
        fits = (limits.expanded_bytes - expanded) // shared if shared else count
        expanded += shared * min(count, max(0, fits))
        # Runs for every span: it reads as little as possible, and calls no functions of ours.
        for place, span in enumerate(scope.spans):
            trace_id, span_id = span.trace_id, span.span_id
            if over:
                why = "attributes"
            elif (
                len(trace_id) != _TRACE_ID
                or len(span_id) != _SPAN_ID
                or trace_id == _NO_TRACE
                or span_id == _NO_SPAN
            ):
                why = "ids"
            elif len(span.attributes) > most:
                why = "attributes"
            elif sizes and span.ByteSize() > most_bytes:
                why = "span_bytes"
            elif place >= fits:
                why = "expanded_bytes"
            else:
                continue
            wrong.append((scope, place, why))
    if not wrong:
        return Checked(body, spans, expanded)
    for scope, place, _ in reversed(wrong):
        del scope.spans[place]
    rejected = Counter(why for _, _, why in wrong)
    return Checked(request.SerializeToString(), spans - len(wrong), expanded, rejected)


def _scopes(request: ExportTraceServiceRequest) -> Iterator[tuple[ResourceSpans, ScopeSpans]]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield resource, scope
