"""Turn a browser's beacon into a span.

A beacon becomes the span that `llmtrace.browser.Middleware` would make of it, the root of the
page's trace, so that the join finds the same span whichever way it came.
"""

from __future__ import annotations

from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from llmtrace.browser.asgi import page_span
from llmtrace.browser.beacon import read_beacon
from llmtrace.core.errors import DataError
from llmtrace.exporters.otlp.encode import encode_span
from llmtrace.semconv.attributes import SCOPE
from llmtrace_collector.receive.rejections import RejectedError

_SERVICE: Final = "browser"


def beacon_request(body: bytes, now_ns: int) -> bytes:
    """Convert a beacon into an OTLP request.

    Args:
        body: the beacon.
        now_ns: unix nanoseconds by this machine's clock; the page's own is not trusted.

    Raises:
        RejectedError: `bad_data`: it is not a beacon.
    """
    try:
        beacon = read_beacon(body)
    except DataError as error:
        raise RejectedError("bad_data", str(error)) from None
    span = page_span(beacon, _SERVICE, now_ns - beacon.age_ns)
    scope = ScopeSpans.FromString(encode_span(span))
    scope.scope.CopyFrom(InstrumentationScope(name=SCOPE))
    name = KeyValue(key="service.name", value=AnyValue(string_value=_SERVICE))
    resource = ResourceSpans(resource=Resource(attributes=[name]), scope_spans=[scope])
    return ExportTraceServiceRequest(resource_spans=[resource]).SerializeToString()
