"""The protocol of engines that run our SQL, and the meaning of their errors.

The one interface to a ClickHouse engine in this process and to a server: everything above it is the
same for both.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from llmtrace.core.errors import DataError, LlmtraceError
from llmtrace_collector.store.query_deadline import ENDED, QueryEndedError
from llmtrace_collector.store.records import BadBatch, StoreError

Parameters = Mapping[str, object]
# The format of a result that `parsed` reads.
JSON_ROWS: Final = "JSONCompactEachRow"
# Settings of one statement, by name.
Settings = Mapping[str, str | int | float]


class Engine(Protocol):
    """Runs SQL. Any thread may call. Errors are `StoreError`, `BadBatch` or `DataError`."""

    name: str  # for people: where it is, without secrets
    shared: bool  # whether others may write to it

    def run(self, sql: str, parameters: Parameters | None = None, form: str = "Null") -> bytes:
        """Run a statement, and return its result in one of ClickHouse's formats."""

    def read(self, sql: str, form: str, parameters: Parameters | None = None) -> bytes:
        """Run a query that changes nothing, and return its result in one of ClickHouse's formats."""

    def insert(self, table: str, form: str, body: bytes, settings: Settings) -> None:
        """Insert bytes of one of ClickHouse's formats into a table."""

    def schema(self, text: str, message: str) -> Settings:
        """Return the settings by which the engine reads messages of a Protobuf schema."""

    def settled_ns(self, now_ns: int) -> int:
        """Return the moment up to which nothing more will be inserted.

        Args:
            now_ns: unix nanoseconds by this process's clock; the result is by the engine's.
        """

    def close(self) -> None:
        """Close connections, files and locks."""


class Writes:
    """The writes in progress. Any thread may call.

    Args:
        clock: returns nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began_ns: dict[object, int] = {}

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a write as in progress while the block runs."""
        key = object()
        with self._lock:
            self._began_ns[key] = self._clock()
        try:
            yield
        finally:
            with self._lock:
                del self._began_ns[key]

    def oldest_ns(self) -> int | None:
        """Return when the oldest write in progress began; `None` = there is none."""
        with self._lock:
            return min(self._began_ns.values(), default=None)


def parsed(lines: bytes) -> list[list[Any]]:
    """Return the rows of a result in the format JSONCompactEachRow."""
    return [json.loads(line) for line in lines.splitlines()]


def query(engine: Engine, sql: str, parameters: Parameters | None = None) -> list[list[Any]]:
    """Run a query that changes nothing, and return its rows."""
    return parsed(engine.read(sql, JSON_ROWS, parameters))


_LIBRARY: Final = ("HTTPConnectionPool", "HTTPSConnectionPool", "urllib3", "object at 0x")
_ERRNO: Final = re.compile(r"\[Errno -?[0-9]+\] ([A-Za-z][A-Za-z ,-]*)")
_CODE: Final = re.compile(r"\bCode: (\d+)\b")
# The bytes are invalid; sending them again would not help.
_UNREADABLE: Final = frozenset({
    6, 25, 26, 27, 32, 33, 38, 41, 69, 70, 72, 117, 128, 131, 190, 321, 349, 434, 436, 444, 561, 636
})  # fmt: skip
# The statement is wrong, or not allowed.
_WRONG: Final = frozenset(
    {36, 43, 46, 47, 53, 60, 62, 158, 164, 184, 215, 307, 386, 396, 450, 456, 457, 497}
)
# The engine ran out of something.
_REASONS: Final = {75: "disk", 173: "memory", 241: "memory", 243: "disk"}
_MAX_LENGTH: Final = 400
_PART: Final = re.compile(r"while reading from part \S*/(\S+?)/? in table \w+\.(\w+)")


def why_no_connection(text: str) -> str | None:
    """Return why there is no connection to a server, in the system's words; `None` = there is one.

    The libraries' own messages name classes and the addresses of objects.

    Example:
        >>> why_no_connection("HTTPConnectionPool(...): (<... at 0x7f>: [Errno 111] Connection refused)")
        'connection refused'
    """
    if not any(word in text for word in _LIBRARY):
        return None
    if "certificate" in text.lower() or "SSLError" in text:
        return "the TLS connection failed: is its certificate one that this machine trusts?"
    if found := _ERRNO.search(text):
        return found[1].strip().lower()
    if "timed out" in text or "Timeout" in text:
        return "no answer in time"
    if "RemoteDisconnected" in text or "ProtocolError" in text:
        return "the connection broke off"
    return "no connection"


def failure(text: str, *, inserting: bool, what: str) -> LlmtraceError:
    """Convert ClickHouse's error message into one of our errors.

    Args:
        text: the engine's message; only its beginning is kept.
        inserting: whether bytes were being inserted.
        what: what was being done, for people.
    """
    found = _CODE.search(text)
    code = int(found[1]) if found else 0
    short = why_no_connection(text) or text.replace("\n", " ")[:_MAX_LENGTH]
    if part := _PART.search(text):
        words = f"part {part[1]} of table {part[2]} is damaged"
        hint = "docs/operate/store.md says what to do"
        return StoreError(f"{what}: {words}; {hint} ({short})", "damaged")
    if inserting and code in _UNREADABLE:
        return BadBatch(f"{what}: {short}")
    if not inserting and code in _WRONG | _UNREADABLE:
        return DataError(f"{what}: {short}")
    if not inserting and code in ENDED:
        return QueryEndedError("the query took too long, or its client disconnected")
    return StoreError(f"{what}: {short}", _REASONS.get(code, "store"))


def literal(value: object) -> str:
    r"""Write a parameter's value as ClickHouse reads it.

    Example:
        >>> literal("it's"), literal(["a", "b"]), literal(None)
        ("it's", "['a','b']", '\\N')
    """
    if value is None:
        return "\\N"
    if isinstance(value, str):
        return _escaped(value)
    return _nested(value)


def _nested(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + _escaped(value).replace("'", "\\'") + "'"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ",".join(map(_nested, value)) + "]"
    if isinstance(value, int | float):
        return repr(value)
    raise DataError(f"a parameter cannot be {type(value).__name__}")


def _escaped(text: str) -> str:
    return (
        text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\0", "\\0")
    )
