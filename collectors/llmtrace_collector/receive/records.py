"""How is one request written to a spool file, and found again after whatever happened to it?

A record is a mark, the payload's length, its spans, a checksum of all that, and the payload. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

MARK: Final = b"\xf1LTr"
_HEAD: Final = Struct("<4sII")
_CHECK: Final = Struct("<I")
HEAD_BYTES: Final = _HEAD.size + _CHECK.size


@dataclass(frozen=True, slots=True)
class Record:
    """One record in a file.

    Attributes:
        start: its first byte's place in the file.
        end: of the byte after its last.
        spans: in the payload.
        payload: one request.
    """

    start: int
    end: int
    spans: int
    payload: bytes


def head(payload: bytes, spans: int) -> bytes:
    """Return what is written before a payload."""
    told = _HEAD.pack(MARK, len(payload), spans)
    return told + _CHECK.pack(zlib.crc32(payload, zlib.crc32(told)))


def records(data: bytes, start: int = 0) -> Iterator[Record]:
    """Yield the records at the beginning of `data`, up to the first byte that is none.

    Args:
        data: of a file.
        start: the place of its first byte in the file.
    """
    at = 0
    while (found := _record(data, at, start)) is not None:
        yield found
        at = found.end - start


def length_at(data: bytes, at: int) -> int | None:
    """Return how long the record at `at` says it is; `None` if none begins there.

    Its head alone is needed, and is not checked.
    """
    if len(data) - at < HEAD_BYTES or data[at : at + len(MARK)] != MARK:
        return None
    return HEAD_BYTES + int(_HEAD.unpack_from(data, at)[1])


def next_mark(data: bytes, at: int) -> int:
    """Return where the next record may begin, at `at` or after; the length of `data` = nowhere."""
    found = data.find(MARK, at)
    return len(data) if found < 0 else found


def _record(data: bytes, at: int, start: int) -> Record | None:
    length = length_at(data, at)
    if length is None or len(data) - at < length:
        return None
    body = at + HEAD_BYTES
    payload = data[body : at + length]
    (checksum,) = _CHECK.unpack_from(data, at + _HEAD.size)
    if zlib.crc32(payload, zlib.crc32(data[at : at + _HEAD.size])) != checksum:
        return None
    spans = _HEAD.unpack_from(data, at)[2]
    return Record(start + at, start + at + length, spans, payload)
