"""Write the records of a spool file, and find the intact ones whatever happened to the file.

A record is a mark, the payload's length, its number of spans, their size once they are stored, a
checksum of all that, and the payload. An older kind, with another mark, lacks that size. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

_MARKS: Final = b"\xf1LT"  # both marks begin with this
MARK: Final = _MARKS + b"s"
_HEAD: Final = Struct("<4sIIQ")
_HEADS: Final = {MARK: _HEAD, _MARKS + b"r": Struct("<4sII")}
_LENGTH: Final = Struct("<4sI")  # every head begins with this
_CHECK: Final = Struct("<I")
HEAD_BYTES: Final = _HEAD.size + _CHECK.size
_MIN: Final = min(kind.size for kind in _HEADS.values()) + _CHECK.size


@dataclass(frozen=True, slots=True)
class Record:
    """One record in a file.

    Attributes:
        start: offset of its first byte in the file.
        end: offset of the byte after its last.
        spans: number of spans in the payload.
        payload: one request.
        expanded: bytes of its spans, each with a copy of its resource and scope; in a record of
            the older kind, those of the payload.
    """

    start: int
    end: int
    spans: int
    payload: bytes
    expanded: int = 0


def head(payload: bytes, spans: int, expanded: int = 0) -> bytes:
    """Return what is written before a payload."""
    head = _HEAD.pack(MARK, len(payload), spans, max(expanded, len(payload)))
    return head + _CHECK.pack(zlib.crc32(payload, zlib.crc32(head)))


def records(data: bytes, start: int = 0) -> Iterator[Record]:
    """Yield the records at the beginning of `data`, up to the first byte that is not in one.

    `start` is the offset of the data in its file.
    """
    at = 0
    while (found := _record(data, at, start)) is not None:
        yield found
        at = found.end - start


def length_at(data: bytes, at: int) -> int | None:
    """Return the length that the record at `at` claims; `None` if no record begins there.

    Only its head is needed, and is not checked.
    """
    kind = _HEADS.get(data[at : at + len(MARK)])
    if kind is None or len(data) - at < _MIN:
        return None
    return kind.size + _CHECK.size + int(_LENGTH.unpack_from(data, at)[1])


def next_mark(data: bytes, at: int) -> int:
    """Return where the next record may begin, at `at` or after; the length of `data` = nowhere."""
    found = data.find(_MARKS, at)
    return len(data) if found < 0 else found


def _record(data: bytes, at: int, start: int) -> Record | None:
    length = length_at(data, at)
    if length is None or len(data) - at < length:
        return None
    kind = _HEADS[data[at : at + len(MARK)]]
    body = at + kind.size + _CHECK.size
    payload = data[body : at + length]
    (checksum,) = _CHECK.unpack_from(data, at + kind.size)
    if zlib.crc32(payload, zlib.crc32(data[at : at + kind.size])) != checksum:
        return None
    _, _, spans, *rest = kind.unpack_from(data, at)
    return Record(start + at, start + at + length, spans, payload, *rest or (len(payload),))


def varint(number: int) -> bytes:
    """Write a number as a varint of protobuf, as the length before each request of a batch."""
    out = bytearray()
    while number >= 0x80:  # noqa: PLR2004 - the bit that says that more follows
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
