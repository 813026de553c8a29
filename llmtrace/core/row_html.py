"""Draw rows as HTML for notebooks: a bar of stages, and what each took.

Without scripts and style sheets; all text is escaped and has the notebook's own colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from llmtrace.core.sanitize import printable
from llmtrace.core.stage_colours import STAGE_COLOURS
from llmtrace.core.stages import DRAWN_ORDER

if TYPE_CHECKING:
    from llmtrace.core.row import Row

_MS: Final = 1_000_000
_MAX_LISTED: Final = 20
_CELL: Final = "text-align:left;padding:1px 12px 1px 0;white-space:nowrap"
_NUMBER: Final = (
    "text-align:right;padding:1px 12px 1px 0;white-space:nowrap;font-variant-numeric:tabular-nums"
)


def one_row(row: Row) -> str:
    """Return the HTML of one row: its bar, and a line for each stage."""
    lines = f'<table style="border:0"><tbody>{"".join(_stages(row))}</tbody></table>'
    return (
        f'<div style="max-width:44em;overflow-x:auto;overflow-wrap:anywhere">{_heading(row)}'
        f"{_bar(row, row.e2e_ns)}{lines}</div>"
    )


def many_rows(rows: Sequence[Row]) -> str:
    """Return the HTML of the first rows: a line each, with their bars on one scale."""
    shown = rows[:_MAX_LISTED]
    longest = max((row.e2e_ns for row in shown), default=0)
    heads = "".join(
        f'<th style="{style}">{name}</th>'
        for name, style in (("model", _CELL), ("route", _CELL), ("outcome", _CELL),
                            ("ttft ms", _NUMBER), ("e2e ms", _NUMBER), ("stages", _CELL))
    )  # fmt: skip
    lines = "".join(
        f"<tr>{''.join(_cell(text) for text in (row.model, row.route, row.outcome))}"
        f'<td style="{_NUMBER}">{_number(row.ttft_ns)}</td>'
        f'<td style="{_NUMBER}">{_number(row.e2e_ns)}</td>'
        f'<td style="{_CELL};min-width:16em">{_bar(row, longest)}</td></tr>'
        for row in shown
    )
    count = f"{len(rows):,} row{'' if len(rows) == 1 else 's'}"
    if len(rows) > len(shown):
        count += f", the first {len(shown)} shown"
    return (
        f"<div>{count}</div><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    )


def _heading(row: Row) -> str:
    tools = ", ".join(dict.fromkeys(part.name for part in row.parts if part.kind == "tool"))
    parts = [row.operation, row.agent, row.model, row.route, tools, row.outcome, row.error_type]
    parts.append(f"e2e {_number(row.e2e_ns)} ms")
    if row.ttft_ns is not None:
        parts.append(f"ttft {_number(row.ttft_ns)} ms")
    return _text("  ".join(part for part in parts if part))


def _bar(row: Row, longest: int) -> str:
    """Draw the stages end to end; `longest` nanoseconds are the whole width."""
    pieces = "".join(
        f'<span title="{name} {_number(ns)} ms" style="display:inline-block;height:12px;'
        f'width:{100 * ns / longest:.3f}%;background:{STAGE_COLOURS[name]}"></span>'
        for name in DRAWN_ORDER
        if longest and (ns := getattr(row.stages, name))
    )
    return f'<div style="white-space:nowrap;font-size:0;line-height:0">{pieces}</div>'


def _stages(row: Row) -> Iterator[str]:
    total = row.e2e_ns or 1
    for name in DRAWN_ORDER:
        ns = getattr(row.stages, name)
        if name == "unattributed" and not ns:
            continue
        swatch = f'<span style="color:{STAGE_COLOURS[name]}">&#9632;</span> '
        source = row.stages.sources.get(name, "")  # type: ignore[call-overload]
        if name == "unattributed" and row.stages.client:
            source = f"client {_number(row.stages.client)} ms"
        known = ns is not None
        took, part = (f"{_number(ns)} ms", f"{ns / total:.1%}") if known else ("not reported", "")
        yield (
            f'<tr><td style="{_CELL}">{swatch}{name}</td><td style="{_NUMBER}">{took}</td>'
            f'<td style="{_NUMBER}">{part}</td><td style="{_CELL}">{_text(source)}</td></tr>'
        )


def _cell(text: str | None) -> str:
    shown = _text(text or "-")
    short = "max-width:14em;overflow:hidden;text-overflow:ellipsis"
    return f'<td style="{_CELL};{short}" title="{shown}">{shown}</td>'


def _text(text: str) -> str:
    return escape(printable(text))


def _number(ns: int | None) -> str:
    return "-" if ns is None else f"{ns / _MS:,.1f}"
