"""Call a scripted server without an SDK, over any HTTP library, and read the response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

import pytest

from tests.support.sse_server import Server

BODY: Final = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}
PATHS: Final = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
# Library and mode, and all its ways to read a stream.
WAYS: Final = {
    "httpx": ("iter_lines", "iter_bytes", "iter_raw", "iter_text", "httpx_sse", "small_bytes"),
    "httpx2": ("iter_lines", "iter_bytes", "iter_raw", "iter_text", "small_bytes"),
    "aiohttp": (
        "lines",
        "iter_any",
        "iter_chunked",
        "iter_chunks",
        "readline",
        "readany",
        "read",
        "readuntil",
        "readexactly",
        "read_nowait",
    ),
}
CELLS: Final = [
    pytest.param(library, mode, way, id=f"{library}-{mode}-{way}")
    for library, ways in WAYS.items()
    for mode in (("async",) if library == "aiohttp" else ("sync", "async"))
    for way in ways
]
CLIENTS: Final = ["httpx-sync", "httpx-async", "httpx2-sync", "httpx2-async", "aiohttp-async"]


# What is recorded is what is imported by then; each library may be missing.
for _library in WAYS:
    with suppress(ImportError):
        import_module(_library)


@lru_cache
def no_tls() -> Any:
    """Return a context that was quick to make: nothing here speaks TLS."""
    ssl = import_module("ssl")
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def url(server: Server, endpoint: str = "chat") -> str:
    """Return the address of an endpoint."""
    return server.root + PATHS.get(endpoint, endpoint)


def ask(
    library: str,
    mode: str,
    address: str,
    read: Any = "",
    *,
    body: Any = None,
    timeout_s: float = 10.0,
    headers: dict[str, str] | None = None,
) -> Any:
    """Send one request and read the response.

    Args:
        library: `httpx`, `httpx2` or `aiohttp`.
        mode: `sync` or `async`.
        address: of the endpoint.
        read: one of `WAYS`, or what to do with the response; default: its lines.
        body: of the request; default: `BODY`.
        timeout_s: of one read.
        headers: of the request.

    Returns:
        The bytes as read, or what `read` returned.
    """
    call_options = {"json": BODY if body is None else body, "headers": headers}
    module = pytest.importorskip(library)
    if library == "aiohttp":
        return asyncio.run(_aiohttp(module, address, read or "lines", call_options, timeout_s))
    read = read or "iter_lines"
    if mode == "sync":
        with (
            module.Client(verify=no_tls(), timeout=timeout_s) as client,
            client.stream("POST", address, **call_options) as response,
        ):
            return read(response) if callable(read) else _sync(response, read)

    async def main() -> Any:
        async with (
            module.AsyncClient(verify=no_tls(), timeout=timeout_s) as client,
            client.stream("POST", address, **call_options) as response,
        ):
            return await (read(response) if callable(read) else _async(response, read))

    return asyncio.run(main())


def _sync(response: Any, way: str) -> bytes:
    if way == "httpx_sse":
        events = pytest.importorskip("httpx_sse").EventSource(response).iter_sse()
        return b"".join(_again(event) for event in events)
    if way == "small_bytes":
        return b"".join(response.iter_bytes(7))
    return b"".join(_bytes(piece, way) for piece in getattr(response, way)())


async def _async(response: Any, way: str) -> bytes:
    if way == "httpx_sse":
        events = pytest.importorskip("httpx_sse").EventSource(response).aiter_sse()
        return b"".join([_again(event) async for event in events])
    if way == "small_bytes":
        return b"".join([piece async for piece in response.aiter_bytes(7)])
    return b"".join([_bytes(piece, way) async for piece in getattr(response, f"a{way}")()])


def _bytes(piece: Any, way: str) -> bytes:
    if way == "iter_lines":
        piece += "\n"
    return piece.encode() if isinstance(piece, str) else piece


def _again(event: Any) -> bytes:
    named = f"event: {event.event}\n" if event.event != "message" else ""
    return f"{named}data: {event.data}\n\n".encode()


async def _aiohttp(
    module: Any, address: str, read: Any, call_options: Any, timeout_s: float
) -> Any:
    timeout = module.ClientTimeout(total=None, sock_read=timeout_s)
    async with (
        module.ClientSession(timeout=timeout) as session,
        session.post(address, **call_options) as response,
    ):
        if callable(read):
            return await read(response)
        return await _CONTENT[read](response.content)


async def _until_empty(read: Callable[[], Awaitable[bytes]]) -> bytes:
    pieces = []
    while piece := await read():
        pieces.append(piece)
    return b"".join(pieces)


async def _all(pieces: Any) -> bytes:
    return b"".join([one if isinstance(one, bytes) else one[0] async for one in pieces])


async def _exactly(content: Any) -> bytes:
    read = b""
    try:
        while True:
            assert await content.readexactly(0) == b""
            read += await content.readexactly(1)
    except asyncio.IncompleteReadError as error:
        return read + error.partial


async def _at_once(content: Any) -> bytes:
    read = b""
    while piece := await content.read(1):
        read += piece + content.read_nowait()
    return read


_CONTENT: Final[dict[str, Callable[[Any], Awaitable[bytes]]]] = {
    "lines": _all,
    "iter_any": lambda content: _all(content.iter_any()),
    "iter_chunked": lambda content: _all(content.iter_chunked(7)),
    "iter_chunks": lambda content: _all(content.iter_chunks()),
    "readline": lambda content: _until_empty(content.readline),
    "readany": lambda content: _until_empty(content.readany),
    "read": lambda content: _until_empty(lambda: content.read(11)),
    "readuntil": lambda content: _until_empty(lambda: content.readuntil(b"\n\n")),
    "readexactly": _exactly,
    "read_nowait": _at_once,
}


def datas(stream: bytes) -> list[Any]:
    """Return the events of a stream, parsed."""
    lines = stream.replace(b"\r\n", b"\n").split(b"\n")
    found = [line.removeprefix(b"data:").strip() for line in lines if line.startswith(b"data:")]
    return [json.loads(one) for one in found if one != b"[DONE]"]
