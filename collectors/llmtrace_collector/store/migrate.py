"""Copy everything in one store to another, such as from one machine to a server.

In slices of time, each with a token of its own: a slice that is sent again stores nothing, so that
a migration which was interrupted is simply started again. What is read meanwhile must not be
written to; an embedded store cannot be, since a process has it alone. In the end both are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from rich import progress
from rich.console import Console
from rich.table import Table

from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.display.summary_tables import console_for
from llmtrace_collector.store.clickhouse_store import Store
from llmtrace_collector.store.open_store import open_engine, open_to_read
from llmtrace_collector.store.sql_builder import from_file
from llmtrace_collector.store.sql_engine import Engine, Settings, query


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """One table that is copied.

    Attributes:
        name: of the table.
        time: its column of time.
        columns: what is copied.
        counted: the expression that both sides must agree on.
        rows: that are sent at a time.
    """

    name: str
    time: str
    columns: str
    counted: str
    rows: int


# Parts are read off the spans again where those arrive, and rows joined again of what is there.
_COPIED: Final = (
    CopiedTable("requests", "start", "*", "uniqExact(trace_id, span_id)", 200_000),
    CopiedTable("otel_traces", "Timestamp", "*", "count()", 50_000),
    CopiedTable("signals", "t", "*", "count()", 500_000),
    CopiedTable("events", "t", "*", "uniqExact(t, kind, text, instance)", 100_000),
    CopiedTable("facts", "t", "*", "uniqExact(t, instance, facts)", 100_000),
)
# Called with a table's name, how many of its rows are copied, and how many it has.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """How many rows of one table there are on either side."""

    table: str
    source: int
    destination: int


def migrate(
    source: str, destination: str, on_progress: Progress | None = None
) -> list[CopiedRows]:
    """Copy everything from one store to another.

    Args:
        source: a URL, as `open_store` takes it.
        destination: the URL of the other.
        on_progress: called after each slice.

    Raises:
        ConfigError: a store cannot be opened, both are in this process, or the schema of the
            source is another version's.
        SourceError: in the end the destination has less than the source.
    """
    if not any(url.startswith(("http://", "https://")) for url in (source, destination)):
        raise ConfigError(
            "--from and --to are both folders: a process can open one embedded store. Copy the "
            "folder, while no collector runs on it"
        )
    engine = open_to_read(source).engine
    try:
        into = Store(open_engine(destination))
        try:
            return copy(engine, into.engine, on_progress or (lambda *_: None))
        finally:
            into.close()
    finally:
        engine.close()


def run(source: str, destination: str) -> None:
    """Copy everything, showing how far it is; `llmtrace migrate`."""
    with progress.Progress(
        "[progress.description]{task.description}",
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    ) as bars:
        tasks: dict[str, progress.TaskID] = {}

        def on_progress(table: str, done: int, total: int) -> None:
            if table not in tasks:
                tasks[table] = bars.add_task(table, total=total)
            bars.update(tasks[table], completed=done)

        moved = migrate(source, destination, on_progress)
    table = Table("table", "source", "destination", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in moved:
        table.add_row(one.table, f"{one.source:,}", f"{one.destination:,}")
    console_for(sys.stdout).print(table)


def copy(source: Engine, destination: Engine, on_progress: Progress) -> list[CopiedRows]:
    """Copy all tables. See `migrate`."""
    moved = []
    for table in _COPIED:
        done, total = 0, _number(source, f"SELECT count() FROM {table.name}")
        on_progress(table.name, done, total)
        for first, last, rows in _slices(source, table):
            within = (
                f"{table.time} >= fromUnixTimestamp64Nano({first})"
                f" AND {table.time} < fromUnixTimestamp64Nano({last})"
            )
            body = source.read(
                f"SELECT {table.columns} FROM {table.name} WHERE {within}", "Native"
            )
            token = f"migrate:{table.name}:{first}:{last}:{rows}"
            settings: Settings = {
                "insert_deduplication_token": token,
                "deduplicate_blocks_in_dependent_materialized_views": 1,
                "min_insert_block_size_rows": 2 * table.rows,
                "min_insert_block_size_bytes": 0,
                "max_partitions_per_insert_block": 0,
            }
            destination.insert(table.name, "Native", body, settings)
            done += rows
            on_progress(table.name, done, total)
        counts = [
            _number(side, f"SELECT {table.counted} FROM {table.name}")
            for side in (source, destination)
        ]
        moved.append(CopiedRows(table.name, *counts))
    for one in moved:
        if one.destination < one.source:
            raise SourceError(
                f"{one.table}: {one.destination} rows arrived of {one.source}; run it again"
            )
    return moved


def _slices(source: Engine, table: CopiedTable) -> Iterator[tuple[int, int, int]]:
    """Yield stretches of time (unix ns) that hold about so many rows, and how many they hold."""
    minute = 60 * 10**9
    first, last, held = None, 0, 0
    for at, count in query(source, from_file("rows_by_minute", time=table.time, table=table.name)):
        if first is not None and held + int(count) > table.rows:
            yield first * minute, last * minute, held
            first, held = None, 0
        first = int(at) if first is None else first
        last, held = int(at) + 1, held + int(count)
    if first is not None:
        yield first * minute, last * minute, held


def _number(engine: Engine, sql: str) -> int:
    return int(engine.read(sql, "TSV"))
