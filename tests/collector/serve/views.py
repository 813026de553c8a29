"""A live view with something of everything in it, for the page and the terminal."""

from __future__ import annotations

import math
from typing import Any, Final

from llmtrace.budget import DEFAULT
from llmtrace.core.stages import PARTITION
from llmtrace_collector.serve.engine_status import EngineLine, GpuLine
from llmtrace_collector.serve.live_model import (
    CollectorNow,
    Counted,
    Live,
    Minutes,
    SlowRow,
    Window,
    budget_line,
    lines,
    problems,
)

NOW: Final = 1_795_000_000.0
MODEL: Final = "llama-3.1-70b-instruct"
_MS: Final = 1_000_000
_MEANS: Final = {
    "network": 12, "queue": 50, "prefill": 180, "first_chunk": 20, "decode": 900, "render": 10,
    "unattributed": 2, "ttft": 300, "tpot": 20, "e2e": 1_174,
}  # fmt: skip
_N: Final = 1_240


def view(**changes: Any) -> Live:
    """Return it: the queue over its limit, the gateway not reported, one engine down."""
    within = {"queue": round(0.9 * _N), "prefill": round(0.951 * _N)}
    counted = {
        name: Counted(
            known=_N,
            p50_ns=0.7 * mean * _MS,
            high_ns=(4 if name == "queue" else 1.5) * mean * _MS,
            within=within.get(name, _N),
            sum_ns=mean * _N * _MS,
            sources=("engine_inband",) if name in {"queue", "prefill"} else ("client",),
        )
        for name, mean in _MEANS.items()
    }
    stages, metrics = lines(counted, DEFAULT)
    first = int(NOW) // 60 * 60 - 3_600
    # Seven minutes without requests.
    times = [first + 60 * minute for minute in range(60) if not 20 < minute < 28]
    high = {
        name: tuple(
            mean / 1_000 * (1.4 + 0.4 * math.sin(place / 6) + (name == "queue" and place > 44) * 6)
            for place in range(len(times))
        )
        for name, mean in _MEANS.items()
    }
    high["gateway"] = (None,) * len(times)
    engines = (
        EngineLine(instance="10.0.0.7:8000", up=False, problem="Connection refused"),
        EngineLine(
            instance="10.0.0.5:8000", up=True, engine="vllm", model=MODEL, replica="0", running=31,
            waiting=12, kv_usage=0.93, queue_s=0.21, prefill_s=0.18, decode_s=1.4,
            prefix_hit_ratio=0.61,
        ),
        EngineLine(instance="10.0.0.6:8000", up=True, engine="vllm", model=MODEL, replica="1",
                   running=12, waiting=0, kv_usage=0.41),
        EngineLine(instance="gateway:4000", up=True, engine="litellm", running=40),
        EngineLine(instance="new:8000", up=None),
    )  # fmt: skip
    gpus = (
        GpuLine(instance="node5", gpu="0", model="NVIDIA H100 80GB HBM3", utilization=0.97,
                memory=0.9, power_w=695, temperature_c=71, throttled=("power_cap",)),
        GpuLine(instance="node5", gpu="1"),
    )  # fmt: skip
    slowest = tuple(
        SlowRow(
            trace_id=f"{place:032x}",
            request_id=f"request-{place}",
            start=NOW - 60 * place - 5,
            service="shop",
            model=MODEL,
            route="chat",
            outcome="timeout" if place == 1 else "success",
            e2e_s=9.0 - 0.4 * place,
            ttft_s=3.2,
            stages={"network": 0.02, "queue": 2.8, "prefill": 0.4, "decode": 5.0, "render": 0.1},
        )
        for place in range(8)
    )
    given: dict[str, Any] = {
        "now": NOW,
        "budget": budget_line(DEFAULT),
        "window": Window(300, _N + 60, _N, {"success": _N, "cancelled": 40, "timeout": 20}),
        "stages": stages,
        "metrics": metrics,
        "minutes": Minutes(tuple(times), high),
        "slowest": slowest,
        "engines": engines,
        "gpus": gpus,
        "collector": CollectorNow(
            version="0.1.0",
            up_s=4_000,
            notes=("12,400 spans received, 12,400 stored",),
            problems=problems(engines, None, 0.0, 30.0),
            how="export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318",
        ),
    }
    return Live(**{**given, **changes})


def empty() -> Live:
    """Return what one sees who has just started it."""
    stages, metrics = lines({}, DEFAULT)
    full = view()
    return view(
        window=Window(300, 0, 0, {}),
        stages=stages,
        metrics=metrics,
        minutes=Minutes((), dict.fromkeys((*PARTITION, "ttft", "tpot", "e2e"), ())),
        slowest=(),
        engines=(),
        gpus=(),
        collector=CollectorNow(
            version="0.1.0", up_s=4, notes=(), problems=(), how=full.collector.how
        ),
    )
