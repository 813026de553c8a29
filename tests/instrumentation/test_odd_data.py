"""Invalid data of a server reaches the application as it would without llmtrace."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llmtrace.core import failopen
from llmtrace.core.row import Row, from_dict
from llmtrace.testing import capture
from tests.support.sse_server import Answer, Request, Script, Server

from . import answers
from .reading import CALLS, client, method, read, recorded

pytest.importorskip("openai")

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
KINDS = (
    "response.output_text.delta",
    "response.completed",
    "response.failed",
    "message_start",
    "message_delta",
    "content_block_delta",
    "error",
)
# What may stand where a chunk has something.
ODD: dict[str, st.SearchStrategy[Any]] = {
    "id": JSON,
    "choices": JSON
    | st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "index": JSON,
                "finish_reason": JSON,
                "delta": JSON
                | st.fixed_dictionaries(
                    {},
                    optional={
                        "content": JSON,
                        "tool_calls": JSON,
                        "reasoning_content": JSON,
                        "refusal": JSON,
                    },
                ),
                "text": JSON,
                "message": JSON,
            },
        ),
        max_size=2,
    ),
    "usage": JSON
    | st.fixed_dictionaries(
        {},
        optional={
            "prompt_tokens": JSON,
            "completion_tokens": JSON,
            "prompt_tokens_details": JSON,
        },
    ),
    "metrics": JSON
    | st.fixed_dictionaries(
        {},
        optional={
            "queue_time_ms": JSON,
            "time_to_first_token_ms": JSON,
            "speculative_decoding": JSON,
        },
    ),
    "system_fingerprint": JSON,
    "error": JSON,
    "type": st.sampled_from([*KINDS, "x"]),
    "delta": JSON | st.fixed_dictionaries({}, optional={"type": JSON, "text": JSON}),
    "response": JSON,
    "message": JSON,
}
EVENTS = st.lists(st.fixed_dictionaries({}, optional=ODD) | JSON, max_size=4)


def saying(*pieces: bytes) -> Script:
    """Respond with these pieces of a body, as they are."""

    def script(_request: Request, answer: Answer) -> None:
        answer.head()
        for piece in pieces:
            answer.data(piece)

    return script


def is_usage(event: Any) -> bool:
    """Return whether a server sends an event only because usage was requested."""
    if not isinstance(event, dict) or event.get("error"):
        return False
    return event.get("usage") is not None and not event.get("choices")


def unless_asked(events: list[Any]) -> Script:
    """Respond with events; those a server sends only if usage is requested, only then."""

    def script(request: Request, answer: Answer) -> None:
        answer.head()
        requests_usage = answers.asks_usage(request)
        for event in events:
            if requests_usage or not is_usage(event):
                name = event.get("type") if isinstance(event, dict) else None
                answer.event(json.dumps(event), name=name if isinstance(name, str) else None)

    return script


def gets(made: Any, endpoint: str) -> tuple[list[str], str | None]:
    """Return what an application gets of a stream, chunk by chunk, and how it ends."""
    create, call_options = method(made, endpoint)
    chunks: list[str] = []
    try:
        for chunk in create(**call_options, stream=True):
            chunks.append(repr(chunk))
    except Exception as error:
        return chunks, f"{type(error).__name__}: {error}"
    return chunks, None


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("endpoint", CALLS)
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=EVENTS)
@example(events=[{"choices": [], "usage": "many"}, {"choices": None, "usage": {}}, {"usage": 1}])
@example(events=[{"choices": [{"delta": None, "finish_reason": {}}]}, {"choices": [None]}])
@example(events=[{"id": {}, "choices": [{"delta": {"content": 5}, "finish_reason": "stop"}]}])
def test_any_events(server: Server, endpoint: str, events: list[Any]) -> None:
    """Whatever JSON comes, chunks and errors are the bare client's, and rows are sound."""
    server.play(unless_asked(events))
    with client("sync", server, CALLS[endpoint][0]) as made:
        bare = gets(made, endpoint)
        with capture() as rows:
            assert gets(made, endpoint) == bare
    [row] = rows
    assert row.stages.total == row.e2e_ns
    flat = json.loads(json.dumps(row.as_dict(), allow_nan=False))
    assert from_dict(flat).as_dict() == row.as_dict()


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: {not json\n\n"],
        [b"\x00\xff\xfe binary \x80\n\n"],
        [b"data: \xff\xfe\n\n"],
        [b"data: " + json.dumps(answers.delta("x")).encode()],  # no end of event
        [b"data:", b" ", json.dumps(answers.delta("x")).encode(), b"\n", b"\n"],
        [b": comment\n\n" * 100, b"data: [DONE]\n\n"],
        [b"event: weird\nid: 7\nretry: 5\n\n"],
        [b""],
        [b"<html>oops</html>"],
    ],
    ids=["json", "binary", "utf8", "cut", "pieces", "comments", "fields", "empty", "html"],
)
def test_broken_streams(mode: str, server: Server, pieces: list[bytes]) -> None:
    """Event streams that are none raise, or end, as they do without llmtrace."""

    def outcome() -> tuple[list[str], str | None]:
        try:
            return [repr(chunk) for chunk in read(mode, server)], None
        except Exception as error:
            return [], f"{type(error).__name__}: {error}"

    server.play(saying(*(piece for piece in pieces if piece)))
    bare = outcome()
    seen: list[Any] = []
    row = recorded(lambda: seen.append(outcome()))
    assert seen == [bare]
    assert row.outcome in {"error", "truncated"}


def test_a_huge_chunk(mode: str, server: Server) -> None:
    """Eight megabytes in one chunk arrive whole."""
    text = "x" * 8_000_000
    server.play(answers.chat((text,)))
    chunks: list[Any] = []
    row = recorded(lambda: chunks.extend(read(mode, server)))
    assert chunks[1].choices[0].delta.content == text
    assert (row.outcome, row.chunks) == ("success", 1)


def odd_metrics(metrics: Any, usage: Any = answers.USAGE) -> Script:
    """Respond well, but with an odd last chunk."""

    def script(request: Request, answer: Answer) -> None:
        answer.event(answers.delta("x"))
        answer.event(answers.delta(finish="stop"))
        if answers.asks_usage(request):
            answer.event({**answers.usage_chunk(), "usage": usage, "metrics": metrics})
        answer.event("[DONE]")

    return script


@pytest.mark.parametrize(
    "metrics",
    [
        7,
        "text",
        [],
        {"queue_time_ms": "fast"},
        {"queue_time_ms": -1},
        {"queue_time_ms": True},
        {"queue_time_ms": 1e300},
        {"queue_time_ms": None, "time_to_first_token_ms": {}},
        {"speculative_decoding": "yes"},
    ],
    ids=repr,
)
def test_odd_engine_figures(mode: str, server: Server, metrics: Any) -> None:
    """Figures that cannot be are unknown, not zero, and not an error of llmtrace's."""
    server.play(odd_metrics(metrics))
    row = recorded(lambda: read(mode, server))
    assert (row.outcome, row.stages.queue, row.stages.prefill) == ("success", None, None)
    assert row.output_tokens == 5


@pytest.mark.parametrize(
    "usage", [{}, {"prompt_tokens": "many"}, {"completion_tokens": -5}], ids=repr
)
def test_odd_usage(mode: str, server: Server, usage: Any) -> None:
    """Counts that cannot be are unknown, and the engine's figures are still read."""
    server.play(odd_metrics(answers.METRICS, usage))
    chunks: list[Any] = []
    row = recorded(lambda: chunks.extend(read(mode, server)))
    assert len(chunks) == 2
    assert (row.prompt_tokens, row.output_tokens) == (None, None)
    assert row.timeline.queue is not None
    assert row.timeline.queue.ns == 1_500_000


def test_choices_that_hold_nothing(mode: str, server: Server) -> None:
    """Chunks without a delta, as some gateways send them, are no content and no error."""
    hole = {**answers.delta(), "choices": [{"index": 0, "delta": None, "finish_reason": None}]}
    empty = {**answers.delta(), "choices": []}
    server.play(answers.events(empty, hole, answers.delta("x"), answers.delta(finish="stop")))
    row = recorded(lambda: read(mode, server))
    assert (row.outcome, row.chunks) == ("success", 1)
    assert failopen.internal_errors() == {}


@pytest.mark.parametrize(
    "timing", ["gateway;dur=abc", ";;;", "gateway;dur=" + "9" * 400, "é;dur=1", "gateway", ","]
)
def test_odd_headers(mode: str, server: Server, timing: str) -> None:
    """Headers that make no sense say nothing."""
    server.play(
        answers.chat(headers={"server-timing": timing, "x-litellm-overhead-duration-ms": "x"})
    )

    def check(row: Row) -> None:
        assert (row.outcome, row.stages.gateway) == ("success", None)

    check(recorded(lambda: read(mode, server)))
