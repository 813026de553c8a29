"""Record responses that stream over a WebSocket as rows.

    from llmtrace import websocket

    async with websocket.wrap(connect(url)) as connection:
        await connection.send(question)
        async for message in connection: ...

For the clients of the `websockets` library, sync and asyncio. See docs/instrument/protocols.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar

from llmtrace.core.errors import ConfigError
from llmtrace.instrumentation.rpc import message_classifier, openai_realtime, websocket_connection
from llmtrace.instrumentation.rpc.message_classifier import Classification
from llmtrace.instrumentation.rpc.websocket_session import Conversation, Protocol
from llmtrace.instrumentation.trace_decorator import Scalar, labels
from llmtrace.runtime.runtime import active

__all__ = ["wrap"]

C = TypeVar("C")

_WHERE: Final = "llmtrace.websocket.wrap"
_OPENAI: Final = Protocol(
    classify=openai_realtime.read,
    asks=openai_realtime.asks,
    begins=openai_realtime.begins,
    apart=True,
)
_BY_CLOSE: Final = ("done", "close")


def wrap(
    connection: C,
    *,
    done: Callable[[Any], bool] | Literal["close"] | None = None,
    asks: Callable[[Any], bool] | None = None,
    classify: Callable[[Any], Classification] | None = None,
    model: str | None = None,
    route: str | None = None,
    tenant: str | None = None,
    tags: Sequence[str] | None = None,
    **attributes: Scalar | None,
) -> C:
    """Record each request sent over a WebSocket, and the messages of its response, as a row.

    A request begins when its message is sent and ends with the last message of the response. In a
    decorated function it joins that function's row. Messages, order, exceptions, cancellation and
    the closing stay as they are.

    Without `done`, `asks` and `classify`, messages are OpenAI's events, of the Realtime API or of
    Responses: `response.create` is a request, `response.done` (`.completed`, …) is the last.

    Args:
        connection: a client connection of the `websockets` library, sync or asyncio, or one of the
            OpenAI SDK's that is open. Or what opens one, not entered or awaited yet: the library's
            `connect(…)` for asyncio, `connect(…, legacy=False)` for threads. Then the opening is
            timed, too, and counts for the first request if that is sent within a second.
        done: returns whether a received message is the last of its answer; `"close"` if the server
            closes the connection after it. A response that ends before is `truncated`. Default:
            the message for which `classify` returns a `finish_reason` is the last.
        asks: returns whether a sent message is a request. Default: each is that is sent after
            something of the previous response has come.
        classify: returns what a received message carries: `"text"`, `"reasoning"`, `"tool_call"`,
            `"other"`, or `None` for nothing; or a mapping with that as `kind`, and any of
            `finish_reason`, `response_id`, `model`, `prompt_tokens`, `cached_tokens`,
            `output_tokens`, `queue_s`, `prefill_s`, `server_timing`, `error_type`. Default: what
            is not empty is text.
        model: the model's name.
        route: the part of the application that sends the request.
        tenant: on whose behalf.
        tags: a list of words to find it by, in Langfuse.
        **attributes: recorded on each row's span under their own names; `user` and `session` as
            `user.id` and `session.id`.

    Returns:
        The same object, recorded from here on. Without `llmtrace.init` it is left alone.

    Raises:
        ConfigError: it is none of these, or an argument cannot be recorded or called.
    """
    given = {"model": model, "route": route, "tenant": tenant, "tags": tags, **attributes}
    fields, extra = labels(given, _WHERE)
    protocol = _protocol(done, asks, classify)
    target = _recordable(connection)
    if active() is not None:
        info = {"operation": "chat", "client": "websockets", **fields}
        extra = {"network.protocol.name": "websocket", **extra}
        make = partial(Conversation, protocol, info, extra)
        websocket_connection.look_at(target, make)
    return connection


def _recordable(connection: Any) -> Any:
    """Return the library's own object.

    Raises:
        ConfigError: it is of another library.
    """
    target = websocket_connection.inside(connection)
    if target is None:
        raise ConfigError(
            f"{_WHERE} takes a connection of the websockets library, or what opens one, not "
            f"{connection!r}; of the OpenAI SDK's connect() wrap the connection that it opens; "
            "for other streams use llmtrace.wrap or @llmtrace.trace"
        )
    return target


def _protocol(done: Any, asks: Any, classify: Any) -> Protocol:
    for name, function in (("done", done), ("asks", asks), ("classify", classify)):
        if function is not None and not callable(function) and (name, function) != _BY_CLOSE:
            or_close = ', or "close"' if name == "done" else ""
            raise ConfigError(
                f"{_WHERE}: {name} must be a function of a message{or_close}, not {function!r}"
            )
    if done is None and asks is None and classify is None:
        return _OPENAI
    if done is None and classify is None:
        raise ConfigError(
            f"{_WHERE}: with asks alone the end of a response is not known; give done, or a "
            "classify that returns the finish_reason"
        )
    by_close = done == "close"
    return Protocol(
        classify=message_classifier.reader(classify),
        asks=asks,
        done=(lambda _: False) if by_close else done,
        ends_by_close=by_close,
    )
