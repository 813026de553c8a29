"""How did one request go that was written to a file earlier?"""

from __future__ import annotations

from pathlib import Path

from llmtrace.errors import DataError
from llmtrace.export.console import waterfall
from llmtrace.jsonl import read_rows
from llmtrace.rows import Row


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
    rows = read_rows(path)
    if not rows:
        msg = f"{path}: no rows in it"
        raise DataError(msg)
    if request is None:
        row = max(rows, key=lambda row: row.e2e_ns)
        what = "requests and turns" if any(row.is_turn for row in rows) else "requests"
        heading = f"the slowest of {len(rows)} {what}"
    else:
        row = _find(path, rows, request)
        heading = f"{'turn' if row.is_turn else 'request'} {row.request_id}"
    simulated = ", to a SIMULATED engine" if row.attributes.get("simulated") is True else ""
    return f"{heading}{simulated}\n\n{waterfall(row, width)}"


def _find(path: Path, rows: list[Row], request: str) -> Row:
    found = [row for row in rows if request in {row.request_id, row.response_id, row.trace_id}]
    if found:  # a trace has several rows: the one that the others lie in
        return next((row for row in found if not row.nested), found[0])
    msg = f"{path}: none of its {len(rows)} rows has the request, response or trace id {request!r}"
    raise DataError(msg)
