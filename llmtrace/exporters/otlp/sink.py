"""Send rows to an OpenTelemetry backend.

As OTLP spans: a row is its client span, each stage that took any time a child, laid end to end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from llmtrace.core.span import Span
from llmtrace.exporters.otlp.dialect import OTEL, Dialect
from llmtrace.exporters.otlp.encode import Resources, encode
from llmtrace.exporters.otlp.resource import detect
from llmtrace.exporters.otlp.retry import GIVE_UP_AFTER_S, RetryExhausted, deliver
from llmtrace.exporters.otlp.settings import OtlpSettings, read_settings
from llmtrace.exporters.otlp.transport import sender
from llmtrace.exporters.queued_sink import QueuedSink, RowsLost

if TYPE_CHECKING:
    from llmtrace.core.row import Row

# gRPC servers refuse messages above 4 MiB by default.
_MAX_BYTES: Final = 3 << 20


def otlp_sink(
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    interval_s: float = 1.0,
    give_up_after_s: float = GIVE_UP_AFTER_S,
    environ: Mapping[str, str] = os.environ,
) -> QueuedSink[Row | Span]:
    """Make the sink that sends rows as OTLP spans, by gRPC or HTTP.

    What is not given comes from the standard `OTEL_EXPORTER_OTLP_*` variables; see
    `read_settings`. The service is the row's own.

    Args:
        endpoint: base URL of the receiver.
        protocol: `grpc` or `http/protobuf`.
        interval_s: longest a row waits for company, in seconds.
        give_up_after_s: longest a batch is retried, in seconds; then it is dropped and counted.
        environ: the variables to fall back to.

    Raises:
        ConfigError: a setting cannot be.
    """
    settings = read_settings("traces", endpoint=endpoint, protocol=protocol, environ=environ)
    return span_sink(
        "export.otlp", settings, interval_s=interval_s, give_up_after_s=give_up_after_s
    )


def span_sink(
    name: str,
    settings: OtlpSettings,
    *,
    dialect: Dialect = OTEL,
    left_to: Callable[[Any], bool] = lambda _provider: True,
    interval_s: float = 1.0,
    give_up_after_s: float = GIVE_UP_AFTER_S,
) -> QueuedSink[Row | Span]:
    """Make a sink that sends rows and spans to one OTLP endpoint, in the backend's dialect.

    Losses and failures are counted under `name`; the rest is as of `SpanSink` and `otlp_sink`.
    """
    detect()
    send, resources = sender(settings, "traces"), Resources()

    def send_rows(rows: Sequence[Row | Span]) -> None:
        reason, lost = "", 0
        for body, count in encode(rows, resources, _MAX_BYTES, dialect):
            try:
                deliver(send, body, name=name, pause=sink.pause, give_up_after_s=give_up_after_s)
            except RetryExhausted as error:
                reason, lost = str(error), lost + count
        if lost:
            raise RowsLost(reason, lost)

    sink: QueuedSink[Row | Span] = QueuedSink(
        name, send_rows, interval_s=interval_s, spans=True, left_to=left_to
    )
    return sink
