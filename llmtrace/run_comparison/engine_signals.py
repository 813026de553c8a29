"""Sum up what engines, gateways and GPUs reported during a run: one figure for each signal."""

from __future__ import annotations

from typing import Final

from llmtrace.dataset.case import Signals
from llmtrace.triage.evidence.signals import Series, gauges, rates

# What counts from the start of what reports it; the rest are gauges. The collector's own signals
# are held to this by tests/collector/test_normalise.py; the last line is of a case's contract.
COUNTERS: Final = frozenset(
    {
        "preemptions", "prefix_queries", "prefix_hits", "external_prefix_queries",
        "external_prefix_hits", "mm_cache_queries", "mm_cache_hits", "kv_transfer_failures",
        "kv_transfers", "kv_offload_load_time", "spec_drafts", "spec_drafted", "spec_accepted",
        "prompt_tokens", "cached_tokens", "generation_tokens", "prefill_busy", "decode_busy",
        "finished", "rejected", "scheduler_stage", "gateway_disaggregation", "gateway_requests",
        "gateway_errors", "gateway_retries", "gpu_energy", "gpu_throttle_time", "gpu_xid_errors",
        "gpu_ecc_uncorrected", "gpu_pcie_replays",
        "api_cpu_seconds", "tokens_in", "tokens_out", "gateway_429",
    }
)  # fmt: skip
_SUM: Final = "_sum"
_COUNT: Final = "_count"
_PARTS: Final = "_by_"  # of a signal that is there as a whole as well
_SKIPPED: Final = frozenset({"started", "up"})


def signal_figures(signals: Signals) -> dict[str, float]:
    """Return a gauge's mean, a counter's growth a second, the mean of what was timed, by name.

    Gauges are averaged over engines, all else is of all of them together.
    """
    names = {name for name in signals.signal.names if _PARTS not in name} - _SKIPPED
    timed = {name.removesuffix(_SUM) for name in names if name.endswith(_SUM)}
    timed = {name for name in timed if f"{name}{_COUNT}" in names}
    names -= {f"{name}{part}" for name in timed for part in (_SUM, _COUNT)}
    found: dict[str, float | None] = {}
    for name in sorted(names):
        if name in COUNTERS:
            found[f"{name} a second"] = _grown(signals, name)
        else:
            found[name] = _mean(list(gauges(signals, name).values()))
    for name in sorted(timed):
        count, total = (_grown(signals, f"{name}{part}") for part in (_COUNT, _SUM))
        found[f"mean {name}"] = total / count if count and total is not None else None
    return {name: value for name, value in found.items() if value is not None}


def _grown(signals: Signals, name: str) -> float | None:
    """Return a counter's growth a second, of all engines; `None` = sampled less than twice."""
    each = [_mean([one]) for one in rates(signals, name, {}).values()]
    known = [value for value in each if value is not None]
    return sum(known) if known else None


def _mean(every: list[Series]) -> float | None:
    means = [float(one.value.mean()) for one in every if len(one.value)]
    return sum(means) / len(means) if means else None
