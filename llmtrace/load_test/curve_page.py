"""Draw curves as one HTML page: a figure for each stage, and a table of what is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from llmtrace.display.html_page import document
from llmtrace.display.summary_tables import ms
from llmtrace.load_test.curve_text import RATES, rate_cells, sentences, value_text
from llmtrace.load_test.load_curve import Curve
from llmtrace.run_comparison.effects import QUANTILES
from llmtrace.run_comparison.wording import LABELS, QUANTILE_NAMES

Line = tuple[str, Sequence[float | None]]

# Blue and orange of Okabe and Ito: they differ in every kind of colour vision.
_STYLE: Final = files(__package__).joinpath("curve_page.css").read_text(encoding="utf-8")
_WIDTH: Final = 320
_HEIGHT: Final = 150
_LEFT: Final = 46
_TOP: Final = 12
_BASE: Final = 128
_RIGHT: Final = 308
_LOGARITHMIC: Final = 8  # times the lowest setting, from which on settings are spread by ratio
_STEPS: Final = (1, 2, 2.5, 5, 10)


def page(curve: Curve, title: str, verdict: str = "") -> str:
    """Return curves as one HTML page, with a title and a verdict in plain text."""
    samples = [point.samples() for point in curve.points]
    rates: list[Line] = [
        ("requests/s", [point.totals.requests_per_s for point in curve.points]),
        ("goodput/s", [point.totals.goodput for point in curve.points]),
    ]
    tokens: list[Line] = [("", [point.totals.tokens_per_s for point in curve.points])]
    figures = [
        _figure(curve, "requests/s and goodput/s", rates, _number),
        _figure(curve, "output tokens/s", tokens, _number),
    ]
    for name in curve.names():
        lines = [
            (QUANTILE_NAMES[q], [side[name].quantile(q) if name in side else None
                                 for side in samples])
            for q in QUANTILES[:2]
        ]  # fmt: skip
        figures.append(_figure(curve, f"{LABELS.get(name, name)}, ms", lines, ms))
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences(curve))
    body = (
        f'<h1>{escape(title)}</h1><p class="verdict">{escape(verdict)}</p>'
        f'<section><h2>Over {escape(curve.what)}</h2><p class="soft">{_key(0)} p50, or '
        f"requests/s; {_key(1)} p95, or goodput/s.</p>"
        f'<div class="grid">{"".join(figures)}</div></section>'
        f"<section><h2>Figures</h2>{_table(curve)}{said}</section>"
    )
    return document(title, body, _STYLE)


def _key(which: int) -> str:
    return f'<svg class="key" viewBox="0 0 30 8"><path class="l{which}" d="M0 4H30"/></svg>'


def _table(curve: Curve) -> str:
    names = curve.names()
    shown = [(name, q) for name in names for q in QUANTILES[:2]]
    heads = [curve.what, *RATES]
    heads += [f"{LABELS.get(name, name)} {QUANTILE_NAMES[q]}, ms" for name, q in shown]
    lines = []
    for point in curve.points:
        samples = point.samples()
        cells = [value_text(point.value), *rate_cells(point)]
        cells += [ms(samples[name].quantile(q)) if name in samples else "-" for name, q in shown]
        lines.append("".join(f'<td class="n">{cell}</td>' for cell in cells))
    head = "".join(f'<th class="n">{escape(text)}</th>' for text in heads)
    rows = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll" tabindex="0"><table><tr>{head}</tr>{rows}</table></div>'


def _figure(
    curve: Curve, caption: str, lines: Sequence[Line], write: Callable[[float], str]
) -> str:
    values = [point.value for point in curve.points]
    known = [y for _, ys in lines for y in ys if y is not None]
    if not known or not max(known):
        return ""
    top = _round_up(max(known))
    place = _places(values)
    drawn = []
    for which, (_, ys) in enumerate(lines):
        dots = [
            (x, _BASE - (_BASE - _TOP) * y / top)
            for x, y in zip(place, ys, strict=True)
            if y is not None
        ]
        path = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(dots))
        drawn.append(f'<path class="l{which}" d="{path}"/>')
        drawn += [f'<circle class="l{which}" cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in dots]
    axes = "".join(
        f'<line x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>'
        f'<text x="{_LEFT - 5}" y="{y + 4}" text-anchor="end">{write(share * top)}</text>'
        for share, y in ((0.0, _BASE), (0.5, (_BASE + _TOP) // 2), (1.0, _TOP))
    )
    name = escape(caption)
    return (
        f"<figure><figcaption>{name}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}, over '
        f'{escape(curve.what)}">{axes}{_ticks(values, place)}{"".join(drawn)}</svg></figure>'
    )


def _ticks(values: Sequence[float], place: Sequence[float]) -> str:
    """Write the settings below the axis, as many as there is room for."""
    texts, last = [], -math.inf
    for value, x in zip(values, place, strict=True):
        text = value_text(value)
        half = 3.2 * len(text)
        if x - half > last + 4:
            texts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{text}</text>')
            last = x + half
    return "".join(texts)


def _places(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    if high <= low:
        return [(_LEFT + _RIGHT) / 2] * len(values)
    if low > 0 and high / low >= _LOGARITHMIC:
        shares = [math.log(value / low) / math.log(high / low) for value in values]
    else:
        shares = [(value - low) / (high - low) for value in values]
    return [_LEFT + 8 + share * (_RIGHT - _LEFT - 16) for share in shares]


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 2.5, 5 and 10, times a power of ten.

    Example:
        >>> _round_up(0.031), _round_up(2.5), _round_up(700.0)
        (0.05, 2.5, 1000.0)
    """
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.4g}" if value else "0"
