"""A streamed response read without an SDK is the same row as with one."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import llmtrace
from llmtrace.core.content import ContentPolicy
from llmtrace.core.errors import ConfigError
from llmtrace.core.recording import Recording
from llmtrace.core.row import Row
from llmtrace.core.stages import Reported
from llmtrace.instrumentation import join_call
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.headers.sse_comments import line
from llmtrace.instrumentation.http import aiohttp_bodies, httpx_bodies, llm_requests, sse
from llmtrace.instrumentation.http.llm_requests import model_in
from llmtrace.instrumentation.http.sse import Events
from llmtrace.testing import capture
from tests.support.sse_server import Answer, Request, Server

from . import answers
from .raw import BODY, CELLS, CLIENTS, ask, datas, no_tls, url
from .reading import read

LIBRARIES = ("httpx", "httpx2", "aiohttp")
USAGE_OPTION: dict[str, Any] = {
    endpoint: {"stream_options": {"include_usage": True}} for endpoint in ("chat", "completions")
}
ASKS_USAGE = {**BODY, "stream_options": {"include_usage": True}}


def recorded(act: Callable[[], object], **settings: Any) -> Row:
    """Do something that makes one row, and return it. Its stages add up, or the test fails."""
    with capture(instrument=LIBRARIES, **settings) as rows:
        act()
    [row] = rows
    assert row.stages.total == row.e2e_ns
    return row


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Run a test with every library, sync and async."""
    library, mode = request.param.split("-")
    return library, mode


@pytest.mark.parametrize(("library", "mode", "way"), CELLS)
def test_every_way_to_read(library: str, mode: str, way: str, server: Server) -> None:
    """The bytes are those without llmtrace; the row has what an SDK's would."""
    server.play(answers.chat(head_s=0.02))
    with capture(instrument=()):
        bare = ask(library, mode, url(server), way, body=ASKS_USAGE)
    read: list[bytes] = []
    row = recorded(lambda: read.append(ask(library, mode, url(server), way, body=ASKS_USAGE)))
    assert read == [bare]
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", "stop", 5)
    assert (row.model, row.client, row.operation) == ("tiny", library, "chat")
    assert (row.prompt_tokens, row.output_tokens) == (10, 5)
    assert row.response_id == "chatcmpl-1"
    assert row.timeline.queue == Reported(1_500_000, "engine_inband")
    assert row.timeline.prefill == Reported(20_250_000, "engine_inband")
    assert (row.http_status, row.attempts, row.attempt_log) == (200, 1, ())
    assert row.ttft_s is not None
    assert row.ttft_s >= 0.02
    assert row.first_byte_ns is not None
    assert row.timeline.network.connect


# --- requests ------------------------------------------------------------------------------

SCRIPTS = {
    "chat": answers.chat(),
    "completions": answers.completion,
    "responses": answers.responses,
    "messages": answers.messages,
}


@pytest.mark.parametrize("endpoint", SCRIPTS)
def test_every_protocol(endpoint: str, client: tuple[str, str], server: Server) -> None:
    """Each protocol's row has what an SDK's row of the same response has."""
    server.play(SCRIPTS[endpoint])
    raw = recorded(lambda: ask(*client, url(server, endpoint), body=ASKS_USAGE))
    with capture() as rows:
        read(client[1], server, endpoint, **USAGE_OPTION.get(endpoint, {}))
    [sdk] = rows
    for field in (
        "operation", "model", "provider", "response_id", "outcome", "finish_reason", "chunks",
        "prompt_tokens", "cached_tokens", "output_tokens", "http_status", "stream",
    ):  # fmt: skip
        assert (field, getattr(raw, field)) == (field, getattr(sdk, field))
    for first in ("first_text_ns", "first_reasoning_ns", "first_event_ns"):
        assert (getattr(raw, first) is None) == (getattr(sdk, first) is None)
    assert (raw.timeline.queue, raw.timeline.prefill) == (sdk.timeline.queue, sdk.timeline.prefill)


def post(library: str, mode: str, address: str, *, body: Any = None, **more: Any) -> Any:
    """Ask for a whole response and return it parsed."""
    if library == "aiohttp":
        return ask(library, mode, address, lambda response: response.json(), body=body, **more)
    module = pytest.importorskip(library)
    if mode == "sync":
        with module.Client(verify=no_tls()) as made:
            return made.post(address, json=body, **more).json()

    async def main() -> Any:
        async with module.AsyncClient(verify=no_tls()) as made:
            return (await made.post(address, json=body, **more)).json()

    return asyncio.run(main())


@pytest.mark.parametrize("endpoint", SCRIPTS)
def test_whole_answers(endpoint: str, client: tuple[str, str], server: Server) -> None:
    """A response that is no stream is a row, too, with what it reports."""
    server.play(SCRIPTS[endpoint])
    body = {**BODY, "stream": False}
    row = recorded(lambda: post(*client, url(server, endpoint), body=body))
    assert (row.outcome, row.stream, row.output_tokens) == ("success", False, 5)
    assert row.finish_reason == {"completions": "length", "chat": "stop"}.get(
        endpoint, "end_turn" if endpoint == "messages" else "completed"
    )
    assert (row.ttft_s, row.chunks) == (None, 0)


def test_a_stream_read_at_once(server: Server) -> None:
    """A stream that is read as a whole reports what it reports, but not when its content came."""
    for client in CLIENTS:
        library, mode = client.split("-")
        if library == "aiohttp":
            continue
        row = recorded(lambda library=library, mode=mode: post_text(library, mode, url(server)))
        assert (row.outcome, row.finish_reason) == ("success", "stop")
        assert (row.output_tokens, row.ttft_s) == (5, None)


def post_text(library: str, mode: str, address: str) -> str:
    """Ask for a stream and read it as one text."""
    module = pytest.importorskip(library)
    if mode == "sync":
        with module.Client(verify=no_tls()) as made:
            return str(made.post(address, json=ASKS_USAGE).text)

    async def main() -> str:
        async with module.AsyncClient(verify=no_tls()) as made:
            return str((await made.post(address, json=ASKS_USAGE)).text)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/channels/7/messages", {"content": "hi"}),  # a messenger's
        ("/v1/messages", {"text": "hi", "model": {"name": "tiny"}}),
        ("/v1/responses", {"survey": 7}),
        ("/v1/embeddings", {"model": "tiny", "input": "hi"}),
        ("/mcp", {"jsonrpc": "2.0", "method": "tools/call"}),
        ("/anything", {"stream": True}),
    ],
)
def test_requests_to_no_model(
    path: str, body: Any, client: tuple[str, str], server: Server
) -> None:
    """What does not name a model is no request to one: it is sent as it is, and makes no row."""
    server.play(answers.error(404))
    with capture(instrument=LIBRARIES) as rows:
        post(*client, server.root + path, body=body)
    assert rows == []
    assert "traceparent" not in server.requests[0].headers


def test_a_custom_path(client: tuple[str, str], server: Server) -> None:
    """A stream requested with a model's name is a response's, at any path."""
    server.play(answers.chat())
    row = recorded(lambda: ask(*client, f"{server.root}/team/llm", body=BODY))
    assert (row.model, row.finish_reason, row.chunks) == ("tiny", "stop", 5)


def test_a_get_is_no_request_to_a_model(server: Server) -> None:
    """Only what is posted asks for a response."""
    httpx = pytest.importorskip("httpx")
    with capture(instrument=LIBRARIES) as rows, httpx.Client(verify=no_tls()) as made:
        server.play(answers.error(200))
        made.get(url(server))
    assert rows == []


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model": "tiny", "messages": []}', "tiny"),
        (b'{"messages": [{"model": "no"}], "stream": true, "model":"tiny"}', "tiny"),
        (b'{"messages": "\\"model\\": \\"no\\"", "tools": {"model": "no"}}', None),
        (b'{"model": 7}', None),
        (b'["model", "no"]', None),
        (b"model=no", None),
        (b"", None),
        (b'{"model": "tiny"' + b" " * 100_000, "tiny"),
        (b'{"messages": "' + b"x" * 100_000 + b'", "model": "tiny"}', ""),
        (b"[" * 100_000, None),
        (b'{"a":' + b"[" * 100_000, ""),
        (b'{"a": 1 "model": "no"}', None),
        (b"\xff{", None),
    ],
)  # fmt: skip
def test_the_model_in_a_body(body: bytes, model: str | None) -> None:
    """A body names its model at its top, and only its beginning is looked at."""
    assert model_in(body) == model


def test_a_model_behind_a_long_prompt(client: tuple[str, str], server: Server) -> None:
    """Where the body names the model too late, the response does."""
    server.play(answers.chat())
    long = [{"role": "user", "content": "x" * 100_000}]
    row = recorded(
        lambda: ask(*client, url(server), body={"messages": long, **BODY, "stream": True})
    )
    assert (row.model, row.finish_reason) == ("tiny", "stop")


def test_a_model_behind_a_long_prompt_of_a_whole_answer(server: Server) -> None:
    """There, too."""
    server.play(answers.completion)
    body = {"messages": [{"role": "user", "content": "x" * 100_000}], "model": "tiny"}
    row = recorded(lambda: post("httpx", "sync", url(server), body=body))
    assert row.model == "tiny"


def _packed(_request: Request, answer: Answer) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    choice = {"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}
    body = gzip.compress(json.dumps({"choices": [choice], "usage": usage}).encode())
    answer.head(headers={"content-type": "application/json", "content-encoding": "gzip"})
    for piece in (body[:20], body[20:]):
        answer.data(piece)


@pytest.mark.parametrize("packed", [False, True])
def test_a_whole_answer_read_as_a_stream(server: Server, packed: bool) -> None:
    """In any way, a unary response is read for what it reports."""
    httpx = pytest.importorskip("httpx")
    server.play(_packed if packed else answers.completion)

    def act() -> None:
        with httpx.stream("POST", url(server), json={**BODY, "stream": False}) as response:
            response.read()

    row = recorded(act)
    assert (row.outcome, row.output_tokens, row.ttft_s) == ("success", 5, None)


# --- join keys ----------------------------------------------------------------------------------


def test_join_keys(client: tuple[str, str], server: Server) -> None:
    """The server gets the row's trace and id, as from an SDK."""
    row = recorded(lambda: ask(*client, url(server)))
    sent = server.requests[0].headers
    assert sent["traceparent"].split("-")[1:3] == [row.trace_id, row.span_id]
    assert sent["x-request-id"] == row.request_id


def test_a_callers_own_join_keys(client: tuple[str, str], server: Server) -> None:
    """What the application sets stays."""
    own = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "x-request-id": "order-7"}
    row = recorded(lambda: ask(*client, url(server), headers=own))
    sent = server.requests[0].headers
    assert (sent["traceparent"], sent["x-request-id"]) == (own["traceparent"], "order-7")
    assert row.request_id == "order-7"


def test_a_request_sent_twice(server: Server) -> None:
    """One request object that is sent again is another row, with keys of its own."""
    httpx = pytest.importorskip("httpx")
    with capture(instrument=LIBRARIES) as rows, httpx.Client(verify=no_tls()) as made:
        request = made.build_request("POST", url(server), json=BODY)
        before = dict(request.headers)
        for _ in range(2):
            made.send(request)
            assert dict(request.headers) == before
    ids = [row.request_id for row in rows]
    assert len(set(ids)) == 2
    assert [sent.headers["x-request-id"] for sent in server.requests] == ids


# --- what comes along ---------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["chat", "messages"])
def test_what_a_gateway_tells_in_the_stream(
    endpoint: str, client: tuple[str, str], server: Server
) -> None:
    """A gateway's comments are read, those after the last event, too."""

    def script(request: Request, answer: Answer) -> None:
        answer.head(headers={"server-timing": "gateway;dur=5;desc=edge;hop=a1, more"})
        comment = line("gateway;dur=6;desc=edge;hop=a1, queue;dur=2, prefill;dur=30")
        if endpoint == "chat":
            answer.event(answers.delta("a"))
            answer.event(answers.delta(finish="stop"))
            answer.data(comment)
            answer.event("[DONE]")
        else:
            answers.messages(request, answer)
            answer.data(comment)

    server.play(script)
    row = recorded(lambda: ask(*client, url(server, endpoint)))
    assert (row.gateway, row.timeline.gateway) == ("edge", Reported(6_000_000, "server_timing"))
    assert row.timeline.queue == Reported(2_000_000, "server_timing")
    assert row.outcome == "success"


def test_content(client: tuple[str, str], server: Server) -> None:
    """Prompts and responses are recorded only if that is enabled."""
    server.play(answers.chat())
    policy = ContentPolicy()
    for body in (BODY, {**BODY, "stream": False}):
        row = recorded(partial(post_or_ask, client, url(server), body), content=policy)
        assert json.loads(row.content["gen_ai.input.messages"])[0]["parts"][0]["content"] == "hi"
        [said] = json.loads(row.content["gen_ai.output.messages"])
        assert said["parts"] == [{"type": "text", "content": "".join(answers.WORDS)}]
        assert (row.chunks, row.finish_reason) == (5 if body["stream"] else 0, "stop")
    assert recorded(lambda: ask(*client, url(server))).content == {}


def post_or_ask(client: tuple[str, str], address: str, body: Any) -> None:
    """Ask for a stream, or for a whole response."""
    (ask if body["stream"] else post)(*client, address, body=body)


# --- one row, coexisting with others -------------------------------------------------------------


def test_under_an_instrumented_sdk(server: Server) -> None:
    """An SDK's call is one row, though its HTTP library is instrumented, too."""
    for mode in ("sync", "async"):
        with capture(instrument=("openai", *LIBRARIES)) as rows:
            read(mode, server)
        assert [row.client for row in rows] == ["openai"]


def test_under_an_sdk_that_is_not(server: Server) -> None:
    """A client that is not instrumented is recorded by its HTTP requests, one row an attempt."""
    server.play(answers.error(429, headers={"retry-after-ms": "10"}), answers.chat())
    with capture(instrument=LIBRARIES) as rows:
        read("sync", server, options={"max_retries": 1}, stream_options={"include_usage": True})
    refused, served = rows
    assert (refused.outcome, refused.http_status) == ("error", 429)
    assert (served.outcome, served.output_tokens, served.chunks) == ("success", 5, 5)
    assert served.client in {"httpx", "httpx2"}


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_httpx_over_aiohttp(library: str, server: Server) -> None:
    """Where httpx sends its requests through aiohttp, that is one attempt of one row."""
    aiohttp = pytest.importorskip("aiohttp")
    module = pytest.importorskip(library)

    class Transport(module.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            async with aiohttp.ClientSession() as session:
                sent = dict(request.headers)
                posting = session.post(str(request.url), data=request.content, headers=sent)
                async with posting as response:
                    body = await response.read()
            sent_back = {"content-type": response.headers["content-type"]}
            return module.Response(response.status, headers=sent_back, content=body)

    async def main() -> None:
        async with (
            module.AsyncClient(transport=Transport()) as made,
            made.stream("POST", url(server), json=ASKS_USAGE) as response,
        ):
            await response.aread()

    row = recorded(lambda: asyncio.run(main()))
    assert (row.client, row.attempts, row.attempt_log) == (library, 1, ())
    assert row.timeline.network.connect  # reported by aiohttp
    assert (row.outcome, row.output_tokens) == ("success", 5)


def test_in_a_decorated_function(client: tuple[str, str], server: Server) -> None:
    """A request in a decorated function is its own row, with all that the stream reports."""
    server.play(answers.chat(first_s=0.02))
    library, mode = client
    module = pytest.importorskip(library)

    @llmtrace.trace(route="words", model="given")
    def words(made: Any) -> Any:
        with made.stream("POST", url(server), json=ASKS_USAGE) as response:
            for event in datas(response.read()):
                yield event["choices"] and event["choices"][0]["delta"].get("content")

    @llmtrace.trace(route="words", model="given")
    async def awords(made: Any) -> Any:
        if library == "aiohttp":
            async with made.post(url(server), json=ASKS_USAGE) as response:
                async for line in response.content:
                    yield line
        else:
            async with made.stream("POST", url(server), json=ASKS_USAGE) as response:
                async for line in response.aiter_lines():
                    yield line

    async def main() -> None:
        kind = module.ClientSession if library == "aiohttp" else module.AsyncClient
        async with kind() as made:
            async for _line in awords(made):
                pass

    def act() -> None:
        if mode == "async":
            asyncio.run(main())
            return
        with module.Client(verify=no_tls()) as made:
            assert [word for word in words(made) if word] == list(answers.WORDS)

    row = recorded(act)
    assert (row.route, row.model, row.client) == ("words", "given", library)
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", "stop", 5)
    assert row.timeline.queue == Reported(1_500_000, "engine_inband")
    assert row.timeline.network.connect
    assert server.requests[0].headers["x-request-id"] == row.request_id


def test_an_answer_handed_out_of_a_decorated_function(server: Server) -> None:
    """What a decorated function returns may hold the stream: the stream ends the row."""
    httpx = pytest.importorskip("httpx")

    @llmtrace.trace(route="handed")
    def begin(made: Any) -> Any:
        return made.send(made.build_request("POST", url(server), json=BODY), stream=True)

    with capture(instrument=LIBRARIES) as rows, httpx.Client(verify=no_tls()) as made:
        response = begin(made)
        assert rows == []
        assert list(response.iter_lines())
    [row] = rows
    assert (row.outcome, row.route, row.chunks) == ("success", "handed", 5)


def test_two_requests_in_a_decorated_function(server: Server) -> None:
    """Each has a row of its own, with the function's labels."""
    httpx = pytest.importorskip("httpx")

    @llmtrace.trace(route="both")
    def both(made: Any) -> None:
        for _ in range(2):
            made.post(url(server), json={**BODY, "stream": False})

    with capture(instrument=LIBRARIES) as rows, httpx.Client(verify=no_tls()) as made:
        both(made)
    one, other = rows
    assert (one.route, other.route) == ("both", "both")
    assert (one.parent_span_id, one.trace_id) == (other.parent_span_id, other.trace_id)
    assert (one.output_tokens, other.output_tokens) == (5, 5)


def test_wrapped_too(server: Server) -> None:
    """Wrapping what is recorded already gives the same row labels, and no second row."""
    httpx = pytest.importorskip("httpx")
    httpx_sse = pytest.importorskip("httpx_sse")
    with capture(instrument=LIBRARIES) as rows, httpx.Client(verify=no_tls()) as made:
        with made.stream("POST", url(server), json=BODY) as response:
            lines = response.iter_lines()
            assert llmtrace.wrap(lines, route="lines", shoe_size=44) is lines
            list(lines)
        with made.stream("POST", url(server), json=BODY) as response:
            list(llmtrace.wrap(httpx_sse.EventSource(response).iter_sse(), route="sse"))
    assert [(row.route, row.chunks) for row in rows] == [("lines", 5), ("sse", 5)]
    assert rows[0].attributes == {"shoe_size": 44}


# --- one client, and back -----------------------------------------------------------------------


def test_one_client(client: tuple[str, str], server: Server) -> None:
    """One client can be instrumented by itself, twice, and that undone; it is not kept alive."""
    library, mode = client
    module = pytest.importorskip(library)
    kinds = {("aiohttp", "async"): "ClientSession", (library, "sync"): "Client"}
    kind = getattr(module, kinds.get((library, mode), "AsyncClient"))

    async def asks(made: Any) -> None:
        if mode == "sync":
            made.post(url(server), json=BODY)
        elif library == "aiohttp":
            async with made.post(url(server), json=BODY) as response:
                await response.read()
        else:
            await made.post(url(server), json=BODY)

    async def main() -> None:
        made, other = kind(), kind()
        handle = llmtrace.instrument(made)
        again = llmtrace.instrument([made])
        await asks(made)
        await asks(other)
        again.undo()
        await asks(made)
        handle.undo()
        await asks(made)
        for one in (made, other):
            if mode == "sync":
                one.close()
            else:
                await (one.close() if library == "aiohttp" else one.aclose())
        handle = llmtrace.instrument(made)
        alive = weakref.ref(made)
        del made, other, one
        gc.collect(1)
        assert alive() is None
        handle.undo()

    with capture(instrument=()) as rows:
        asyncio.run(main())
    assert [row.client for row in rows] == [library, library]


def test_instrumenting_is_undone(server: Server) -> None:
    """Once undone, everything is as it was."""
    modules = [pytest.importorskip(library) for library in LIBRARIES]
    plain = [
        (kind, method, vars(kind)[method])
        for module in modules
        for kind, method in (
            ((module.ClientSession, "_request"), (module.ClientSession, "__init__"))
            if module.__name__ == "aiohttp"
            else ((module.Client, "send"), (module.AsyncClient, "send"))
        )
    ]
    with llmtrace.instrument(modules), llmtrace.instrument(modules):
        assert all(vars(kind)[method] is not before for kind, method, before in plain)
    assert all(vars(kind)[method] is before for kind, method, before in plain)


def test_init_records_httpx(server: Server) -> None:
    """`init` is all it takes."""
    httpx = pytest.importorskip("httpx")
    rows: list[Row] = []

    class Sink:
        every_row = True
        write = rows.append

    llmtrace.init("test", exporters=[Sink()])
    try:
        with httpx.Client(verify=no_tls()) as made:
            made.post(url(server), json=BODY)
    finally:
        llmtrace.shutdown()
    assert [(row.client, row.service) for row in rows] == [("httpx", "test")]


def test_what_cannot_be_instrumented() -> None:
    """It says what can."""
    with pytest.raises(ConfigError, match="openai, anthropic, httpx, httpx2, aiohttp"):
        llmtrace.instrument(object())
    with pytest.raises(ConfigError, match="aiohttp, not 'json'"):
        llmtrace.instrument(json)


# --- nothing breaks -----------------------------------------------------------------------------


class Broken(Exception):  # noqa: N818
    """What a broken hook raises."""


def breaks(*_: Any, **__: Any) -> Any:
    """Break."""
    raise Broken


HOOKS = [
    (llm_requests, "_target"), (llm_requests, "parsed"), (llm_requests, "opened"),
    (llm_requests, "unary_response"), (llm_requests, "rejected"), (llm_requests, "is_stream"),
    (llm_requests, "View"), (llm_requests, "code"), (propagation, "outgoing"),
    (propagation, "answered"), (propagation, "retry_after"), (httpx_bodies, "watch"),
    (httpx_bodies, "watch_error_body"), (httpx_bodies, "Events"), (httpx_bodies, "UnaryBody"),
    (aiohttp_bodies, "watch"),
    (aiohttp_bodies, "Events"), (aiohttp_bodies, "watch_error_body"), (sse, "Parsed"),
    (Events, "__call__"), (Events, "_line"), (Recording, "opened"), (Recording, "event"),
    (Recording, "switch_interval"), (Recording, "_row"), (Recording, "attempt"),
    (join_call, "join"),
    (join_call, "rejected"), (join_call, "failed"), (Recording, "abandoned"),
]  # fmt: skip


# One of each kind is enough: a broken hook is broken for all.
BREAKABLE = [("httpx", "sync"), ("httpx2", "async"), ("aiohttp", "async")]


def everything(client: tuple[str, str], server: Server) -> list[Any]:
    """Ask in all ways, and note what comes or what is raised."""
    seen: list[Any] = []
    for script in (
        answers.chat(), answers.chat(finish=None), answers.error(400), answers.reset,
        answers.events(answers.delta("a"), {"error": {"message": "no"}}),
    ):  # fmt: skip
        for act in (
            lambda: ask(*client, url(server)),
            lambda: post(*client, url(server), body={**BODY, "stream": False}),
        ):
            server.play(script)
            try:
                seen.append(act())
            except Broken:
                raise
            except Exception as error:
                seen.append(f"{type(error).__name__}: {error}")
    return seen


@pytest.fixture(scope="module")
def bare(_server: Server) -> dict[tuple[str, str], list[Any]]:
    """Return what an application sees without llmtrace."""
    return {client: everything(client, _server) for client in BREAKABLE}


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("client", BREAKABLE, ids="-".join)
@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: f"{hook[0].__name__}.{hook[1]}")
def test_broken_hooks(
    hook: tuple[Any, str],
    client: tuple[str, str],
    server: Server,
    bare: dict[tuple[str, str], list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is broken inside llmtrace, the application sees what it would have seen without."""
    monkeypatch.setattr(*hook, breaks)
    with capture(instrument=LIBRARIES):
        assert everything(client, server) == bare[client]
