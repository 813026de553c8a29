"""Format the collector's log: one line an event, for people or for programs.

On stderr, as systemd and containers expect. Logged are our own words, counts, and addresses
without user or query: no header, no body, no token.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

# Each of these logs a line per request, or repeats the start-up text.
_QUIET: Final = ("uvicorn", "uvicorn.access", "uvicorn.error", "grpc", "asyncio", "aiohttp")


class TextLines(logging.Formatter):
    """Writes `2026-11-21T14:00:00.123Z WARNING llmtrace.collector: words`."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record as a line of text."""
        words = _one_line(record.getMessage().strip())
        return f"{_clock(record)} {record.levelname:<7} {record.name}: {words}{_raised(record)}"


class JsonLines(logging.Formatter):
    """Writes an object a line: `time`, `level`, `logger`, `message`, and `error` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record as a line of JSON."""
        said = {
            "time": _clock(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage().strip(),
        }
        if raised := _raised(record):
            said["error"] = raised.removeprefix(": ")
        return json.dumps(said, ensure_ascii=False)


def _clock(record: logging.LogRecord) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{at}.{int(record.msecs):03d}Z"


def _one_line(text: str) -> str:
    # A line break in a text could forge lines of the log.
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def _raised(record: logging.LogRecord) -> str:
    """Return what was raised and where; not its text, which may quote what was sent."""
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    kind, _, trace = record.exc_info
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return f": {kind.__qualname__}{where}"


@contextmanager
def logging_to(stream: TextIO | None, form: str, level: str) -> Iterator[None]:
    """Log to a stream, or stderr, while the block runs: from `level` on, as `text` or `json`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    before = root.level, {name: logging.getLogger(name).level for name in _QUIET}
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before[0])
        for name, old in before[1].items():
            logging.getLogger(name).setLevel(old)
