"""ASGI middleware that measures the requests passing a gateway and exposes their timing.

It passes every message on as it comes. To outgoing messages it adds headers and, for clients that
are llmtrace, a comment between two events of the stream.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Final

from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_error
from llmtrace.gateway.asgi_request import PassingRequest
from llmtrace.runtime.runtime import active

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Paths that are noise in a trace.
_SKIPPED: Final = (
    "/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics", "/favicon.ico",
)  # fmt: skip
# It becomes a label, and stands in a header.
_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.:-]{0,63}")
# In the scope: the request is being measured already.
_MEASURED: Final = "llmtrace.gateway"


class Middleware:
    """Measure a gateway's self time, report it to its clients, and continue their trace.

    For ASGI applications between a client and an engine. It opens the server side of the client's
    trace, so that what llmtrace records inside are its children; takes the time the application
    spends itself, which is all up to the first content it sends but the waiting on its upstream
    calls; and exposes it downstream in `Server-Timing`. Bytes, errors and cancellation pass as
    they are, and nothing is delayed. Before `llmtrace.init` it does nothing.

    Put it outermost, so that no other middleware's time is missed: in Starlette and FastAPI, what
    is added last is outermost.

    Args:
        app: the application.
        name: what this gateway goes by in rows and spans; default: the service's name.
        tell: whether to send the times to clients. Without, it measures for the trace alone:
            where clients should not learn how long a gateway takes.
        skip: paths that are passed through unmeasured.

    Raises:
        ConfigError: a setting is wrong; the message says which and how to fix it.
    """

    def __init__(
        self,
        app: App,
        *,
        name: str | None = None,
        tell: bool = True,
        skip: Collection[str] = _SKIPPED,
    ) -> None:
        check_name(name, "llmtrace.gateway.Middleware")
        if isinstance(skip, str) or not all(isinstance(path, str) for path in skip):
            raise ConfigError(
                f"llmtrace.gateway.Middleware: skip={skip!r} must be a list of paths, "
                'as in skip=["/health"]'
            )
        self.app = app
        self._name = name
        self._tell = tell
        self._skip = frozenset(skip)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request through; lifespan and WebSocket connections go by untouched."""
        request = self._begin(scope) if scope["type"] == "http" else None
        if request is None:
            await self.app(scope, receive, send)
            return

        async def received() -> Message:
            if request.has_request:
                message = await receive()
            else:
                request.receives()
                try:
                    message = await receive()
                finally:
                    request.received()
            request.got(message)
            return message

        async def sent(message: Message) -> None:
            await send(request.passes(message))
            if request.last:
                request.ends()

        try:
            with request.inside():
                await self.app(scope, received, sent)
        except BaseException as error:
            request.ends(error)
            raise
        request.ends()

    def _begin(self, scope: Scope) -> PassingRequest | None:
        """Begin to measure a request, unless it is skipped or being measured already."""
        runtime = active()
        if runtime is None or scope["path"] in self._skip or _MEASURED in scope:
            return None
        try:
            name = self._name or label(runtime.service)
            request = PassingRequest(runtime, scope, name, tell=self._tell)
        except Exception as error:  # noqa: BLE001 - the request goes through unmeasured
            internal_error("gateway", error)
            return None
        # Into the one scope that all share, as frameworks note the route there for those outside.
        scope[_MEASURED] = True
        return request


def check_name(name: str | None, where: str) -> None:
    """Check the name of a gateway.

    Raises:
        ConfigError: it cannot be one; the message gives the reason.
    """
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ConfigError(
            f"{where}: name={name!r} must be a short word, as it becomes a label: letters, digits "
            "and _ . : - only, 64 at most"
        )


def label(service: str) -> str:
    """Make a service's name a word that may stand in a header."""
    return re.sub(r"[^0-9A-Za-z_.:-]+", "-", service).strip("-")[:64] or "gateway"
