"""Remember how far the spool has been stored, and which batch is being stored.

One small file with two slots that are overwritten in turn: it needs no space on a full disk, and
at least one slot is intact whenever the machine crashes.

Before a batch is inserted its end is recorded (`planned`). After a crash the next process inserts
exactly that batch again, under the same token, which the store accepts once.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_bytes
from struct import Struct
from typing import Final

_MARK: Final = b"LTcursr1"
_SLOT: Final = Struct("<8s16sQQQQ")
_CHECK: Final = Struct("<I")
_SLOT_BYTES: Final = 512  # a disk's sector: a half is written whole or not at all
_HALVES: Final = 2


@dataclass(frozen=True, slots=True)
class Position:
    """Where the store is in the spool.

    Attributes:
        spool: 16 random bytes that identify the spool.
        turn: counts the writes to this file.
        segment: number of the file; all before it are stored.
        offset: in that file, of the first byte not known to be stored.
        planned: end of the batch that begins there and may be stored; 0 = none.
    """

    spool: bytes
    turn: int = 0
    segment: int = 0
    offset: int = 0
    planned: int = 0


class Cursor:
    """Keeps the position on disk. Only one thread may move it.

    Args:
        path: of the file; created if it does not exist.
        sync: whether each move is synced to the disk.

    Raises:
        OSError: the file cannot be opened or written.
    """

    def __init__(self, path: Path, *, sync: bool) -> None:
        self._sync = sync
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            found = [
                position
                for half in range(_HALVES)
                if (position := _read(os.pread(self._file, _SLOT_BYTES, half * _SLOT_BYTES)))
            ]
            self.was_lost = not found and os.fstat(self._file).st_size > 0
            self.position = max(found, key=lambda one: one.turn, default=Position(token_bytes(16)))
            if not found:
                for _ in range(_HALVES):
                    self._write(self.position)
        except BaseException:
            os.close(self._file)
            raise

    def plan(self, segment: int, offset: int, end: int) -> None:
        """Record which batch is about to be inserted.

        Raises:
            OSError: it could not be written; the position is unchanged.
        """
        self._write(replace(self.position, segment=segment, offset=offset, planned=end))

    def move(self, segment: int, offset: int) -> None:
        """Record that everything before this position is stored.

        Raises:
            OSError: it could not be written; the position is unchanged.
        """
        self._write(replace(self.position, segment=segment, offset=offset, planned=0))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _write(self, position: Position) -> None:
        position = replace(position, turn=position.turn + 1)
        body = _SLOT.pack(
            _MARK, position.spool, position.turn, position.segment, position.offset,
            position.planned,
        )  # fmt: skip
        slot = (body + _CHECK.pack(zlib.crc32(body))).ljust(_SLOT_BYTES, b"\0")
        place = position.turn % _HALVES * _SLOT_BYTES
        if os.pwrite(self._file, slot, place) != _SLOT_BYTES:
            raise OSError(28, "the spool's cursor was written in part")
        if self._sync:
            os.fdatasync(self._file)
        self.position = position


def _read(slot: bytes) -> Position | None:
    if len(slot) != _SLOT_BYTES:
        return None
    body = slot[: _SLOT.size]
    if _CHECK.unpack_from(slot, _SLOT.size)[0] != zlib.crc32(body) or not body.startswith(_MARK):
        return None
    return Position(*_SLOT.unpack(body)[1:])
