"""`llmtrace.instrument` covers what it should, and `undo` leaves nothing of it."""

from __future__ import annotations

import asyncio
import gc
import inspect
import socket
import weakref
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from opentelemetry import trace as otel_trace

import llmtrace
from llmtrace.core.errors import ConfigError
from llmtrace.core.row import Row
from llmtrace.instrumentation import registry
from llmtrace.instrumentation.llm_sdks.endpoints import provider_of
from llmtrace.runtime import runtime
from llmtrace.testing import capture
from tests.support.sse_server import Server

from . import answers
from .reading import client, method

openai = pytest.importorskip("openai")
base = import_module("openai._base_client")
HTTP = openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]


@pytest.fixture
def rows() -> Iterator[list[Row]]:
    """Record into a list, with nothing instrumented yet."""
    with capture(instrument=()) as collected:
        yield collected
    registry.undo_all()


def ask(made: Any) -> None:
    """Send a request with a client, sync or async."""
    create, call_options = method(made)

    async def main() -> None:
        async with made:
            async for _chunk in await create(**call_options, stream=True):
                pass

    if asyncio.iscoroutinefunction(type(made).request):
        asyncio.run(main())
        return
    for _chunk in create(**call_options, stream=True):
        pass


def patched() -> dict[str, Any]:
    """Return everything that instrumenting replaces."""
    library = import_module(HTTP)
    return {
        "sync": base.SyncAPIClient.request.__code__,
        "async": base.AsyncAPIClient.request.__code__,
        "send": library.Client.send,
        "asend": library.AsyncClient.send,
        "getaddrinfo": socket.getaddrinfo,
        "loop": asyncio.BaseEventLoop.getaddrinfo,
    }


def test_module(mode: str, server: Server, rows: list[Row]) -> None:
    """A module's clients are covered, made before or after, until it is undone."""
    plain = patched()
    before = client(mode, server)
    handle = llmtrace.instrument(openai)
    after = client(mode, server)
    if mode == "sync":
        ask(before)
    ask(after)
    assert len(rows) == (2 if mode == "sync" else 1)
    handle.undo()
    assert patched() == plain
    if mode == "sync":
        ask(before)
        before.close()
        after.close()
    else:
        ask(before)
    assert len(rows) == (2 if mode == "sync" else 1)


def test_one_client(mode: str, server: Server, rows: list[Row]) -> None:
    """A client that is instrumented alone is; others are not."""
    plain = patched()
    made, other = client(mode, server), client(mode, server)
    kind = type(made)
    handle = llmtrace.instrument(made)
    assert isinstance(made, kind)
    assert type(made).__name__ == kind.__name__
    ask(other)
    assert rows == []
    ask(made)
    assert len(rows) == 1
    assert rows[0].timeline.network.connect
    handle.undo()
    assert type(made) is kind
    assert patched() == plain
    if mode == "sync":
        ask(made)
        made.close()
        other.close()
    assert len(rows) == 1


def test_twice(server: Server, rows: list[Row]) -> None:
    """Instrumenting twice records once; the second handle undoes nothing."""
    first = llmtrace.instrument(openai)
    second = llmtrace.instrument(openai)
    with client("sync", server) as made:
        ask(made)
        second.undo()
        ask(made)
        assert len(rows) == 2
        first.undo()
        first.undo()
        ask(made)
    assert len(rows) == 2


def test_client_twice(server: Server, rows: list[Row]) -> None:
    """So it is with one client."""
    with client("sync", server) as made:
        first = llmtrace.instrument(made)
        llmtrace.instrument(made).undo()
        ask(made)
        first.undo()
        ask(made)
    assert len(rows) == 1


@pytest.mark.parametrize("module_first", [True, False])
@pytest.mark.parametrize("undo_module_first", [True, False])
def test_client_and_module(
    server: Server, rows: list[Row], module_first: bool, undo_module_first: bool
) -> None:
    """Both at once record once; each is undone by itself, in any order."""
    plain = patched()
    with client("sync", server) as made, client("sync", server) as other:
        targets = (openai, made) if module_first else (made, openai)
        handles = {id(target): llmtrace.instrument(target) for target in targets}
        ask(made)
        assert len(rows) == 1
        handles[id(openai if undo_module_first else made)].undo()
        ask(made)
        assert len(rows) == 2
        ask(other)
        assert len(rows) == (2 if undo_module_first else 3)
        handles[id(made if undo_module_first else openai)].undo()
        ask(made)
        ask(other)
        assert len(rows) == (2 if undo_module_first else 3)
    assert patched() == plain


@pytest.mark.parametrize("change", ["with_options", "copy"])
def test_copies_of_a_client(server: Server, rows: list[Row], change: str) -> None:
    """What is made from an instrumented client is instrumented, until that is undone."""
    with client("sync", server) as made:
        handle = llmtrace.instrument(made)
        copied = getattr(made, change)(timeout=5)
        ask(copied)
        assert len(rows) == 1
        assert rows[0].timeline.network.known is not None
        handle.undo()
        ask(copied)
    assert len(rows) == 1


class Mine(openai.OpenAI):  # type: ignore[misc]
    """A client class of the application's own."""

    def request(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the client does."""
        return super().request(*args, **kwargs)


@pytest.mark.parametrize("alone", [True, False])
def test_subclass_of_a_client(server: Server, rows: list[Row], alone: bool) -> None:
    """A class derived from the SDK's is covered, even one that overrides `request`."""
    with Mine(base_url=server.url, api_key="none") as made:
        llmtrace.instrument(made if alone else openai)
        ask(made)
    assert [(row.client, row.provider) for row in rows] == [("openai", "openai")]


@pytest.mark.parametrize("alone", [True, False])
def test_azure(server: Server, rows: list[Row], alone: bool) -> None:
    """Azure's client puts the deployment into the path, and is covered all the same."""
    with openai.AzureOpenAI(
        azure_endpoint=server.root, api_key="none", api_version="2024-10-21", max_retries=0
    ) as made:
        llmtrace.instrument(made if alone else openai)
        ask(made)
        ask(made.with_options(timeout=5))
    assert [(row.outcome, row.model) for row in rows] == [("success", "tiny")] * 2
    assert {row.provider for row in rows} == {"azure.ai.openai"}
    assert "/deployments/tiny/chat/completions" in server.requests[0].path


def test_several_at_once(server: Server, rows: list[Row]) -> None:
    """A list of clients and modules is taken, and undone together."""
    with client("sync", server) as one, client("sync", server) as two:
        with llmtrace.instrument([one, two]):
            ask(one)
            ask(two)
        ask(one)
    assert len(rows) == 2


@pytest.mark.parametrize("wrong", [socket, 5, "openai", openai.OpenAI, object()])
def test_what_cannot_be_instrumented(wrong: Any) -> None:
    """It says what it takes instead."""
    with pytest.raises(ConfigError, match="openai"):
        llmtrace.instrument(wrong)


def test_a_dropped_client_is_freed(server: Server, rows: list[Row]) -> None:
    """Nothing of ours keeps an instrumented client alive, or makes it wait for the collector."""
    made = client("sync", server)
    llmtrace.instrument(made)
    ask(made)
    made.close()
    alive = weakref.ref(made)
    bare = client("sync", server)
    ask(bare)
    bare.close()
    bare_alive = weakref.ref(bare)
    gc.disable()
    try:
        del made, bare
        # The SDK's own resources may be in a cycle with it; ours adds none.
        assert (alive() is None) == (bare_alive() is None)
    finally:
        gc.enable()
    gc.collect()
    assert alive() is None
    assert len(rows) == 1


def test_patched_over_by_others(server: Server, rows: list[Row]) -> None:
    """Who patches over us keeps their patch when ours is undone, and ours is silent below."""
    handle = llmtrace.instrument(openai)
    ours = base.SyncAPIClient.request
    calls = []

    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return ours(self, *args, **kwargs)

    base.SyncAPIClient.request = theirs
    try:
        with client("sync", server) as made:
            ask(made)
            handle.undo()
            ask(made)
            assert (len(rows), len(calls)) == (1, 2)
            with llmtrace.instrument(openai):
                ask(made)
            assert (len(rows), len(calls)) == (2, 3)
    finally:
        base.SyncAPIClient.request = ours


@pytest.fixture(params=["class", "client"])
def another(request: pytest.FixtureRequest, mode: str, server: Server) -> Iterator[Any]:
    """Return what has another instrumentation wrap `request`, as those of others do."""
    kind = openai.OpenAI if mode == "sync" else openai.AsyncOpenAI

    def wrap() -> Any:
        made = client(mode, server)
        target = kind if request.param == "class" else made
        plain = target.request

        def theirs(*args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs)

        async def atheirs(*args: Any, **kwargs: Any) -> Any:
            return await plain(*args, **kwargs)

        target.request = theirs if mode == "sync" else atheirs
        return made

    yield wrap
    if "request" in vars(kind):
        del kind.request


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_beside_another_instrumentation(
    server: Server, rows: list[Row], another: Callable[[], Any], first: str
) -> None:
    """The row is the same, whichever was set up first."""
    made = another() if first == "theirs" else None
    with llmtrace.instrument([openai, import_module(HTTP)]):
        ask(another() if made is None else made)
    [row] = rows
    assert (row.client, row.output_tokens, row.attempts) == ("openai", 5, 1)
    assert llmtrace.internal_errors() == {}


def test_a_client_wrapped_before_it_is_instrumented_alone(
    server: Server, rows: list[Row], another: Callable[[], Any]
) -> None:
    """So it is where one client is instrumented, and not the module."""
    made = another()
    with llmtrace.instrument(made):
        ask(made)
    assert [row.client for row in rows] == ["openai"]


@pytest.mark.parametrize(
    ("plain", "stream"),
    [(object, True), (dict[str, Any], True), (Any, True), (object, False), (dict, False)],
    ids=str,
)
def test_an_application_that_wants_plain_json(
    server: Server, rows: list[Row], plain: Any, *, stream: bool
) -> None:
    """It gets dictionaries, none of them the usage that only llmtrace asked for; so do rows."""
    server.play(answers.chat())
    with llmtrace.instrument(openai), openai.OpenAI(base_url=server.url, api_key="none") as made:
        got = made.post(
            "/chat/completions",
            cast_to=plain,
            body={"model": "m", "messages": [], "stream": stream},
            stream=stream,
            stream_cls=openai.Stream[plain],
        )
        chunks = [*got] if stream else [got]
    assert all(type(chunk) is dict and chunk["choices"] for chunk in chunks)
    [row] = rows
    assert (row.outcome, row.finish_reason) == ("success", "stop")
    assert (row.prompt_tokens, row.output_tokens) == (10, 5)
    assert (row.chunks > 1) is stream
    assert llmtrace.internal_errors() == {}


class Bypassing(openai.OpenAI):  # type: ignore[misc]
    """A client with a `request` all of its own."""

    def request(self, cast_to: Any, options: Any, *_: Any, **kwargs: Any) -> Any:
        """Send a request without the SDK's `request`."""
        del cast_to, kwargs
        response = self._client.send(self._build_request(options, retries_taken=0))
        return response.text.splitlines()


def test_a_request_that_bypasses_us(server: Server, rows: list[Row], faulty: None) -> None:
    """It is recorded as plain HTTP, and one internal error says so."""
    del faulty
    with (
        llmtrace.instrument([openai, import_module(HTTP)]),
        Bypassing(base_url=server.url, api_key="none") as made,
    ):
        create, call_options = method(made)
        create(**call_options)
        create(**call_options)
    assert [row.client for row in rows] == [HTTP] * 2
    assert llmtrace.internal_errors() == {"sdk.bypassed": 2}


def test_what_it_looks_like_stays(rows: list[Row]) -> None:
    """An instrumented `request` has its name, its signature and its kind."""
    del rows
    kinds = base.SyncAPIClient, base.AsyncAPIClient
    looks = [
        (kind.request.__name__, inspect.signature(kind.request),
         inspect.iscoroutinefunction(kind.request))
        for kind in kinds
    ]  # fmt: skip
    with llmtrace.instrument(openai):
        for kind, (name, signature, awaits) in zip(kinds, looks, strict=True):
            assert kind.request.__name__ == name
            assert inspect.signature(kind.request) == signature
            assert inspect.iscoroutinefunction(kind.request) == awaits


def test_instrumented_but_not_started(server: Server) -> None:
    """Without a runtime an instrumented client does what it always did."""
    before = runtime.activate(None)
    try:
        with llmtrace.instrument(openai), client("sync", server) as made:
            ask(made)
    finally:
        runtime.activate(before)
    assert "traceparent" not in server.requests[0].headers
    assert "stream_options" not in server.requests[0].body


def test_modules_imported_already(server: Server, rows: list[Row]) -> None:
    """A module that is wanted and imported already is instrumented at once."""
    registry.when_imported(("openai",), llmtrace.shutdown)
    with client("sync", server) as made:
        ask(made)
    assert len(rows) == 1


def test_clients_of_other_transports(server: Server, rows: list[Row]) -> None:
    """A client whose HTTP library is mocked is recorded without network phases."""
    library = import_module(HTTP)
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": []}
    transport = library.MockTransport(lambda _: library.Response(200, json=body))
    llmtrace.instrument(openai)
    http_client = library.Client(transport=transport)
    with client("sync", server, http_client=http_client) as made:
        create, call_options = method(made)
        create(**call_options)
    [row] = rows
    assert (row.outcome, row.http_status, row.timeline.network.rtt) == ("success", 200, None)


# --- joining the server's side -------------------------------------------------------------------


def test_headers_that_join(mode: str, server: Server) -> None:
    """Requests carry the row's trace and request id, new ones for each."""
    with capture() as collected:
        for _ in range(2):
            ask(client(mode, server))
    for row, request in zip(collected, server.requests, strict=True):
        assert request.headers["traceparent"] == f"00-{row.trace_id}-{row.span_id}-01"
        assert request.headers["x-request-id"] == row.request_id
    assert len({row.trace_id for row in collected}) == 2


def test_headers_go_with_the_clients_own_requests_once(server: Server) -> None:
    """A request that is sent twice has them once; other requests meanwhile have none."""
    library: Any = import_module(HTTP)
    seen: list[tuple[str, list[str]]] = []
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": []}

    def answer(request: Any) -> Any:
        seen.append((request.url.host, request.headers.get_list("traceparent")))
        return library.Response(200, json=body)

    class Twice(library.Client):  # type: ignore[misc]
        def send(self, request: Any, **kwargs: Any) -> Any:
            with library.Client(transport=library.MockTransport(answer)) as other:
                other.post("http://login.test/token")
            super().send(request)
            return super().send(request, **kwargs)

    http_client = Twice(transport=library.MockTransport(answer))
    with capture() as collected, client("sync", server, http_client=http_client) as made:
        create, call_options = method(made)
        create(**call_options)
    [row] = collected
    own = [f"00-{row.trace_id}-{row.span_id}-01"]
    assert [sent for host, sent in seen if host != "login.test"] == [own, own]
    assert [sent for host, sent in seen if host == "login.test"] == [[]]


@pytest.mark.parametrize("where", ["call", "client"])
def test_headers_of_the_caller_stay(mode: str, server: Server, where: str) -> None:
    """An application's own ids win, wherever it sets them, and become the row's."""
    own = {"X-Request-ID": "mine", "TraceParent": "00-" + "1" * 32 + "-" + "2" * 16 + "-00"}
    options = {"default_headers": own} if where == "client" else {}
    made = client(mode, server, **options)
    create, call_options = method(made)
    extra = {"extra_headers": own} if where == "call" else {}

    async def main() -> None:
        async with made:
            await create(**call_options, **extra)

    with capture() as collected:
        if mode == "async":
            asyncio.run(main())
        else:
            with made:
                create(**call_options, **extra)
    headers = server.requests[0].headers
    assert (headers["x-request-id"], headers["traceparent"]) == ("mine", own["TraceParent"])
    assert collected[0].request_id == "mine"


def test_headers_of_another_instrumentation_of_the_call(server: Server) -> None:
    """Its span is the row's parent, and the server's the row's child: one header says so."""
    parent = otel_trace.SpanContext(int("1" * 32, 16), int("2" * 16, 16), is_remote=True,
                                    trace_flags=otel_trace.TraceFlags(1))  # fmt: skip
    theirs = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    seen: list[list[str]] = []
    library: Any = import_module(HTTP)

    class Watching(library.Client):  # type: ignore[misc]
        def send(self, request: Any, **kwargs: Any) -> Any:
            response = super().send(request, **kwargs)
            seen.append(response.request.headers.get_list("traceparent"))
            return response

    with (
        capture() as collected,
        otel_trace.use_span(otel_trace.NonRecordingSpan(parent)),
        client("sync", server, http_client=Watching()) as made,
    ):
        create, call_options = method(made)
        create(**call_options, extra_headers=theirs)
        made._client.post(f"{server.url}/chat/completions", json={"model": "m"}, headers=theirs)
    expected = [f"00-{'1' * 32}-{row.span_id}-01" for row in collected]
    assert [row.parent_span_id for row in collected] == ["2" * 16] * 2
    assert seen[0] == [expected[0]]
    assert [request.headers["traceparent"] for request in server.requests] == expected


@pytest.mark.parametrize("mode_of_azure", ["AzureOpenAI", "AsyncAzureOpenAI"])
def test_the_provider_is_the_clients_platform(mode_of_azure: str) -> None:
    """A platform is known by the SDK's class for it or by its host; what is not, by neither."""
    kind = getattr(openai, mode_of_azure)
    assert provider_of("127.0.0.1", kind) == "azure.ai.openai"
    assert provider_of("mine.openai.azure.com") == "azure.ai.openai"
    assert provider_of("us-central1-aiplatform.googleapis.com") == "gcp.vertex_ai"
    assert provider_of("openai.azure.com.evil.example") is None
    assert provider_of("127.0.0.1", openai.OpenAI) is None


def test_attempts_share_their_ids(mode: str, server: Server) -> None:
    """All attempts of one request go by the same ids."""
    server.play(answers.error(503, headers={"retry-after": "0.01"}), answers.chat())
    with capture() as collected:
        made = client(mode, server, max_retries=1)
        ask(made)
        if mode == "sync":
            made.close()
    assert collected[0].attempts == 2
    ids = {(it.headers["traceparent"], it.headers["x-request-id"]) for it in server.requests}
    assert len(ids) == 1


def test_sampled_out(server: Server) -> None:
    """A request that is not sampled says so to the server, and makes no row."""
    with capture(sample=1e-12) as collected, client("sync", server) as made:
        ask(made)
    assert server.requests[0].headers["traceparent"].endswith("-00")
    assert all(row.weight > 1 for row in collected)


def test_two_runtimes(server: Server) -> None:
    """Rows go to the runtime that was active when the request was made."""
    with capture(service="first") as first, client("sync", server) as made:
        create, call_options = method(made)
        stream = create(**call_options, stream=True)
        with capture(service="second") as second:
            list(stream)
    assert ([row.service for row in first], second) == (["first"], [])
