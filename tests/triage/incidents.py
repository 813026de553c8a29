"""What does a small, hand-made incident look like?

Three engines, two windows of 200 s, two requests a second; nothing wrong. A test then changes by
hand what it is about. Knows nothing of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmtrace.dataset.case import Event, Facts, Window, signals_from
from llmtrace.dataset.columns import from_dicts
from llmtrace.triage.attribution.components import first_content
from llmtrace.triage.causes import causes
from llmtrace.triage.evidence.evidence import Evidence, gather
from llmtrace.triage.result import Finding

START = 1_700_000_000.0
LENGTH = 200.0
BEFORE = Window(START, START + LENGTH)
AFTER = Window(START + 300, START + 300 + LENGTH)
REPLICAS = ("vllm-0", "vllm-1", "vllm-2")
EVERY_S = 5.0

TTFT = ("network_s", "gateway_s", "queue_s", "prefill_s", "first_chunk_s")
GAUGES = {
    "running": (8.0, 1.0),
    "waiting": (0.0, 0.0),
    "waiting_deferred": (0.0, 0.0),
    "kv_usage": (0.4, 0.03),
    "sleep": (0.0, 0.0),
    "started": (START - 86_400, 0.0),
    "gpu_sm_clock_mhz": (1980.0, 5.0),
    "gpu_throttle": (0.0, 0.0),
    "gpu_temp_c": (65.0, 1.0),
    "gpu_power_w": (550.0, 10.0),
    "frontend_time": (0.006, 0.0005),
    "api_cpu": (0.3, 0.03),
}
COUNTERS = {
    "prefix_queries": 2000.0,
    "prefix_hits": 1200.0,
    "preemptions": 0.0,
    "spec_drafted": 400.0,
    "spec_accepted": 280.0,
    "tokens_in": 2000.0,
    "tokens_out": 500.0,
}


@dataclass
class Incident:
    """Rows, rates of counters and levels of gauges, to be changed before it is looked at."""

    rows: list[dict[str, Any]]
    gauges: dict[tuple[str, str], Callable[[float, float], float]]
    counters: dict[tuple[str, str], Callable[[float], float]]
    facts: dict[str, dict[str, Any]]
    events: list[Event] = field(default_factory=list)
    dead: dict[str, Window] = field(default_factory=dict)
    only: dict[tuple[str, str], Window] = field(default_factory=dict)  # when a gauge is reported

    def after(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the window after."""
        return (row for row in self.rows if row["start"] >= AFTER.start * 1e9)

    def gauge(self, name: str, level: float, spread: float = 0.0, *replicas: str) -> None:
        """Set a gauge in the window after."""
        for replica in replicas or REPLICAS:
            was = self.gauges[name, replica]
            self.gauges[name, replica] = lambda t, u, was=was: (
                level + spread * u if t >= AFTER.start else was(t, u)
            )

    def counter(self, name: str, rate: float, *replicas: str) -> None:
        """Set the rate of a counter in the window after."""
        for replica in replicas or REPLICAS:
            was = self.counters[name, replica]
            self.counters[name, replica] = lambda t, was=was: rate if t >= AFTER.start else was(t)

    def forget(self, *signals: str) -> None:
        """Leave these signals unreported."""
        for kept in (self.gauges, self.counters):
            for key in [key for key in kept if key[0] in signals]:
                del kept[key]  # type: ignore[attr-defined]

    def forget_rows(self, *names: str) -> None:
        """Have no row tell these fields."""
        for row in self.rows:
            for name in names:
                row.pop(name, None)

    def evidence(self, *, before: Window = BEFORE, after: Window = AFTER, **more: Any) -> Evidence:
        """Lay it out for the rules."""
        for row in self.rows:
            settle(row)
        signals, odd = signals_from(self._samples())
        assert odd == ()
        facts = Facts(self.facts, tuple(self.events))
        found = gather(first_content(from_dicts(self.rows)), signals, facts, before, after)
        return replace(found, **more)

    def findings(self, **more: Any) -> dict[str, Finding]:
        """Return what every rule says, the best supported first."""
        return {one.id: one for one in causes(self.evidence(**more))}

    def _samples(self) -> Iterator[Mapping[str, Any]]:
        rng = np.random.default_rng(1)
        times = np.arange(BEFORE.start, AFTER.end + EVERY_S, EVERY_S)
        totals: dict[tuple[str, str], float] = {}
        for t in times:
            for (name, replica), level in self.gauges.items():
                value = level(t, float(rng.normal()))
                reported = self.only.get((name, replica))
                shown = reported is None or reported.start <= t < reported.end
                if shown and not self._is_dead(replica, t):
                    yield _sample(t, replica, name, value)
            for key, rate in self.counters.items():
                grown = rate(t) * EVERY_S * float(rng.uniform(0.9, 1.1))
                totals[key] = totals.get(key, 0.0) + grown
                if not self._is_dead(key[1], t):
                    yield _sample(t, key[1], key[0], totals[key])

    def _is_dead(self, replica: str, t: float) -> bool:
        window = self.dead.get(replica)
        return window is not None and window.start <= t < window.end


def _sample(t: float, replica: str, name: str, value: float) -> dict[str, Any]:
    return {"t": t, "instance": replica, "signal": name, "value": value, "labels": {}}


def quiet(seed: int = 0, rate: float = 2.0, after_rate: float | None = None) -> Incident:
    """Return an incident of which nothing is wrong."""
    rng = np.random.default_rng(seed)
    rows = []
    for window, per_s in ((BEFORE, rate), (AFTER, after_rate or rate)):
        for i in range(int(window.seconds * per_s)):
            rows.append(_row(rng, window.start + (i + rng.random()) / per_s, len(rows)))
    return Incident(
        rows=rows,
        gauges={
            (name, replica): lambda t, u, level=level, spread=spread: max(level + spread * u, 0.0)
            for name, (level, spread) in GAUGES.items()
            for replica in REPLICAS
        },
        counters={
            (name, replica): lambda t, rate=rate: rate
            for name, rate in COUNTERS.items()
            for replica in REPLICAS
        },
        facts={
            replica: {
                "engine": "vllm",
                "version": "0.32.0",
                "max_num_seqs": 64,
                "max_num_batched_tokens": 2048,
                "max_model_len": 32768,
                "chunked_prefill": True,
                "prefix_caching": True,
                "spec_decode": True,
            }
            for replica in REPLICAS
        },
    )


def _row(rng: np.random.Generator, t: float, i: int) -> dict[str, Any]:
    prompt = int(rng.lognormal(np.log(800), 0.4))
    cached = int(0.6 * prompt)
    output = int(rng.lognormal(np.log(150), 0.4)) + 2
    rtt = 0.02 + float(rng.exponential(0.002))
    return {
        "start": int(t * 1e9),
        "request_id": f"r{i}",
        "service": "chat",
        "model": "llama",
        "tenant": f"t{i % 4}",
        "region": ("eu", "us")[i % 2],
        "client": ("web", "ios")[i // 2 % 2],
        "gateway": "gw",
        "replica": REPLICAS[int(rng.integers(3))],
        "outcome": "success",
        "finish_reason": "stop",
        "http_status": 200,
        "attempts": 1,
        "retry_s": 0.0,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": output,
        "chunks": output,
        "burst_chunks": int(0.05 * output),
        "network_client_wait_s": 0.0,
        "network_rtt_s": rtt,
        "network_connect_s": 0.0,
        "network_s": rtt,
        "gateway_s": 0.004 + float(rng.exponential(0.001)),
        "queue_s": float(rng.exponential(0.01)),
        "prefill_s": 0.02 + 0.0003 * (prompt - cached) * float(rng.uniform(0.9, 1.1)),
        "first_chunk_s": 0.012 + float(rng.exponential(0.002)),
        "first_chunk_frontend_s": 0.006 + float(rng.exponential(0.001)),
        "decode_s": 0.02 * (output - 1) * float(rng.lognormal(0, 0.1)),
        "render_s": 0.002 * output * float(rng.uniform(0.8, 1.2)) / 10,
        "unattributed_s": 0.0,
        "max_gap_s": 0.05 + float(rng.exponential(0.02)),
        "preemptions": 0,
        "spec_drafted": 2 * output,
        "spec_accepted": int(1.4 * output),
    }


def settle(row: dict[str, Any]) -> None:
    """Work out what follows from the stages: time to first chunk, per token, end to end."""
    ttft = sum(row.get(name, 0.0) for name in TTFT) + row.get("unattributed_s", 0.0)
    if row.pop("never_answered", False):
        row.pop("decode_s", None)
        row |= {"e2e_s": ttft, "chunks": 0}
        row.pop("ttft_s", None)
        return
    row["e2e_s"] = ttft + row["decode_s"] + row["render_s"]
    if row.pop("whole", False):
        return
    row["ttft_s"] = ttft
    if row.get("output_tokens", 0) > 1:
        row["tpot_s"] = (row["decode_s"] + row["render_s"]) / (row["output_tokens"] - 1)
