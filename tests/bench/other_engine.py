"""How does a served model spend its time? A fluid model of continuous batching, for `other_fleet`.

Nothing steps: a virtual clock counts the tokens that each running request has got. It runs at a
rate that only an event changes: an arrival, prompts or an answer done, a full cache.
Written without a look at `llmtrace.simulator`, so that two hands made two worlds.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FOREVER: Final = float("inf")
_BLOCK: Final = 16  # tokens of a block of KV cache
_DEEP: Final = 64  # requests of the queue that the scheduler looks at
_ALMOST: Final = 1e-7


class Loop:
    """A clock and the things that are to happen, in order of time."""

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    def at(self, t: float, do: Callable[..., None], *given: Any) -> None:
        """Do something at a time, or now if that is past."""
        heapq.heappush(self._due, (max(t, self.now), next(self._order), do, given))

    def run(self, until: float) -> None:
        """Let everything happen that is due before a time."""
        while self._due and self._due[0][0] < until:
            self.now, _, do, given = heapq.heappop(self._due)
            do(*given)
        self.now = until


class Station:
    """First come, first served, by so many at once: a gateway, a front end, a link, a pool."""

    def __init__(self, loop: Loop, workers: int) -> None:
        self.loop, self._free = loop, [loop.now] * workers

    def serve(self, seconds: float) -> float:
        """Take a piece of work; return when it will be done."""
        done = max(self.loop.now, heapq.heappop(self._free)) + seconds
        heapq.heappush(self._free, done)
        return done


@dataclass(slots=True, kw_only=True)
class Law:
    """Seconds of a step: for itself, each sequence, each token of a prompt and of context."""

    base: float
    sequence: float
    prompt_token: float
    context_token: float = 0.0


@dataclass(slots=True, kw_only=True)
class Setup:
    """How an engine was started, and what it is connected to.

    Attributes:
        seats: most requests in a batch.
        budget: most tokens of a step, where prompts are cut into chunks.
        kv_tokens: that fit into its cache.
        loras: most adapters at once; 0 = any number.
        drafts: tokens drafted a step; 0 = no speculation.
        external: seconds a token that is fetched from another tier; `None` = there is none.
        apart: whether prompts are computed on an engine of their own, and their KV blocks sent.
        late: whether it learns of arrivals only between two steps, as vLLM does.
    """

    seats: int
    budget: int
    kv_tokens: float
    chunked: bool = True
    prefix_caching: bool = True
    loras: int = 0
    drafts: int = 0
    external: float | None = None
    apart: float | None = None
    late: bool = True


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """One request as the engine has it; times are the loop's."""

    arrived: float
    prompt: int
    out: int
    prefixes: tuple[tuple[str, int], ...] = ()
    keep: tuple[str, int] | None = None
    adapter: str = ""
    schema: str = ""
    compiling: float = 0.0
    on_first: Callable[[Job], None] | None = None
    on_end: Callable[[Job, bool], None] | None = None
    seen: float | None = None
    ready: float = 0.0
    scheduled: float | None = None
    prefilled: float | None = None
    first: float | None = None
    done: float | None = None
    cached: int = 0
    fetched: int = 0
    got: float = 0.0
    joined: float = 0.0
    preemptions: int = 0
    drafted: float = 0.0
    accepted: float = 0.0
    pieces: list[tuple[float, float]] = field(default_factory=list)
    state: str = "new"


class Prefixes:
    """The blocks of past prompts that are still there, the least recently used go first."""

    def __init__(self, room: float) -> None:
        self.room, self._held, self._kept = room, 0.0, OrderedDict[str, int]()

    def found(self, job: Job) -> int:
        """Return how many tokens of a prompt are there, from its start on."""
        tokens = 0
        for key, length in job.prefixes:
            if (have := self._kept.get(key)) is None:
                break
            self._kept.move_to_end(key)
            tokens += min(have, length)
        return min(tokens, job.prompt - 1) // _BLOCK * _BLOCK

    def keep(self, key: str, tokens: int) -> None:
        """Keep a prefix, at the cost of the oldest."""
        self._held += tokens - self._kept.pop(key, 0)
        self._kept[key] = tokens
        while self._held > self.room and len(self._kept) > 1:
            self._held -= self._kept.popitem(last=False)[1]

    def forget(self) -> None:
        """Lose everything."""
        self._held = 0.0
        self._kept.clear()


class Engine:
    """A replica: a queue, a batch, a cache of KV blocks and one of prefixes."""

    def __init__(self, loop: Loop, name: str, law: Law, setup: Setup, random: Random) -> None:
        self.loop, self.name, self.law, self.setup, self.random = loop, name, law, setup, random
        self.waiting: deque[Job] = deque()
        self.running: dict[Job, None] = {}
        self.group: list[Job] = []
        self.unseen: list[Job] = []
        self.prefixes = Prefixes(0.6 * setup.kv_tokens)
        self.grammars: set[str] = set()
        self.compiler, self.link = Station(loop, 1), Station(loop, 2)
        self.slow, self.accept_rate, self.started = 1.0, 0.75, -3600.0
        self.warming: tuple[float, float, float] | None = None  # since, how slow, how long
        self.paused_at: float | None = None
        self.frozen = False  # of a pause: nothing answers, not even the page of metrics
        self.alive = True
        self.tally: Counter[str] = Counter()
        self.knots_t, self.knots_v = [loop.now], [0.0]
        self._v = self._static = self._rate = self._group_end = 0.0
        self._t = loop.now
        self._ends: list[tuple[float, int, Job]] = []
        self._order, self._plan_number = count(), 0

    # What it is like just now.

    @property
    def kv_used(self) -> float:
        """Tokens in the cache that running requests need."""
        return self._static + len(self.running) * self._v + sum(j.prompt for j in self.group)

    @property
    def adapters(self) -> set[str]:
        """The adapters in use."""
        return {job.adapter for job in (*self.running, *self.group) if job.adapter}

    def deferred(self) -> int:
        """Return how many wait for something that is no seat and no block."""
        full = self.setup.loras and len(self.adapters) >= self.setup.loras
        used = self.adapters if full else set()
        return sum(
            job.ready > self.loop.now or bool(full and job.adapter and job.adapter not in used)
            for job in self.waiting
        )

    def compiling(self) -> int:
        """Return how many wait for their grammar."""
        return sum(bool(job.schema) and job.ready > self.loop.now for job in self.waiting)

    def accept_length(self) -> float:
        """Return the tokens that a draft yields."""
        return self._yield()

    def accepted_share(self) -> float:
        """Return the share of drafted tokens that is taken."""
        return (self._yield() - 1) / self.setup.drafts

    def _yield(self) -> float:
        """Return the tokens that a step gives a request."""
        rate, drafts = self.accept_rate, self.setup.drafts
        return (1 - rate ** (drafts + 1)) / (1 - rate) if drafts else 1.0

    def _step(self, prompt_tokens: float = 0.0) -> float:
        law, n = self.law, len(self.running)
        context = law.context_token * (self._static + n * self._v)
        seconds = law.base + law.sequence * n + context + law.prompt_token * prompt_tokens
        if self.setup.drafts:
            seconds *= 1 + 0.13 * self.setup.drafts
        if self.warming:
            since, worse, fades = self.warming
            seconds *= 1 + worse * 2 ** (-(self.loop.now - since) / fades)
        return seconds * self.slow

    # What others do to it.

    def submit(self, job: Job) -> None:
        """Take a request; it is seen at the next step."""
        job.state = "new"
        if self.paused_at is not None:
            self.unseen.append(job)
            return
        wait = 0.0
        if self.group and not self.setup.chunked:
            wait = self._group_end - self.loop.now
        elif self.running or self.group:
            wait = self.random.random() * self._step(self.setup.budget if self.group else 0)
        if self.setup.late:
            self.loop.at(self.loop.now + wait, self._see, job)
        else:
            self._see(job, wait)

    def touch(self) -> None:
        """Bring it up to now, and plan what comes next."""
        self._advance()
        if self.alive and self.paused_at is None:
            self._act()
        self._plan()

    def pause(self) -> None:
        """Stop it as it stands."""
        self._advance()
        self.paused_at = self.loop.now
        self._plan()

    def resume(self) -> None:
        """Let it go on."""
        if self.paused_at is None:
            return
        self._advance()
        self._group_end += self.loop.now - self.paused_at
        self.paused_at = None
        unseen, self.unseen = self.unseen, []
        for job in unseen:
            self._see(job)
        self.touch()

    def kill(self) -> None:
        """End the process with all that is on it."""
        self._advance()
        self.alive = False
        lost = [*self.running, *self.group, *self.waiting, *self.unseen]
        for held in (self.running, self.group, self.waiting, self.unseen, self._ends):
            held.clear()
        self._static = 0.0
        self.prefixes.forget()
        self.grammars.clear()
        self._plan()
        for job in lost:
            self._end(job, whole=False)

    def start(self, worse: float, fades: float) -> None:
        """Begin as a new process that is slow at first."""
        self.alive, self.started = True, self.loop.now
        self.tally.clear()
        self.warming = (self.loop.now, worse, fades)
        self.touch()

    def cancel(self, job: Job) -> None:
        """Drop a request whose client has left."""
        self._advance()
        if job in self.running:
            self._leave(job)
        elif job in self.group:
            self.group.remove(job)
        elif job in self.waiting:
            self.waiting.remove(job)
        job.state = "ended"
        self.touch()

    # How it works.

    def _see(self, job: Job, wait: float = 0.0) -> None:
        if job.state == "ended":
            return
        if not self.alive:
            self._end(job, whole=False)
            return
        if self.paused_at is not None:
            self.unseen.append(job)
            return
        job.seen = self.loop.now
        job.ready = self.loop.now + wait
        if job.schema and job.schema not in self.grammars:
            job.ready = max(job.ready, self.compiler.serve(job.compiling))
            self.grammars.add(job.schema)
            self.tally["grammar_compile_count"] += 1
            self.tally["grammar_compile_sum"] += job.compiling
        if self.setup.external is not None and job.fetched:
            job.ready = max(job.ready, self.link.serve(job.fetched * self.setup.external))
        if job.ready > self.loop.now:
            self.loop.at(job.ready, self.touch)
        self.waiting.append(job)
        self.touch()

    def _advance(self) -> None:
        now = self.loop.now
        if now > self._t and self._rate > 0:
            gain = (now - self._t) * self._rate
            self._v += gain
            n = len(self.running)
            self.tally["generation_tokens"] += n * gain
            self.tally["itl_sum"] += n * (now - self._t)
            self.tally["itl_count"] += n * gain / self._yield()
            if drafts := self.setup.drafts:
                steps = n * gain / self._yield()
                self.tally["spec_drafted"] += steps * drafts
                self.tally["spec_drafts"] += steps
                self.tally["spec_accepted"] += steps * (self._yield() - 1)
        if now > self._t:
            self.knots_t.append(now)
            self.knots_v.append(self._v)
        self._t = now

    def _act(self) -> None:
        now = self.loop.now
        while self._ends and self._ends[0][0] <= self._v + _ALMOST:
            _, _, job = heapq.heappop(self._ends)
            self._leave(job)
            self._end(job, whole=True)
        if self.group and now >= self._group_end - _ALMOST:
            group, self.group = self.group, []
            for job in group:
                self._computed(job)
        while len(self.running) > 1 and self.kv_used >= self.setup.kv_tokens - _ALMOST:
            self._preempt()
        if not self.group and self.waiting:
            self._admit()

    def _leave(self, job: Job) -> None:
        """Take a request out of the batch, and note what it got there."""
        del self.running[job]
        self._static -= job.prompt + job.got - job.joined
        got = self._v - job.joined
        job.got += got
        if self.setup.drafts:
            steps = got / self._yield()
            job.drafted += steps * self.setup.drafts
            job.accepted += steps * (self._yield() - 1)
        self._ends = [entry for entry in self._ends if entry[2] is not job]
        heapq.heapify(self._ends)

    def _preempt(self) -> None:
        job = next(reversed(self.running))
        self._leave(job)
        job.preemptions += 1
        job.cached, job.state = 0, "preempted"
        self.tally["preemptions"] += 1
        self.waiting.appendleft(job)

    def _admit(self) -> None:
        """Begin the prompts that fit into the next step."""
        used, adapters = self.kv_used, self.adapters
        taken: list[Job] = []
        tokens = 0.0
        for job in [*self.waiting][:_DEEP]:
            if job.ready > self.loop.now:
                continue
            if self.setup.loras and job.adapter and job.adapter not in adapters:
                if len(adapters) >= self.setup.loras:
                    continue
                adapters.add(job.adapter)
            held = job.prompt + job.got
            full = used + held > 0.99 * self.setup.kv_tokens and (self.running or taken)
            if full or len(self.running) + len(taken) >= self.setup.seats:
                break
            cached = 0 if job.got else self._cached(job)
            if taken and tokens + held - cached > self.setup.budget:
                break
            job.cached = cached
            taken.append(job)
            used += held
            tokens += held - cached
            if tokens >= self.setup.budget:
                break
        if taken:
            self._begin(taken, tokens)

    def _cached(self, job: Job) -> int:
        own = self.prefixes.found(job) if self.setup.prefix_caching else 0
        return max(own, min(job.fetched, job.prompt - 1))

    def _begin(self, taken: list[Job], tokens: float) -> None:
        for job in taken:
            self.waiting.remove(job)
            if job.scheduled is None:
                job.scheduled = self.loop.now
                self.tally["prefix_queries"] += job.prompt
                self.tally["prefix_hits"] += job.cached - min(job.cached, job.fetched)
                if self.setup.external is not None:
                    self.tally["external_prefix_queries"] += job.prompt
                self.tally["external_prefix_hits"] += min(job.cached, job.fetched)
                self.tally["cached_tokens"] += job.cached
        self.group = taken
        room = max(64.0, self.setup.budget - len(self.running))
        steps = max(1.0, tokens / room) if self.setup.chunked else 1.0
        reach = 1 + tokens / 60_000  # attention over a long prompt
        self._group_end = self.loop.now + steps * self._step(tokens * reach / steps)
        self._group_rate = 0.0
        if self.setup.apart is not None:
            self._group_rate = self._yield() / self._step()
        elif self.setup.chunked:
            self._group_rate = steps * self._yield() / (self._group_end - self.loop.now)

    def _computed(self, job: Job) -> None:
        if job.prefilled is None:
            job.prefilled = self.loop.now
            self.tally["prompt_tokens"] += job.prompt
            for key, tokens in job.prefixes:
                self.prefixes.keep(key, tokens)
            if job.keep:
                self.prefixes.keep(*job.keep)
        if self.setup.apart is not None:
            seconds = job.prompt * self.setup.apart
            self.tally["kv_transfer_time_sum"] += seconds
            self.tally["kv_transfer_time_count"] += 1
            job.state = "sent"
            self.loop.at(self.link.serve(seconds), self._join_later, job)
        else:
            self._join(job)

    def _join_later(self, job: Job) -> None:
        if job.state == "sent" and self.alive:
            self._advance()
            self._join(job)
            self.touch()
        elif job.state == "sent":
            self._end(job, whole=False)

    def _join(self, job: Job) -> None:
        if job.first is None:
            job.first, job.got = self.loop.now, 1.0
            self.tally["generation_tokens"] += 1
            if job.on_first:
                job.on_first(job)
        job.state, job.joined = "running", self._v
        job.pieces.append((self._v, job.got))
        self.running[job] = None
        self._static += job.prompt + job.got - job.joined
        end = self._v + max(0.0, job.out - job.got)
        heapq.heappush(self._ends, (end, next(self._order), job))

    def _end(self, job: Job, *, whole: bool) -> None:
        if job.state == "ended":
            return
        job.state, job.done = "ended", self.loop.now
        if whole and job.seen is not None and job.scheduled is not None:
            first = job.first or job.done
            for name, seconds in (
                ("queue", job.scheduled - job.seen),
                ("prefill", first - job.scheduled),
                ("decode", job.done - first),
                ("inference", job.done - job.scheduled),
                ("ttft", first - job.arrived),
                ("e2e", job.done - job.arrived),
                ("tpot", (job.done - first) / max(1, job.out - 1)),
                ("request_preemptions", job.preemptions),
            ):
                self.tally[f"{name}_sum"] += seconds
                self.tally[f"{name}_count"] += 1
            self.tally["finished"] += 1
        if job.on_end:
            job.on_end(job, whole)

    def _plan(self) -> None:
        self._plan_number += 1
        self._rate = 0.0
        if not self.alive or self.paused_at is not None:
            return
        now, next_t = self.loop.now, FOREVER
        n = len(self.running)
        if n:
            self._rate = self._group_rate if self.group else self._yield() / self._step()
        if self.group:
            next_t = self._group_end
        if self._rate > 0:
            next_t = min(next_t, now + max(0.0, self._ends[0][0] - self._v) / self._rate)
            spare = self.setup.kv_tokens - self.kv_used
            if n > 1:
                next_t = min(next_t, now + max(0.0, spare) / (n * self._rate))
        if next_t < FOREVER:
            self.loop.at(next_t + 1e-9, self._due, self._plan_number)

    def _due(self, number: int) -> None:
        if number == self._plan_number:
            self.touch()

    def token_times(self, job: Job, knots: tuple[NDArray[Any], NDArray[Any]]) -> NDArray[Any]:
        """Return when each of a request's tokens after the first left, in order."""
        times = []
        for i, (v, got) in enumerate(job.pieces):
            last = job.pieces[i + 1][1] if i + 1 < len(job.pieces) else job.got
            at = v + np.arange(1, round(last - got) + 1)
            times.append(np.interp(at, knots[1], knots[0]))
        return np.concatenate(times) if times else np.empty(0)
