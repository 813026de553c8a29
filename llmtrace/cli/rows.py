"""Run the commands that import rows, draw them, and list their span attributes."""

from __future__ import annotations

import argparse
import shutil
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmtrace.cli.explain import choose, find
from llmtrace.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from llmtrace.core.row import Row

_WIDEST: Final = 120


def run_waterfall(options: argparse.Namespace) -> None:
    """Run `llmtrace waterfall` as its options say."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    if options.url is None:
        if options.token_file is not None:
            raise ConfigError("--token-file is a collector's: give its --url as well")
        print(redraw(Path(options.source), options.request, width))
        return
    if options.request is not None or options.slowest:
        raise ConfigError("with --url the request is the ID alone: leave out --request, --slowest")
    from llmtrace.api_clients.collector_client import Collector

    print(drawn(find(Collector(options.url, options.token_file), options.source), width))


def redraw(path: Path, request: str | None = None, width: int = 80) -> str:
    """Draw one request of a file as a waterfall.

    Args:
        path: rows, one JSON object a line.
        request: its request, response or trace id; default: the one that took longest.
        width: of a line, in characters.

    Raises:
        SourceError: the file cannot be read.
        DataError: it holds no rows, or not this request.
    """
    from llmtrace.exporters.row_files.read_back import read_rows

    rows = read_rows(path)
    if not rows:
        raise DataError(f"{path}: no rows in it")
    if request is None:
        row = max(rows, key=lambda row: row.e2e_ns)
        what = "requests and turns" if any(row.is_turn for row in rows) else "requests"
        heading = f"the slowest of {len(rows)} {what}"
    else:
        row = choose(rows, request, str(path))
        return drawn(row, width)
    return drawn(row, width, heading)


def drawn(row: Row, width: int, heading: str | None = None) -> str:
    """Draw a request as a waterfall below a heading; default: its id."""
    from llmtrace.core.sanitize import printable
    from llmtrace.exporters.console.sink import waterfall

    if heading is None:
        name = row.request_id or row.response_id or row.trace_id
        heading = printable(f"{'turn' if row.is_turn else 'request'} {name}")
    simulated = ", to a SIMULATED engine" if row.attributes.get("simulated") is True else ""
    return f"{heading}{simulated}\n\n{waterfall(row, width)}"


def run_rows(options: argparse.Namespace) -> None:
    """Run `llmtrace rows` as its options say."""
    from llmtrace.dataset.langfuse_import import read_rows
    from llmtrace.exporters.row_files.sink import write_rows

    end = options.end or datetime.now().astimezone()
    start = options.start or end - timedelta(hours=1)
    if start >= end:
        raise ConfigError("--from is not before --to")
    found = read_rows(start, end, environment=options.environment, most=options.most)
    write_rows(sys.stdout, found.rows)
    said = [_count(len(found.rows), "row")]
    if found.skipped:
        left_out = _count(found.skipped, "observation")
        said.append(f"{left_out} left out: not over, or not a request")
    if found.more:
        said.append("there may be more: raise --most, or take a shorter time")
    print("; ".join(said), file=sys.stderr)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def run_semconv(options: argparse.Namespace) -> None:
    """Run `llmtrace semconv` as its options say."""
    from llmtrace.semconv.docs import page

    del options
    print(page(), end="")
