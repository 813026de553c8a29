"""Build exporters by their names.

`build` makes the sink for a name; what an exporter needs is imported only when it is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from llmtrace.core.errors import ConfigError
from llmtrace.exporters.prometheus.buckets import Thresholds
from llmtrace.exporters.sink import Sink, receiver

NAMES: Final = (
    "otlp", "otlp-metrics", "prometheus", "prometheus:PORT", "langfuse", "console", "jsonl:FILE",
    "parquet:FOLDER",
)  # fmt: skip

_PORT: Final = re.compile(r"[0-9]{1,5}")
_HIGHEST_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """The settings that exporters get from `llmtrace.init`.

    Attributes:
        service: the application's name.
        thresholds_s: limits in seconds by metric (`e2e`, `ttft`, `tpot`, `inter_chunk_gap`) or
            stage, merged into the histograms' bounds, so that the share within each is exact.
        budget_seconds: what a budget, by its name, allows each stage; shown beside the metrics.
        tenant_metrics: label metrics by tenant too.
        registry: a `prometheus_client` registry; its default one if `None`.
        meter_provider: the application's; `None` = look at OpenTelemetry's global one.
    """

    service: str
    thresholds_s: Thresholds = field(default_factory=dict)
    budget_seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tenant_metrics: bool = False
    registry: Any = None
    meter_provider: Any = None


def build(name: str, settings: ExportSettings) -> Sink:
    """Make the sink that goes by a name: one of `NAMES`.

    `otlp` sends spans, `otlp-metrics` the GenAI client metrics; see `build_all` for both.

    Raises:
        ConfigError: there is no such exporter, a package it needs is not installed, or one of its
            settings is wrong.
    """
    kind, _, target = name.partition(":")
    if kind == "prometheus":
        return _prometheus(name, target, settings)
    if kind in {"jsonl", "parquet"}:
        return _row_files(kind, name, target)
    if name == "otlp":
        from llmtrace.exporters.otlp.sink import otlp_sink

        return otlp_sink()
    if name == "otlp-metrics":
        from llmtrace.exporters.genai_metrics.sink import GenAISink

        return GenAISink(meter_provider=settings.meter_provider)
    if name == "langfuse":
        from llmtrace.exporters.langfuse.sink import langfuse_sink

        return langfuse_sink()
    if name == "console":
        from llmtrace.exporters.console.sink import console_sink

        return console_sink()
    raise ConfigError(f"exporters: {name!r} is not one of {', '.join(NAMES)}")


def build_all(
    names: Iterable[str], settings: ExportSettings, environ: Mapping[str, str] = os.environ
) -> list[Sink]:
    """Make the sinks for several names, each once; `otlp` stands for spans and the GenAI metrics.

    The metrics are left out if `OTEL_METRICS_EXPORTER` is `none`, or if the environment names an
    endpoint for traces and none that metrics could go to; `langfuse` is, if
    `LANGFUSE_TRACING_ENABLED` is `false`. If one cannot be made, those made before are closed.

    Raises:
        ConfigError: see `build`.
    """
    wanted: list[str] = []
    for name in names:
        if name == "langfuse" and environ.get("LANGFUSE_TRACING_ENABLED", "").lower() == "false":
            continue
        wanted.append(name)
        if name == "otlp" and _takes_metrics(environ):
            wanted.append("otlp-metrics")
    sinks: list[Sink] = []
    try:
        sinks.extend(build(name, settings) for name in dict.fromkeys(wanted))
    except ConfigError:
        for sink in sinks:
            receiver(sink).close()
        raise
    return sinks


def _takes_metrics(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_METRICS_EXPORTER", "").strip() == "none":
        return False
    prefix = "OTEL_EXPORTER_OTLP_"
    named = [one for one in ("", "TRACES_", "METRICS_") if environ.get(f"{prefix}{one}ENDPOINT")]
    return named != ["TRACES_"]


def _row_files(kind: str, name: str, path: str) -> Sink:
    if not path:
        example = "jsonl:rows.jsonl" if kind == "jsonl" else "parquet:rows"
        raise ConfigError(f"exporters: {name!r}: say where to, as in {example}")
    from llmtrace.exporters.row_files.sink import jsonl_sink, parquet_sink

    return (jsonl_sink if kind == "jsonl" else parquet_sink)(Path(path).expanduser())


def _prometheus(name: str, port: str, settings: ExportSettings) -> Sink:
    served = name != "prometheus"
    if served and not (_PORT.fullmatch(port) and int(port) <= _HIGHEST_PORT):
        msg = f"exporters: {name!r}: give a port from 0 to {_HIGHEST_PORT}, as in prometheus:9464"
        raise ConfigError(msg)
    from llmtrace.exporters.prometheus.sink import PrometheusSink

    sink = PrometheusSink(
        thresholds_s=settings.thresholds_s,
        budget_seconds=settings.budget_seconds,
        tenants=settings.tenant_metrics,
        registry=settings.registry,
    )
    if served:
        try:
            sink.serve(int(port))
        except ConfigError:
            sink.close()
            raise
    return sink
