"""Every way a plain HTTP request can end makes one row, with the right outcome."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

import llmtrace
from llmtrace.core.row import Row
from llmtrace.testing import FakeClock, capture
from tests.support.sse_server import Answer, Request, Server
from tests.support.taking_time import aspend, spend
from tests.support.waiting import auntil

from . import answers
from .answers import delta, events
from .raw import BODY, CLIENTS, WAYS, ask, no_tls, url
from .reading import eventually, near, raised_by, seconds, settled

LIBRARIES = ("httpx", "httpx2", "aiohttp")
OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 256 tokens.",
        "type": "invalid_request_error", "code": "context_length_exceeded",
    }
}  # fmt: skip


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Run a test with every library, sync and async."""
    library, mode = request.param.split("-")
    return library, mode


def recorded(act: Callable[[], object], **settings: Any) -> Row:
    """Do something that makes one row, and return it. Its stages add up, or the test fails."""
    with capture(instrument=LIBRARIES, **settings) as rows:
        act()
        eventually(lambda: rows)
    [row] = rows
    assert row.stages.total == row.e2e_ns
    return row


def refuses(status: int, body: Any = None, **headers: str) -> Any:
    """Respond with an error of this body."""

    def script(_request: Request, answer: Answer) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer.whole({"error": {"message": "no"}} if body is None else body, status, named)

    return script


def text(library: str) -> Any:
    """Return what reads a whole body under a library, as one does to show an error."""

    def read(response: Any) -> Any:
        return response.read() if hasattr(response, "iter_lines") else response.text()

    async def aread(response: Any) -> Any:
        return await (response.text() if library == "aiohttp" else response.aread())

    return read, aread


def reader(client: tuple[str, str]) -> Any:
    """Return the same for a library and mode."""
    return text(client[0])[client[1] == "async"]


@pytest.mark.parametrize("kind", ["text/html", "application/x-ndjson", "completion"])
@pytest.mark.parametrize("whole", [False, True])
def test_no_stream_in_place_of_one(
    client: tuple[str, str], kind: str, whole: bool, server: Server
) -> None:
    """A login page under status 200 is no success; a stream of another kind or a whole one is."""

    def script(request: Request, answer: Answer) -> None:
        if kind != "completion":
            answer.whole({"any": "text"}, headers={"content-type": kind})
        else:
            unary = Request(request.method, request.path, request.headers, {"stream": False})
            answers.chat()(unary, answer)

    server.play(script)
    row = recorded(lambda: ask(*client, url(server), reader(client) if whole else ""))
    assert row.outcome == ("truncated" if kind == "text/html" else "success")
    assert row.finish_reason == ("stop" if kind == "completion" else None)


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 429, 503])
def test_refused(client: tuple[str, str], server: Server, status: int) -> None:
    """An error's status is what went wrong, where its body has no code; its time is refusal."""
    server.play(refuses(status, retry_after="2"))
    row = recorded(lambda: ask(*client, url(server), reader(client)))
    assert (row.outcome, row.error_type, row.http_status) == ("error", str(status), status)
    assert row.retry_s == pytest.approx(seconds(row, "gateway"))
    [one] = row.attempt_log
    assert (one.status, one.retry_after_ns) == (status, 2_000_000_000)
    assert row.response_headers["retry-after"] == "2"


def test_refused_with_a_code(client: tuple[str, str], server: Server) -> None:
    """The provider's own code for it is better, once the body has been read."""
    server.play(refuses(400, OVERFLOW))
    row = recorded(lambda: ask(*client, url(server), reader(client)))
    assert (row.outcome, row.error_type) == ("error", "context_length_exceeded")


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_refused_with_a_code_and_passed_on(library: str, mode: str, server: Server) -> None:
    """As gateways do, which pass the bytes on as they come."""
    server.play(refuses(400, OVERFLOW))

    def pass_on(response: Any) -> None:
        assert b"context_length_exceeded" in b"".join(response.iter_raw())

    async def apass_on(response: Any) -> None:
        body = b"".join([piece async for piece in response.aiter_raw()])
        assert b"context_length_exceeded" in body

    read = apass_on if mode == "async" else pass_on
    row = recorded(lambda: ask(library, mode, url(server), read))
    assert (row.outcome, row.error_type) == ("error", "context_length_exceeded")


@pytest.mark.parametrize("way", WAYS["aiohttp"])
def test_refused_with_a_code_and_read_by_the_content(way: str, server: Server) -> None:
    """Of aiohttp, in whatever pieces."""
    server.play(refuses(400, OVERFLOW))
    row = recorded(lambda: ask("aiohttp", "async", url(server), way))
    assert (row.outcome, row.error_type) == ("error", "context_length_exceeded")


def test_refused_and_not_read(client: tuple[str, str], server: Server) -> None:
    """An error whose body is never read makes its row, too."""
    server.play(refuses(400, OVERFLOW))

    def leave(_: Any) -> None:
        """Do nothing."""

    async def aleave(_: Any) -> None:
        """Do nothing."""

    row = recorded(lambda: ask(*client, url(server), aleave if client[1] == "async" else leave))
    assert (row.outcome, row.error_type) == ("error", "400")


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_whole_answer_refused(library: str, server: Server) -> None:
    """Where the body comes along, its code does."""
    module = pytest.importorskip(library)
    server.play(refuses(400, OVERFLOW))
    with module.Client(verify=no_tls()) as made:
        row = recorded(lambda: made.post(url(server), json=BODY))
    assert (row.outcome, row.error_type) == ("error", "context_length_exceeded")


def test_an_error_that_is_raised(client: tuple[str, str], server: Server) -> None:
    """Raising for the status changes nothing."""
    server.play(refuses(400, OVERFLOW))

    def act() -> None:
        def read(response: Any) -> None:
            response.read()
            response.raise_for_status()

        async def aread(response: Any) -> None:
            await (response.read() if client[0] == "aiohttp" else response.aread())
            response.raise_for_status()

        raised_by(lambda: ask(*client, url(server), aread if client[1] == "async" else read))

    row = recorded(act)
    assert (row.outcome, row.error_type) == ("error", "context_length_exceeded")


def test_raised_by_the_session(server: Server) -> None:
    """Aiohttp can raise by itself; the status is known all the same."""
    aiohttp = pytest.importorskip("aiohttp")
    server.play(refuses(503, retry_after="1"))

    async def main() -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            await session.post(url(server), json=BODY)

    row = recorded(lambda: raised_by(lambda: asyncio.run(main())))
    assert (row.outcome, row.http_status) == ("error", 503)
    assert row.attempt_log[0].status == 503


def test_connection_refused(client: tuple[str, str]) -> None:
    """A server that is not there costs network time only."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/v1/chat/completions"
        errors: list[Exception] = []
        row = recorded(lambda: errors.append(raised_by(lambda: ask(*client, address))))
    name = f"{type(errors[0]).__module__}.{type(errors[0]).__qualname__}"
    assert (row.outcome, row.error_type, row.http_status) == ("error", name, None)
    assert [one.error_type for one in row.attempt_log] == [name]
    assert row.stages.gateway is None


def test_reset_before_the_head(client: tuple[str, str], server: Server) -> None:
    """A connection that breaks before the response is the network's."""
    server.play(answers.reset)
    row = recorded(lambda: raised_by(lambda: ask(*client, url(server))))
    assert (row.outcome, row.http_status, row.ttft_s) == ("error", None, None)
    assert row.timeline.retry_network > 0


def test_time_out_before_the_head(client: tuple[str, str], server: Server) -> None:
    """A server that never responds is a timeout."""
    server.play(answers.chat(head_s=30))

    def timed_out(row: Row) -> None:
        assert (row.outcome, row.http_status) == ("timeout", None)
        assert row.stages.unattributed > 150_000_000  # and on a busy machine it may not connect

    settled(
        lambda: recorded(lambda: raised_by(lambda: ask(*client, url(server), timeout_s=0.2))),
        timed_out,
    )


# --- in the middle -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["drop", "reset"])
def test_connection_lost_in_the_middle(client: tuple[str, str], server: Server, how: str) -> None:
    """A lost connection is an error, with what the library raises as its type."""

    def script(_request: Request, answer: Answer) -> None:
        answer.event(delta("one "))
        answer.wait(0.1)
        getattr(answer, how)()

    server.play(script)
    errors: list[Exception] = []
    row = recorded(lambda: errors.append(raised_by(lambda: ask(*client, url(server)))))
    name = f"{type(errors[0]).__module__}.{type(errors[0]).__qualname__}"
    assert (row.outcome, row.error_type, row.chunks) == ("error", name, 1)
    assert row.max_gap_s is not None
    assert row.max_gap_s > 0.08


def test_error_event(client: tuple[str, str], server: Server) -> None:
    """An error event under status 200 is an error, though nothing is raised."""
    server.play(events(delta("one "), OVERFLOW))
    row = recorded(lambda: ask(*client, url(server)))
    assert (row.outcome, row.error_type) == ("error", "context_length_exceeded")
    assert (row.http_status, row.chunks, row.attempt_log) == (200, 1, ())


def test_no_finish_reason(client: tuple[str, str], server: Server) -> None:
    """A stream that just stops is truncated, not a success."""
    server.play(answers.chat(finish=None))
    row = recorded(lambda: ask(*client, url(server)))
    assert (row.outcome, row.finish_reason, row.chunks) == ("truncated", None, 5)


def test_length_is_success(client: tuple[str, str], server: Server) -> None:
    """A response that was as long as requested is a success."""
    server.play(answers.chat(finish="length"))
    row = recorded(lambda: ask(*client, url(server)))
    assert (row.outcome, row.finish_reason) == ("success", "length")


def test_an_idle_cut(client: tuple[str, str], server: Server) -> None:
    """A stream that falls silent and is closed then is truncated; the silence is its gap."""

    def script(_request: Request, answer: Answer) -> None:
        answer.event(delta("one "))
        answer.wait(0.2)

    server.play(script)

    def check(row: Row) -> None:
        near(row.max_gap_s, 0.2)
        near(seconds(row, "decode"), 0.2)

    row = settled(lambda: recorded(lambda: ask(*client, url(server))), check)
    assert row.outcome == "truncated"


def test_silence_until_the_time_out(client: tuple[str, str], server: Server) -> None:
    """A server that falls silent is a timeout; the silence is decode, and the longest gap."""

    def stalls(_request: Request, answer: Answer) -> None:
        answer.event(delta("one "))
        answer.event(delta("two "))
        answer.wait(30)

    server.play(stalls)

    def act() -> None:
        raised_by(lambda: ask(*client, url(server), timeout_s=0.2))

    def check(row: Row) -> None:
        near(row.max_gap_s, 0.2)

    row = settled(lambda: recorded(act), check)
    assert (row.outcome, row.chunks) == ("timeout", 2)


@pytest.mark.parametrize("library", ["httpx", "httpx2", "aiohttp"])
@pytest.mark.parametrize(("limit", "outcome"), [(True, "timeout"), (False, "cancelled")])
def test_cancelled(library: str, limit: bool, outcome: str, server: Server) -> None:
    """`asyncio.timeout` is a timeout, and a task that is cancelled is cancelled."""

    def stalls(_request: Request, answer: Answer) -> None:
        answer.event(delta("one "))
        answer.wait(30)

    server.play(stalls)
    module = pytest.importorskip(library)

    read = []

    async def reads() -> None:
        if library == "aiohttp":
            async with (
                module.ClientSession() as session,
                session.post(url(server), json=BODY) as response,
            ):
                async for line in response.content:
                    read.append(line)
        else:
            async with (
                module.AsyncClient(verify=no_tls()) as made,
                made.stream("POST", url(server), json=BODY) as response,
            ):
                async for line in response.aiter_lines():
                    read.append(line)

    async def main() -> None:
        if limit:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await reads()
            return
        task = asyncio.create_task(reads())
        await auntil(lambda: read)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    row = recorded(lambda: asyncio.run(main()))
    assert (row.outcome, row.chunks) == (outcome, 1)


# --- the reader stops ----------------------------------------------------------------------------


def first_line(client: tuple[str, str], marker: bytes) -> Any:
    """Return what reads lines up to one that holds a marker, and no further."""

    def read(response: Any) -> None:
        for line in response.iter_lines():
            if marker in line.encode():
                break

    async def aread(response: Any) -> None:
        if client[0] == "aiohttp":
            async for line in response.content:
                if marker in line:
                    break
        else:
            async for line in response.aiter_lines():
                if marker in line.encode():
                    break

    return aread if client[1] == "async" else read


def test_left_early(client: tuple[str, str], server: Server) -> None:
    """Who stops reading before the finish reason has cancelled."""
    server.play(answers.chat(gap_s=0.02))
    row = recorded(lambda: ask(*client, url(server), first_line(client, b"word0")))
    assert (row.outcome, row.error_type) == ("cancelled", None)
    assert row.chunks >= 1


def test_left_at_done(client: tuple[str, str], server: Server) -> None:
    """Who stops at `[DONE]`, as one does, has the whole response."""
    server.play(answers.chat())
    row = recorded(lambda: ask(*client, url(server), first_line(client, b"[DONE]")))
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", "stop", 5)


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_release(library: str, server: Server) -> None:
    """A response that is dropped, never or half read, makes its row when it is collected."""
    module = pytest.importorskip(library)
    with capture(instrument=LIBRARIES) as rows, module.Client(verify=no_tls()) as made:
        request = made.build_request("POST", url(server), json=BODY)
        for start in (False, True):
            response = made.send(request, stream=True)
            lines = response.iter_lines()
            if start:
                next(lines)
            del response, lines
            gc.collect(1)
        server.play(refuses(500))
        response = made.send(request, stream=True)
        del response
        gc.collect(1)
    assert [row.outcome for row in rows] == ["cancelled", "cancelled", "error"]


def test_release_aiohttp(server: Server) -> None:
    """A response that aiohttp keeps until its connection ends has ended with its last read."""
    aiohttp = pytest.importorskip("aiohttp")
    left = threading.Event()

    def script(_request: Request, answer: Answer) -> None:
        answer.event(delta("one"))
        left.wait(30)
        answer.drop()

    server.play(script)
    clock = FakeClock()

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            response = await session.post(url(server), json=BODY)
            await response.content.readline()
            del response
            clock.advance(3_600)
            left.set()
            await auntil(lambda: rows)

    with capture(instrument=LIBRARIES, clock=clock) as rows:
        asyncio.run(main())
    assert [(row.outcome, row.e2e_s) for row in rows] == [("cancelled", 0)]


def test_a_late_and_slow_reader(client: tuple[str, str], server: Server) -> None:
    """What the reader holds is its own time, as with an SDK."""
    server.play(answers.chat(first_s=0.05))

    def read(response: Any) -> None:
        spend(0.15)
        for line in response.iter_lines():
            if "word" in line:
                spend(0.02)

    async def aread(response: Any) -> None:
        await aspend(0.15)
        lines = response.content if client[0] == "aiohttp" else response.aiter_lines()
        async for line in lines:
            if "word" in str(line):
                await aspend(0.02)

    act = aread if client[1] == "async" else read
    body = {**BODY, "stream_options": {"include_usage": True}}
    row = recorded(lambda: ask(*client, url(server), act, body=body))
    render = seconds(row, "render")
    assert render is not None
    assert render >= 0.25 - 0.022  # what the engine computed meanwhile is the engine's
    assert row.ttft_s is not None
    assert row.ttft_s >= 0.15
    assert row.ttft_arrival_s is not None
    assert row.ttft_arrival_s < row.ttft_s


# --- retries of the application's own ------------------------------------------------------------


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_decorated_function_that_tries_again(library: str, server: Server) -> None:
    """Attempts of a decorated function are one request; the backoff between is the refusal's."""
    module = pytest.importorskip(library)

    @llmtrace.trace(route="again")
    def words(made: Any) -> Any:
        while True:
            with made.stream("POST", url(server), json=BODY) as response:
                if response.status_code == 429:
                    response.read()
                    spend(0.1)
                    continue
                yield from response.iter_lines()
                return

    server.play(refuses(429, retry_after="0.1"), answers.chat(first_s=0.02))
    with module.Client(verify=no_tls()) as made:
        row = recorded(lambda: [*words(made)])
    assert (row.outcome, row.route, row.model, row.attempts) == ("success", "again", "tiny", 2)
    assert (row.finish_reason, row.chunks, row.http_status) == ("stop", 5, 200)
    first, second = row.attempt_log
    assert (first.status, first.retry_after_ns, second.status) == (429, 100_000_000, 200)
    assert first.backoff_ns >= 100_000_000
    assert row.stages.gateway == first.duration_ns + first.backoff_ns
    assert second.start_ns == first.end_ns + first.backoff_ns
    assert seconds(row, "render") == pytest.approx(0, abs=0.02)


def test_an_async_function_that_gives_up(server: Server) -> None:
    """A decorated function that hides a failure still leaves a row of it."""
    aiohttp = pytest.importorskip("aiohttp")
    server.play(refuses(429, {"error": {"message": "no", "code": "rate_limit_exceeded"}}))

    @llmtrace.trace(route="gives up")
    async def ask_it(session: Any) -> str:
        async with session.post(url(server), json=BODY) as response:
            return "sorry" if response.status == 429 and await response.text() else "fine"

    async def main() -> str:
        async with aiohttp.ClientSession() as session:
            return await ask_it(session)

    said: list[str] = []
    row = recorded(lambda: said.append(asyncio.run(main())))
    assert said == ["sorry"]
    assert (row.outcome, row.error_type) == ("error", "rate_limit_exceeded")
    assert (row.http_status, row.route) == (429, "gives up")


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_redirect_that_is_not_followed(library: str, stream: bool, server: Server) -> None:
    """A redirect is no response: a client that does not follow it has none."""
    module = pytest.importorskip(library)
    server.play(refuses(307, location="/elsewhere"))

    def act() -> None:
        with module.Client(verify=no_tls()) as made:
            request = made.build_request("POST", url(server), json=BODY)
            made.send(request, stream=stream).close()

    row = recorded(act)
    assert (row.outcome, row.error_type, row.http_status) == ("error", "307", 307)


def test_an_sdks_own_http_client(server: Server) -> None:
    """The HTTP client that an SDK makes is one of its library's."""
    openai = pytest.importorskip("openai")
    server.play(answers.chat())
    made = openai.DefaultHttpxClient(verify=no_tls())
    with capture(instrument=()) as rows, llmtrace.instrument(made), made:
        made.post(url(server), json={**BODY, "stream": False})
    assert [row.outcome for row in rows] == ["success"]


@pytest.mark.parametrize("ending", ["read", "left"])
def test_the_response_of_a_stream_is_read(mode: str, server: Server, ending: str) -> None:
    """Who reads the body of an SDK's stream by its response has read the response."""
    openai = pytest.importorskip("openai")
    call_options = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    client = {"base_url": f"{server.url}/v1", "api_key": "x", "max_retries": 0}

    async def aread() -> None:
        async with openai.AsyncOpenAI(**client) as made:
            stream = await made.chat.completions.create(**call_options)
            async for line in stream.response.aiter_lines():
                if ending == "left" and line:
                    break
            await stream.close()

    def read() -> None:
        with openai.OpenAI(**client) as made:
            stream = made.chat.completions.create(**call_options)
            for line in stream.response.iter_lines():
                if ending == "left" and line:
                    break
            stream.close()

    with capture() as rows:
        asyncio.run(aread()) if mode == "async" else read()
    [row] = rows

    if ending == "read":
        assert (row.outcome, row.chunks) == ("success", 5)
        assert row.ttft_s is not None
    else:
        assert row.outcome == "cancelled"
    assert row.stages.total == row.e2e_ns
