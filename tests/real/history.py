"""What would two hours of a shop's requests have left in Prometheus, and the same a day before?

A made-up past, drawn at random from a seed: requests of two models and three routes in two
regions to three engines, with half an hour in which the prompts' caches no longer hit and queues
grow. Only the figures are made up. Rows go through llmtrace's own Prometheus exporter and signals
through the collector's, whose pages are written down every half minute; promtool makes blocks of
them. For pictures, which must look the same each time they are made.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from prometheus_client import CollectorRegistry

from llmtrace.budget import DEFAULT
from llmtrace.core.request_clock import GAP_BOUNDS_NS
from llmtrace.core.row import TURN, Row
from llmtrace.core.span import Span
from llmtrace.core.stages import Network, Reported, Timeline
from llmtrace.exporters.prometheus.buckets import LATENCY_S
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace_collector.metrics.target_metrics import TargetMetrics
from llmtrace_collector.scrape.scraper import TargetState
from llmtrace_collector.scrape.targets import Target
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.normalise import Distribution, Measured, Normaliser, Reading
from llmtrace_dashboards.rules.engine_limits import METRIC, engine_limits_s
from llmtrace_dashboards.rules.recording_series import (
    ALLOWED,
    DIMENSIONS,
    REMAINING,
    bad_rate,
    bad_ratio,
    valid_rate,
)

MS: Final = 1_000_000
END: Final = 1_790_000_400  # unix seconds
HOURS: Final = 2
STEP: Final = 30
DAY: Final = 86_400
_SECONDS: Final = HOURS * 3600
# The bad half hour, in seconds from the start.
_FROM, _TO = 3900, 6000
_ENGINES: Final = ("engine-a:8000", "engine-b:8000", "engine-c:8000")
_BIG, _SMALL = "llama-3.3-70b", "qwen3-8b"


@dataclass(frozen=True)
class Kind:
    """One kind of request: who asks for what, and how it is sized."""

    service: str
    model: str
    route: str
    region: str
    tenant: str
    per_s: float
    prompt: int
    output: int
    prefill_ms: float
    tpot_ms: float


KINDS: Final = (
    Kind("shop", _BIG, "chat", "eu-west", "acme", 0.55, 900, 60, 170, 21),
    Kind("shop", _BIG, "chat", "us-east", "umbra", 0.35, 900, 60, 170, 21),
    Kind("shop", _BIG, "summarise", "eu-west", "acme", 0.12, 3200, 75, 380, 22),
    Kind("search", _SMALL, "rerank", "eu-west", "initech", 0.7, 1500, 14, 60, 9),
)


def write(folder: Path) -> Path:
    """Make a folder of blocks for Prometheus and return it; half a minute."""
    data = folder / "data"
    for number, start in enumerate((END - DAY - _SECONDS, END - _SECONDS)):
        page = folder / f"past-{number}.om"
        with page.open("w", encoding="utf-8") as file:
            file.writelines(_lines(start, bad=number == 1))
            file.write("# EOF\n")
        subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", page, data],
            check=True, capture_output=True,
        )  # fmt: skip
        page.unlink()
    return data


def _lines(start: int, *, bad: bool) -> Iterator[str]:
    draws = random.Random(20261121)
    registry = CollectorRegistry()
    sink = PrometheusSink(
        registry=registry,
        thresholds_s=DEFAULT.thresholds_s(),
        budget_seconds=DEFAULT.allocations_s(),
        tenants=True,
    )
    fleet, slos = Fleet(draws), Slos()
    collector = CollectorRegistry()
    collector.register(TargetMetrics(fleet.states))
    for at in range(0, _SECONDS + 1, STEP):
        ill = _illness(at) if bad else 0.0
        for kind in KINDS:
            # A slow wave of traffic, and chance.
            mean = kind.per_s * STEP * (1 + 0.15 * (at % 5400) / 5400) * (1 + 0.2 * ill)
            for _ in range(int(mean + draws.random())):
                row = _request(draws, kind, start + at, ill)
                sink.write(row)
                slos.add(row, at)
        for _ in range(draws.choice((2, 3, 4))):
            sink.write(_turn(draws, start + at))
        for span in _tools(draws, start + at, ill):
            sink.write(span)
        fleet.step(ill, failing=bad and at in range(_FROM + 600, _FROM + 660))
        for job, where in (("app", registry), ("collector", collector)):
            for metric in where.collect():
                for sample in metric.samples:
                    yield _line(
                        sample.name, {"job": job, **sample.labels}, sample.value, start + at
                    )
        yield from slos.recorded(start + at, at)
    sink.close()


def pages(seconds: int = 3600) -> Iterator[tuple[str, str, Mapping[str, str], float]]:
    """Yield the samples of two pages after one kind of request was made for a while.

    Yields:
        The job (`app` or `collector`), the series' name and labels, and its value.
    """
    draws = random.Random(20261122)
    registry, collector = CollectorRegistry(), CollectorRegistry()
    sink = PrometheusSink(
        registry=registry,
        thresholds_s=DEFAULT.thresholds_s(),
        budget_seconds=DEFAULT.allocations_s(),
    )
    fleet = Fleet(draws)
    collector.register(TargetMetrics(fleet.states))
    for at in range(0, seconds, STEP):
        for _ in range(int(KINDS[0].per_s * STEP)):
            sink.write(_request(draws, KINDS[0], END + at, 0.1))
        sink.write(_turn(draws, END + at))
        for span in _tools(draws, END + at, 0.1):
            sink.write(span)
        fleet.step(0.1, failing=False)
    for job, where in (("app", registry), ("collector", collector)):
        for metric in where.collect():
            for sample in metric.samples:
                yield job, sample.name, sample.labels, sample.value
    sink.close()


def _illness(at: int) -> float:
    """How bad things are, 0 to 1: it comes in ten minutes and goes in five."""
    if not _FROM <= at <= _TO:
        return 0.0
    return min(1.0, (at - _FROM) / 600, (_TO - at) / 300)


class Slos:
    """What the recording rules would have made of the requests, of which they were bad."""

    def __init__(self) -> None:
        # By SLO and labels, and the second that the requests are of.
        self._bad: dict[tuple[str, tuple[str, ...]], Counter[int]] = {}
        self._valid: dict[tuple[str, tuple[str, ...]], Counter[int]] = {}

    def add(self, row: Row, at: int) -> None:
        """Count one request, `at` seconds from the start."""
        for slo, bad in _kept(row):
            key = (slo, (row.model or "", row.route or "", row.service or "", row.region or ""))
            self._bad.setdefault(key, Counter())[at] += bad
            self._valid.setdefault(key, Counter())[at] += 1

    def recorded(self, when: int, at: int) -> Iterator[str]:
        """Write down what is recorded, `at` seconds from the start."""
        for (slo, values), valid in self._valid.items():
            labels = {
                "budget": DEFAULT.name,
                "slo": slo,
                **dict(zip(DIMENSIONS, values, strict=True)),
            }
            bad = self._bad[slo, values]
            yield _line(bad_rate(), labels, _within(bad, at, 300) / 300, when)
            yield _line(valid_rate(), labels, _within(valid, at, 300) / 300, when)
        for limit, limit_s in engine_limits_s(DEFAULT).items():
            yield _line(METRIC, {"budget": DEFAULT.name, "limit": limit}, limit_s, when)
        for slo, (allowed, usual, left) in _USUAL.items():
            labels = {"budget": DEFAULT.name, "slo": slo}
            valid = sum((n for key, n in self._valid.items() if key[0] == slo), Counter())
            bad = sum((n for key, n in self._bad.items() if key[0] == slo), Counter())
            per_s = valid.total() / (at + STEP)
            for window, seconds in (("1h", 3600), ("6h", 21_600)):
                # Before the start requests were as bad as they usually are.
                earlier = per_s * max(0, seconds - at - STEP)
                share = (_within(bad, at, seconds) + usual * earlier) / (
                    _within(valid, at, seconds) + earlier
                )
                yield _line(bad_ratio(window), labels, share, when)
            yield _line(ALLOWED, labels, allowed, when)
            spent = bad.total() / (allowed * per_s * 30 * DAY)
            yield _line(REMAINING, labels, left - spent, when)


# Of each SLO: the share of requests that may be bad, that usually is, and what was left of the
# error budget.
_USUAL: Final = {
    "e2e": (0.05, 0.031, 0.46),
    "ttft": (0.05, 0.012, 0.71),
    "tpot": (0.05, 0.021, 0.58),
    "availability": (0.01, 0.004, 0.38),
}


def _kept(row: Row) -> Iterator[tuple[str, bool]]:
    """Yield the SLOs that a request counts for, and whether it broke them."""
    for slo, value, limit in (
        ("e2e", row.e2e_s, DEFAULT.total_s),
        ("ttft", row.ttft_s, DEFAULT.ttft_s),
        ("tpot", row.tpot_s, DEFAULT.tpot_s),
    ):
        if value is not None and limit and (value > limit or row.outcome == "success"):
            yield slo, value > limit
    if row.outcome != "cancelled":
        yield "availability", row.outcome != "success"


def _within(counts: Counter[int], at: int, seconds: int) -> int:
    return sum(counts[at - back] for back in range(0, seconds, STEP))


def _line(name: str, labels: Mapping[str, str], value: float, when: int) -> str:
    inside = ",".join(f'{key}="{label}"' for key, label in labels.items() if label)
    return f"{name}{{{inside}}} {value!r} {when}\n"


# --- requests -----------------------------------------------------------------------------------


def _spread(draws: random.Random, middle: float, sigma: float) -> float:
    return middle * draws.lognormvariate(0.0, sigma)


def _request(draws: random.Random, kind: Kind, second: int, ill: float) -> Row:
    ill = ill if kind.model == _BIG else 0.15 * ill
    far = 3.1 if kind.region == "us-east" else 1.0
    fresh = draws.random() < 0.04
    network = Network(
        client_wait=int(_spread(draws, 0.4 + 9 * ill, 0.8) * MS),
        dns=int(_spread(draws, 6, 0.5) * MS) if fresh else 0,
        connect=int(_spread(draws, 11 * far, 0.3) * MS) if fresh else 0,
        tls=int(_spread(draws, 23 * far, 0.3) * MS) if fresh else 0,
        send=int(_spread(draws, 0.3, 0.4) * MS),
        rtt=int(_spread(draws, 12 * far, 0.25) * MS),
        rtt_source="kernel",
    )
    gateway = int(_spread(draws, 9, 0.5) * MS)
    queue = int(_spread(draws, 18 + 520 * ill, 0.9 + 0.2 * ill) * MS)
    prefill = int(_spread(draws, kind.prefill_ms * (1 + 1.5 * ill), 0.4) * MS)
    first = int(_spread(draws, 14, 0.5) * MS)
    has_usage = draws.random() > 0.06  # some answers come without the usage chunk
    tokens = max(2, int(_spread(draws, kind.output, 0.35)))
    gap = kind.tpot_ms * (1 + 0.25 * ill)
    counts, decode = [0] * (len(GAP_BOUNDS_NS) + 1), 0
    for _ in range(tokens - 1):
        ns = int(_spread(draws, gap, 0.25) * MS)
        if draws.random() < 0.0015 + 0.006 * ill:
            ns += int(_spread(draws, 350, 0.6) * MS)
        decode += ns
        counts[next((i for i, edge in enumerate(GAP_BOUNDS_NS) if ns <= edge), -1)] += 1
    held = int(_spread(draws, 24, 0.9) * MS)
    ttft = sum((network.known or 0, gateway, queue, prefill, first))
    luck, outcome, error = draws.random(), "success", None
    if luck < 0.004 + 0.012 * ill:
        outcome, error = "error", "overloaded"
    elif luck < 0.012 + 0.05 * ill:
        outcome = "cancelled"
    elif luck < 0.014 + 0.012 * ill:
        outcome = "timeout"
    elif luck < 0.016:
        outcome = "truncated"
    e2e = ttft + decode + held
    return Row(
        request_id=f"lt-{draws.getrandbits(64):016x}",
        trace_id=f"{draws.getrandbits(128):032x}",
        span_id=f"{draws.getrandbits(64):016x}",
        start=second * 1_000_000_000,
        service=kind.service,
        model=kind.model,
        provider="vllm",
        route=kind.route,
        region=kind.region,
        tenant=kind.tenant,
        outcome=outcome,  # type: ignore[arg-type]
        error_type=error,
        attempts=2 if draws.random() < 0.003 + 0.03 * ill else 1,
        prompt_tokens=int(_spread(draws, kind.prompt, 0.3)),
        cached_tokens=int(kind.prompt * (0.62 - 0.5 * ill)),
        output_tokens=tokens,
        chunks=tokens,
        gap_counts=tuple(counts),
        gap_sum_ns=decode,
        last_content_ns=ttft + decode,
        timeline=Timeline(
            e2e=e2e,
            ttft=ttft,
            held_after=held,
            network=network,
            gateway=Reported(gateway, "server_timing") if draws.random() < 0.9 else None,
            queue=Reported(queue, "engine_inband") if has_usage else None,
            prefill=Reported(prefill, "engine_inband") if has_usage else None,
        ),
    )


def _turn(draws: random.Random, second: int) -> Row:
    agent = draws.choice(("planner", "planner", "researcher"))
    rounds = draws.choice((1, 2, 2, 3)) + (agent == "researcher")
    e2e = int(sum(_spread(draws, 2300, 0.35) for _ in range(rounds)) * MS)
    luck, busy_s = draws.random(), e2e / 1e9 * 0.4
    return Row(
        request_id=f"lt-{draws.getrandbits(64):016x}",
        trace_id=f"{draws.getrandbits(128):032x}",
        span_id=f"{draws.getrandbits(64):016x}",
        start=second * 1_000_000_000,
        service="shop",
        operation=TURN,
        agent=agent,
        region="eu-west",
        outcome="success" if luck < 0.95 else "cancelled" if luck < 0.98 else "error",
        tool_calls=3,
        tool_wall_s=busy_s,
        tool_serial_s=busy_s * (1.2 if agent == "researcher" else 1.9),
        tool_serial_loss_s=_spread(draws, 0.9 if agent == "researcher" else 0.2, 0.6),
        timeline=Timeline(e2e=e2e, stream=False),
    )


def _tools(draws: random.Random, second: int, ill: float) -> Iterator[Span]:
    for name, often, ms, fails in (
        ("search", 0.8, 640, 0.01 + 0.06 * ill),
        ("stock", 0.5, 90, 0.002),
        ("calendar", 0.25, 210, 0.004),
    ):
        while draws.random() < often:
            failed = draws.random() < fails
            yield Span(
                name=f"execute_tool {name}",
                trace_id=f"{draws.getrandbits(128):032x}",
                span_id=f"{draws.getrandbits(64):016x}",
                service="shop",
                start=second * 1_000_000_000,
                duration_ns=int(_spread(draws, ms * (1 + ill), 0.5) * MS),
                attributes={
                    "gen_ai.tool.name": name,
                    "llmtrace.region": "eu-west",
                    "llmtrace.outcome": "error" if failed else "success",
                },
            )


# --- engines ------------------------------------------------------------------------------------


class Counts:
    """A histogram that only grows."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = (*bounds, float("inf"))
        self.counts = [0.0] * len(self.bounds)
        self.sum = self.count = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.sum += value
        self.count += 1
        for place, bound in enumerate(self.bounds):
            self.counts[place] += value <= bound

    def now(self) -> Distribution:
        """Return it as it stands."""
        return Distribution(self.bounds, tuple(self.counts), self.sum, self.count)


class Fleet:
    """Three engines and their GPUs; the second is hit harder than the others."""

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws
        self._durations = random.Random(20261123)
        self._counters: dict[tuple[str, str, str], float] = {}
        self._histograms: dict[tuple[str, str], Counts] = {}
        self._states: list[TargetState] = []
        self._failures: dict[str, int] = {}

    def states(self) -> list[TargetState]:
        """Return what the collector would know now."""
        return self._states

    def step(self, ill: float, *, failing: bool) -> None:
        """Let half a minute go by."""
        self._states = [self._engine(name, ill, failing=failing) for name in _ENGINES]

    def _grow(self, engine: str, signal: str, label: str, by: float) -> float:
        key = (engine, signal, label)
        self._counters[key] = self._counters.get(key, 0.0) + by
        return self._counters[key]

    def _engine(self, name: str, ill: float, *, failing: bool) -> TargetState:
        draws = self._draws
        small = name == _ENGINES[2]
        ill *= 0.15 if small else 1.35 if name == _ENGINES[1] else 0.8
        labels = (("engine", "vllm"), ("model", _SMALL if small else _BIG))
        waiting = max(0.0, _spread(draws, 0.4 + 13 * ill, 0.3) - 0.3)
        found: list[tuple[str, str, str, float]] = [
            ("running", "", "", round(_spread(draws, 17 + 12 * ill, 0.12))),
            ("waiting", "", "", round(waiting)),
            ("waiting_by_reason", "reason", "capacity", round(waiting * 0.85)),
            ("waiting_by_reason", "reason", "deferred", round(waiting * 0.15)),
            ("kv_usage", "", "", min(0.995, _spread(draws, 0.55 + 0.42 * min(1, ill), 0.03))),
        ]
        queries = _spread(draws, 26_000, 0.1)
        drafted = _spread(draws, 9_000, 0.1)
        for signal, label, value, by in (
            ("preemptions", "", "", draws.random() * 9 * max(0.0, ill - 0.5)),
            ("prompt_tokens", "", "", queries),
            ("prefix_queries", "", "", queries),
            ("prefix_hits", "", "", queries * (0.64 - 0.5 * min(1, ill))),
            ("generation_tokens", "", "", _spread(draws, 19_000 - 3_000 * ill, 0.08)),
            ("spec_drafted", "", "", drafted),
            ("spec_accepted", "", "", drafted * 0.66),
            ("spec_accepted_by_position", "position", "0", drafted * 0.31),
            ("spec_accepted_by_position", "position", "1", drafted * 0.22),
            ("spec_accepted_by_position", "position", "2", drafted * 0.13),
            ("finished", "reason", "stop", _spread(draws, 20, 0.2)),
            ("finished", "reason", "length", _spread(draws, 4, 0.3)),
            ("finished", "reason", "abort", _spread(draws, 0.2 + 2 * ill, 0.4)),
        ):
            found.append((signal, label, value, self._grow(name, signal, value, by)))
        for signal, middle, many in (
            ("queue", 0.018 + 0.52 * ill, 24),
            ("prefill", (0.06 if small else 0.19) * (1 + 1.5 * ill), 24),
            ("decode", 0.15 if small else 1.3 * (1 + 0.25 * ill), 24),
            ("ttft", (0.09 if small else 0.24) + 0.9 * ill, 24),
            ("itl", (0.009 if small else 0.021) * (1 + 0.25 * ill), 60),
            ("tpot", (0.009 if small else 0.021) * (1 + 0.25 * ill), 24),
            ("e2e", (0.25 if small else 1.6) + 0.9 * ill, 24),
        ):
            kept = self._histograms.setdefault((name, signal), Counts(LATENCY_S))
            for _ in range(many):
                kept.add(_spread(self._durations, middle, 0.5))
        steps = self._histograms.setdefault(
            (name, "step_tokens"),
            Counts((1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)),
        )
        for _ in range(60):
            steps.add(
                _spread(draws, 24, 0.4) if draws.random() < 0.7 else _spread(draws, 2600, 0.4)
            )
        hot = max(0.0, ill - 0.6)
        gpu = (("gpu", "0"), ("uuid", f"GPU-{name[7]}"))
        gpus: list[tuple[str, str, str, float]] = [
            ("gpu_utilization", "", "", min(1.0, _spread(draws, 0.82 + 0.1 * ill, 0.04))),
            ("gpu_sm_clock", "", "", _spread(draws, 1.98e9 - 3.2e8 * hot, 0.006)),
            ("gpu_power", "", "", min(700.0, _spread(draws, 520 + 120 * ill, 0.04))),
            ("gpu_power_limit", "", "", 700.0),
            ("gpu_memory_used", "", "", 72e9),
            ("gpu_memory_total", "", "", 80e9),
            ("gpu_temperature", "", "", _spread(draws, 61 + 14 * ill, 0.02)),
            ("gpu_throttled", "reason", "sw_power_cap", float(ill > 0.9)),
            ("gpu_throttled", "reason", "hw_thermal", 0.0),
        ]
        measured = [
            *_measured(found, labels),
            *_measured(gpus, gpu),
            *(
                Measured(SIGNALS[signal], labels, kept.now())
                for (whose, signal), kept in self._histograms.items()
                if whose == name
            ),
        ]
        state = TargetState(Target(f"http://{name}/metrics"), Normaliser(()))
        state.reading = Reading(profiles=("vllm",), measured=tuple(measured))
        frontend: Any = SimpleNamespace(
            frontend_s=_spread(draws, 0.008 + 0.01 * ill, 0.2), labels=labels
        )
        state.intervals = (frontend,)
        state.up, state.took_s = True, _spread(draws, 0.006, 0.2)
        if failing and name == _ENGINES[1]:
            self._failures[name] = self._failures.get(name, 0) + 3
        if name == _ENGINES[1]:
            state.failures["timeout"] = self._failures.get(name, 0)
        return state


def _measured(
    found: list[tuple[str, str, str, float]], labels: tuple[tuple[str, str], ...]
) -> Iterator[Measured]:
    for signal, label, value, number in found:
        own = ((label, value),) if label else ()
        yield Measured(SIGNALS[signal], (*labels, *own), number)
