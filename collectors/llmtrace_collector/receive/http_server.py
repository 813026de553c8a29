"""Serve HTTP, and close the connections of senders that send nothing, or too slowly.

Adds to uvicorn what it leaves to a proxy in front: a limit of open connections, and a deadline for
a request's headers. Bodies are timed where they are read (`otlp_http`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import Any, Final, Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llmtrace.core.errors import ConfigError, explain_error
from llmtrace.core.listen_address import listen
from llmtrace_collector.receive.counters import Received
from llmtrace_collector.receive.limits import ReceiveLimits

_BACKLOG: Final = 2048
_GRACE_S: Final = 5


class HttpServer:
    """Serves an ASGI application from `start` to `stop`, in the running event loop.

    Args:
        app: the application; it gets no lifespan events.
        host: to listen on.
        port: to listen on; 0 for any that is free.
        limits: of connections and their pace.
        counted: where connections are counted.
        certificate: PEM, for TLS.
        key: PEM, of the certificate.
        client_ca: PEM; clients must show a certificate that is signed by it.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        limits: ReceiveLimits,
        counted: Received,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        client_ca: Path | None = None,
    ) -> None:
        self._where = host, port
        self._server = _Server(
            uvicorn.Config(
                app,
                http=type("Bounded", (_Bounded,), {"_limits": limits, "_counted": counted}),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=ceil(limits.idle_s),
                timeout_graceful_shutdown=_GRACE_S,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                ssl_ca_certs=None if client_ca is None else str(client_ca),
                ssl_cert_reqs=ssl.CERT_NONE if client_ca is None else ssl.CERT_REQUIRED,
            )
        )
        self._serving: asyncio.Task[None] | None = None
        self.port = port

    async def start(self) -> Self:
        """Listen.

        Raises:
            ConfigError: the address is not available, or the certificate is invalid.
        """
        host, port = self._where
        try:
            self._server.config.load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot read the certificate or its key: {explain_error(error)}; "
                "both are PEM files"
            ) from None
        listener = listen(host, port, "its setting")
        self.port = int(listener.getsockname()[1])
        self._serving = asyncio.create_task(self._server.serve([listener]))
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait({self._serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._serving.done():
            await self._serving
        return self

    def take_certificate(self, certificate: Path | None, key: Path | None) -> None:
        """Use another certificate for new connections.

        Raises:
            OSError: the files cannot be read, or do not belong together; the old one stays.
        """
        context = self._server.config.ssl
        if context is not None and certificate is not None:
            context.load_cert_chain(certificate, key)

    async def stop(self) -> None:
        """Let requests in progress end, within some seconds, and close all connections."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the address, and log where."""
        await super().startup(sockets=sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process that runs it."""
        yield


def _busy(limits: ReceiveLimits) -> bytes:
    return (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n"
        f"Retry-After: {ceil(limits.retry_after_s)}\r\n\r\n"
    ).encode()


class _Bounded(HttpToolsProtocol):
    """The protocol of one connection, with its limits."""

    _limits: ReceiveLimits
    _counted: Received
    _waiting: asyncio.TimerHandle | None = None
    _is_counted = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._counted.connections >= self._limits.connections:
            self._drop("too_many", _busy(self._limits))
            return
        self._counted.connections += 1
        self._is_counted = True
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        if self._is_counted:
            self._counted.connections -= 1
            self._is_counted = False
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        with suppress(UnicodeError):  # uvicorn decodes parts of a request as ASCII, unchecked
            super().data_received(data)
        if self.transport.is_closing():
            self._counted.dropped_connections["bad_http"] += 1
        elif (
            self._waiting is None
            and (self.cycle is None or self.cycle.response_complete)
            and self.timeout_keep_alive_task is None
        ):
            self._await_head()  # the next request has begun

    def on_headers_complete(self) -> None:
        self._head_came()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._waiting = self.loop.call_later(self._limits.head_s, self._drop, "slow_head")

    def _head_came(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _drop(self, reason: str, answer: bytes = b"") -> None:
        self._waiting = None
        if self.transport.is_closing():
            return
        self._counted.dropped_connections[reason] += 1
        if answer:
            self.transport.write(answer)
        self.transport.close()
