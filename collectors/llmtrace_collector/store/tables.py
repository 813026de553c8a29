"""The tables of the store, and the statements that make them.

The same on every engine. On a cluster each table is a replicated one on every node (`…_local`) with
a distributed one above it, which has the usual name and is used to read and write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from llmtrace.core.stages import PARTITION, STAGES
from llmtrace_collector.store import join_inputs_sql
from llmtrace_collector.store import otlp_to_spans as spans
from llmtrace_collector.store import span_facts as parts
from llmtrace_collector.store.row_columns import FIELDS, NS, SOURCE
from llmtrace_collector.store.sql_builder import from_file, quoted

# How many blocks each table remembers by their tokens, so that a repeated insert has no effect.
REMEMBERED: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The retention times in days: longer for rows than for the spans they are made of."""

    spans: int = 7
    rows: int = 90
    signals: int = 30
    # Parts wait for the rest of their request, which arrives soon or never.
    parts: int = 2


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its columns and what orders it."""

    name: str
    columns: str
    engine: str
    partition: str
    order: str
    time: str
    primary: str = ""
    shard: str = "rand()"
    settings: str = ""
    granularity: int = 8192


_SECONDS: Final = (
    *(f"{stage}_ns" for stage in PARTITION),
    *(field.name for field in FIELDS if field.name.endswith("_ns")),
)


def request_columns() -> str:
    """Return the columns of `requests`: those of a part, and what is computed from all parts."""
    stages = [f"{stage}_ns {NS},\n    {stage}_source {SOURCE}" for stage in STAGES]
    seconds = [
        f"{name.removesuffix('_ns')}_s Nullable(Float64) ALIAS {name} / 1e9" for name in _SECONDS
    ]
    return from_file(
        "requests_columns",
        kind=parts.KIND,
        fields=",\n    ".join(f"{field.name} {field.type}" for field in FIELDS),
        stages=",\n    ".join(stages),
        ns=NS,
        seconds=",\n    ".join(seconds),
    )


# For tables that get batches all day: small parts are one file instead of one per column, and ten are
# merged at a time instead of five. It reduces the cost per span by a third.
_IN_BATCHES: Final = "min_bytes_for_wide_part = 134217728, merge_selector_base = 10"
# The granularity of tables in which single lines are looked up.
_LOOKED_UP: Final = 256

TRACES: Final = Table(
    "otel_traces",
    spans.TRACES_COLUMNS,
    "MergeTree",
    partition="toDate(Timestamp)",
    primary="ServiceName, SpanName, toDateTime(Timestamp)",
    order="ServiceName, SpanName, toDateTime(Timestamp), Timestamp",
    time="toDateTime(Timestamp)",
    shard="cityHash64(TraceId)",
    settings=_IN_BATCHES,
)
PARTS: Final = Table(
    "request_parts",
    parts.parts_columns(),
    "MergeTree",
    partition="toDate(arrived)",
    order="arrived, trace_id",
    time="toDateTime(arrived)",
    shard="cityHash64(trace_id)",
    settings=_IN_BATCHES,
)
REQUESTS: Final = Table(
    "requests",
    request_columns(),
    "ReplacingMergeTree(version_ns)",
    partition="toDate(start)",
    order="start, trace_id, span_id",
    time="toDateTime(start)",
    shard="cityHash64(trace_id)",
)
SIGNALS: Final = Table(
    "signals",
    from_file("signals_columns"),
    "MergeTree",
    partition="toDate(t)",
    order="signal, instance, t",
    time="toDateTime(t)",
    shard="cityHash64(instance)",
)
EVENTS: Final = Table(
    "events",
    from_file("events_columns"),
    "ReplacingMergeTree",
    partition="toYYYYMM(t)",
    order="t, kind, instance, text",
    time="toDateTime(t)",
)
FACTS: Final = Table(
    "facts",
    from_file("facts_columns"),
    "ReplacingMergeTree",
    partition="toYYYYMM(t)",
    order="instance, t, facts",
    time="toDateTime(t)",
)
JOINS: Final = Table(
    "joins",
    from_file("joins_columns"),
    "MergeTree",
    partition="tuple()",
    order="at",
    time="toDateTime(at)",
)

PART_KEYS: Final = Table(
    "part_keys",
    from_file("part_keys_columns"),
    "MergeTree",
    partition="toDate(arrived)",
    order="key",
    time="toDateTime(arrived)",
    shard="cityHash64(trace_id)",
    granularity=_LOOKED_UP,
)
REQUEST_KEYS: Final = Table(
    "request_keys",
    from_file("request_keys_columns"),
    "ReplacingMergeTree(version_ns)",
    partition="toYYYYMM(start)",
    order="trace_id, span_id",
    time="toDateTime(start)",
    shard="cityHash64(trace_id)",
    granularity=_LOOKED_UP,
)


def days_kept(table: Table, keep: Keep) -> int:
    """Return for how many days a table keeps its rows."""
    return {
        "otel_traces": keep.spans,
        "request_parts": keep.parts,
        "part_keys": keep.parts,
        "signals": keep.signals,
        "joins": keep.parts,
    }.get(table.name, keep.rows)


_ZOO: Final = "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'"
TABLES: Final = (TRACES, PARTS, REQUESTS, SIGNALS, EVENTS, FACTS, JOINS, PART_KEYS, REQUEST_KEYS)
# Holds the number of the schema; see `upgrade`.
VERSIONS: Final = "schema_versions"


def _create(
    table: Table, keep: Keep, *, name: str | None = None, engine: str | None = None, on: str = ""
) -> str:
    return from_file(
        "create_table",
        name=name or table.name,
        on=on,
        columns=table.columns,
        engine=engine or table.engine,
        partition=table.partition,
        primary=f"PRIMARY KEY ({table.primary})\n" if table.primary else "",
        order=table.order,
        time=table.time,
        days=str(days_kept(table, keep)),
        granularity=str(table.granularity),
        replicated="replicated" if on else "non_replicated",
        remembered=str(REMEMBERED),
        settings=f",\n    {table.settings}" if table.settings else "",
    )


def table_statements(cluster: str | None, keep: Keep) -> Iterator[str]:
    """Yield the statements that make the tables, on a cluster or (`None`) a node.

    Running them again changes nothing. Those of a cluster are run on any one of its nodes: a trace
    lies on one shard, and each node extracts the parts of the spans it gets.
    """
    for table in TABLES:
        yield from creating(table, cluster, keep)
    on, suffix = places(cluster)
    engine = "MergeTree" if cluster is None else f"ReplicatedMergeTree({_ZOO})"
    yield from_file("create_versions", name=f"{VERSIONS}{suffix}", on=on, engine=engine)
    if cluster is not None:
        yield _distributed(VERSIONS, cluster, "rand()")


def creating(table: Table, cluster: str | None, keep: Keep) -> Iterator[str]:
    """Yield the statements that make one table, on a cluster or (`None`) a node."""
    if cluster is None:
        yield _create(table, keep)
        return
    on, suffix = places(cluster)
    name, _, arguments = table.engine.partition("(")
    engine = f"Replicated{name}({_ZOO}{f', {arguments}' if arguments else ')'}"
    yield _create(table, keep, name=f"{table.name}{suffix}", engine=engine, on=on)
    yield _distributed(table.name, cluster, table.shard)


def places(cluster: str | None) -> tuple[str, str]:
    """Return the clause that names a cluster, and the suffix of its nodes' own tables."""
    return ("", "") if cluster is None else (f" ON CLUSTER '{quoted(cluster)}'", "_local")


def _distributed(name: str, cluster: str, shard: str) -> str:
    on, suffix = places(cluster)
    return from_file(
        "create_distributed", name=name, on=on, cluster=quoted(cluster), local=suffix, shard=shard
    )


def view_selects(local: str = "") -> dict[str, str]:
    """Return the query of each view that fills a table as another is inserted into."""
    return {
        "reporting_of_spans": parts.reporting_select(f"otel_traces{local}"),
        "request_parts_of_spans": parts.parts_select("reporting_spans"),
        "keys_of_parts": join_inputs_sql.keys_select(f"request_parts{local}"),
        "keys_of_requests": from_file("keys_of_requests", requests=f"requests{local}"),
        "joins_of_requests": from_file("joins_of_requests", requests=f"requests{local}"),
        "spans_of_otlp": spans.traces_select("otlp"),
    }


def view_statements(on: str = "", local: str = "") -> Iterator[str]:
    """Yield the statements that make the views, and the tables that only views read."""
    for name, columns in (
        ("otlp", spans.INCOMING_COLUMNS),
        ("reporting_spans", from_file("reporting_spans_columns")),
    ):
        yield f"CREATE TABLE IF NOT EXISTS {name}{on} (\n{columns}\n) ENGINE = Null"
    selects = view_selects(local)
    for name, target in (
        ("request_parts_of_spans", f"request_parts{local}"),
        ("reporting_of_spans", "reporting_spans"),
        ("keys_of_parts", f"part_keys{local}"),
        ("keys_of_requests", f"request_keys{local}"),
        ("joins_of_requests", f"joins{local}"),
        # By way of the distributed table, so that each trace's spans reach their shard.
        ("spans_of_otlp", "otel_traces"),
    ):
        yield f"CREATE MATERIALIZED VIEW IF NOT EXISTS {name}{on} TO {target} AS\n{selects[name]}"
