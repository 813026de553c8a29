"""Are the parts of one request one row, whatever tells of it and in whatever order it comes?

The pure functions of `llmtrace` say what each row must come to.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1 import trace_pb2

from llmtrace.browser.asgi import page_span
from llmtrace.browser.beacon import Beacon
from llmtrace.browser.join_beacon import with_beacon
from llmtrace.core.random_ids import random_id
from llmtrace.core.row import with_figures
from llmtrace.core.span import Span
from llmtrace.core.stages import STAGES, EngineFigures, Reported, Timeline
from llmtrace.engines.join import join as joined
from llmtrace.engines.join import together
from llmtrace.engines.spans import SLICES, read_engine_span, read_plugin_span
from llmtrace.testing import make_row
from llmtrace_collector.store import join_inputs_sql, read
from tests.collector.store.sent import STORABLE_REQUESTS, delimited, drawn, fetch, join, send
from tests.collector.store.test_rows import COLUMNS, as_stored, expected
from tests.strategies import browsers

MS = 1_000_000


def row(**given):
    """Make a row of a moment ago, with ids of its own."""
    known = {
        "trace_id": random_id(16),
        "span_id": random_id(8),
        "parent_span_id": None,
        "start": time.time_ns(),
        "service": "shop",
        "request_id": f"lt-{random_id(8)}",
    }
    known |= {"response_id": f"chatcmpl-{known['request_id']}"}
    return make_row(**{**known, **given})


def latencies(queue=0.040, prefill=0.090, decode=0.780, ttft=0.160, e2e=0.950):
    """Make what engines write of a request, in seconds."""
    reported = {
        "gen_ai.latency.time_in_queue": queue,
        "gen_ai.latency.time_in_model_prefill": prefill,
        "gen_ai.latency.time_in_model_decode": decode,
        "gen_ai.latency.time_in_model_inference": None
        if prefill is None
        else prefill + (decode or 0),
        "gen_ai.latency.time_to_first_token": ttft,
        "gen_ai.latency.e2e": e2e,
    }
    return {name: value for name, value in reported.items() if value is not None}


def span(name, attributes, *, trace_id=None, parent=None, service="vllm", kind="server", **more):
    """Make a span of another instrumentation."""
    return Span(
        name=name,
        kind=kind,
        trace_id=trace_id or random_id(16),
        span_id=random_id(8),
        parent_span_id=parent,
        service=service,
        start=time.time_ns(),
        duration_ns=more.pop("duration_ns", 950 * MS),
        attributes=attributes,
        **more,
    )


def ids_of(*spans):
    """Return the condition of these rows, and its parameter."""
    return {"where": "span_id IN {ids:Array(String)}", "ids": [one.span_id for one in spans]}


def engine_span(of, engine_id=None, *, parent="", **reported):
    """Make the span that vLLM, SGLang or TensorRT-LLM writes of a row's request."""
    attributes = latencies(**reported)
    if engine_id is not None:
        attributes["gen_ai.request.id"] = engine_id
    return span("llm_request", attributes, trace_id=of.trace_id, parent=parent or of.span_id)


def plugin_span(engine_id, *, tokens=(64, 32, 7), preemptions=1, replica="pod-7", **reported):
    """Make the span that our plugin in vLLM writes."""
    return span(
        "llmtrace.engine_request",
        {
            **latencies(**reported),
            "llmtrace.engine.source": "engine_plugin",
            "gen_ai.request.id": engine_id,
            "gen_ai.usage.input_tokens": tokens[0],
            "gen_ai.usage.cache_read.input_tokens": tokens[1],
            "gen_ai.usage.output_tokens": tokens[2],
            "llmtrace.preemptions": preemptions,
            "llmtrace.replica": replica,
        },
    )


def gateway_span(of, own, *, parent=None, service="edge", **more):
    """Make the span of a gateway."""
    return span(
        "POST /v1/chat/completions",
        {"llmtrace.gateway.self": own, "llmtrace.gateway.calls": 1, "llmtrace.gateway": service},
        trace_id=of.trace_id,
        parent=of.span_id if parent is None else parent,
        service=service,
        **more,
    )


def differences(store, rows):
    """Say where the stored rows are not what they must be."""
    stored = fetch(
        store, COLUMNS, "trace_id IN {ids:Array(String)}", ids=[one.trace_id for one in rows]
    )
    wrong = {}
    for one in rows:
        known, reported = expected(one), as_stored(stored[one.span_id])
        bad = {
            name: (value, reported[name])
            for name, value in known.items()
            if reported[name] != value
        }
        if bad:
            wrong[one.span_id] = bad
    return wrong


def reported_by(store, one):
    """Say what a stored row was made of."""
    return fetch(store, ["reported_by"], "span_id = {id:String}", id=one.span_id)[one.span_id][
        "reported_by"
    ]


def in_batches(store, items, order, batches):
    """Send items in an order, in so many batches, joining after each."""
    items = list(items)
    random.Random(order).shuffle(items)
    size = max(1, -(-len(items) // batches))
    for at in range(0, len(items), size):
        send(store, items[at : at + size])
        join(store)


@pytest.mark.parametrize("order", range(2))
def test_engine_and_plugin_figures_arrive_in_any_order(store, order):
    """By response id, by request id, by trace; one batch each; some twice; some never."""
    named, sent, traced, alone, both = (row(provider="vllm", replica=None) for _ in range(5))
    sent = replace(
        sent, response_id="gw-1" + sent.request_id
    )  # a gateway answered with its own id
    traced = replace(traced, response_id=None)
    parts = {
        named.span_id: [plugin_span(named.response_id)],
        sent.span_id: [plugin_span(f"cmpl-{sent.request_id}-0", queue=0.01)],
        traced.span_id: [engine_span(traced, queue=0.02)],
        both.span_id: [
            engine_span(both, both.response_id, queue=0.03),
            plugin_span(both.response_id, queue=0.031),
        ],
    }
    everything = [named, sent, traced, alone, both, *(one for of in parts.values() for one in of)]

    in_batches(store, [*everything, *everything[:7]], order, batches=3)

    wanted = []
    for one in (named, sent, traced, alone, both):
        result = one
        for part in parts.get(one.span_id, []):
            plugin = read_plugin_span(part.attributes)
            figures = plugin[1] if plugin else read_engine_span(part.attributes)
            if not plugin:
                result = with_figures(result, figures)
        for part in parts.get(one.span_id, []):
            if plugin := read_plugin_span(part.attributes):
                result = with_figures(result, plugin[1])
        wanted.append(result)
    assert differences(store, wanted) == {}
    assert reported_by(store, both) == ["row", "engine", "plugin"]
    assert reported_by(store, alone) == ["row"]


reported_s = st.none() | st.floats(0, 100) | st.floats(0, 1e-6) | st.just(90_000.0)
sequences = st.builds(
    dict,
    queue=reported_s, prefill=reported_s, decode=reported_s, ttft=reported_s, e2e=reported_s,
    tokens=st.tuples(*[st.integers(0, 10**6)] * 3), preemptions=st.integers(0, 9),
    replica=st.sampled_from(["a", "b"]),
)  # fmt: skip
cases = st.tuples(
    STORABLE_REQUESTS,
    st.lists(sequences, max_size=3),
    st.lists(sequences, max_size=2),
    st.sampled_from(["answer", "question", "neither"]),
)


def test_any_row_with_any_figures_comes_to_what_python_makes_of_it(store):
    """Rows, plugin records and engine spans drawn at random, one or several sequences each."""
    items, wanted = [], []
    for drawn_row, recorded, traced, by in drawn(cases, 120):
        one = row()
        one = replace(
            drawn_row, trace_id=one.trace_id, span_id=one.span_id, start=one.start,
            parent_span_id=None, request_id=one.request_id,
            response_id=f"cmpl-{one.request_id}" if by == "answer" else None,
            replica=drawn_row.replica or None,  # the store knows no name that is empty
        )  # fmt: skip
        sent = one.request_id if by != "neither" else "another-id"
        records = [
            plugin_span(f"cmpl-{sent}-{n}", **reported) for n, reported in enumerate(recorded)
        ]
        spans = [
            engine_span(
                one, f"cmpl-x{one.request_id}-{n}", **{k: reported[k] for k in list(reported)[:5]}
            )
            for n, reported in enumerate(traced)
        ]
        items += [one, *records, *spans]
        result = one
        figures = [read_engine_span(each.attributes) for each in by_id(spans)]
        known = [each for each in figures if each is not None]
        if known and not (one.attempts > 1 and len(known) > 1):
            # All lie below one span of one service.
            result = with_figures(result, together([replace(each, engine="e") for each in known]))
        reported = [read_plugin_span(each.attributes) for each in by_id(records)]
        [result] = joined([result], [each for each in reported if each is not None])
        wanted.append(result)

    in_batches(store, items, 1, batches=2)

    assert differences(store, wanted) == {}


def by_id(spans):
    """Sort spans as the store does where nothing else decides."""
    return sorted(spans, key=lambda one: one.span_id)


def test_what_cannot_be_distinguished_is_joined_to_none(store):
    """Two rows of one id; a retried row with two records; two requests below one row."""
    twin = row()
    other = row(response_id=twin.response_id, request_id=twin.request_id)
    retried = row(attempts=2)
    forked = row(response_id=None)
    records = [
        plugin_span(twin.response_id),
        *(plugin_span(retried.response_id) for _ in range(2)),
    ]
    spans = [engine_span(forked, f"chatcmpl-{n}") for n in range(2)]

    in_batches(store, [twin, other, retried, forked, *records, *spans], 5, batches=3)

    assert differences(store, [twin, other, retried, forked]) == {}


def test_a_twin_that_comes_later_takes_the_figures_back(store):
    """Once two rows share an id, it is unknown whose the record was."""
    one = row()
    send(store, [one, plugin_span(one.response_id)])
    join(store)
    assert reported_by(store, one) == ["row", "plugin"]

    send(store, [row(response_id=one.response_id, request_id=one.request_id)])
    join(store)

    assert reported_by(store, one) == ["row"]
    assert differences(store, [one]) == {}


def test_an_engine_is_found_below_gateways(store):
    """The engine's span hangs under the gateway's call, that under the gateway, that under us."""
    ours = row(response_id="gw-answer")
    edge = gateway_span(ours, 0.015)
    call = row(
        trace_id=ours.trace_id, parent_span_id=edge.span_id, service="edge", response_id="x-1"
    )
    served = engine_span(call)

    in_batches(store, [ours, edge, call, served], 2, batches=4)

    figures = read_engine_span(served.attributes)
    wanted = with_figures(ours, figures)
    timeline = replace(
        wanted.timeline, gateway=wanted.timeline.gateway or Reported(15 * MS, "server_timing")
    )
    wanted = replace(wanted, timeline=timeline, gateway=wanted.gateway or "edge")
    assert differences(store, [wanted, with_figures(call, figures)]) == {}
    assert reported_by(store, ours) == ["row", "engine", "gateway"]


def send_slices(store, slices):
    """Store spans in SGLang's scope, as its own exporter sends them."""
    spans = [
        trace_pb2.Span(
            trace_id=bytes.fromhex(one.trace_id), span_id=bytes.fromhex(one.span_id),
            parent_span_id=bytes.fromhex(one.parent_span_id), name=one.name,
            start_time_unix_nano=one.start, end_time_unix_nano=one.start + one.duration_ns,
        )
        for one in slices
    ]  # fmt: skip
    scope = InstrumentationScope(name="sglang server")
    request = ExportTraceServiceRequest(
        resource_spans=[
            trace_pb2.ResourceSpans(scope_spans=[trace_pb2.ScopeSpans(scope=scope, spans=spans)])
        ]
    )
    store.insert_otlp(delimited([request.SerializeToString()]), random_id(8))
    join(store)


@pytest.mark.parametrize("slices_first", [True, False])
def test_sglangs_stages_come_from_its_stage_spans(store, slices_first):
    """Its own span's prefill holds the queue; its slices have both, in any order of arrival."""
    one = row(response_id=None)
    own = span(
        "llm_request",
        {
            "gen_ai.latency.time_in_model_prefill": 2.12,
            "gen_ai.latency.time_in_model_decode": 1.0,
            "gen_ai.latency.time_to_first_token": 2.15,
        },
        trace_id=one.trace_id,
        parent=one.span_id,
        service="sglang",
    )
    slices = [
        span(name, {}, trace_id=one.trace_id, parent=own.span_id, duration_ns=ms * MS)
        for name, ms in (("prefill_waiting", 2000), ("chunked_prefill", 70),
                         ("prefill_forward", 50), ("decode_loop", 1000))
    ]  # fmt: skip

    if slices_first:
        send_slices(store, slices)
    in_batches(store, [one, own], 4, batches=2)
    if not slices_first:
        send_slices(store, slices)

    records = [read_engine_span(own.attributes)] + [
        EngineFigures(
            **{SLICES[each.name]: Reported(each.duration_ns, "engine_span")},
            engine=own.span_id, is_slice=True,
        )
        for each in slices[:3]
    ]  # fmt: skip
    wanted = with_figures(one, together(records))
    assert wanted.timeline.queue is not None
    assert differences(store, [wanted]) == {}
    assert reported_by(store, one) == ["row", "engine"]


def test_the_wait_of_a_second_leg_is_stored(store):
    """Prefill on one engine and decode on another: the second's wait is in `first_chunk`."""
    one = row(response_id="chatcmpl-legs")
    legs = [
        plugin_span("chatcmpl-legs", queue=0.05, prefill=0.8, decode=0.0, replica="p"),
        plugin_span("chatcmpl-legs", queue=0.22, prefill=0.015, decode=3.0, replica="d"),
    ]

    in_batches(store, [one, *legs], 1, batches=3)

    [wanted] = joined([one], [read_plugin_span(each.attributes) for each in legs])
    assert wanted.timeline.kv_transfer is not None
    assert differences(store, [wanted]) == {}


def test_llm_ds_sidecar_is_a_gateway(store):
    """What it took itself is its coordination; what it waited for is the engines'."""
    one = row(gateway=None)
    sidecar = span(
        "decode",
        {
            "llm_d.pd_proxy.coordinator_overhead_ms": 12.5,
            "llm_d.pd_proxy.prefill_duration_ms": 855.0,
            "llm_d.pd_proxy.true_ttft_ms": 870.0,
        },
        trace_id=one.trace_id,
        parent=one.span_id,
        service="sidecar",
    )

    in_batches(store, [one, sidecar], 1, batches=2)

    known = one.timeline.gateway or Reported(12_500_000, "server_timing")
    wanted = replace(one, timeline=replace(one.timeline, gateway=known), gateway="llm_d")
    assert differences(store, [wanted]) == {}


def test_requests_of_one_turn_keep_their_engines_apart(store):
    """Each request of an agent's turn gets the engine span below it; the turn gets none."""
    turn = row(operation="invoke_agent", agent="planner")
    first, second = (row(trace_id=turn.trace_id, parent_span_id=turn.span_id) for _ in range(2))
    spans = [engine_span(first, queue=0.001), engine_span(second, queue=0.002)]

    in_batches(store, [turn, first, second, *spans], 3, batches=3)

    wanted = [
        with_figures(one, read_engine_span(reported.attributes))
        for one, reported in zip((first, second), spans, strict=True)
    ]
    assert differences(store, [turn, *wanted]) == {}


def test_any_row_with_any_beacon_is_its_users(store):
    """What a page tells makes the row its user's, to the nanosecond."""
    items, wanted = [], []
    for drawn_row, browser, own_ms in drawn(
        st.tuples(STORABLE_REQUESTS, browsers, st.none() | st.integers(0, 500)), 80
    ):
        one = row()
        page = Beacon(trace_id=one.trace_id, span_id=random_id(8), browser=browser)
        one = replace(
            drawn_row, trace_id=one.trace_id, span_id=one.span_id, start=one.start,
            parent_span_id=page.span_id, request_id=one.request_id, response_id=None,
            service="shop", browser=None,
        )  # fmt: skip
        beacon = page_span(page, "shop", time.time_ns())
        items += [one, replace(beacon, start=time.time_ns())]
        if own_ms is not None:
            around = gateway_span(
                one, own_ms / 1e3, parent=page.span_id, service="shop", duration_ns=1
            )
            one = replace(one, parent_span_id=around.span_id)
            items[-2] = one
            items.append(around)
        wanted.append(with_beacon(one, page, app_ns=None if own_ms is None else own_ms * MS))

    in_batches(store, items, 4, batches=2)

    assert differences(store, wanted) == {}


def test_a_beacon_of_an_unknown_request_makes_no_row(store):
    """A page alone is no request; nor are an engine's span, a gateway's and a tool's."""
    stray = row()
    page = Beacon(trace_id=stray.trace_id, span_id=random_id(8), browser=drawn(browsers, 1)[0])
    tool = span("search", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"})

    send(store, [page_span(page, "shop", time.time_ns()), engine_span(stray), tool])
    send(store, [gateway_span(stray, 0.1), plugin_span("chatcmpl-none")])
    join(store)

    assert fetch(store, [], "trace_id = {id:String}", id=stray.trace_id) == {}
    assert fetch(store, [], "trace_id = {id:String}", id=tool.trace_id) == {}


def test_a_workflow_or_an_agent_is_no_request(store):
    """The span of a function around requests is none of them, whatever kind of span it is."""
    spans = [
        span(f"{name} answer", {"gen_ai.operation.name": name}, service="bot", kind="client")
        for name in ("invoke_workflow", "invoke_agent", "create_agent")
    ]
    chat = span("chat", {"gen_ai.operation.name": "chat"}, service="bot", kind="client")
    send(store, [*spans, chat])
    join(store)

    for one in spans:
        assert fetch(store, [], "trace_id = {id:String}", id=one.trace_id) == {}
    assert [*fetch(store, [], "trace_id = {id:String}", id=chat.trace_id)] == [chat.span_id]


def test_a_request_is_told_by_its_operation_where_its_span_has_no_kind(store):
    """Many instrumentations state none; a client's span of any operation is one, but of these."""
    sent = {
        (kind, name): span("x", {"gen_ai.operation.name": name}, service="bot", kind=kind)
        for kind, name in (
            ("internal", "chat"), ("internal", "generate_content"), ("client", "respond"),
            ("internal", "text_completion"), ("internal", "respond"), ("internal", "invoke_agent"),
            ("client", "retrieval"), ("client", "search_memory"), ("server", "chat"),
        )
    }  # fmt: skip
    send(store, [*sent.values()])
    join(store)

    found = fetch(store, [], **ids_of(*sent.values()))
    assert {key for key, one in sent.items() if one.span_id in found} == {
        ("internal", "chat"), ("internal", "generate_content"), ("internal", "text_completion"),
        ("client", "respond"),
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["internal", "client"])
@pytest.mark.parametrize("batches", [1, 3])
def test_a_frameworks_span_around_an_sdks_is_the_same_request(store, kind, batches):
    """The SDK's is the row: it ends first. Its engine is found, by the id that both name too."""
    chat = {"gen_ai.operation.name": "chat"}
    named = chat | {"gen_ai.response.id": f"chatcmpl-{random_id(8)}"}
    parts, sdks, outers = [], [], []
    for attributes in (named, chat):
        outer = span("chat", attributes, service="bot", kind=kind)
        within = {"trace_id": outer.trace_id, "parent": outer.span_id, "kind": "client"}
        sdk = span("chat m", attributes, service="bot", **within)
        engine = engine_span(sdk, attributes.get("gen_ai.response.id"), parent=random_id(8))
        if attributes is named:
            engine = replace(engine, trace_id=random_id(16))
        parts.append((sdk, outer, engine))
        sdks.append(sdk)
        outers.append(outer)
    sent = [part for alike in zip(*parts, strict=True) for part in alike]
    counted = 0
    for first in range(0, 6, 6 // batches):
        send(store, sent[first : first + 6 // batches])
        counted += join(store).without_row.get("same_request", 0)

    rows = fetch(store, ["reported_queue_ns"], **ids_of(*sdks, *outers))
    assert {key: row["reported_queue_ns"] for key, row in rows.items()} == {
        sdk.span_id: 40 * MS for sdk in sdks
    }
    assert counted == 2


def test_another_services_span_within_a_request_is_a_request_of_that_service(store):
    """As a gateway's, which records what it sends on: both are rows."""
    chat = {"gen_ai.operation.name": "chat"}
    outer = span("chat", chat, service="bot", kind="client")
    of_outer = {"trace_id": outer.trace_id, "parent": outer.span_id, "kind": "client"}
    passed_on = span("chat", chat, service="gateway", **of_outer)
    send(store, [outer, passed_on])
    join(store)

    assert {*fetch(store, [], **ids_of(outer, passed_on))} == {outer.span_id, passed_on.span_id}


def test_plain_genai_spans_make_rows_of_what_is_known(store):
    """An application without llmtrace: its span is the wait; the engine's own tells the rest."""
    chat = span(
        "chat llama",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.system": "openai",
            "gen_ai.request.model": "llama",
            "gen_ai.usage.input_tokens": 12,
            "gen_ai.usage.output_tokens": 34,
            "gen_ai.response.finish_reasons": ("stop",),
        },
        service="bot", kind="client", duration_ns=1_000 * MS,
    )  # fmt: skip
    failed = span(
        "chat llama", {"gen_ai.operation.name": "chat", "error.type": "429"},
        service="bot", kind="client", duration_ns=20 * MS, error="no more",
    )  # fmt: skip
    at_once = span(
        "chat llama", {"gen_ai.operation.name": "chat", "duration": 950.0},
        service="bot", kind="client", duration_ns=0,
    )  # fmt: skip
    columns = [
        "reported_by", "e2e_ns", "model", "provider", "prompt_tokens", "output_tokens", "outcome",
        "error_type", "finish_reason", "queue_ns", "prefill_ns", "decode_ns", "unattributed_ns",
        "first_chunk_ns", "service",
    ]  # fmt: skip

    in_batches(store, [chat, failed, at_once, engine_span(chat)], 6, batches=3)

    known = fetch(store, columns, "span_id = {id:String}", id=chat.span_id)[chat.span_id]
    assert known == {
        "span_id": chat.span_id, "reported_by": ["genai", "engine"], "e2e_ns": 1_000 * MS,
        "model": "llama", "provider": "openai", "prompt_tokens": 12, "output_tokens": 34,
        "outcome": "success", "error_type": "", "finish_reason": "stop", "queue_ns": 40 * MS,
        "prefill_ns": 90 * MS, "decode_ns": 780 * MS, "unattributed_ns": 0,
        "first_chunk_ns": 90 * MS, "service": "bot",
    }  # fmt: skip
    known = fetch(store, columns, "span_id = {id:String}", id=failed.span_id)[failed.span_id]
    assert (known["outcome"], known["error_type"]) == ("error", "429")
    assert (known["queue_ns"], known["unattributed_ns"]) == (None, 20 * MS)
    known = fetch(store, columns, "span_id = {id:String}", id=at_once.span_id)[at_once.span_id]
    assert known["e2e_ns"] == 0  # another's `duration` is not the span's


def test_a_request_of_vercels_sdk_needs_no_other_attribute(store):
    """It may name no provider as OpenTelemetry does; the span around it is no request."""
    inner, outer = (
        span(name, {"ai.operationId": name, "ai.model.id": "m"}, kind="internal", service="bot")
        for name in ("ai.streamText.doStream", "ai.streamText")
    )
    send(store, [inner, outer])
    join(store)

    assert {*fetch(store, [], **ids_of(inner, outer))} == {inner.span_id}


def test_a_first_chunk_outside_of_its_plain_span_is_unknown(store):
    """By the rule of rows for triage: over a tenth and 50 ms longer, it is in another unit."""
    within = {0.3: 300 * MS, 1.14: 1_140 * MS}
    sent = {
        seconds: span(
            "chat",
            {"gen_ai.operation.name": "chat", "gen_ai.response.time_to_first_chunk": seconds},
            kind="client", duration_ns=1_000 * MS,
        )
        for seconds in (*within, 1.16, 9.0, 300.0, -1.0)
    }  # fmt: skip
    send(store, [*sent.values()])
    join(store)

    known = fetch(store, ["ttft_ns", "stream"], **ids_of(*sent.values()))
    for seconds, one in sent.items():
        first = within.get(seconds)
        assert known[one.span_id] == {
            "span_id": one.span_id, "ttft_ns": first, "stream": first is not None,
        }  # fmt: skip


def test_a_plain_span_beside_llmtraces_own_is_not_counted_twice(store):
    """Two instrumentations of one application tell of one request."""
    ours = row()
    beside = span(
        "chat", {"gen_ai.operation.name": "chat"}, trace_id=ours.trace_id, parent=ours.span_id,
        service=ours.service, kind="client",
    )  # fmt: skip

    send(store, [ours, beside])
    join(store)

    assert list(fetch(store, [], "trace_id = {id:String}", id=ours.trace_id)) == [ours.span_id]


def test_running_the_join_again_makes_no_row_twice(store):
    """Nothing new, nothing written; the same spans once more, the same row once more."""
    one = row()
    send(store, [one])
    first = join(store)
    again = join(store)
    send(store, [one])
    third = join(store)

    assert (first.rows, again.rows, third.rows) == (1, 0, 1)
    assert differences(store, [one]) == {}
    [(count,)] = store.query(
        "SELECT count() FROM requests FINAL WHERE span_id = {id:String}", {"id": one.span_id}
    )
    assert count == 1


def test_two_legs_of_one_request_are_not_taken_for_sequences(store):
    """Prefill on one engine and decode on another: the prefill is the first's, in any order."""
    apart, unsure = row(), row()
    parts = [
        engine_span(apart, apart.response_id, queue=0.05, prefill=0.3, decode=0.0, ttft=0.4),
        replace(
            engine_span(apart, apart.response_id, queue=0.02, prefill=0.01, decode=0.5, ttft=0.1),
            service="decoder",
        ),
        engine_span(unsure, unsure.response_id, prefill=0.3),
        replace(engine_span(unsure, unsure.response_id, prefill=0.01), service="other"),
    ]

    in_batches(store, [apart, unsure, *parts], 2, batches=3)

    columns = ["reported_queue_ns", "reported_prefill_ns", "reported_decode_ns"]
    ids = [apart.span_id, unsure.span_id]
    seen = fetch(store, columns, "span_id IN {ids:Array(String)}", ids=ids)
    assert [seen[apart.span_id][name] for name in columns] == [50 * MS, 300 * MS, 500 * MS]
    assert [seen[unsure.span_id][name] for name in columns] == [None, None, None]


def known(store, one):
    """Return what the store says the queue of a row was, in ns."""
    found = fetch(store, ["reported_queue_ns"], "span_id = {id:String}", id=one.span_id)
    return found[one.span_id]["reported_queue_ns"]


def age(store, seconds):
    """Make all parts look as if they had arrived earlier."""
    run = store.engine.run
    run("CREATE TABLE IF NOT EXISTS aged AS request_parts ENGINE = MergeTree ORDER BY tuple()")
    run(
        f"INSERT INTO aged SELECT * REPLACE(arrived - toIntervalSecond({seconds}) AS arrived)"
        " FROM request_parts"
    )
    run("TRUNCATE TABLE request_parts")
    run("INSERT INTO request_parts SELECT * FROM aged")
    run("DROP TABLE aged")


def test_a_late_duplicate_changes_nothing(store):
    """Sent again after seven hours, and when the engine's span is not stored any more."""
    one = row()
    send(store, [one, engine_span(one, one.response_id, queue=0.2)])
    join(store)
    age(store, 7 * 3600)
    send(store, [one])
    join(store)
    assert known(store, one) == 200 * MS

    store.engine.run("TRUNCATE TABLE request_parts")
    send(store, [one])
    join(store)
    assert known(store, one) == 200 * MS


def test_a_long_trace_keeps_its_engines(store):
    """By their place in it too, and one more call writes one more row."""
    trace, root = random_id(16), random_id(8)
    calls = [
        row(trace_id=trace, parent_span_id=root, response_id=None, start=time.time_ns() + n * MS)
        for n in range(200)
    ]
    send(store, [*calls, *(engine_span(one, queue=0.2) for one in calls)])
    join(store)
    more = row(trace_id=trace, parent_span_id=root, response_id=None)
    send(store, [more, engine_span(more, queue=0.2)])
    report = join(store)

    assert report.rows <= 3
    assert {known(store, one) for one in (calls[0], calls[-1], more)} == {200 * MS}


def test_a_trace_that_is_too_large_is_joined_by_ids_and_counted(store, monkeypatch):
    """Its parts' places tell nothing any more; the report says so."""
    monkeypatch.setattr(join_inputs_sql, "MAX_IN_TRACE", 4)
    trace, root = random_id(16), random_id(8)
    calls = [row(trace_id=trace, parent_span_id=root) for _ in range(6)]
    send(store, [*calls, *(engine_span(one, one.response_id, queue=0.2) for one in calls)])
    report = join(store)

    assert (report.large_traces, report.rows) == (1, 6)
    assert {known(store, one) for one in calls} == {200 * MS}


def test_one_span_is_one_row(store):
    """Though it is sent again with another start; the last to arrive says what it was."""
    one = row()
    send(store, [one])
    join(store)
    send(store, [replace(one, start=one.start + 5 * 10**9, model="second")])
    join(store)

    found = store.query(
        "SELECT model FROM requests FINAL WHERE span_id = {id:String}", {"id": one.span_id}
    )
    assert found == [("second",)]


def test_a_duration_beyond_belief_makes_no_row(store):
    """Over a day, or none at all: the span is kept, and counted with its reason."""
    ages = row(timeline=Timeline(e2e=999_999_999 * 10**9, ttft=None))
    endless = span("chat", {"gen_ai.operation.name": "chat"}, kind="client", duration_ns=2**62)
    send(store, [ages, endless])
    report = join(store)

    assert report.without_row == {"too_long": 2}
    assert fetch(store, [], **ids_of(ages, endless)) == {}


def test_a_plain_span_that_ends_before_it_starts_makes_no_row(store):
    """Nor does one that has no end; the span is kept with what its sender's clock made of it."""
    chat = {"gen_ai.operation.name": "chat"}
    back, none, instant = (
        span("chat", chat, kind="client", duration_ns=ns) for ns in (-5 * 10**9, 0, 0)
    )
    none = replace(none, duration_ns=-none.start)
    send(store, [back, none, instant])
    report = join(store)

    assert report.without_row == {"negative": 2}
    assert {*fetch(store, [], **ids_of(back, none, instant))} == {instant.span_id}
    [kept] = read.trace(store, back.trace_id)["spans"]
    assert kept["duration_s"] == -5.0


def test_a_join_reads_what_is_new(store):
    """And not a column of all rows that were ever written."""
    read = "SELECT sum(value) FROM system.events WHERE event = 'SelectedRows'"
    store.engine.run(
        "INSERT INTO requests (start, trace_id, span_id, version_ns, e2e_ns) SELECT now64(9) -"
        " toIntervalDay(3), hex(cityHash64(number)), hex(number), 1, 1 FROM numbers(200000)"
    )
    send(store, [row()])
    [(before,)] = store.query(read)
    join(store)
    [(after,)] = store.query(read)
    store.engine.run(
        "ALTER TABLE requests DELETE WHERE version_ns = 1 SETTINGS mutations_sync = 1"
    )

    assert int(after) - int(before) < 50_000


def test_the_first_join_after_a_start_finds_a_record_of_another_trace(store):
    """By an id of a request that is affected only because another one shares its question's id."""
    first = row()
    recorded = engine_span(row(), first.response_id, queue=0.2)
    send(store, [first, recorded])
    join(store)
    store.engine.run("DROP TEMPORARY TABLE IF EXISTS join_above")  # as of a process that began now

    second = row(request_id=first.request_id, response_id=None)
    send(store, [second])
    join(store)

    wanted = with_figures(first, read_engine_span(recorded.attributes))
    assert differences(store, [wanted]) == {}


def test_stages_add_up_for_all_that_was_stored_here(store):
    """Whatever these tests did."""
    stages = " + ".join(f"ifNull({stage}_ns, 0)" for stage in STAGES)
    assert store.query(
        f"SELECT count() FROM requests FINAL WHERE {stages} + unattributed_ns != e2e_ns"
    ) == [(0,)]
