"""Print what engines' own counts show, and what they cannot show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple

from rich.console import Group, RenderableType
from rich.text import Text

from llmtrace.display.summary_tables import date_and_zone, time_span
from llmtrace.triage.evidence.format_figures import seconds
from llmtrace.triage.report.runbooks import summary_of
from llmtrace.triage.report.terminal import table_of
from llmtrace.triage.result import Finding
from llmtrace.triage.without_rows.find import EngineTriage, Mean, named
from llmtrace.triage.without_rows.halts import Halt

_TITLES = {
    "queue": "queue", "prefill": "prefill", "decode": "decode", "rest": "front end and the rest",
    "e2e": "end-to-end time", "ttft": "time to first token", "tpot": "time per output token",
}  # fmt: skip
_VERDICTS = {
    "stopped": ("stopped", "red"),
    "moved": ("slower", "red"),
    "no_change": ("nothing moved", "green"),
    "not_enough_data": ("cannot tell", "yellow"),
}
# What to look at next if no cause is known, by the part that grew most.
_LOOK = {
    "queue": "compare what runs and waits with the engines' --max-num-seqs and KV cache",
    "prefill": "compare prompt lengths and the prefix cache's hits of both windows",
    "decode": "compare running requests, output lengths and the GPUs' clocks of both windows",
    "rest": "look at the API servers' CPU, and at proxies and clients that read slowly",
}
_MOST = 3
_MAX_ENGINES = 8
_MAX_HALTS = 8


def engines_screen(result: EngineTriage, *, explain: bool = False) -> RenderableType:
    """Return the report for `rich`; `explain` adds every line of evidence and all percentiles."""
    words, style = _VERDICTS[result.verdict]
    head = Text("", "bold").append(words, style)
    head.append(f": {_TITLES[result.metric]}, by the engines' own counts{_when(result)}")
    if result.verdict == "stopped":
        head = Text("", "bold").append("stopped", style).append(": engines end no requests")
    parts: list[RenderableType] = [head, *_halts(result.halts), Text(result.reason)]
    parts += [*_windows(result), ""]
    parts += [_means(result.means), ""]
    if len(result.engines) > 1:
        parts += [_engines(result, every=explain), ""]
    if any(one.before or one.after for one in result.percentiles):
        parts += [_percentiles(result, every=explain), ""]
    if causes := [*_causes(result, explain=explain)]:
        parts += [*causes, ""]
    return Group(*parts, *_not_known(result, explain=explain))


def _when(result: EngineTriage) -> str:
    if result.verdict != "moved" or not result.searched:
        return ""
    since = date_and_zone(result.after.start)
    if result.recovered_at is None:
        return f"; ongoing, since {since}"
    return f"; over: {time_span(result.after.start, result.recovered_at)}"


def _engines(result: EngineTriage, *, every: bool) -> RenderableType:
    """Return a table of the engines, those whose requests added most first."""
    mean = f"mean {_TITLES[result.metric]}"
    table = table_of("engine", ">requests before", ">after", f">{mean} before", ">after")
    shown = result.engines if every else result.engines[:_MAX_ENGINES]
    for one in shown:
        table.add_row(
            one.instance,
            *(f"{n:,.0f}" for n in one.requests),
            *("-" if value is None else seconds(value) for value in one.mean),
        )
    if more := len(result.engines) - len(shown):
        table.add_row(Text(f"and {more} more: --explain", "dim"))
    return table


def _halts(halts: tuple[Halt, ...]) -> Iterator[Text]:
    for one in halts[:_MAX_HALTS]:
        since = date_and_zone(one.since)
        when = f"since {since}" if one.until is None else f"{since} to {date_and_zone(one.until)}"
        if not one.scraped:
            why = "it is down, was taken away, or Prometheus does not scrape it"
            yield Text(f"{one.instance}: not scraped {when}: {why}", "bold")
            continue
        had = [f"{count:,.0f} {words}" for count, words in
               ((one.running, "running"), (one.waiting, "waiting")) if count]  # fmt: skip
        text = f"{one.instance}: no request ended {when}, with up to {' and '.join(had)}"
        yield Text(text, "bold")
        if one.until is None:
            yield Text("   →  does it still compute? llmtrace triage runbook engine_paused")
    if len(halts) > _MAX_HALTS:
        yield Text(f"and {len(halts) - _MAX_HALTS} more", "bold")


def _windows(result: EngineTriage) -> Iterator[Text]:
    both = (("before", result.before), ("after", result.after))
    for (name, window), requests in zip(both, result.requests, strict=True):
        yield Text(
            f"{name}: {time_span(window.start, window.end)}, {window.seconds:.0f} s, "
            f"{requests:,.0f} requests ended",
            "dim",
        )


def _means(means: tuple[Mean, ...]) -> RenderableType:
    table = table_of("mean of all requests (exact)", ">before", ">after", ">change", "")
    for one in means:
        change = None
        if one.before is not None and one.after is not None:
            change = round(one.after - one.before, 9)  # what is left of equal floats is 0
        remark = "sum of the four above" if one.name == "e2e" else ""
        table.add_row(
            _TITLES[one.name],
            *("-" if value is None else seconds(value) for value in (one.before, one.after)),
            "-" if change is None else f"{'+' if change >= 0 else '-'}{seconds(abs(change))}",
            Text(remark, "dim"),
        )
    return table


def _percentiles(result: EngineTriage, *, every: bool) -> RenderableType:
    table = table_of("percentile (between two bounds of its bucket)", ">before", ">after")
    for one in result.percentiles:
        if every or one.name == result.metric:
            table.add_row(
                f"{_TITLES[one.name]}, p{100 * one.quantile:g}",
                *(_between(side) for side in (one.before, one.after)),
            )
    return table


def _between(side: tuple[float, float] | None) -> str:
    if side is None:
        return "-"
    low, high = side
    if math.isinf(high):
        return f"over {seconds(low)}"
    return f"{seconds(low)} to {seconds(high)}"


def _causes(result: EngineTriage, *, explain: bool) -> Iterator[RenderableType]:
    if result.verdict not in {"moved", "stopped"}:
        return
    found = result.causes if explain else named(result)[:_MOST]
    if not found:
        yield Text("No cause that engines' metrics show is supported.", "bold")
        grown = {name: after - before for name, before, after in map(astuple, result.means)
                 if name in _LOOK and before is not None and after is not None}  # fmt: skip
        if grown:
            yield Text(f"   →  {_LOOK[max(grown, key=grown.__getitem__)]}", "bold")
        return
    yield Text(
        "causes (p50 and p95 in these lines are of means between scrapes, not of requests)", "dim"
    )
    for one in found:
        yield from _cause(one)


def _cause(finding: Finding) -> Iterator[RenderableType]:
    yield Text(f"{finding.id}  {finding.status.replace('_', ' ')}", "bold")
    yield Text(f"  {summary_of(finding.id)}", "italic")
    for point in (*finding.evidence, *finding.against):
        yield Text(f"  {f'{point.points:+d}' if point.points else '·':>3}  {point.text}")
    for what in finding.missing:
        yield Text(f"    ?  not known: {what}", "dim")
    if finding.action and finding.status not in ("ruled_out", "unknown"):
        yield Text(f"    →  {finding.action}", "bold")
        yield Text(f"       runbook: llmtrace triage runbook {finding.id}", "dim")


def _not_known(result: EngineTriage, *, explain: bool) -> Iterator[Text]:
    needs = sorted(result.needs_rows)
    causes = f"the causes {', '.join(needs)}" if explain else f"{len(needs)} of the causes"
    yield Text(
        "Not known without rows of requests (llmtrace.init, or llmtrace collect): time outside of "
        "the engines, who is affected, whether the same work takes longer, exact percentiles, how "
        f"requests ended for their clients; and {causes}.",
        "dim",
    )
    for warning in result.warnings:
        yield Text(f"note: {warning}", "dim")
