"""What lies round the engines of `other_fleet`: clients, networks, a gateway, a router, proxies.

A `Call` goes through it and is stamped on the way; `other_rows` makes a row of the stamps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.bench.other_engine import Engine, Job, Loop, Station


@dataclass(slots=True, kw_only=True)
class Route:
    """A feature of an application: what its requests look like.

    Attributes:
        system: tokens that all its prompts begin with.
        own: median tokens of the rest, spread as log-normal.
        pause: median seconds of silence within an answer (a tool of the server, hidden thoughts).
    """

    name: str
    model: str
    system: int
    own: float
    out: float
    spread: float
    turns: float = 0.0
    structured: float = 0.0
    pause: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """One request on its way; times are the loop's, durations seconds, `None` = did not happen."""

    number: int
    t: float
    route: Route
    tenant: str
    region: str
    process: int
    version: str
    prompt: int
    out: int
    patience: float
    stream: bool = True
    prefixes: tuple[tuple[str, int], ...] = ()
    keep: tuple[str, int] | None = None
    adapter: str = ""
    schema: str = ""
    pause: float = 0.0
    client_s: float = 0.0
    client_wait: float = 0.0
    connected: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rtt: float = 0.0
    gateway_s: float = 0.0
    cached_answer: bool = False
    flush: int = 0
    idle_s: float = 600.0
    breaks: float = 0.0
    render_s: float = 0.0
    blocks: tuple[float, float] = (0.0, 0.05)
    attempts: list[tuple[float, float, float, int | None]] = field(default_factory=list)
    sent: float = 0.0
    engine: Engine | Provider | None = None
    job: Job | None = None
    frontend_s: float = 0.0
    dribble: float = 0.0
    end: float | None = None
    outcome: str = "success"
    status: int | None = 200
    error: str | None = None
    then: Callable[[Call], None] | None = None


class Provider:
    """A hosted API: nothing is known of it but that it answers, sometimes late."""

    name = ""

    def __init__(self, loop: Loop, random: Random, pace: float) -> None:
        self.loop, self.random = loop, random
        self.wait = pace * random.uniform(0.2, 1.1)
        self.spread = random.uniform(0.25, 0.75)
        self.prompt_token = pace * 10 ** random.uniform(-5.0, -4.0)
        self.token = pace * random.uniform(0.006, 0.04)
        self._mood = 0.0

    def submit(self, job: Job) -> None:
        """Answer, by a law that drifts slowly and has a heavy tail."""
        draw = self.random
        self._mood = 0.97 * self._mood + 0.03 * draw.gauss(0, 1)
        wait = self.wait * math.exp(self.spread * draw.gauss(0, 1) + self._mood)
        if draw.random() < 0.01:
            wait *= draw.paretovariate(1.5)
        token = self.token * math.exp(0.25 * draw.gauss(0, 1) + 0.5 * self._mood)
        first = self.loop.now + wait + job.prompt * self.prompt_token
        job.seen = job.scheduled = self.loop.now
        job.state, job.got = "running", float(job.out)
        job.pieces = [(first, token)]
        self.loop.at(first, self._first, job)
        self.loop.at(first + token * (job.out - 1), self._done, job)

    def _first(self, job: Job) -> None:
        if job.state != "ended":
            job.first = self.loop.now
            if job.on_first:
                job.on_first(job)

    def _done(self, job: Job) -> None:
        if job.state != "ended":
            job.state, job.done = "ended", self.loop.now
            if job.on_end:
                job.on_end(job, True)  # noqa: FBT003 - as a callback is given it

    def cancel(self, job: Job) -> None:
        """Drop a request."""
        job.state = "ended"

    def token_times(self, job: Job, _: object) -> NDArray[Any]:
        """Return when each token after the first left."""
        first, token = job.pieces[0]
        return first + token * np.arange(1, job.out)


class Pool:
    """Connections of a client's process, as many as it may have."""

    def __init__(self, size: float) -> None:
        self.size, self.used = size, 0
        self.waiting: deque[Callable[[], None]] = deque()

    def take(self, go: Callable[[], None]) -> None:
        """Go on as soon as one is free."""
        self.waiting.append(go)
        self.serve()

    def give(self) -> None:
        """Hand one back."""
        self.used -= 1
        self.serve()

    def serve(self) -> None:
        """Let those go on for whom there is one."""
        while self.waiting and self.used < self.size:
            self.used += 1
            self.waiting.popleft()()


@dataclass(slots=True, kw_only=True)
class Knobs:
    """All that a fault may turn, as it is on a quiet day."""

    rate: float = 1.0
    prompts: float = 1.0
    outs: float = 1.0
    shares: dict[str, float] = field(default_factory=dict)
    monsters: tuple[float, int] = (0.0, 0)
    salted: float = 0.0
    rtt: dict[str, float] = field(default_factory=dict)
    reconnect: float = 0.02
    guard: float = 0.0
    guarded: float = 1.0
    limits: dict[str, float] = field(default_factory=dict)
    skew: float = 0.0
    adapters: int = 2
    schemas: int = 4
    compile_s: float = 0.3
    hit_share: float = 0.0
    unary: float = 0.0
    flush: int = 0
    idle_s: float = 600.0
    breaks: float = 0.001
    render_s: float = 0.0
    patience: float = 1.0
    blocks: tuple[float, float] = (0.0, 0.05)
    cold: tuple[float, float] = (0.0, 0.0)
    frontend: float = 1.0
    serial: float = 0.0
    version: str = "3.8.0"


class Path:
    """The way of a call to an engine and back."""

    def __init__(self, loop: Loop, random: Random, knobs: Knobs, world: Any) -> None:
        self.loop, self.random, self.knobs, self.world = loop, random, knobs, world
        self.engines: list[Engine | Provider] = []
        self.listed: list[Engine | Provider] = []
        self.fronts: dict[str, Station] = {}
        self.busy: dict[str, float] = {}
        self.gateway = Station(loop, world.gateway_workers)
        self.pools = [Pool(world.pool) for _ in range(world.processes)]
        self.buckets: dict[str, tuple[float, float]] = {}
        self.done: list[Call] = []
        self._turn = 0

    def begin(self, call: Call) -> None:
        """Let a client begin a request."""
        share, seconds = self.knobs.cold
        call.client_s = self.random.lognormvariate(math.log(0.0008), 0.6)
        if self.random.random() < share:
            call.client_s += self.random.lognormvariate(math.log(seconds), 0.35)
            call.connected = self._connect(call)
        self.loop.at(self.loop.now + call.client_s, self._ask, call)

    def _ask(self, call: Call) -> None:
        asked = self.loop.now

        def go() -> None:
            call.client_wait = self.loop.now - asked
            self._send(call)

        self.loop.at(call.t + call.patience, self._give_up, call)
        self.pools[call.process].take(go)

    def _connect(self, call: Call) -> tuple[float, float, float]:
        rtt = self._rtt(call)
        return self.random.lognormvariate(math.log(0.004), 0.7), rtt, 1.6 * rtt + 0.004

    def _rtt(self, call: Call) -> float:
        base = self.world.regions[call.region] * self.knobs.rtt.get(call.region, 1.0)
        return float(base * self.random.lognormvariate(0.0, 0.12))

    def _send(self, call: Call) -> None:
        if call.end is not None:
            self.pools[call.process].give()
            return
        if self.random.random() < self.knobs.reconnect and not any(call.connected):
            call.connected = self._connect(call)
        call.rtt = self._rtt(call)
        call.sent = self.loop.now
        self.loop.at(self.loop.now + sum(call.connected) + call.rtt / 2, self._enter, call)

    def _enter(self, call: Call) -> None:
        """Be at the gateway: its cache, its limit, its own time."""
        if call.end is not None:
            return
        if self.random.random() < self.knobs.hit_share:
            call.cached_answer = True
            self._answered(call, self.loop.now + self.random.lognormvariate(math.log(0.012), 0.5))
            return
        knobs, draw = self.knobs, self.random
        own = self.world.gateway_s * draw.lognormvariate(0.0, 0.5)
        done = self.gateway.serve(own)
        if knobs.guard and draw.random() < knobs.guarded:
            done += draw.lognormvariate(math.log(knobs.guard), 0.4)
        call.gateway_s += done - self.loop.now
        if not self._allowed(call.tenant):
            self.loop.at(done, self._refused, call, 429)
        else:
            self.loop.at(done, self._route, call)

    def _allowed(self, tenant: str) -> bool:
        limit = self.knobs.limits.get(tenant, self.knobs.limits.get("*"))
        if limit is None:
            return True
        level, since = self.buckets.get(tenant, (3.0, self.loop.now))
        level = min(3.0 + limit, level + limit * (self.loop.now - since))
        allowed = level >= 1
        self.buckets[tenant] = (level - allowed, self.loop.now)
        return allowed

    def _refused(self, call: Call, status: int | None) -> None:
        """Come back with nothing, and be sent again after a while."""
        if call.end is not None:
            return
        now = self.loop.now + call.rtt / 2
        last = len(call.attempts) + 1 >= self.world.tries
        backoff = 0.0 if last else 0.5 * 2 ** len(call.attempts) * self.random.uniform(0.75, 1.0)
        call.attempts.append((call.sent, now - call.sent, backoff, status))
        if last:
            call.outcome, call.status = "error", status
            call.error = str(status) if status else "ConnectError"
            self._finish(call, now)
        else:
            call.gateway_s = 0.0
            self.loop.at(now + backoff, self._again, call)

    def _again(self, call: Call) -> None:
        if call.end is None:
            call.sent = self.loop.now
            self.loop.at(self.loop.now + call.rtt / 2, self._enter, call)

    def _route(self, call: Call) -> None:
        if call.end is not None:
            return
        engine = self._choose(call)
        if engine is None or (isinstance(engine, Engine) and not engine.alive):
            self.loop.at(self.loop.now + 0.01, self._refused, call, 503 if engine is None else 502)
            return
        call.engine = engine
        if isinstance(engine, Engine):
            call.frontend_s = self._front(call, engine)
        self.loop.at(self.loop.now + call.frontend_s, self._submit, call)

    def _front(self, call: Call, engine: Engine) -> float:
        """Pass the engine's own HTTP server, one core; its work delays what it streams, too."""
        work = (self.world.frontend_s + 2e-7 * call.prompt) * self.knobs.frontend
        work *= self.random.lognormvariate(0.0, 0.3)
        tokens = self.world.frontend_token_s * call.out * self.knobs.frontend
        self.busy[engine.name] = self.busy.get(engine.name, 0.0) + work + tokens
        begun = self.loop.now
        front = self.fronts.setdefault(engine.name, Station(self.loop, 1))
        wait = front.serve(work + tokens) - tokens - begun
        call.dribble = 0.02 * wait
        return wait

    def _choose(self, call: Call) -> Engine | Provider | None:
        listed = self.listed
        if not listed or len(listed) == 1:
            return listed[0] if listed else None
        if self.knobs.skew and self.random.random() < self.knobs.skew:
            return listed[0]
        if self.world.router == "affinity" and call.keep:
            return listed[hash_of(call.keep[0]) % len(listed)]
        if self.world.router == "load":
            return min(listed, key=_load)
        self._turn += 1
        return listed[self._turn % len(listed)]

    def _submit(self, call: Call) -> None:
        if call.end is not None:
            return
        engine = call.engine
        fetched = 0
        if isinstance(engine, Engine) and engine.setup.external is not None:
            fetched = int(0.8 * call.prompt) if self.random.random() < 0.7 else 0
        call.job = Job(
            arrived=self.loop.now - call.frontend_s,
            prompt=call.prompt,
            out=call.out,
            prefixes=call.prefixes,
            keep=call.keep,
            adapter=call.adapter,
            schema=call.schema,
            compiling=self.knobs.compile_s * self.random.lognormvariate(0.0, 0.3),
            fetched=fetched,
            on_end=lambda job, whole: self._engine_ended(call, job, whole),
        )
        assert engine is not None
        engine.submit(call.job)

    def _engine_ended(self, call: Call, job: Job, whole: bool) -> None:
        if call.end is not None:
            return
        if whole:
            self._answered(call, self.loop.now)
        elif job.first is None:
            self._refused(call, 502 if self.world.gateway else None)
        else:
            call.outcome, call.error = "truncated", "RemoteProtocolError"
            self._finish(call, self.loop.now + call.rtt / 2)

    def _answered(self, call: Call, at: float) -> None:
        self._finish(call, at + call.rtt / 2)

    def _give_up(self, call: Call) -> None:
        """Leave, if nothing has come by now."""
        first = call.job.first if call.job else None
        if call.end is not None or call.cached_answer:
            return
        if first is not None and first + call.rtt / 2 <= self.loop.now:
            return
        call.outcome, call.status = self.world.leaves, None
        if call.job and call.engine and call.job.state != "ended":
            call.engine.cancel(call.job)
        self._finish(call, self.loop.now)

    def _finish(self, call: Call, at: float) -> None:
        if call.end is None:
            call.end = at
            self.done.append(call)
            self.loop.at(at, self._released, call)

    def _released(self, call: Call) -> None:
        if call.sent:
            self.pools[call.process].give()
        if call.then:
            call.then(call)


def _load(engine: Engine | Provider) -> int:
    return len(engine.running) + len(engine.waiting) if isinstance(engine, Engine) else 0


def hash_of(text: str) -> int:
    """Return the same number for the same text, in every process."""
    return int.from_bytes(text.encode()[-6:], "big") * 2_654_435_761 % 2**32 >> 8
