"""Remove from an OTLP trace request the spans that cannot be parsed.

For a request that the parser rejects as a whole. It is read by a schema of its own, which has only
the messages around a span, and the spans as bytes: all other fields are kept as they are.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_PACKAGE: Final = "llmtrace.unparsed"


def _request_class() -> Any:
    """Make the class of requests whose spans are bytes, with OTLP's numbers of fields."""
    file = FileDescriptorProto(name="unparsed.proto", package=_PACKAGE, syntax="proto3")
    for name, field, number, within in (
        ("ScopeSpans", "spans", 2, None),
        ("ResourceSpans", "scope_spans", 2, "ScopeSpans"),
        ("Request", "resource_spans", 1, "ResourceSpans"),
    ):
        file.message_type.add(name=name).field.add(
            name=field,
            number=number,
            label=FieldDescriptorProto.LABEL_REPEATED,
            type=FieldDescriptorProto.TYPE_MESSAGE if within else FieldDescriptorProto.TYPE_BYTES,
            type_name=f".{_PACKAGE}.{within}" if within else None,
        )
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Request"))


_Request: Final = _request_class()


def readable(body: bytes) -> tuple[bytes, int]:
    """Return a request without the parts that cannot be parsed, and how many spans those had.

    Args:
        body: `ExportTraceServiceRequest`.

    Raises:
        DecodeError: the bytes are not nested messages.
    """
    kept, left_out = _Request(), 0
    for resource_spans in _Request.FromString(body).resource_spans:
        count = 0
        for scope_spans in resource_spans.scope_spans:
            spans = [span for span in scope_spans.spans if _parses(Span, span)]
            left_out += len(scope_spans.spans) - len(spans)
            count += len(spans)
            scope_spans.spans[:] = spans
        whole = _Request(resource_spans=[resource_spans]).SerializeToString()
        if count and _parses(ExportTraceServiceRequest, whole):
            kept.resource_spans.append(resource_spans)
        else:
            left_out += count
    return kept.SerializeToString(), left_out


def _parses(kind: type[Message], data: bytes) -> bool:
    try:
        kind.FromString(data)
    except DecodeError:
        return False
    return True
