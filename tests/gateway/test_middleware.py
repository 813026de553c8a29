"""Is a gateway's self time measured, written and exposed, and the response else unchanged?"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.routing import Mount

import llmtrace
from llmtrace import ConfigError, gateway
from llmtrace.core.row import Row
from llmtrace.core.stages import EngineFigures, Reported
from llmtrace.gateway import asgi_request
from llmtrace.runtime import proxied_request, runtime
from llmtrace.testing import FakeClock, capture, fake_stream

from .asgi import (
    DONE,
    LLMTRACE,
    ROLE,
    SSE,
    WORD,
    Spans,
    ask,
    ms,
    read_all,
    start,
    streams,
    through,
)

JSON = [(b"content-type", b"application/json"), (b"content-length", b"2")]
MS = 1_000_000


def waiting(clock: FakeClock, seconds: float) -> Any:
    """Return a step that waits on an upstream llmtrace cannot see."""

    def step() -> None:
        with gateway.upstream():
            clock.advance(seconds)

    return step


def recorded(clock: FakeClock, *gaps: float, reported: EngineFigures | None = None) -> Any:
    """Return a step that reads a recorded stream to its end, maybe with an engine's figures."""

    @llmtrace.trace
    def answer() -> Any:
        yield from fake_stream(["a"] * len(gaps), clock, gaps)
        recording = runtime.current.get()
        if reported is not None and recording is not None:
            recording.engine.append(reported)

    return lambda: list(answer())


def engine(queue_ms: int, prefill_ms: int) -> EngineFigures:
    """Return the figures of an engine."""
    return EngineFigures(
        queue=Reported(queue_ms * MS, "engine_inband"),
        prefill=Reported(prefill_ms * MS, "engine_inband"),
    )


def whole(clock: FakeClock, *steps: Any, status: int = 200, headers: Any = JSON) -> Any:
    """Make an application that responds in one piece."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_all(receive)
        for step in steps:
            step() if callable(step) else clock.advance(step)
        await send(start(headers, status))
        await send({"type": "http.response.body", "body": b"{}"})

    return app


# --- what is measured ---------------------------------------------------------------------------


def test_a_whole_answer_tells_all_in_its_header(clock, spans):
    """Own time before and after the upstream call; the waiting is not in it."""
    answer = ask(through(whole(clock, 0.05, waiting(clock, 0.3), 0.002)))

    assert ms(answer.timing) == [52]
    assert spans.one.attributes["llmtrace.gateway.self"] == 0.052
    assert spans.one.attributes["llmtrace.gateway.upstream"] == 0.3
    assert answer.body == b"{}"


def test_a_streams_header_has_what_was_spent_so_far(clock, spans):
    """The rest is in the gateway's span, for all clients that are not llmtrace."""
    app = streams(clock, 0.05, ROLE, waiting(clock, 0.3), 0.004, WORD, 0.2, WORD, DONE)
    answer = ask(through(app))

    assert ms(answer.timing) == [50]
    assert answer.body == ROLE + WORD + WORD + DONE
    assert spans.one.attributes["llmtrace.gateway.self"] == 0.054


def test_a_stream_tells_llmtrace_the_rest_in_a_comment(clock, spans):
    """Right after the first content, between two events."""
    app = streams(clock, 0.05, ROLE, recorded(clock, 0.3), 0.004, WORD, 0.2, WORD, DONE)
    answer = ask(through(app), LLMTRACE)

    assert ms(answer.timing) == [50]
    assert [ms(reported) for reported in answer.comments] == [[54]]
    assert answer.bodies[0] == ROLE
    assert answer.bodies[1].startswith(WORD + b":\tllmtrace ")
    assert answer.bodies[2:] == [WORD, DONE, b""]


def test_what_follows_the_first_content_is_not_measured(clock, spans):
    """A client's decode is what the stream takes."""
    app = streams(clock, recorded(clock, 0.1), WORD, 5.0, WORD, recorded(clock, 5.0), DONE)
    answer = ask(through(app), LLMTRACE)

    assert [ms(reported) for reported in answer.comments] == [[0]]
    assert spans.one.attributes["llmtrace.gateway.upstream"] == 0.1
    assert spans.one.attributes["llmtrace.gateway.calls"] == 1


def test_another_kind_of_stream(clock, spans):
    """The first byte of a body that is no event stream is its first content; no comments there."""
    app = streams(
        clock, 0.01, b"", waiting(clock, 0.2), 0.005, b"{}\n", headers=[(b"content-type", b"x")]
    )
    answer = ask(through(app), LLMTRACE)

    assert answer.body == b"{}\n"
    assert spans.one.attributes["llmtrace.gateway.self"] == 0.015


def test_a_slow_upload_is_its_callers(clock, spans):
    """Waiting for the rest of the request is neither the gateway's nor the upstream's time."""

    async def received() -> Any:
        clock.advance(0.7)
        return {"type": "http.request", "body": b"{}", "more_body": False}

    answer = ask(through(whole(clock, 0.05, waiting(clock, 0.1))), receive=received)

    assert ms(answer.timing) == [50]
    assert spans.one.attributes["llmtrace.gateway.caller"] == 0.7


def test_listening_for_a_disconnect_is_no_waiting(clock, spans):
    """Frameworks listen while they respond."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_all(receive)
        listening = asyncio.create_task(receive())
        await asyncio.sleep(0)
        clock.advance(0.05)
        await send(start(JSON, 503))
        await send({"type": "http.response.body", "body": b"{}"})
        listening.cancel()

    assert ms(ask(through(app)).timing) == [50]


steps = st.lists(
    st.tuples(st.sampled_from(["own", "wait", "call"]), st.integers(0, 10**6)), max_size=12
)


@given(steps, st.booleans())
def test_own_and_upstream_add_up_to_the_time_to_the_first_content(some, streamed):
    """To the nanosecond, for any order of work and waiting, and exposed as it is written."""
    clock, sink = FakeClock(1_000_000_000), Spans()
    doing = {
        "own": lambda s: lambda: clock.advance(s),
        "wait": lambda s: waiting(clock, s),
        "call": lambda s: recorded(clock, s),
    }
    todo = [doing[what](us / 1e6) for what, us in [*some, ("call", 1)]]
    app = streams(clock, *todo, WORD, 0.3, DONE) if streamed else whole(clock, *todo)
    begun = clock()
    with capture(clock=clock, sinks=[sink]):
        answer = ask(through(app), LLMTRACE)
    total = clock() - begun - (300 * MS if streamed else 0)

    reported = (answer.comments or [answer.timing])[-1]
    own = round(sink.one.attributes["llmtrace.gateway.self"] * 1e9)
    upstream = round(sink.one.attributes["llmtrace.gateway.upstream"] * 1e9)
    assert own == sum(1000 * us for what, us in some if what == "own")
    assert own + upstream == total
    assert ms(reported) == [own / MS]


# --- what cannot be known -----------------------------------------------------------------------


def test_without_an_upstream_call_the_own_time_is_unknown(clock, spans):
    """The waiting was not observed, so that all of it would count as the gateway's own."""
    answer = ask(through(whole(clock, 0.5)))

    assert ms(answer.timing) == [None]
    assert "llmtrace.gateway.self" not in spans.one.attributes


def test_a_figure_is_taken_back_that_turns_out_to_be_none(clock, spans, caplog, monkeypatch):
    """The header of a stream leaves before it is known whether an upstream call can be seen."""
    monkeypatch.setattr(asgi_request, "_hinted", False)
    app = through(streams(clock, 0.05, ROLE, 0.5, WORD, DONE))
    with caplog.at_level(logging.WARNING, "llmtrace"):
        answer = ask(app, LLMTRACE)
        ask(app)

    assert ms(answer.timing) == [50]
    assert [ms(reported) for reported in answer.comments] == [[None]]
    assert len(caplog.records) == 1
    assert "llmtrace.gateway.upstream()" in caplog.text


def test_a_refusal_is_all_own(clock, spans):
    """A gateway that rejects a request has called no upstream."""
    answer = ask(through(whole(clock, 0.02, status=429)))

    assert ms(answer.timing) == [20]
    assert spans.one.attributes["http.response.status_code"] == 429
    assert spans.one.error is None


# --- what is passed on --------------------------------------------------------------------------


def test_the_engines_queue_and_prefill(clock, spans):
    """What was learnt of a unary response is known before the gateway's own headers leave."""
    answer = ask(through(whole(clock, recorded(clock, 0.1, reported=engine(5, 80)))))

    assert (ms(answer.timing, "queue"), ms(answer.timing, "prefill")) == ([5], [80])


def test_the_engines_figures_of_a_stream_come_at_its_end(clock, spans):
    """Before `[DONE]`, since a client reads no further; and once, with all that is known."""

    @llmtrace.trace
    def answer() -> Any:
        yield from fake_stream(["a", "b"], clock, 0.1)
        runtime.current.get().engine.append(engine(5, 80))

    stream = answer()
    app = streams(
        clock, lambda: next(stream), WORD, lambda: next(stream), WORD, lambda: [*stream], DONE
    )
    reported = ask(through(app), LLMTRACE)

    first, last = reported.comments
    assert (ms(first, "queue"), ms(first, "more")) == ([], [None])
    assert (ms(last, "queue"), ms(last, "prefill"), ms(last, "more")) == ([5], [80], [])
    assert reported.bodies[2].startswith(b":\tllmtrace ")
    assert reported.bodies[2].endswith(DONE)


def test_calls_one_after_another_add_up(clock, spans):
    """The engine's time of a planner's call and of the response's is both the engine's."""
    calls = [
        recorded(clock, 0.1, reported=engine(5, 80)),
        recorded(clock, 0.1, reported=engine(1, 20)),
    ]
    answer = ask(through(whole(clock, *calls)))

    assert (ms(answer.timing, "queue"), ms(answer.timing, "prefill")) == ([6], [100])


def test_calls_of_which_one_is_silent(clock, spans):
    """Half of the engine's time is not passed off as all of it."""
    calls = [recorded(clock, 0.1, reported=engine(5, 80)), recorded(clock, 0.1)]

    assert ms(ask(through(whole(clock, *calls))).timing, "queue") == []


def test_calls_side_by_side_tell_nothing_of_the_engine(clock, spans):
    """Their times overlap, and their sum would mean nothing."""

    @llmtrace.trace
    def answer() -> Any:
        yield from fake_stream(["a", "b"], clock, 0.1)
        runtime.current.get().engine.append(engine(5, 80))

    def both() -> None:
        one, other = answer(), answer()
        next(one), next(other), [*one], [*other]

    assert ms(ask(through(whole(clock, both))).timing, "queue") == []


def test_a_call_that_failed_hides_nothing(clock, spans):
    """After a fall-back, the engine that answered is the one whose times count."""

    @llmtrace.trace
    def broken() -> Any:
        clock.advance(0.4)
        raise ConnectionError
        yield

    def falls_back() -> None:
        with pytest.raises(ConnectionError):
            list(broken())
        recorded(clock, 0.1, reported=engine(5, 80))()

    answer = ask(through(whole(clock, falls_back)))

    assert ms(answer.timing, "queue") == [5]
    assert ms(answer.timing) == [400]


@pytest.mark.parametrize("source", ["client_bound", "engine_window", "estimated"])
def test_what_is_no_measurement_of_this_request_is_not_passed_on(clock, spans, source):
    """A bound or an average would come out as a measurement at the other end."""
    reported = EngineFigures(prefill=Reported(80 * MS, source))

    answer = ask(through(whole(clock, recorded(clock, 0.1, reported=reported))))

    assert ms(answer.timing, "prefill") == []


def behind(clock: FakeClock, reported: str, headers: dict[str, str] | None = None) -> Any:
    """Return a step that calls a gateway which exposes its time in its headers."""

    @llmtrace.trace
    def answer() -> Any:
        from llmtrace.instrumentation.headers.propagation import incoming

        clock.advance(0.1)
        incoming(runtime.current.get(), {"server-timing": reported, **(headers or {})})
        yield "a"

    return lambda: list(answer())


def test_a_gateway_behind_this_one(clock, spans):
    """Its time is passed on under its own id, and is no part of this one's."""
    step = behind(clock, 'gateway;dur=7;desc="inner";hop=bb, queue;dur=2, cache;desc=miss')
    answer = ask(through(whole(clock, 0.02, step)))

    assert ms(answer.timing) == [20, 7]
    assert [entry.hop for entry in answer.timing][1:2] == ["bb"]
    assert ms(answer.timing, "queue") == [2]
    assert spans.one.attributes["llmtrace.gateway.self"] == 0.02


def test_work_beside_what_the_upstream_took_costs_nothing(clock, spans):
    """A guard that runs while the engine works has delayed only by what it took longer."""

    @llmtrace.trace
    def answer() -> Any:
        clock.advance(0.01)
        yield None
        clock.advance(0.0001)
        runtime.current.get().engine.append(engine(10, 240))
        yield "a"

    def guarded() -> None:
        stream = answer()
        next(stream)
        clock.advance(0.3)
        list(stream)

    own = 0.01 + 0.3 + 0.0001 - 0.25
    assert ms(ask(through(whole(clock, guarded))).timing) == [pytest.approx(1000 * own)]
    assert spans.one.attributes["llmtrace.gateway.self"] == pytest.approx(own)
    assert spans.one.attributes["llmtrace.gateway.upstream"] == 0.25


def test_a_gateway_behind_this_one_that_is_not_llmtrace(clock, spans):
    """It gets an id here, so that it is not added up twice."""
    step = behind(clock, "", {"x-litellm-overhead-duration-ms": "7"})
    answer = ask(through(whole(clock, 0.02, step)))

    assert ms(answer.timing) == [20, 7]
    assert answer.timing[1].description == "litellm"
    assert answer.timing[1].hop == f"{answer.timing[0].hop}.0.0"


@pytest.mark.parametrize("reported", ['gateway;dur=7;desc="inner";hop=bb', "gateway;dur=7"])
def test_headers_the_application_passes_on_itself(clock, spans, reported):
    """What is in the response already is not added again."""
    passed_on = [*JSON, (b"server-timing", reported.encode())]
    answer = ask(through(whole(clock, 0.02, behind(clock, reported), headers=passed_on)))

    assert ms(answer.timing) == [20, 7]


# --- a cache ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("say", "kind"),
    [
        (lambda: llmtrace.annotate(cache_hit=True), None),
        (gateway.cache_hit, None),
        (lambda: gateway.cache_hit("semantic"), "semantic"),
    ],
)
def test_an_answer_from_a_cache(clock, spans, say, kind):
    """All of its time is the gateway's own, and no engine is reported."""
    answer = ask(through(whole(clock, 0.004, say)))

    assert ms(answer.timing) == [4]
    assert [e.description for e in answer.timing if e.name == "cache"] == ["hit"]
    assert spans.one.attributes["llmtrace.cache_hit"] is True
    assert spans.one.attributes.get("llmtrace.cache_kind") == kind


def test_a_cache_that_had_no_answer(clock, spans):
    """Both are worth knowing."""
    app = whole(clock, lambda: llmtrace.annotate(cache_hit=False), recorded(clock, 0.1))
    answer = ask(through(app))

    assert [e.description for e in answer.timing if e.name == "cache"] == ["miss"]
    assert spans.one.attributes["llmtrace.cache_hit"] is False


def test_a_cache_behind_this_gateway(clock, spans):
    """A hit further on is passed on; the engine's figures in what it kept are not."""
    step = behind(clock, "gateway;dur=7;hop=bb, cache;desc=hit, queue;dur=5")
    answer = ask(through(whole(clock, step)))

    assert [e.description for e in answer.timing if e.name == "cache"] == ["hit"]
    assert ms(answer.timing, "queue") == []


def test_a_cached_stream_tells_all_at_once(clock, spans):
    """Nothing can be added later."""
    app = streams(clock, gateway.cache_hit, 0.004, WORD, WORD, DONE)
    answer = ask(through(app), LLMTRACE)

    assert [ms(reported) for reported in answer.comments] == [[4]]
    assert ms(answer.comments[0], "more") == []


def test_a_kind_of_cache_that_is_no_word(clock, spans, faulty):
    """It is left out, and the hit counts."""
    ask(through(whole(clock, lambda: gateway.cache_hit("a long story"))))

    assert spans.one.attributes["llmtrace.cache_hit"] is True
    assert "llmtrace.cache_kind" not in spans.one.attributes


def test_outside_a_gateway_nothing_is_said():
    """The same code may run in a worker."""
    gateway.cache_hit("exact")
    with gateway.upstream() as headers:
        pass

    assert headers == {}


# --- what the application says ------------------------------------------------------------------


def test_annotations_are_the_requests(clock, spans):
    """Outside a request of the gateway's own they are for the one that passes through."""

    def say() -> None:
        llmtrace.annotate(tenant="acme", route="chat", cache_hit=False, tries=3)

    ask(through(whole(clock, say)))

    assert {"llmtrace.tenant": "acme", "llmtrace.route": "chat", "tries": 3}.items() <= (
        spans.one.attributes.items()
    )


def test_annotations_inside_a_recorded_request_are_its_own(clock, spans):
    """But for the cache, which both record."""

    @llmtrace.trace
    def answer() -> str:
        llmtrace.annotate(tenant="acme", cache_hit=True)
        return "cached"

    ask(through(whole(clock, answer)))

    [row] = spans.rows
    assert (row.tenant, row.cache_hit) == ("acme", True)
    assert spans.one.attributes["llmtrace.cache_hit"] is True
    assert "llmtrace.tenant" not in spans.one.attributes


def test_a_failed_wait_is_own(clock, spans):
    """A fall-back's cost is the gateway's."""

    def refused() -> None:
        with gateway.upstream():
            clock.advance(0.2)
            raise OSError("gone")

    def fails() -> None:
        with pytest.raises(OSError, match="gone"):
            refused()

    answer = ask(through(whole(clock, fails, waiting(clock, 0.1))))

    assert ms(answer.timing) == [200]


# --- trace context ------------------------------------------------------------------------------

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_the_callers_trace_goes_on(clock, spans):
    """The gateway's span is its child, and what is recorded inside is a child of that."""
    given = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    sent: dict[str, str] = {}

    def upstream() -> None:
        with gateway.upstream() as headers:
            sent.update(headers)

    answer = ask(through(whole(clock, upstream, recorded(clock, 0.1))), given)

    span, [row] = spans.one, spans.rows
    assert (span.trace_id, span.parent_span_id, span.kind) == (TRACE, PARENT, "server")
    assert (row.trace_id, row.parent_span_id) == (TRACE, span.span_id)
    assert sent["traceparent"] == f"00-{TRACE}-{span.span_id}-01"
    assert sent["tracestate"] == "vendor=1"
    assert f'traceparent;desc="{sent["traceparent"]}"' in answer.header("server-timing")[0]


@pytest.mark.parametrize("given", [{}, {"traceparent": "00-zz-zz-01"}, {"traceparent": ""}])
def test_without_a_callers_trace_one_begins(clock, spans, given):
    """What is malformed is none."""
    ask(through(whole(clock, recorded(clock, 0.1))), given)

    span, [row] = spans.one, spans.rows
    assert span.parent_span_id is None
    assert (row.trace_id, row.parent_span_id) == (span.trace_id, span.span_id)


def test_an_unsampled_trace_is_not_written(clock, spans):
    """Its client has decided; the response has the same."""
    answer = ask(
        through(whole(clock, recorded(clock, 0.1))), {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    )

    assert (spans.finished, spans.rows) == ([], [])
    assert ms(answer.timing) == [0]


def test_sampling_leaves_out_spans_as_it_leaves_out_rows(clock):
    """One decision applies to the trace."""
    sink = Spans()
    with capture(clock=clock, sample=0.0, sinks=[sink]):
        ask(through(whole(clock, recorded(clock, 0.1))))

    assert (sink.finished, sink.rows) == ([], [])


def test_the_request_id_goes_both_ways(clock, spans):
    """Upstream it is the first call's id; downstream it is returned."""
    answer = ask(through(whole(clock, recorded(clock, 0.1))), {"x-request-id": "order-7"})

    assert spans.rows[0].request_id == "order-7"
    assert answer.header("x-request-id") == ["order-7"]
    assert spans.one.attributes["llmtrace.request_id"] == "order-7"


@pytest.mark.parametrize("given", ["", "a b", "x" * 200, "a\xe9"])
def test_a_request_id_that_is_none(clock, spans, given):
    """What could not be sent on is replaced."""
    answer = ask(through(whole(clock)), {"x-request-id": given})

    assert answer.header("x-request-id") == [f"lt-{spans.one.span_id}"]


def test_the_applications_own_request_id_stays(clock, spans):
    """It is not sent twice."""
    app = whole(clock, headers=[*JSON, (b"X-Request-Id", b"theirs")])

    assert ask(through(app)).header("x-request-id") == []


# --- what is left alone -------------------------------------------------------------------------


def test_bytes_are_the_same_for_everybody_who_is_not_llmtrace(clock, spans):
    """No body is touched, whatever it is."""
    bodies = [ROLE, WORD + b"data: half", b" an event\n\n", b"\n", DONE]
    app = streams(clock, recorded(clock, 0.1), *bodies)

    assert ask(through(app)).bodies == [*bodies, b""]


def test_messages_are_passed_at_once_and_in_order(clock, spans):
    """Nothing is delayed: each is out before the application goes on."""
    out: list[bytes] = []

    async def sent(message: Any) -> None:
        out.append(message.get("body", b"start"))

    seen: list[int] = []
    look = lambda: seen.append(len(out))  # noqa: E731
    app = streams(clock, look, ROLE, look, WORD, look, DONE, look)
    ask(through(app), LLMTRACE, send=sent)

    assert seen == [0, 2, 3, 4]


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")],
        [(b"content-type", b"text/event-stream"), (b"content-length", b"500")],
        [(b"content-type", b"application/x-ndjson")],
    ],
    ids=["compressed", "of a known length", "lines of JSON"],
)
def test_streams_that_can_have_no_comments(clock, spans, headers):
    """Where a comment would break the body, there is none."""
    app = streams(clock, recorded(clock, 0.1), WORD, DONE, headers=headers)

    assert ask(through(app), LLMTRACE).body == WORD + DONE


def test_a_comment_waits_for_the_end_of_an_event(clock, spans):
    """However an application cuts its events, none is cut in two."""
    pieces = [WORD + b"data: ha", b"lf\n", b"\n", DONE]
    answer = ask(through(streams(clock, recorded(clock, 0.1), *pieces)), LLMTRACE)

    assert answer.bodies[:2] == pieces[:2]
    assert answer.bodies[2].startswith(b"\n:\tllmtrace ")
    assert answer.bodies[3] == DONE


def test_a_whole_stream_in_one_piece(clock, spans):
    """The comment comes before the end, where clients stop reading."""
    answer = ask(through(streams(clock, recorded(clock, 0.1), WORD + WORD + DONE)), LLMTRACE)

    assert answer.bodies[0].startswith(WORD + WORD + b":\tllmtrace ")
    assert answer.bodies[0].endswith(b"\n\n" + DONE)


def test_a_stream_without_content(clock, spans):
    """Its end is all there is to measure up to."""
    answer = ask(through(streams(clock, 0.03, recorded(clock, 0.1), ROLE, DONE)), LLMTRACE)

    assert spans.one.attributes["llmtrace.gateway.self"] == 0.03
    assert answer.body.startswith(ROLE)


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_other_connections_pass(kind, spans):
    """They pass unchanged."""
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.extend(given)

    scope, receive, send = {"type": kind}, object(), object()
    asyncio.run(through(app)(scope, receive, send))

    assert seen == [scope, receive, send]
    assert spans.finished == []


def test_without_init_nothing_happens(clock):
    """A middleware that is not switched on passes all through."""
    app = whole(clock, 0.5)
    answer = ask(through(app), LLMTRACE)

    assert [name for name, _ in answer.messages[0]["headers"]] == [name for name, _ in JSON]


def test_uninteresting_paths_are_skipped(clock, spans):
    """Health checks make no spans."""
    ask(through(whole(clock)), path="/healthz")
    ask(through(whole(clock), skip=["/internal"]), path="/internal")

    assert spans.finished == []


def test_twice_around_the_same_application_is_once(clock, spans):
    """A mounted application may have its own."""
    answer = ask(through(through(whole(clock, 0.02, waiting(clock, 0.1)))))

    assert ms(answer.timing) == [20]
    assert len(spans.finished) == 1


def test_clients_need_not_get_the_times(clock, spans):
    """The trace still has it all."""
    app = streams(clock, 0.02, recorded(clock, 0.1), WORD, DONE)
    answer = ask(through(app, tell=False), LLMTRACE)

    assert (answer.timing, answer.body) == ([], WORD + DONE)
    assert spans.one.attributes["llmtrace.gateway.self"] == 0.02


def test_a_fault_inside_leaves_the_answer_alone(clock, spans, monkeypatch, faulty):
    """Whatever breaks in here, bytes and order stay."""
    monkeypatch.setattr(asgi_request, "entries", lambda *_: 1 / 0)
    answer = ask(through(streams(clock, recorded(clock, 0.1), ROLE, WORD, DONE)), LLMTRACE)

    assert answer.bodies == [ROLE, WORD, DONE, b""]
    assert answer.messages[0]["headers"] == SSE


def test_a_fault_at_the_start_leaves_the_request_alone(clock, spans, monkeypatch, faulty):
    """Then it goes through unmeasured."""
    monkeypatch.setattr(asgi_request, "MessageRequest", lambda *_, **__: 1 / 0)
    answer = ask(through(whole(clock)), LLMTRACE)

    assert (answer.status, answer.body, answer.error) == (200, b"{}", None)


# --- how it ends --------------------------------------------------------------------------------


def test_the_span_of_a_request(clock, spans):
    """What OpenTelemetry says of a server's request is said the same way."""
    ask(through(whole(clock, 0.02, waiting(clock, 0.1))), {"x-request-id": "order-7"})

    span = spans.one
    assert (span.name, span.service, span.start, span.duration_ns) == ("POST", "test", 5, 120 * MS)
    assert span.attributes == {
        "llmtrace.gateway": "edge",
        "llmtrace.gateway.self": 0.02,
        "llmtrace.gateway.upstream": 0.1,
        "llmtrace.gateway.calls": 1,
        "llmtrace.request_id": "order-7",
        "llmtrace.outcome": "success",
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "http.response.status_code": 200,
    }


@pytest.mark.parametrize(
    ("path", "root_path", "route"),
    [
        ("/ask/7", "", "/ask/{number}"),
        ("/one/ask/7", "", "/one/ask/{number}"),
        ("/of/acme/ask/7", "", "/of/{tenant}/ask/{number}"),
        ("/api/one/ask/7", "/api", "/one/ask/{number}"),  # the server's own prefix is no mount
    ],
)
@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.usefixtures("clock")
def test_the_route_of_a_mounted_application(path, root_path, route, outside, spans):
    """Two that are mounted side by side have routes of their own."""
    inner = FastAPI()

    @inner.post("/ask/{number}")
    async def answer(number: str) -> str:
        return number

    inside: Any = inner if outside else gateway.Middleware(inner, name="edge")
    app: Any = Starlette(
        routes=[Mount("/one", inside), Mount("/of/{tenant}", inside), Mount("", inside)]
    )
    scope = {
        "type": "http", "method": "POST", "headers": [], "query_string": b"",
        "path": path, "root_path": root_path,
    }  # fmt: skip

    async def received() -> Any:
        return {"type": "http.request", "body": b""}

    async def sent(_: Any) -> None: ...

    asyncio.run((gateway.Middleware(app, name="edge") if outside else app)(scope, received, sent))

    assert spans.one.attributes["http.route"] == route
    assert spans.one.name == f"POST {route}"


def test_an_exception_passes_untouched(clock, spans):
    """The server sees what it would have seen, and the span says so."""
    broken = ValueError("no such model")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise broken

    answer = ask(through(app))

    assert answer.error is broken
    assert (spans.one.error, spans.one.attributes["llmtrace.outcome"]) == ("ValueError", "error")


def test_an_exception_within_a_stream(clock, spans):
    """What was sent was sent."""

    def breaks() -> None:
        raise ConnectionError("gone")

    answer = ask(through(streams(clock, recorded(clock, 0.1), WORD, breaks)))

    assert isinstance(answer.error, ConnectionError)
    assert answer.bodies == [WORD]
    assert spans.one.attributes["error.type"] == "ConnectionError"


def test_a_server_error_without_an_exception(clock, spans):
    """A framework that responds 500 itself has failed all the same."""
    ask(through(whole(clock, status=503)))

    assert (spans.one.error, spans.one.attributes["llmtrace.outcome"]) == ("503", "error")


def test_a_background_task_is_not_counted(clock, spans):
    """The request is over with its last byte; what fails after it is another matter."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(clock, 0.02, waiting(clock, 0.1))(scope, receive, send)
        recorded(clock, 60.0)()
        raise RuntimeError("later")

    answer = ask(through(app))

    assert isinstance(answer.error, RuntimeError)
    assert (spans.one.duration_ns, spans.one.error) == (120 * MS, None)
    assert spans.one.attributes["llmtrace.gateway.calls"] == 1


def test_a_file_that_the_server_sends(clock, spans):
    """Servers that send files themselves get its path in place of a body."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start(JSON))
        await send({"type": "http.response.pathsend", "path": "/nowhere"})

    answer = ask(through(app))

    assert answer.messages[-1] == {"type": "http.response.pathsend", "path": "/nowhere"}
    assert spans.one.attributes["llmtrace.outcome"] == "success"


def test_a_client_that_leaves(clock, spans):
    """The application is notified, and stops in the middle; that is no error of the gateway's."""

    async def received() -> Any:
        return {"type": "http.disconnect"}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send({"type": "http.response.body", "body": WORD, "more_body": True})
        await receive()

    answer = ask(through(app), receive=received)

    assert answer.error is None
    assert (spans.one.error, spans.one.attributes["llmtrace.outcome"]) == (None, "cancelled")


@pytest.mark.parametrize("early", [True, False])
def test_a_body_that_is_ended_for_a_client_that_has_left(early, clock, spans):
    """As Starlette's BaseHTTPMiddleware does. One that leaves after the end has it all."""

    async def received() -> Any:
        return {"type": "http.disconnect"}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send({"type": "http.response.body", "body": WORD, "more_body": True})
        if early:
            await receive()
        await send({"type": "http.response.body", "body": b""})
        await receive()

    ask(through(app), receive=received)

    outcome = "cancelled" if early else "success"
    assert (spans.one.error, spans.one.attributes["llmtrace.outcome"]) == (None, outcome)


def test_a_cancelled_request(clock, spans):
    """Cancellation passes through, as it must."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        raise asyncio.CancelledError

    answer = ask(through(app))

    assert isinstance(answer.error, asyncio.CancelledError)
    assert spans.one.attributes["llmtrace.outcome"] == "cancelled"


def test_an_answer_that_just_stops(clock, spans):
    """A server truncates such a response."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())

    ask(through(app))

    assert spans.one.attributes["llmtrace.outcome"] == "truncated"


def test_nothing_is_left_behind(clock, spans):
    """After a request, no request is current."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(runtime.current.get())
        raise ValueError("broken")

    seen: list[Any] = []

    async def run() -> Any:
        with pytest.raises(ValueError, match="broken"):
            await through(app)(
                {"type": "http", "headers": [], "method": "POST", "path": "/"}, None, None
            )
        return proxied_request.current.get()

    assert asyncio.run(run()) is None
    assert seen == [None]


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, 5, "é", '"'])
def test_a_name_that_is_no_label(name):
    """It is reported at once, with the fix."""
    with pytest.raises(ConfigError, match="short word"):
        gateway.Middleware(whole(FakeClock()), name=name)


@pytest.mark.parametrize("skip", ["/health", [5]])
def test_paths_that_are_none(skip):
    """To leave out the brackets is an easy slip."""
    with pytest.raises(ConfigError, match='skip=\\["/health"\\]'):
        gateway.Middleware(whole(FakeClock()), skip=skip)


@pytest.mark.parametrize(
    ("service", "name"), [("my shop", "my-shop"), ("shop", "shop"), ("é", "gateway")]
)
def test_without_a_name_it_is_the_services(clock, service, name):
    """Made a label, where it is none."""
    sink = Spans()
    with capture(clock=clock, service=service, sinks=[sink]):
        answer = ask(gateway.Middleware(whole(clock)))

    assert answer.timing[0].description == name
    assert sink.one.attributes["llmtrace.gateway"] == name


def test_rows_are_no_spans(clock, spans):
    """A gateway's own request upstream is a row of its own."""
    ask(through(whole(clock, recorded(clock, 0.1))))

    assert [type(row) for row in spans.rows] == [Row]
