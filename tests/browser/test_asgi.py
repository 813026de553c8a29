"""Does an application inside the middleware go on as before, and hear from its pages?"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace as otel_trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)

import llmtrace
from llmtrace import gateway
from llmtrace.browser import Middleware, pending_rows, script
from llmtrace.browser.beacon import MAX_BYTES
from llmtrace.core.browser_timing import ON_WIRE, unflatten
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.core.span import Span
from llmtrace.testing import capture
from tests.support.internal_errors import reset_internal_errors
from tests.support.taking_time import aspend

TRACE, SPAN = "1" * 32, "2" * 16
MARK = "-".join(["1" * 8] * 4 + ["2" * 8] * 2)
PAGE = f"x-llmtrace-{MARK}"
BEACON = {
    "trace_id": TRACE, "span_id": SPAN, "e2e_ms": 1500, "ttft_ms": 300, "held_after_ms": 200,
    "chunks": 2, "outcome": "success", "age_ms": 20,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_threads_stay() -> Iterator[None]:
    """End the threads that let rows go on in time."""
    yield
    for one in list(pending_rows._all):
        one._worker.begin_close()


class NoSampler(otel_trace.TracerProvider):
    """A provider of another make than OpenTelemetry's own SDK."""

    def get_tracer(self, *_: Any, **__: Any) -> otel_trace.Tracer:
        """Make a tracer that records nothing."""
        return otel_trace.NoOpTracer()


class Spans:
    """A sink that keeps the spans it is given."""

    every_row = True
    spans = True

    def __init__(self) -> None:
        self.kept: list[Span] = []

    def write(self, item: Any) -> None:
        """Keep what is no row."""
        if isinstance(item, Span):
            self.kept.append(item)


@llmtrace.trace(model="tiny")
async def answer():
    """Answer in two chunks."""
    for word in ("Hello, ", "world"):
        await asyncio.sleep(0)
        yield word


async def application(scope, receive, send) -> None:
    """Stream a response, whatever was requested."""
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    async for word in answer():
        await send({"type": "http.response.body", "body": word.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def ask(
    app: Any, path: str, body: bytes = b"", method: str = "GET", query: str = "", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Send one request through an application; return status, headers and body of its response."""
    parts = [body[at : at + 1000] for at in range(0, len(body), 1000)] or [b""]
    inbox = [
        {"type": "http.request", "body": part, "more_body": number + 1 < len(parts)}
        for number, part in enumerate(parts)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return inbox.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    raw = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    scope = {
        "type": "http", "method": method, "path": path, "root_path": "",
        "query_string": query.encode(), "headers": [(b"host", b"shop.example"), *raw],
    }  # fmt: skip
    await app(scope, receive, send)
    found = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(m.get("body", b"") for m in sent[1:])


def post(app: Any, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Send a beacon."""
    return asyncio.run(ask(app, "/llmtrace/beacon", body, "POST", **headers))


def report(**figures: Any) -> bytes:
    """Make a beacon's body."""
    return json.dumps({**BEACON, **figures}).encode()


# --- the script ---------------------------------------------------------------------------------


def test_the_script_is_served():
    """As it is for old ears, compressed for others, and below 6 kB on the wire."""
    app = Middleware(application)
    status, headers, body = asyncio.run(ask(app, "/llmtrace/llmtrace.js"))
    _, packed_headers, packed = asyncio.run(
        ask(app, "/llmtrace/llmtrace.js", accept_encoding="br, gzip")
    )

    assert (status, body.decode()) == (200, script())
    assert headers["content-type"].startswith("text/javascript")
    assert packed_headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == body
    assert len(packed) < 6000


def test_the_module_is_the_script_with_exports():
    """One file, two ways to load it."""
    app = Middleware(application, path="/static/llm")
    _, _, body = asyncio.run(ask(app, "/static/llm/llmtrace.mjs"))

    assert body.decode().startswith(script())
    assert "\nexport {fetch, EventSource, configure};" in body.decode()


def test_head_and_other_names():
    """A HEAD has no body; what is not there is not found, and not the application's."""
    app = Middleware(application)

    assert asyncio.run(ask(app, "/llmtrace/llmtrace.js", method="HEAD"))[2] == b""
    assert asyncio.run(ask(app, "/llmtrace/else"))[0] == 404
    assert asyncio.run(ask(app, "/llmtrace/beacon"))[0] == 404


# --- beacons ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (report(), {}, 204),
        (report(), {"origin": "https://shop.example"}, 204),
        (report(), {"origin": "https://friend.example"}, 204),
        (report(), {"origin": "https://evil.example"}, 403),
        (report(), {"origin": "null"}, 403),
        (report(e2e_ms=-1), {}, 400),
        (b"\xff", {}, 400),
        (b"", {}, 400),
        (b"x" * (MAX_BYTES + 1), {}, 413),
    ],
)
def test_beacons_are_taken_or_refused(body, headers, status):
    """By who sends them, how long they are, and what they say."""
    app = Middleware(application, origins=["https://friend.example"])

    assert post(app, body, **headers)[0] == status


def test_a_page_of_another_origin_may_ask_first():
    """A preflight is answered for the origins that are allowed."""
    app = Middleware(application, origins=["https://friend.example"])
    friend = asyncio.run(
        ask(app, "/llmtrace/beacon", method="OPTIONS", origin="https://friend.example")
    )
    other = asyncio.run(ask(app, "/llmtrace/beacon", method="OPTIONS", origin="https://x.example"))

    assert friend[0] == 204
    assert friend[1]["access-control-allow-origin"] == "https://friend.example"
    assert other[0] == 403


def test_any_origin_can_be_welcome():
    """If the application says so."""
    app = Middleware(application, origins=["*"])

    assert post(app, report(), origin="null")[1]["access-control-allow-origin"] == "*"


def test_no_more_is_read_than_may_come():
    """A body that does not end is left where it is."""
    read = 0

    async def endless() -> dict[str, Any]:
        nonlocal read
        read += 1
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def send(_: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/llmtrace/beacon", "headers": []}
    asyncio.run(Middleware(application)(scope, endless, send))

    assert read == MAX_BYTES // 1000 + 1


@given(st.binary(max_size=300), st.binary(max_size=60))
def test_nothing_a_page_sends_breaks_the_server(body, header):
    """Any body and any header is answered."""
    app = Middleware(application)
    with capture():
        assert post(app, body)[0] in {204, 400}
        asked = asyncio.run(ask_raw(app, header))

    assert asked == b"Hello, world"


async def ask_raw(app: Any, header: bytes) -> bytes:
    """Ask with arbitrary bytes where the page's id belongs, in the header and the address."""
    sent = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))

    scope = {
        "type": "http", "method": "GET", "path": "/", "query_string": b"llmtrace=" + header,
        "headers": [(b"content-language", b"x-llmtrace-" + header)] if header else [],
    }  # fmt: skip
    await app(scope, receive, send)
    return b"".join(sent)


# --- rows ---------------------------------------------------------------------------------------


def test_a_pages_row_is_joined_by_its_beacon():
    """It is in the page's trace, waits for the beacon, and comes out once."""
    spans = Spans()
    app = Middleware(application)
    with capture(sinks=[spans]) as rows:
        status, _, body = asyncio.run(ask(app, "/chat", content_language=PAGE))
        assert (status, body, rows) == (200, b"Hello, world", [])
        assert post(app, report())[0] == 204

    [row] = rows
    assert (row.trace_id, row.parent_span_id) == (TRACE, SPAN)
    assert (row.e2e_s, row.browser.chunks) == (1.5, 2)
    assert row.stages.render == 200_000_000
    assert row.stages.total == row.e2e_ns
    [span] = spans.kept
    assert (span.trace_id, span.span_id, span.parent_span_id) == (TRACE, SPAN, None)
    assert (span.name, span.duration_ns) == ("llmtrace.browser", row.e2e_ns)
    assert unflatten(span.attributes, ON_WIRE).e2e_ns == row.e2e_ns


def test_the_address_may_carry_the_id():
    """An EventSource cannot send headers."""
    app = Middleware(application)
    with capture() as rows:
        asyncio.run(ask(app, "/chat", query=f"q=1&llmtrace={MARK}"))
        post(app, report())

    assert [row.trace_id for row in rows] == [TRACE]
    assert rows[0].browser is not None


def test_other_requests_are_passed_on_as_they_are():
    """Without the script's mark nothing waits, whatever trace it belongs to."""
    app = Middleware(application)
    with capture() as rows:
        asyncio.run(ask(app, "/chat", traceparent=f"00-{TRACE}-{SPAN}-01"))
        asyncio.run(ask(app, "/chat", content_language="x-llmtrace-nonsense"))

        assert [row.browser for row in rows] == [None, None]


def test_a_gateway_inside_measures_the_application():
    """Its own time, all but the waiting on its calls, is what the page's row says of gateways."""

    async def slow(scope, receive, send) -> None:
        await aspend(0.05)
        await application(scope, receive, send)

    app = Middleware(gateway.Middleware(slow))
    with capture() as rows:
        asyncio.run(ask(app, "/chat", content_language=PAGE))
        post(app, report())

    [row] = rows
    assert row.trace_id == TRACE
    assert row.stages.gateway >= 50_000_000
    assert row.stages.total == row.e2e_ns


def test_a_trace_that_is_there_already_stays():
    """Under an instrumented framework rows stay in its trace, and are joined all the same."""
    provider = TracerProvider()
    tracer = provider.get_tracer("framework")

    async def framework(scope, receive, send) -> None:
        with tracer.start_as_current_span("GET /chat"):
            await Middleware_(scope, receive, send)

    Middleware_ = Middleware(application)  # noqa: N806
    with capture() as rows:
        asyncio.run(ask(framework, "/chat", content_language=PAGE))
        post(Middleware_, report())

    assert rows[0].trace_id != TRACE
    assert rows[0].browser is not None


def test_the_applications_own_provider_ends_its_span_joined():
    """Its span is ended once, with what the page measured."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    app = Middleware(application)
    with capture(tracer_provider=provider) as rows:
        asyncio.run(ask(app, "/chat", content_language=PAGE))
        post(app, report())

    spans = {span.name: span for span in exporter.get_finished_spans()}
    row = spans["chat tiny"]
    assert row.attributes["llmtrace.e2e"] == rows[0].e2e_s == 1.5
    assert f"{spans['llmtrace.browser'].context.trace_id:032x}" == TRACE
    assert spans["llmtrace.browser"].parent.span_id == int(SPAN, 16)


def test_without_init_nothing_waits():
    """The script is served and beacons are taken, to no effect."""
    app = Middleware(application)

    assert asyncio.run(ask(app, "/chat", content_language=PAGE))[2] == b"Hello, world"
    assert post(app, report())[0] == 204
    assert len(app._waiting) == 0


def test_joining_can_be_left_to_others():
    """With no time to wait, rows go on at once, and so does the page's span."""
    spans = Spans()
    app = Middleware(application, wait_s=0)
    with capture(sinks=[spans]) as rows:
        asyncio.run(ask(app, "/chat", content_language=PAGE))
        assert [row.browser for row in rows] == [None]
        post(app, report())

    assert [span.trace_id for span in spans.kept] == [TRACE]


def test_strangers_cannot_flood_the_exporters():
    """Of beacons for requests not made here, only so many a second are passed on."""
    reset_internal_errors()
    spans = Spans()
    app = Middleware(application)
    with capture(sinks=[spans]):
        for number in range(300):
            post(app, report(trace_id=f"{number + 1:032x}"))

    assert 50 <= len(spans.kept) < 300
    assert internal_errors()["browser.unknown_dropped"] == 300 - len(spans.kept)
    assert len(app._waiting) == 0


def test_what_is_sampled_out_has_no_span():
    """A page's span is of its trace, and shares its fate."""
    spans = Spans()
    app = Middleware(application)
    with capture(sinks=[spans], sample=0.0) as rows:
        asyncio.run(ask(app, "/chat", content_language=PAGE))
        post(app, report())

    assert [row.browser is not None for row in rows] == [True]
    assert spans.kept == []


class Named(Sampler):
    """A sampler that goes by a root span's name and attributes."""

    def should_sample(self, parent_context, trace_id, name, *_: Any, attributes=None, **__: Any):
        """Leave one path out."""
        taken = name != "GET /health" and (attributes or {}).get("url.path") != "/health"
        return SamplingResult(Decision.RECORD_AND_SAMPLE if taken else Decision.DROP, attributes)

    def get_description(self) -> str:
        """Name it."""
        return "Named"


@pytest.mark.parametrize(
    ("root", "path", "headers", "sampled"),
    [
        (ALWAYS_OFF, "/chat", {}, False),
        (ALWAYS_ON, "/chat", {}, True),
        (TraceIdRatioBased(0.1), "/chat", {}, True),  # of the id 0x11.. that the page made
        (TraceIdRatioBased(0.01), "/chat", {}, False),
        (Named(), "/chat", {}, True),
        (Named(), "/health", {}, False),
        # A page with tracing of its own, which has decided.
        (ALWAYS_ON, "/chat", {"traceparent": f"00-{TRACE}-{'3' * 16}-00"}, False),
        (ALWAYS_OFF, "/chat", {"traceparent": f"00-{TRACE}-{'3' * 16}-01"}, True),
    ],
)
def test_the_applications_sampler_decides_for_a_page(root, path, headers, sampled):
    """As it would for the root of any other trace: the page's mark says nothing about that."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(root))
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def instrumented(scope, receive, send) -> None:
        with provider.get_tracer("framework").start_as_current_span(f"GET {scope['path']}"):
            await application(scope, receive, send)

    app = Middleware(instrumented)
    with capture(tracer_provider=provider) as rows:
        asyncio.run(ask(app, path, content_language=PAGE, **headers))
        post(app, report())

    assert [row.browser is not None for row in rows] == [True]  # sampled or not
    names = {span.name for span in exporter.get_finished_spans()}
    assert names >= {f"GET {path}", "chat tiny", "llmtrace.browser"} if sampled else names == set()


class Broken(Sampler):
    """A sampler with a mistake in it."""

    def should_sample(self, *_: Any, **__: Any):
        """Raise."""
        raise LookupError

    def get_description(self) -> str:
        """Name it."""
        return "Broken"


@pytest.mark.parametrize("provider", [TracerProvider(sampler=Broken()), NoSampler()])
def test_a_sampler_that_cannot_be_asked_is_left_alone(provider):
    """Then the page is no parent of what the application does, and its request is answered."""
    reset_internal_errors()

    async def app_alone(scope, receive, send) -> None:
        assert not otel_trace.get_current_span().get_span_context().is_valid
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})

    with capture(tracer_provider=provider):
        assert (
            asyncio.run(ask(Middleware(app_alone), "/chat", content_language=PAGE))[2] == b"here"
        )
    assert set(internal_errors()) <= {"sampler"}


def test_errors_and_what_follows_are_the_applications():
    """An application that raises does so through the middleware, and leaves no context behind."""

    async def broken(_scope, _receive, _send) -> None:
        assert otel_trace.get_current_span().get_span_context().trace_id == int(TRACE, 16)
        raise LookupError

    app = Middleware(broken)
    with capture(), pytest.raises(LookupError):
        asyncio.run(ask(app, "/chat", content_language=PAGE))

    assert not otel_trace.get_current_span().get_span_context().is_valid


def test_rows_go_on_when_the_server_shuts_down():
    """Before the application shuts down, so that it may close the exporters then."""
    seen: list[int] = []
    with capture() as rows:

        async def app_with_lifespan(scope, receive, send) -> None:
            if scope["type"] == "lifespan":
                await receive()
                seen.append(len(rows))
            else:
                await application(scope, receive, send)

        app = Middleware(app_with_lifespan)
        asyncio.run(ask(app, "/chat", content_language=PAGE))

        async def shut_down() -> None:
            async def receive() -> dict[str, str]:
                return {"type": "lifespan.shutdown"}

            await app({"type": "lifespan"}, receive, None)

        asyncio.run(shut_down())

    assert seen == [1]


@pytest.mark.parametrize(
    "settings",
    [{"path": "llmtrace"}, {"path": "/a/"}, {"origins": "*"}, {"wait_s": -1}, {"max_pending": 0}],
)
def test_wrong_settings_are_said_at_once(settings):
    """Before the first request."""
    with pytest.raises(ConfigError):
        Middleware(application, **settings)
