"""Read a case from row files, a collector, ClickHouse or Langfuse.

Each source gives the same `Case`: rows, signals and facts of a stretch of time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from llmtrace.api_clients.collector_client import Collector
from llmtrace.core.errors import DataError, LlmtraceError
from llmtrace.dataset import case as cases
from llmtrace.dataset.columns import Columns, Words, concatenate, from_dicts, from_rows
from llmtrace.dataset.files import read_columns
from llmtrace.display.summary_tables import date_and_zone, time_span
from llmtrace.triage.windows.choose import same_hours_earlier

Progress = Callable[[str, float], None]
Filters = Mapping[str, tuple[str, ...]]
# Reads the case of a window; filters are by row field, and a source may ignore them.
Read = Callable[[cases.Window, Progress, Filters], cases.Case]
# Imports a module of the collector, which this package knows only by name: name, option.
Bring = Callable[[str, str], Any]

_MAX_ROWS: Final = 5_000_000
_MAX_OBSERVATIONS: Final = 100_000
_PROGRESS_ROWS: Final = 2_000
_AROUND_S: Final = 60.0


def reader(options: argparse.Namespace, bring: Bring) -> Read:
    """Return a function that reads the source that the options name.

    Raises:
        ConfigError: an address is invalid, or a package is not installed.
    """
    rows = _rows(options, bring)

    def read(window: cases.Window, progress: Progress, filters: Filters) -> cases.Case:
        return with_replicas(rows(window, progress, filters))

    if options.prometheus is None:
        return read
    prometheus = bring("scrape.from_prometheus", "--prometheus")

    def both(window: cases.Window, progress: Progress, filters: Filters) -> cases.Case:
        case = rows(window, progress, filters)
        searched = case.searched or window
        t = case.rows.within(searched.start, searched.end).start / 1e9
        if not len(t):
            t = case.rows.start / 1e9
        around = cases.Window(float(np.min(t)) - _AROUND_S, float(np.max(t)) + _AROUND_S)
        signals, odd = prometheus.read_signals(
            options.prometheus, options.prometheus_token_file, around, progress
        )
        # These replace the case's own signals: a counter must not be there twice.
        return with_replicas(replace(case, signals=signals, warnings=(*case.warnings, *odd)))

    return both


def with_replicas(case: cases.Case) -> cases.Case:
    """Name the replica of rows that lack it, if their `server` is an engine with signals.

    Engines that report times in the response do not report their name. A server that reports a
    gateway's signals is a gateway, which does not tell the engine behind it.
    """
    replica, server = case.rows.words["replica"], case.rows.words["server"]
    engines = _engines(case.signals)
    names = dict.fromkeys((*replica.names, *(one for one in server.names if one in engines)))
    code_of = {name: code for code, name in enumerate(names)}
    codes = [code_of[one] if one in engines else -1 for one in server.names]
    requested = np.array([*codes, -1], np.int32)[server.codes]  # unknown is -1: the last
    named = Words(np.where(replica.codes < 0, requested, replica.codes), tuple(names))
    return replace(case, rows=replace(case.rows, words={**case.rows.words, "replica": named}))


def _engines(signals: cases.Signals) -> set[str]:
    """Return the instances that report an engine's load and no gateway's signals."""

    def reporting(names: Iterable[str]) -> set[str]:
        codes = np.unique(signals.instance.codes[signals.signal.where(*names)])
        return {signals.instance.names[code] for code in codes}

    of_gateways = (name for name in signals.signal.names if name.startswith("gateway_"))
    return reporting(("running", "waiting")) - reporting(of_gateways)


def _rows(options: argparse.Namespace, bring: Bring) -> Read:
    if options.case is not None:
        return lambda _window, progress, _filters: cases.read_case(options.case, progress)
    if options.rows is not None:
        return lambda _window, progress, _filters: from_files(options.rows, progress)
    if options.langfuse:
        return lambda window, progress, _filters: from_langfuse(window, progress)
    if options.store is not None:
        store = bring("store.export_case", "--store")

        def stored(window: cases.Window, progress: Progress, filters: Filters) -> cases.Case:
            case: cases.Case = store.read_case(options.store, window, progress, filters)
            return case

        return with_earlier_days(stored)
    collector = Collector(options.url, options.token_file)
    return with_earlier_days(
        lambda window, progress, filters: from_collector(collector, window, progress, filters)
    )


def with_earlier_days(read: Read) -> Read:
    """Also read the rows of the same hours a day and a week before, which show a daily pattern.

    If they cannot be read, they are left out.
    """

    def more(window: cases.Window, progress: Progress, filters: Filters) -> cases.Case:
        case = read(window, progress, filters)
        parts = [case.rows]
        for _, back in same_hours_earlier(window):
            with suppress(LlmtraceError):
                parts.insert(0, read(back, progress, filters).rows)
        if len(parts) == 1:
            return case
        return replace(case, rows=concatenate(parts), searched=window)

    return more


def from_files(paths: Sequence[Path], progress: Progress) -> cases.Case:
    """Read rows without signals: JSON lines, Parquet or CSV.

    Raises:
        SourceError: the file cannot be read.
        DataError: it has no rows.
    """
    return _rows_alone(read_columns(*paths, progress=progress), ", ".join(map(str, paths)))


def from_langfuse(window: cases.Window, progress: Progress) -> cases.Case:
    """Read the generations of the Langfuse project that the `LANGFUSE_*` variables name.

    Raises:
        ConfigError: the package is not installed, or a variable is missing.
        SourceError: the server does not respond, rejects, or sends invalid data.
        DataError: no request began in the window.
    """
    from llmtrace.dataset.langfuse_import import read_rows

    progress("reading Langfuse", 0.0)
    start, end = (datetime.fromtimestamp(t, UTC) for t in (window.start, window.end))
    found = read_rows(start, end, limit=_MAX_OBSERVATIONS)
    progress("reading Langfuse", 1.0)
    between = f"between {start:%Y-%m-%dT%H:%M} and {end:%Y-%m-%dT%H:%M} UTC"
    case = _rows_alone(from_rows(found.rows), "the Langfuse project", f" {between}")
    odd = []
    if found.skipped:
        odd.append(f"observations that are not over, or no requests: {found.skipped} ignored")
    if found.more:
        odd.append(f"only {_MAX_OBSERVATIONS} observations were read: take a shorter --last")
    return replace(case, warnings=(*case.warnings, *odd))


def _rows_alone(rows: Columns, source: str, when: str = "") -> cases.Case:
    if not rows.n:
        raise DataError(f"{source} has no rows{when}")
    return cases.Case(rows=rows, signals=cases.no_signals(), warnings=rows.warnings)


def from_collector(
    collector: Collector, window: cases.Window, progress: Progress, filters: Filters | None = None
) -> cases.Case:
    """Read a case from a running collector.

    Args:
        collector: to query.
        window: the time to read.
        progress: notified of the progress.
        filters: by row field; a collector takes one word each, more are filtered here.

    Raises:
        SourceError: it does not respond.
        DataError: it has no rows of that time.
    """
    filters_sent = {
        name: words[0]
        for name, words in (filters or {}).items()
        if len(words) == 1 and not name.endswith("_source")  # unknown to the API
    }
    span = {"start": f"{window.start:.6f}", "end": f"{window.end:.6f}"}
    rows = from_dicts(
        _with_progress(
            collector.lines("rows", **span, **filters_sent, limit=_MAX_ROWS), window, progress
        )
    )
    if not rows.n:
        raise DataError(
            f"{collector.url} has no rows, {time_span(window.start, window.end)}"
            + (", that pass --where" if filters else "; `llmtrace top` shows what it receives")
        )
    progress("reading signals", 0.0)
    signals, odd_signals = cases.signals_from(collector.lines("signals", **span))
    progress("reading signals", 1.0)
    reported = dict(collector.get("facts", at=f"{window.end:.6f}"))
    reported["events"] = collector.get("events", **span)["events"]
    facts, odd_facts = cases.facts_from(reported)
    cut = []
    if rows.n >= _MAX_ROWS:  # rows come by time, so the latest are missing
        until = float(np.max(rows.start)) / 1e9
        cut.append(
            f"only the first {rows.n:,} rows were read, up to {date_and_zone(until)}: "
            "take a shorter --last, or read the store itself with --store"
        )
    return cases.Case(
        rows=rows,
        signals=signals,
        facts=facts,
        warnings=(*rows.warnings, *cut, *odd_signals, *odd_facts),
    )


def _with_progress(
    rows: Iterator[dict[str, Any]], window: cases.Window, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Pass rows on, and report how far through the window they are."""
    for number, row in enumerate(rows):
        if number % _PROGRESS_ROWS == 0:
            at = float(row.get("start", 0)) / 1e9
            progress("reading rows", min(1.0, max(0.0, (at - window.start) / window.seconds)))
        yield row
    progress("reading rows", 1.0)
