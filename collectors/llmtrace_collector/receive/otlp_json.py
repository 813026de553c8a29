"""What is an OTLP request in JSON, as protobuf?

Protobuf's own JSON, except that ids are hex; see
https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding. Pure.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from google.protobuf.message import Message
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from llmtrace_collector.receive.refusal import RefusedError

_IDS: Final = ("traceId", "spanId", "parentSpanId")
_BAD: Final = (
    ParseError, ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error,
)  # fmt: skip
# Text in JSON, with what it escapes; or one step in or out.
_STEPS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


def from_json(body: bytes, depth: int) -> ExportTraceServiceRequest:
    """Read a request.

    Args:
        body: JSON in UTF-8.
        depth: most objects and lists in one another.

    Raises:
        RefusedError: `bad_data`: it is no such request, or deeper.
    """
    if _deeper(body, depth):
        raise RefusedError("bad_data", f"JSON deeper than {depth} objects in one another")
    try:
        flat = json.loads(body, parse_constant=_no_constant)
        for span in _spans(flat):
            _ids(span)
            for link in span.get("links", ()):
                _ids(link)
        return ParseDict(flat, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except _BAD:
        # What these errors say may repeat what was sent.
        raise RefusedError("bad_data", "the body is not an OTLP trace request in JSON") from None


def to_json(message: Message) -> bytes:
    """Write an answer; it holds no ids."""
    return MessageToJson(message, indent=None).encode()


def _deeper(body: bytes, depth: int) -> bool:
    within = 0
    for step in _STEPS.finditer(body):
        kind = body[step.start()]
        if kind in b"[{":
            within += 1
            if within > depth:
                return True
        elif kind in b"]}":
            within -= 1
    return False


def _spans(flat: Any) -> Iterator[dict[str, Any]]:
    for resource in flat.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            yield from scope.get("spans", ())


def _ids(holder: dict[str, Any]) -> None:
    for name in _IDS:
        if name in holder:
            holder[name] = b64encode(bytes.fromhex(holder[name])).decode()


def _no_constant(_: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON
