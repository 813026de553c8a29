"""Write one request to a spool file, and find it again after whatever happened to it.

A record is a mark, the payload's length, its spans, the bytes of these once they are stored, a
checksum of all that, and the payload. An older kind, with another mark, lacks the third. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

_MARKS: Final = b"\xf1LT"  # what both begin with
MARK: Final = _MARKS + b"s"
_HEAD: Final = Struct("<4sIIQ")
_HEADS: Final = {MARK: _HEAD, _MARKS + b"r": Struct("<4sII")}
_LENGTH: Final = Struct("<4sI")  # how every head begins
_CHECK: Final = Struct("<I")
HEAD_BYTES: Final = _HEAD.size + _CHECK.size
_MIN: Final = min(kind.size for kind in _HEADS.values()) + _CHECK.size


@dataclass(frozen=True, slots=True)
class Record:
    """One record in a file.

    Attributes:
        start: its first byte's place in the file.
        end: of the byte after its last.
        spans: in the payload.
        payload: one request.
        expanded: bytes of its spans, each with a copy of its resource and scope; of a record of
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
