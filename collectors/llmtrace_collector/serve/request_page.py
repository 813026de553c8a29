"""Draw the page of one request: its stages, what is usual, and what its engine did."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from llmtrace.core.gap_slots import read_slots
from llmtrace.core.row import Row
from llmtrace.core.stages import DRAWN_ORDER
from llmtrace.dataset.explain_request import (
    ENGINE_SIGNALS,
    MIN_PEERS,
    Explanation,
    signal_value,
    verdict,
)
from llmtrace.exporters.span_layout import attempts, error_of, span_name
from llmtrace_collector.config.link_templates import LinkTemplate
from llmtrace_collector.serve.gap_chart import gap_chart
from llmtrace_collector.serve.links_out import links_for
from llmtrace_collector.serve.page_frame import (
    UNKNOWN,
    bar,
    moment,
    ms,
    navigation,
    swatch,
    table,
    text,
)
from llmtrace_collector.serve.request_facts import Inside, RequestFacts

_NS: Final = 1_000_000_000
_MAX_INSIDE: Final = 200
_MAX_ENGINES: Final = 8
_PART_CLASSES: Final = {"tool": "fine", "turn": "s-unattributed"}  # a request: `mark`
_LABELS: Final = (
    "service", "route", "tenant", "region", "provider", "server", "replica", "gateway", "client",
    "version", "finish_reason", "http_status", "error_type", "cache_hit", "kv_connector",
    "response_model",
)  # fmt: skip
_COUNTS: Final = (
    "prompt_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "max_tokens",
    "preemptions", "spec_drafted", "spec_accepted", "attempts",
)  # fmt: skip


def request_html(facts: RequestFacts, templates: Sequence[LinkTemplate]) -> str:
    """Return the HTML body of the page of one request."""
    row = facts.row
    sections = (
        ("Where the time went", _waterfall(facts)),
        ("What ran inside it", _inside(facts)),
        ("Beside what is usual", _usual(facts.explanation)),
        ("Chunks", _chunks(row)),
        ("The engine in those seconds", _engines(facts.explanation)),
        ("Labels and counts", _labels(row)),
        ("Settings", _settings(facts)),
        ("Response headers", _pairs(row.response_headers) or _none("No header is stored.")),
    )
    shown = "".join(
        f"<section><h2>{title}</h2>{content}</section>" for title, content in sections if content
    )
    return f"{navigation('../')}<main>{_heading(facts)}{_links(facts, templates)}{shown}</main>"


def _none(words: str) -> str:
    return f'<p class="none">{words}</p>'


def _heading(facts: RequestFacts) -> str:
    row = facts.row
    bad = "" if row.outcome == "success" else ' class="bad"'
    error = f" {text(row.error_type)}" if row.error_type else ""
    ttft = "" if row.is_turn else f" · ttft {ms(row.ttft_s)}"
    ids = "".join(
        f"<dt>{name}</dt><dd>{f'<code>{text(value)}</code>' if value else UNKNOWN}</dd>"
        for name, value in (
            ("request id", row.request_id), ("response id", row.response_id),
            ("trace id", row.trace_id), ("span id", row.span_id),
        )
    )  # fmt: skip
    is_simulated = row.attributes.get("simulated") in {True, "true"}
    simulated = " · SIMULATED engine" if is_simulated else ""
    return (
        f"<h1>{text(span_name(row))}</h1><p><span{bad}>{text(row.outcome)}{error}</span> · "
        f"e2e {ms(row.e2e_s)}{ttft} · began {moment(row.start)}{simulated}</p>"
        f'<p class="verdict">{text(verdict(facts.explanation))}</p><dl>{ids}</dl>'
    )


def _links(facts: RequestFacts, templates: Sequence[LinkTemplate]) -> str:
    row = facts.row
    found = []
    if facts.turn is not None:
        found.append(f'<a href="{row.trace_id}?span={quote(facts.turn)}">The turn it lies in</a>')
    if facts.others:
        rows = "row" if facts.others == 1 else "rows"
        found.append(
            f'<a href="../requests?kind=all&amp;id={row.trace_id}">{facts.others} more {rows}</a>'
        )
    found += [
        f'<a rel="noreferrer" href="{text(url)}">{text(name)}</a>'
        for name, url in links_for(row, templates)
    ]
    found.append(f'<a href="../api/v1/traces/{row.trace_id}">JSON</a>')
    return f'<p class="pages">{" ".join(found)}</p>'


def _waterfall(facts: RequestFacts) -> str:
    row, lines = facts.row, []
    total, at = row.e2e_ns or 1, 0
    for name in DRAWN_ORDER:
        ns = getattr(row.stages, name)
        if ns is None:
            lines.append(_bar_line(f"{swatch(name)}{name}", "", UNKNOWN, "", ""))
        elif ns or name != "unattributed":
            drawn = bar([(f"s-{name}", at, ns)] if ns else [], total, f"{name} {ns / 1e6:,.1f} ms")
            source = row.stages.sources.get(name, "")  # type: ignore[call-overload]
            cut = " (cut to fit)" if name in row.stages.inconsistent else ""
            lines.append(
                _bar_line(f"{swatch(name)}{name}", drawn, ms(ns / _NS), f"{ns / total:.1%}",
                          f"{text(source)}{cut}")
            )  # fmt: skip
            at += ns
    for number, one in attempts(row):
        error = error_of(one)
        said = text(error) if error else str(one.status or "")
        if one.backoff_ns:
            said += f", then a wait of {ms(one.backoff_ns / _NS)}"
        drawn = bar([("failed" if error else "mark", one.start_ns, one.duration_ns)], total,
                    f"attempt {number}")  # fmt: skip
        lines.append(_bar_line(f"attempt {number}", drawn, ms(one.duration_ns / _NS), "", said))
    note = "decode and render take turns in truth; they are drawn one after the other."
    heads = ("stage", f"{ms(row.e2e_s)} wide", ">took", ">share", "source")
    return f'{table(heads, "".join(lines))}<p class="soft">{note}</p>'


def _bar_line(name: str, drawn: str, took: str, share: str, source: str) -> str:
    return (
        f'<tr><td>{name}</td><td class="wide">{drawn}</td><td class="n">{took}</td>'
        f'<td class="n">{share}</td><td>{source}</td></tr>'
    )


def _inside(facts: RequestFacts) -> str:
    if not facts.row.is_turn:
        return ""
    if not facts.inside:
        return _none("Nothing of it is stored.")
    lines = "".join(_inside_line(facts.row, part) for part in facts.inside[:_MAX_INSIDE])
    more = len(facts.inside) - _MAX_INSIDE
    return (
        table(("name", "when", ">took", "what"), lines)
        + (f"<p>and {more} more</p>" if more > 0 else "")
        + _tools(facts.row)
    )


def _inside_line(turn: Row, part: Inside) -> str:
    indent = "· " * (part.depth - 1)
    name = f"{indent}{text(part.name)}"
    if part.kind != "tool":
        name = f'<a href="{turn.trace_id}?span={quote(part.span_id)}">{name}</a>'
    failed = part.outcome != "success"
    kind = "failed" if failed else _PART_CLASSES.get(part.kind, "mark")
    drawn = (
        '<span class="none">another service: its clock is another</span>'
        if part.start_ns is None
        else bar([(kind, max(0, part.start_ns), part.duration_ns)], turn.e2e_ns or 1,
                 f"{part.kind} {part.name}, {part.duration_ns / 1e6:,.1f} ms")
    )  # fmt: skip
    what = f'<span class="bad">{part.kind}, {text(part.outcome)}</span>' if failed else part.kind
    return (
        f'<tr><td class="name">{name}</td><td class="wide">{drawn}</td>'
        f'<td class="n">{ms(part.duration_ns / _NS)}</td><td>{what}</td></tr>'
    )


def _tools(row: Row) -> str:
    if not row.tool_calls:
        return ""
    return (
        f"<p>{row.tool_calls} tool calls: {ms(row.tool_wall_s)} while any ran, "
        f"{ms(row.tool_serial_s)} added up, {ms(row.tool_critical_path_s)} on the critical path, "
        f"{ms(row.tool_serial_loss_s)} lost by taking turns.</p>"
    )


def _usual(explanation: Explanation) -> str:
    if not explanation.peers:
        return _none("No request of the hour before did the same work: what is usual is unknown.")
    unusual = explanation.unusual
    lines = "".join(
        f"<tr{' class=sum' if one is unusual else ''}><td>{one.name}</td>"
        f'<td class="n" data-of="took">{ms(one.took_s)}</td>'
        f'<td class="n" data-of="median">{ms(one.median_s)}</td>'
        f'<td class="n" data-of="p95">{ms(one.p95_s)}</td>'
        f'<td class="n" data-of="longer than">{100 * one.rank:.0f} %</td>'
        f'<td class="n" data-of="of">{one.peers:,}</td></tr>'
        for one in explanation.compared
    )
    few = (
        f" These are too few to say what is usual: {MIN_PEERS} are needed."
        if explanation.peers < MIN_PEERS
        else ""
    )
    return (
        f"<p>{explanation.peers:,} requests of the hour before with {text(explanation.alike)}."
        f"{few}</p>" + table(("stage", ">took", ">median", ">p95", ">longer than", ">of"), lines)
    )


def _chunks(row: Row) -> str:
    if row.is_turn or not row.stream:
        return ""
    first, last = row.ttft_ns, row.last_content_ns
    mean = None
    if first is not None and last is not None and last >= first and row.chunks > 1:
        mean = (last - first) / (row.chunks - 1) / _NS
    pairs = {
        "chunks with content": f"{row.chunks:,}" if row.chunks else UNKNOWN,
        "of them with the one before": UNKNOWN if row.burst_chunks is None
        else f"{row.burst_chunks:,}",
        "mean gap": ms(mean),
        "longest gap": ms(row.max_gap_s),
    }  # fmt: skip
    slots = read_slots(row.gaps)
    over_time = "" if slots is None else gap_chart(slots)
    return _list(pairs) + (over_time or _none("Gaps over time: not reported."))


def _engines(explanation: Explanation) -> str:
    if not explanation.engines:
        return _none("No samples of those seconds.")
    by_engine: dict[str, dict[str, str]] = {}
    for one in explanation.engines:
        usual = "" if one.usual is None else f" (usually {signal_value(one.signal, one.usual)})"
        shown = f"{signal_value(one.signal, one.highest)}{usual}"
        by_engine.setdefault(one.instance, {})[one.signal] = shown
    heads = ("engine", *(words for words, _ in ENGINE_SIGNALS.values()))
    lines = "".join(
        f'<tr><td class="name">{text(instance)}</td>'
        + "".join(
            f'<td data-of="{words}">{text(found[signal]) if signal in found else UNKNOWN}</td>'
            for signal, (words, _) in ENGINE_SIGNALS.items()
        )
        + "</tr>"
        for instance, found in list(by_engine.items())[:_MAX_ENGINES]
    )
    more = len(by_engine) - _MAX_ENGINES
    return (
        "<p>The highest sample from 15 s before it to 15 s after it, and the median of the hour "
        f"before.</p>{table(heads, lines)}"
        + (f"<p>and {more} engines more</p>" if more > 0 else "")
    )


def _labels(row: Row) -> str:
    found = {name.replace("_", " "): getattr(row, name) for name in (*_LABELS, *_COUNTS)}
    known = {name: text(value) for name, value in found.items() if value is not None}
    known |= {text(name): text(_said(value)) for name, value in row.attributes.items()}
    unknown = ", ".join(name for name, value in found.items() if value is None)
    return _list(known) + (_none(f"Not reported: {unknown}") if unknown else "")


def _settings(facts: RequestFacts) -> str:
    requested = _pairs(facts.settings) or _none("The request's own settings are not reported.")
    engines = "".join(
        f"<h3>Engine {text(instance)}</h3>{_pairs(known)}"
        for instance, known in facts.engine.items()
    )
    return requested + (engines or _none("The engine's settings are not reported."))


def _pairs(found: Mapping[str, Any]) -> str:
    return _list({text(name): text(_said(value)) for name, value in found.items()})


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _list(pairs: Mapping[str, str]) -> str:
    """Write names and values, HTML already, as a list; nothing if there are none."""
    return f"<dl>{''.join(_items(pairs))}</dl>" if pairs else ""


def _items(pairs: Mapping[str, str]) -> Iterator[str]:
    for name, value in pairs.items():
        yield f"<dt>{name}</dt><dd>{value}</dd>"
