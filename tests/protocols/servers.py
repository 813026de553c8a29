"""Servers that end a response in each way, over SSE, WebSocket and gRPC.

The request says how to end it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

import grpc
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websocket

from tests.instrumentation import answers
from tests.support.sse_server import Answer, Request, Script

WORDS: Final = ("one ", "two ", "three ")
# How many messages with content come before a response goes wrong.
BEFORE: Final = 2
QUEUE_S: Final = 0.0015
PREFILL_S: Final = 0.02025
GATEWAY_MS: Final = 3.5
# How long each response takes, so that what servers report of it fits in; those of SSE report
# 21.75 ms.
SERVED_S: Final = 0.028
_WHOLE_S: Final = 0.07
STATUS: Final = HTTPStatus.SERVICE_UNAVAILABLE
_PATIENCE_S: Final = 30.0


# --- SSE -----------------------------------------------------------------------------------------

_WHOLE: Final[dict[str, Script]] = {
    "chat": answers.chat(WORDS),
    "completions": answers.completion,
    "responses": answers.responses,
    "messages": answers.messages,
}


class _Enough(Exception):  # noqa: N818 - what the script does
    """Ends a script early."""


class _Ending:
    """A response that ends in its own way, whatever its script writes."""

    def __init__(self, answer: Answer, ending: str) -> None:
        self._answer = answer
        self._ending = ending
        self._content = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answer, name)

    def event(self, data: Any, name: str | None = None) -> None:
        if _carries(data):
            if self._ending == "empty":
                return
            if self._content == BEFORE and self._ending != "success":
                self._now()
            self._content += 1
        self._answer.event(data, name)

    def _now(self) -> None:
        if self._ending == "broken":
            self._answer.drop()
        if self._ending != "truncated":
            self._answer.wait(_PATIENCE_S)
        raise _Enough


def _carries(data: Any) -> bool:
    if not isinstance(data, dict):
        return False
    delta = data.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(part) for part in ("text", "thinking"))
    choices = [*data.get("choices", ())]
    return bool(delta) or any(
        choice.get("text") or choice.get("delta", {}).get("content") for choice in choices
    )


def script(protocol: str, ending: str) -> Script:
    """Make the script of an SSE server that responds in a protocol and ends in a way."""
    if ending == "refused":
        return answers.error(STATUS)

    def play(request: Request, answer: Answer) -> None:
        if request.body.get("stream"):
            answer.wait(SERVED_S)
        else:
            answer.wait(_WHOLE_S if ending == "success" else _PATIENCE_S)
        with suppress(_Enough):
            _WHOLE[protocol](request, _Ending(answer, ending))  # type: ignore[arg-type]

    return play


# --- WebSocket -----------------------------------------------------------------------------------


@contextmanager
def websocket() -> Iterator[str]:
    """Serve questions over WebSocket; yield the address, which ends in `/` and takes a path.

    Under `/events` the responses are OpenAI's events; `/refused` refuses the handshake.
    """
    stop = threading.Event()

    def refuse(connection: ServerConnection, request: Any) -> Any:
        if request.path == "/refused":
            return connection.respond(STATUS, "no\n")
        return None

    def answer(connection: ServerConnection) -> None:
        assert connection.request is not None
        send = _event if connection.request.path == "/events" else _message
        with suppress(ConnectionClosed):
            for question in connection:
                event = json.loads(question)
                if "ending" in event:
                    _answer(connection, send, str(event["ending"]), stop)

    with serve_websocket(answer, "127.0.0.1", 0, process_request=refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/"
        finally:
            stop.set()
            server.shutdown()
            thread.join()


_Send = Callable[[ServerConnection, str | None], None]


def _answer(connection: ServerConnection, send: _Send, ending: str, stop: threading.Event) -> None:
    stop.wait(SERVED_S)
    if send is _event:
        _put(connection, "response.created", response={"id": "resp_1", "model": "tiny"})
    for number, word in enumerate(() if ending == "empty" else WORDS):
        if number == BEFORE and ending != "success":
            if ending == "broken":
                connection.close(1011, "no more")
            elif ending == "truncated":
                connection.close()
            else:
                stop.wait(_PATIENCE_S)
            return
        send(connection, word)
    send(connection, None)


def _message(connection: ServerConnection, word: str | None) -> None:
    if word is not None:
        connection.send(json.dumps({"text": word}))
        return
    end = {"finish_reason": "stop", "output_tokens": len(WORDS)}
    connection.send(json.dumps({**end, "queue_s": QUEUE_S, "prefill_s": PREFILL_S}))


def _event(connection: ServerConnection, word: str | None) -> None:
    if word is not None:
        _put(connection, "response.output_text.delta", response_id="resp_1", delta=word)
        return
    usage = {"input_tokens": 7, "output_tokens": 3, "input_token_details": {"cached_tokens": 2}}
    done = {"id": "resp_1", "status": "completed", "usage": usage}
    _put(connection, "response.done", response=done)


def _put(connection: ServerConnection, kind: str, **event: Any) -> None:
    connection.send(json.dumps({"type": kind, "event_id": "event_1", **event}))


# --- gRPC ----------------------------------------------------------------------------------------

SERVICE: Final = "test.Chat"
_TIMING: Final = (
    ("server-timing", f"gateway;dur={GATEWAY_MS}"),
    ("server-timing", f"queue;dur={QUEUE_S * 1000}, prefill;dur={PREFILL_S * 1000}"),
)


@contextmanager
def rpc(*interceptors: grpc.ServerInterceptor) -> Iterator[str]:
    """Serve `test.Chat/Stream` and `test.Chat/Ask` over gRPC; yield the target."""
    stop = threading.Event()

    def wait(context: grpc.ServicerContext) -> None:
        give_up = time.monotonic() + _PATIENCE_S
        while context.is_active() and not stop.wait(0.01) and time.monotonic() < give_up:
            pass

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        ending = request.decode()
        if ending == "refused":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")
        stop.wait(SERVED_S)
        context.set_trailing_metadata(_TIMING)
        for number, word in enumerate(() if ending == "empty" else WORDS):
            if number == BEFORE and ending != "success":
                if ending == "broken":
                    context.abort(grpc.StatusCode.INTERNAL, "no more")
                if ending != "truncated":
                    wait(context)
                return
            yield word.encode()
        yield b""

    def ask(request: bytes, context: grpc.ServicerContext) -> bytes:
        ending = request.decode()
        if ending == "refused":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")
        stop.wait(SERVED_S)
        if ending != "success":
            wait(context)
        context.set_trailing_metadata(_TIMING)
        return "".join(WORDS).encode()

    methods = {
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
        "Ask": grpc.unary_unary_rpc_method_handler(ask),
    }
    # Each that waits holds one of its threads for as long as its client does not cancel it.
    server = grpc.server(futures.ThreadPoolExecutor(16), interceptors=interceptors)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        stop.set()
        server.stop(0).wait()
