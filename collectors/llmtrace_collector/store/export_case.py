"""Read rows from a store for triage, column by column, without a running collector.

The store returns them as Arrow, in slices of time. If there are more rows than memory should hold,
the store picks every second, third, ... trace, and each of those counts for several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llmtrace.core.errors import ConfigError, DataError, needs_extra
from llmtrace.dataset.case import Case, Window, facts_from, signals_from
from llmtrace.dataset.columns import FLAGS, IDS, NUMBERS, SECONDS, WORDS, Builder
from llmtrace.dataset.files import add_table
from llmtrace.display.summary_tables import time_span
from llmtrace_collector.store import read
from llmtrace_collector.store.open_store import open_to_read, place_of
from llmtrace_collector.store.sql_builder import from_file
from llmtrace_collector.store.sql_engine import Engine

_NS: Final = 1_000_000_000
_MAX_ROWS: Final = 5_000_000
_A_SLICE: Final = 250_000  # rows, about
_MAX_SLICES: Final = 2_000
# Where these are unknown they are 0 in the store, and left out of a row.
_ZERO_IS_NONE: Final = frozenset({"held_before_s", "held_after_s"})

Filters = Mapping[str, Sequence[str]]
Progress = Callable[[str, float], None]


def read_case(
    url: str, window: Window, progress: Progress, filters: Filters | None = None
) -> Case:
    """Read the contents of a store in a time range.

    Args:
        url: as of `open_to_read`; a folder must be of a collector that is not running.
        window: the time range.
        progress: called with what is being done, and the share that is done.
        filters: by row field, the allowed values.

    Raises:
        ConfigError: there is no such store, or a collector has it open.
        StoreError: the store does not answer.
        DataError: it has no rows in that time.
    """
    store = open_to_read(_there(url))
    try:
        builder = Builder()
        warnings = add_rows(store.engine, builder, window, progress, filters or {})
        if not builder.n:
            raise DataError(
                f"store {store.engine.name} has no rows, {time_span(window.start, window.end)}"
                + (", that pass --where" if filters else "")
            )
        start, end = int(window.start * _NS), int(window.end * _NS)
        progress("reading signals", 0.0)
        signals, odd_signals = signals_from(read.signals(store, start, end))
        progress("reading signals", 1.0)
        known: dict[str, Any] = dict(read.facts(store, end))
        known["events"] = [*read.events(store, start, end)]
        facts, odd_facts = facts_from(known)
    finally:
        store.close()
    rows = builder.done()
    return Case(
        rows=rows,
        signals=signals,
        facts=facts,
        warnings=(*warnings, *rows.warnings, *odd_signals, *odd_facts),
    )


def _there(url: str) -> str:
    """Return the folder of a store, also within a collector's data, or the URL of a server.

    Raises:
        ConfigError: the folder holds no store: opening it would create one.
    """
    place = place_of(url)
    if not isinstance(place, Path):
        return url
    for folder in (place, place / "store"):
        if (folder / "clickhouse").is_dir():
            return str(folder)
    raise ConfigError(f"--store {url}: holds no store of a collector")


def add_rows(
    engine: Engine,
    builder: Builder,
    window: Window,
    progress: Progress,
    filters: Filters,
    *,
    most: int = _MAX_ROWS,
) -> tuple[str, ...]:
    """Add the rows of a window to a builder, and return warnings about them.

    Arguments as of `read_case`; of more than `most` rows only a share is read.
    """
    with needs_extra("reading rows from a store", "triage", "pyarrow"):
        import pyarrow as pa

    where, given = _where(filters)
    start, end = int(window.start * _NS), int(window.end * _NS)

    def ask(columns: Mapping[str, str], since: int, until: int, more: str = "") -> Any:
        fields = ", ".join(f"{text} AS as_{name}" for name, text in columns.items())
        sql = from_file("export_rows", fields=fields, conditions=f"{where}{more}")
        stream = engine.read(sql, "ArrowStream", {**given, "since": since, "until": until})
        return pa.ipc.open_stream(stream).read_all().rename_columns([*columns]) if stream else None

    counted = ask({"n": "count()"}, start, end)
    total = 0 if counted is None else int(counted["n"][0].as_py())
    share = -(-total // most)
    more = f" AND cityHash64(trace_id) % {share} = 0" if share > 1 else ""
    slices = min(_MAX_SLICES, max(1, -(-total // (max(share, 1) * _A_SLICE))))
    columns = _columns(max(share, 1))
    for number in range(slices if total else 0):
        since, until = (start + (end - start) * n // slices for n in (number, number + 1))
        table = ask(columns, since, until, more)
        if table is not None and table.num_rows:
            add_table(table, builder)
        progress("reading rows", (number + 1) / slices)
    if share > 1:
        return (f"{total} rows: every {share}th trace is looked at, and stands for the others",)
    return ()


def _columns(share: int) -> dict[str, str]:
    """Return the expression of each field of a row, by the names of `llmtrace.dataset.columns`."""
    found = {"start": "toUnixTimestamp64Nano(start)"}
    # A source is a name of an enum.
    found |= {name: f"toString({name})" for name in (*IDS, *WORDS)}
    for name in NUMBERS:
        if name == "weight":
            found[name] = f"weight * {share}"
        elif name in _ZERO_IS_NONE:
            found[name] = f"nullIf({name.removesuffix('_s')}_ns, 0) / 1e9"
        elif name in _IN_NS:
            found[name] = f"{name.removesuffix('_s')}_ns / 1e9"
        elif name in FLAGS:
            found[name] = f"toFloat64({name})"
        else:
            found[name] = name
    return found


# Durations that the table has in nanoseconds. The others are in seconds there, or computed.
_IN_NS: Final = frozenset(SECONDS) - {
    "ttft_arrival_s", "tpot_s", "retry_s",
    "tool_wall_s", "tool_serial_s", "tool_critical_path_s", "tool_serial_loss_s",
}  # fmt: skip


def _where(filters: Filters) -> tuple[str, dict[str, object]]:
    text, given = "", {}
    for name, words in filters.items():
        if name in read.FILTERS:  # the caller filters by the others
            text += f" AND {name} IN {{is_{name}:Array(String)}}"
            given[f"is_{name}"] = [*words]
    return text, dict[str, object](given)
