"""Receive OTLP over gRPC.

`TraceService/Export`, with the body as bytes: they are checked, and stored as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.code_pb2 import Code  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from llmtrace.core.errors import ConfigError
from llmtrace_collector.receive.admission import Admission
from llmtrace_collector.receive.auth import Secret, check_token
from llmtrace_collector.receive.limits import ReceiveLimits
from llmtrace_collector.receive.rejections import RejectedError

SERVICE: Final = "opentelemetry.proto.collector.trace.v1.TraceService"
_MS: Final = 1000


async def start_grpc(
    admission: Admission,
    address: str,
    *,
    token: Secret = None,
    credentials: grpc.ServerCredentials | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Serve, until the returned server's `stop(grace)`.

    Args:
        admission: accepts the requests.
        address: such as `127.0.0.1:4317`; port 0 for any that is free.
        token: that a sender shows as `authorization: Bearer …`; `None` = none is needed.
        credentials: for TLS, from `grpc.ssl_server_credentials`; `None` = no TLS.

    Returns:
        The server, and the port it listens on.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    server = grpc.aio.server(
        options=_options(admission.limits), maximum_concurrent_rpcs=admission.limits.connections
    )
    export = grpc.unary_unary_rpc_method_handler(_exporter(admission, token))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"Export": export}),)
    )
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if not port:
        await server.stop(None)
        raise ConfigError(
            f"receive.grpc: cannot listen on {address}: in use, or not of this machine"
        )
    await server.start()
    return server, port


def _options(limits: ReceiveLimits) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.max_concurrent_streams", 100),  # of one connection
        ("grpc.server_handshake_timeout_ms", int(limits.head_s * _MS)),
        # A client that disappeared is noticed, and its connection closed.
        ("grpc.keepalive_time_ms", int(limits.idle_s * _MS)),
        ("grpc.keepalive_timeout_ms", int(limits.head_s * _MS)),
        ("grpc.http2.min_ping_interval_without_data_ms", 10 * _MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_connection_idle_ms", 10 * int(limits.idle_s * _MS)),
        ("grpc.so_reuseport", 0),  # or a second collector would take half of what comes
    ]


def _exporter(
    admission: Admission, token: Secret
) -> Callable[[bytes, grpc.aio.ServicerContext[bytes, bytes]], Awaitable[bytes]]:
    async def export(body: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            check_token(authorization(context), token)
            with admission.weighing() as weight:
                admission.weigh(weight, len(body))
                async with asyncio.timeout(admission.limits.body_s):
                    checked = await admission.take("grpc", body)
        except RejectedError as error:
            refusal = error
        except TimeoutError:
            refusal = RejectedError("overloaded", "this took too long; retry later")
        else:
            return checked.response().SerializeToString()
        admission.refuse("grpc", refusal)
        await _abort(context, refusal, admission.limits.retry_after_s)
        raise AssertionError  # `abort` always raises

    return export


def authorization(context: grpc.aio.ServicerContext[bytes, bytes]) -> str | None:
    """Return the header of that name; `None` = there is none."""
    given = (v for k, v in context.invocation_metadata() or () if k == "authorization")
    return next(map(str, given), None)


async def _abort(
    context: grpc.aio.ServicerContext[bytes, bytes], refusal: RejectedError, retry_after_s: float
) -> None:
    answer = refusal.answer
    if answer.again:
        wait = Duration()
        wait.FromNanoseconds(int(retry_after_s * 1e9))
        detail = AnyMessage()
        detail.Pack(RetryInfo(retry_delay=wait))
        status = Status(
            code=Code.Value(answer.code), message=refusal.words, details=[detail]
        ).SerializeToString()
        context.set_trailing_metadata((("grpc-status-details-bin", status),))
    await context.abort(grpc.StatusCode[answer.code], refusal.words)
