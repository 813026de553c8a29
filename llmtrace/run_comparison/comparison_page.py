"""Draw a comparison as one HTML page, with the distributions of each duration."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Final

import numpy as np

from llmtrace.display.html_page import document
from llmtrace.display.summary_tables import ms
from llmtrace.run_comparison import wording
from llmtrace.run_comparison.effects import QUANTILES, Effect
from llmtrace.run_comparison.runs import Comparison
from llmtrace.stats.arrays import Floats

# Blue and orange of Okabe and Ito: they differ in every kind of colour vision.
_STYLE: Final = files(__package__).joinpath("comparison_page.css").read_text(encoding="utf-8")
_WIDTH: Final = 320
_HEIGHT: Final = 120
_BASE: Final = 104
_POINTS: Final = 160
_MIN_S: Final = 1e-5


def page(comparison: Comparison) -> str:
    """Return a comparison as one HTML page."""
    names = f"{escape(comparison.before)} → {escape(comparison.after)}"
    doubts = "".join(f"<p>{escape(doubt)}</p>" for doubt in wording.doubts(comparison))
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in wording.sentences(comparison))
    drawn = "".join(_figure(effect) for effect in comparison.effects)
    body = (
        f'<h1>{names}</h1>{doubts}<p class="verdict">{escape(wording.headline(comparison))}</p>'
        f'<section class="durations"><h2>Durations, ms</h2>{_durations(comparison)}</section>'
        f'<section><h2>Distributions</h2><p class="soft">Share of requests (up) that took no '
        f'longer than so many milliseconds (right, logarithmic). <svg width="30" height="8" '
        f'style="display:inline;width:30px"><path class="before" d="M0 4H30"/></svg> before, '
        f'<svg width="30" height="8" style="display:inline;width:30px"><path class="after" '
        f'd="M0 4H30"/></svg> after.</p><div class="grid">{drawn}</div></section>'
        f"<section><h2>Totals</h2>{_pairs(wording.totals_rows(comparison))}{said}</section>"
    )
    if signals := wording.signal_rows(comparison):
        body += (
            f'<section><h2>Engines and GPUs</h2><p class="soft">{escape(wording.SIGNALS)}</p>'
            f"{_pairs(signals)}</section>"
        )
    return document(f"{comparison.before} → {comparison.after}", body, _STYLE)


def _durations(comparison: Comparison) -> str:
    names = (wording.QUANTILE_NAMES[q] for q in QUANTILES)
    heads = "".join(f'<th class="n">{name}, by [95 %]</th>' for name in names)
    lines = []
    for effect in comparison.effects:
        cells = "".join(_quantile(effect, q) for q in QUANTILES)
        lines.append(
            f"<tr><td>{escape(wording.label(effect))}</td>{cells}"
            f'<td class="wrap">{escape(wording.verdict(effect))}</td></tr>'
        )
    return (
        f'<div class="scroll" tabindex="0"><table><tr><th></th>{heads}<th>shown</th></tr>'
        f"{''.join(lines)}</table></div>"
    )


def _quantile(effect: Effect, q: float) -> str:
    sides, by = wording.quantile_cell(effect, q), wording.by_how_much(effect, q)
    moved = "" if by == "-" else f"<br><small>{by}</small>"
    return f'<td class="n" data-q="{wording.QUANTILE_NAMES[q]}">{sides}{moved}</td>'


def _pairs(rows: Sequence[tuple[str, str, str]]) -> str:
    lines = "".join(
        f'<tr><td>{escape(what)}</td><td class="n">{first}</td><td class="n">{second}</td></tr>'
        for what, first, second in rows
    )
    return (
        '<div class="scroll" tabindex="0"><table><tr><th></th><th class="n">before</th>'
        f'<th class="n">after</th></tr>{lines}</table></div>'
    )


def _figure(effect: Effect) -> str:
    both = np.concatenate([effect.before.values, effect.after.values])
    low, high = (max(float(bound), _MIN_S) for bound in (both.min(), both.max()))
    if high <= low:
        return ""
    curves = "".join(
        f'<path class="{name}" d="{_curve(sample.values, sample.weights, low, high)}"/>'
        for name, sample in (("before", effect.before), ("after", effect.after))
    )
    name = escape(wording.label(effect))
    ticks = "".join(
        f'<text x="{x}" y="{_HEIGHT - 2}" text-anchor="{anchor}">{ms(at)}</text>'
        for x, anchor, at in ((0, "start", low), (_WIDTH, "end", high))
    )
    return (
        f"<figure><figcaption>{name}: {wording.short_verdict(effect)}</figcaption>"
        f'<svg viewBox="0 -2 {_WIDTH} {_HEIGHT + 2}" role="img" '
        f'aria-label="{name}: distribution before and after">'
        f'<line x1="0" y1="{_BASE}" x2="{_WIDTH}" y2="{_BASE}"/>{curves}{ticks}</svg></figure>'
    )


def _curve(values: Floats, weights: Floats, low: float, high: float) -> str:
    """Return the cumulative distribution as a path, drawn by at most so many points."""
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(weights[order]) / weights.sum()
    chosen = np.unique(np.linspace(0, len(values) - 1, _POINTS).round().astype(np.intp))
    at = np.log(np.maximum(values[order][chosen], _MIN_S) / low) / np.log(high / low) * _WIDTH
    up = _BASE * (1 - shares[chosen])
    points = " ".join(f"L{x:.1f} {y:.1f}" for x, y in zip(at, up, strict=True))
    return f"M{at[0]:.1f} {_BASE} {points} L{_WIDTH} {up[-1]:.1f}"
