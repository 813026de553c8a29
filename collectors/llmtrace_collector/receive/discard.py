"""Accept OTLP metrics and logs, count them, and drop them.

Applications send them to the same address as spans, unless configured otherwise. The collector
makes its metrics from the spans; rejecting the others would have exporters report a loss that does
not matter.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

import grpc
import grpc.aio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from llmtrace_collector.receive.auth import Secret, check_token
from llmtrace_collector.receive.otlp_grpc import authorization
from llmtrace_collector.receive.otlp_http import JSON, PROTOBUF, media_type
from llmtrace_collector.receive.rejections import RejectedError

_SERVICES: Final = {
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
}
# An empty message of either protocol: everything was accepted.
_ACCEPTED: Final = b""
_BODY_S: Final = 30.0


class OtlpDiscard:
    """Accepts OTLP metrics and logs, counts them and drops them.

    Args:
        token: senders must show it, as for spans; `None` = none is needed.
        most_bytes: maximum size of a request.

    Attributes:
        requests: dropped so far, by kind.
    """

    def __init__(self, token: Secret, most_bytes: int) -> None:
        self.requests: Counter[str] = Counter()
        self._token = token
        self._most = most_bytes

    def routes(self) -> list[Route]:
        """Return the routes of OTLP over HTTP."""
        return [Route(f"/v1/{kind}", self._dropping(kind), methods=["POST"]) for kind in _SERVICES]

    def _dropping(self, kind: str) -> Any:
        async def drop(request: Request) -> Response:
            try:
                check_token(request.headers.get("authorization"), self._token)
                size = 0
                async with asyncio.timeout(_BODY_S):
                    async for piece in request.stream():
                        size += len(piece)
                        if size > self._most:
                            return Response(status_code=413, headers={"Connection": "close"})
            except TimeoutError:
                return Response(status_code=408, headers={"Connection": "close"})
            except RejectedError as error:
                challenge = {"WWW-Authenticate": "Bearer"}
                return Response(error.words, error.answer.status, headers=challenge)
            except ClientDisconnect:
                return Response(status_code=400)
            self.requests[kind] += 1
            if media_type(request.headers) == JSON:
                return Response(b"{}", media_type=JSON)
            return Response(_ACCEPTED, media_type=PROTOBUF)

        return drop

    def handlers(self) -> tuple[grpc.GenericRpcHandler[Any, Any], ...]:
        """Return the handlers of OTLP over gRPC."""
        return tuple(
            grpc.method_handlers_generic_handler(
                service, {"Export": grpc.unary_unary_rpc_method_handler(self._dropping_grpc(kind))}
            )
            for kind, service in _SERVICES.items()
        )

    def _dropping_grpc(self, kind: str) -> Any:
        async def drop(body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            del body
            try:
                check_token(authorization(context), self._token)
            except RejectedError as error:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.words)
            self.requests[kind] += 1
            return _ACCEPTED

        return drop
