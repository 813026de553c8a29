"""Draw a world for a simulated day: its scales, its machines, and what of it is recorded.

A rule that holds in one deployment may only hold there. Each world has time scales, step costs,
replicas, load, windows, scrape intervals and names of its own, counts its queue in its own way,
and records some of the fields and signals only. Nothing here knows of triage's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from llmtrace.dataset.arrivals import Arrivals
from llmtrace.dataset.case import Case, Facts, Signals, Window
from llmtrace.dataset.columns import SECONDS, Columns, Words
from llmtrace.simulator.fleet.array_layout import Engine
from llmtrace.simulator.fleet.deployment import Deployment, for_trace, size_up
from llmtrace.simulator.fleet.plan import Day
from llmtrace.simulator.fleet.step_cost import StepCost
from llmtrace.stats.arrays import Mask
from tests.bench import worlds_beyond

Queue = Literal["vllm", "sglang", "none"]

# What a cause can be known by: each set is enough by itself. A world records one of them whole.
# Fields of rows, signals with a `~` before them.
KNOWN_BY: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "queue_saturation": (("~waiting", "~running", "queue_s"), ("~waiting", "~running")),
    "batch_size": (("~running",),),
    "kv_exhaustion": (("~kv_usage", "~preemptions"), ("~kv_usage", "~waiting", "~running")),
    "prefix_cache_collapse": (
        ("cached_tokens", "prompt_tokens"), ("~prefix_hits", "~prefix_queries"),
    ),
    "cold_start": (("replica", "~started"),),
    "low_spec_acceptance": (
        ("~spec_drafted", "~spec_accepted"), ("spec_drafted", "spec_accepted"),
    ),
    "gpu_throttle": (("~gpu_sm_clock_mhz",), ("~gpu_sm_clock_mhz", "~gpu_throttle")),
    "frontend_cpu": (("~frontend_time", "~api_cpu"), ("first_chunk_frontend_s", "~api_cpu")),
    "kv_transfer": (("~waiting_deferred", "~waiting", "queue_s", "model"),),
    "lora_slots": (("model", "queue_s"), ("model", "queue_s", "~waiting_deferred")),
    "replica_imbalance": (("replica",), ("~running", "~waiting")),
    "engine_paused": (
        ("~sleep", "max_gap_s", "replica"), ("max_gap_s", "replica"),
        ("~tokens_out", "~running", "replica"),
    ),
    "engine_down": (("~started", "replica", "http_status"),),
    "midstream_errors": (("max_gap_s",), ("last_content_s",)),
    "long_prompts": (("prompt_tokens",),),
    "longer_outputs": (("output_tokens",),),
    "head_of_line": (("prompt_tokens", "replica"),),
    "serial_tools": (("tool_wall_s", "tool_critical_path_s"),),
    "network_path": (("network_rtt_s", "network_connect_s", "network_client_wait_s"),),
    "gateway_overhead": (("gateway_s", "attempts"),),
    "rate_limit_retries": (("attempts", "http_status"), ("attempts", "~gateway_429")),
    "proxy_buffering": (("burst_chunks", "chunks"), ("chunks", "output_tokens")),
    "idle_timeout": (("max_gap_s",), ("last_content_s", "max_gap_s")),
    "slow_renderer": (("render_s",),),
    "client_gate": (("network_client_wait_s",),),
    "client_give_ups": ((),),
    **worlds_beyond.KNOWN_BY,
}  # fmt: skip
# Causes that a client sees by itself: they happen with hosted APIs, without any engine, as well.
HOSTED: Final = frozenset(
    {
        "network_path", "slow_renderer", "client_gate", "client_give_ups", "idle_timeout",
        "midstream_errors", "rate_limit_retries", "proxy_buffering", "gateway_overhead",
        "serial_tools", "long_prompts", "longer_outputs", "traffic_lost", "traffic_surge",
        "client_cold",
    }
)  # fmt: skip
_SOMETIMES: Final = (
    "cached_tokens", "burst_chunks", "max_gap_s", "last_content_s", "first_chunk_frontend_s",
    "network_rtt_s", "network_dns_s", "network_connect_s", "network_tls_s", "answered_s",
    "preemptions", "spec_drafted", "spec_accepted", "http_status", "tenant", "region", "client",
    "version", "gateway",
)  # fmt: skip
_SIGNALS: Final = (
    "running", "waiting", "waiting_deferred", "kv_usage", "sleep", "prefix_hits",
    "prefix_queries", "preemptions", "tokens_in", "tokens_out", "rejected", "finished", "started",
    "frontend_time", "api_cpu", "gpu_util", "gpu_sm_clock_mhz", "gpu_power_w", "gpu_temp_c",
    "gpu_throttle", "gateway_429", "gateway_5xx", "spec_drafted", "spec_accepted",
)  # fmt: skip
_NAMES: Final = ("vllm-{}", "llm-serve-6f7d9c-{}", "10.2.0.{}:8000", "gpu{}.lab", "prod-eu-{}")
_MIN_AFTER_S: Final = 120.0  # of a window after: warming up and restarting take as long
_MAX_AFTER_S: Final = 3000.0
_BY_PLUGIN: Final = {"first_chunk_frontend_s", "spec_drafted"}
_NEEDS_SEVERAL: Final = frozenset({"replica_imbalance"})


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One way a day can be.

    Attributes:
        scale: times as slow as the simulator's own, all durations alike.
        replicas, cost, load: machines, and their load as a share of what they are sized for.
        after_n: requests after the onset, about; `before` times as many before it.
        tick_share: of the window after that lies between two samples.
        swing, steadiness: of the load, as in `Day`.
        drift: by how much steps get slower over the day, all by itself.
        deploys: how many deploys happen that do nothing.
        hosted: no engine is seen, as with an API of others.
        queue: whose way to count the time in the queue.
        hidden: fields and signals (`~`) that are not recorded.
        outage: from and to which share of the day no signals are scraped; empty if equal.
        names: of replicas.
        plugin: the engine's own plugin reports, because the cause is known by what only it does.
        arrivals: a trace to replay; `None` = drawn.
        beyond: a cause that the simulator has none of, and its severity; `None` = none.
    """

    scale: float
    replicas: int
    cost: StepCost
    load: float
    after_n: float
    before: float
    tick_share: float
    swing: float
    steadiness: float
    drift: float
    deploys: int
    hosted: bool
    queue: Queue
    hidden: frozenset[str]
    outage: tuple[float, float]
    names: str
    plugin: bool
    arrivals: Arrivals | None = None
    beyond: tuple[str, float] | None = None

    def settle(self, draft: Deployment, rng: np.random.Generator, *, wide: bool) -> Deployment:
        """Return a deployment with its machines, as large as its traffic needs it."""
        return settle(self, draft, rng, wide=wide)

    def lengths(self, deployment: Deployment) -> tuple[float, float]:
        """Return how long the windows before and after are, in seconds of the simulator."""
        return lengths(self, deployment)

    def prepare(self, day: Day) -> None:
        """Write into a day what it does to it, apart from any fault."""
        prepare(self, day)

    def seen(self, case: Case) -> Case:
        """Return what is recorded of a case in it, on its time scale."""
        return seen(self, case)


def draw_world(seed: int, causes: Collection[str], arrivals: Arrivals | None = None) -> World:
    """Invent a world in which these causes can be known.

    Args:
        seed: of all its random numbers.
        causes: what will be injected.
        arrivals: a trace to replay.
    """
    rng = np.random.default_rng([seed, 7])

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    hosted = bool(rng.random() < 0.35) and bool(causes or rng.random() < 0.5)
    hosted = hosted and all(cause in HOSTED for cause in causes)
    kept: set[str] = set()
    for cause in causes:
        ways = KNOWN_BY[cause]
        kept.update(ways[int(rng.integers(len(ways)))])
    few = float(rng.uniform(0.0, 0.6))
    every = (*_SOMETIMES, *(f"~{name}" for name in _SIGNALS))
    hidden = {name for name in every if rng.random() < few}
    if hosted:
        hidden |= {f"~{name}" for name in _SIGNALS} | {"replica", "cached_tokens"}
    several = bool(_NEEDS_SEVERAL & set(causes))
    replicas = int(rng.choice([2, 3, 4, 8] if several else [1, 2, 3, 4, 8]))
    begins = float(rng.uniform(0.0, 0.95))
    as_vllm = bool(kept & {"queue_s", "first_chunk_frontend_s"})
    queue: Queue = "vllm" if as_vllm else str(rng.choice(["vllm", "sglang", "none"]))  # type: ignore[assignment]
    return World(
        scale=between(0.1, 10.0),
        replicas=replicas,
        cost=StepCost(
            base_s=between(0.006, 0.06),
            prefill_token_s=between(20e-6, 300e-6),
            attention_s=between(0.3e-9, 4e-9),
            sequence_s=between(40e-6, 500e-6),
            context_s=between(5e-9, 80e-9),
            jitter=float(rng.uniform(0.02, 0.25)),
            front_request_s=between(0.0005, 0.008),
            front_prompt_s=1.0e-6,
            front_token_s=between(10e-6, 60e-6),
        ),
        load=between(0.5 if "kv_exhaustion" in causes else 0.15, 1.0),
        after_n=between(80.0, 1000.0),
        before=float(rng.uniform(1.0, 4.0)),
        tick_share=1.0 / between(12.0, 60.0),
        swing=float(rng.uniform(0.0, 0.25)),
        steadiness=between(15.0, 200.0),
        drift=float(rng.uniform(-0.06, 0.06)),
        deploys=int(rng.integers(0, 3)),
        hosted=hosted,
        queue="none" if hosted else queue,
        hidden=frozenset(hidden - kept),
        outage=(begins, begins + (0.05 if rng.random() < 0.3 else 0.0)),
        names=str(rng.choice(_NAMES)),
        plugin=bool(kept & _BY_PLUGIN),
        arrivals=arrivals,
    )


def settle(world: World, draft: Deployment, rng: np.random.Generator, *, wide: bool) -> Deployment:
    """Return a deployment with a world's machines, as large as its traffic needs it.

    Args:
        world: where it stands.
        draft: what is left as it is.
        rng: where chance comes from.
        wide: as for `size_up`.
    """
    source = "engine_plugin" if world.plugin else draft.engine_source
    there = replace(
        draft,
        cost=world.cost,
        replicas=world.replicas,
        engine_source=None if world.hosted else source,
        gateway_tells=draft.gateway_tells or "gateway_s" not in world.hidden,
    )
    if world.arrivals is not None:
        there = for_trace(world.arrivals, there, rng, wide=wide)
    else:
        there = size_up(rng, there, wide=wide)
    return replace(
        there,
        rate=there.rate * world.load,
        names=tuple(world.names.format(k) for k in range(there.replicas)),
    )


def lengths(world: World, deployment: Deployment) -> tuple[float, float]:
    """Return how long the windows before and after are, in seconds of the simulator."""
    after = min(max(world.after_n / deployment.rate, _MIN_AFTER_S), _MAX_AFTER_S)
    return max(world.before * after, 2 * _MIN_AFTER_S), after


def prepare(world: World, day: Day) -> None:
    """Write into a day what its world does to it, apart from any fault."""
    day.swing, day.steadiness, day.replay = world.swing, world.steadiness, world.arrivals
    day.tick_s = float(np.clip(world.tick_share * day.after_s, 1.0, 30.0))
    steps = 12
    for k in range(steps):
        at = day.end * k / steps
        for r in range(day.deployment.replicas):
            factor = 1.0 + world.drift * k / steps
            day.change(Engine.ATTENTION_S, day.deployment.cost.attention_s * factor, row=r, at=at)
            day.change(Engine.BASE_S, day.deployment.cost.base_s * factor, row=r, at=at)
    for _ in range(world.deploys):
        at = float(day.rng.uniform(day.onset - day.before_s, day.end))
        day.happen("deploy", "admin pages: new colours", at=at)
    if world.beyond is not None:
        worlds_beyond.plan(*world.beyond, day)


def traits(world: World) -> Iterator[str]:
    """Yield what kind of world it is, for tables by kind."""
    yield "hosted" if world.hosted else "own engines"
    yield "few requests" if world.after_n < 200 else "many requests"
    yield f"queue: {world.queue}"
    yield "replayed" if world.arrivals is not None else "drawn"


# --- what is recorded ----------------------------------------------------------------------------


def seen(world: World, case: Case) -> Case:
    """Return what is recorded of a case in its world, on its time scale."""
    zero = case.before.start if case.before else 0.0
    if world.beyond is not None:
        case = worlds_beyond.write(*world.beyond, case, np.random.default_rng(case.rows.n))
    signals = _scraped(world, case, zero)
    rows = _recorded(world, case.rows)
    k = world.scale

    def later(t: float) -> float:
        return zero + (t - zero) * k

    numbers = dict(rows.numbers)
    for name in SECONDS:
        numbers[name] = numbers[name] * k
    start = int(zero * 1e9) + ((rows.start - int(zero * 1e9)) * k).astype(np.int64)
    durations = signals.signal.where("frontend_time")
    value = np.where(durations, signals.value * k, signals.value)
    started = signals.signal.where("started")
    value = np.where(started, zero + (value - zero) * k, value)
    instances = {
        name: {key: later(v) if key == "started" else v for key, v in facts.items()}
        for name, facts in case.facts.instances.items()
        if not world.hosted
    }
    return replace(
        case,
        rows=replace(rows, start=start, numbers=numbers),
        signals=replace(signals, t=zero + (signals.t - zero) * k, value=value),
        facts=Facts(
            instances=instances,
            events=tuple(replace(event, t=later(event.t)) for event in case.facts.events),
        ),
        before=_window(case.before, later),
        after=_window(case.after, later),
    )


def _window(window: Window | None, later: Callable[[float], float]) -> Window | None:
    return window and Window(later(window.start), later(window.end))


def _scraped(world: World, case: Case, zero: float) -> Signals:
    end = case.after.end if case.after else zero
    share = (case.signals.t - zero) / max(end - zero, 1e-9)
    kept = ~((share >= world.outage[0]) & (share < world.outage[1]))
    for name in world.hidden:
        if name.startswith("~"):
            kept &= ~case.signals.signal.where(name[1:])
    return _take(case.signals, kept)


def _take(signals: Signals, kept: Mask) -> Signals:
    return replace(
        signals,
        t=signals.t[kept],
        instance=Words(signals.instance.codes[kept], signals.instance.names),
        signal=Words(signals.signal.codes[kept], signals.signal.names),
        value=signals.value[kept],
        labels=signals.labels[kept],
    )


def _recorded(world: World, rows: Columns) -> Columns:
    """Return rows without the hidden fields, and with the queue as this engine counts it."""
    numbers, words = dict(rows.numbers), dict(rows.words)
    queue, prefill, first = (numbers[f"{one}_s"] for one in ("queue", "prefill", "first_chunk"))
    if world.queue == "sglang":  # from when the front end has it
        front = np.nan_to_num(numbers["first_chunk_frontend_s"])
        moved = np.minimum(front, np.nan_to_num(first))
        numbers["queue_s"], numbers["first_chunk_s"] = queue + moved, first - moved
        numbers["first_chunk_frontend_s"] = np.full(rows.n, np.nan)
    elif world.queue == "none":
        known = np.nan_to_num(queue) + np.nan_to_num(prefill) + np.nan_to_num(first)
        numbers["unattributed_s"] = numbers["unattributed_s"] + known
        for stage in ("queue", "prefill", "first_chunk"):
            numbers[f"{stage}_s"] = np.full(rows.n, np.nan)
            words[f"{stage}_source"] = Words(np.full(rows.n, -1, np.int32), ())
    for name in world.hidden:
        if name in numbers:
            numbers[name] = np.full(rows.n, np.nan)
        elif name in words:
            words[name] = Words(np.full(rows.n, -1, np.int32), ())
    return replace(rows, numbers=numbers, words=words)
