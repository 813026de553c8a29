"""Incidents of another hand: a second fleet, with laws, faults and blind spots of its own.

A world is drawn (an engine or a hosted API, its clients, what of it is recorded) and set to work;
`other_faults` breaks it by turning a mechanism, never a number in a row, and `other_cases` makes
cases of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from llmtrace.dataset.case import Event
from tests.bench.other_engine import Engine, Law, Loop, Setup
from tests.bench.other_path import Call, Knobs, Path, Provider, Route
from tests.bench.other_rows import EPOCH, Scraper, Seen

MOST_CALLS: Final = 5_000
_WARM: Final = 0.06  # of the time, before the recording begins


@dataclass(slots=True, kw_only=True)
class World:
    """What is drawn once: the machines, the people, and what is recorded of them."""

    style: str
    service: str
    server: str
    seconds: float
    rate: float
    routes: list[Route]
    tenants: dict[str, float]
    regions: dict[str, float]
    processes: int
    pool: float
    law: Law
    setup: Setup
    replicas: int
    gateway: str
    gateway_s: float
    gateway_workers: int
    tries: int
    router: str
    frontend_s: float
    frontend_token_s: float
    provider_pace: float
    provider_chunk: int
    response_cache: float
    loads_s: float
    agents: bool
    adapters: bool
    daily: float
    bursts: float
    patience: float
    leaves: str
    connector: str | None
    throttle_told: bool
    unary: float
    render_s: float
    seen: Seen


def _spread(draw: Random, low: float, high: float) -> float:
    """Draw evenly on a scale of factors."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def _routes(draw: Random) -> list[Route]:
    kinds = [
        ("chat", 600, 350, 180, 0.7, 5.0),
        ("search", 1500, 1800, 220, 0.6, 0.0),
        ("summary", 250, 3500, 260, 0.5, 0.0),
        ("extract", 900, 700, 60, 0.5, 0.0),
        ("complete", 80, 900, 24, 0.8, 0.0),
    ]
    models = draw.sample(["atlas-8b", "atlas-70b", "kite-32b"], 1)
    return [
        Route(
            name=name, model=models[0], system=int(system * _spread(draw, 0.4, 2.5)),
            own=own * _spread(draw, 0.4, 2.0), out=out * _spread(draw, 0.5, 2.0),
            spread=spread * draw.uniform(0.7, 1.3), turns=turns,
        )
        for name, system, own, out, spread, turns in draw.sample(kinds, draw.randint(1, 4))
    ]  # fmt: skip


def _seen(draw: Random, style: str) -> Seen:
    def likely(share: float) -> bool:
        return draw.random() < share

    hosted = style == "hosted"
    return Seen(
        figures=not hosted and style != "tgi" and likely(0.65),
        gateway=likely(0.5), kernel=likely(0.5), phases=likely(0.7),
        replica=not hosted and likely(0.8), tenant=likely(0.7), route=likely(0.8),
        region=likely(0.7), cached=not hosted and likely(0.7), drafts=likely(0.5),
        preemptions=style == "vllm" and likely(0.3), version=likely(0.7),
        connector=likely(0.6), signals=not hosted and likely(0.9),
        gpus=not hosted and likely(0.5), events=likely(0.75),
        interval=draw.choice([5.0, 10.0, 15.0, 15.0, 30.0, 60.0]),
    )  # fmt: skip


def _span(draw: Random) -> tuple[float, float]:
    """Draw how long it is recorded, and how many requests come a second."""
    while True:
        seconds, rate = _spread(draw, 1200, 21_600), _spread(draw, 0.2, 30)
        if 400 <= seconds * rate <= MOST_CALLS:
            return seconds, rate


def draw_world(draw: Random, needs: Mapping[str, Any]) -> World:
    """Draw a world; `needs` says what must be so for a fault to be possible and to be seen."""
    style = draw.choice(needs.get("style", ("vllm", "vllm", "sglang", "tgi", "hosted")))
    seconds, rate = _span(draw)
    seen = replace(_seen(draw, style), **needs.get("seen", {}))
    size = _spread(draw, 0.3, 3.0)
    law = Law(
        base=0.011 * size, sequence=0.00022 * size * draw.uniform(0.5, 2),
        prompt_token=0.00009 * size * _spread(draw, 0.4, 2.5), context_token=4e-9 * size,
    )  # fmt: skip
    seats = needs.get("seats") or draw.choice([8, 16, 32, 64, 128])
    setup = Setup(
        seats=seats, budget=draw.choice([1024, 2048, 4096, 8192]), kv_tokens=0.0,
        chunked=needs.get("chunked", draw.random() < 0.75), loras=needs.get("loras", 0),
        prefix_caching=needs.get("prefixes", draw.random() < 0.85),
        drafts=needs.get("drafts", draw.choice([0, 0, 0, 3])), external=needs.get("external"),
        apart=needs.get("apart"), late=style == "vllm",
    )  # fmt: skip
    regions = dict(draw.sample([("eu", 0.012), ("us", 0.045), ("asia", 0.11)], draw.randint(1, 3)))
    names = [f"tenant-{letter}" for letter in "abcdefgh"[: draw.randint(1, 8)]]
    world = World(
        style=style, service=draw.choice(["shop", "desk", "notes"]), server="llm.internal:443",
        seconds=seconds, rate=rate, routes=_routes(draw),
        tenants={name: 1 / (i + 1) for i, name in enumerate(names)}, regions=regions,
        processes=draw.randint(1, 4), pool=math.inf, law=law, setup=setup,
        replicas=max(needs.get("replicas", 1), draw.randint(1, 4)),
        gateway=needs.get("gateway", draw.choice(["", "envoy", "litellm"])),
        gateway_s=_spread(draw, 0.001, 0.02), gateway_workers=64, tries=draw.choice([3, 3, 4]),
        router=draw.choice(["turns", "load", "affinity"]),
        frontend_s=0.0015, frontend_token_s=2e-5,
        provider_pace=_spread(draw, 0.5, 2.0), provider_chunk=draw.choice([1, 2, 4]),
        response_cache=needs.get("cache", 0.0), loads_s=_spread(draw, 20, 120),
        agents=needs.get("agents", False), adapters=bool(needs.get("loras")),
        daily=draw.choice([0.0, 0.0, 0.3, 0.6]), bursts=draw.choice([0.0, 0.0, 0.3, 0.6]),
        patience=_spread(draw, 60, 300), leaves=draw.choice(["cancelled", "cancelled", "timeout"]),
        connector=needs.get("connector"), throttle_told=draw.random() < 0.5,
        unary=draw.choice([0.0, 0.0, 0.1]),
        render_s=needs.get("render", draw.choice([0.0, 0.0, 0.002, 0.006])),
        seen=seen,
    )  # fmt: skip
    for route in world.routes:
        route.system = int(route.system * needs.get("system", 1.0))
        route.structured = needs.get("structured", 0.0)
        route.pause = needs.get("pause", 0.0)
    _fit(world, draw, needs.get("load", (0.1, 0.45)))
    return world


def _fit(world: World, draw: Random, load: tuple[float, float]) -> None:
    """Choose speed, replicas and cache so that the engines are as busy as they are to be."""
    prompt = sum(0.4 * r.system + r.own * 1.25 for r in world.routes) / len(world.routes)
    out = sum(r.out * 1.25 for r in world.routes) / len(world.routes)
    law, setup, wanted = world.law, world.setup, draw.uniform(*load)
    batch = max(1.0, wanted * setup.seats)
    step = law.base + law.sequence * batch
    request = out * step / batch + prompt * law.prompt_token
    busy = world.rate * request / world.replicas
    faster = min(max(wanted / busy if busy else 1.0, 0.15), 6.0)
    for name in ("base", "sequence", "prompt_token", "context_token"):
        setattr(law, name, getattr(law, name) * faster)
    whole = prompt + out / 2 + max(r.system for r in world.routes)
    setup.kv_tokens = max(60_000.0, 3.0 * whole * min(setup.seats, 4 * batch))


class Fleet:
    """A world at work: it makes its own traffic, and lets things be done to it."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.seed = world, seed
        self.loop, self.knobs = Loop(-_WARM * world.seconds), Knobs()
        self.knobs.rtt, self.knobs.hit_share = {}, world.response_cache
        self.knobs.unary, self.knobs.render_s = world.unary, world.render_s
        self.traffic, self.luck = Random(f"{seed} traffic"), Random(f"{seed} luck")
        self.path = Path(self.loop, self.luck, self.knobs, world)
        for _ in range(world.replicas):
            self.add()
        self.scraper = Scraper(self.path, world.seen, Random(f"{seed} pages"), world.seconds)
        self.calls: list[Call] = []
        self.turns: list[tuple[Call, Call | None, tuple[float, float, float, int]]] = []
        self.events: list[Event] = []
        self.schemas = 0
        self.facts: dict[str, dict[str, Any]] = {}
        self._sessions: dict[str, int] = {}
        self._burst = 1.0

    def add(self) -> Engine | Provider:
        """Add a replica, or the provider."""
        world, number = self.world, len(self.path.engines)
        engine: Engine | Provider
        if world.style == "hosted":
            engine = Provider(self.loop, self.luck, world.provider_pace)
        else:
            name = f"{world.style}-{number}"
            engine = Engine(self.loop, name, replace(world.law), replace(world.setup), self.luck)
        if world.style != "hosted" or not self.path.engines:
            self.path.engines.append(engine)
            self.path.listed = [*self.path.listed, engine]
        return engine

    @property
    def real(self) -> list[Engine]:
        """The engines, where there are any."""
        return [engine for engine in self.path.engines if isinstance(engine, Engine)]

    def say(self, kind: str, text: str) -> None:
        """Write down that something was done, if this world does."""
        if self.world.seen.events:
            self.events.append(Event(EPOCH + self.loop.now, kind, text))

    def note_facts(self) -> None:
        """Keep what is known of each engine now: cases have it as of the end of the incident."""
        for engine in self.real if self.world.seen.signals else ():
            setup = engine.setup
            self.facts[engine.name] = {
                "engine": self.world.style, "max_num_seqs": setup.seats,
                "max_num_batched_tokens": setup.budget, "chunked_prefill": setup.chunked,
                "prefix_caching": setup.prefix_caching, "spec_decode": bool(setup.drafts),
                "kv_cache_tokens": round(setup.kv_tokens), "started": EPOCH + engine.started,
            }  # fmt: skip

    # Traffic.

    def _rate(self) -> float:
        world, t = self.world, self.loop.now
        daily = 1 + world.daily * math.sin(2 * math.pi * (t / 86_400 + self.seed % 7 / 7))
        return world.rate * self.knobs.rate * daily * self._burst

    def _next(self) -> None:
        if self.loop.now < self.world.seconds:
            self.loop.at(self.loop.now + self.traffic.expovariate(self._rate()), self._arrive)

    def _mood(self) -> None:
        """Let the traffic swell and ebb for a while."""
        swell = self.world.bursts
        self._burst = math.exp(swell * self.traffic.gauss(-swell / 2, 1)) if swell else 1.0
        self._burst = min(self._burst, 2.5)
        self.loop.at(self.loop.now + self.traffic.expovariate(1 / 40), self._mood)

    def _arrive(self) -> None:
        call = self._call(self.loop.now)
        if self.world.agents:
            call.then = self._tools
        self._send(call)
        self._next()

    def _send(self, call: Call) -> None:
        self.calls.append(call)
        self.path.begin(call)

    def _call(self, t: float) -> Call:
        """Draw a request."""
        draw, knobs, world = self.traffic, self.knobs, self.world
        shares = [knobs.shares.get(r.name, 1.0) for r in world.routes]
        route = draw.choices(world.routes, shares)[0]
        weights = [w * knobs.shares.get(name, 1.0) for name, w in world.tenants.items()]
        tenant = draw.choices(list(world.tenants), weights)[0]
        number = len(self.calls)
        own = route.own * draw.lognormvariate(0.0, route.spread) * knobs.prompts
        own *= knobs.shares.get(f"{tenant} prompts", 1.0)
        session = f"{route.name}/{tenant}/{draw.randrange(12)}"
        history = min(self._sessions.get(session, 0), 6000) if route.turns else 0
        prompt = int(min(route.system + history + max(8.0, own), 60_000))
        share, long = knobs.monsters
        if draw.random() < share:
            prompt += int(long * draw.uniform(0.8, 1.2))
        out = int(
            min(max(2.0, route.out * draw.lognormvariate(0.0, route.spread) * knobs.outs), 4000)
        )
        if route.turns:
            over = draw.random() < 1 / route.turns
            self._sessions[session] = 0 if over else history + int(own) + out
        top = f"{route.name}" + (f" {number}" if draw.random() < knobs.salted else "")
        keep = (f"{top} {session}", prompt) if route.turns else None
        prefixes = ((top, route.system),) + (((keep[0], history),) if keep and history else ())
        structured = draw.random() < route.structured
        self.schemas += structured
        return Call(
            number=number, t=t, route=route, tenant=tenant, prompt=prompt, out=out,
            region=draw.choice(list(world.regions)), process=draw.randrange(world.processes),
            version=knobs.version, prefixes=prefixes, keep=keep,
            patience=world.patience * knobs.patience * draw.lognormvariate(0.0, 0.3),
            stream=draw.random() >= knobs.unary,
            adapter=f"{route.model}-{draw.randrange(knobs.adapters)}" if world.adapters else "",
            schema=f"schema-{self.schemas % knobs.schemas}" if structured else "",
            pause=route.pause * draw.lognormvariate(0.0, 0.7) if route.pause else 0.0,
            flush=knobs.flush, idle_s=knobs.idle_s, breaks=knobs.breaks, render_s=knobs.render_s,
            blocks=knobs.blocks,
        )  # fmt: skip

    def _tools(self, call: Call) -> None:
        """Run the tools that an answer asks for, then ask once more."""
        draw = self.luck
        took = [draw.lognormvariate(math.log(0.7), 0.6) for _ in range(draw.randint(2, 5))]
        serial, longest = sum(took), max(took)
        wall = serial if self.knobs.serial else longest
        tools = (wall, serial, longest, len(took))
        if call.outcome != "success":
            self.turns.append((call, None, (0.0, 0.0, 0.0, 0)))
            return
        self.loop.at(self.loop.now + wall, self._second, call, tools)

    def _second(self, first: Call, tools: tuple[float, float, float, int]) -> None:
        call = self._call(self.loop.now)
        call.route, call.tenant, call.prompt = first.route, first.tenant, first.prompt + first.out
        self.turns.append((first, call, tools))
        self._send(call)

    def run(self) -> None:
        """Let it work until all that was asked for has come to an end."""
        self.loop.at(0.0, self.scraper.begin)
        self._mood()
        self._next()
        self.loop.run(self.world.seconds * 1.3 + 600)
