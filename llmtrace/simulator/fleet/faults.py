"""Inject each cause of an incident, at a severity.

One function a cause. It changes a mechanism (blocks of the cache, the speed of a GPU, a proxy's
buffer, the workload) and nothing else: rows and signals follow from the model. Severity is a
number from 1 (hardly noticed) to 3 (severe); what lies between is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.errors import ConfigError
from llmtrace.simulator.fleet.array_layout import BLOCK, Engine, Gateway, Policy, Pool, Quota
from llmtrace.simulator.fleet.plan import Arrays, Day

Inject = Callable[[Day, float], None]
_Mask = NDArray[np.bool_]

MILD, SEVERE = 1.0, 3.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One cause that can be injected.

    Attributes:
        cause: its id in the contract.
        inject: writes it into a day.
        needs: what the deployment must have for it (`deployment.draw`).
        shows: what it moves, the likeliest first: a metric, or `outcomes`.
        about: in a sentence.
    """

    cause: str
    inject: Inject
    needs: tuple[str, ...]
    shows: tuple[str, ...]
    about: str


_FAULTS: Final[dict[str, Fault]] = {}


def _fault(*shows: str, needs: tuple[str, ...] = ()) -> Callable[[Inject], Inject]:
    def keep(inject: Inject) -> Inject:
        cause = inject.__name__
        about = (inject.__doc__ or "").strip().splitlines()[0]
        _FAULTS[cause] = Fault(cause, inject, needs, shows, about)
        return inject

    return keep


def _scale(severity: float, mild: float, medium: float, severe: float) -> float:
    """Interpolate between the figures for severities 1, 2 and 3."""
    return float(np.interp(severity, (1.0, 2.0, 3.0), (mild, medium, severe)))


def _chance(day: Day, share: float) -> bool:
    return bool(day.rng.random() < share)


# --- engines ------------------------------------------------------------------------------------


@_fault("ttft")
def queue_saturation(day: Day, severity: float) -> None:
    """There are more requests than the batches have slots for.

    Or as many as before, and one replica fewer.
    """
    there = day.deployment
    wanted = _scale(severity, 0.97, 1.02, 1.08) * there.capacity
    gone = there.replicas - 1
    if gone and _chance(day, 0.35):
        day.change(Engine.ROUTABLE, 0, row=there.replicas - 1)
        day.happen("scale", f"scaled in from {there.replicas} to {gone} replicas")
        wanted *= gone / there.replicas
    day.volume = max(day.volume, wanted / there.rate)


@_fault("tpot", needs=("wide",))
def batch_size(day: Day, severity: float) -> None:
    """More traffic while batches have free slots: larger batches, slower steps, no queue."""
    there = day.deployment
    limit = there.replicas * there.cost.rate_limit(there.prompt_mean, there.output_mean)
    day.volume = max(day.volume, _scale(severity, 0.5, 0.56, 0.62) * limit / there.rate)


@_fault("ttft", "tpot", "e2e")
def kv_exhaustion(day: Day, severity: float) -> None:
    """The KV cache has fewer blocks than the running sequences need."""
    there = day.deployment
    batch = there.cost.batch(there.rate / there.replicas, there.prompt_mean, there.output_mean)
    held = batch * there.held_mean / BLOCK
    blocks = max(200, round(held * _scale(severity, 1.15, 1.0, 0.87)))
    day.change(Engine.BLOCKS, blocks)
    day.known["kv_cache_tokens"] = blocks * BLOCK
    if _chance(day, 0.6):
        day.happen("deploy", "rolled out a larger draft of the serving image")


@_fault("ttft", needs=("prefixes",))
def prefix_cache_collapse(day: Day, severity: float) -> None:
    """Prompts stop sharing a prefix, or the cache is switched off."""
    if _chance(day, 0.35) and severity >= 1.5:  # noqa: PLR2004
        day.change(Engine.PREFIX_CACHING, 0)
        day.known["prefix_caching"] = False
        day.happen("config", "engine arguments changed: --no-enable-prefix-caching")
        return
    share = _scale(severity, 0.5, 0.75, 1.0)

    def edit(w: Arrays, after: _Mask, rng: np.random.Generator) -> None:
        hit = after & (rng.random(len(after)) < share)
        w["group"] = np.where(hit, -1, w["group"])

    day.edits.append(edit)
    if _chance(day, 0.6):
        day.happen("deploy", "new prompt template: the current time comes first")


@_fault("ttft", "tpot")
def cold_start(day: Day, severity: float) -> None:
    """Replicas restart, and are slow until warm: empty caches, kernels compiled on demand."""
    there = day.deployment
    warm_s = _scale(severity, 70.0, 100.0, 150.0)
    day.change(Engine.WARM_FACTOR, _scale(severity, 2.5, 3.5, 5.0), at=day.onset)
    day.change(Engine.WARM_S, warm_s, at=day.onset)
    day.change(Engine.COMPILE_S, _scale(severity, 0.4, 0.8, 1.5), at=day.onset)
    if _chance(day, 0.5):
        day.happen("deploy", "rolling restart with the new image")
        for r in range(there.replicas):
            at = day.onset + 5 + r * 1.3 * warm_s
            day.change(Engine.ROUTABLE, 0, row=r, at=at - 30)
            day.change(Engine.ALIVE, 0, row=r, at=at)
            day.change(Engine.ALIVE, 1, row=r, at=at + 1)
            day.change(Engine.ROUTABLE, 1, row=r, at=at + 1)
        return
    # The last replicas of the day were not there before.
    more = max(1, round(there.replicas * 0.5))
    day.deployment = replace(
        there,
        replicas=there.replicas + more,
        names=tuple(f"vllm-{k}" for k in range(there.replicas + more)),
    )
    day.volume = max(day.volume, 1.0 + 0.6 * more / there.replicas)
    day.happen("scale", f"scaled out from {there.replicas} to {there.replicas + more} replicas")
    for k in range(more):
        r = there.replicas + k
        at = day.onset + 5 + k * warm_s
        day.change(Engine.ALIVE, 0, row=r, at=0.0)
        day.change(Engine.ROUTABLE, 0, row=r, at=0.0)
        day.change(Engine.ALIVE, 1, row=r, at=at)
        day.change(Engine.ROUTABLE, 1, row=r, at=at)


@_fault("tpot", needs=("spec",))
def low_spec_acceptance(day: Day, severity: float) -> None:
    """The draft model guesses wrong: tokens are drafted and thrown away."""
    day.change(Engine.ACCEPTANCE, _scale(severity, 0.65, 0.4, 0.15))
    if _chance(day, 0.6):
        day.happen("deploy", "new fine-tune of the main model; the draft model stays")


@_fault("tpot", "ttft")
def gpu_throttle(day: Day, severity: float) -> None:
    """A GPU runs at a lower clock, for heat or power: every step takes longer."""
    slower = _scale(severity, 1.35, 1.8, 2.6)
    replicas = range(day.deployment.replicas)
    for r in replicas if _chance(day, 0.25) else [int(day.rng.integers(len(replicas)))]:
        day.change(Engine.SPEED, slower, row=r)
        day.change(Engine.CLOCK, min(1.0, 1.05 / slower), row=r)
        day.change(Engine.THROTTLED, 1, row=r)


@_fault("ttft", "tpot")
def frontend_cpu(day: Day, severity: float) -> None:
    """The API server's process spends too much CPU on every token and becomes the bottleneck."""
    there = day.deployment
    rate = there.rate * max(1.0, day.volume) / there.replicas
    work = there.cost
    usual = rate * (
        work.front_request_s
        + work.front_prompt_s * there.prompt_mean
        + work.front_token_s * there.output_mean
    )
    factor = _scale(severity, 0.84, 0.92, 0.98) / usual
    day.change(Engine.FRONT_REQUEST_S, work.front_request_s * factor)
    day.change(Engine.FRONT_PROMPT_S, work.front_prompt_s * factor)
    day.change(Engine.FRONT_TOKEN_S, work.front_token_s * factor)
    if _chance(day, 0.5):
        day.happen("deploy", "answers are checked against a JSON schema, with log probabilities")


@_fault("ttft", needs=("kv_transfer",))
def kv_transfer(day: Day, severity: float) -> None:
    """Fetching KV cache from other machines takes longer: requests wait, slots are free."""
    slower = _scale(severity, 6.0, 14.0, 35.0)
    day.change(Engine.KV_TOKEN_S, KV_TOKEN_S * slower)
    day.change(Engine.KV_BASE_S, KV_BASE_S * slower)


@_fault("ttft", needs=("adapters",))
def lora_slots(day: Day, severity: float) -> None:
    """More adapters are requested than fit into a batch: some models wait, others do not."""
    fits = round(_scale(severity, 6, 5, 4))
    day.change(Engine.MAX_LORAS, fits)
    if _chance(day, 0.6):
        day.happen("config", f"engine arguments changed: --max-loras {fits}")


@_fault("ttft", "tpot")
def replica_imbalance(day: Day, severity: float) -> None:
    """The gateways send most requests to one replica."""
    there = day.deployment
    # As a multiple of what one replica can take.
    aimed = _scale(severity, 0.9, 0.98, 1.06) * there.capacity / there.replicas
    share = float(np.clip(aimed / (there.rate * max(1.0, day.volume)), 0.3, 0.97))
    busy = int(day.rng.integers(there.replicas))
    day.change(Gateway.POLICY, Policy.WEIGHTED)
    for r in range(there.replicas):
        other = (1 - share) / max(1, there.replicas - 1)
        day.change(Engine.WEIGHT, share if r == busy else other, row=r)
    if _chance(day, 0.5):
        day.happen("config", "load balancer: session affinity switched on")


@_fault("tpot", "ttft", "e2e")
def engine_paused(day: Day, severity: float) -> None:
    """Engines pause repeatedly, as for an update of the weights."""
    long_s = _scale(severity, 3.0, 6.0, 11.0)
    every_s = 60.0
    asleep = 1.0 if _chance(day, 0.7) else 0.0
    day.change(Engine.ASLEEP, asleep)
    at = day.onset + 4 + float(day.rng.random()) * 10
    while at < day.end:
        day.change(Engine.PAUSED_UNTIL, at + long_s, at=at)
        at += every_s * float(day.rng.uniform(0.8, 1.2))


@_fault("outcomes", "ttft", "e2e")
def engine_down(day: Day, severity: float) -> None:
    """The process of a replica dies and is started again, once or in a loop."""
    r = int(day.rng.integers(day.deployment.replicas))
    times = round(_scale(severity, 1, 2, 4))
    noticed_s = 12.0  # until the gateways' health checks see it
    boot_s = 45.0
    at = day.onset + 8
    for _ in range(times):
        day.change(Engine.ALIVE, 0, row=r, at=at)
        day.change(Engine.ROUTABLE, 0, row=r, at=at + noticed_s)
        day.change(Engine.ALIVE, 1, row=r, at=at + boot_s)
        day.change(Engine.ROUTABLE, 1, row=r, at=at + boot_s + 3)
        at += max(boot_s + 30, (day.end - day.onset - 60) / times)


@_fault("outcomes", "e2e")
def midstream_errors(day: Day, severity: float) -> None:
    """Some responses fail midway.

    Half of the clients retry.
    """
    share = _scale(severity, 0.07, 0.12, 0.22)

    def edit(w: Arrays, after: _Mask, rng: np.random.Generator) -> None:
        hit = after & (rng.random(len(after)) < share)
        token = 1 + (rng.random(len(after)) * w["output"]).astype(np.int64)
        w["break_at"] = np.where(hit, token, w["break_at"])
        w["resume"] = np.where(hit & (rng.random(len(after)) < 0.5), 1, w["resume"])  # noqa: PLR2004

    day.edits.append(edit)


# --- what people ask ----------------------------------------------------------------------------


@_fault("ttft", "e2e")
def long_prompts(day: Day, severity: float) -> None:
    """Prompts become longer; nothing is broken.

    A tenant's, or everyone's.
    """
    factor = _scale(severity, 1.7, 2.4, 3.5)
    tenant = None if _chance(day, 0.5) else int(np.argmax(day.deployment.tenants))

    def edit(w: Arrays, after: _Mask, rng: np.random.Generator) -> None:
        hit = after if tenant is None else after & (w["tenant"] == tenant)
        own = (w["prompt"] - w["group_tokens"]) * factor * rng.lognormal(0, 0.1, len(after))
        w["prompt"] = np.where(hit, w["group_tokens"] + own.astype(np.int64), w["prompt"])

    day.edits.append(edit)
    keep_cool(day, prompt=factor if tenant is None else 1 + (factor - 1) * 0.4)


@_fault("e2e")
def longer_outputs(day: Day, severity: float) -> None:
    """Responses become longer; nothing is broken.

    A tenant's, or everyone's.
    """
    factor = _scale(severity, 1.5, 2.0, 2.7)
    tenant = None if _chance(day, 0.5) else int(np.argmax(day.deployment.tenants))

    def edit(w: Arrays, after: _Mask, rng: np.random.Generator) -> None:
        hit = after if tenant is None else after & (w["tenant"] == tenant)
        longer = w["output"] * factor * rng.lognormal(0, 0.1, len(after))
        w["output"] = np.where(hit, longer.astype(np.int64), w["output"])

    day.edits.append(edit)
    keep_cool(day, output=factor if tenant is None else 1 + (factor - 1) * 0.4)


def keep_cool(day: Day, *, prompt: float = 1.0, output: float = 1.0) -> None:
    """Run the day so cool that the longer texts do not fill the engines: they are all there is."""
    there = day.deployment
    after = there.cost.rate_limit(there.prompt_mean * prompt, there.output_mean * output)
    rate = min(there.rate, 0.5 * after * there.replicas)
    seats = there.max_seqs * max(1.0, output * prompt**0.5)
    day.deployment = replace(
        there, rate=rate, max_seqs=round(seats), blocks=round(there.blocks * prompt * output)
    )


@_fault("ttft", "tpot")
def head_of_line(day: Day, severity: float) -> None:
    """From time to time a huge prompt is computed in one step, and all requests behind it wait."""
    there = day.deployment
    stall_s = _scale(severity, 2.0, 3.5, 6.0)  # one of them
    busy = _scale(severity, 0.08, 0.12, 0.17)  # of an engine's time
    cost = there.cost
    a, b = cost.attention_s / 2, cost.prefill_token_s
    tokens = int((np.sqrt(b * b + 4 * a * stall_s) - b) / (2 * a))
    tokens = min(tokens, there.max_model_len - 2000)
    share = busy / (tokens * (b + a * tokens)) * there.replicas / there.rate
    whole = _chance(day, 0.5)  # the prompts have always been there, and chunking goes
    room = tokens + 4096
    day.deployment = there = replace(
        there, blocks=there.blocks + 2 * room // BLOCK, max_seqs=there.max_seqs + 8
    )

    def edit(w: Arrays, after: _Mask, rng: np.random.Generator) -> None:
        hit = (rng.random(len(after)) < share) & (after | whole)
        long = (tokens * rng.uniform(0.8, 1.2, len(after))).astype(np.int64)
        w["prompt"] = np.where(hit, long, w["prompt"])
        w["group"] = np.where(hit, -1, w["group"])

    day.edits.append(edit)
    if whole:
        day.change(Engine.CHUNKED, 0)
        day.change(Engine.MAX_TOKENS, there.max_model_len)
        day.known |= {"chunked_prefill": False, "max_num_batched_tokens": there.max_model_len}
        day.happen("config", "engine arguments changed: --no-enable-chunked-prefill")
        day.change(Engine.LONG_PREFILL, 512, at=0.0)
        day.change(Engine.LONG_PREFILL, 0)
    else:
        day.change(Engine.MAX_TOKENS, there.max_model_len, at=0.0)
        day.known["max_num_batched_tokens"] = there.max_model_len


@_fault("e2e", needs=("agents",))
def serial_tools(day: Day, severity: float) -> None:
    """Agents run tools in sequence that ran in parallel before."""
    day.serial_tools = True
    slower = _scale(severity, 3.0, 5.0, 8.0)
    day.deployment = replace(day.deployment, tool_s=day.deployment.tool_s * slower)
    if _chance(day, 0.6):
        day.happen("deploy", "agent framework updated")


# --- between client and engine ------------------------------------------------------------------


@_fault("ttft")
def network_path(day: Day, severity: float) -> None:
    """The network path from a region is longer, or connections are no longer kept alive."""
    there = day.deployment
    region = int(np.argmax([r.share for r in there.regions]))
    more_s = _scale(severity, 0.25, 0.45, 0.9)
    lost = _chance(day, 0.4)

    def edit(w: Arrays, after: _Mask, rng: np.random.Generator) -> None:
        hit = after & (w["region"] == region)
        if lost:  # every request opens a connection
            hit = after
            w["fresh"] = w["fresh"] | hit
            w["dns"] = np.where(hit & (w["dns"] == 0), 0.004, w["dns"])
        more = more_s / (3 if lost else 1) * rng.uniform(0.8, 1.3, len(after))
        w["rtt"] = np.where(hit, w["rtt"] + more, w["rtt"])
        w["connect"] = np.where(hit & w["fresh"], w["rtt"], w["connect"])
        w["tls"] = np.where(hit & w["fresh"], w["rtt"] + 0.002, w["tls"])

    day.edits.append(edit)


@_fault("ttft")
def gateway_overhead(day: Day, severity: float) -> None:
    """The gateway's own work for a request takes longer."""
    day.change(Gateway.SERVICE_S, _scale(severity, 0.25, 0.6, 1.5))
    day.change(Gateway.SIGMA, 0.5)
    if _chance(day, 0.5):
        day.happen("deploy", "gateway: a guardrail model looks at every prompt")


@_fault("ttft", "outcomes")
def rate_limit_retries(day: Day, severity: float) -> None:
    """Some requests hit a rate limit, and are retried.

    Those of a tenant, or of all.
    """
    there = day.deployment
    shares = np.array(there.tenants)
    tenant = int(np.argmax(shares)) if _chance(day, 0.6) else -1
    factor = _scale(severity, 0.97, 0.85, 0.7)
    for k, share in enumerate(shares / shares.sum()):
        if tenant in (-1, k):
            rate = max(0.05, there.rate * max(1.0, day.volume) * share * factor)
            day.change(Quota.RATE, rate, row=k)
            day.change(Quota.BURST, max(2.0, rate * 2), row=k)
    if _chance(day, 0.5):
        day.happen("config", "gateway: new rate limits")


@_fault("ttft", "tpot")
def proxy_buffering(day: Day, severity: float) -> None:
    """A proxy buffers chunks before it forwards them."""
    day.change(Gateway.BUFFER, _scale(severity, 12, 32, 120))
    if _chance(day, 0.5):
        day.happen("config", "proxy: gzip on for all text types")


@_fault("outcomes", needs=("silences",))
def idle_timeout(day: Day, severity: float) -> None:
    """A proxy cuts streams that are silent for some seconds."""
    day.change(Gateway.IDLE_S, round(_scale(severity, 12, 8, 5)))
    if _chance(day, 0.5):
        day.happen("config", "load balancer: idle timeout lowered")


# --- clients ------------------------------------------------------------------------------------


@_fault("tpot", "e2e")
def slow_renderer(day: Day, severity: float) -> None:
    """A client program takes longer to render a chunk than the next one takes to arrive."""
    there = day.deployment
    hold_s = _scale(severity, 2.2, 3.2, 5.0) * there.cost.base_s
    app = int(np.argmax([a.share for a in there.apps]))

    def edit(w: Arrays, after: _Mask, rng: np.random.Generator) -> None:
        hit = after & (w["app"] == app)
        w["hold"] = np.where(hit, hold_s * rng.lognormal(0, 0.2, len(after)), w["hold"])

    day.edits.append(edit)
    if _chance(day, 0.5):
        day.happen("deploy", f"{there.apps[app].name}: Markdown is drawn anew for every token")


@_fault("ttft")
def client_gate(day: Day, severity: float) -> None:
    """A client program's connection pool is too small for its requests."""
    there = day.deployment
    app = int(np.argmax([a.share for a in there.apps]))
    seconds = there.output_mean * there.cost.base_s * 1.6 + 0.5  # of a request, about
    shares = sum(a.share for a in there.apps)
    for k, region in enumerate(there.regions):
        rate = there.rate * region.share * there.apps[app].share / shares
        wanted = rate * max(1.0, day.volume) * seconds
        size = max(1, round(wanted * _scale(severity, 1.05, 0.95, 0.85)))
        day.change(Pool.SIZE, size, row=app * len(there.regions) + k)
    if _chance(day, 0.5):
        day.happen("deploy", f"{there.apps[app].name}: smaller connection pool")


@_fault("outcomes")
def client_give_ups(day: Day, severity: float) -> None:
    """Users cancel sooner while they wait for the first token."""
    share = _scale(severity, 0.6, 0.8, 1.0)

    def edit(w: Arrays, after: _Mask, rng: np.random.Generator) -> None:
        hit = after & (rng.random(len(after)) < share)
        soon = rng.lognormal(np.log(0.3), 0.6, len(after))
        w["patience"] = np.where(hit, soon, w["patience"])

    day.edits.append(edit)


KV_BASE_S: Final = 0.008  # fetching KV cache on a good day
KV_TOKEN_S: Final = 12e-6

FAULTS: Final[Mapping[str, Fault]] = _FAULTS


def find(cause: str) -> Fault:
    """Return the fault of a cause.

    Raises:
        ConfigError: there is none of this name.
    """
    if cause not in FAULTS:
        raise ConfigError(f"no fault {cause!r}; known: {', '.join(sorted(FAULTS))}")
    return FAULTS[cause]
