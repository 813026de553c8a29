"""Keep acknowledged requests on disk until the store has them.

In files of one folder, which one thread appends to and another reads. Requests that come together
are written, and synced, together; each is acknowledged when it is in the file
(`SpoolLimits.sync`). The reader takes batches, and each is stored once, even after a crash: see
`spool_cursor`. A full spool accepts nothing new, and keeps what it has.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from llmtrace.core.errors import ConfigError
from llmtrace_collector.receive import spool_format
from llmtrace_collector.receive.counters import Spooled
from llmtrace_collector.receive.limits import MIB, SpoolLimits
from llmtrace_collector.receive.quarantine import Quarantine
from llmtrace_collector.receive.rejections import RejectedError
from llmtrace_collector.receive.spool_cursor import Cursor
from llmtrace_collector.receive.spool_format import HEAD_BYTES, Record, next_mark, records, varint

logger = logging.getLogger("llmtrace.collector")

_SUFFIX: Final = ".spool"
_GROUP_BYTES: Final = 16 * MIB
_GROUP: Final = 512  # one call writes at most 1,024 pieces, two a record
_ASIDE_BYTES: Final = 64 * MIB  # of damaged data kept for people
_CHUNK: Final = 1 * MIB
_ANY: Final = 1 << 62  # as many as there are


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that are stored together.

    Attributes:
        token: names the batch, also after a restart.
        segment: number of the file.
        start: offset of its first byte there.
        end: offset of the byte after its last.
        records: one request each.
    """

    token: str
    segment: int
    start: int
    end: int
    records: tuple[Record, ...]

    @property
    def spans(self) -> int:
        """The number of spans in the batch."""
        return sum(record.spans for record in self.records)

    @property
    def body(self) -> bytes:
        """The requests, each after its length as a varint."""
        return b"".join(
            piece for one in self.records for piece in (varint(len(one.payload)), one.payload)
        )


class _Waiting(NamedTuple):
    payload: bytes
    spans: int
    expanded: int
    loop: asyncio.AbstractEventLoop
    taken: asyncio.Future[None]


class Spool:
    """Appends requests to files, and hands them out in batches.

    `append` may be called from any event loop; the methods of the reader (`next_batch`, `stored`,
    `set_aside`) from one thread.

    Args:
        folder: of the files; created if it does not exist.
        limits: when it is full, and when the disk is synced.

    Raises:
        ConfigError: the folder cannot be used, or another process uses it.
    """

    def __init__(self, folder: Path, limits: SpoolLimits | None = None) -> None:
        self.folder = folder
        self.limits = limits or SpoolLimits()
        self.counted = Spooled()
        self._lock = threading.Lock()
        self._grown = threading.Condition(self._lock)
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._closed = False
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._owned = _own(folder)
            sync = self.limits.sync != "never"
            self._cursor = Cursor(folder / "cursor", sync=sync)
        except OSError as error:
            raise ConfigError(
                f"spool {folder}: {error.strerror or error}; give a folder that this user may "
                "write to"
            ) from None
        if self._cursor.was_lost:
            logger.warning(
                "%s cannot be read: what the spool still holds is stored again, some of it twice",
                folder / "cursor",
            )
        self.quarantine = Quarantine(folder / "quarantine", self.limits.quarantine_bytes)
        self._sizes = self._found()
        self._inherited = max(self._sizes, default=-1)  # the file a killed process was writing
        self._next = 1 + max(self._inherited, self._cursor.position.segment)
        self._writing: int | None = None
        self._file = -1
        self._end = 0
        self._unsynced_since: float | None = None
        self._reading: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._run, name="llmtrace-spool", daemon=True)
        self._thread.start()

    @property
    def disk_bytes(self) -> int:
        """The bytes of all the spool's files now."""
        with self._lock:
            return sum(self._sizes.values())

    @property
    def backlog_bytes(self) -> int:
        """The bytes that are not known to be stored."""
        with self._lock:
            return self._backlog()

    async def append(self, payload: bytes, spans: int, expanded: int = 0) -> None:
        """Append one request; return when it may be acknowledged.

        Args:
            payload: an `ExportTraceServiceRequest`.
            spans: number of spans in it.
            expanded: bytes of these, each with a copy of its resource and scope; at least the size
                of the payload is assumed.

        Raises:
            RejectedError: it is not kept; the sender may retry later.
        """
        if self._closed:
            raise RejectedError("stopping", "this collector is going down")
        loop = asyncio.get_running_loop()
        taken = loop.create_future()
        self._queue.put(_Waiting(payload, spans, expanded, loop, taken))
        await taken

    def wait(self, timeout_s: float, most_bytes: int, over: Callable[[], bool]) -> None:
        """Wait until the backlog is large enough, or it is over, or the time has passed.

        Args:
            timeout_s: maximum time, in seconds.
            most_bytes: of the backlog.
            over: returns whether it is over; called again after each `wake`.
        """
        with self._grown:
            self._grown.wait_for(
                lambda: over() or self._backlog() >= most_bytes, timeout=timeout_s
            )

    def wake(self) -> None:
        """Have the thread in `wait` check again whether it is over."""
        with self._grown:
            self._grown.notify_all()

    def close(self) -> None:
        """Accept nothing more, write what is queued, and close the files."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._queue.put(None)
        self._thread.join()
        if self._reading is not None:
            os.close(self._reading[1])
            self._reading = None
        self._cursor.close()
        os.close(self._owned)

    # The writer's thread.

    def _run(self) -> None:
        while True:
            try:
                first = self._queue.get(timeout=self._until_sync())
            except Empty:
                self._sync()
                continue
            if first is None:
                break
            group, size = [first], len(first.payload)
            stop = False
            while size < _GROUP_BYTES and len(group) < _GROUP:
                try:
                    one = self._queue.get_nowait()
                except Empty:
                    break
                if one is None:
                    stop = True
                    break
                group.append(one)
                size += len(one.payload)
            self._keep(group)
            if stop:
                break
        # Requests that came between `close` and here.
        with suppress(Empty):
            while True:
                if (late := self._queue.get_nowait()) is not None:
                    _answer([late], RejectedError("stopping", "this collector is going down"))
        self._sync()
        self._leave_file()

    def _keep(self, group: Sequence[_Waiting]) -> None:
        refusal: RejectedError | None = None
        try:
            pieces = [
                piece
                for one in group
                for piece in (spool_format.head(one.payload, one.spans, one.expanded), one.payload)
            ]
            size = sum(map(len, pieces))
            refusal = self.why_full(size)
            if refusal is None:
                self._write(pieces, size)
                self.counted.records += len(group)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "EIO")
            self.counted.errors[name] += 1
            if self.counted.errors[name] == 1:
                logger.warning("spool %s: %s; senders are to come back later", self.folder, error)
            refusal = RejectedError("spool_error", "this collector's disk does not take it now")
        except Exception as error:  # whatever it is, the thread must live on, and say so
            self.counted.errors[type(error).__name__] += 1
            logger.exception("spool %s", self.folder)
            refusal = RejectedError("spool_error", "this collector cannot keep it now")
        _answer(group, refusal)

    def why_full(self, size: int = 1) -> RejectedError | None:
        """Return the rejection of a request of this size, if there is no room or folder for it."""
        if self.disk_bytes + size > self.limits.disk_bytes:
            return RejectedError("spool_full", "this collector's spool is full")
        try:
            disk = os.statvfs(self.folder)
        except OSError:
            return RejectedError("spool_error", "this collector's data folder is gone")
        if self.limits.free_bytes and (
            disk.f_bavail * disk.f_frsize - size < self.limits.free_bytes
        ):
            return RejectedError("disk_full", "this collector's disk is nearly full")
        return None

    def _write(self, pieces: Sequence[bytes], size: int) -> None:
        """Write all or nothing.

        Raises:
            OSError: nothing was written that a reader would see.
        """
        if self._writing is None or self._end + size > self.limits.segment_bytes:
            self._next_file()
        try:
            _pwritev(self._file, pieces, self._end)
            if self.limits.sync == "always":
                os.fdatasync(self._file)
                self.counted.syncs += 1
        except OSError:
            # After a failed sync it is unknown what the disk has: go on in another file.
            with suppress(OSError):
                os.ftruncate(self._file, self._end)
            self._leave_file()
            raise
        self._end += size
        if self.limits.sync == "interval" and self._unsynced_since is None:
            self._unsynced_since = time.monotonic()
        with self._grown:
            assert self._writing is not None  # noqa: S101 - for the type checker
            self._sizes[self._writing] = self._end
            self._grown.notify_all()
        if self._until_sync() == 0:
            self._sync()

    def _next_file(self) -> None:
        self._sync()
        self._leave_file()
        path = self._path(self._next)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if self.limits.sync != "never":
                os.fsync(self._owned)  # so that the file is in the folder
        except OSError:
            os.close(file)
            raise
        finally:
            self._next += 1
        with self._lock:
            self._file, self._end, self._writing = file, 0, self._next - 1
            self._sizes[self._writing] = 0

    def _leave_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        with self._lock:
            self._file, self._writing = -1, None

    def _until_sync(self) -> float | None:
        if self._unsynced_since is None:
            return None
        return max(0.0, self._unsynced_since + self.limits.sync_s - time.monotonic())

    def _sync(self) -> None:
        if self._unsynced_since is None or self._file < 0:
            return
        self._unsynced_since = None
        try:
            os.fdatasync(self._file)
            self.counted.syncs += 1
        except OSError as error:
            self.counted.errors[errno.errorcode.get(error.errno or 0, "EIO")] += 1
            logger.warning(
                "spool %s: %s: a power failure now may lose what was acknowledged",
                self.folder, error,
            )  # fmt: skip

    # The reader.

    def next_batch(
        self, most_bytes: int, most_spans: int, most_expanded: int = _ANY
    ) -> Batch | None:
        """Return the next batch, within these limits; `None` = everything is stored.

        Returns the same batch until `stored` is called with it, even after a restart.

        Raises:
            OSError: it cannot be read, or the cursor cannot be written.
        """
        while True:
            at = self._cursor.position
            with self._lock:
                segment = min((n for n in self._sizes if n >= at.segment), default=None)
                end = self._sizes.get(segment, 0) if segment is not None else 0
                writing = self._writing
            if segment is None:
                return None
            offset = at.offset if segment == at.segment else 0
            if offset >= end:
                if segment == writing:
                    return None
                self._cursor.move(segment + 1, 0)
                self._delete(segment)
                continue
            planned = at.planned if segment == at.segment else 0
            try:
                most = most_bytes, most_spans, most_expanded
                found = self._records(segment, offset, planned or end, most)
            except FileNotFoundError:
                self._lost(segment)
                continue
            if not found:
                self._skip_damage(segment, offset, end)
                continue
            if planned and found[-1].end < planned:
                found = self._records(segment, offset, planned, (planned - offset, _ANY, _ANY))
            last = planned or found[-1].end
            if not planned:
                self._cursor.plan(segment, offset, last)
            return self._batch(segment, offset, last, tuple(found))

    def _batch(self, segment: int, start: int, end: int, records: tuple[Record, ...]) -> Batch:
        # With its end: a part of a failed batch is another batch.
        token = f"{self._cursor.position.spool.hex()}-{segment}-{start}-{end}"
        return Batch(token, segment, start, end, records)

    def stored(self, batch: Batch) -> None:
        """Record that the store has a batch.

        Raises:
            OSError: it could not be recorded; call it again.
        """
        self._cursor.move(batch.segment, batch.end)

    def halves(self, batch: Batch) -> tuple[Batch, Batch]:
        """Divide a batch of several requests; call `planned` before storing each half."""
        middle = len(batch.records) // 2
        first, second = batch.records[:middle], batch.records[middle:]
        place = second[0].start
        return (
            self._batch(batch.segment, batch.start, place, first),
            self._batch(batch.segment, place, batch.end, second),
        )

    def planned(self, batch: Batch) -> None:
        """Record which batch is about to be stored, if it is not the one from `next_batch`.

        Raises:
            OSError: it could not be recorded.
        """
        self._cursor.plan(batch.segment, batch.start, batch.end)

    def set_aside(self, batch: Batch, reason: str, words: str) -> None:
        """Move the only request of a batch into the quarantine.

        Raises:
            OSError: it could not be moved, and is still to be stored.
        """
        [record] = batch.records
        name = f"{batch.segment:016d}-{batch.start}"
        self.quarantine.add(name, record.payload, record.spans, reason, words)
        self.stored(batch)

    def _records(
        self, segment: int, offset: int, end: int, most: tuple[int, int, int]
    ) -> list[Record]:
        """Return the records there, within limits of bytes, spans, and bytes of expanded spans."""
        most_bytes, most_spans, most_expanded = most
        file = self._open(segment)
        data = os.pread(file, min(max(most_bytes, HEAD_BYTES), end - offset), offset)
        length = spool_format.length_at(data, 0)
        if length is not None and len(data) < length <= end - offset:
            data = os.pread(file, length, offset)
        found: list[Record] = []
        spans = expanded = 0
        for record in records(data, offset):
            spans += record.spans
            expanded += record.expanded
            if found and (spans > most_spans or expanded > most_expanded):
                break
            found.append(record)
        return found

    def _skip_damage(self, segment: int, offset: int, end: int) -> None:
        """Continue at the next good record; set aside the bytes before it."""
        file = self._open(segment)
        at = offset + 1
        while at < end:
            data = os.pread(file, _CHUNK, at)
            if not data:
                at = end
                break
            near = next_mark(data, 0)
            if near == len(data):
                # A mark may lie across the end of the chunk.
                at = min(end, at + max(1, len(data) - 3))
                continue
            at += near
            if self._records(segment, at, end, (HEAD_BYTES, 1, _ANY)):
                break
            at += 1
        size = at - offset
        if at >= end and segment == self._inherited:
            self.counted.torn_bytes += size
            logger.warning(
                "spool %s: %d bytes at the end of %s were never written whole, and are cut off",
                self.folder, size, self._path(segment).name,
            )  # fmt: skip
        else:
            self.counted.damaged_bytes += size
            logger.warning(
                "spool %s: %d damaged bytes in %s are put aside",
                self.folder, size, self._path(segment).name,
            )  # fmt: skip
            self._set_aside(
                f"{segment:016d}-{offset}.damaged",
                os.pread(file, min(size, _ASIDE_BYTES), offset),
            )
        self._cursor.move(segment, min(at, end))

    def _lost(self, segment: int) -> None:
        self.counted.errors["ENOENT"] += 1
        logger.warning("spool %s: %s is gone", self.folder, self._path(segment).name)
        with self._lock:
            self._sizes.pop(segment, None)
            if segment == self._writing:
                self._writing = None
        self._cursor.move(segment + 1, 0)

    def _open(self, segment: int) -> int:
        if self._reading is not None and self._reading[0] == segment:
            return self._reading[1]
        file = os.open(self._path(segment), os.O_RDONLY | os.O_CLOEXEC)
        if self._reading is not None:
            os.close(self._reading[1])
        self._reading = segment, file
        return file

    def _delete(self, segment: int) -> None:
        if self._reading is not None and self._reading[0] == segment:
            os.close(self._reading[1])
            self._reading = None
        with suppress(OSError):  # if it stays, the next start deletes it
            self._path(segment).unlink()
        with self._lock:
            self._sizes.pop(segment, None)

    def _set_aside(self, name: str, data: bytes) -> None:
        aside = self.folder / "aside"
        try:
            aside.mkdir(exist_ok=True, mode=0o700)
            held = sum(one.stat().st_size for one in aside.iterdir())
            if held + len(data) <= _ASIDE_BYTES:
                (aside / name).write_bytes(data)
        except OSError as error:
            self.counted.errors[errno.errorcode.get(error.errno or 0, "EIO")] += 1

    def _found(self) -> dict[int, int]:
        sizes = {}
        for path in self.folder.glob(f"*{_SUFFIX}"):
            if not path.stem.isdigit():
                continue
            segment = int(path.stem)
            if segment < self._cursor.position.segment:
                with suppress(OSError):
                    path.unlink()
                continue
            sizes[segment] = path.stat().st_size
        return sizes

    def _path(self, segment: int) -> Path:
        return self.folder / f"{segment:016d}{_SUFFIX}"

    def _backlog(self) -> int:
        at = self._cursor.position
        held = sum(size for segment, size in self._sizes.items() if segment >= at.segment)
        return held - (at.offset if at.segment in self._sizes else 0)


def _own(folder: Path) -> int:
    """Lock a folder for this process, for as long as the returned file is open."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            raise ConfigError(
                f"spool {folder}: another collector uses it; give each a folder of its own"
            ) from None
        raise
    return file


def _pwritev(file: int, pieces: Sequence[bytes], place: int) -> None:
    left = list(pieces)
    while left:
        written = os.pwritev(file, left, place)
        place += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _answer(group: Sequence[_Waiting], refusal: RejectedError | None) -> None:
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for one in group:
        loops.setdefault(one.loop, []).append(one.taken)
    for loop, futures in loops.items():
        with suppress(RuntimeError):  # the loop has ended, and nothing waits in it
            loop.call_soon_threadsafe(_settle, futures, refusal)


def _settle(futures: Sequence[asyncio.Future[None]], refusal: RejectedError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if refusal is None:
            future.set_result(None)
        else:
            future.set_exception(RejectedError(refusal.reason, refusal.words))
