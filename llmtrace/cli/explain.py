"""Declare `llmtrace explain`, and find a request by its id in a file or a running collector."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from llmtrace.cli.arguments import Commands, add_collector, add_command, add_json
from llmtrace.core.errors import DataError

if TYPE_CHECKING:
    from llmtrace.api_clients.collector_client import Collector
    from llmtrace.core.row import Row

_MAX_PEERS: Final = 5_000
_MAX_SAMPLES: Final = 20_000
_NS: Final = 1e9


def add_explain(commands: Commands) -> None:
    """Declare `llmtrace explain`, its request and its output."""
    command = add_command(
        commands,
        "explain",
        _explain,
        "say which stage of a request took unusually long, and what the engine did then",
        "Compare a request with those of the hour before it that did the same work: which stage "
        "took unusually long, by how much, and what the engine did in those seconds. The rows are "
        "those of a running collector, or of a file.",
        examples=(
            "llmtrace explain chatcmpl-123",
            "llmtrace explain chatcmpl-123 --url http://127.0.0.1:4319",
            "llmtrace explain lt-9f2c --rows rows.jsonl --json",
        ),
        docs="on-call/triage.md",
    )
    command.add_argument("id", metavar="ID", help="request, response or trace id of the request")
    command.add_argument(
        "--rows", type=Path, action="append", metavar="FILE",
        help="rows (JSON lines, Parquet or CSV) to use instead of a collector; may be repeated",
    )  # fmt: skip
    add_collector(command)
    add_json(command, "lines")


def _explain(options: argparse.Namespace) -> None:
    from llmtrace.dataset.explain_request import (
        ENGINE_SIGNALS,
        HOUR_NS,
        as_json,
        as_lines,
        explain,
    )

    if options.rows is not None:
        rows = usable_rows(*options.rows)
        named = choose(rows, options.id, ", ".join(map(str, options.rows)))
        explanation = explain(named, rows)
    else:
        from llmtrace.api_clients.collector_client import Collector
        from llmtrace.core.row import from_dict

        collector = Collector(options.url, options.token_file)
        row = find(collector, options.id)
        since, began = (row.start - HOUR_NS) / _NS, row.start / _NS
        same = {name: value for name in ("model", "route", "operation")
                if (value := getattr(row, name)) is not None}  # fmt: skip
        others = (
            from_dict(flat)
            for flat in collector.lines("rows", start=since, end=began, limit=_MAX_PEERS, **same)
        )
        samples = (
            sample
            for signal in ENGINE_SIGNALS
            for sample in collector.lines(
                "signals", start=since, end=began + row.e2e_s + 60, signal=signal,
                limit=_MAX_SAMPLES,
            )
        )  # fmt: skip
        explanation = explain(row, others, samples)
    if options.json:
        print(json.dumps(as_json(explanation), ensure_ascii=False))
        return
    from llmtrace.core.sanitize import printable

    print("\n".join(printable(line) for line in as_lines(explanation)))


def find(collector: Collector, name: str) -> Row:
    """Return a request of a collector by its request, response or trace id.

    Raises:
        SourceError: the collector does not respond, or has no such request.
    """
    from llmtrace.core.row import from_dict

    found = collector.get(f"requests/{quote(name, safe='')}")["rows"]
    return choose([from_dict(flat) for flat in found], name, collector.url)


def usable_rows(*paths: Path) -> Sequence[Row]:
    """Read the rows of files or folders, and note on stderr what in it is no row.

    Raises:
        SourceError: the file cannot be read.
        DataError: nothing in it is a row.
    """
    from llmtrace.core.sanitize import printable
    from llmtrace.exporters.row_files.read_back import read_usable_rows

    rows, notes = read_usable_rows(*paths)
    for note in notes:
        print(printable(note), file=sys.stderr)
    return rows


def choose(rows: Sequence[Row], name: str, source: str) -> Row:
    """Return the request with this request, response or trace id.

    Raises:
        DataError: there is none.
    """
    found = [row for row in rows if name in {row.request_id, row.response_id, row.trace_id}]
    if found:  # a trace has several rows: the one that the others lie in
        return next((row for row in found if not row.nested), found[0])
    msg = f"{source}: none of its {len(rows)} rows has the request, response or trace id {name!r}"
    raise DataError(msg)
