"""Declare the commands that import rows, draw them, and list their span attributes."""

from __future__ import annotations

import argparse
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmtrace.cli.arguments import (
    COLLECTOR_URL,
    Commands,
    add_command,
    add_token_file,
    point_in_time,
    positive,
)
from llmtrace.cli.explain import choose, find, usable_rows
from llmtrace.core.errors import ConfigError, DataError
from llmtrace.exporters.row_files.forms import is_row_file

if TYPE_CHECKING:
    from llmtrace.core.row import Row

_WIDEST: Final = 120
_STDIN: Final = Path("/dev/stdin")


def add_waterfall(commands: Commands) -> None:
    """Declare `llmtrace waterfall`."""
    waterfall = add_command(
        commands,
        "waterfall",
        _waterfall,
        "draw where the time of one request went",
        "Draw where the time of one request went, from rows such as `llmtrace demo --rows-out` "
        "writes, or by its id from a running collector, where there is no file of that name.",
        examples=(
            "llmtrace waterfall chatcmpl-123",
            "llmtrace waterfall chatcmpl-123 --url http://127.0.0.1:4319",
            "llmtrace waterfall rows.jsonl",
            "llmtrace waterfall rows.jsonl --request chatcmpl-123",
        ),
        docs="reference/stages.md",
    )
    waterfall.add_argument(
        "source", metavar="ROWS|ID",
        help="rows: JSON lines, CSV (-: stdin) or Parquet; or a request, response or trace id",
    )  # fmt: skip
    waterfall.add_argument(
        "--url", metavar="URL",
        help=f"address of the collector that has the request (default: {COLLECTOR_URL})",
    )  # fmt: skip
    add_token_file(waterfall, "collector")
    which = waterfall.add_mutually_exclusive_group()
    which.add_argument("--slowest", action="store_true", help="the slowest request (the default)")
    which.add_argument(
        "--request", metavar="ID", help="the request with this request, response or trace id"
    )


def _waterfall(options: argparse.Namespace) -> None:
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    path = _STDIN if options.source == "-" else Path(options.source)
    named_as_file = is_row_file(path) or len(path.parts) > 1 or path.exists()
    if options.url is None and (named_as_file or options.request is not None):
        if options.token_file is not None:
            raise ConfigError("--token-file is a collector's: give its --url as well")
        print(redraw(path, options.request, width))
        return
    if options.request is not None or options.slowest:
        raise ConfigError("of a collector the ID says which: leave out --slowest, --request")
    from llmtrace.api_clients.collector_client import Collector

    print(
        drawn(
            find(Collector(options.url or COLLECTOR_URL, options.token_file), options.source),
            width,
        )
    )


def redraw(path: Path, request: str | None = None, width: int = 80) -> str:
    """Draw one request of a file as a waterfall.

    Args:
        path: rows, as `read_rows` reads them.
        request: its request, response or trace id; default: the one that took longest.
        width: of a line, in characters.

    Raises:
        SourceError: the file cannot be read.
        DataError: it holds no rows, or not this request.
    """
    rows = usable_rows(path)
    if not rows:
        raise DataError(f"{path}: no rows in it")
    if request is not None:
        return drawn(choose(rows, request, str(path)), width)
    row = max(rows, key=lambda row: row.e2e_ns)
    if len(rows) == 1:
        return drawn(row, width)
    what = "requests and turns" if any(row.is_turn for row in rows) else "requests"
    return drawn(row, width, f"the slowest of {len(rows)} {what}")


def drawn(row: Row, width: int, heading: str | None = None) -> str:
    """Draw a request as a waterfall below a heading; default: its id."""
    from llmtrace.core.sanitize import printable
    from llmtrace.exporters.console.sink import waterfall

    if heading is None:
        name = row.request_id or row.response_id or row.trace_id or "without an id"
        heading = printable(f"{'turn' if row.is_turn else 'request'} {name}")
    simulated = ", to a SIMULATED engine" if row.attributes.get("simulated") is True else ""
    return f"{heading}{simulated}\n\n{waterfall(row, width)}"


def add_rows(commands: Commands) -> None:
    """Declare `llmtrace rows`."""
    rows = add_command(
        commands,
        "rows",
        _rows,
        "print the requests that another tool has recorded, as rows",
        "Print the requests that another tool has recorded, as rows: one JSON object per line, as "
        "`llmtrace waterfall` reads them. Langfuse's project is the one that LANGFUSE_PUBLIC_KEY, "
        "LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL name.",
        examples=(
            "llmtrace rows langfuse > rows.jsonl",
            "llmtrace rows langfuse --from 2026-11-21T14:00 --to 2026-11-21T15:00 > rows.jsonl",
        ),
        docs="instrument/langfuse.md",
    )
    rows.add_argument("source", choices=("langfuse",), help="tool that recorded them")
    rows.add_argument(
        "--from", dest="start", type=point_in_time, metavar="TIME",
        help="start of the interval, as 2026-11-21T14:00 (default: an hour before --to)",
    )  # fmt: skip
    rows.add_argument(
        "--to",
        dest="end",
        type=point_in_time,
        metavar="TIME",
        help="end of the interval (default: now)",
    )
    rows.add_argument("--environment", metavar="NAME", help="only requests of this environment")
    rows.add_argument(
        "--limit", type=positive(int), default=10_000, metavar="N",
        help="read about this many observations at most (default: 10000)",
    )  # fmt: skip


def _rows(options: argparse.Namespace) -> None:
    from llmtrace.dataset.langfuse_import import read_rows
    from llmtrace.exporters.row_files.sink import write_rows

    end = options.end or datetime.now().astimezone()
    start = options.start or end - timedelta(hours=1)
    if start >= end:
        raise ConfigError("--from is not before --to")
    found = read_rows(start, end, environment=options.environment, limit=options.limit)
    write_rows(sys.stdout, found.rows)
    said = [_count(len(found.rows), "row")]
    if found.skipped:
        left_out = _count(found.skipped, "observation")
        said.append(f"{left_out} left out: not over, or not a request")
    if found.more:
        said.append("there may be more: raise --limit, or take a shorter interval")
    print("; ".join(said), file=sys.stderr)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def add_semconv(commands: Commands) -> None:
    """Declare `llmtrace semconv`."""
    add_command(
        commands,
        "semconv",
        _semconv,
        "print the span attributes of a request, as Markdown",
        examples=("llmtrace semconv",),
        docs="reference/semconv.md",
    )


def _semconv(options: argparse.Namespace) -> None:
    from llmtrace.semconv.docs import page

    del options
    print(page(), end="")
