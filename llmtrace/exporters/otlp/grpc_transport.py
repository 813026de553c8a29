"""Send OTLP export requests by gRPC."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import grpc
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from llmtrace.exporters.otlp.retry import RetryExhausted, Send
from llmtrace.exporters.otlp.settings import OtlpSettings, Signal

_EXPORT: Final[dict[Signal, str]] = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
# By default gRPC waits up to two minutes before it tries again to reach a server.
_OPTIONS: Final = (("grpc.max_reconnect_backoff_ms", 5_000),)
_RETRYABLE: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


def grpc_sender(settings: OtlpSettings, signal: Signal) -> Send:
    """Make what sends the bytes of one signal's requests over one kept gRPC channel.

    The request is bytes already and is sent as it is: the generated stub would parse and write it
    once more. gRPC does not promise to survive a fork in the middle of a call: servers that fork
    after their first request should export by HTTP.
    """
    metadata = tuple(settings.headers.items())
    export: Any = None
    owner = 0

    def send(body: bytes) -> bytes:
        nonlocal export, owner
        if export is None or owner != os.getpid():
            export, owner = _channel(settings).unary_unary(_EXPORT[signal]), os.getpid()
        try:
            answer: bytes = export(body, timeout=settings.timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            raise _rejected(error, settings.url) from None
        return answer

    return send


def _channel(settings: OtlpSettings) -> Any:
    compression = grpc.Compression.Gzip if settings.gzip else grpc.Compression.NoCompression
    if settings.insecure:
        return grpc.insecure_channel(settings.url, _OPTIONS, compression=compression)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(settings.certificate),
        private_key=_read(settings.client_key),
        certificate_chain=_read(settings.client_certificate),
    )
    return grpc.secure_channel(settings.url, credentials, _OPTIONS, compression=compression)


def _read(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _rejected(error: Any, where: str) -> RetryExhausted:
    code = error.code()
    wait_s = _retry_info(error.trailing_metadata() or ())
    # A server out of resources is retried only if it says when.
    exhausted = code is grpc.StatusCode.RESOURCE_EXHAUSTED and wait_s is not None
    return RetryExhausted(
        f"gRPC {code.name} from {where}", retryable=exhausted or code in _RETRYABLE, wait_s=wait_s
    )


def _retry_info(trailers: Any) -> float | None:
    """Read how long the server asks to wait, in either of the two places it may say so."""
    for key, value in trailers:
        if key == "grpc-status-details-bin":
            for detail in Status.FromString(value).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    return _seconds(info)
        elif key == "google.rpc.retryinfo-bin":
            return _seconds(RetryInfo.FromString(value))
    return None


def _seconds(info: RetryInfo) -> float:
    delay = info.retry_delay
    return max(0.0, float(delay.seconds) + float(delay.nanos) / 1e9)
