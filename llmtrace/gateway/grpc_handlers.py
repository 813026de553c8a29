"""Serve a gRPC method as part of its client's trace, with the application's code unchanged.

The application's handler is wrapped in one of the same kind, since gRPC inspects which kind of
function it is given.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from llmtrace.core.failopen import internal_error
from llmtrace.gateway.message_request import MessageRequest, carried
from llmtrace.gateway.middleware import label
from llmtrace.runtime.runtime import active

_TIMING: Final = "server-timing"
_OK: Final = "OK"
# Metadata that contains anything else breaks the call.
_ILLEGAL: Final = re.compile(r"[^ -~]")


@dataclass(frozen=True, slots=True)
class Methods:
    """Serve the methods of a server.

    Attributes:
        name: what the gateway goes by; `None` = the service's name.
        tell: whether clients receive the times.
    """

    name: str | None
    tell: bool

    def wrapped(self, behavior: Any, method: str, *, stream: bool) -> Any:
        """Return what serves a method, given by its full name, in place of the application's."""
        if inspect.isasyncgenfunction(behavior):
            return _astream(self, behavior, method)
        if inspect.iscoroutinefunction(behavior):
            # What writes to its context itself does not show when its first content goes out.
            return _aunary(self, behavior, method, stream=stream)
        return (_stream if stream else _unary)(self, behavior, method)

    def begin(self, method: str, context: Any) -> GrpcRequest | None:
        """Begin to serve a request; `None` = it is not measured."""
        runtime = active()
        if runtime is None:
            return None
        try:
            metadata = {
                key: value
                for key, value in context.invocation_metadata() or ()
                if isinstance(value, str)
            }
            served = MessageRequest(
                runtime,
                carried(metadata),
                name=self.name or label(runtime.service),
                span=method.strip("/"),
                attributes={"rpc.system.name": "grpc", "rpc.method": method.strip("/")},
            )
        except Exception as error:  # noqa: BLE001 - the request is served all the same
            internal_error("grpc.server", error)
            return None
        return GrpcRequest(served, context, self.tell)


@dataclass(frozen=True, slots=True)
class GrpcRequest:
    """One request while it is served."""

    served: MessageRequest
    context: Any
    tell: bool

    def ends(self, error: BaseException | None = None) -> None:
        """Send the timing to the client, and write the span."""
        left = error is not None and not isinstance(error, Exception)
        status = _OK if error is None else "CANCELLED" if left else "UNKNOWN"
        try:
            if self.tell:
                timing = (_TIMING, _ILLEGAL.sub("?", self.served.timing()))
                before: Any = getattr(self.context, "trailing_metadata", list)()
                self.context.set_trailing_metadata((*(before or ()), timing))
            status = _name_of(getattr(self.context, "code", str)()) or status
        except Exception as broken:  # noqa: BLE001
            internal_error("grpc.server", broken)
        failure = None if status == _OK else status
        self.served.ends(error, {"rpc.response.status_code": status}, failure, left=left)


def _name_of(code: Any) -> str | None:
    """Name a status that was set: asyncio's contexts have its number, and 0 where none was."""
    if isinstance(code, int):
        return _names().get(code) if code else None
    name = getattr(code, "name", None)
    return name if isinstance(name, str) else None


@lru_cache(maxsize=1)
def _names() -> dict[int, str]:
    from grpc import StatusCode

    return {status.value[0]: status.name for status in StatusCode}


def _stream(methods: Methods, behavior: Any, method: str) -> Callable[..., Iterator[Any]]:
    def serve(request: Any, context: Any) -> Iterator[Any]:
        serving = methods.begin(method, context)
        if serving is None:
            yield from behavior(request, context)
            return
        served = serving.served
        try:
            with served.inside():
                responses = iter(behavior(request, context))
            while True:
                with served.inside():
                    try:
                        response = next(responses)
                    except StopIteration:
                        break
                served.sends()
                yield response
        except BaseException as error:
            serving.ends(error)
            raise
        serving.ends()

    return serve


def _unary(methods: Methods, behavior: Any, method: str) -> Callable[..., Any]:
    def serve(request: Any, context: Any) -> Any:
        serving = methods.begin(method, context)
        if serving is None:
            return behavior(request, context)
        try:
            with serving.served.inside():
                response = behavior(request, context)
        except BaseException as error:
            serving.ends(error)
            raise
        serving.served.sends()
        serving.ends()
        return response

    return serve


def _astream(methods: Methods, behavior: Any, method: str) -> Callable[..., AsyncIterator[Any]]:
    async def serve(request: Any, context: Any) -> AsyncIterator[Any]:
        serving = methods.begin(method, context)
        responses = behavior(request, context)
        if serving is None:
            async for response in responses:
                yield response
            return
        served = serving.served
        try:
            while True:
                with served.inside():
                    try:
                        response = await anext(responses)
                    except StopAsyncIteration:
                        break
                served.sends()
                yield response
        except BaseException as error:
            serving.ends(error)
            raise
        finally:
            await responses.aclose()
        serving.ends()

    return serve


def _aunary(methods: Methods, behavior: Any, method: str, *, stream: bool) -> Callable[..., Any]:
    async def serve(request: Any, context: Any) -> Any:
        serving = methods.begin(method, context)
        if serving is None:
            return await behavior(request, context)
        serving.served.unsure = stream
        try:
            with serving.served.inside():
                response = await behavior(request, context)
        except BaseException as error:
            serving.ends(error)
            raise
        if not stream:
            serving.served.sends()
        serving.ends()
        return response

    return serve
