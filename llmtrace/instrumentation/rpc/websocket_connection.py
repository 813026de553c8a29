"""Look at each message of a WebSocket; its connection stays the same object.

A connection of the `websockets` library stays the object it is: its class becomes a subclass that
looks at each message sent and received. Objects that open one are treated the same.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import urlsplit

from llmtrace.core.listen_address import with_port
from llmtrace.instrumentation.http.dns import standard_loop
from llmtrace.instrumentation.llm_sdks.endpoints import provider_of
from llmtrace.instrumentation.llm_sdks.responses import copy_identity
from llmtrace.instrumentation.rpc.websocket_handshake import Opening, Phase, guarded
from llmtrace.instrumentation.rpc.websocket_session import Conversation
from llmtrace.runtime.runtime import active

_MODULES: Final = ("websockets.asyncio.client", "websockets.sync.client")
_KINDS: Final = ("ClientConnection", "connect", "reconnect")


def inside(connection: Any) -> Any:
    """Return the library's own object: the argument, or the one an SDK's connection contains.

    `None` if it is neither a connection of its clients nor an object that opens one.
    """
    for target in (connection, getattr(connection, "_connection", None)):
        for kind in type(target).__mro__:
            if kind.__module__ in _MODULES and kind.__name__ in _KINDS:
                return target
    return None


def look_at(target: Any, make: Callable[[], Conversation]) -> None:
    """Look at the messages of a connection, or of those that an object opens, from here on.

    The target is the library's own object; `make` makes the conversation of each connection.
    """
    if "_llmtrace" in vars(target):
        return
    if hasattr(target, "recv"):
        _record(target, make())
    else:
        _record_opening(target, make)


# --- an open connection --------------------------------------------------------------------------


def _record(connection: Any, conversation: Conversation) -> None:
    uri = connection.protocol.uri
    conversation.add_info(_server(uri.host, uri.port))
    connection._llmtrace = conversation  # noqa: SLF001 - our own, on their object
    kind: Any = type(connection)
    connection.__class__ = _recorded(kind)


def _server(host: str, port: int) -> dict[str, str]:
    provider = provider_of(host)
    known = {} if provider is None else {"provider": provider}
    return {"server": with_port(host, port), **known}


@lru_cache(maxsize=16)
def _recorded(kind: Any) -> type[Any]:
    made = _async(kind) if inspect.iscoroutinefunction(kind.recv) else _sync(kind)
    return copy_identity(made, kind)


def _async(kind: Any) -> type[Any]:
    receive = kind.recv  # `super()` costs more, and this is every message

    class Connection(_opened_async(kind)):  # type: ignore[misc]
        async def send(self, message: Any, *args: Any, **kwargs: Any) -> None:
            if not self._llmtrace.sending(message):
                await super().send(message, *args, **kwargs)
                return
            try:
                await super().send(message, *args, **kwargs)
            except BaseException as error:
                self._llmtrace.not_sent(error)
                raise
            self._llmtrace.sent()

        async def recv(self, *args: Any, **kwargs: Any) -> Any:
            conversation = self._llmtrace
            conversation.wait_starts()
            try:
                message = await receive(self, *args, **kwargs)
            except BaseException as error:
                conversation.broke(error)
                raise
            conversation.got(self, message)
            return message

        async def recv_streaming(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            conversation = self._llmtrace
            fragments, parts = super().recv_streaming(*args, **kwargs), conversation.parts()
            try:
                while True:
                    conversation.wait_starts()
                    try:
                        fragment = await anext(fragments)
                    except StopAsyncIteration:
                        conversation.completed(self, parts)
                        return
                    except BaseException as error:
                        conversation.broke(error)
                        raise
                    conversation.got_part(self, parts, fragment)
                    yield fragment
            finally:
                await fragments.aclose()

        async def close(self, *args: Any, **kwargs: Any) -> None:
            self._llmtrace.left()
            await super().close(*args, **kwargs)

    return Connection


def _opened_async(kind: Any) -> Any:
    class Opened(kind):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            opening = vars(self).get("_llmtrace_opening")
            if opening is not None:
                guarded(
                    _connected, opening, secure=transport.get_extra_info("ssl_object") is not None
                )
            super().connection_made(transport)

        async def handshake(self, given: Any = None, *args: Any, **kwargs: Any) -> None:
            opening = vars(self).get("_llmtrace_opening")
            if opening is None:
                await super().handshake(given, *args, **kwargs)
                return
            merged = guarded(opening.handshake_headers, given)
            await super().handshake(given if merged is None else merged, *args, **kwargs)
            guarded(opening.ends, "handshake")

    return Opened


def _connected(opening: Opening, *, secure: bool) -> None:
    # Another event loop makes its protocols before it connects: TCP and TLS are one there.
    opening.ends("tls" if secure and standard_loop() else "connect")


def _sync(kind: Any) -> type[Any]:
    receive = kind.recv

    # The library's warnings name the application: they are raised before it is called from here.
    class Connection(_opened_sync(kind)):  # type: ignore[misc]
        def send(self, message: Any, *args: Any, **kwargs: Any) -> None:
            if getattr(self, "pending_legacy_warning", False):
                self.maybe_raise_legacy_warning()
            if not self._llmtrace.sending(message):
                super().send(message, *args, **kwargs)
                return
            try:
                super().send(message, *args, **kwargs)
            except BaseException as error:
                self._llmtrace.not_sent(error)
                raise
            self._llmtrace.sent()

        def recv(self, *args: Any, **kwargs: Any) -> Any:
            if getattr(self, "pending_legacy_warning", False):
                self.maybe_raise_legacy_warning()
            conversation = self._llmtrace
            conversation.wait_starts()
            try:
                message = receive(self, *args, **kwargs)
            except BaseException as error:
                conversation.broke(error)
                raise
            conversation.got(self, message)
            return message

        def recv_streaming(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
            if getattr(self, "pending_legacy_warning", False):
                self.maybe_raise_legacy_warning()
            conversation = self._llmtrace
            fragments, parts = super().recv_streaming(*args, **kwargs), conversation.parts()
            try:
                while True:
                    conversation.wait_starts()
                    try:
                        fragment = next(fragments)
                    except StopIteration:
                        conversation.completed(self, parts)
                        return
                    except BaseException as error:
                        conversation.broke(error)
                        raise
                    conversation.got_part(self, parts, fragment)
                    yield fragment
            finally:
                fragments.close()

        def close(self, *args: Any, **kwargs: Any) -> None:
            self._llmtrace.left()
            super().close(*args, **kwargs)

    return Connection


def _opened_sync(kind: Any) -> Any:
    class Opened(kind):  # type: ignore[misc]
        def handshake(self, given: Any = None, *args: Any, **kwargs: Any) -> None:
            opening = vars(self).get("_llmtrace_opening")
            if opening is None:
                super().handshake(given, *args, **kwargs)
                return
            merged = guarded(opening.handshake_headers, given)
            super().handshake(given if merged is None else merged, *args, **kwargs)
            guarded(opening.ends, "handshake")

    return Opened


# --- opening one ---------------------------------------------------------------------------------


def _record_opening(connecter: Any, make: Callable[[], Conversation]) -> None:
    connecter._llmtrace = make  # noqa: SLF001
    kind: Any = type(connecter)
    connecter.__class__ = _opening(kind)


@lru_cache(maxsize=16)
def _opening(kind: Any) -> type[Any]:
    made = _opens_async(kind) if hasattr(kind, "__await__") else _opens_sync(kind)
    return copy_identity(made, kind)


def _opens_async(kind: Any) -> type[Any]:
    class Connect(kind):  # type: ignore[misc]
        def __await__(self) -> Generator[Any, None, Any]:
            opening = guarded(_begin, self, _made_async)
            try:
                connection = yield from super().__await__()
            except BaseException as error:
                guarded(_end, self, opening, None, error)
                raise
            guarded(_end, self, opening, connection)
            return connection

    return Connect


def _opens_sync(kind: Any) -> type[Any]:
    class Connect(kind):  # type: ignore[misc]
        def connect(self) -> Any:
            opening = guarded(_begin, self, _made_sync)
            try:
                connection = super().connect()
            except BaseException as error:
                guarded(_end, self, opening, None, error)
                raise
            guarded(_end, self, opening, connection)
            return connection

        def open_socket(self, *args: Any, **kwargs: Any) -> Any:
            sock = super().open_socket(*args, **kwargs)
            _over(self, "connect")
            return sock

        def enable_tls(self, *args: Any, **kwargs: Any) -> Any:
            sock = super().enable_tls(*args, **kwargs)
            _over(self, "tls")
            return sock

    return Connect


def _over(connecter: Any, phase: Phase) -> None:
    opening = vars(connecter).get("_llmtrace_opening")
    if opening is not None:
        guarded(opening.ends, phase)


# Attributes by which a connecter keeps its connection's class: they differ by version.
_FACTORIES: Final = ("factory", "protocol_factory", "create_connection")


def _begin(connecter: Any, made: Callable[..., Any]) -> Opening | None:
    """Begin to open a connection, and look at it from the moment it is made."""
    if active() is None:
        return None
    conversation: Conversation = connecter._llmtrace()  # noqa: SLF001
    uri = urlsplit(connecter.uri)
    default = 443 if uri.scheme == "wss" else 80
    conversation.add_info(_server(uri.hostname or "", uri.port or default))
    connecter._llmtrace_opening = opening = Opening(conversation)  # noqa: SLF001
    for name in _FACTORIES:
        plain = vars(connecter).get(name)
        if plain is not None:
            setattr(connecter, name, partial(made, opening, conversation, plain))
    return opening


def _end(
    connecter: Any, opening: Opening | None, connection: Any, error: BaseException | None = None
) -> None:
    if opening is None:
        return
    del connecter._llmtrace_opening  # noqa: SLF001
    for name in _FACTORIES:
        ours = vars(connecter).get(name)
        if ours is not None:
            setattr(connecter, name, ours.args[2])
    if error is not None:
        opening.failed(error)
    else:
        opening.opened(connection)
        vars(connection).pop("_llmtrace_opening", None)


def _made_async(
    opening: Opening, conversation: Conversation, plain: Any, uri: Any, *args: Any
) -> Any:
    if uri.secure and standard_loop():
        guarded(opening.ends, "connect")
    connection = plain(uri, *args)
    guarded(_look_at, connection, conversation, opening)
    return connection


def _made_sync(
    opening: Opening, conversation: Conversation, plain: Any, *args: Any, **kwargs: Any
) -> Any:
    connection = plain(*args, **kwargs)
    guarded(_look_at, connection, conversation, opening)
    return connection


def _look_at(connection: Any, conversation: Conversation, opening: Opening) -> None:
    connection._llmtrace_opening = opening  # noqa: SLF001
    _record(connection, conversation)
