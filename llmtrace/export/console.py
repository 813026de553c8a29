"""What does a person at a terminal see of each request?

One line each, or one request as a waterfall. Plain text; what is not known shows as `-`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final, TextIO

from llmtrace.export.queue import QueuedSink
from llmtrace.semconv_table import ORDER
from llmtrace.stages import STAGES

if TYPE_CHECKING:
    from llmtrace.rows import Row

_MS: Final = 1_000_000
_SHORT: Final = {
    "network": "net",
    "gateway": "gw",
    "first_chunk": "first",
    "unattributed": "other",
}
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"
_LEAST_BAR: Final = 8


def console_sink(stream: TextIO | None = None, *, interval_s: float = 0.2) -> QueuedSink[Row]:
    """Make the sink that writes one line a request.

    It writes from a thread of its own: a terminal that is blocked blocks nothing else.

    Args:
        stream: where to; stderr if not given.
        interval_s: longest a line waits, in seconds.
    """

    def write_lines(rows: Sequence[Row]) -> None:
        _write(stream, "".join(f"{line(row)}\n" for row in rows))

    return QueuedSink("export.console", write_lines, interval_s=interval_s)


def _write(stream: TextIO | None, text: str) -> None:
    out = sys.stderr if stream is None else stream
    try:
        descriptor = out.fileno()
    except (AttributeError, OSError, ValueError):  # no file: a test's or an IDE's own stream
        out.write(text)
        out.flush()
        return
    # Past Python's buffer, whose lock a blocked write would hold: the interpreter aborts if it
    # cannot get that lock at exit.
    rest = memoryview(text.encode(out.encoding or "utf-8", "backslashreplace"))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def line(row: Row, zone: tzinfo | None = None) -> str:
    """Write a row as one line: when, what, how it ended, how long, and each stage in ms.

    Args:
        row: the request.
        zone: time zone of the clock time shown; the local one if not given.
    """
    at = datetime.fromtimestamp(row.start / 1e9, zone)
    parts = [f"{at:%H:%M:%S}.{row.start // _MS % 1000:03d}", row.model or "-"]
    if row.route is not None:
        parts.append(row.route)
    parts.append(row.outcome if row.error_type is None else f"{row.outcome} {row.error_type}")
    parts.append(f"e2e {_ms(row.e2e_ns)} ms")
    parts.append(f"ttft {_ms(row.ttft_ns)} ms")
    if (tpot := row.tpot_s) is not None:
        parts.append(f"tpot {tpot * 1000:.1f} ms")
    stages = [
        f"{_SHORT.get(name, name)} {_ms(getattr(row.stages, name))}"
        for name in (*STAGES, "unattributed")
    ]
    return f"{'  '.join(parts)}  |  {' '.join(stages)} ms  |  {row.trace_id}"


def _ms(ns: int | None) -> str:
    """Write nanoseconds as milliseconds with at most three digits that matter."""
    if ns is None:
        return "-"
    ms = ns / _MS
    if ms == 0:
        return "0"
    if ms < 0.1:  # noqa: PLR2004
        return "<0.1"
    return f"{ms:.1f}" if ms < 10 else f"{ms:.0f}"  # noqa: PLR2004


def waterfall(row: Row, width: int = 80) -> str:
    """Draw where the time of one request went: a bar, ms, share and source for each stage.

    `decode` and `render` take turns in truth; they are drawn one after the other.

    Args:
        row: the request.
        width: of a line, in characters.
    """
    head = [" ".join(filter(None, (row.operation, row.model))), row.outcome]
    if row.error_type is not None:
        head.append(row.error_type)
    head.append(f"e2e {row.e2e_ns / _MS:,.1f} ms")
    if row.ttft_ns is not None:
        head.append(f"ttft {row.ttft_ns / _MS:,.1f} ms")
    stages = row.stages
    total = row.e2e_ns or 1
    sources: Mapping[Any, str] = stages.sources
    texts = {
        name: f"{ns / _MS:>10,.1f} ms {ns / total:>6.1%}  {sources.get(name, '')}".rstrip()
        for name in ORDER
        if (ns := getattr(stages, name)) is not None
    }
    label = max(len(name) for name in ORDER)
    room = max(_LEAST_BAR, width - label - 2 - max(map(len, texts.values())))
    lines, at = ["  ".join(head)], 0
    for name in ORDER:
        ns = getattr(stages, name)
        if ns is None:
            lines.append(f"{name:<{label}} {'':<{room}} {'not reported':>13}")
        elif ns or name != "unattributed":
            bar = _bar(at, at + ns, total, room)
            lines.append(f"{name:<{label}} {bar:<{room}} {texts[name]}")
            at += ns
    lines.append(f"trace {row.trace_id}")
    return "\n".join(text.rstrip() for text in lines)


def _bar(start: int, end: int, total: int, width: int) -> str:
    """Draw an interval in eighths of a character, at least one where there is any time at all."""
    if end == start:
        return ""
    first = min(start * width * 8 // total, width * 8 - 1)
    last = max(first + 1, end * width * 8 // total)
    cell = first // 8
    if first >= cell * 8 + 4 and last <= cell * 8 + 8:
        return " " * cell + "▐"  # within the right half of a character
    # Other block characters fill from the left, so a longer bar begins with its character.
    full, part = divmod(last - cell * 8, 8)
    return " " * cell + "█" * full + (_EIGHTHS[part] if part else "")
