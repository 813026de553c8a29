"""Receive OTLP and beacons over HTTP.

Routes for any Starlette application: `POST /v1/traces` in protobuf or JSON, compressed or not, and
`POST /v1/beacons`. Every response is one that OTLP defines, so that exporters act on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from math import ceil
from typing import Final, NamedTuple

from google.protobuf.message import Message
from google.rpc.code_pb2 import Code  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from starlette.datastructures import Headers
from starlette.responses import Response
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
# A body that is too large is read and discarded up to here, so that its sender gets the response.
_PATIENCE: Final = 64 * MIB
# For what follows the body: decompressing, parsing, writing to disk.
_KEEPING_S: Final = 30.0


class _Body(NamedTuple):
    """How one kind of request is read.

    Attributes:
        transport: its name in counters.
        headers: that a web page may send.
    """

    transport: str
    headers: str


_SPANS: Final = _Body("http", "authorization, content-type, content-encoding")
_BEACONS: Final = _Body("beacon", "content-type")


def routes(admission: Admission, access: HttpAccess | None = None) -> list[Route]:
    """Return the routes of everything that is received over HTTP."""
    access = access or HttpAccess()
    methods = ["POST", "OPTIONS"]
    allowance = Allowance(admission.limits.beacons_per_s)
    traces = _Endpoint(admission, access, _SPANS, partial(_take_spans, admission))
    beacons = _Endpoint(admission, access, _BEACONS, partial(_take_beacon, admission, allowance))
    return [
        # A redirect would lose the body: exporters do not follow one.
        *(Route(path, traces, methods=methods) for path in ("/v1/traces", "/v1/traces/")),
        Route("/v1/beacons", beacons, methods=methods),
    ]


Take = Callable[[Headers, Receive, Weight], Awaitable[Response]]


class _Endpoint:
    """Handles one path: authenticates the sender, takes the body and responds."""

    def __init__(self, admission: Admission, access: HttpAccess, body: _Body, take: Take) -> None:
        self._admission = admission
        self._access = access
        self._body = body
        self._take = take

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        allowed = self._access.allowed(headers.get("origin"), headers.get("host"))
        if scope["method"] == "OPTIONS":
            response = Response(status_code=204 if allowed else 403)
        else:
            try:
                self._authenticate(headers, allowed)
                with self._admission.weighing() as weight:
                    async with asyncio.timeout(self._admission.limits.body_s + _KEEPING_S):
                        response = await self._take(headers, receive, weight)
            except RejectedError as error:
                response = self._rejected(headers, error)
            except TimeoutError:
                response = self._rejected(
                    headers, RejectedError("overloaded", "this took too long; retry later")
                )
        if allowed is not None:
            response.headers.update(_cors(allowed, self._body.headers))
        await response(scope, receive, send)

    def _authenticate(self, headers: Headers, allowed_origin: str | None) -> None:
        if "origin" in headers and allowed_origin is None:
            raise RejectedError("origin", "pages of this origin may not send here")
        if self._body is _SPANS:
            check_token(headers.get("authorization"), self._access.token)

    def _rejected(self, headers: Headers, error: RejectedError) -> Response:
        self._admission.refuse(self._body.transport, error)
        answer = error.answer
        more: dict[str, str] = {}
        if answer.again:
            more["retry-after"] = str(ceil(self._admission.limits.retry_after_s))
        if error.reason == "unauthenticated":
            more["www-authenticate"] = "Bearer"
        if error.reason in {"too_large", "too_slow"}:
            more["connection"] = "close"  # there may be more of it on the way
        if self._body is _BEACONS:
            return Response(error.words, answer.status, more, media_type="text/plain")
        kind = JSON if media_type(headers) == JSON else PROTOBUF
        status = Status(code=Code.Value(answer.code), message=error.words)
        return Response(_encoded(status, kind), answer.status, more, kind)


async def _take_spans(
    admission: Admission, headers: Headers, receive: Receive, weight: Weight
) -> Response:
    """Take OTLP spans, as protobuf or JSON."""
    limits = admission.limits
    kind = media_type(headers)
    if kind not in {PROTOBUF, JSON}:
        raise RejectedError("media_type", f"Content-Type must be {PROTOBUF} or {JSON}")
    encoding = headers.get("content-encoding") or "identity"
    most = min(limits.body_bytes, limits.json_bytes) if kind == JSON else limits.body_bytes
    body = await _read(headers, receive, admission, weight, most)
    if encoding != "identity":
        body = await admission.unpack(weight, body, encoding)
    checked = await admission.take("http", body, json=kind == JSON)
    return Response(_encoded(checked.response(), kind), media_type=kind)


async def _take_beacon(
    admission: Admission, allowance: Allowance, headers: Headers, receive: Receive, weight: Weight
) -> Response:
    """Take the timings that a page reports."""
    body = await _read(headers, receive, admission, weight, MAX_BYTES)
    if not allowance.one():
        raise RejectedError("overloaded", "too many beacons")
    await admission.take("beacon", beacon_request(body, time.time_ns()))
    return Response(status_code=204)


async def _read(
    headers: Headers, receive: Receive, admission: Admission, weight: Weight, most: int
) -> bytes:
    """Read a body.

    Raises:
        RejectedError: it is too large or too slow, or the sender disconnected.
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


def media_type(headers: Headers) -> str:
    """Return the Content-Type of a request, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _encoded(message: Message, kind: str) -> bytes:
    return to_json(message) if kind == JSON else message.SerializeToString()


def _cors(origin: str, headers: str) -> dict[str, str]:
    return {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": "POST",
        "access-control-allow-headers": headers,
        "access-control-max-age": "86400",
        "vary": "origin",
    }
