"""Generate docs/reference/semconv.md from the table of attributes, so that it cannot be stale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Final

from llmtrace.core.browser_timing import IN_JSON, name_of
from llmtrace.core.row_fields import MARKS, NETWORK, PLAIN, RAW, REPORTED, UNSPLIT
from llmtrace.core.stages import DRAWN_ORDER, SOURCES
from llmtrace.core.wire_names import Attribute
from llmtrace.semconv import attributes as wire

_HEAD: Final = f"""\
# A row on the wire

<!-- Printed by `llmtrace semconv`; a test fails when it prints anything else. -->

A row is one OpenTelemetry span of kind CLIENT, named `{{operation}} {{model}}`, in the
instrumentation scope `{wire.SCOPE}`. Its ids and its start are the span's own, its `service` is
the resource's `service.name` (a span attribute of that name wins). Names are those of
OpenTelemetry's GenAI semantic conventions where one exists, `llmtrace.*` for the rest.

* What is not known is left out; it is never written as 0.
* Durations are doubles in seconds and exact to the nanosecond: `round(value * 1e9)` returns the
  integer that was measured.
* The span's status is ERROR for the outcomes `error`, `timeout` and `truncated`. A cancelled
  request is not an error: its client ended it.
* Attributes that an application adds keep their names, unless this table has the name.
* `row key` is the name in a row's JSON
  ([the keys of a row](../on-call/triage.md#the-keys-of-a-row)).
"""

_ORDERED: Final = ", ".join(f"`{name}`" for name in DRAWN_ORDER) + "."
_CHILDREN: Final = f"""\
## Stages as child spans

Each stage that is known and took any time is a child span, named after it, with `{wire.STAGE}`
(the stage) and `{wire.STAGE_SOURCE}` (its source). They follow one another without gaps, from the
start of the row's span to its end, in this order:

{_ORDERED}

Their durations add up to the request's. Two of their positions are not the real ones: `decode` and
`render` alternate chunk by chunk, and are drawn one after the other. A child's span id is
derived from its parent's, so that a row sent twice is still one row.
"""
_AGENTS: Final = files(__package__).joinpath("agent_spans.md").read_text(encoding="utf-8")
_CONTENT: Final = """\
## Content

On the spans of requests and tool calls, and only with `llmtrace.init(record_content=True)`.
Messages have the shape of OpenTelemetry's GenAI conventions. See
[privacy](../instrument/privacy.md).
"""
_RESPONSE_HEADER_TEXT: Final = """\
Headers of the last response, unchanged, for people who read the row: rate limits, ids, timings of
the server. Which ones are kept: [gateways](../instrument/gateways.md#kept-response-headers)."""
_ATTEMPTS: Final = f"""\
## HTTP attempts as child spans

If there were several attempts, or one failed, each is a child span of kind CLIENT, named
`attempt 1`, `attempt 2` and so on. It has `{wire.ATTEMPT}` (its number) and, where known,
`http.response.status_code`, `error.type`, `http.request.resend_count` and, in seconds,
`llmtrace.retry_after` (the wait that the response asked for) and `llmtrace.backoff` (the wait
that followed). Attempts are not stages: they cover the same time as the stages do.
"""
_GATEWAY: Final = files(__package__).joinpath("gateway_span.md").read_text(encoding="utf-8")
_STAGES_TEXT: Final = f"""\
What `llmtrace.e2e` is divided into; `llmtrace.core.stages.split` computes it from the figures
below. `<name>.source` is the source of each: {", ".join(f"`{source}`" for source in SOURCES)}."""

_BROWSER_TEXT: Final = """\
What a web page measured, as reported: on the page's own span `llmtrace.browser`, and on the row
that it was joined to, whose stages are then those that the page saw. See
[browser](../instrument/browser.md)."""


_SECTIONS: Final = (
    ("The request", "", (*PLAIN, *wire.SPECIAL)),
    ("Stages", _STAGES_TEXT, (*wire.STAGE_TIMES, *wire.DERIVED)),
    ("What was reported",
     "As reported, before anything was cut to fit; `<name>.source` is the source.", REPORTED),
    ("Parts of what is unattributed", "", UNSPLIT),
    ("Sub-phases of the network stage", "", NETWORK),
    ("Marks", "", MARKS),
    ("Consumer time and retries", "Left out when 0.", RAW),
    ("In the browser", _BROWSER_TEXT, wire.BROWSER),
    ("Response headers", _RESPONSE_HEADER_TEXT, (Attribute(
        "response_headers", f"{wire.RESPONSE_HEADER}<header>", "string", "the header's value"),)),
    ("Explicit marks", "Time marked with `llmtrace.stage`, before and after the first content.", (
        Attribute("marked_before_<stage>_s", "llmtrace.marked.before.<stage>", "seconds",
                  "time marked before the first content"),
        Attribute("marked_after_<stage>_s", "llmtrace.marked.after.<stage>", "seconds",
                  "time marked after it"))),
)  # fmt: skip


def page() -> str:
    """Write docs/reference/semconv.md."""
    parts = [_HEAD]
    for title, text, lines in _SECTIONS:
        parts.append(f"## {title}\n")
        if text:
            parts.append(f"{text}\n")
        parts.append("\n".join(_rows(lines, keys=True)) + "\n")
    parts += [
        _CHILDREN,
        _ATTEMPTS,
        _AGENTS,
        *_rows(wire.TOOL),
        "",
        _CONTENT,
        *_rows(wire.CONTENT),
        "",
    ]
    parts += [_GATEWAY, *_rows(wire.GATEWAY), "", _metrics()]
    return "\n".join(parts)


def _rows(lines: Iterable[Attribute], *, keys: bool = False) -> Iterator[str]:
    """Yield the lines of a table; `keys`: with that of a row's JSON, for what a row has."""
    yield f"| attribute | kind | {'row key | ' * keys}meaning |"
    yield f"|---|---|{'---|' * keys}---|"
    for line in lines:
        kind = "double, s" if line.kind == "seconds" else line.kind
        key = f"`{_row_key(line)}` | " if keys else ""
        yield f"| `{line.name}` | {kind} | {key}{line.meaning} |"


def _row_key(line: Attribute) -> str:
    if line.field.startswith("browser."):
        return name_of(line.field.removeprefix("browser."), IN_JSON)
    key = line.key or line.field
    return key if line.kind != "seconds" or key.endswith(("_s", ">")) else f"{key}_s"


_WHICH: Final = """\
Sent by OTLP beside the spans. The latest names are used when `OTEL_SEMCONV_STABILITY_OPT_IN`
contains `gen_ai_latest_experimental`."""


def _metrics() -> str:
    lines = [
        "## OpenTelemetry GenAI client metrics",
        "",
        _WHICH,
        "",
        "| metric | released name | latest name |",
        "|---|---|---|",
        *(f"| {what} | {released} | {latest} |" for what, released, latest in _named()),
    ]
    return "\n".join(lines) + "\n"


def _named() -> Iterator[tuple[str, str, str]]:
    for what, field in (
        ("duration of a request", "duration"),
        ("time to the first content", "time_to_first_chunk"),
        ("wait for each later chunk", "time_per_output_chunk"),
    ):
        yield what, f"`{getattr(wire.RELEASED, field)}`", f"`{getattr(wire.LATEST, field)}`"
    for what, name in (
        ("a turn of an agent", wire.AGENT_DURATION),
        ("a tool call", wire.TOOL_DURATION),
    ):
        yield f"duration of {what}", f"`{name}`", f"`{name}`"
    yield "tokens per request", _tokens(wire.RELEASED), _tokens(wire.LATEST)
    totals = wire.LATEST.tokens_total or {}
    yield "tokens in total", "", ", ".join(f"`{name}`" for name in totals.values())


def _tokens(names: wire.ClientMetrics) -> str:
    if names.token_usage:
        return f"`{names.token_usage}` by `gen_ai.token.type`"
    return ", ".join(f"`{name}`" for name in (names.tokens or {}).values())
