"""Print a triage on a terminal, for an engineer on call.

One screen from the top: what moved, where the change is, whether the workload changed, which
requests are affected, what may have caused it and what to do now. Printed by `rich`; colours only
repeat what the words say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from llmtrace.display.colours import STAGE_COLOURS
from llmtrace.display.summary_tables import ms, plain_table
from llmtrace.triage.report import naming
from llmtrace.triage.report.links import Links
from llmtrace.triage.report.next_steps import next_steps, would_settle
from llmtrace.triage.report.runbooks import summary_of
from llmtrace.triage.report.sentences import (
    facts,
    first_cause,
    for_experts,
    has_split,
    parts_without,
    quality_text,
    record_text,
    rest_text,
    short_record,
    shown_text,
    when,
    why_not,
)
from llmtrace.triage.result import NAMED, Contribution, Finding, Point, Result, Status

_STATUS_STYLES: Final[dict[Status, str]] = {
    "confirmed": "bold red",
    "likely": "red",
    "possible": "yellow",
    "ruled_out": "dim",
    "unknown": "dim",
}
_MAX_CAUSES: Final = 3
_MAX_LINES: Final = 4
_BAR: Final = 24
_RULE: Final = 80  # characters of a horizontal line, at most


def screen(result: Result, *, explain: bool = False, links: Links | None = None) -> RenderableType:
    """Return the report for `rich` to print; without links, traces and runbooks are not linked.

    `explain` adds every point of every cause, the stages of a request, all metrics, and what would
    settle the rest.
    """
    links = links or Links()
    parts: list[RenderableType] = [_head(result), *_split(result, explain=explain)]
    parts.append(_facts(result, explain=explain))
    if result.causes and (explain or result.verdict != "no_change"):
        parts.append(_causes(result, links, explain=explain))
    if explain:
        parts += _more(result)
    parts.append(Group(Text(quality_text(result), "dim"), _bullets(result.quality.warnings)))
    parts += _traces(result, links)
    return _Spaced(parts)


def table_of(*headings: str) -> Table:
    """Return a table whose cells wrap, with dimmed headings in the format of `plain_table`."""
    table = plain_table(*headings, wrap=True)
    table.header_style = "dim"
    return table


class _Spaced:
    """Prints its parts with a blank line between them."""

    def __init__(self, parts: Sequence[RenderableType]) -> None:
        self._parts = parts

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        for number, part in enumerate(self._parts):
            if number:
                yield ""
            yield part


def _head(result: Result) -> RenderableType:
    words, style = naming.verdict_words(result)
    head = Text("", "bold").append(words, style).append(f": {naming.headline(result)}")
    lines = [Text(result.reason), *(Text(line, "bold") for line in first_cause(result))]
    about: list[RenderableType] = []
    if result.about:
        about.append(Text("; ".join(result.about), "dim"))
    if result.quality.doubts:
        about.append(_bullets(result.quality.doubts))
    return Group(*about, head, *lines, *(Text(line, "dim") for line in when(result)))


def _split(result: Result, *, explain: bool) -> Iterator[RenderableType]:
    if not (has_split(result) or (explain and result.contributions)) or result.delta_s is None:
        return
    in_ = naming.unit(result)
    known = any(None not in one.ci for one in result.contributions)
    table = table_of("where the change is", f">{in_}", ">95% CI" if known else ">", "")
    largest = max((abs(one.seconds) for one in result.contributions), default=0.0)
    for one in result.contributions:
        if one.seconds:
            table.add_row(*_contribution(one, largest, in_))
    for words, zero, names in zip(("no part in it", "not reported"), "0-", parts_without(result),
                                  strict=True):  # fmt: skip
        if names:
            table.add_row(*(Text(one, "dim") for one in (words, zero, "", ", ".join(names))))
    table.add_row(
        Text("change of the p95", "bold"),
        Text(naming.signed(result.delta_s, in_), "bold"),
        "",
        Text("the lines above add up to this", "dim"),
    )
    yield table


def _contribution(one: Contribution, largest: float, in_: str) -> tuple[RenderableType, ...]:
    style = "dim" if one.noise else ""
    width = round(_BAR * abs(one.seconds) / largest) if largest > 0 else 0
    colour = "dim" if one.noise else STAGE_COLOURS.get(one.name, "default")
    low, high = one.ci
    noise = low is not None and high is not None and low <= 0 <= high
    note = " within noise" if noise and width else ""
    bar = Text("█" * width, colour)
    bar.append(note, "dim")
    return (
        Text(naming.PART_NAMES.get(one.name, one.name), style),
        Text(naming.signed(one.seconds, in_), style),
        Text(naming.between(one.ci, in_), style),
        bar,
    )


def _facts(result: Result, *, explain: bool) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in (*facts(result), *(for_experts(result) if explain else ())):
        table.add_row(name, Text(text))  # `Text`, as names from outside may look like markup
    return table


def _causes(result: Result, links: Links, *, explain: bool) -> RenderableType:
    named = [one for one in result.causes if one.status in NAMED]
    shown = named if explain else named[:_MAX_CAUSES]
    rule = Text("causes ".ljust(_RULE, "─"), "dim", no_wrap=True, overflow="crop")
    parts: list[RenderableType] = [rule]
    if not named:
        parts.append(Text("none is supported by the evidence", "yellow"))
    parts += (Text(f"→ {text}", "bold") for text in next_steps(result))
    parts += (Text(f"? would settle it: {text}", "yellow") for text in would_settle(result))
    for number, one in enumerate(shown, 1):
        parts.append(_cause(number, one, links, explain=explain))
    if explain:
        for status, heading in (("ruled_out", "ruled out"), ("unknown", "cannot tell")):
            parts += _others(heading, [one for one in result.causes if one.status == status])
    elif rest := rest_text(result, _MAX_CAUSES):
        parts.append(Text(f"{rest} (`--explain` says which, and why)", "dim"))
    return Group(*parts)


def _cause(number: int, one: Finding, links: Links, *, explain: bool) -> RenderableType:
    head = Text(f"{number}  ")
    head.append(one.id, "bold")
    head.append(f"  {one.status}", _STATUS_STYLES[one.status])
    head.append(f"  {one.score:+d} points{short_record(one)}", "dim")
    about = Padding(Text(summary_of(one.id), "italic"), (0, 0, 0, 3))
    lines = Table.grid(padding=(0, 1, 0, 0))
    lines.add_column(no_wrap=True, justify="right")
    lines.add_column()
    shown = len(one.evidence) if explain else _MAX_LINES
    _add_points(lines, one.evidence[:shown], "·", "green")
    if hidden := one.evidence[shown:]:
        points = f"{sum(point.points for point in hidden):+d}"
        lines.add_row(Text(points, "green"), Text(f"in {len(hidden)} more (`--explain`)", "dim"))
    _add_points(lines, one.against, "-", "red")
    for text in one.missing if explain else ():
        lines.add_row(Text("?", "yellow"), Text(f"would decide it: {text}"))
    for other in one.or_else:
        lines.add_row(Text("or", "yellow"), Text(other.text))
    if one.action:
        lines.add_row(Text("→", "bold"), Text(one.action, "bold"))
    runbook = links.runbook(one.id) or f"runbook: llmtrace triage runbook {one.id}"
    lines.add_row("", Text(runbook, "dim", overflow="fold"))
    if explain:
        lines.add_row("", Text(record_text(one), "dim"))
        lines.add_row("", Text(shown_text(one), "dim"))
    return Group(head, about, Padding(lines, (0, 0, 0, 3)))


def _add_points(table: Table, points: Iterable[Point], zero: str, style: str) -> None:
    for point in points:
        score = f"{point.points:+d}" if point.points else zero
        table.add_row(Text(score, style), Text(point.text))


def _others(heading: str, others: Sequence[Finding]) -> Iterator[RenderableType]:
    if not others:
        return
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="dim")
    for one in sorted(others, key=lambda one: one.id):
        table.add_row(Text(f"   {one.id}:"), Text(why_not(one)))
    yield Group(Text(f"{heading}:", "dim"), table)


def _more(result: Result) -> Iterator[RenderableType]:
    """Yield the tables and sentences that `--explain` adds."""
    if result.anatomy is not None:
        in_ = naming.unit(result)
        ends = (f">before, {in_}", f">{naming.latest(result)}, {in_}")
        table = table_of("a request at the p95 is made of", *ends)
        names = [*result.anatomy.before]
        names += [name for name in result.anatomy.after if name not in names]
        for name in names:
            low, high = result.anatomy.before.get(name), result.anatomy.after.get(name)
            table.add_row(name, naming.figure(low, in_), naming.figure(high, in_))
        yield table
    if result.changes:
        now = f">p95 {naming.latest(result)}, ms"
        table = table_of("every metric looked at", ">p95 before, ms", now, ">slower than that p95")
        for one in result.changes:
            share = "-"
            if one.share_above is not None:
                share = f"{naming.percent(one.share_above, 1)} (5 % expected)"
            table.add_row(
                naming.METRIC_NAMES.get(one.metric, one.metric),
                ms(one.before.p95),
                ms(one.after.p95),
                Text(share, "bold" if one.significant else "dim"),
            )
        yield table


def _bullets(texts: Iterable[str]) -> Table:
    bullets = Table.grid(padding=(0, 1, 0, 0))
    for text in texts:
        bullets.add_row(Text("  !", "yellow"), Text(text, "yellow"))
    return bullets


def _traces(result: Result, links: Links) -> Iterator[RenderableType]:
    lines = []
    for name, ids in result.exemplars.items():
        if not ids:
            continue
        addresses = [address for one in ids if (address := links.trace(one)) is not None]
        lines.append(Text(f"traces nearest the p95, {name}:", "dim"))
        if addresses:
            # Do not wrap links, however narrow the terminal: a broken link does not open.
            lines += [
                Text(f"  {one}", "dim", no_wrap=True, overflow="ignore") for one in addresses
            ]
        else:
            lines[-1].append(f" {' '.join(ids)}")
    if lines:
        yield Group(*lines)
