"""Draw a metric over time as SVG, with the incident in view.

Each chart is drawn twice, for a wide and for a narrow page, and the page's style shows one of
them: a chart that is scaled down cannot be read on a phone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Final

from llmtrace.dataset.case import Window
from llmtrace.display.colours import NEUTRAL, OVER
from llmtrace.display.summary_tables import time_span, zone
from llmtrace.triage.report.naming import figure, latest, unit_of
from llmtrace.triage.report.timeline import Timeline
from llmtrace.triage.result import Result

STYLE: Final = files(__package__).joinpath("charts.css").read_text(encoding="utf-8")
_COLOURS: Final = (OVER, NEUTRAL)
_LATE: Final = 0.7
_MAX_MARK: Final = 24
_EDGE: Final = 40.0  # pixels from an edge within which a label is aligned to its tick
_MINUTE_S: Final = 60.0
_DAY_S: Final = 86_400.0
_CLOCK_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600,
                   43_200)  # fmt: skip
_STEPS: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


@dataclass(frozen=True, slots=True)
class Size:
    """A chart's width, margins and row height in pixels, and the number of time labels."""

    name: str
    width: float
    left: float
    names: float
    figures: float
    ticks: int
    row: float


SIZES: Final = (
    Size("wide", 960.0, 64.0, 130.0, 220.0, 5, 26.0),
    Size("narrow", 340.0, 52.0, 92.0, 62.0, 4, 40.0),
)


def over_time(result: Result, seen: Timeline) -> str:
    """Draw lines by bin, the windows as shaded areas, the onset and events as vertical lines."""
    start, end = seen.span
    finite = [v for line in seen.lines.values() for t, v in zip(seen.t, line, strict=True)
              if math.isfinite(v) and start <= t <= end]  # fmt: skip
    if not finite or end <= start:
        return ""
    pictures = "".join(_over_time(result, seen, (start, end), max(finite), one) for one in SIZES)
    legend = " &nbsp; ".join(
        f'<i class="chip" style="background:{colour}"></i>{name}'
        for name, colour in zip(seen.lines, _COLOURS, strict=False)
    )
    return (
        f"<section><h2>Over time: {seen.title} <small>{legend}</small></h2>"
        f'<p class="soft">{time_span(start, end)}</p>{pictures}</section>'
    )


def _over_time(
    result: Result, seen: Timeline, span: tuple[float, float], highest: float, size: Size
) -> str:
    height, top, bottom = 220.0, 16.0, 26.0
    start, end = span
    most = nice(highest)

    def x(t: float) -> float:
        return size.left + (min(max(t, start), end) - start) / (end - start) * (
            size.width - size.left
        )

    def y(seconds: float) -> float:
        return top + (1 - seconds / most) * (height - top - bottom)

    drawn = []
    for name, side in (("before", result.before), (latest(result), result.after)):
        if side.window is not None:
            drawn.append(_shade(name, side.window, x, top, height - bottom))
    for share in (0.0, 0.5, 1.0):
        at = y(share * most)
        drawn.append(
            f'<line class="line" x1="{size.left}" x2="{size.width}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{size.left - 6}" y="{at + 4:.1f}" text-anchor="end">'
            f"{_label(share * most, most, seen.unit)}</text>"
        )
    inside = [i for i, t in enumerate(seen.t) if start <= t <= end]
    for (name, line), colour in reversed([*zip(seen.lines.items(), _COLOURS, strict=False)]):
        steps = _steps([(x(float(seen.t[i])), y(float(line[i]))) for i in inside])
        drawn.append(
            f'<path d="{steps}" fill="none" stroke="{colour}" stroke-width="1.8" '
            f'stroke-linejoin="round"><title>{name}</title></path>'
        )
    drawn += _marks(result, span, x, size, (top, height - bottom))
    for label, t in _ticks(start, end, size.ticks):
        at = x(t)
        edge = "end" if at > size.width - _EDGE else "middle"
        anchor = "start" if at < size.left + _EDGE else edge
        drawn.append(f'<text x="{at:.1f}" y="{height - 6}" text-anchor="{anchor}">{label}</text>')
    return (
        f'<svg class="{size.name}" viewBox="0 0 {size.width} {height}" role="img" '
        f'aria-label="{seen.title} over time">{"".join(drawn)}</svg>'
    )


def _label(value: float, most: float, unit: str) -> str:
    """Format a value of an axis that ends at `most`."""
    if unit != "s":
        return f"{value:g} {unit}"
    in_ = unit_of(None, most)
    return f"{value:g} s" if in_ == "s" else f"{figure(value, in_)} {in_}"


def _marks(
    result: Result,
    span: tuple[float, float],
    x: Callable[[float], float],
    size: Size,
    between_y: tuple[float, float],
) -> list[str]:
    """Draw the onset, the recovery and events as vertical lines with their names."""
    marks = [] if result.onset is None else [(result.onset.best, "began", OVER)]
    if result.recovered_at is not None:
        marks.append((result.recovered_at, "over", NEUTRAL))
    marks += [(one.t, one.kind, NEUTRAL) for one in result.events]
    drawn = []
    for number, (t, text, colour) in enumerate(marks):
        if not span[0] <= t <= span[1]:
            continue
        began = result.onset.best if result.onset is not None else t
        late = t < began or x(t) > _LATE * size.width  # write to the left of the line
        drawn.append(
            f'<line x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{between_y[0]}" y2="{between_y[1]}" '
            f'stroke="{colour}" stroke-dasharray="4 3"/><text class="ink" '
            f'x="{x(t) + (-4 if late else 4):.1f}" text-anchor="{"end" if late else "start"}" '
            f'y="{between_y[0] + 10 + 13 * (number % 4)}">{escape(text[:_MAX_MARK])}</text>'
        )
    return drawn


def _ticks(start: float, end: float, most: int) -> list[tuple[str, float]]:
    """Return round times, evenly spaced between two times, with labels; the last has the zone."""
    steps = [*_CLOCK_S, *(_DAY_S * 2**n for n in range(12))]
    step = next((one for one in steps if (end - start) / one <= most), steps[-1])
    shift = time.localtime(start).tm_gmtoff
    first = math.ceil((start + shift) / step) * step - shift
    times = [first + step * n for n in range(int((end - first) / step) + 1)]
    form = "%H:%M" if step >= _MINUTE_S else "%H:%M:%S"
    form = f"%m-%d {form}" if end - start > _DAY_S else form
    zones = [""] * (len(times) - 1) + [f" {zone(t)}" for t in times[-1:]]
    return [(time.strftime(form, time.localtime(t)) + name, t)
            for t, name in zip(times, zones, strict=True)]  # fmt: skip


def _shade(name: str, window: Window, x: Callable[[float], float], top: float, low: float) -> str:
    left, right = x(window.start), x(window.end)
    colour = NEUTRAL if name == "before" else OVER
    text = (
        f'<text x="{(left + right) / 2:.1f}" y="{top - 4}" text-anchor="middle">{name}</text>'
        if right > left
        else ""
    )
    return (
        f'<rect x="{left:.1f}" y="{top}" width="{max(1.0, right - left):.1f}" '
        f'height="{low - top}" fill="{colour}" opacity="0.10"/>{text}'
    )


def _steps(points: Sequence[tuple[float, float]]) -> str:
    """Draw a line that is interrupted where values are unknown."""
    steps, drawing = [], False
    for x, y in points:
        known = math.isfinite(y)
        if known:
            steps.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = known
    return "".join(steps)


def nice(value: float) -> float:
    """Return a round number at or above a value, for the end of an axis.

    Example:
        >>> nice(0.83), nice(1.7), nice(0.0)
        (1.0, 2.0, 1.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value)
