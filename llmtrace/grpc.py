"""Record gRPC calls to a model as rows, and make a gRPC server part of its clients' traces.

Example::

    from llmtrace.grpc import client_interceptors

    channel = grpc.intercept_channel(grpc.insecure_channel(target), *client_interceptors())

    from llmtrace.grpc import server_interceptor

    server = grpc.server(threads, interceptors=[server_interceptor()])

See docs/instrument/protocols.md. Needs the `grpc` extra.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from llmtrace.core.errors import ConfigError, needs_extra

with needs_extra("llmtrace.grpc", "grpc", "grpcio"):
    import grpc
    import grpc.aio

from llmtrace.gateway.grpc_handlers import Methods
from llmtrace.gateway.middleware import check_name
from llmtrace.instrumentation.rpc import grpc_call, message_classifier
from llmtrace.instrumentation.rpc.grpc_call import Calls
from llmtrace.instrumentation.rpc.message_classifier import Classification
from llmtrace.instrumentation.trace_decorator import Scalar, labels
from llmtrace.runtime.runtime import entered

__all__ = [
    "aio_client_interceptors",
    "aio_server_interceptor",
    "client_interceptors",
    "server_interceptor",
]

# gRPC's own services: health checks, reflection, channelz.
_ITS_OWN: Final = "/grpc."


def client_interceptors(
    *,
    methods: Collection[str] | None = None,
    classify: Callable[[Any], Classification] | None = None,
    done: Callable[[Any], bool] | None = None,
    model: str | None = None,
    route: str | None = None,
    tenant: str | None = None,
    tags: Sequence[str] | None = None,
    **attributes: Scalar | None,
) -> tuple[grpc.UnaryStreamClientInterceptor, grpc.UnaryUnaryClientInterceptor]:
    """Make interceptors for `grpc.intercept_channel(channel, *…)` that record its calls.

    Calls that stream their responses, and those with a single one. In a decorated function the
    first joins that function's row. The calls stay gRPC's own: messages, order, errors, deadlines,
    cancellation and metadata are as they were, but for `traceparent` and `x-request-id` that are
    sent along.

    Give them last, so that they are closest to the channel and other interceptors' time is not
    taken for the server's.

    Args:
        methods: which to record, as `"package.Service/Method"`. Default: all but gRPC's own health
            checks and reflection.
        classify: returns what a response message carries: `"text"`, `"reasoning"`, `"tool_call"`,
            `"other"`, or `None` for nothing; or a mapping with that as `kind`, and any of
            `finish_reason`, `response_id`, `model`, `prompt_tokens`, `cached_tokens`,
            `output_tokens`, `queue_s`, `prefill_s`, `server_timing`, `error_type`. Default: what
            is not empty is text.
        done: returns whether a message is the last of its response: a stream that ends before,
            even with status `OK`, is `truncated`. Default: the status alone decides.
        model: the model's name.
        route: the part of the application that sends the request.
        tenant: on whose behalf.
        tags: a list of words to find it by, in Langfuse.
        **attributes: recorded on each row's span under their own names; `user` and `session` as
            `user.id` and `session.id`.

    Raises:
        ConfigError: an argument cannot be recorded or called.
    """
    given = {"model": model, "route": route, "tenant": tenant, "tags": tags, **attributes}
    calls = _calls("client_interceptors", methods, classify, done, given)
    return _Stream(calls), _Whole(calls)


def aio_client_interceptors(
    *,
    methods: Collection[str] | None = None,
    classify: Callable[[Any], Classification] | None = None,
    done: Callable[[Any], bool] | None = None,
    model: str | None = None,
    route: str | None = None,
    tenant: str | None = None,
    tags: Sequence[str] | None = None,
    **attributes: Scalar | None,
) -> list[grpc.aio.ClientInterceptor]:
    """Make the same, of the same arguments, for `grpc.aio`: for a channel's `interceptors=`.

    Raises:
        ConfigError: an argument cannot be recorded or called.
    """
    given = {"model": model, "route": route, "tenant": tenant, "tags": tags, **attributes}
    calls = _calls("aio_client_interceptors", methods, classify, done, given)
    return [_AioStream(calls), _AioWhole(calls)]


def server_interceptor(*, name: str | None = None, tell: bool = True) -> grpc.ServerInterceptor:
    """Make a server interceptor that continues clients' traces, for `grpc.server`.

    For servers between a client and an engine: what llmtrace records inside a method are children
    of the client's request, and the time the server spends itself, which is all of it up to the
    first content but the waiting on its upstream calls, is sent to the client in `server-timing`
    of the trailing metadata. Methods with one request, and one response or a stream of them.
    Messages, errors and cancellation pass as they are. Before `llmtrace.init` it does nothing.

    Args:
        name: what this gateway goes by in rows and spans; default: the service's name.
        tell: whether to send the times to clients.

    Raises:
        ConfigError: the name is no short word.
    """
    check_name(name, "llmtrace.grpc.server_interceptor")
    return _Server(Methods(name, tell))


def aio_server_interceptor(
    *, name: str | None = None, tell: bool = True
) -> grpc.aio.ServerInterceptor:
    """Make the same, of the same arguments, for `grpc.aio.server(interceptors=…)`.

    Of a method that writes its responses to the context, and does not yield them, it is not known
    when its first content goes out: its own time stays unknown.

    Raises:
        ConfigError: the name is no short word.
    """
    check_name(name, "llmtrace.grpc.aio_server_interceptor")
    return _AioServer(Methods(name, tell))


def _calls(where: str, methods: Any, classify: Any, done: Any, given: dict[str, Any]) -> Calls:
    where = f"llmtrace.grpc.{where}"
    for name, function in (("classify", classify), ("done", done)):
        if function is not None and not callable(function):
            raise ConfigError(f"{where}: {name} must be a function of a message, not {function!r}")
    if isinstance(methods, str) or not all(isinstance(name, str) for name in methods or ()):
        raise ConfigError(
            f"{where}: methods={methods!r} must be a list of names, "
            'as in methods=["package.Service/Method"]'
        )
    fields, extra = labels(given, where)
    chosen = frozenset(f"/{name.lstrip('/')}" for name in methods or ())
    return Calls(
        classify=message_classifier.reader(classify),
        done=done,
        wanted=_any_but_its_own if methods is None else chosen.__contains__,
        info={"operation": "chat", "client": "grpc", **fields},
        attributes=extra,
    )


def _any_but_its_own(method: str) -> bool:
    return not method.startswith(_ITS_OWN)


class _Details(NamedTuple):
    """How a call is made, as gRPC reads it from any object that has these."""

    method: Any
    timeout: Any
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


def _remade(details: Any, metadata: Any) -> _Details:
    return _Details(
        details.method,
        details.timeout,
        metadata,
        details.credentials,
        getattr(details, "wait_for_ready", None),
        getattr(details, "compression", None),
    )


class _Client:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def _sent(self, recorded: Any, continuation: Any, details: Any, request: Any) -> Any:
        call = self._calls.begin(details, _remade, stream=recorded is grpc_call.stream)
        if call is None:
            return continuation(details, request)
        try:
            with entered(call.recording):
                response = continuation(call.details, request)
        except BaseException as error:
            call.failed(error)
            raise
        return recorded(call, response)


class _Stream(_Client, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    def intercept_unary_stream(self, *given: Any) -> Any:
        return self._sent(grpc_call.stream, *given)


class _Whole(_Client, grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    def intercept_unary_unary(self, *given: Any) -> Any:
        return self._sent(grpc_call.unary, *given)


def _aio_remade(details: Any, metadata: Any) -> Any:
    return grpc.aio.ClientCallDetails(
        details.method,
        details.timeout,
        grpc.aio.Metadata(*metadata),
        details.credentials,
        details.wait_for_ready,
    )


class _AioClient(_Client):
    async def _sent(self, recorded: Any, continuation: Any, details: Any, request: Any) -> Any:
        call = self._calls.begin(details, _aio_remade, stream=recorded is grpc_call.astream)
        if call is None:
            return await continuation(details, request)
        try:
            with entered(call.recording):
                response = await continuation(call.details, request)
        except BaseException as error:
            call.failed(error)
            raise
        return recorded(call, response)


class _AioStream(_AioClient, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]
    async def intercept_unary_stream(self, *given: Any) -> Any:
        return await self._sent(grpc_call.astream, *given)


class _AioWhole(_AioClient, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    async def intercept_unary_unary(self, *given: Any) -> Any:
        return await self._sent(grpc_call.aunary, *given)


def _served(methods: Methods, handler: Any, method: str) -> Any:
    """Return a method's handler wrapped in ours; of a request that streams, as it is."""
    if handler is None or handler.request_streaming or method.startswith(_ITS_OWN):
        return handler
    if handler.response_streaming:
        make, behavior = grpc.unary_stream_rpc_method_handler, handler.unary_stream
    else:
        make, behavior = grpc.unary_unary_rpc_method_handler, handler.unary_unary
    return make(
        methods.wrapped(behavior, method, stream=handler.response_streaming),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


class _Server(grpc.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, methods: Methods) -> None:
        self._methods = methods

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        return _served(self._methods, continuation(details), details.method)


class _AioServer(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    def __init__(self, methods: Methods) -> None:
        self._methods = methods

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        return _served(self._methods, await continuation(details), details.method)
