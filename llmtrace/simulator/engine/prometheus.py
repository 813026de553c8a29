"""Expose the simulated engine's metrics at /metrics.

A registry of its own for every engine, filled with the families that `metrics` lists.
"""

from __future__ import annotations

from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from llmtrace.simulator.engine.metrics import FAMILIES, READINGS
from llmtrace.simulator.engine.realtime import LiveEngine

_KINDS: Final = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


class PrometheusMeter:
    """Keeps vLLM's metric families in a registry of its own."""

    def __init__(self, model: str) -> None:
        """Make every family, all its children at zero."""
        self.registry = CollectorRegistry()
        self._children: dict[tuple[str, str], Any] = {}
        labels = {"model_name": model, "engine": "0"}
        for family in FAMILIES:
            names = [*labels, *([family.label] if family.label else [])]
            options: dict[str, Any] = {"buckets": family.buckets} if family.buckets else {}
            made = _KINDS[family.kind](
                family.name, f"Simulated. {family.help}", names, registry=self.registry, **options
            )
            for value in family.values or ("",):
                own = {family.label: value} if family.label else {}
                self._children[family.name, value] = made.labels(**labels, **own)

    def count(self, name: str, amount: float, value: str = "") -> None:
        """Add to a counter, under `value` of its own label if it has one."""
        self._children[name, value].inc(amount)

    def observe(self, name: str, amount: float) -> None:
        """Put one figure into a histogram."""
        self._children[name, ""].observe(amount)

    def read_from(self, live: LiveEngine, fingerprint: str) -> None:
        """Let the gauges read an engine, and say which engine that is."""
        for key, read in READINGS.items():
            self._children[key].set_function(lambda read=read: read(live.config, live.state))
        config = live.config
        blocks = config.kv_capacity_tokens // config.block_size
        Info("vllm:cache_config", "Simulated. Size of the cache.", registry=self.registry).info(
            {"engine": "0", "block_size": str(config.block_size), "num_gpu_blocks": str(blocks)}
        )
        Info("llmtrace_simulated_engine", "Not a real engine.", registry=self.registry).info(
            {"fingerprint": fingerprint}
        )


_CLOCK_MHZ, _IDLE_W, _BUSY_W = 1980.0, 90.0, 610.0


def gpu_metrics(clock: float, *, is_busy: bool) -> str:
    """Return a page like dcgm-exporter's, of a simulated GPU.

    `clock` is the share of the nominal clock it runs at; what runs slower for heat is hot.
    """
    power = _IDLE_W + (_BUSY_W - _IDLE_W) * clock**2 * is_busy
    figures = (
        ("DCGM_FI_DEV_SM_CLOCK", "SM clock in MHz.", _CLOCK_MHZ * clock),
        ("DCGM_FI_DEV_POWER_USAGE", "Power draw in W.", power),
        ("DCGM_FI_DEV_GPU_TEMP", "Temperature in C.", 45 + 0.03 * power + 60 * (1 - clock)),
        ("DCGM_FI_DEV_GPU_UTIL", "GPU utilization in percent.", 100.0 * is_busy),
    )
    labels = '{gpu="0",modelName="Simulated"}'
    return "".join(
        f"# HELP {name} Simulated. {words}\n# TYPE {name} gauge\n{name}{labels} {value:.1f}\n"
        for name, words, value in figures
    )
