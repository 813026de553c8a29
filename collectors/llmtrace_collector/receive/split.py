"""Remove from an OTLP trace request, as bytes, the spans that cannot be parsed.

For a request that the parser rejects as a whole: around the spans only the lengths of protobuf's
fields are read. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# Field numbers of the messages around a span: resource_spans, scope_spans and spans.
_RESOURCE_SPANS: Final = 1
_SCOPE_SPANS: Final = 2
_SPANS: Final = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT: Final = 64


def readable(
    body: bytes, can_read: Callable[[bytes], bool], can_group: Callable[[bytes], bool]
) -> tuple[bytes, int]:
    """Return a request without the parts that cannot be parsed, and how many spans those had.

    Args:
        body: `ExportTraceServiceRequest`.
        can_read: returns whether the bytes of a span can be parsed.
        can_group: the same for a request with the spans of one resource.

    Raises:
        ValueError: the bytes are not nested messages.
    """
    out, left_out = bytearray(), 0
    for resource_spans in _members(body, _RESOURCE_SPANS)[0]:
        groups, within = _members(resource_spans, _SCOPE_SPANS)
        count = 0
        pieces = [within]
        for group in groups:
            spans, scope = _members(group, _SPANS)
            kept = [span for span in spans if can_read(span)]
            left_out += len(spans) - len(kept)
            count += len(kept)
            pieces.append(
                _field(_SCOPE_SPANS, scope + b"".join(_field(_SPANS, span) for span in kept))
            )
        whole = _field(_RESOURCE_SPANS, b"".join(pieces))
        if count and can_group(whole):
            out += whole
        else:
            left_out += count
    return bytes(out), left_out


def _members(message: bytes, wanted: int) -> tuple[list[bytes], bytes]:
    """Return the contents of one repeated field of a message, and the rest of the message."""
    found: list[bytes] = []
    rest = bytearray()
    at = 0
    while at < len(message):
        begin = at
        tag, at = _read_varint(message, at)
        kind = tag & 7
        start = at
        if kind == _VARINT:
            _, at = _read_varint(message, at)
        elif kind == _BYTES:
            length, start = _read_varint(message, at)
            at = start + length
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(kind)
        if at > len(message):
            raise ValueError(at)
        if kind == _BYTES and tag >> 3 == wanted:
            found.append(message[start:at])
        else:
            rest += message[begin:at]
    return found, bytes(rest)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, _MAX_VARINT, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            return number, at
    raise ValueError(at)


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(content)) + content


def varint(number: int) -> bytes:
    """Write a number as a varint of protobuf."""
    out = bytearray()
    while number >= 0x80:  # noqa: PLR2004 - the bit that says that more follows
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
