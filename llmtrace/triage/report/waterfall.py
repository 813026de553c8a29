"""Draw the parts of a change, and the stages of a request at the p95."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Final

from llmtrace.display.colours import NEUTRAL, STAGE_COLOURS
from llmtrace.triage.report.charts import SIZES, Size, nice
from llmtrace.triage.report.naming import (
    PART_NAMES,
    between,
    figure,
    latest,
    of_latency,
    signed,
    unit,
)
from llmtrace.triage.report.sentences import has_split, parts_without
from llmtrace.triage.result import Anatomy, Contribution, Result

_ROOM: Final = 0.1  # of the bar; a name does not fit into less


def change(result: Result) -> str:
    """Draw the change as a waterfall: each part begins where the one before ended."""
    before, after = result.before.p95, result.after.p95
    if before is None or after is None or not has_split(result):
        return ""
    pictures = "".join(_waterfall(result, before, after, one) for one in SIZES)
    notes = [f"{words}: {escape(', '.join(names))}." for words, names in zip(
             ("No part in it", "Not reported"), parts_without(result), strict=True)
             if names]  # fmt: skip
    note = f'<p class="soft">{" ".join(notes)}</p>' if notes else ""
    known = any(None not in one.ci for one in result.contributions)
    faint = "brackets: 95% CI; faint = within noise" if known else "without intervals"
    return (
        "<section><h2>Where the change is <small>the parts add up to it exactly; "
        f"{faint}</small></h2>{pictures}{note}</section>"
    )


def _waterfall(result: Result, before: float, after: float, size: Size) -> str:
    shown = [one for one in result.contributions if one.seconds]
    reach = [before, after]
    at = before
    for one in shown:
        at += one.seconds
        reach.append(at)
    low, high = min(0.0, *reach), nice(max(reach))
    row = size.row

    def x(seconds: float) -> float:
        return size.names + (seconds - low) / (high - low) * (
            size.width - size.names - size.figures
        )

    in_ = unit(result)
    drawn = [_whole_bar("p95 before", before, 0.0, x, size, in_=in_)]
    at = before
    for number, one in enumerate(shown, 1):
        drawn.append(_step(one, at, number * row, x, size, in_=in_))
        at += one.seconds
    name = f"p95 {latest(result)}"
    aria = ", ".join(f"{one.name} {signed(one.seconds, in_)} {in_}" for one in shown)
    drawn.append(_whole_bar(name, after, (len(shown) + 1) * row, x, size, in_=in_))
    return (
        f'<svg class="{size.name}" viewBox="0 0 {size.width} {(len(shown) + 2) * row}" role="img" '
        f'aria-label="{escape(aria)}">{"".join(drawn)}</svg>'
    )


def _whole_bar(
    name: str, seconds: float, y: float, x: Callable[[float], float], size: Size, *, in_: str
) -> str:
    return (
        f'<text class="ink" x="{size.names - 10}" y="{y + 17:.0f}" text-anchor="end">{name}</text>'
        f'<rect x="{x(0):.1f}" y="{y + 4:.0f}" width="{x(seconds) - x(0):.1f}" height="18" '
        f'rx="2" fill="{NEUTRAL}"/><text class="ink" x="{x(seconds) + 6:.1f}" '
        f'y="{y + 17:.0f}">{figure(seconds, in_)} {_short_unit(in_)}</text>'
    )


def _step(
    one: Contribution, at: float, y: float, x: Callable[[float], float], size: Size, *, in_: str
) -> str:
    left, right = sorted((x(at), x(at + one.seconds)))
    colour = STAGE_COLOURS.get(one.name, "#4C8BB0")
    strength = "0.35" if one.noise else "1"
    text = f"{signed(one.seconds, in_)} {_short_unit(in_)}"
    interval, below = between(one.ci, in_), ""
    if interval and size.name == "wide":
        text += f"  ({interval})"
    elif interval:
        below = f'<text x="{size.names}" y="{y + 33:.0f}">({interval})</text>'
    return (
        f'<text class="ink" x="{size.names - 10}" y="{y + 17:.0f}" text-anchor="end">'
        f"{escape(PART_NAMES.get(one.name, one.name))}</text>"
        f'<rect x="{left:.1f}" y="{y + 4:.0f}" width="{max(1.5, right - left):.1f}" height="18" '
        f'rx="2" fill="{colour}" opacity="{strength}"/>'
        f'<text x="{right + 6:.1f}" y="{y + 17:.0f}">{text}</text>{below}'
    )


def _short_unit(in_: str) -> str:
    """Return a unit without "per …", which the title says."""
    return in_.partition(" ")[0]


def stages_of_a_request(result: Result) -> str:
    """Draw the stages of a request at the p95, before and in the incident."""
    if result.anatomy is None or not of_latency(result):
        return ""
    both = (("before", result.anatomy.before), (latest(result), result.anatomy.after))
    scale = max(sum(parts.values()) for _, parts in both) or 1.0
    bars, in_ = [], unit(result)
    for name, parts in both:
        pieces = "".join(
            f'<span style="width:{100 * seconds / scale:.2f}%;'
            f'background:{STAGE_COLOURS.get(stage, NEUTRAL)}" '
            f'title="{stage} {figure(seconds, in_)} {in_}">'
            f"{stage + ' ' + figure(seconds, in_) if seconds / scale > _ROOM else ''}</span>"
            for stage, seconds in parts.items()
            if seconds > 0
        )
        bars.append(f'<div class="soft">{name}</div><div class="split">{pieces}</div>')
    return (
        f"<section><h2>What a request at the p95 is made of <small>{in_}; adds up to the "
        f"p95</small></h2>{''.join(bars)}{_legend(result.anatomy, in_)}</section>"
    )


def _legend(anatomy: Anatomy, in_: str) -> str:
    """Return each stage's figures in words, so that no colour is needed to read them."""
    items = "".join(
        f'<span><i class="chip" style="background:{STAGE_COLOURS.get(stage, NEUTRAL)}"></i>'
        f"{escape(stage)} {figure(before, in_)} → {figure(after, in_)}</span>"
        for stage, before, after in (
            (stage, anatomy.before.get(stage, 0.0), anatomy.after.get(stage, 0.0))
            for stage in dict.fromkeys((*anatomy.before, *anatomy.after))
        )
        if before or after
    )
    return f'<div class="legend">{items}</div>'
