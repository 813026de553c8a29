"""The faults of `other_fleet`: what is turned, by how much, and who would be right to name it.

Each takes a world, a grade from 0 (mild) to 1 (severe) and luck, and returns a `Change`: what is
done when it begins and when it ends. `NEEDS` says what a world must have for the fault to be
possible, and for its cause to be seen by anybody at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.bench.other_fleet import Fleet, World


def _nothing(_: Fleet) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is done to a fleet.

    Attributes:
        event: kind and text, where it was done by hand and is on record.
        accept: other causes that a person may name with as much right.
        shift: whether it is the work that changed, and no part of the system.
    """

    what: str
    begin: Callable[[Fleet], None]
    finish: Callable[[Fleet], None] = _nothing
    event: tuple[str, str] | None = None
    accept: tuple[str, ...] = ()
    shift: bool = False


Fault = Callable[["World", float, Random], Change]


def _between(grade: float, mild: float, severe: float) -> float:
    """Return what lies at a grade, on a scale of factors."""
    return math.exp(math.log(mild) + grade * (math.log(severe) - math.log(mild)))


def _turn(name: str, value: Any, what: str, **more: Any) -> Change:
    """Set one knob, and put it back."""
    kept: list[Any] = []

    def begin(fleet: Fleet) -> None:
        kept.append(getattr(fleet.knobs, name))
        setattr(fleet.knobs, name, value)

    def finish(fleet: Fleet) -> None:
        setattr(fleet.knobs, name, kept[-1])

    return Change(what=what, begin=begin, finish=finish, **more)


def _engines(name: str, change: Callable[[float], float], what: str, **more: Any) -> Change:
    """Set one figure of every engine's setup, as starting it again with another flag does."""
    kept: dict[str, Any] = {}

    def begin(fleet: Fleet) -> None:
        for engine in fleet.real:
            kept[engine.name] = getattr(engine.setup, name)
            setattr(engine.setup, name, change(kept[engine.name]))
            engine.touch()

    def finish(fleet: Fleet) -> None:
        for engine in fleet.real:
            setattr(engine.setup, name, kept.get(engine.name, getattr(engine.setup, name)))
            engine.touch()

    return Change(what=what, begin=begin, finish=finish, **more)


def queue_saturation(world: World, grade: float, draw: Random) -> Change:
    """Fewer seats than requests."""

    def begin(fleet: Fleet) -> None:
        for engine in fleet.real:
            running = engine.tally["itl_sum"] / max(1.0, fleet.loop.now + 0.06 * world.seconds)
            engine.setup.seats = max(1, math.floor(running * _between(grade, 1.1, 0.8)))
            engine.touch()

    def finish(fleet: Fleet) -> None:
        for engine in fleet.real:
            engine.setup.seats = world.setup.seats
            engine.touch()

    text = "engines: lower --max-num-seqs"
    return Change(what=text, begin=begin, finish=finish, event=("config", text))


def more_requests(world: World, grade: float, draw: Random) -> Change:
    """More requests; whether they queue, make the batch larger or do neither is for the world."""
    factor = _between(grade, 2.0, 4.0)
    return _turn("rate", factor, f"{factor:.1f} times as many requests")


def kv_exhaustion(world: World, grade: float, draw: Random) -> Change:
    """A cache that holds less than what runs."""

    def begin(fleet: Fleet) -> None:
        for engine in fleet.real:
            running = engine.tally["itl_sum"] / max(1.0, fleet.loop.now + 0.06 * world.seconds)
            each = [j.prompt + j.got for j in engine.running] or [2000.0]
            wanted = max(1.5, running) * sum(each) / len(each) * _between(grade, 1.0, 0.5)
            engine.setup.kv_tokens = max(1.3 * max(each), wanted)
            engine.touch()

    def finish(fleet: Fleet) -> None:
        for engine in fleet.real:
            engine.setup.kv_tokens = world.setup.kv_tokens
            engine.touch()

    text = "engines: another process takes GPU memory, the KV cache is smaller"
    return Change(what=text, begin=begin, finish=finish, event=("config", "sidecar on GPU nodes"))


def long_prompts(world: World, grade: float, draw: Random) -> Change:
    """Longer prompts, of everybody."""
    factor = _between(grade, 1.7, 4.5)
    return _turn("prompts", factor, f"prompts {factor:.1f} times as long", shift=True)


def longer_outputs(world: World, grade: float, draw: Random) -> Change:
    """Longer answers, of everybody."""
    factor = _between(grade, 1.5, 3.0)
    return _turn(
        "outs", factor, f"answers {factor:.1f} times as long", shift=True, accept=("batch_size",)
    )


def head_of_line(world: World, grade: float, draw: Random) -> Change:
    """A few prompts that are computed whole, and are very long."""
    share, long = draw.uniform(0.01, 0.04), int(_between(grade, 12_000, 45_000))
    what = f"{share:.1%} of prompts have {long} tokens more, and are computed whole"
    return _turn("monsters", (share, long), what, accept=("long_prompts",))


def prefix_cache_collapse(world: World, grade: float, draw: Random) -> Change:
    """A time stamp before what prompts share."""
    share = _between(grade, 0.5, 1.0)
    what = f"{share:.0%} of prompts begin with the time"
    return _turn("salted", share, what, event=("deploy", "prompt template 41"))


def cold_start(world: World, grade: float, draw: Random) -> Change:
    """A replica that is in the router before it is warm."""
    worse, fades = _between(grade, 4, 20), world.seconds * draw.uniform(0.02, 0.05)

    def begin(fleet: Fleet) -> None:
        engine = fleet.add()
        engine.start(worse, fades)
        engine.pause()
        engine.frozen = True
        fleet.loop.at(fleet.loop.now + world.loads_s * (0.2 + 0.8 * grade), engine.resume)
        fleet.scraper.watch(engine)

    return Change(
        what="a replica is added and sent requests while it loads and compiles",
        begin=begin, event=("scale", "one replica more"),
    )  # fmt: skip


def network_path(world: World, grade: float, draw: Random) -> Change:
    """A longer way from one region, or no connection used twice."""
    region = max(world.regions, key=lambda name: world.regions[name])
    if draw.random() < 0.35:
        return _turn("reconnect", 1.0, "no connection is used twice", accept=("client_cold",))
    factor = _between(grade, 4, 25)
    what = f"round trips from {region} take {factor:.0f} times as long"
    return _turn("rtt", {region: factor}, what)


def gateway_overhead(world: World, grade: float, draw: Random) -> Change:
    """A guardrail in the gateway that takes its time."""
    seconds = _between(grade, 0.25, 2.0)
    what = f"a guardrail in the gateway takes {seconds * 1000:.0f} ms"
    return _turn("guard", seconds, what, event=("config", "gateway: guardrail on"))


def rate_limit_retries(world: World, grade: float, draw: Random) -> Change:
    """A limit below what a tenant, or everybody together, asks for."""
    share = _between(grade, 0.85, 0.4)
    if len(world.tenants) > 1 and draw.random() < 0.5:
        name = next(iter(world.tenants))
        part = world.tenants[name] / sum(world.tenants.values())
        limits = {name: share * part * world.rate}
        what = f"{name} is refused beyond {limits[name]:.2f} requests a second"
    else:
        total = sum(world.tenants.values())
        limits = {name: share * world.rate * w / total for name, w in world.tenants.items()}
        what = f"all tenants are refused beyond {share:.0%} of what they ask for"
    return _turn("limits", limits, what)


def proxy_buffering(world: World, grade: float, draw: Random) -> Change:
    """A proxy that passes on so many tokens at a time."""
    tokens = int(_between(grade, 40, 2000))
    return _turn(
        "flush", tokens, f"a proxy gathers {tokens} tokens", event=("config", "proxy: gzip on")
    )


def low_spec_acceptance(world: World, grade: float, draw: Random) -> Change:
    """Text that the drafter does not know."""
    rate = _between(grade, 0.45, 0.12)

    def begin(fleet: Fleet) -> None:
        for engine in fleet.real:
            engine.touch()
            engine.accept_rate = rate

    def finish(fleet: Fleet) -> None:
        for engine in fleet.real:
            engine.touch()
            engine.accept_rate = 0.75

    return Change(what=f"drafts are taken with chance {rate:.2f}", begin=begin, finish=finish)


def gpu_throttle(world: World, grade: float, draw: Random) -> Change:
    """A GPU whose clock is held down."""
    slow = _between(grade, 1.5, 3.0)

    def begin(fleet: Fleet) -> None:
        fleet.real[0].touch()
        fleet.real[0].slow = slow

    def finish(fleet: Fleet) -> None:
        fleet.real[0].touch()
        fleet.real[0].slow = 1.0

    return Change(what=f"one GPU runs at 1/{slow:.1f} of its clock", begin=begin, finish=finish)


def slow_renderer(world: World, grade: float, draw: Random) -> Change:
    """A client that paints each chunk for longer."""
    seconds = _between(grade, 0.03, 0.2)
    what = f"each chunk is painted for {seconds * 1000:.0f} ms"
    return _turn("render_s", seconds, what, event=("deploy", "web client 5.2"))


def serial_tools(world: World, grade: float, draw: Random) -> Change:
    """Tools that take turns."""
    return _turn("serial", 1.0, "tools run one after another", event=("deploy", "agent 2.1"))


def idle_timeout(world: World, grade: float, draw: Random) -> Change:
    """A hop that closes what is silent for so long."""
    pause = world.routes[0].pause
    limit = min(
        [5.0, 10.0, 15.0, 30.0, 60.0], key=lambda t: abs(t - pause * _between(grade, 2.4, 0.9))
    )
    what = f"a proxy closes streams that are silent for {limit:.0f} s"
    return _turn("idle_s", limit, what, event=("config", "load balancer: idle time-out"))


def midstream_errors(world: World, grade: float, draw: Random) -> Change:
    """Streams that break somewhere."""
    share = _between(grade, 0.04, 0.35)
    return _turn("breaks", share, f"{share:.0%} of streams break")


def client_gate(world: World, grade: float, draw: Random) -> Change:
    """Fewer connections than requests at a time."""
    kept: list[float] = []

    def begin(fleet: Fleet) -> None:
        for pool in fleet.path.pools:
            kept.append(pool.size)
            recent = [c for c in fleet.calls[-400:] if c.end is not None]
            seconds = sum((c.end or 0) - c.t for c in recent) / max(1, len(recent))
            mean = seconds * world.rate / world.processes
            pool.size = max(1, math.floor(mean * _between(grade, 1.25, 0.85)))

    def finish(fleet: Fleet) -> None:
        for pool, size in zip(fleet.path.pools, kept, strict=True):
            pool.size = size
            pool.serve()

    return Change(
        what="clients may have fewer connections than they need", begin=begin, finish=finish,
        event=("deploy", "client library: smaller pool"),
    )  # fmt: skip


def frontend_cpu(world: World, grade: float, draw: Random) -> Change:
    """The engines' HTTP servers work longer on every request."""
    out = sum(r.out * 1.25 for r in world.routes) / len(world.routes)
    own = sum(r.own * 1.25 + r.system for r in world.routes) / len(world.routes)
    work = world.frontend_s + 2e-7 * own + world.frontend_token_s * out
    factor = _between(grade, 0.75, 0.98) * world.replicas / (world.rate * work)
    return _turn("frontend", max(5.0, factor), "logprobs for all: the front end works longer")


def kv_transfer(world: World, grade: float, draw: Random) -> Change:
    """A slow link to the tier that has the KV blocks."""
    factor = _between(grade, 6, 30)
    return _engines(
        "external", lambda was: was * factor, f"KV blocks come {factor:.0f} times as slowly"
    )


def lora_slots(world: World, grade: float, draw: Random) -> Change:
    """More adapters in demand than fit at once."""
    adapters = world.setup.loras + round(_between(grade, 2, 10))
    what = f"{adapters} adapters are asked for, {world.setup.loras} fit at once"
    return _turn("adapters", adapters, what)


def replica_imbalance(world: World, grade: float, draw: Random) -> Change:
    """A router with a favourite."""
    share = _between(grade, 0.5, 0.95)
    what = f"{share:.0%} of requests go to one of {world.replicas} replicas beside its share"
    return _turn("skew", share, what, event=("config", "router: sticky sessions"))


def engine_paused(world: World, grade: float, draw: Random) -> Change:
    """An engine that stands still now and then."""
    long = _between(grade, 4, 40) * draw.uniform(0.8, 1.2)
    every, asleep = long * draw.uniform(3, 6), draw.random() < 0.5
    on: list[bool] = []

    def stop(fleet: Fleet) -> None:
        if on:
            for engine in fleet.real:
                engine.frozen = not asleep
                engine.pause()
                fleet.loop.at(fleet.loop.now + long, engine.resume)
            fleet.loop.at(fleet.loop.now + every, stop, fleet)

    def begin(fleet: Fleet) -> None:
        on.append(True)
        stop(fleet)

    how = "sleeps" if asleep else "is frozen"
    return Change(
        what=f"each engine {how} for {long:.0f} s every {every:.0f} s", begin=begin,
        finish=lambda _: on.clear(),
    )  # fmt: skip


def engine_down(world: World, grade: float, draw: Random) -> Change:
    """A process that dies and is started again, more than once if it is severe."""
    away, notice = world.loads_s, draw.uniform(5, 20)
    on: list[bool] = []

    def die(fleet: Fleet) -> None:
        engine = fleet.real[0]
        if not on or not engine.alive:
            return
        engine.kill()
        fleet.loop.at(fleet.loop.now + notice, unlist, fleet)
        fleet.loop.at(fleet.loop.now + away, rise, fleet)
        fleet.loop.at(fleet.loop.now + away * (4 - 2 * grade), die, fleet)

    def unlist(fleet: Fleet) -> None:
        if not fleet.real[0].alive:
            fleet.path.listed = [e for e in fleet.path.engines if e is not fleet.real[0]]

    def rise(fleet: Fleet) -> None:
        fleet.real[0].start(1.0, 10.0)
        fleet.path.listed = [*fleet.path.engines]

    def begin(fleet: Fleet) -> None:
        on.append(True)
        die(fleet)

    return Change(
        what=f"an engine's process dies again and again, and is back after {away:.0f} s",
        begin=begin, finish=lambda _: on.clear(),
    )  # fmt: skip


def client_give_ups(world: World, grade: float, draw: Random) -> Change:
    """Clients that leave where they used to wait."""
    kept: list[float] = []

    def begin(fleet: Fleet) -> None:
        waits = sorted(
            c.job.first - c.t for c in fleet.calls[-600:] if c.job and c.job.first is not None
        )
        wanted = waits[int((0.9 - 0.5 * grade) * (len(waits) - 1))] if waits else 1.0
        kept.append(fleet.knobs.patience)
        fleet.knobs.patience = wanted / world.patience

    def finish(fleet: Fleet) -> None:
        fleet.knobs.patience = kept[-1]

    return Change(
        what="clients leave without a first chunk far sooner", begin=begin, finish=finish,
        event=("deploy", "client: shorter deadline"),
    )  # fmt: skip


def response_cache_misses(world: World, grade: float, draw: Random) -> Change:
    """A response cache whose keys changed."""
    share = world.response_cache * _between(grade, 0.4, 0.02)
    what = f"the response cache answers {share:.0%} and no more {world.response_cache:.0%}"
    return _turn("hit_share", share, what, event=("deploy", "cache namespace 8"))


def streaming_off(world: World, grade: float, draw: Random) -> Change:
    """Answers that come whole."""
    share = _between(grade, 0.3, 1.0)
    return _turn(
        "unary", share, f"{share:.0%} of requests do not stream", event=("deploy", "3.9.0")
    )


def grammar_compilation(world: World, grade: float, draw: Random) -> Change:
    """A schema of its own in each request, so that each is compiled."""
    seconds = _between(grade, 0.4, 2.5)
    kept: list[tuple[int, float]] = []

    def begin(fleet: Fleet) -> None:
        kept.append((fleet.knobs.schemas, fleet.knobs.compile_s))
        busy = world.rate * world.routes[0].structured / world.replicas
        fleet.knobs.schemas, fleet.knobs.compile_s = 10**9, min(seconds, 0.8 / busy)

    def finish(fleet: Fleet) -> None:
        fleet.knobs.schemas, fleet.knobs.compile_s = kept[-1]

    return Change(
        what="each structured request has a schema of its own", begin=begin, finish=finish
    )


def busy_client(world: World, grade: float, draw: Random) -> Change:
    """An event loop that does other work in between."""
    share, long = draw.uniform(0.4, 0.75), _between(grade, 0.2, 1.5)
    what = f"the event loop is blocked for {long * 1000:.0f} ms, {share:.0%} of the time"
    return _turn("blocks", (share, long), what, event=("deploy", "3.8.1"))


def client_cold(world: World, grade: float, draw: Random) -> Change:
    """Processes of the client that start all the time."""
    share, seconds = _between(grade, 0.12, 0.6), _between(grade, 1.0, 6.0)
    kept: list[str] = []

    def begin(fleet: Fleet) -> None:
        kept.append(fleet.knobs.version)
        fleet.knobs.cold, fleet.knobs.version = (share, seconds), "3.9.0"

    def finish(fleet: Fleet) -> None:
        fleet.knobs.cold, fleet.knobs.version = (0.0, 0.0), kept[-1]

    return Change(
        what=f"{share:.0%} of requests are the first of a process, which takes {seconds:.1f} s",
        begin=begin, finish=finish, event=("deploy", "3.9.0 on functions that scale to zero"),
    )  # fmt: skip


def disaggregated_kv(world: World, grade: float, draw: Random) -> Change:
    """A slow link between the engines for prompts and those for answers."""
    factor = _between(grade, 6, 30)
    what = f"KV blocks take {factor:.0f} times as long to the engine that decodes"
    return _engines("apart", lambda was: was * factor, what, accept=("kv_transfer",))


def traffic_lost(world: World, grade: float, draw: Random) -> Change:
    """Requests that are not sent any more."""
    factor = _between(grade, 0.45, 0.05)
    return _turn("rate", factor, f"{factor:.0%} of the requests come")


def other_routes(world: World, grade: float, draw: Random) -> Change:
    """Another mix of the same requests."""
    heavy = max(world.routes, key=lambda r: r.own + r.system)
    factor = _between(grade, 3, 12)
    what = f"{factor:.0f} times as large a share of {heavy.name}"
    return _turn(
        "shares", {heavy.name: factor}, what, shift=True, accept=("long_prompts", "longer_outputs")
    )


def one_tenant(world: World, grade: float, draw: Random) -> Change:
    """A tenant that sends more, and longer prompts."""
    name = draw.choice(list(world.tenants))
    factor, longer = _between(grade, 2, 6), _between(grade, 2, 4)
    what = f"{name} sends {factor:.0f} times its share, {longer:.1f} times as long"
    shares = {name: factor, f"{name} prompts": longer}
    return _turn("shares", shares, what, shift=True, accept=("long_prompts",))


def plain(world: World, grade: float, draw: Random) -> Change:
    """Nothing."""
    return Change(what="nothing", begin=_nothing)


def deploy(world: World, grade: float, draw: Random) -> Change:
    """A deploy that changes nothing."""
    return _turn("version", "3.8.1", "a deploy that changes nothing", event=("deploy", "3.8.1"))


FAULTS: Final[Mapping[str, Fault]] = {
    rule.__name__: rule
    for rule in (
        queue_saturation, more_requests, kv_exhaustion, head_of_line, prefix_cache_collapse,
        cold_start,
        network_path, gateway_overhead, rate_limit_retries, proxy_buffering, low_spec_acceptance,
        gpu_throttle, slow_renderer, serial_tools, idle_timeout, midstream_errors,
        client_gate, frontend_cpu, kv_transfer, lora_slots, replica_imbalance, engine_paused,
        engine_down, client_give_ups, response_cache_misses, streaming_off, grammar_compilation,
        busy_client, client_cold, disaggregated_kv, traffic_lost,
    )
}  # fmt: skip
SHIFTS: Final[Mapping[str, Fault]] = {
    rule.__name__: rule for rule in (long_prompts, longer_outputs, other_routes, one_tenant)
}
QUIET: Final[Mapping[str, Fault]] = {rule.__name__: rule for rule in (plain, deploy)}

_OWN: Final = ("vllm", "vllm", "sglang", "tgi")
_TWO: Final = ("vllm", "vllm", "sglang")
_ENGINE: Final = {"style": _OWN, "seen": {"signals": True}}
# What a world must have. Seen: without which the cause cannot be known.
NEEDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "queue_saturation": _ENGINE | {"seats": 8, "load": (0.45, 0.7)},
    "kv_exhaustion": {"style": _TWO, "seen": {"signals": True}, "load": (0.35, 0.7)},
    "head_of_line": {"style": _TWO, "chunked": False, "seen": {"signals": True}},
    "prefix_cache_collapse": {
        "style": _TWO, "prefixes": True, "system": 4.0, "seen": {"signals": True, "cached": True},
    },
    "cold_start": _ENGINE | {"seen": {"signals": True, "replica": True}},
    "network_path": {"seen": {"phases": True}},
    "gateway_overhead": {"gateway": "envoy", "seen": {"gateway": True}},
    "rate_limit_retries": {"gateway": "envoy"},
    "proxy_buffering": {"render": 0.0},
    "low_spec_acceptance": {"style": ("vllm",), "drafts": 3, "seen": {"signals": True}},
    "gpu_throttle": _ENGINE | {"seen": {"signals": True, "gpus": True, "replica": True}},
    "serial_tools": {"agents": True},
    "idle_timeout": {"pause": 6.0},
    "frontend_cpu": {"style": ("vllm",), "seen": {"signals": True, "figures": True}},
    "kv_transfer": {
        "style": ("vllm",), "external": 3e-6, "connector": "LMCacheConnectorV1",
        "seen": {"signals": True, "figures": True, "connector": True},
    },
    "lora_slots": {"style": ("vllm",), "loras": 3, "seats": 16, "load": (0.3, 0.6),
                   "seen": {"signals": True, "figures": True}},
    "replica_imbalance": _ENGINE | {"replicas": 2, "load": (0.4, 0.65), "seats": 8,
                                    "seen": {"signals": True, "replica": True}},
    "engine_paused": _ENGINE,
    "engine_down": _ENGINE | {"seen": {"signals": True, "replica": True}},
    "response_cache_misses": {"cache": 0.75, "gateway": "litellm"},
    "grammar_compilation": {"style": ("sglang",), "structured": 0.4,
                            "seen": {"signals": True, "figures": True}},
    "busy_client": {"seen": {"kernel": True}},
    "client_cold": {"seen": {"phases": True, "events": True}},
    "disaggregated_kv": {"style": ("vllm",), "apart": 1e-5, "connector": "NixlConnector",
                         "seen": {"signals": True, "figures": True, "connector": True}},
}  # fmt: skip
