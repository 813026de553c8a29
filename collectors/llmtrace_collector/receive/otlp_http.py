"""Receive OTLP and beacons over HTTP.

Routes for any Starlette application: `POST /v1/traces` in protobuf or JSON, compressed or not, and
`POST /v1/beacons`. Every answer is one that an OTLP exporter knows what to do with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from math import ceil
from typing import Final, NamedTuple

from google.protobuf.message import Message
from google.rpc.code_pb2 import Code  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from llmtrace.browser.asgi import Allowance
from llmtrace.browser.beacon import MAX_BYTES
from llmtrace_collector.receive.admission import Admission, Weight
from llmtrace_collector.receive.auth import HttpAccess, check_token
from llmtrace_collector.receive.beacons import beacon_request
from llmtrace_collector.receive.limits import MIB
from llmtrace_collector.receive.otlp_json import to_json
from llmtrace_collector.receive.rejections import RejectedError

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
# Of a body that is too large so much is read and let go, so that its sender hears the answer.
_PATIENCE: Final = 64 * MIB
# For what comes after the body: unpacking, reading, the disk.
_KEEPING_S: Final = 30.0


class _Body(NamedTuple):
    """How one kind of request is read.

    Attributes:
        way: as counters name it.
        headers: that a page may send along.
    """

    way: str
    headers: str


_SPANS: Final = _Body("http", "authorization, content-type, content-encoding")
_BEACONS: Final = _Body("beacon", "content-type")


def routes(admission: Admission, access: HttpAccess | None = None) -> list[Route]:
    """Return the routes of everything that is taken over HTTP."""
    access = access or HttpAccess()
    methods = ["POST", "OPTIONS"]
    beacons = Allowance(admission.limits.beacons_per_s)
    traces = _Endpoint(admission, access, _SPANS, _Traces(admission))
    return [
        # A redirect would lose the body: exporters do not follow one.
        *(Route(path, traces, methods=methods) for path in ("/v1/traces", "/v1/traces/")),
        Route(
            "/v1/beacons",
            _Endpoint(admission, access, _BEACONS, _Beacons(admission, access, beacons)),
            methods=methods,
        ),
    ]


class _Reply(NamedTuple):
    status: int
    kind: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


Take = Callable[[Headers, Receive, Weight], Awaitable[_Reply]]


class _Endpoint:
    """Answers one address: asks who it is, takes what they bring, says what came of it."""

    def __init__(self, admission: Admission, access: HttpAccess, body: _Body, take: Take) -> None:
        self._admission = admission
        self._access = access
        self._body = body
        self._take = take

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = self._access.welcome(origin, headers.get("host"))
        if scope["method"] == "OPTIONS":
            reply = _Reply(204 if allowed else 403, "text/plain", b"")
        else:
            try:
                self._admit(headers, welcome=origin is None or allowed is not None)
                with self._admission.weighing() as weight:
                    async with asyncio.timeout(self._admission.limits.body_s + _KEEPING_S):
                        reply = await self._take(headers, receive, weight)
            except RejectedError as error:
                reply = self._rejected(headers, error)
            except TimeoutError:
                reply = self._rejected(
                    headers, RejectedError("overloaded", "this took too long; come back later")
                )
        await _respond(send, reply, () if allowed is None else _cors(allowed, self._body.headers))

    def _admit(self, headers: Headers, *, welcome: bool) -> None:
        if not welcome:
            raise RejectedError("origin", "pages of this origin may not send here")
        if self._body is _SPANS:
            check_token(headers.get("authorization"), self._access.token)

    def _rejected(self, headers: Headers, error: RejectedError) -> _Reply:
        self._admission.refuse(self._body.way, error)
        answer = error.answer
        more: list[tuple[bytes, bytes]] = []
        if answer.again:
            seconds = ceil(self._admission.limits.retry_after_s)
            more.append((b"retry-after", str(seconds).encode()))
        if error.reason == "unauthenticated":
            more.append((b"www-authenticate", b"Bearer"))
        if error.reason in {"too_large", "too_slow"}:
            more.append((b"connection", b"close"))  # there may be more of it on the way
        if self._body is _BEACONS:
            return _Reply(answer.status, "text/plain", error.words.encode(), tuple(more))
        kind = JSON if _media_type(headers) == JSON else PROTOBUF
        status = Status(code=Code.Value(answer.code), message=error.words)
        return _Reply(answer.status, kind, _encoded(status, kind), tuple(more))


class _Traces:
    """Endpoint for OTLP spans, as protobuf or JSON."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    async def __call__(self, headers: Headers, receive: Receive, weight: Weight) -> _Reply:
        limits = self._admission.limits
        kind = _media_type(headers)
        if kind not in {PROTOBUF, JSON}:
            raise RejectedError("media_type", f"Content-Type must be {PROTOBUF} or {JSON}")
        encoding = headers.get("content-encoding") or "identity"
        most = min(limits.body_bytes, limits.json_bytes) if kind == JSON else limits.body_bytes
        body = await _read(headers, receive, self._admission, weight, most)
        if encoding != "identity":
            body = await self._admission.unpack(weight, body, encoding)
        checked = await self._admission.take("http", body, json=kind == JSON)
        return _Reply(200, kind, _encoded(checked.response(), kind))


class _Beacons:
    """Endpoint for the timings that pages report in beacons."""

    def __init__(self, admission: Admission, access: HttpAccess, allowance: Allowance) -> None:
        self._admission = admission
        self._access = access
        self._allowance = allowance

    async def __call__(self, headers: Headers, receive: Receive, weight: Weight) -> _Reply:
        body = await _read(headers, receive, self._admission, weight, MAX_BYTES)
        if not self._allowance.one():
            raise RejectedError("overloaded", "too many beacons")
        request = beacon_request(body, self._admission.wall(), self._access.beacon_service)
        await self._admission.take("beacon", request)
        return _Reply(204, "text/plain", b"")


async def _read(
    headers: Headers, receive: Receive, admission: Admission, weight: Weight, most: int
) -> bytes:
    """Read a body.

    Raises:
        RejectedError: it is too large or too slow, or the sender left.
    """
    try:
        async with asyncio.timeout(admission.limits.body_s):
            return await _read_on(headers, receive, admission, weight, most)
    except TimeoutError:
        raise RejectedError("too_slow", f"the body took {admission.limits.body_s:g} s") from None


async def _read_on(
    headers: Headers, receive: Receive, admission: Admission, weight: Weight, most: int
) -> bytes:
    declared = headers.get("content-length", "")
    length = int(declared) if declared.isdecimal() else None
    if length is not None and length <= most:
        admission.weigh(weight, length)
    refusal: RejectedError | None = None
    if length is not None and length > most:
        refusal = RejectedError("too_large", f"a body has at most {most} bytes")
        if length > max(_PATIENCE, most) or "100-continue" in headers.get("expect", "").lower():
            raise refusal
    pieces: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RejectedError("too_slow", "the sender left before the end")
        piece = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(piece)
        if refusal is None and size > most:
            refusal = RejectedError("too_large", f"a body has at most {most} bytes")
            pieces.clear()
        if refusal is not None:
            if size > max(_PATIENCE, most):
                break
            continue
        if length is None:
            admission.weigh(weight, len(piece))
        pieces.append(piece)
    if refusal is not None:
        raise refusal
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _encoded(message: Message, kind: str) -> bytes:
    return to_json(message) if kind == JSON else message.SerializeToString()


def _cors(origin: str, headers: str) -> Iterable[tuple[bytes, bytes]]:
    answer_headers: Mapping[str, str] = {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "POST",
        "access-control-allow-headers": headers,
        "access-control-max-age": "86400",
        "vary": "origin",
    }
    return [(name.encode(), value.encode("latin-1")) for name, value in answer_headers.items()]


_NO_CONTENT: Final = 204


async def _respond(send: Send, reply: _Reply, more: Iterable[tuple[bytes, bytes]]) -> None:
    headers = [*reply.headers, *more]
    if reply.status != _NO_CONTENT:
        headers.append((b"content-type", reply.kind.encode()))
        headers.append((b"content-length", str(len(reply.body)).encode()))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
