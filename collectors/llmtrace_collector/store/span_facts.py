"""Extract from one span what it reports of a request.

A materialised view does so for every span that any process stores: a row of llmtrace's SDK, an
engine's own span, a record of our plugin in vLLM, a gateway's span, a page's beacon, or a plain
GenAI span of OpenTelemetry. Each becomes one line of `request_parts`, with the columns of a request;
the join combines those that belong together. Nothing here may fail: an impossible value counts as
unknown, or one bad span would cost its whole batch.

The query takes longer to plan than to run, and a view is planned for each block that reaches it.
So a small view first picks the spans that report of a request, by way of a table that keeps nothing:
a batch without any does not cost a plan of the large view.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from llmtrace.core.browser_timing import ON_WIRE, name_of
from llmtrace.core.engine_figures import LLM_D_SPAN
from llmtrace.engines import spans
from llmtrace.engines.spans import E2E as ENGINE_E2E
from llmtrace.semconv.attributes import E2E, GATEWAY
from llmtrace_collector.store import third_party_conventions as conventions
from llmtrace_collector.store.row_columns import FIELDS, all_ns, all_sources, attribute, ns
from llmtrace_collector.store.sql_builder import Column, columns, from_file, quoted, step

# `slice`: a span of one stage of a request on its engine.
KINDS: Final = ("row", "genai", "engine", "plugin", "gateway", "page", "slice")
KIND: Final = "Enum8({})".format(
    ", ".join(f"'{name}' = {number}" for number, name in enumerate(KINDS, 1))
)
_SELF: Final = next(line.name for line in GATEWAY if line.field == "own")
_CALLS: Final = next(line.name for line in GATEWAY if line.field == "calls")
# The self time of llm-d's sidecar, in milliseconds.
_SIDECAR: Final = next(one.path for one in LLM_D_SPAN.figures if one.stage == "gateway")
_PAGE: Final = name_of("e2e_ns", ON_WIRE)
_LATENCIES: Final = (spans.QUEUE, spans.PREFILL, spans.DECODE)
_FIGURES: Final = {
    spans.QUEUE: "engine_queue",
    spans.PREFILL: "engine_prefill",
    spans.DECODE: "engine_decode",
    spans.TTFT: "engine_ttft",
    ENGINE_E2E: "engine_e2e",
    spans.INFERENCE: "engine_inference",
}
# An engine's figures are accepted up to a day, as in `stages.reported`.
_DAY_NS: Final = 86_400_000_000_000
# A part of a plain GenAI request is not longer than the request, with the tolerance of triage.
_WITHIN: Final = "BETWEEN 0 AND 1.1 * took_ns + 50000000"


def _has(name: str) -> str:
    return f"mapContains(SpanAttributes, '{name}')"


_TELLING: Final = (
    E2E, spans.ENGINE_SOURCE, *_LATENCIES, _CALLS, _SELF, _SIDECAR, _PAGE, *conventions.MARKS,
)  # fmt: skip
_SLICE: Final = (
    f"ScopeName = '{spans.SGLANG_SCOPE}' AND SpanName IN ({', '.join(map(repr, spans.SLICES))})"
)

_KIND_OF: Final = f"""\
multiIf(
        {_has(E2E)}, 'row',
        SpanAttributes['{spans.ENGINE_SOURCE}'] = '{spans.PLUGIN}', 'plugin',
        {" OR ".join(map(_has, _LATENCIES))}, 'engine',
        {_SLICE}, 'slice',
        {_has(_CALLS)} OR {_has(_SELF)} OR {_has(_SIDECAR)}, 'gateway',
        {_has(_PAGE)}, 'page',
        {conventions.IS_REQUEST}, 'genai',
        '')"""

_ENGINE: Final = "tells IN ('engine', 'plugin', 'slice')"


def _figures() -> Iterator[Column]:
    """The durations that an engine reports, as far as they are plausible.

    A prefill without a queue includes the queue, and does not count: see `read_engine_span`.
    """
    queue = ns(spans.QUEUE)
    for name, column in _FIGURES.items():
        read = f"if({ns(name)} >= 0 AND {ns(name)} < {_DAY_NS}, {ns(name)}, NULL)"
        if name == spans.PREFILL:
            knows = f"ifNull({queue} >= 0 AND {queue} < {_DAY_NS}, false)"
            read = f"if(tells = 'engine' AND NOT {knows}, NULL, {read})"
        stage = {spans.QUEUE: "queue", spans.PREFILL: "prefill"}.get(name)
        if stage is not None:
            named = ", ".join(repr(one) for one, of in spans.SLICES.items() if of == stage)
            took = f"Duration < {_DAY_NS} AND SpanName IN ({named})"
            read = f"if(tells = 'slice', if({took}, toInt64(Duration), NULL), {read})"
        yield column, read


def _reads() -> dict[str, str]:
    """The expression of each field, by its name, for every kind of part."""
    reads = {field.name: field.read for field in FIELDS}
    answered = from_file("answered_id", id=attribute(spans.ENGINE_ID))
    sent = from_file("sent_id", id=attribute(spans.ENGINE_ID))
    reads["response_id"] = f"if({_ENGINE}, {answered}, {reads['response_id']})"
    reads["request_id"] = f"if({_ENGINE}, {sent}, {reads['request_id']})"
    source = "CAST(if(tells = 'plugin', 'engine_plugin', 'engine_span'), 'String')"
    for name, latency in (
        ("reported_queue", "engine_queue"),
        ("reported_prefill", "engine_prefill"),
        ("reported_decode", "engine_decode"),
        ("first_chunk_frontend", "engine_frontend"),
    ):
        own_source = reads[f"{name}_source"]
        reads[f"{name}_ns"] = f"if({_ENGINE}, {latency}, {reads[f'{name}_ns']})"
        reads[f"{name}_source"] = (
            f"if({_ENGINE}, if({latency} IS NULL, '', {source}), toString({own_source}))"
        )
    own = f"ifNull({ns(_SELF)}, intDiv({ns(_SIDECAR)}, 1000))"
    reads["reported_gateway_ns"] = f"if(tells = 'gateway', {own}, {reads['reported_gateway_ns']})"
    sidecar = f"{reads['gateway']} = '' AND {attribute(_SIDECAR)} != ''"
    reads["gateway"] = f"if({sidecar}, '{LLM_D_SPAN.name}', {reads['gateway']})"
    for field in (
        "prompt_tokens", "output_tokens", "cached_tokens", "cache_write_tokens",
        "reasoning_tokens", "max_tokens", "preemptions",
    ):  # fmt: skip
        reads[field] = f"if({reads[field]} BETWEEN 0 AND {1 << 53}, {reads[field]}, NULL)"
    reads["request_id"] = (
        f"if(tells = 'genai' AND {attribute('llmtrace.request_id')} = '', '', {reads['request_id']})"
    )
    reads["e2e_ns"] = (
        f"if(tells = 'genai', least(took_ns, 1000000000000000000), {reads['e2e_ns']})"
    )
    reads["outcome"] = f"if(tells = 'genai' AND {conventions.FAILED}, 'error', {reads['outcome']})"
    first = reads["ttft_ns"]
    reads["ttft_ns"] = f"if(tells != 'genai' OR {first} {_WITHIN}, {first}, NULL)"
    reads["stream"] = f"if(tells = 'genai' AND {first} {_WITHIN}, true, {reads['stream']})"
    reads["unwatched"] = f"if(tells = 'genai', true, {reads['unwatched']})"
    return reads


def reporting_select(traces: str) -> str:
    """Return the query that picks the spans that may report of a request."""
    telling = ", ".join(f"'{name}'" for name in _TELLING)
    return from_file(
        "reporting_spans", traces=traces, read=conventions.READ, telling=telling, slice=_SLICE
    )


def parts_select(reporting: str) -> str:
    """Return the query that extracts the parts of requests from the spans that report of one."""
    reads = _reads()
    # Each figure is read only once: an insert takes longer to plan than to run.
    read = from_file(
        "span_kinds",
        reporting=reporting,
        read=conventions.READ,
        tells=_KIND_OF,
        attributes=conventions.attributes(),
        took=from_file("genai_duration_ns"),
    )
    read = step(read, ("ns", all_ns()), ("source_of", all_sources()))
    read = step(read, *_figures())
    read = step(
        read,
        ("beside", from_file("engine_beside")),
        ("engine_frontend", "if(beside < 0, 0, beside)"),
    )
    return from_file(
        "parts_of_spans",
        spans=read,
        kind=quoted(KIND),
        columns=columns((field.name, reads[field.name]) for field in FIELDS),
        engine_id=attribute(spans.ENGINE_ID),
        day_ns=str(_DAY_NS),
    )


def parts_columns() -> str:
    """Return the columns of `request_parts`."""
    fields = ",\n    ".join(f"{field.name} {field.type}" for field in FIELDS)
    return from_file("request_parts_columns", kind=KIND, fields=fields)
