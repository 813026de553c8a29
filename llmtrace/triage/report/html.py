"""Render a triage as one HTML page, to send, print and keep.

It has the words of the terminal's report, and charts: the metric over time, the change stage by
stage, the stages of a p95 request, the affected cohorts, the evidence for each cause. It has no
script and loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt

from llmtrace.core.errors import SourceError, explain_error
from llmtrace.dataset.case import Case
from llmtrace.display.colours import NEAR, NEUTRAL, OVER, STAGE_COLOURS, WITHIN
from llmtrace.display.html_page import document
from llmtrace.triage.causes import RULES
from llmtrace.triage.report import charts, waterfall
from llmtrace.triage.report.links import Links
from llmtrace.triage.report.naming import figure, headline, percent, unit, verdict_words
from llmtrace.triage.report.next_steps import next_steps, would_settle
from llmtrace.triage.report.runbooks import page as runbook
from llmtrace.triage.report.runbooks import summary_of
from llmtrace.triage.report.sentences import (
    facts,
    first_cause,
    for_experts,
    quality_text,
    record_text,
    shown_text,
    similar_text,
    when,
    why_not,
)
from llmtrace.triage.report.timeline import timeline
from llmtrace.triage.result import NAMED, Cohort, Finding, Result, Status

# The page's colours for the terminal's colours of verdicts.
_COLOURS: Final = {
    "green": WITHIN, "cyan": STAGE_COLOURS["network"], "red": OVER, "yellow": NEAR,
}  # fmt: skip
_STATUS_COLOURS: Final[dict[Status, str]] = {
    "confirmed": OVER,
    "likely": "#FF8833",
    "possible": NEAR,
    "ruled_out": NEUTRAL,
    "unknown": NEUTRAL,
}
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable("table")
_POINTS: Final = "Points: how much a line of evidence counts for the cause (+) or against it (-)."
_STYLE: Final = files(__package__).joinpath("report.css").read_text(encoding="utf-8")


def write_page(path: Path, result: Result, case: Case, links: Links | None = None) -> None:
    """Write the page of a triage to a file; without links, traces and runbooks are not linked.

    Raises:
        SourceError: it cannot be written.
    """
    try:
        path.write_text(page(result, case, links), encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path}: {explain_error(error)}") from error


def page(result: Result, case: Case, links: Links | None = None) -> str:
    """Return the page of a result and its case; `links` as for `write_page`."""
    links = links or Links()
    seen = timeline(case, result)
    parts = [
        _head(result),
        "" if seen is None else charts.over_time(result, seen),
        _facts(result),
        waterfall.change(result),
        waterfall.stages_of_a_request(result),
        _causes(result, links),
        f"<section><h2>The data</h2>{''.join(_data_lines(result, links))}</section>",
        _runbooks(result, links),
    ]
    style = charts.STYLE + _STYLE
    title = f"Triage: {verdict_words(result)[0]}: {headline(result)}"
    return document(title, "\n".join(filter(None, parts)), style)


def _head(result: Result) -> str:
    words, colour = verdict_words(result)
    cause = "".join(
        f'<p><a href="#causes"><b>{escape(line)}</b></a></p>' for line in first_cause(result)
    )
    lines = "".join(f'<p class="soft">{escape(line)}</p>' for line in when(result))
    actions = [*next_steps(result), *(one.action for one in result.causes if one.status in NAMED)]
    cause += "".join(f'<p class="action">→ {_marked(text)}</p>' for text in actions[:1] if text)
    about = f"<p>{escape('; '.join(result.about))}</p>" if result.about else ""
    about += "".join(f"<p><b>! {escape(text)}</b></p>" for text in result.quality.doubts)
    return (
        f"<h1>Triage report</h1>{about}"
        f'<p class="verdict"><span class="pill" style="--c:{_COLOURS[colour]}">{escape(words)}'
        f"</span> {escape(headline(result))}</p>"
        f"<p>{escape(result.reason)}</p>{cause}{lines}"
    )


def _facts(result: Result) -> str:
    lines = "".join(
        f"<dt>{escape(name)}</dt><dd>{_marked(text)}</dd>" for name, text in facts(result)
    )
    return (
        "<section><h2>Who is hit, and by what work</h2>"
        f"<dl>{lines}</dl>{_cohorts(result)}</section>"
    )


def _cohorts(result: Result) -> str:
    if not result.cohorts:
        return ""
    rows = "".join(_cohort(one, unit(result)) for one in result.cohorts)
    return (
        '<div class="scroll"><table><tr><th>requests with</th><th></th>'
        '<th class="n">p95 of all others</th><th class="n">requests</th></tr>'
        f"{rows}</table></div>"
    )


def _cohort(one: Cohort, in_: str) -> str:
    names = ", ".join(f"{name} = {value}" for name, value in one.attributes.items())
    what = "fails" if one.fails else "is slow"
    others = "" if one.p95_without is None else f"{figure(one.p95_without, in_)} {in_}"
    bars = "".join(
        f'<div class="two"><i style="width:{100 * min(max(share, 0.0), 1.0):.1f}%;'
        f'background:{colour}"></i></div><div class="soft">{percent(share)} of {whose}</div>'
        for share, whose, colour in (
            (min(one.excess_share, 1.0), f"what {what} beyond expectation", OVER),
            (one.traffic_share, "traffic", NEUTRAL),
        )
    )
    return (
        f'<tr><td class="whose">{escape(names)}</td><td class="wide">{bars}</td>'
        f'<td class="n">{others}</td><td class="n">{one.n:,}</td></tr>'
    )


def _seen_before(result: Result) -> str:
    """Return links to similar past reports, which are in the same folder."""
    links = "".join(
        f'<li><a href="{escape(one.report)}">{escape(similar_text(one))}</a></li>'
        for one in result.similar
    )
    return f"<h3>Seen before</h3><ul>{links}</ul>" if links else ""


def _causes(result: Result, links: Links) -> str:
    if not result.causes:
        return ""
    named = [one for one in result.causes if one.status in NAMED]
    cards = f'<p class="soft">{_POINTS}</p>' + "".join(_cause(one, links) for one in named)
    if not named:
        cards = "<p>None is supported by the evidence.</p>"
        cards += "".join(f'<p class="action">{_marked(text)}</p>' for text in next_steps(result))
    return (
        f'<section id="causes"><h2>Causes</h2>{cards}{_seen_before(result)}'
        f"{_group('ruled_out', 'Ruled out', result.causes)}"
        f"{_group('unknown', 'Cannot tell', result.causes)}</section>"
    )


def _cause(one: Finding, links: Links) -> str:
    lines = [
        f'<tr><td class="{kind}">{f"{point.points:+d}" if point.points else "·"}</td>'
        f"<td>{escape(point.text)}</td></tr>"
        for kind, points in (("for", one.evidence), ("against", one.against))
        for point in points
    ]
    lines += [f"<tr><td>?</td><td>would tell: {_marked(text)}</td></tr>" for text in one.missing]
    lines += [f"<tr><td>or</td><td>{_marked(it.text)}</td></tr>" for it in one.or_else]
    action = f'<p class="action">{_marked(one.action)}</p>' if one.action else ""
    address = links.runbook(one.id) or f"#runbook-{one.id}"
    runbook = (
        f'<p class="soft"><a href="{escape(address)}">Runbook</a></p>' if one.id in RULES else ""
    )
    return (
        f'<div class="cause"><h3>{escape(one.id)} '
        f'<span class="pill" style="--c:{_STATUS_COLOURS[one.status]}">{one.status}</span> '
        f'<small class="soft">{one.score:+d} points</small></h3>'
        f"<p>{escape(summary_of(one.id))}</p>"
        f'<table class="points">{"".join(lines)}</table>{action}'
        f'<p class="soft">{escape(record_text(one))}; {escape(shown_text(one))}</p>{runbook}</div>'
    )


def _marked(text: str) -> str:
    """Return our own text as HTML, with code in backticks."""
    parts = escape(text).split("`")
    return "".join(f"<code>{one}</code>" if n % 2 else one for n, one in enumerate(parts))


def _group(status: Status, words: str, causes: Sequence[Finding]) -> str:
    mine = sorted((one for one in causes if one.status == status), key=lambda one: one.id)
    if not mine:
        return ""
    lines = "".join(f"<dt>{escape(one.id)}</dt><dd>{escape(why_not(one))}</dd>" for one in mine)
    names = escape(", ".join(one.id for one in mine))
    return f"<details><summary>{words}: {names}</summary><dl>{lines}</dl></details>"


def _runbooks(result: Result, links: Links) -> str:
    """Return the runbooks of the named causes, for the causes to link to."""
    if links.runbooks is not None:
        return ""
    mine = [one.id for one in result.causes if one.status in NAMED and one.id in RULES]
    texts = "".join(
        f'<details id="runbook-{escape(cause)}" open><summary>{escape(cause)}</summary>'
        f'<div class="runbook">{_rendered(runbook(cause))}</div></details>'
        for cause in mine
    )
    return f"<section><h2>Runbooks</h2>{texts}</section>" if texts else ""


def _rendered(markdown: str) -> str:
    """Return a runbook as HTML without its title, and without links, which would not work."""
    text = _LINK.sub(r"\1", markdown.split("\n\n", 2)[2])
    return str(_MARKDOWN.render(re.sub(r"^## ", "### ", text, flags=re.MULTILINE)))


def _data_lines(result: Result, links: Links) -> Iterator[str]:
    yield f"<p>{escape(quality_text(result))}</p>"
    yield from (f"<p>! {escape(text)}</p>" for text in result.quality.warnings)
    yield from (f"<p>! would settle it: {_marked(text)}</p>" for text in would_settle(result))
    lines = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in for_experts(result)
    )
    yield f"<dl>{lines}</dl>" if lines else ""
    for name, ids in result.exemplars.items():
        if ids:
            listed = " ".join(_trace(one, links) for one in ids)
            yield f'<p class="soft">traces nearest the p95, {escape(name)}: {listed}</p>'


def _trace(trace: str, links: Links) -> str:
    shown = f"<code>{escape(trace)}</code>"
    address = links.trace(trace)
    return shown if address is None else f'<a href="{escape(address)}">{shown}</a>'
