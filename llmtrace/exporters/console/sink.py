"""Print each request on a terminal.

One line each, or one request as a waterfall. Plain text; what is not known shows as `-`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Final, TextIO

from llmtrace.core.sanitize import printable
from llmtrace.core.stages import DRAWN_ORDER, PARTITION
from llmtrace.exporters.console import turn_tree
from llmtrace.exporters.console.bars import bar, short_ms
from llmtrace.exporters.queued_sink import QueuedSink
from llmtrace.exporters.span_layout import attempts, span_name

if TYPE_CHECKING:
    from llmtrace.core.attempts import Attempt
    from llmtrace.core.row import Row

_MS: Final = 1_000_000
_SHORT: Final = {
    "network": "net",
    "gateway": "gw",
    "first_chunk": "first",
    "unattributed": "unattr",
}
_MIN_BAR: Final = 8
_MAX_ERROR: Final = 32
_FEW_CHUNKS: Final = 4
_LATE_NS: Final = 5_000_000  # what the kernel's clock can distinguish
_MORE: Final = len("  and 32 more")


def console_sink(stream: TextIO | None = None, *, interval_s: float = 0.2) -> QueuedSink[Row]:
    """Make the sink that writes one line a request.

    It writes, to stderr by default and after `interval_s` seconds at most, from a thread of its
    own: a terminal that is blocked blocks nothing else.
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

    The clock time is in `zone`, or the local one.
    """
    at = datetime.fromtimestamp(row.start / 1e9, zone)
    named = f"turn {row.agent}" if row.is_turn else row.model or "-"
    parts = [f"{at:%H:%M:%S}.{row.start // _MS % 1000:03d}", named, row.route or "-"]
    parts.append(row.outcome if row.error_type is None else f"{row.outcome} {row.error_type}")
    parts.append(f"e2e {short_ms(row.e2e_ns)} ms")
    if row.is_turn:
        parts += turn_tree.summary(row)
    else:
        parts.append("ttft -" if row.ttft_ns is None else f"ttft {short_ms(row.ttft_ns)} ms")
    if (tpot := row.tpot_s) is not None:
        parts.append(f"tpot {tpot * 1000:.1f} ms")
    stages = [
        f"{_SHORT.get(name, name)} {short_ms(getattr(row.stages, name))}" for name in PARTITION
    ]
    return printable(f"{'  '.join(parts)}  |  {' '.join(stages)} ms  |  {row.trace_id}")


def waterfall(row: Row, width: int = 80) -> str:
    """Draw where the time of one request went: a bar, ms, share and source for each stage.

    `decode` and `render` alternate in reality; they are drawn one after the other. For a turn of
    an agent, its requests and tool calls come first, each at its time. A line has `width`
    characters.
    """
    head = [span_name(row), row.outcome]
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
        for name in DRAWN_ORDER
        if (ns := getattr(stages, name)) is not None
    }
    label = max(len(name) for name in DRAWN_ORDER)
    tried = [
        (number, one, f"{one.duration_ns / _MS:>10,.1f} ms  {_came_to(one)}")
        for number, one in attempts(row)
    ]
    longest = max(map(len, (*texts.values(), *(text for _, _, text in tried))))
    room = max(_MIN_BAR, width - label - 2 - longest)
    lines, at = ["  ".join(head)], 0
    if row.is_turn:
        lines += [*turn_tree.part_lines(row, width), ""]
    for name in DRAWN_ORDER:
        ns = getattr(stages, name)
        if ns is None:
            lines.append(f"{name:<{label}} {'':<{room}} {'not reported':>13}")
        elif ns or name != "unattributed":
            drawn = bar(at, at + ns, total, room)
            lines.append(f"{name:<{label}} {drawn:<{room}} {texts[name]}")
            at += ns
        if name == "unattributed" and stages.client:
            own = f"{stages.client / _MS:>10,.1f} ms {stages.client / total:>6.1%}  client"
            lines.append(
                f"{'  client':<{label}} {bar(0, stages.client, total, room):<{room}} {own}"
            )
    for number, one, text in tried:
        drawn = bar(min(one.start_ns, total), min(one.end_ns, total), total, room)
        lines.append(f"{f'attempt {number}':<{label}} {drawn:<{room}} {text}")
    if row.burst_chunks is not None and 2 * row.burst_chunks >= row.chunks > _FEW_CHUNKS:
        lines.append(f"{row.burst_chunks} of {row.chunks} chunks came with the one before")
    lines += _late(row)
    if row.response_headers:
        lines.append(_response_headers(row.response_headers, width))
    if row.trace_id:
        lines.append(f"trace {row.trace_id}")
    return "\n".join(printable(text).rstrip() for text in lines)


def _late(row: Row) -> Iterator[str]:
    """Say when the data was here, where the kernel knows that it was read late."""
    ttft, by, lag = row.ttft_ns, row.arrived_by_ns, row.client_lag_ns or 0
    if ttft is not None and by is not None and ttft - by >= _LATE_NS:
        yield (
            f"first content here after {by / _MS:,.1f} ms at most, "
            f"read {(ttft - by) / _MS:,.1f} ms later"
        )
    if lag >= _LATE_NS:
        yield f"client lag {lag / _MS:,.1f} ms at least: data was here, the client was busy"


def _came_to(one: Attempt) -> str:
    """Say what an attempt came to, and how long the next one waited."""
    text = str(one.status) if one.error_type is None else one.error_type[:_MAX_ERROR]
    if one.backoff_ns:
        text += f", then {short_ms(one.backoff_ns)} ms"
    if one.retry_after_ns is not None:
        text += f" (hint {short_ms(one.retry_after_ns)})"
    return text


def _response_headers(headers: Mapping[str, str], width: int) -> str:
    """Write as many of the kept headers as fit in a line, and how many do not."""
    line = "headers"
    for number, (name, value) in enumerate(headers.items()):
        more = f"{line}  {name}: {value}"
        if number and len(more) + _MORE > width:
            return f"{line}  and {len(headers) - number} more"
        # What is cut leaves room to say how many more there are.
        line = more[: width if number == len(headers) - 1 else width - _MORE]
    return line
