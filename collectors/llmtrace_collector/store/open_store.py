"""Open the store that a URL names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from llmtrace.core.errors import ConfigError, LlmtraceError
from llmtrace_collector.store.clickhouse_store import Store, StoreReader
from llmtrace_collector.store.sql_engine import Engine
from llmtrace_collector.store.tables import Keep
from llmtrace_collector.store.upgrade import VERSION, version_of

PASSWORD: Final = "CLICKHOUSE_PASSWORD"  # noqa: S105 - names of variables
PASSWORD_FILE: Final = "CLICKHOUSE_PASSWORD_FILE"  # noqa: S105


def open_store(url: str | Path, *, keep: Keep | None = None) -> Store:
    """Open a store, and make what it lacks.

    Args:
        url: `chdb:///path` or a folder: inside this process. `http(s)://[user@]host:port/database`:
            a ClickHouse server; its password comes from the variable CLICKHOUSE_PASSWORD, or from
            the file that CLICKHOUSE_PASSWORD_FILE names.
        keep: the retention times.

    Raises:
        ConfigError: there is no such store, or it cannot be opened.
        StoreError: the server does not answer.
    """
    return Store(open_engine(url), keep)


def open_to_read(url: str | Path) -> StoreReader:
    """Open a store without making anything in it: on a server, a read-only user will do.

    Arguments and errors as of `open_store`.
    """
    store = StoreReader(open_engine(url, make=False))
    try:
        version = version_of(store.engine)
        if version is None:
            raise ConfigError(
                f"store {store.engine.name}: holds no table `requests`; a collector makes it, or what "
                "`llmtrace schema clickhouse` prints"
            )
        if version != VERSION:
            raise ConfigError(
                f"store {store.engine.name}: its schema is {version}, this version reads {VERSION}; "
                "a collector of this version upgrades an older one when it starts, or what "
                "`llmtrace schema clickhouse --from NUMBER` prints does"
            )
    except LlmtraceError:
        store.close()
        raise
    return store


def open_engine(url: str | Path, *, make: bool = True) -> Engine:
    """Open the engine that runs the SQL of a store. Errors as of `open_store`.

    Args:
        url: of the store.
        make: whether to create a server's database if it does not exist.
    """
    place = place_of(url)
    if not isinstance(place, Path):
        from llmtrace_collector.store.clickhouse_server import Server

        return Server(place, password=_password(), make=make)
    from llmtrace_collector.store.clickhouse_embedded import Embedded

    return Embedded(place)


def place_of(url: str | Path) -> Path | SplitResult:
    """Return the folder of a store inside this process, or the parts of a server's address.

    Raises:
        ConfigError: it is neither.
    """
    text = str(url)
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"store {text.partition('://')[0]}://…: not a valid address") from error
    if parts.scheme in {"http", "https"}:
        return parts
    if parts.scheme == "chdb" and parts.netloc:
        raise ConfigError(
            f"store chdb://{parts.netloc}…: three slashes before an absolute path, as chdb:///path"
        )
    if parts.scheme != "chdb" and "://" in text:
        raise ConfigError(
            f"store {parts.scheme}://…: give a folder, chdb:///path, or "
            "http(s)://[user@]host:port/database"
        )
    folder = unquote(parts.path) if parts.scheme == "chdb" else text
    if not folder:
        raise ConfigError("store: give a folder")
    return Path(folder)


def _password() -> str:
    name = os.environ.get(PASSWORD_FILE)
    if not name:
        return os.environ.get(PASSWORD, "")
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{PASSWORD_FILE}: {name} cannot be read: {error}") from error
