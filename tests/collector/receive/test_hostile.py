"""Whatever comes over the network: is what was acknowledged stored, and what comes later too?

Inputs that broke collectors before, each by hand, and mixtures of them drawn at random: sizes
after expansion, ids, clocks, repeats, orders and encodings. What must hold of all of them:

    what was acknowledged is stored, or set aside with its reason
    what is sent later is stored
    no row's stages change for the worse by input that came twice or late
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import time
import zlib
from contextlib import closing

import pytest
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

from llmtrace.core.stages import STAGES
from llmtrace_collector.receive import Admission, Ingest, IngestSettings, Spool, SpoolLimits
from llmtrace_collector.receive.rejections import RejectedError
from llmtrace_collector.store import open_store
from llmtrace_collector.store.tables import Keep
from tests.collector.receive.parts import numbers, request, span
from tests.collector.store.sent import drawn, fetch, join, send
from tests.collector.store.test_join import engine_span, gateway_span, plugin_span, row

NS = 10**9
DAY_NS = 86_400 * NS
MAX_U64 = 2**64 - 1
QUICK = IngestSettings(backoff_s=0.01, most_backoff_s=0.02)
# Some of the clocks drawn here are of long ago: their spans are not to be dropped for their age.
KEEP = Keep(spans=20_000, rows=20_000, signals=20_000, parts=20_000)
BAD_TEXT = "NOT-UTF-8"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An embedded store that everything here is sent to."""
    with closing(open_store(tmp_path_factory.mktemp("store"), keep=KEEP)) as opened:
        yield opened


@pytest.fixture
def spool(tmp_path):
    """Open an empty spool."""
    with closing(Spool(tmp_path / "spool", SpoolLimits(free_bytes=0))) as opened:
        yield opened


def genai(**more):
    """Make the attributes of a request as any GenAI instrumentation writes them."""
    given = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **more}
    return [KeyValue(key=key, value=value_of(one)) for key, one in given.items()]


def value_of(one):
    """Make an attribute's value, of any kind that there is."""
    if isinstance(one, bool):
        return AnyValue(bool_value=one)
    if isinstance(one, int):
        return AnyValue(int_value=one)
    if isinstance(one, float):
        return AnyValue(double_value=one)
    if isinstance(one, bytes):
        return AnyValue(bytes_value=one)
    if isinstance(one, list):
        return AnyValue(array_value=ArrayValue(values=[value_of(each) for each in one]))
    if isinstance(one, dict):
        pairs = [KeyValue(key=key, value=value_of(each)) for key, each in one.items()]
        return AnyValue(kvlist_value=KeyValueList(values=pairs))
    return AnyValue(string_value=one)


def expanding():
    """One resource attribute that becomes a copy in each of many spans: 4 GiB of 4 MB."""
    made = request(*(span(100_000 + n) for n in range(1_000)))
    large = KeyValue(key="note", value=AnyValue(string_value="x" * 4_000_000))
    made.resource_spans[0].resource.attributes.append(large)
    return made


def of_one_trace():
    """More calls in a trace than are distinguished by their place in other tools."""
    trace = os.urandom(16)
    return request(*(span(200_000 + n, trace_id=trace, attributes=genai()) for n in range(300)))


def of_other_clocks():
    """Clocks that are far off, ends before their begins, and a request of all time there is."""
    now = time.time_ns()
    times = [(0, MAX_U64), (0, 0), (MAX_U64, MAX_U64), (now, now - NS), (now + NS, now + DAY_NS),
             (now - 400 * DAY_NS, now), (now + 400 * DAY_NS, now + 401 * DAY_NS)]  # fmt: skip
    return request(
        *(
            span(300_000 + n, start_time_unix_nano=a, end_time_unix_nano=b, attributes=genai())
            for n, (a, b) in enumerate(times)
        )
    )


def twice_with_other_starts():
    """The ids of one span, with another start and another end."""
    now = time.time_ns()
    return request(
        *(
            span(
                400_000,
                start_time_unix_nano=now - n * NS,
                end_time_unix_nano=now,
                attributes=genai(),
            )
            for n in (1, 2, 800_000)
        )
    )


def of_odd_values():
    """Figures that are no figures, and values of every kind."""
    odd = [
        "nan",
        "-inf",
        -1.0,
        1e308,
        2**63 - 1,
        -(2**63),
        b"\xff",
        [],
        ["a", [1]],
        {"a": {}},
        True,
        "",
    ]
    names = ["llmtrace.e2e", "llmtrace.ttft", "gen_ai.usage.output_tokens", "llmtrace.outcome",
             "gen_ai.latency.time_in_queue", "gen_ai.request.id"]  # fmt: skip
    return request(
        *(
            span(500_000 + n, attributes=genai(**dict.fromkeys(names, value)))
            for n, value in enumerate(odd)
        )
    )


BY_HAND = {
    "expanding": expanding,
    "of one trace": of_one_trace,
    "of other clocks": of_other_clocks,
    "twice, with other starts": twice_with_other_starts,
    "of odd values": of_odd_values,
}


def take(admission, *bodies):
    """Send bodies as `(bytes, is JSON, encoding)`; return the payload of each that was taken."""

    async def run():
        taken = []
        for body, is_json, encoding in bodies:
            with admission.weighing() as weight:
                try:
                    plain = await admission.unpack(weight, body, encoding)
                    taken.append((await admission.take("http", plain, json=is_json)).payload)
                except RejectedError as error:
                    admission.refuse("http", error)
        return taken

    return asyncio.run(run())


def spans_of(payloads):
    """Return the numbers of the spans in payloads; several of one number are one."""
    return set(numbers(*payloads)) if payloads else set()


def stored(store, wanted):
    """Return which of these numbers are stored."""
    found = store.query(
        "SELECT DISTINCT TraceId FROM otel_traces WHERE TraceId IN {ids:Array(String)}",
        {"ids": [f"{number + 1:032x}" for number in wanted]},
    )
    return {int(trace, 16) - 1 for (trace,) in found}


def missing(store, spool, payloads):
    """Empty the spool into the store; return what is neither stored nor set aside."""
    Ingest(spool, store, QUICK).drain()
    aside = [spool.quarantine.payload(entry.name) for entry in spool.quarantine.entries()]
    wanted = spans_of(payloads)
    return wanted - stored(store, wanted) - spans_of(aside)


def later_is_stored(store, spool, number):
    """Send one good request, and say whether it became a row."""
    good = request(span(number, attributes=genai())).SerializeToString()
    assert missing(store, spool, take(Admission(spool), (good, False, "identity"))) == set()
    join(store)
    ids = {"id": f"{number + 1:032x}"}
    return store.query("SELECT count() FROM requests FINAL WHERE trace_id = {id:String}", ids) == [
        (1,)
    ]


@pytest.mark.parametrize("name", BY_HAND)
def test_each_known_class_is_stored_or_set_aside_and_holds_up_nothing(store, spool, name):
    """Sent alone, then again, then followed by a good request."""
    body = BY_HAND[name]().SerializeToString()
    admission = Admission(spool)

    payloads = take(admission, (body, False, "identity"), (gzip.compress(body, 1), False, "gzip"))

    assert spans_of(payloads)
    assert missing(store, spool, payloads) == set()
    assert later_is_stored(store, spool, 600_000 + list(BY_HAND).index(name))
    assert spool.backlog_bytes == 0


def test_one_row_is_made_of_one_span_and_none_of_unbelievable_ones(store):
    """After all of the above was joined."""
    assert store.query(
        "SELECT count() FROM (SELECT 1 FROM requests FINAL GROUP BY trace_id, span_id"
        " HAVING count() > 1)"
    ) == [(0,)]
    assert store.query(
        "SELECT count() FROM requests FINAL WHERE e2e_ns < 0 OR e2e_ns > 86400000000000"
    ) == [(0,)]


clocks = st.sampled_from([0, 1, 2**63, MAX_U64]) | st.integers(-(10**18), 10**18).map(
    lambda away: max(0, time.time_ns() + away)
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | texts
    | st.binary(max_size=20)
    | st.just("x" * 300_000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
names_ = st.sampled_from([
    "llmtrace.e2e", "llmtrace.ttft", "llmtrace.outcome", "llmtrace.request_id", "llmtrace.stream",
    "gen_ai.operation.name", "gen_ai.request.model", "gen_ai.usage.input_tokens", "service.name",
    "gen_ai.latency.time_in_queue", "gen_ai.latency.time_in_model_prefill", "gen_ai.request.id",
    "llmtrace.gateway.self", "llmtrace.browser.e2e", BAD_TEXT,
]) | texts  # fmt: skip
hostile_spans = st.fixed_dictionaries(
    {
        "start_time_unix_nano": clocks,
        "end_time_unix_nano": clocks,
        "attributes": st.dictionaries(names_, values, max_size=6),
        "name": texts,
        "kind": st.integers(0, 7),
        "parent_span_id": st.sampled_from([b"", b"\1" * 8, b"\2", b"\0" * 8]),
        "span_id": st.none() | st.sampled_from([b"\1" * 8, b"", b"\0" * 8, b"\3" * 16]),
    }
)
requests_drawn = st.tuples(
    st.lists(hostile_spans, min_size=1, max_size=4),
    st.sampled_from(["identity", "gzip", "deflate", "cut", "flipped"]),
    st.booleans(),
    st.integers(1, 3),
)


def written(number, drawn_request):
    """Write a drawn request as bodies; its spans have numbers of their own."""
    spans, encoding, repeated, times = drawn_request
    made = request(
        *(
            span(
                number + n,
                **{
                    **{key: value for key, value in one.items() if value is not None},
                    "attributes": [
                        KeyValue(key=key, value=value_of(value))
                        for key, value in one["attributes"].items()
                    ],
                },
            )
            for n, one in enumerate(spans)
        )
    )
    body = made.SerializeToString().replace(BAD_TEXT.encode(), b"\xff" * len(BAD_TEXT))
    if encoding == "cut":
        return [(body[: len(body) // 2], False, "identity")]
    if encoding == "flipped":
        at = number % len(body)
        return [(body[:at] + bytes([body[at] ^ 0x80]) + body[at + 1 :], False, "identity")]
    packed = {"gzip": gzip.compress, "deflate": zlib.compress}.get(encoding, bytes)(body)
    return [(packed, False, encoding)] * (times if repeated else 1)


def test_anything_drawn_is_stored_or_set_aside(store, spool):
    """In any encoding and order, several times or once, cut off or with a bit flipped."""
    bodies = [
        one
        for number, each in enumerate(drawn(requests_drawn, 80))
        for one in written(1_000_000 + 10 * number, each)
    ]
    random.Random(7).shuffle(bodies)
    admission = Admission(spool)

    payloads = take(admission, *bodies)
    # A flipped bit may be one of a trace id's: that is then another span's.
    ours = [one for one in payloads if spans_of([one]) <= set(range(1_000_000, 1_001_000))]

    assert len(ours) > len(bodies) / 3
    assert missing(store, spool, ours) == set()
    assert later_is_stored(store, spool, 700_000)


def test_json_of_any_shape_is_rejected_or_stored(store, spool):
    """`null` anywhere, numbers as texts, what is no list, and depth without end."""
    good = {"traceId": f"{800_001:032x}", "spanId": f"{800_001:016x}", "name": "chat",
            "startTimeUnixNano": str(time.time_ns()), "endTimeUnixNano": time.time_ns(),
            "parentSpanId": None, "links": None, "attributes": None}  # fmt: skip
    shapes = [
        {"resourceSpans": [{"scopeSpans": [{"spans": [good]}], "resource": None}]},
        {"resourceSpans": None}, {"resourceSpans": {}}, {"resourceSpans": [None]}, [], None, 7,
        {"resourceSpans": [{"scopeSpans": [{"spans": [{**good, "traceId": 7}]}]}]},
    ]  # fmt: skip
    bodies = [(json.dumps(one).encode(), True, "identity") for one in shapes]
    bodies.append((b'{"resourceSpans":' + b"[" * 100_000, True, "identity"))

    payloads = take(Admission(spool), *bodies)

    assert 800_000 in spans_of(payloads)
    assert missing(store, spool, payloads) == set()


def known_stages(store, ids):
    """Return what is known of rows' stages, in nanoseconds, by span id."""
    columns = [f"{stage}_ns" for stage in STAGES]
    found = fetch(store, columns, "trace_id IN {ids:Array(String)}", ids=ids)
    return {
        one: {name: reported[name] for name in columns if reported[name] is not None}
        for one, reported in found.items()
    }


@pytest.mark.parametrize("seed", range(2))
def test_no_row_is_the_worse_for_what_comes_twice_or_late(store, seed):
    """Parts in any order, a join after each few; then each again, in another order."""
    rows = [row() for _ in range(12)]
    parts = [*rows]
    for number, one in enumerate(rows):
        parts.append(
            (engine_span(one), plugin_span(one.response_id), gateway_span(one, 0.012))[number % 3]
        )
    drawer = random.Random(seed)
    drawer.shuffle(parts)
    ids = [one.trace_id for one in rows]
    for at in range(0, len(parts), 5):
        send(store, parts[at : at + 5])
        join(store)
    whole = known_stages(store, ids)
    assert len(whole) == len(rows)

    for _ in range(3):
        drawer.shuffle(parts)
        for at in range(0, len(parts), 9):
            send(store, parts[at : at + 9])
            join(store)
            assert known_stages(store, ids) == whole
