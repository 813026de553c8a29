"""Which exporter goes by which name?

`build` makes the sink for a name; what an exporter needs is imported only when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from llmtrace.errors import ConfigError

if TYPE_CHECKING:
    from llmtrace.export.sink import Sink

NAMES: Final = ("otlp", "otlp-metrics", "prometheus", "prometheus:PORT", "console")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """What exporters are told by `llmtrace.init`.

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
    thresholds_s: Mapping[str, float] = field(default_factory=dict)
    budget_seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    tenant_metrics: bool = False
    registry: Any = None
    meter_provider: Any = None


def build(name: str, settings: ExportSettings) -> Sink:
    """Make the sink that goes by a name.

    Raises:
        ConfigError: there is no such exporter, or its settings are wrong.
    """
    msg = f"exporters: {name!r} is not one of {', '.join(NAMES)}"
    raise ConfigError(msg)
