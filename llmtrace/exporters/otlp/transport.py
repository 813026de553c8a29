"""Choose the transport of OTLP requests, HTTP or gRPC."""

from __future__ import annotations

from llmtrace.exporters.otlp.retry import Send
from llmtrace.exporters.otlp.settings import OtlpSettings, Signal


def sender(settings: OtlpSettings, signal: Signal) -> Send:
    """Make what sends the requests of one signal; only what it needs is imported."""
    if settings.protocol == "grpc":
        from llmtrace.exporters.otlp.grpc_transport import grpc_sender

        return grpc_sender(settings, signal)
    from llmtrace.exporters.otlp.http_transport import http_sender

    return http_sender(settings)
