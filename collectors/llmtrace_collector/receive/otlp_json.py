"""Convert an OTLP request in JSON to protobuf.

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

from llmtrace_collector.receive.rejections import RejectedError

_IDS: Final = ("traceId", "spanId", "parentSpanId")
_BAD: Final = (
    ParseError, ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error,
)  # fmt: skip
# A string in JSON, with its escapes; or an opening or closing bracket.
_STEPS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


def from_json(body: bytes, depth: int) -> ExportTraceServiceRequest:
    """Read a request.

    Args:
        body: JSON in UTF-8.
        depth: maximum nesting of objects and lists.

    Raises:
        RejectedError: `bad_data`: it is not such a request, or nested deeper.
    """
    if _deeper(body, depth):
        raise RejectedError("bad_data", f"JSON deeper than {depth} objects in one another")
    try:
        flat = json.loads(body, parse_constant=_no_constant)
        for span in _spans(flat):
            _ids(span)
            for link in _listed(span, "links"):
                _ids(link)
        return ParseDict(flat, ExportTraceServiceRequest(), ignore_unknown_fields=True)
    except _BAD:
        # The text of these errors may repeat what was sent.
        raise RejectedError("bad_data", "the body is not an OTLP trace request in JSON") from None


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
    for resource in _listed(flat, "resourceSpans"):
        for scope in _listed(resource, "scopeSpans"):
            yield from _listed(scope, "spans")


def _listed(holder: Any, name: str) -> Any:
    """Return a list; `null` is unset, as in protobuf's own JSON."""
    found = holder.get(name)
    return () if found is None else found


def _ids(holder: dict[str, Any]) -> None:
    for name in _IDS:
        if holder.get(name) is not None:
            holder[name] = b64encode(bytes.fromhex(holder[name])).decode()


def _no_constant(_: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON
