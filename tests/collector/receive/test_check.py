"""Is every request read for what it is, and rejected for what it cannot be?"""

from __future__ import annotations

import json
import sys
from base64 import b64decode

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from llmtrace_collector.receive import ReceiveLimits
from llmtrace_collector.receive.otlp_json import from_json
from llmtrace_collector.receive.rejections import RejectedError
from llmtrace_collector.receive.spool_format import varint
from llmtrace_collector.receive.validate import check
from tests.collector.receive.parts import body, numbers, request, span

LIMITS = ReceiveLimits()


def checked(*spans):
    """Check a request of some spans."""
    return check(request(*spans).SerializeToString(), LIMITS)


def judged(raw):
    """Return how many spans are taken, and why none are if the whole is rejected."""
    try:
        return check(raw, LIMITS).spans, None
    except RejectedError as error:
        return 0, error.reason


def test_a_good_request_stays_as_it_came():
    """The very bytes of the sender are kept."""
    raw = body(0, 5)

    found = check(raw, LIMITS)

    assert found.payload is raw
    assert (found.spans, found.rejected.total()) == (5, 0)


def test_an_empty_request_is_one():
    """OTLP lets an exporter send nothing."""
    assert check(b"", LIMITS).spans == 0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"trace_id": b""}, "ids"),
        ({"trace_id": bytes(16)}, "ids"),
        ({"trace_id": b"x" * 17}, "ids"),
        ({"span_id": b"x" * 7}, "ids"),
        ({"span_id": bytes(8)}, "ids"),
        ({"attributes": [KeyValue(key=f"k{n}") for n in range(257)]}, "attributes"),
        ({"name": "x" * (1 << 20)}, "span_bytes"),
        ({"events": [Span.Event(name="x" * 100)] * 11_000}, "span_bytes"),
    ],
)
def test_a_span_that_cannot_be_stored_is_left_out_and_reported(wrong, why):
    """The others of the request are kept."""
    found = checked(span(0), span(1, **wrong), span(2))

    assert numbers(found.payload) == [0, 2]
    assert (2, {why: 1}) == (found.spans, found.rejected)
    assert found.response().partial_success.error_message.startswith("1 rejected: ")


def test_a_label_explosion_in_the_resource_costs_all_its_spans():
    """A resource's attributes are each span's."""
    made = request(span(0), span(1))
    for n in range(300):
        made.resource_spans[0].resource.attributes.append(KeyValue(key=f"k{n}"))

    found = check(made.SerializeToString(), LIMITS)

    assert (found.spans, found.rejected) == (0, {"attributes": 2})


@pytest.mark.parametrize("when", [0, 1, 1 << 63, (1 << 64) - 1])
def test_no_clock_is_judged(when):
    """A span from any time is taken; the store says when it came if its own start cannot be."""
    assert checked(span(0, start_time_unix_nano=when)).spans == 1


@pytest.mark.parametrize(
    "raw",
    [b"hello", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 100, b"\x12\x03abc", body()[:-3]],
)
def test_what_is_no_request_is_rejected_as_bad_data(raw):
    """Garbage, truncations, another kind of message, unknown fields."""
    with pytest.raises(RejectedError) as caught:
        check(raw, LIMITS)

    assert caught.value.answer.status == 400
    assert not caught.value.answer.again


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_rejected(raw):
    """Nothing else ever comes of them."""
    spans, reason = judged(raw)

    assert reason in {None, "bad_data"}
    assert not spans or numbers(raw)


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_request_that_was_cut_or_changed_is_read_or_rejected(place, change):
    """Of real requests, too."""
    raw = bytearray(body(0, 3))
    raw[place % len(raw)] ^= change
    for one in (bytes(raw), bytes(raw[:place])):
        spans, reason = judged(one)

        assert reason in {None, "bad_data"}
        assert spans <= 3


def test_values_nested_without_end_are_rejected():
    """Protobuf's own depth holds."""
    # KeyValue.value -> AnyValue.kvlist_value -> KeyValueList.values, and so on, from the inside.
    value = b""
    for _ in range(50):
        for tag in (b"\x0a", b"\x32", b"\x12"):
            value = tag + varint(len(value)) + value
    for tag in (b"\x4a", b"\x12", b"\x12", b"\x0a"):  # Span.attributes, and up to the request
        value = tag + varint(len(value)) + value

    with pytest.raises(RejectedError):
        check(value, LIMITS)


def as_json(*spans):
    """Write a request as OTLP has it in JSON: ids are hex."""
    flat = MessageToDict(request(*spans))
    for one in flat["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        for holder in (one, *one.get("links", ())):
            for name in ("traceId", "spanId", "parentSpanId"):
                if name in holder:
                    holder[name] = b64decode(holder[name]).hex()
    return flat


def test_json_is_the_same_request():
    """With ids in hex of either case, links included."""
    link = Span.Link(trace_id=b"L" * 16, span_id=b"l" * 8)
    made = [span(0, links=[link], parent_span_id=b"p" * 8), span(1)]
    flat = as_json(*made)
    one = flat["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    one["traceId"] = one["traceId"].upper()

    assert request(*made) == from_json(json.dumps(flat).encode(), 32)


def test_json_may_have_unknown_fields():
    """A newer sender is understood."""
    flat = as_json(span(0)) | {"new": {"a": [1]}}

    assert request(span(0)).resource_spans[0].resource == (
        from_json(json.dumps(flat).encode(), 32).resource_spans[0].resource
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"1", b'"x"', b"\xff\xfe", b"NaN", b'{"resourceSpans": 1}',
        b'{"resourceSpans": [[]]}', b'{"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "zz"}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": 5}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": -1}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": '
        + b"9" * 5000 + b"}]}]}]}",
    ],
)  # fmt: skip
def test_json_that_is_no_request_is_rejected(raw):
    """As bad data, and nothing of it is repeated."""
    with pytest.raises(RejectedError) as caught:
        from_json(raw, 32)

    assert caught.value.reason == "bad_data"


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 33 + b"]" * 33])
def test_deep_json_is_rejected_before_it_is_read(deep):
    """Whether it closes again or not."""
    with pytest.raises(RejectedError, match="deeper"):
        from_json(deep, 32)


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists))
def test_brackets_in_text_are_no_depth(value):
    """What is quoted does not count."""
    raw = json.dumps({"x": '[[[{"' * 40, "y": value}).encode()

    assert from_json(raw, 200) is not None


def test_reading_deep_json_needs_no_stack_of_ours():
    """The recursion limit is far away."""
    assert LIMITS.json_depth * 10 < sys.getrecursionlimit()


def test_what_spans_become_with_their_resource_in_each_is_bounded():
    """A resource is stored with every span: bytes after that count, and not attributes."""
    large = KeyValue(key="note", value=AnyValue(string_value="x" * 1_000_000))
    sent = request(*(span(number) for number in range(100)))
    sent.resource_spans[0].resource.attributes.append(large)
    limits = ReceiveLimits(expanded_bytes=20_500_000)

    found = check(sent.SerializeToString(), limits)

    assert 15 < found.spans <= 20
    assert found.rejected == {"expanded_bytes": 100 - found.spans}
    assert "receive.expanded_bytes" in found.response().partial_success.error_message
    assert found.spans * 1_000_000 < found.expanded <= limits.expanded_bytes

    scoped = request(*(span(number) for number in range(100)))
    scoped.resource_spans[0].scope_spans[0].scope.version = "1" * 1_000_000
    assert check(scoped.SerializeToString(), limits).rejected["expanded_bytes"] > 75


def test_spans_with_text_that_is_not_utf_8_are_left_out_and_the_others_kept():
    """One bad span costs itself; a bad resource costs its spans."""
    good, bad = span(1), span(2, name="QQQQ")
    sent = request(good, bad, span(3)).SerializeToString().replace(b"QQQQ", b"\xff\xfe\xfa\xfb")

    found = check(sent, ReceiveLimits())

    assert numbers(found.payload) == [1, 3]
    assert (found.spans, found.rejected) == (2, {"text": 1})
    assert "UTF-8" in found.response().partial_success.error_message
    shared = request(span(4)).SerializeToString().replace(b"shop", b"\xff\xfe\xfa\xfb")
    with pytest.raises(RejectedError, match="not an OTLP"):
        check(shared, ReceiveLimits())
    found = check(shared + request(span(5)).SerializeToString(), ReceiveLimits())
    assert numbers(found.payload) == [5]


@pytest.mark.parametrize(
    "more", [{"links": None}, {"parentSpanId": None}, {"attributes": None}, {"events": None}]
)
def test_null_is_unset_in_json(more):
    """As in protobuf's own JSON."""
    plain = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "x", **more}
    whole = {"resourceSpans": [{"scopeSpans": [{"spans": [plain]}]}]}
    found = from_json(json.dumps(whole).encode(), 32)
    assert found.resource_spans[0].scope_spans[0].spans[0].name == "x"
    for empty in ({"resourceSpans": None}, {"resourceSpans": [{"scopeSpans": None}]}):
        from_json(json.dumps(empty).encode(), 32)
