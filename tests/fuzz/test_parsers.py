"""Can anything that comes over a network break a parser, or make it keep more and more?

Run longer: `make fuzz`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle, pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llmtrace.core.failopen import internal_errors
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import HIDDEN, OTHER, PIECE
from llmtrace.core.row import Row, from_dict
from llmtrace.gateway.first_content import FirstContent
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.headers.server_timing import entries
from llmtrace.instrumentation.headers.sse_comments import BEGIN, Comments
from llmtrace.instrumentation.http.sse import Events
from llmtrace.instrumentation.llm_sdks import chunks
from llmtrace.instrumentation.rpc import openai_realtime
from llmtrace.instrumentation.streams.chunk_timing import timed_reads
from llmtrace.testing import FakeClock
from tests.support.internal_errors import reset_internal_errors

from .stored import held

# What a recording may hold, whatever was read.
MAX_BYTES = 24 * 1024
# So often the same is sent, and again, to see what piles up: nothing but what numbers grow by.
TIMES = 40
GROWTH_BYTES = 256

DIALECTS = {
    "chat": chunks.chat,
    "completions": chunks.completions,
    "responses": chunks.responses,
    "messages": chunks.messages,
    "anything": chunks.anything,
}
WHOLE = {
    "chat": chunks.answer_chat,
    "responses": chunks.answer_responses,
    "messages": chunks.answer_messages,
}


def recording() -> tuple[Recording, list[Row]]:
    """Start a recording on a clock that stands still."""
    rows: list[Row] = []
    info = {"request_id": "lt-1", "trace_id": "1" * 32, "span_id": "2" * 16, "service": "fuzz"}
    one = Recording(lambda _, row: rows.append(row), info, clock=FakeClock(1))
    return one, rows


def steady(one: Recording, feed: Callable[[], object]) -> None:
    """Feed a recording again and again: it holds little, and soon no more than before."""
    for _ in range(TIMES):
        feed()
    before = held(one)
    for _ in range(TIMES):
        feed()

    assert held(one) < MAX_BYTES
    assert held(one) - before < GROWTH_BYTES


def sound(rows: list[Row]) -> None:
    """See that a row was made that adds up and can be written."""
    [row] = rows
    assert row.stages.total == row.e2e_ns
    assert from_dict(json.loads(json.dumps(row.as_dict(), allow_nan=False))) is not None


# --- chunks, as an SDK hands them over ----------------------------------------------------------

names = st.sampled_from(
    [
        "id", "choices", "usage", "delta", "content", "tool_calls", "finish_reason", "text",
        "message", "model_extra", "metrics", "queue_time_ms", "time_to_first_token_ms",
        "generation_time_ms", "speculative_decoding", "num_draft_tokens", "prompt_tokens",
        "completion_tokens", "prompt_tokens_details", "cached_tokens", "input_tokens",
        "output_tokens", "input_tokens_details", "type", "response", "status", "error", "code",
        "incomplete_details", "reason", "stop_reason", "system_fingerprint", "refusal", "model",
        "function_call", "reasoning_content", "partial_json", "thinking", "prefill_stats",
    ]
)  # fmt: skip
words = st.sampled_from(
    [
        "", "stop", "vllm-0.32.0", "llmtrace-sim-1", "response.completed", "response.failed",
        "response.output_text.delta", "content_block_delta", "text_delta", "message_start",
        "message_delta", "error", "completed", "failed",
    ]
)  # fmt: skip
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.integers(1, 40).map(lambda n: "x" * n * 10_000),
    st.binary(max_size=20),
    words,
)


class Odd:
    """An object that cannot be inspected."""

    def __getattr__(self, name: str) -> Any:
        """Refuse."""
        raise RuntimeError(name)


values = st.recursive(
    scalars | st.builds(Odd),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(names | st.text(max_size=8), inner, max_size=6),
        st.dictionaries(names, inner, max_size=8).map(lambda given: SimpleNamespace(**given)),
    ),
    max_leaves=25,
)
METRICS = {"queue_time_ms": 1.5, "time_to_first_token_ms": 20.0}
FIGURES = SimpleNamespace(
    id="x" * 100_000,
    system_fingerprint="vllm-" + "9" * 10_000,
    choices=[],
    usage=SimpleNamespace(prompt_tokens=1, completion_tokens=2, prompt_tokens_details=None),
    model_extra={"metrics": METRICS},
)


@given(st.sampled_from([*DIALECTS]), st.lists(values, max_size=5))
@example("chat", [FIGURES])
@example("completions", [FIGURES])
@settings(max_examples=3 * settings().max_examples)
def test_odd_chunks_come_out_as_they_went_in(dialect, stream):
    """Whatever a chunk is: it is handed on, nothing is raised, and little is kept."""
    reset_internal_errors()
    one, rows = recording()
    one.opened()
    reader = timed_reads(one, cycle(stream or [None]).__next__, DIALECTS[dialect])

    def feed() -> None:
        for theirs in stream:
            assert next(reader) is theirs

    steady(one, feed)
    one.exhausted()
    assert set(internal_errors()) <= {"record"}  # what a chunk raised when looked at
    sound(rows)


@given(st.sampled_from([*WHOLE]), values)
def test_odd_answers_keep_little(dialect, answer):
    """A whole answer may be anything, too; its caller counts what reading it raises."""
    one, rows = recording()

    def feed() -> None:
        with suppress(AttributeError, TypeError, RuntimeError, LookupError):
            WHOLE[dialect](one, answer)

    steady(one, feed)
    one.end("success")
    sound(rows)


# --- bytes of an event stream -------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
    max_leaves=15,
)
lines = st.one_of(
    json_values.map(lambda value: b"data: " + json.dumps(value).encode()),
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"", b"\r", b"data: [DONE]", b"event: response.output_text.delta", b": ping", b"data:",
            b"data: " + b"[" * 2000, b"data: {" + b'"a":{' * 1500, BEGIN + b"gateway;dur=1;hop=a",
            BEGIN + b"queue;dur=5, prefill;dur=7", b"id: 7", b"retry: 1", b"\xff\xfe",
            b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}',
            b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}',
        ]
    ),
)  # fmt: skip
bodies = st.lists(lines, max_size=12).map(b"\n".join) | st.binary(max_size=400)
KINDS = range(min(HIDDEN, PIECE), OTHER + 1)


@given(bodies, st.lists(st.integers(0, 400), max_size=6), st.sampled_from(["", "gzip", "br"]))
def test_any_bytes_of_an_event_stream(body, cuts, encoding):
    """However they are cut, they are classified, and what is kept of them is bounded."""
    one, rows = recording()
    one.opened()
    events = Events(encoding=encoding)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]

    def feed() -> None:
        for begin, end in pairwise(edges):
            assert events(one, body[begin:end]) in KINDS

    steady(one, feed)
    one.exhausted()
    sound(rows)


@given(st.lists(bodies | bodies.map(lambda body: body.decode("latin-1")), max_size=4))
def test_any_lines_and_messages(pieces):
    """Lines of an event stream, and messages of a WebSocket, may be anything."""
    one, rows = recording()
    one.opened()
    events = Events(lines=True)

    def feed() -> None:
        for piece in pieces:
            assert events(one, piece) in KINDS
            assert openai_realtime.read(one, piece) in KINDS
            openai_realtime.asks(piece)
            openai_realtime.begins(piece)

    steady(one, feed)
    one.exhausted()
    assert all(len(seen[0]) < 1000 for seen in openai_realtime._latest.values())
    sound(rows)


@given(bodies)
def test_a_gateway_finds_the_first_content_or_not(body):
    """What a gateway passes on it looks at, whatever it is."""
    found = FirstContent()
    for at in range(0, len(body), 50):
        assert found.in_these(body[at : at + 50]) in {True, False}


# --- headers ------------------------------------------------------------------------------------

header_names = st.sampled_from(
    [
        b"server-timing", b"Server-Timing", b"server", b"via", b"x-litellm-overhead-duration-ms",
        b"x-litellm-version", b"x-kong-proxy-latency", b"x-envoy-upstream-service-time",
        b"x-request-id", b"retry-after", b"x-cache", b"age", b"cf-cache-status", b"content-type",
        b"x-ratelimit-remaining-requests", b"openai-processing-ms", b"x-llmtrace-accept",
    ]
) | st.binary(max_size=30)  # fmt: skip
timing_words = st.sampled_from(
    [
        b"gateway", b"gw", b"queue", b"prefill", b"decode", b"gateway-total", b"cache", b";dur=",
        b";desc=", b'"', b"\\", b",", b";", b"=", b"hop=", b"1", b"9" * 400, b"1e999", b"-1",
        b"hit", b"more", b" ", b"\t", b"\xff",
    ]
)  # fmt: skip
timings = st.lists(timing_words, max_size=30).map(b"".join)
header_values = timings | st.binary(max_size=100) | st.just(b"x" * 100_000)


@given(st.lists(st.tuples(header_names, header_values), max_size=10), st.booleans())
@example([(b"server-timing", b"queue;dur=1, gateway;dur=2;hop=a")], True)  # noqa: FBT003
def test_any_headers(raw, ok):
    """An answer's headers may say anything; little of it is kept."""
    one, rows = recording()
    steady(one, lambda: propagation.answered(one, raw, ok=ok))
    one.end("success")
    assert len(propagation._read_as) <= propagation._MAX_NAMES
    sound(rows)


@given(st.lists(st.tuples(header_names, header_values), max_size=200))
def test_many_headers(raw):
    """Or there may be very many of them."""
    one, rows = recording()
    propagation.answered(one, raw, ok=True)
    one.end("success")

    assert held(one) < MAX_BYTES
    sound(rows)


@given(timings | st.binary(max_size=300))
def test_any_server_timing(value):
    """Every entry that is read is a name, and perhaps a duration that can be."""
    for entry in entries(value.decode("latin-1")):
        assert entry.name == entry.name.strip().lower() != ""
        assert entry.ns is None or 0 <= entry.ns < 86_400 * 10**9


@given(st.lists(timings.map(lambda event: BEGIN + event + b"\n\n") | st.binary(max_size=80)))
@example([BEGIN + b"queue;dur=1, gateway;dur=2;hop=a\n\n"])
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_comments(pieces):
    """A gateway's comments are looked for in any bytes."""
    one, rows = recording()
    comments = Comments(one)
    steady(one, lambda: [comments.look(piece) for piece in pieces])
    one.end("success")
    assert len(comments.begun) <= 4096
    sound(rows)
