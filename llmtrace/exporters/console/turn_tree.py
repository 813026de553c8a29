"""Draw an agent's turn on a terminal: the requests and tool calls in it, and the lost time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from llmtrace.core.sanitize import printable
from llmtrace.core.tool_calls import Part, could_run_together
from llmtrace.exporters.console.bars import bar, short_ms

if TYPE_CHECKING:
    from llmtrace.core.row import Row

_MS: Final = 1_000_000
_NS: Final = 1_000_000_000
_MAX_LINES: Final = 40
_MAX_GROUPS: Final = 3
_MAX_NAMES: Final = 8
_MAX_LABEL: Final = 24
_MIN_BAR: Final = 8


def summary(row: Row) -> Iterator[str]:
    """Yield in few words each what a turn did, for a line of its own."""
    requests = sum(part.kind == "request" for part in row.parts)
    yield f"{requests} request{'' if requests == 1 else 's'}"
    if row.tool_calls:
        plural = "" if row.tool_calls == 1 else "s"
        yield f"{row.tool_calls} tool{plural} {short_ms(_ns(row.tool_wall_s))} ms"
    if loss := _loss(row):
        yield f"serial loss {short_ms(loss)} ms{_who(row)}"


def part_lines(row: Row, width: int) -> Iterator[str]:
    """Draw what ran inside a turn, each as a bar where it lay, and what its tools lost."""
    shown = row.parts[:_MAX_LINES]
    texts = [_text(part) for part in shown]
    labels = [_label(part) for part in shown]
    label = max(map(len, labels), default=0)
    room = max(_MIN_BAR, width - label - 2 - max(map(len, texts), default=0))
    total = row.e2e_ns or 1
    for part, name, text in zip(shown, labels, texts, strict=True):
        drawn = bar(min(part.start, total), min(part.end, total), total, room)
        yield f"{name:<{label}} {drawn:<{room}} {text}"
    if len(row.parts) > len(shown):
        yield f"and {len(row.parts) - len(shown)} more"
    if row.tool_calls:
        yield _tools_text(row)
    if loss := _loss(row):
        yield f"serial loss {loss / _MS:,.1f} ms{_who(row)}"


def _label(part: Part) -> str:
    name = "  " * (part.depth - 1) + printable(part.name)
    return name if len(name) <= _MAX_LABEL else f"{name[: _MAX_LABEL - 1]}…"


def _text(part: Part) -> str:
    """Say how long a part took, and how it ended where that was not well."""
    text = f"{part.duration / _MS:>10,.1f} ms  {part.kind}"
    if part.outcome is None:
        return f"{text}, still running"
    return text if part.outcome == "success" else f"{text}, {part.outcome}"


def _tools_text(row: Row) -> str:
    """Say what the tools of a turn come to."""
    wall, serial = _ns(row.tool_wall_s), _ns(row.tool_serial_s)
    text = f"tools {wall / _MS:,.1f} ms for {row.tool_calls} calls of {serial / _MS:,.1f} ms"
    if wall:
        text += f", {serial / wall:.1f} at once"
    return f"{text}; critical path {_ns(row.tool_critical_path_s) / _MS:,.1f} ms"


def _loss(row: Row) -> int:
    """Return what the tools of a turn lost by taking turns, if that is worth a word."""
    return _ns(row.tool_serial_loss_s) if could_run_together(row.parts) else 0


def _who(row: Row) -> str:
    """Say which tools could have run together."""
    groups = []
    for group in could_run_together(row.parts)[:_MAX_GROUPS]:
        names = [
            name if times == 1 else f"{times} × {name}"  # noqa: RUF001
            for name, times in Counter(map(printable, group.names)).items()
        ]
        more = "" if len(names) <= _MAX_NAMES else f" and {len(names) - _MAX_NAMES} more"
        groups.append(", ".join(names[:_MAX_NAMES]) + more)
    return f": {'; '.join(groups)} could have run together" if groups else ""


def _ns(seconds: float | None) -> int:
    return round((seconds or 0.0) * _NS)
