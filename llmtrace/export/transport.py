"""Which way does an OTLP request go, by HTTP or by gRPC?"""

from __future__ import annotations

from llmtrace.export.delivery import Send
from llmtrace.export.otlp_settings import OtlpSettings, Signal


def sender(settings: OtlpSettings, signal: Signal) -> Send:
    """Make what sends the requests of one signal; only what it needs is imported."""
    if settings.protocol == "grpc":
        from llmtrace.export.otlp_grpc import grpc_sender

        return grpc_sender(settings, signal)
    from llmtrace.export.otlp_http import http_sender

    return http_sender(settings)
