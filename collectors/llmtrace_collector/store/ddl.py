"""Print the schema for a ClickHouse server that no llmtrace process writes to.

An OpenTelemetry Collector writes spans into `otel_traces`; the views printed here extract the parts
of requests and join new ones every half minute. `llmtrace schema clickhouse` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from llmtrace.core.errors import ConfigError
from llmtrace_collector.store import join_inputs_sql, match_sql, rows_sql, tables, upgrade
from llmtrace_collector.store.tables import Keep

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_EVERY_S: Final = 30
# How long parts may take to arrive in the table.
_SETTLES_S: Final = 60
# In the order in which they run.
JOIN_VIEWS: Final = (
    "join_fresh", "join_traces", "join_around", "join_above", "join_affected", "join_named",
    "join_found", "requests_of_parts",
)  # fmt: skip


def schema(
    database: str = "llmtrace", cluster: str | None = None, since: int | None = None
) -> str:
    """Return the statements for `clickhouse-client`, each ended by a semicolon.

    Args:
        database: where the tables go.
        cluster: of the server's `remote_servers`, if they are to be on one.
        since: the number of an existing schema, which is upgraded; `None` = there is none yet.

    Raises:
        ConfigError: a name cannot be used in a statement, or there is no such number.
    """
    for what, name in (("database", database), ("cluster", cluster or "cluster")):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"--{what} {name!r}: letters, digits and underscores, at most 64")
    return ";\n\n".join((_HEAD, *statements(database, cluster, Keep(), since))) + ";\n"


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
        for name in reversed(JOIN_VIEWS):
            yield f"DROP VIEW IF EXISTS {name}{on}"
    yield from join_views(cluster)


def join_views(cluster: str | None = None) -> Iterator[str]:
    """Yield the statements of the views that join new parts, one step after the other.

    They continue from where rows were last written, so that what they missed while the server was
    down is joined later. On a cluster every node has them, and makes the rows of the traces on its
    own shard: from other shards it reads new parts, and those that name an id of its requests.
    """
    on, local = tables.places(cluster)
    oldest = f"now64(6, 'UTC') - INTERVAL {tables.Keep().parts} DAY"
    last = f"(SELECT max(at) FROM joins{local}) - INTERVAL {_SETTLES_S} SECOND"
    around, large = join_inputs_sql.around(local=local), join_inputs_sql.around_large(local=local)
    after = ""
    for name, query in (
        ("join_fresh", join_inputs_sql.fresh(f"greatest({last}, {oldest})", "now64(6, 'UTC')")),
        ("join_traces", join_inputs_sql.traces(local)),
        ("join_around", f"{_all(around)}\nUNION ALL\n{_all(large)}"),
        ("join_above", join_inputs_sql.above()),
        ("join_affected", join_inputs_sql.affected()),
        ("join_named", join_inputs_sql.named()),
        ("join_found", match_sql.found(local=local)),
    ):
        yield (
            f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name}{on}\n"
            f"REFRESH EVERY {_EVERY_S} SECOND{after} ENGINE = MergeTree ORDER BY tuple() AS\n"
            f"{_all(query)}"
        )
        after = f" DEPENDS ON {name}"
    columns = ", ".join(rows_sql.COLUMNS)
    yield (
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS {JOIN_VIEWS[-1]}{on}\n"
        f"REFRESH EVERY {_EVERY_S} SECOND{after} APPEND TO requests{local} AS\n"
        f"SELECT {columns}, (SELECT max(version_ns) FROM joins) + 1 AS version_ns\n"
        f"FROM (\n{rows_sql.select()}\n)"
    )


def _all(query: str) -> str:
    return f"SELECT * FROM (\n{query}\n)"


_HEAD: Final = """\
-- llmtrace on ClickHouse 25.10 or newer. Safe to run again: what is there already stays as it is.
-- Run it with: clickhouse-client --multiquery < schema.sql
-- OpenTelemetry Collector: exporters.clickhouse.traces_table_name: otel_traces, create_schema: false.
SET allow_experimental_refreshable_materialized_view = 1"""
