"""What does somebody run on a ClickHouse of their own that no llmtrace process writes to?

An OpenTelemetry Collector writes spans into `otel_traces`; the views printed here read the parts of
requests off them and, every half minute, join what has come. `llmtrace schema clickhouse` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from llmtrace.errors import ConfigError
from llmtrace_collector.store import tables, upgrade
from llmtrace_collector.store.join import COLUMNS, Times, affected, select
from llmtrace_collector.store.tables import Keep

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_EVERY_S: Final = 30
# What may still be on its way into the table when its time has passed.
_SETTLES_S: Final = 60
_BACK_S: Final = 3600


def schema(
    database: str = "llmtrace",
    cluster: str | None = None,
    keep: Keep | None = None,
    since: int | None = None,
) -> str:
    """Return the statements for `clickhouse-client`, each ended by a semicolon.

    Args:
        database: where the tables go.
        cluster: of the server's `remote_servers`, if they are to be on one.
        keep: for how long what is kept.
        since: the number of the schema that is there, and is to be brought to this one; `None` =
            there is none yet.

    Raises:
        ConfigError: a name is none that can stand in a statement, or there is no such number.
    """
    for what, name in (("database", database), ("cluster", cluster or "cluster")):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"--{what} {name!r}: letters, digits and underscores, at most 64")
    return ";\n\n".join((_HEAD, *statements(database, cluster, keep or Keep(), since))) + ";\n"


def statements(
    database: str, cluster: str | None, keep: Keep, since: int | None = None
) -> Iterator[str]:
    """Yield the statements, one by one."""
    on, _ = tables.places(cluster)
    yield f"CREATE DATABASE IF NOT EXISTS {database}{on}"
    yield f"USE {database}"
    if since is None:
        yield from upgrade.making(cluster, keep)
    else:
        yield from upgrade.statements(since, cluster, keep)
        yield f"DROP VIEW IF EXISTS requests_of_parts{on}"
    yield join_view()


def join_view() -> str:
    """Return the statement of the view that joins, again and again, what has come.

    It goes on from the newest version of any row, so that what it missed while the server was away
    is joined when that is back.
    """
    newest = "(SELECT max(version_ns) FROM requests)"
    times = Times(
        since=f"greatest(fromUnixTimestamp64Nano(toInt64({newest}), 'UTC') - INTERVAL {_SETTLES_S}"
        f" SECOND, now64(9, 'UTC') - INTERVAL {tables.Keep().parts} DAY)",
        until="now64(9, 'UTC')",
        window=f"greatest(fromUnixTimestamp64Nano(toInt64({newest}), 'UTC') - INTERVAL {_BACK_S}"
        f" SECOND, now64(9, 'UTC') - INTERVAL {tables.Keep().parts} DAY)",
    )
    columns = ", ".join(COLUMNS)
    return (
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS requests_of_parts\n"
        f"REFRESH EVERY {_EVERY_S} SECOND APPEND TO requests AS\n"
        f"SELECT {columns}, toUInt64(toUnixTimestamp64Nano(now64(9))) AS version_ns\n"
        f"FROM (\n{select(times, affected(times))}\n)\n"
        "SETTINGS distributed_product_mode = 'global'"
    )


_HEAD: Final = """\
-- llmtrace on ClickHouse 25.10 or newer. Safe to run again: what is there already stays as it is.
-- Run it with: clickhouse-client --multiquery < schema.sql
-- OpenTelemetry Collector: exporters.clickhouse.traces_table_name: otel_traces, create_schema: false.
SET allow_experimental_refreshable_materialized_view = 1"""
