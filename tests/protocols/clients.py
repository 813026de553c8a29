"""Clients that read a response to its end, or stop in one of the other ways.

The same code runs with llmtrace and without. What it reads is appended to `saw`; what is raised
goes through.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any, Final

import grpc
import grpc.aio
from websockets.asyncio.client import connect
from websockets.sync.client import connect as connect_sync

from llmtrace import websocket
from llmtrace.grpc import aio_client_interceptors, client_interceptors
from tests.instrumentation.raw import BODY, no_tls, url
from tests.instrumentation.reading import CALLS, client, method
from tests.support.sse_server import Server

from .servers import BEFORE, SERVICE, script

Saw = list[Any]
# Runs one ending, in the order: ending, whether it streams, what it saw.
Run = Callable[[str, bool, Saw], object]

# Time enough for what comes before the silence, also on a busy machine, where the clock runs from
# the start; and where it runs from the silence on.
LONG_S: Final = 0.3
SHORT_S: Final = 0.05
_STOPS: Final = ("left", "cancelled")


def cancelled_midway(reads: Callable[[asyncio.Event], Awaitable[object]]) -> Awaitable[None]:
    """Read in a task that is cancelled once it says that it has what it wanted."""

    async def run() -> None:
        ready = asyncio.Event()
        task = asyncio.ensure_future(reads(ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        await asyncio.sleep(0.01)  # on to the next read
        task.cancel()
        await task

    return run()


class Asyncio:
    """Reads the messages of an async stream, and stops as its ending says."""

    def __init__(self, ending: str, saw: Saw, show: Callable[[Any], Any]) -> None:
        self._ending = ending
        self._saw = saw
        self._show = show
        self._content = 0
        self._timeout: asyncio.Timeout | None = None

    async def read(self, messages: Any, content: Callable[[Any], bool]) -> None:
        """Read to the end, for so long as that takes, or as far as is wanted."""
        if self._ending == "cancelled":
            await cancelled_midway(lambda ready: self._all(messages, content, ready))
        elif self._ending == "timeout":
            async with asyncio.timeout(None) as self._timeout:
                await self._all(messages, content, asyncio.Event())
        else:
            await self._all(messages, content, asyncio.Event())

    async def _all(
        self, messages: Any, content: Callable[[Any], bool], ready: asyncio.Event
    ) -> None:
        async for message in messages:
            self._saw.append(self._show(message))
            self._content += content(message)
            if self._content == BEFORE:
                ready.set()
                if self._timeout is not None:
                    self._timeout.reschedule(asyncio.get_running_loop().time() + SHORT_S)
                if self._ending == "left":
                    break


def read(
    ending: str, messages: Iterable[Any], saw: Saw, show: Any, content: Callable[[Any], bool]
) -> None:
    """Read a sync stream to the end, or as far as is wanted."""
    count = 0
    for message in messages:
        saw.append(show(message))
        count += content(message)
        if count == BEFORE and ending in _STOPS:
            break


# --- SSE -----------------------------------------------------------------------------------------


def _dump(chunk: Any) -> Any:
    return chunk.model_dump()


def _has_content(chunk: Any) -> bool:
    delta = getattr(chunk, "delta", None)
    if delta is not None:
        return bool(delta if isinstance(delta, str) else _part(delta))
    return any(_choice(choice) for choice in getattr(chunk, "choices", None) or ())


def _part(delta: Any) -> bool:
    return any(getattr(delta, name, None) for name in ("text", "thinking"))


def _choice(choice: Any) -> bool:
    delta = getattr(choice, "delta", None)
    return bool(getattr(choice, "text", None) or getattr(delta, "content", None))


def sse_sync(server: Server, protocol: str) -> Run:
    """Ask an SSE server through an SDK's sync client."""

    def run(ending: str, stream: bool, saw: Saw) -> None:
        server.play(script(protocol, ending))
        options = {"timeout": LONG_S} if ending == "timeout" else {}
        with client("sync", server, CALLS[protocol][0], **options) as made:
            create, call_options = method(made, protocol)
            if not stream:
                saw.append(_dump(create(**call_options)))
                return
            with create(**call_options, stream=True) as chunks:
                read(ending, chunks, saw, _dump, _has_content)
                if ending == "cancelled":
                    chunks.close()

    return run


def sse_async(server: Server, protocol: str) -> Run:
    """Ask an SSE server through an SDK's async client."""

    async def whole(create: Any, call_options: Any, saw: Saw, ready: asyncio.Event) -> None:
        ready.set()
        saw.append(_dump(await create(**call_options)))

    async def main(ending: str, stream: bool, saw: Saw) -> None:
        async with client("async", server, CALLS[protocol][0]) as made:
            create, call_options = method(made, protocol)
            if stream:
                async with await create(**call_options, stream=True) as chunks:
                    await Asyncio(ending, saw, _dump).read(chunks, _has_content)
            elif ending == "cancelled":
                await cancelled_midway(lambda ready: whole(create, call_options, saw, ready))
            else:
                async with asyncio.timeout(LONG_S if ending == "timeout" else None):
                    await whole(create, call_options, saw, asyncio.Event())

    def run(ending: str, stream: bool, saw: Saw) -> None:
        server.play(script(protocol, ending))
        asyncio.run(main(ending, stream, saw))

    return run


# --- SSE without an SDK --------------------------------------------------------------------------


def _line_has_content(line: str) -> bool:
    """Return whether a line of an event stream carries a word."""
    data = line.strip().removeprefix("data: ")
    choices = json.loads(data).get("choices", ()) if data.startswith("{") else ()
    return any(choice["delta"].get("content") for choice in choices)


_STREAMED: Final = {"json": BODY}
_WHOLE: Final = {"json": {**BODY, "stream": False}}


def raw_sync(server: Server, library: str) -> Run:
    """Ask an SSE server through an HTTP library, and read lines."""
    module = import_module(library)

    def run(ending: str, stream: bool, saw: Saw) -> None:
        server.play(script("chat", ending))
        timeout = LONG_S if ending == "timeout" else 30
        with module.Client(verify=no_tls(), timeout=timeout) as made:
            if not stream:
                answer = made.post(url(server), **_WHOLE)
                saw.append(answer.raise_for_status().json())
                return
            with made.stream("POST", url(server), **_STREAMED) as response:
                response.raise_for_status()
                read(ending, response.iter_lines(), saw, str, _line_has_content)
                if ending == "cancelled":
                    response.close()

    return run


def raw_async(server: Server, library: str) -> Run:
    """Do the same in a task."""
    module = import_module(library)

    async def stream_of(made: Any, ending: str, saw: Saw) -> None:
        if library == "aiohttp":
            async with made.post(url(server), **_STREAMED) as response:
                response.raise_for_status()
                await Asyncio(ending, saw, str).read(_lines(response.content), _line_has_content)
            return
        async with made.stream("POST", url(server), **_STREAMED) as response:
            response.raise_for_status()
            await Asyncio(ending, saw, str).read(response.aiter_lines(), _line_has_content)

    async def whole(made: Any, saw: Saw, ready: asyncio.Event) -> None:
        ready.set()
        if library == "aiohttp":
            async with made.post(url(server), **_WHOLE) as response:
                response.raise_for_status()
                saw.append(await response.json())
            return
        saw.append((await made.post(url(server), **_WHOLE)).raise_for_status().json())

    async def main(ending: str, stream: bool, saw: Saw) -> None:
        aiohttp = library == "aiohttp"
        client = module.ClientSession() if aiohttp else module.AsyncClient(verify=no_tls())
        async with client as made:
            if stream:
                await stream_of(made, ending, saw)
            elif ending == "cancelled":
                await cancelled_midway(lambda ready: whole(made, saw, ready))
            else:
                async with asyncio.timeout(LONG_S if ending == "timeout" else None):
                    await whole(made, saw, asyncio.Event())

    def run(ending: str, stream: bool, saw: Saw) -> None:
        server.play(script("chat", ending))
        asyncio.run(main(ending, stream, saw))

    return run


async def _lines(content: Any) -> AsyncIterator[str]:
    async for line in content:
        yield line.decode()


# --- WebSocket -----------------------------------------------------------------------------------


def classify_message(message: str) -> Any:
    """Say what a message of the test's own protocol carries."""
    event = json.loads(message)
    return {"kind": "text" if event.pop("text", None) else None, **event}


def _question(protocol: str, ending: str) -> str:
    kind = {"type": "response.create"} if protocol == "events" else {}
    return json.dumps({**kind, "ending": ending})


def _address(address: str, protocol: str, ending: str) -> str:
    return address + ("refused" if ending == "refused" else protocol)


def _says(message: str) -> bool:
    event = json.loads(message)
    return bool(event.get("text") or event.get("delta"))


def _last(message: str) -> bool:
    event = json.loads(message)
    return "finish_reason" in event or event.get("type") == "response.done"


def _protocol(protocol: str) -> dict[str, Any]:
    return {} if protocol == "events" else {"classify": classify_message}


def websocket_sync(address: str, protocol: str) -> Run:
    """Ask a question over a WebSocket from a thread."""

    def run(ending: str, _: bool, saw: Saw) -> None:
        opens = connect_sync(_address(address, protocol, ending), legacy=False)
        with websocket.wrap(opens, **_protocol(protocol)) as connection:
            connection.send(_question(protocol, ending))
            if ending == "timeout":
                while True:
                    saw.append(connection.recv(timeout=LONG_S))

            def messages() -> Iterable[Any]:
                for message in connection:
                    yield message
                    if _last(message):
                        return

            read(ending, messages(), saw, str, _says)
            if ending == "cancelled":
                connection.close()

    return run


def websocket_async(address: str, protocol: str) -> Run:
    """Ask a question over a WebSocket from a task."""

    async def main(ending: str, saw: Saw) -> None:
        opens = connect(_address(address, protocol, ending))
        async with websocket.wrap(opens, **_protocol(protocol)) as connection:
            await connection.send(_question(protocol, ending))

            async def messages() -> Any:
                async for message in connection:
                    yield message
                    if _last(message):
                        return

            await Asyncio(ending, saw, str).read(messages(), _says)

    return lambda ending, _, saw: asyncio.run(main(ending, saw))


# --- gRPC ----------------------------------------------------------------------------------------


def _rpc_done(message: bytes) -> bool:
    return not message


def rpc_sync(target: str) -> Run:
    """Call a gRPC server from a thread."""

    def run(ending: str, stream: bool, saw: Saw) -> None:
        with grpc.insecure_channel(target) as plain:
            channel = grpc.intercept_channel(plain, *client_interceptors(done=_rpc_done))
            timeout = LONG_S if ending == "timeout" else None
            if stream:
                responses = channel.unary_stream(f"/{SERVICE}/Stream")(
                    ending.encode(), timeout=timeout
                )
                read(ending, responses, saw, bytes, bool)
                if ending == "cancelled":
                    responses.cancel()
                return
            ask = channel.unary_unary(f"/{SERVICE}/Ask")
            if ending == "cancelled":
                future = ask.future(ending.encode())
                future.cancel()
                future.result()
            saw.append(ask(ending.encode(), timeout=timeout))

    return run


def rpc_async(target: str) -> Run:
    """Call a gRPC server from a task."""

    async def whole(ask: Any, ending: str, saw: Saw, ready: asyncio.Event) -> None:
        ready.set()
        saw.append(await ask(ending.encode()))

    async def main(ending: str, stream: bool, saw: Saw) -> None:
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(
                    target, interceptors=aio_client_interceptors(done=_rpc_done)
                )
            )
            if stream:
                responses = channel.unary_stream(f"/{SERVICE}/Stream")(ending.encode())
                await Asyncio(ending, saw, bytes).read(responses, bool)
                return
            ask = channel.unary_unary(f"/{SERVICE}/Ask")
            if ending == "cancelled":
                await cancelled_midway(lambda ready: whole(ask, ending, saw, ready))
            async with asyncio.timeout(LONG_S if ending == "timeout" else None):
                await whole(ask, ending, saw, asyncio.Event())

    return lambda ending, stream, saw: asyncio.run(main(ending, stream, saw))
