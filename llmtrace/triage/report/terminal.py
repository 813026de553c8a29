"""Print a triage on a terminal, for an engineer on call.

One screen from the top: what moved, where the change is, whether the workload changed, which
requests are affected, what may have caused it and what to do now. `rich` prints it; every meaning
is in words, colour repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from llmtrace.display.colours import STAGE_COLOURS
from llmtrace.display.summary_tables import date_and_zone, ms, time_span
from llmtrace.triage.result import (
    NAMED,
    Bounds,
    Cohort,
    Contribution,
    Estimate,
    Finding,
    Load,
    Outcomes,
    Result,
    Side,
    Status,
)

METRIC_NAMES: Final = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "end-to-end time",
    "render": "render time",
}
PART_NAMES: Final = {"mix": "workload mix", "co_occurrence": "slow together"}
VERDICTS: Final = {
    "no_change": ("nothing moved", "green"),
    "workload": ("the workload changed", "cyan"),
    "regression": ("a regression", "red"),
    "mixed": ("a regression, and other work", "red"),
    "improvement": ("quicker than it was", "green"),
    "drift": ("slower and slower", "red"),
    "traffic": ("requests came in other numbers", "red"),
    "new_workload": ("work never seen before", "yellow"),
    "not_enough_data": ("cannot tell: too few requests", "yellow"),
}
_STATUS_STYLES: Final[dict[Status, str]] = {
    "confirmed": "bold red",
    "likely": "red",
    "possible": "yellow",
    "ruled_out": "dim",
    "unknown": "dim",
}
_MAX_CAUSES: Final = 3
_MAX_LINES: Final = 4
_MAX_COHORTS: Final = 3
_BAR: Final = 24
_NEXT_TO_NOTHING_S: Final = 0.00005  # 0.0 ms when rounded


def verdict_words(result: Result) -> tuple[str, str]:
    """Return the verdict in words, and a colour for it."""
    return VERDICTS[result.verdict]


def screen(result: Result, *, explain: bool = False) -> RenderableType:
    """Return the triage as one thing for `rich` to print.

    Args:
        result: of `triage`.
        explain: every point of every cause, the anatomy, all metrics, what would settle the rest.
    """
    parts: list[RenderableType] = [_head(result), *_split(result), _facts(result)]
    if result.causes and (explain or result.verdict != "no_change"):
        parts.append(_causes(result, explain=explain))
    if explain:
        parts += _more(result)
    parts += [_quality(result), *_traces(result)]
    return _Spaced(parts)


class _Spaced:
    """Puts a blank line between its parts."""

    def __init__(self, parts: Sequence[RenderableType]) -> None:
        self._parts = parts

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        for number, part in enumerate(self._parts):
            if number:
                yield ""
            yield part


def _head(result: Result) -> RenderableType:
    words, style = verdict_words(result)
    head = Text()
    metric = METRIC_NAMES.get(result.metric or "", "latency")
    percent = f"p{100 * result.quantile:g}"
    before, after = result.before, result.after
    if before.p95 is not None and after.p95 is not None and result.delta_s is not None:
        head.append(f"{metric}, {percent}: ", "bold")
        head.append(f"{ms(before.p95)} → {ms(after.p95)} {unit(result)}", "bold")
        head.append(f"  ({signed(result.delta_s)} {unit(result)})  ", "bold")
    else:
        head.append(f"{metric}, {percent}  ", "bold")
    head.append(words, f"bold {style}")
    return Group(head, Text(result.reason), *(Text(line, "dim") for line in when(result)))


def when(result: Result) -> list[str]:
    """Say line by line which windows are compared, and since when it is different.

    Times are this machine's, whose zone is said.
    """
    texts = [_side("now", result.after), _side("before", result.before)]
    if result.onset is not None:
        onset = result.onset
        ended = "" if onset.end is None else f", until {date_and_zone(onset.end)}"
        texts.append(f"began {date_and_zone(onset.best)}{ended}")
    return texts


def _side(name: str, side: Side) -> str:
    window = side.window
    span = "no rows" if window is None else time_span(window.start, window.end)
    low, high = side.p95_ci
    interval = "" if low is None or high is None else f", p95 in {ms(low)} to {ms(high)} ms"
    return f"{name} {span}: {side.n:,} requests{interval}"


# --- where the change is -------------------------------------------------------------------------


def _split(result: Result) -> Iterator[RenderableType]:
    if not has_split(result) or result.delta_s is None:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("where the change is")
    table.add_column(unit(result), justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("")
    largest = max((abs(one.seconds) for one in result.contributions), default=0.0)
    still = [one.name for one in result.contributions if not one.seconds]
    for one in result.contributions:
        if one.seconds:
            table.add_row(*_contribution(one, largest))
    if still:
        table.add_row(
            Text("all others", "dim"), Text("0", "dim"), "", Text(", ".join(still), "dim")
        )
    table.add_row(
        Text("change of the p95", "bold"),
        Text(signed(result.delta_s), "bold"),
        "",
        Text("the lines above add up to this", "dim"),
    )
    yield table


def unit(result: Result) -> str:
    """Return the unit that the parts of a change are shown in."""
    return "ms per token" if result.metric == "tpot" else "ms"


def has_split(result: Result) -> bool:
    """Return whether there is a split to show: of too few requests it would be a guess."""
    return bool(result.contributions) and result.verdict != "not_enough_data"


def _contribution(one: Contribution, largest: float) -> tuple[RenderableType, ...]:
    style = "" if one.significant else "dim"
    width = round(_BAR * abs(one.seconds) / largest) if largest > 0 else 0
    colour = STAGE_COLOURS.get(one.name, "default") if one.significant else "dim"
    low, high = one.ci
    noise = low is not None and high is not None and low <= 0 <= high
    note = " within noise" if noise and width else ""
    bar = Text("█" * width, colour)
    bar.append(note, "dim")
    return (
        Text(PART_NAMES.get(one.name, one.name), style),
        Text(signed(one.seconds), style),
        Text(between(one.ci), style),
        bar,
    )


def signed(seconds: float) -> str:
    """Write a change in milliseconds, with its sign if it is large enough for one to matter.

    Example:
        >>> signed(0.2), signed(-0.0015), signed(-0.00004), signed(0.0)
        ('+200', '-1.5', '≈0', '0')
    """
    if seconds == 0:
        return "0"
    if abs(seconds) < _NEXT_TO_NOTHING_S:
        return "≈0"
    return ("+" if seconds > 0 else "-") + ms(abs(seconds))


def between(bounds: Bounds) -> str:
    """Write an interval in milliseconds; nothing if there is none."""
    low, high = bounds
    return "" if low is None or high is None else f"{signed(low)} … {signed(high)}"


# --- workload, cohort, outcomes ------------------------------------------------------------------


def _facts(result: Result) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in facts(result):
        table.add_row(name, Text(text))  # names in it come from outside: no markup
    return table


def facts(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the facts that are no stages, line by line: a heading and a sentence."""
    before, after = result.load.get("before"), result.load.get("after")
    if before is not None and after is not None:
        yield "workload", load_text(before, after)
    if has_split(result):
        yield "affected", affected(result)
    if result.outcomes is not None:
        yield "endings", endings(result.outcomes)
    others = [name for name in result.moved if name != result.metric]
    if others:
        yield "also moved", ", ".join(METRIC_NAMES.get(name, name) for name in others)
    for when_, estimate in _estimates(result):
        yield (
            "estimated",
            (
                f"{when_}: prefill {ms(estimate.prefill_p50_s)} ms at the median, by a fit of "
                f"{estimate.n:,} requests (R² {estimate.fit:.2f}); part of no sum"
            ),
        )


def _estimates(result: Result) -> Iterator[tuple[str, Estimate]]:
    if result.estimates is not None:
        for when_, estimate in (
            ("before", result.estimates.before),
            ("now", result.estimates.after),
        ):
            if estimate is not None:
                yield when_, estimate


def load_text(before: Load, after: Load) -> str:
    """Return a sentence on the load, before and now."""
    pairs = (
        ("requests/s", before.requests_per_s, after.requests_per_s, ".2f"),
        ("prompt tokens p95", before.prompt_tokens_p95, after.prompt_tokens_p95, ",.0f"),
        ("output tokens p95", before.output_tokens_p95, after.output_tokens_p95, ",.0f"),
    )
    pieces = [
        f"{name} {format(low, form)} → {format(high, form)}"
        for name, low, high, form in pairs
        if low is not None and high is not None
    ]
    return " · ".join(pieces) or "not reported"


def affected(result: Result) -> str:
    """Return a sentence that names the affected cohorts."""
    if not result.localised or not result.cohorts:
        return "all models, routes, regions, replicas and tenants"
    return "; ".join(cohort_text(one) for one in result.cohorts[:_MAX_COHORTS])


def cohort_text(cohort: Cohort) -> str:
    """Say which share of what is slow one cohort has, and what the p95 is without it."""
    names = ", ".join(f"{name}={value}" for name, value in cohort.attributes.items())
    without = "" if cohort.p95_without is None else f"; p95 without: {ms(cohort.p95_without)} ms"
    return (
        f"{names}: {cohort.excess_share:.0%} of what is slow beyond expectation, "
        f"{cohort.traffic_share:.0%} of traffic{without}"
    )


def endings(outcomes: Outcomes) -> str:
    """Say how requests ended, before and now."""
    shares = [
        _share("failed", outcomes.failed_before, outcomes.failed_after),
        _share("cancelled", outcomes.cancelled_before, outcomes.cancelled_after),
    ]
    risen = [
        name
        for name, rose in (("failures", outcomes.significant), ("cancellations", outcomes.gave_up))
        if rose
    ]
    text = " · ".join(shares)
    return f"{text}  ({' and '.join(risen)} rose beyond chance)" if risen else text


def _share(name: str, before: float | None, after: float | None) -> str:
    if before is None or after is None:
        return f"{name}: not reported"
    return f"{name} {before:.1%} → {after:.1%}"


# --- causes --------------------------------------------------------------------------------------


def _causes(result: Result, *, explain: bool) -> RenderableType:
    named = [one for one in result.causes if one.status in NAMED]
    shown = named if explain else named[:_MAX_CAUSES]
    parts: list[RenderableType] = [Rule("causes", style="dim", align="left")]
    if not named:
        parts.append(Text("none is supported by the evidence", "yellow"))
    for number, one in enumerate(shown, 1):
        parts.append(_cause(number, one, explain=explain))
    for status, heading in (("ruled_out", "ruled out"), ("unknown", "cannot tell")):
        others = [one for one in result.causes if one.status == status]
        if others:
            parts.append(_others(heading, others, explain=explain))
    return Group(*parts)


def _cause(number: int, one: Finding, *, explain: bool) -> RenderableType:
    head = Text(f"{number}  ")
    head.append(one.id, "bold")
    head.append(f"  {one.status}", _STATUS_STYLES[one.status])
    head.append(f"  {one.score:+d} points", "dim")
    lines = Table.grid(padding=(0, 1, 0, 0))
    lines.add_column(no_wrap=True, justify="right")
    lines.add_column()
    evidence = one.evidence if explain else one.evidence[:_MAX_LINES]
    for sign, points in (("for", evidence), ("against", one.against)):
        for point in points:
            score = f"{point.points:+d}" if point.points else ("·" if sign == "for" else "-")
            lines.add_row(Text(score, "green" if sign == "for" else "red"), Text(point.text))
    for text in one.missing if explain else ():
        lines.add_row(Text("?", "yellow"), Text(f"would decide it: {text}"))
    if one.action:
        lines.add_row(Text("→", "bold"), Text(one.action, "bold"))
    if one.runbook:
        lines.add_row("", Text(one.runbook, "dim"))
    return Group(head, Padding(lines, (0, 0, 0, 3)))


def _others(heading: str, others: Sequence[Finding], *, explain: bool) -> RenderableType:
    if not explain:
        return Text(f"{heading}: {', '.join(one.id for one in others)}", "dim")
    lines = [Text(f"{heading}:", "dim")]
    for one in others:
        why = [point.text for point in one.against] or list(one.missing)
        lines.append(Text(f"   {one.id}: {'; '.join(why) or 'no evidence for it'}", "dim"))
    return Group(*lines)


# --- the rest ------------------------------------------------------------------------------------


def _more(result: Result) -> Iterator[RenderableType]:
    """Yield the tables and sentences that `--explain` adds."""
    if result.anatomy is not None:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("a request at the p95 is made of")
        table.add_column("before, ms", justify="right")
        table.add_column("now, ms", justify="right")
        names = [*result.anatomy.before]
        names += [name for name in result.anatomy.after if name not in names]
        for name in names:
            low, high = result.anatomy.before.get(name), result.anatomy.after.get(name)
            table.add_row(name, ms(low), ms(high))
        yield table
    if result.changes:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading in ("every metric looked at", "p95 before", "p95 now", "slower than before"):
            table.add_column(heading, justify="left" if not table.columns else "right")
        for one in result.changes:
            share = "-" if one.share_above is None else f"{one.share_above:.1%} (5 % expected)"
            table.add_row(
                METRIC_NAMES.get(one.metric, one.metric),
                ms(one.before.p95),
                ms(one.after.p95),
                Text(share, "bold" if one.significant else "dim"),
            )
        yield table
    if result.settle:
        yield Group(Text("would settle it:", "bold"), *_bullets(result.settle))


def _quality(result: Result) -> RenderableType:
    return Group(Text(quality_text(result), "dim"), *_bullets(result.quality.warnings))


def quality_text(result: Result) -> str:
    """Return a sentence on how far the data support the verdict."""
    quality = result.quality
    parts = [f"data: {quality.n[0]:,} requests before, {quality.n[1]:,} now"]
    if quality.coverage is not None:
        parts.append(f"stages known for {quality.coverage:.0%} of the time")
    if any(quality.censored):
        parts.append(f"{quality.censored[0]:,} and {quality.censored[1]:,} cut short")
    if quality.matched_on:
        parts.append(f"same work = same {', '.join(quality.matched_on)}")
    if quality.sampled < 1:
        parts.append(f"{quality.sampled:.0%} of rows looked at")
    return " · ".join(parts)


def _bullets(texts: Iterable[str]) -> Iterator[RenderableType]:
    return (Text(f"  ! {text}", "yellow") for text in texts)


def _traces(result: Result) -> Iterator[RenderableType]:
    lines = [
        Text(f"traces nearest the p95, {name}: {' '.join(ids)}", "dim")
        for name, ids in result.exemplars.items()
        if ids
    ]
    if lines:
        yield Group(*lines)
