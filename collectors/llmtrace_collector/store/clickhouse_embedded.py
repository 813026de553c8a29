"""Run the ClickHouse engine inside this process, by chdb.

One folder per process, and one process per folder. A connection belongs to one thread and does
not survive a fork: each thread gets its own, and a forked child gets an error.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
import zlib
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from llmtrace.core.errors import ConfigError, needs_extra
from llmtrace_collector.store import query_deadline, tables
from llmtrace_collector.store.records import StoreError
from llmtrace_collector.store.sql_engine import Parameters, Settings, Writes, failure, literal

try:
    with needs_extra("the embedded store", "collector", "chdb"):
        import chdb
except RuntimeError:  # the engine makes a folder for temporary files when it is imported
    raise ConfigError(
        "store: no temporary files can be made: set TMPDIR to a folder that this user may write to"
    ) from None

_QUOTE: Final = str.maketrans({"\\": "\\\\", "'": "\\'"})
# The statements that write a table's definition to disk: all of it, at the first group's name.
_DEFINES: Final = re.compile(
    r"CREATE (?:TABLE|MATERIALIZED VIEW) IF NOT EXISTS (\w+)|ALTER TABLE \w+ (?:ADD|MODIFY|RENAME)"
)
_ROOM: Final = 1 << 20
_HOLDING: Final = {*(table.name for table in tables.TABLES), tables.VERSIONS}


class Embedded:
    """The engine over one folder.

    Args:
        folder: where it keeps everything; made if it does not exist.

    Raises:
        ConfigError: the folder cannot be used, or another process has it open.
    """

    shared = False

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._path = folder.resolve() / "clickhouse"
        self._definitions = self._path / "metadata" / "default"
        if "?" in str(self._path):
            raise ConfigError(f"store {folder}: a folder with '?' in its name cannot be used")
        self._process = os.getpid()
        self._local = threading.local()
        self._open: WeakSet[Any] = WeakSet()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._writes = Writes()
        self._closed = False
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._schemas = self._path.parent / "schemas"
            self._schemas.mkdir(exist_ok=True)
            self._check_lock()
            self._check_definitions()
            self._connection("write")
        except OSError as error:
            raise ConfigError(f"store {folder}: {error.strerror}: give another folder") from error
        except StoreError as error:
            self._check_lock()  # two that start at once
            raise ConfigError(
                f"store {folder}: cannot be opened: {error}; the engine's own lines above, if any, "
                "say more, and docs/operate/store.md what to do"
            ) from error

    def _check_lock(self) -> None:
        """Raise if another process has the folder: the engine's own message is of no help."""
        status = self._path / "status"
        if not status.exists():
            return
        with status.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"store {self.name}: another collector uses it: stop that one; to read while "
                    "it runs, use its address (`llmtrace triage --url`)"
                ) from None

    def _check_definitions(self) -> None:
        """Remove definitions of views that a full disk cut off: they are made again.

        Raises:
            ConfigError: that of a table with data is cut off.
        """
        for file in self._definitions.glob("*.sql"):
            if file.read_bytes().endswith(b"\n"):
                continue
            if file.stem in _HOLDING:
                raise ConfigError(
                    f"store {self.name}: {file} is cut off, as by a full disk: restore the folder "
                    "from a backup (docs/operate/store.md)"
                )
            file.unlink()

    def run(self, sql: str, parameters: Parameters | None = None, form: str = "Null") -> bytes:
        """Run a statement in this process."""
        defines = _DEFINES.match(sql)
        if defines and not (self._definitions / f"{defines[1]}.sql").exists():
            # On a full disk the engine cuts definitions off, and reports nothing.
            disk = os.statvfs(self._path)
            if disk.f_bavail * disk.f_frsize < _ROOM:
                raise StoreError(f"store {self.name}: its disk is full", "disk")
        with self._writes.one():
            result: bytes = self._ask("write", sql, form, parameters)
            return result

    def read(self, sql: str, form: str, parameters: Parameters | None = None) -> bytes:
        """Run a query that changes nothing."""
        given = query_deadline.settings()
        if given:
            listed = ", ".join(
                f"{name} = '{value}'" if isinstance(value, str) else f"{name} = {value}"
                for name, value in given.items()
            )
            sql = f"{sql} SETTINGS {listed}"
        result: bytes = self._ask("read", sql, form, parameters)
        return result

    def insert(self, table: str, form: str, body: bytes, settings: Settings) -> None:
        """Insert bytes into a table; one insert at a time.

        By way of a file: a streamed insert does not report what goes wrong behind a view, such as
        a full disk.
        """
        with self._writing, self._writes.one():
            connection = self._connection("insert")
            given = {
                "insert_deduplication_token": "",
                "use_structure_from_insertion_table_in_table_functions": 1,
                **settings,
            }
            file = self._path.parent / "inserting"
            try:
                for name, value in given.items():
                    self._set(connection, name, value)
                file.write_bytes(body)
                source = f"file('{str(file).translate(_QUOTE)}', '{form}')"
                connection.query(f"INSERT INTO {table} SELECT * FROM {source}", "Null")
            except (RuntimeError, ValueError, OSError) as error:
                # The state of a connection after a failed insert is not documented.
                self._drop("insert")
                raise failure(str(error), inserting=True, what=f"insert into {table}") from None
            finally:
                file.unlink(missing_ok=True)

    def schema(self, text: str, message: str) -> Settings:
        """Write a Protobuf schema where the engine reads it."""
        path = self._schemas / f"{message}-{zlib.crc32(text.encode()):08x}.proto"
        if not path.exists():
            # If the schema is given as text, the engine leaves a copy in the working directory.
            written = path.with_suffix(f".{os.getpid()}")
            written.write_text(text, encoding="utf-8")
            written.replace(path)
        return {"format_schema": f"{path}:{message}"}

    def settled_ns(self, now_ns: int) -> int:
        """Return the moment up to which nothing more will be inserted."""
        now_ns = min(now_ns, time.time_ns())  # before looking: a write may begin in between
        return self._writes.oldest_ns() or now_ns

    def close(self) -> None:
        """Close every connection; the engine stops with the last."""
        with self._writing, self._lock:
            self._closed = True
            for connection in list(self._open):
                connection.close()

    def _ask(self, use: str, sql: str, form: str, parameters: Parameters | None) -> Any:
        given = {name: literal(value) for name, value in (parameters or {}).items()}
        connection = self._connection(use)
        try:
            return connection.query(sql, form, params=given).bytes()
        except (RuntimeError, ValueError) as error:
            # What it had of the result would come before that of the connection's next query.
            self._drop(use)
            raise failure(str(error), inserting=False, what="query") from None

    def _connection(self, use: str) -> Any:
        """Return this thread's connection for one use: that for reading is read-only."""
        if self._closed:
            raise StoreError(f"store {self.name} is closed")
        if os.getpid() != self._process:
            raise StoreError("the store does not survive a fork: open it in the child")
        found = getattr(self._local, use, None)
        if found is None:
            try:
                found = chdb.connect(str(self._path))  # type: ignore[no-untyped-call]
                self._prepare(found, use)
            except (RuntimeError, ValueError) as error:
                raise StoreError(str(error).replace("\n", " ")[:300]) from None
            with self._lock:
                self._open.add(found)
            setattr(self._local, use, found)
        return found

    def _drop(self, use: str) -> None:
        connection = getattr(self._local, use, None)
        setattr(self._local, use, None)
        if connection is not None:
            connection.close()

    def _prepare(self, connection: Any, use: str) -> None:
        settings: dict[str, str | int] = {"output_format_json_quote_64bit_integers": 0}
        if use == "read":
            settings["readonly"] = 2
        else:
            # The join is planned each time: these optimisations find nothing in it.
            settings |= {
                "enable_join_runtime_filters": 0,
                "query_plan_optimize_join_order_limit": 0,
                "query_plan_merge_expressions": 0,
                "optimize_and_compare_chain": 0,
            }
        for name, value in settings.items():
            self._set(connection, name, value)

    @staticmethod
    def _set(connection: Any, name: str, value: str | float) -> None:
        written = f"'{value.translate(_QUOTE)}'" if isinstance(value, str) else value
        connection.query(f"SET {name} = {written}", "Null")
