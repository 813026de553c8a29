"""Make a request that came over a WebSocket part of its client's trace.

For Starlette's and FastAPI's endpoints: a connection serves many requests, each with a trace of
its own, so the endpoint marks where one begins and ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from llmtrace.core.failopen import internal_error
from llmtrace.gateway.message_request import MessageRequest, carried
from llmtrace.gateway.middleware import check_name, label
from llmtrace.runtime import proxied_request
from llmtrace.runtime.runtime import active

# What frameworks raise when the other side has gone.
_GONE = frozenset({"WebSocketDisconnect", "ClientDisconnect"})


@contextmanager
def serving(
    socket: Any, message: Mapping[str, Any] | None = None, *, name: str | None = None
) -> Iterator[Callable[[], str]]:
    """Serve one request that came over a WebSocket; the code inside is in its client's trace.

    It opens the server side of the trace, so that what llmtrace records inside are its children,
    and takes the time this process spends itself up to the first message it sends, which is all of
    it but the waiting on its upstream calls.

    Args:
        socket: Starlette's (FastAPI's) WebSocket.
        message: the request, if the client has put its trace context there (`traceparent` and
            `x-request-id`, as of `llmtrace.propagate.trace_headers`). Default: what the handshake
            carried.
        name: what this gateway goes by in rows and spans, a short word; default: the service's
            name.

    Yields:
        A function that returns the timing for the client, as in a `Server-Timing` header,
        to be sent along with the last message. A client that is llmtrace reads it where its
        `classify` gives it as `server_timing`. Without `llmtrace.init` it is empty.

    Example:
        >>> async def endpoint(socket):
        ...     await socket.accept()
        ...     async for question in socket.iter_json():
        ...         with serving(socket, question) as timing:
        ...             await socket.send_json({"text": "Because."})
        ...             await socket.send_json({"end": True, "server_timing": timing()})
    """
    served = _served(socket, message, name)
    if served is None:
        yield lambda: ""
        return
    try:
        with served.inside():
            yield served.timing
    except BaseException as error:
        served.ends(error, left=type(error).__name__ in _GONE)
        raise
    served.ends()


def _served(socket: Any, message: Any, name: str | None) -> MessageRequest | None:
    runtime = active()
    if runtime is None:
        return None
    try:
        check_name(name, "llmtrace.gateway.serving")
        path = socket.url.path
        served = MessageRequest(
            runtime,
            carried(message, socket.headers),
            name=name or label(runtime.service),
            span=f"WEBSOCKET {path}",
            attributes={"network.protocol.name": "websocket", "url.path": path},
        )
        _watch(socket)
    except Exception as error:  # noqa: BLE001 - the request is served all the same
        internal_error("gateway", error)
        return None
    return served


def _watch(socket: Any) -> None:
    """Look at what a socket sends from here on; it does not keep the socket alive."""
    before = vars(socket).get("send")
    if getattr(before, "func", None) is not _send:
        socket.send = partial(_send, weakref.ref(socket), before)


async def _send(reference: weakref.ref[Any], before: Any, message: Any) -> None:
    relay = proxied_request.current.get()
    if relay is not None and relay.spent is None and message.get("type") == "websocket.send":
        relay.finalize(relay.clock())
    socket = reference()
    if before is not None:
        await before(message)
    elif socket is not None:
        await type(socket).send(socket, message)
