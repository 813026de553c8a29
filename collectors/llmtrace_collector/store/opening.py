"""Which store does a URL mean?"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from llmtrace.errors import ConfigError

from llmtrace_collector.store.stored import ClickHouseStore
from llmtrace_collector.store.tables import Keep


def open_store(url: str | Path, *, keep: Keep | None = None) -> ClickHouseStore:
    """Open a store, and make what it lacks.

    Args:
        url: `chdb:///path` or a folder: inside this process. `http(s)://[user@]host:port/database`:
            a ClickHouse server; its password comes from CLICKHOUSE_PASSWORD, or from the file
            that CLICKHOUSE_PASSWORD_FILE names.
        keep: for how long what is kept; for what is made now.

    Raises:
        ConfigError: there is no such store, or it cannot be had.
        StoreError: the server does not answer.
    """
    text = str(url)
    parts = urlsplit(text)
    if parts.scheme in {"http", "https"}:
        raise ConfigError("not yet")
    from llmtrace_collector.store.embedded import Embedded

    if parts.scheme == "chdb":
        text = parts.path
    return ClickHouseStore(Embedded(Path(text)), keep)
