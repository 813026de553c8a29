"""Generate docs/reference/semconv.md from the table of attributes, so that it cannot be stale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Final

from llmtrace.core.row_fields import MARKS, NETWORK, PLAIN, RAW, REPORTED, UNSPLIT
from llmtrace.core.stages import SOURCES
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
* Durations are doubles in seconds. Times the nanoseconds they came from, they are exact:
  `round(value * 1e9)` gives the integer back.
* The span's status is ERROR for the outcomes `error`, `timeout` and `truncated`. A cancelled
  request did what its client wanted.
* Attributes an application adds keep their own names, unless they are names of this table.
"""

_ORDERED: Final = ", ".join(f"`{name}`" for name in wire.ORDER) + "."
_CHILDREN: Final = f"""\
## Stages as child spans

Each stage that is known and took any time is a child span, named after it, with `{wire.STAGE}`
(the stage) and `{wire.STAGE_SOURCE}` (its source). They lie end to end, from the start of the
row's span to its end, in this order:

{_ORDERED}

Their lengths add up to the request's. Two of their positions are a drawing: `decode` and `render`
take turns in truth, chunk by chunk, and are drawn one after the other. A child's span id is
derived from its parent's, so that a row sent twice is still one row.
"""
_AGENTS: Final = files(__package__).joinpath("agent_spans.md").read_text(encoding="utf-8")
_CONTENT: Final = """\
## Content

On the spans of requests and tool calls, if `llmtrace.init(record_content=True)` is set, and
nowhere else. Messages have the shape of OpenTelemetry's GenAI conventions. See
[privacy](../instrument/privacy.md).
"""
_RESPONSE_HEADER_TEXT: Final = """\
Headers of the last response as they came, for people who read the row: limits, ids, times of their
own. Which are kept: [gateways](../instrument/gateways.md#kept-response-headers)."""
_ATTEMPTS: Final = f"""\
## HTTP attempts as child spans

Where there was more than one, or where one failed, each attempt is a child span of kind CLIENT,
`attempt 1` and on. It has `{wire.ATTEMPT}` (its number), and where they are known
`http.response.status_code`, `error.type`, `http.request.resend_count`, and in seconds
`llmtrace.retry_after` (the wait that its response asked for) and `llmtrace.backoff` (how long
it did). Attempts are no stages: they lie beside those, over the same time.
"""
_GATEWAY: Final = files(__package__).joinpath("gateway_span.md").read_text(encoding="utf-8")
_STAGES_TEXT: Final = f"""\
The partition of `llmtrace.e2e`, as `llmtrace.core.stages.split` makes it of the figures below. In
`<name>.source` is the source: {", ".join(f"`{source}`" for source in SOURCES)}."""

_BROWSER_TEXT: Final = """\
What a page measured, as reported: on the page's own span `llmtrace.browser`, and on the row it was
joined to, whose stages then are the page's. See [the browser](../instrument/browser.md)."""


_SECTIONS: Final = (
    ("The request", "", (*PLAIN, *wire.SPECIAL)),
    ("Stages", _STAGES_TEXT, (*wire.STAGE_TIMES, *wire.DERIVED)),
    (
        "What was reported",
        "As reported, before anything was cut to fit; its source in `<name>.source`.",
        REPORTED,
    ),
    ("Parts of what is unattributed", "", UNSPLIT),
    ("Sub-phases of the network stage", "", NETWORK),
    ("Marks", "", MARKS),
    ("The consumer's own time, and retries", "Left out when 0.", RAW),
    ("In the browser", _BROWSER_TEXT, wire.BROWSER),
    (
        "Response headers",
        _RESPONSE_HEADER_TEXT,
        (
            Attribute(
                "response_headers",
                f"{wire.RESPONSE_HEADER}<header>",
                "string",
                "the header's value",
            ),
        ),
    ),
    (
        "Explicit marks",
        "Time marked with `llmtrace.stage`, before and after the first content.",
        (
            Attribute("marked_before", "llmtrace.marked.before.<stage>", "seconds", "before"),
            Attribute("marked_after", "llmtrace.marked.after.<stage>", "seconds", "after"),
        ),
    ),
)


def page() -> str:
    """Write docs/reference/semconv.md."""
    parts = [_HEAD]
    for title, text, lines in _SECTIONS:
        parts.append(f"## {title}\n")
        if text:
            parts.append(f"{text}\n")
        parts.append("\n".join(_rows(lines)) + "\n")
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


def _rows(lines: Iterable[Attribute]) -> Iterator[str]:
    yield "| attribute | kind | row field | what it is |"
    yield "|---|---|---|---|"
    for line in lines:
        kind = "double, s" if line.kind == "seconds" else line.kind
        yield f"| `{line.name}` | {kind} | `{line.field}` | {line.meaning} |"


_WHICH: Final = """\
Sent by OTLP beside the spans. The latest names are used when `OTEL_SEMCONV_STABILITY_OPT_IN`
contains `gen_ai_latest_experimental`."""


def _metrics() -> str:
    lines = [
        "## OpenTelemetry GenAI client metrics",
        "",
        _WHICH,
        "",
        "| what | released name | latest name |",
        "|---|---|---|",
        *(f"| {what} | {released} | {latest} |" for what, released, latest in _named()),
    ]
    return "\n".join(lines) + "\n"


def _named() -> Iterator[tuple[str, str, str]]:
    for what, field in (
        ("duration", "duration"),
        ("start to first content", "time_to_first_chunk"),
        ("wait for a later chunk", "time_per_output_chunk"),
    ):
        yield what, f"`{getattr(wire.RELEASED, field)}`", f"`{getattr(wire.LATEST, field)}`"
    for what, name in (
        ("a turn of an agent", wire.AGENT_DURATION),
        ("a tool call", wire.TOOL_DURATION),
    ):
        yield f"duration of {what}", f"`{name}`", f"`{name}`"
    yield "tokens a request", _tokens(wire.RELEASED), _tokens(wire.LATEST)
    totals = wire.LATEST.tokens_total or {}
    yield "tokens in total", "", ", ".join(f"`{name}`" for name in totals.values())


def _tokens(names: wire.ClientMetrics) -> str:
    if names.token_usage:
        return f"`{names.token_usage}` by `gen_ai.token.type`"
    return ", ".join(f"`{name}`" for name in (names.tokens or {}).values())
