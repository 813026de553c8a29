"""Run the store's SQL on a ClickHouse server or cluster, as on the embedded engine.

Over HTTP, by clickhouse-connect. Others may write into the same tables: an OpenTelemetry Collector,
another llmtrace collector. So what has only just arrived is left for the next run of the join.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from llmtrace.core.errors import ConfigError, needs_extra
from llmtrace_collector.store import query_deadline
from llmtrace_collector.store.records import StoreError
from llmtrace_collector.store.sql_engine import (
    Parameters,
    Settings,
    Writes,
    failure,
    why_no_connection,
)

with needs_extra("a ClickHouse server", "collector", "clickhouse-connect"):
    import clickhouse_connect
    from clickhouse_connect.driver.exceptions import Error as ClickHouseError

# Every failure becomes one of our errors: no need for the libraries to log it as well.
for _name in ("clickhouse_connect", "urllib3.connectionpool"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

# The first version that reads Protobuf by a schema sent along, distinguishes 0 from a missing value
# in it, and leaves indexes to merges.
OLDEST: Final = (25, 10)
_PORTS: Final = {"http": 8123, "https": 8443}
_NS: Final = 1_000_000_000
_INSERTED_WITHIN_S: Final = 5.0
_READING: Final = {"readonly": 2, "output_format_json_quote_64bit_integers": 0}


class Server:
    """One server, or the node of a cluster that we talk to.

    Args:
        url: `http(s)://[user@]host[:port][/database]`.
        password: of the user. Never shown.
        settle_s: how long an insert of others may take.
        make: whether to create the database if it does not exist.

    Raises:
        ConfigError: the address is invalid, the user is rejected, or the server is too old.
        StoreError: there is no response.
    """

    shared = True

    def __init__(
        self,
        url: SplitResult,
        *,
        password: str = "",
        settle_s: float = _INSERTED_WITHIN_S,
        make: bool = True,
    ) -> None:
        if not url.hostname or url.password:
            raise ConfigError(
                "store: write http(s)://[user@]host:port/database; the password belongs in "
                "CLICKHOUSE_PASSWORD or in the file that CLICKHOUSE_PASSWORD_FILE names"
            )
        self.database = url.path.strip("/") or "default"
        self._where: dict[str, Any] = {
            "host": url.hostname,
            "port": url.port or _PORTS[url.scheme],
            "secure": url.scheme == "https",
            "username": unquote(url.username or "default"),
            "password": password,
        }
        self.name = f"{url.scheme}://{url.hostname}:{self._where['port']}/{self.database}"
        self._settle_s = settle_s
        self._local = threading.local()
        self._open: list[Any] = []
        self._lock = threading.Lock()
        self._writes = Writes(time.monotonic_ns)
        self._closed = False
        self._process = os.getpid()
        # `default` exists before ours is made, but a read-only user may have no right to it.
        first = self._connect("default" if make else self.database)
        try:
            version = tuple(int(part) for part in first.server_version.split(".")[:2])
            if version < OLDEST:
                raise ConfigError(
                    f"store {self.name}: ClickHouse {first.server_version}; llmtrace needs "
                    f"{OLDEST[0]}.{OLDEST[1]} or newer"
                )
            if make:
                first.command(f"CREATE DATABASE IF NOT EXISTS `{self.database}`")
        except ClickHouseError as error:
            raise failure(str(error), inserting=False, what=f"store {self.name}") from None
        finally:
            first.close()

    def run(self, sql: str, parameters: Parameters | None = None, form: str = "Null") -> bytes:
        """Run a statement on the server."""
        with self._writes.one(), self._failing("statement", inserting=False):
            given = {} if form == "Null" else {"fmt": form}
            result: bytes = self._client().raw_query(sql, dict(parameters or {}), **given)
            return result

    def read(self, sql: str, form: str, parameters: Parameters | None = None) -> bytes:
        """Run a query that changes nothing."""
        with self._failing("query", inserting=False):
            client = self._client()
            held = client.server_settings.get("readonly")
            # A user whose profile says `readonly = 1` cannot change settings either.
            bound = query_deadline.settings()
            settings = {} if held is not None and held.value == "1" else {**_READING, **bound}
            result: bytes = client.raw_query(
                sql, dict(parameters or {}), settings=settings, fmt=form
            )
            return result

    def insert(self, table: str, form: str, body: bytes, settings: Settings) -> None:
        """Insert bytes of a ClickHouse format into a table."""
        with self._writes.one(), self._failing(f"insert into {table}", inserting=True):
            self._client().raw_insert(table, insert_block=body, fmt=form, settings=dict(settings))

    def schema(self, text: str, message: str) -> Settings:
        """Send a Protobuf schema along with what is to be read by it."""
        return {
            "format_schema_source": "string",
            "format_schema": text,
            "format_schema_message_name": message,
        }

    def settled_ns(self, now_ns: int) -> int:
        """Return the moment up to which nothing more will be inserted, by the server's clock."""
        del now_ns
        oldest_ns = self._writes.oldest_ns()
        age_ns = 0 if oldest_ns is None else time.monotonic_ns() - oldest_ns
        now_ns = int(self.read("SELECT toUnixTimestamp64Nano(now64(9))", "TSV"))
        return now_ns - max(round(self._settle_s * _NS), age_ns)

    def close(self) -> None:
        """Close the connections to the server."""
        with self._lock:
            self._closed = True
            clients, self._open = self._open, []
        for client in clients:
            client.close()

    @contextmanager
    def _failing(self, what: str, *, inserting: bool) -> Iterator[None]:
        try:
            yield
        except ClickHouseError as error:
            raise failure(str(error), inserting=inserting, what=what) from None

    def _client(self) -> Any:
        """Return this thread's client: a session allows one query at a time."""
        if self._closed:
            raise StoreError(f"store {self.name} is closed")
        found = getattr(self._local, "client", None)
        if found is None or self._process != os.getpid():
            found = self._local.client = self._connect(self.database)
            self._process = os.getpid()
            with self._lock:
                self._open.append(found)
        return found

    def _connect(self, database: str) -> Any:
        try:
            return clickhouse_connect.get_client(
                **self._where, database=database, client_name="llmtrace", compress=False
            )
        except ClickHouseError as error:
            text = str(error)
            if (why := why_no_connection(text)) is not None:
                raise StoreError(f"store.url {self.name}: {why}") from None
            wrong = "AUTHENTICATION_FAILED" in text or "Code: 516" in text
            kind = ConfigError if wrong else StoreError
            raise kind(f"store {self.name}: {text.splitlines()[0][:300]}") from None
