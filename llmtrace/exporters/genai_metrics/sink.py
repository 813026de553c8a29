"""Turn rows into OpenTelemetry's GenAI client metrics.

If the application has no MeterProvider, they are sent from the aggregate, by OTLP, once a minute.
If it has one, each row is recorded by ordinary instruments, without `time_per_output_chunk`: that
would take a record for each chunk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics as otel_metrics
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_error
from llmtrace.core.span import Span
from llmtrace.exporters.genai_metrics.data_points import metrics_data
from llmtrace.exporters.genai_metrics.instruments import Instruments
from llmtrace.exporters.otlp.resource import detect
from llmtrace.exporters.otlp.retry import deliver
from llmtrace.exporters.otlp.settings import read_settings
from llmtrace.exporters.otlp.transport import sender
from llmtrace.exporters.prometheus.agent_metrics import Agents
from llmtrace.exporters.prometheus.aggregate import Aggregate
from llmtrace.exporters.worker import Worker
from llmtrace.semconv.attributes import SCOPE, client_metrics

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from llmtrace.core.row import Row

_NAME: Final = "export.otlp-metrics"
# Of operation, provider, model, server and error type, which no user of the application chooses.
_MAX_LABEL_SETS: Final = 500
_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_DEFAULT_INTERVAL_MS: Final = "60000"
_TEMPORALITY: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


class GenAISink:
    """A sink for the OpenTelemetry GenAI client metrics.

    Which way they go is decided with the first row, so that an application may set its
    MeterProvider after `llmtrace.init`.

    Args:
        meter_provider: the application's; OpenTelemetry's global one, if it set one, else.
        environ: the `OTEL_*` variables.

    Raises:
        ConfigError: a variable cannot be.
    """

    every_row: bool = True
    every_span: bool = True  # of tool calls

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._provider = meter_provider
        self._names = client_metrics(environ)
        detect()
        self._send = sender(read_settings("metrics", environ=environ), "metrics")
        # Backends that want differences get them: what was sent is then counted anew.
        self._delta = _wants_differences(environ)
        self._agents = Agents()
        self._aggregate = Aggregate(
            ours=False, max_label_sets=_MAX_LABEL_SETS, turns=self._agents.turn
        )
        self._instruments: Instruments | None = None
        self._decided = False
        self._since_unix_ns = time.time_ns()
        self._worker = Worker(
            _NAME, self._export, interval_s=_interval_s(environ), forget=self._forget
        )

    def write(self, row: Row | Span) -> None:
        """Count one row, or the span of a tool call."""
        try:
            if not self._decided:
                self._decide()
            if self._instruments is not None:
                self._instruments.record(row)
                return
            if isinstance(row, Span):
                self._agents.span(row)
            else:
                self._aggregate.add(row)
            self._worker.need()
        except Exception as error:  # noqa: BLE001 - the application must not notice
            internal_error(_NAME, error)

    def flush(self, timeout_s: float) -> bool:
        """Send the metrics as they stand. An application's own MeterProvider flushes itself."""
        return self._worker.flush(timeout_s)

    def close(self) -> None:
        """Send the metrics a last time and stop."""
        self._worker.close()

    def _decide(self) -> None:
        provider = self._provider or otel_metrics.get_meter_provider()
        # Until an application sets its own, OpenTelemetry's global one is a private proxy.
        theirs = not type(provider).__module__.startswith("opentelemetry.metrics")
        if theirs:
            meter = provider.get_meter(SCOPE, schema_url=self._names.schema_url)
            self._instruments = Instruments(meter, self._names)
        self._decided = True

    def _export(self) -> None:
        since, now = self._since_unix_ns, time.time_ns()
        data = metrics_data(
            self._aggregate, self._agents, self._names, since, now, delta=self._delta
        )
        if not data.resource_metrics:
            return
        if self._delta:
            self._since_unix_ns = now
        body = encode_metrics(data).SerializeToString()
        deliver(self._send, body, name=_NAME, pause=self._worker.pause)

    def _forget(self) -> None:
        self._since_unix_ns = time.time_ns()


def _wants_differences(environ: Mapping[str, str]) -> bool:
    text = environ.get(_TEMPORALITY, "").strip()
    if text.lower() not in {"", "cumulative", "delta", "lowmemory"}:
        raise ConfigError(f"{_TEMPORALITY}={text!r} is not one of cumulative, delta, lowmemory")
    return text.lower() in {"delta", "lowmemory"}


def _interval_s(environ: Mapping[str, str]) -> float:
    text = environ.get(_INTERVAL, "").strip() or _DEFAULT_INTERVAL_MS
    try:
        seconds = float(text) / 1000
    except ValueError:
        seconds = -1
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{_INTERVAL}={text!r} is not a number of milliseconds, such as 60000")
    return seconds
