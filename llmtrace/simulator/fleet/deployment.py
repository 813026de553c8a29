"""Draw a deployment: engines, gateways, regions, tenants, routes, client programs.

`draw` invents a plausible deployment from a seed, so that no two simulated days are alike. What a
fault needs to be possible at all (adapters, speculative decoding, agents) is requested by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from llmtrace.core.stages import Source
from llmtrace.dataset.arrivals import Arrivals
from llmtrace.simulator.fleet.array_layout import BLOCK, Policy
from llmtrace.simulator.fleet.step_cost import MODELS, StepCost


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of question. Medians and spreads of logarithms; tokens.

    Attributes:
        share: of the traffic.
        prefix: the part of a prompt that all requests of a tenant share, as a share of the median.
        acceptance: of a drafted token, in this kind of text.
        agent: whether tools follow the answer, and another request them.
        silent_s: median of a pause inside the answer while the model thinks unseen; 0 = none.
    """

    name: str
    share: float
    prompt: float
    prompt_spread: float
    output: float
    output_spread: float
    prefix: float = 0.3
    acceptance: float = 0.7
    agent: bool = False
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Region:
    """Where clients are: their round trip to the gateway of their region."""

    name: str
    share: float
    rtt_s: float


@dataclass(frozen=True, slots=True)
class App:
    """A client program. Its pool holds so many requests at once."""

    name: str
    share: float
    hold_s: float  # its own time for a chunk
    pool: int = 4096
    reuse: float = 0.95  # requests over a connection that is open already


@dataclass(frozen=True, slots=True)
class Deployment:
    """One day's fleet. `rate` is requests a second over all replicas."""

    model: str
    cost: StepCost
    replicas: int
    rate: float
    max_seqs: int
    max_tokens: int
    max_model_len: int
    blocks: int
    routes: tuple[Route, ...]
    regions: tuple[Region, ...]
    apps: tuple[App, ...]
    tenants: tuple[float, ...]  # shares
    policy: Policy = Policy.MIN_LOADED
    chunked: bool = True
    spec_tokens: int = 0
    adapters: int = 0
    max_loras: int = 0
    kv_share: float = 0.0
    patience_s: float = 60.0  # median, until the first chunk
    timeout_s: float = 600.0
    tool_s: float = 0.5  # median of a tool call
    gateway_s: float = 0.004
    gateway_workers: int = 64
    gateway_tells: bool = True
    engine_source: Source | None = "engine_inband"
    gpu: bool = True
    version: str = "0.32.0"
    names: tuple[str, ...] = ()

    @property
    def prompt_mean(self) -> float:
        """Mean prompt tokens that have to be computed: what prefixes share is left out."""
        return self._mean(lambda r: r.prompt * (1 - r.prefix) * np.exp(r.prompt_spread**2 / 2))

    @property
    def context_mean(self) -> float:
        """Mean tokens of a request at the middle of its answer."""
        return self.prompt_mean + self.output_mean / 2

    @property
    def held_mean(self) -> float:
        """Mean tokens a running sequence holds: long ones run longer, and are met more often."""
        return 1.4 * self.context_mean + 0.2 * self.prompt_mean

    @property
    def output_mean(self) -> float:
        """Mean output tokens, hidden ones included."""
        base = self.cost.base_s
        return self._mean(
            lambda r: r.output * np.exp(r.output_spread**2 / 2) + 1.28 * r.silent_s / base
        )

    @property
    def capacity(self) -> float:
        """Requests a second at which the batch of every replica is full."""
        return self.replicas * seats_rate(
            self.cost, self.max_seqs, self.prompt_mean, self.output_mean
        )

    def _mean(self, figure: Callable[[Route], float]) -> float:
        total = sum(route.share for route in self.routes)
        return float(sum(r.share * figure(r) for r in self.routes) / total)


def seats_rate(cost: StepCost, seats: float, prompt_tokens: float, output_tokens: float) -> float:
    """Return the rate of one replica at which `seats` sequences decode at once."""
    # batch(rate) = rate * O * base / (1 - rate / limit), solved for the rate
    return 1.0 / (
        output_tokens * cost.base_s / seats + 1.0 / cost.rate_limit(prompt_tokens, output_tokens)
    )


_REGIONS: Final = (("eu-west", 0.012), ("us-east", 0.085), ("ap-south", 0.14), ("eu-north", 0.03))
_APPS: Final = (
    App("web 5.2", 0.5, 0.0004),
    App("ios 3.9", 0.25, 0.0008),
    App("python-sdk", 0.25, 0.0001),
)


def draw(rng: np.random.Generator, needs: Collection[str] = ()) -> Deployment:
    """Invent a deployment, with what is needed in it."""
    model = str(rng.choice(["a100x4-70b", "l4-8b"]))
    cost = MODELS[model]
    prefix = 0.65 if "prefixes" in needs else float(rng.uniform(0.3, 0.55))
    size = float(rng.uniform(0.7, 1.4))
    routes = [
        Route("chat", 0.5, 500 * size, 0.7, 170, 0.6, prefix, 0.72),
        Route("rag", 0.2, 2200 * size, 0.5, 230, 0.5, prefix, 0.78),
        Route("code", 0.2, 1200 * size, 0.8, 280, 0.7, prefix, 0.71),
    ]
    if "agents" in needs or _chance(rng, 0.3):
        share = 3.0 if "agents" in needs else 0.1
        routes.append(Route("agent", share, 1400 * size, 0.4, 90, 0.4, prefix, 0.7, agent=True))
    if "silences" in needs or _chance(rng, 0.15):
        share = 0.6 if "silences" in needs else 0.08
        routes.append(Route("research", share, 700 * size, 0.5, 420, 0.4, prefix, silent_s=8.0))
    count = int(rng.integers(2, 4))
    order = rng.permutation(len(_REGIONS))[:count]
    weights = rng.dirichlet(np.full(count, 6.0))
    regions = tuple(
        Region(_REGIONS[k][0], float(w), _REGIONS[k][1] * float(rng.uniform(0.8, 1.2)))
        for k, w in zip(order, weights, strict=True)
    )
    replicas = int(rng.integers(2, 4))
    spec_tokens = 3 if "spec" in needs else int(rng.choice([0, 0, 0, 3]))
    adapters = 8 if "adapters" in needs else 0
    draft = Deployment(
        model=model,
        cost=cost,
        replicas=replicas,
        rate=1.0,
        max_seqs=1,
        max_tokens=int(rng.choice([2048, 4096, 8192])),
        max_model_len=131_072,
        blocks=1,
        routes=tuple(routes),
        regions=regions,
        apps=_APPS,
        tenants=tuple(rng.dirichlet(np.full(6, 3.0)).tolist()),
        policy=Policy.PREFIX if _chance(rng, 0.3) else Policy.MIN_LOADED,
        spec_tokens=spec_tokens,
        adapters=adapters,
        max_loras=adapters,
        kv_share=0.7 if "kv_transfer" in needs else 0.0,
        gateway_s=float(rng.uniform(0.003, 0.012)),
        gateway_tells=_chance(rng, 0.8),
        engine_source=str(rng.choice(["engine_inband", "engine_span", "engine_plugin"])),  # type: ignore[arg-type]
    )
    return size_up(rng, draft, wide="wide" in needs)


def _chance(rng: np.random.Generator, share: float) -> bool:
    return bool(rng.random() < share)


def size_up(rng: np.random.Generator, draft: Deployment, *, wide: bool) -> Deployment:
    """Give a deployment as much traffic, room and cache as it would be run with.

    Args:
        rng: where chance comes from.
        draft: everything else.
        wide: whether the batch may grow far beyond what is usual: then more traffic makes larger
            batches, and not a queue.
    """
    prompt, output = draft.prompt_mean * (1 - draft.kv_share), draft.output_mean
    limit = draft.cost.rate_limit(prompt, output)
    rate = limit * float(rng.uniform(0.24, 0.36))
    batch = draft.cost.batch(rate, prompt, output)
    seats = max(4, round(batch * (6.0 if wide else float(rng.uniform(2.0, 2.6)))))
    # Even a full batch has room: what runs short first is seats.
    usage = float(rng.uniform(0.55, 0.75))
    blocks = int(seats * draft.held_mean / usage / BLOCK) + 400
    return replace(
        draft,
        rate=rate * draft.replicas,
        max_seqs=seats,
        max_tokens=max(draft.max_tokens, 2 * seats),
        blocks=blocks,
        names=tuple(f"vllm-{k}" for k in range(draft.replicas)),
    )


def for_trace(
    trace: Arrivals, draft: Deployment, rng: np.random.Generator, *, wide: bool
) -> Deployment:
    """Return a deployment of the size that a trace's lengths need."""
    return size_up(rng, replace(draft, routes=(_route(trace),)), wide=wide)


def _route(trace: Arrivals) -> Route:
    """Return a route whose lengths are those of a trace, to size machines by."""
    own = np.maximum(trace.prompt - trace.shared, 8)
    prefix = 1 - float(own.mean() / trace.prompt.mean())
    spreads = [float(np.log(one).std()) for one in (trace.prompt, trace.output)]
    medians = [
        float(one.mean()) / np.exp(spread**2 / 2)
        for one, spread in zip((trace.prompt, trace.output), spreads, strict=True)
    ]
    return Route("replay", 1.0, medians[0], spreads[0], medians[1], spreads[1], prefix)
