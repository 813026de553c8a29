"""Simulate every request of a fleet, event by event.

One loop over arrivals, gateway work, engine steps and client ends, compiled by numba: a million
requests take seconds. Engines run the scheduler of vLLM V1 step by step: running sequences first,
prompts in chunks within a token budget, admission while the whole prompt has room in the KV
cache, the youngest preempted when it runs full, newcomers taken in between two steps only.

Nothing here knows what a fault is: figures in tables change at given times, and requests are what
they are. All compiled code is in this one file, because numba's cache on disk looks at the file of
a function and not at those of the functions it calls.
"""

# ruff: noqa: PLR0917 - compiled functions are called by position
# mypy: disable-error-code="arg-type, assignment, no-any-return"
from __future__ import annotations

import heapq
from typing import Any, Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from llmtrace.simulator.fleet.array_layout import (
    BLOCK,
    FIRST_COUNTER,
    Engine,
    Gateway,
    GatewayMeter,
    Meter,
    Outcome,
    Policy,
    Pool,
    Quota,
    Table,
)

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]

# numba reads these as constants; an enumeration's members it would look up each time.
ALIVE, ROUTABLE, WEIGHT = int(Engine.ALIVE), int(Engine.ROUTABLE), int(Engine.WEIGHT)
MAX_SEQS, MAX_TOKENS, BLOCKS = int(Engine.MAX_SEQS), int(Engine.MAX_TOKENS), int(Engine.BLOCKS)
CHUNKED, LONG_PREFILL = int(Engine.CHUNKED), int(Engine.LONG_PREFILL)
PREFIX_CACHING, MAX_LORAS = int(Engine.PREFIX_CACHING), int(Engine.MAX_LORAS)
MAX_QUEUED = int(Engine.MAX_QUEUED)
BASE_S, PREFILL_TOKEN_S = int(Engine.BASE_S), int(Engine.PREFILL_TOKEN_S)
ATTENTION_S, SEQUENCE_S = int(Engine.ATTENTION_S), int(Engine.SEQUENCE_S)
CONTEXT_S, JITTER, SPEED = int(Engine.CONTEXT_S), int(Engine.JITTER), int(Engine.SPEED)
SPEC_TOKENS, DRAFT_S = int(Engine.SPEC_TOKENS), int(Engine.DRAFT_S)
VERIFY, ACCEPTANCE = int(Engine.VERIFY), int(Engine.ACCEPTANCE)
FRONT_REQUEST_S, FRONT_PROMPT_S = int(Engine.FRONT_REQUEST_S), int(Engine.FRONT_PROMPT_S)
FRONT_TOKEN_S, FRONT_PROCESSES = int(Engine.FRONT_TOKEN_S), int(Engine.FRONT_PROCESSES)
KV_SHARE, KV_BASE_S = int(Engine.KV_SHARE), int(Engine.KV_BASE_S)
KV_TOKEN_S = int(Engine.KV_TOKEN_S)
PAUSED_UNTIL, ASLEEP = int(Engine.PAUSED_UNTIL), int(Engine.ASLEEP)
STARTED, WARM_FACTOR = int(Engine.STARTED), int(Engine.WARM_FACTOR)
WARM_S, COMPILE_S = int(Engine.WARM_S), int(Engine.COMPILE_S)
CLOCK, THROTTLED = int(Engine.CLOCK), int(Engine.THROTTLED)

WORKERS, SERVICE_S, SIGMA = int(Gateway.WORKERS), int(Gateway.SERVICE_S), int(Gateway.SIGMA)
RETRY_AFTER_S, ERROR_SHARE = int(Gateway.RETRY_AFTER_S), int(Gateway.ERROR_SHARE)
BUFFER, IDLE_S, POLICY = int(Gateway.BUFFER), int(Gateway.IDLE_S), int(Gateway.POLICY)
PREFIX, WEIGHTED = int(Policy.PREFIX), int(Policy.WEIGHTED)
RATE, BURST, SIZE = int(Quota.RATE), int(Quota.BURST), int(Pool.SIZE)
T_ENGINE, T_GATEWAY = int(Table.ENGINE), int(Table.GATEWAY)
T_QUOTA = int(Table.QUOTA)

M_RUNNING, M_WAITING, M_DEFERRED = int(Meter.RUNNING), int(Meter.WAITING), int(Meter.DEFERRED)
M_KV_USAGE, M_SLEEP, M_STARTED = int(Meter.KV_USAGE), int(Meter.SLEEP), int(Meter.STARTED)
M_UP, M_CLOCK, M_THROTTLED = int(Meter.UP), int(Meter.CLOCK), int(Meter.THROTTLED)
M_PREFIX_HITS, M_PREFIX_QUERIES = int(Meter.PREFIX_HITS), int(Meter.PREFIX_QUERIES)
M_PREEMPTIONS, M_DRAFTED = int(Meter.PREEMPTIONS), int(Meter.DRAFTED)
M_ACCEPTED, M_TOKENS_IN = int(Meter.ACCEPTED), int(Meter.TOKENS_IN)
M_TOKENS_OUT, M_STOP, M_LENGTH = int(Meter.TOKENS_OUT), int(Meter.STOP), int(Meter.LENGTH)
M_ABORT, M_ERROR, M_REJECTED = int(Meter.ABORT), int(Meter.ERROR), int(Meter.REJECTED)
M_BUSY_S, M_FRONT_BUSY_S = int(Meter.BUSY_S), int(Meter.FRONT_BUSY_S)
M_FRONT_S, M_FRONT_N = int(Meter.FRONT_S), int(Meter.FRONT_N)
M_COUNTERS = int(FIRST_COUNTER)
M_TOO_MANY, M_FAILED = int(GatewayMeter.TOO_MANY), int(GatewayMeter.FAILED)

SUCCESS, FAILED, CANCELLED = int(Outcome.SUCCESS), int(Outcome.ERROR), int(Outcome.CANCELLED)
TRUNCATED, TIMED_OUT = int(Outcome.TRUNCATED), int(Outcome.TIMEOUT)

# What comes next, when it is no replica's step (those are `_STEP` and up).
_TICK, _CHANGE, _HEAP, _ARRIVAL, _STEP = -2, -1, 0, 1, 2
# Events of the heap.
_START, _GATEWAY, _ROUTE, _ENGINE, _DONE, _WAKE = 0, 1, 2, 3, 4, 5

_NEVER = 1e18
_SIZES = 24  # powers of two a step's tokens can come to
_LOOK_EVERY_S = 0.25  # how often waiting requests are checked for the end of their patience
_BURST_S = 0.001
_HTTP_OK, _TOO_MANY, _BAD_GATEWAY, _UNAVAILABLE = 200, 429, 502, 503
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 0.5, 8.0


# The workload: a record a request; times in seconds.
WORK: Final = np.dtype(
    [
        ("start", "f8"),  # of those that follow no other, ascending; inf = follows another
        ("pool", "i8"),
        ("tenant", "i8"),
        ("gateway", "i8"),
        ("prompt", "i8"),
        ("output", "i8"),
        ("group", "i8"),  # group that shares its prefix; -1 = none
        ("group_tokens", "i8"),
        ("adapter", "i8"),  # -1 = the base model
        ("before", "f8"),  # name, connection and sending, with the way there
        ("back", "f8"),  # the way back: half a round trip
        ("hold", "f8"),  # the consumer's own time for a chunk
        ("patience", "f8"),  # until the first chunk, or it gives up
        ("timeout", "f8"),  # the client's, over all
        ("retries", "i8"),
        ("follow", "i8"),  # the request that comes after this one; -1 = none
        ("follow_s", "f8"),  # and how long after
        ("break_at", "i8"),  # the engine fails at this token; -1 = never
        ("resume", "i8"),  # 1 = and the client asks again
        ("silent_from", "i8"),  # tokens from here on are not sent,
        ("silent_until", "i8"),  # up to here
        ("acceptance", "f8"),  # how likely a drafted token of this text is right
    ]
)

# What became of it. NaN = that did not happen.
FATE: Final = np.dtype(
    [
        ("started", "f8"),
        ("sent", "f8"),  # left the client's pool
        ("attempt", "f8"),  # start of the last attempt
        ("attempts", "i8"),
        ("retry_gateway", "f8"),
        ("retry_decode", "f8"),
        ("gateway_s", "f8"),
        ("replica", "i8"),
        ("routed", "f8"),
        ("queued", "f8"),
        ("scheduled", "f8"),
        ("first_token", "f8"),
        ("last_token", "f8"),
        ("queue_s", "f8"),
        ("prefill_s", "f8"),
        ("front_s", "f8"),
        ("first", "f8"),  # chunk in the client's hands
        ("last", "f8"),
        ("end", "f8"),
        ("waited", "f8"),  # for chunks after the first
        ("held", "f8"),
        ("gap", "f8"),
        ("chunks", "i8"),
        ("bursts", "i8"),
        ("outcome", "i8"),
        ("status", "i8"),
        ("retried_status", "i8"),  # of the last attempt that was sent again
        ("produced", "i8"),
        ("cached", "i8"),
        ("preemptions", "i8"),
        ("drafted", "i8"),
        ("accepted", "i8"),
        # While it is under way:
        ("next", "i8"),  # in the list it waits in
        ("computed", "i8"),  # tokens in the KV cache
        ("step_tokens", "i8"),
        ("blocks", "i8"),
        ("deferred", "i8"),
        ("kv_ready", "f8"),
        ("limit", "f8"),  # it is dropped then
        ("free_at", "f8"),  # its consumer is
        ("pending", "i8"),  # chunks a proxy holds
        ("last_out", "f8"),
    ]
)

REPLICA: Final = np.dtype(
    [
        ("count", "i8"),  # sequences in the batch
        ("waiting", "i8"),
        ("head", "i8"),  # of the scheduler's queue
        ("tail", "i8"),
        ("inbox", "i8"),  # who came while a step ran
        ("inbox_tail", "i8"),
        ("used", "f8"),  # blocks
        ("shared", "f8"),  # blocks of prefixes
        ("step_end", "f8"),
        ("look", "f8"),
        ("front_free", "f8"),
    ]
)
TENANT: Final = np.dtype([("tokens", "f8"), ("filled", "f8")])
POOL: Final = np.dtype([("open", "i8"), ("head", "i8"), ("tail", "i8")])


class Changes(NamedTuple):
    """Figures that change, ascending in time; row -1 = every row of the table."""

    at: _Floats
    table: _Ints
    row: _Ints
    column: _Ints
    value: _Floats


class Fleet(NamedTuple):
    """The tables of `array_layout`, changed by the loop, and what it keeps between events."""

    engines: _Floats
    gateways: _Floats
    quotas: _Floats
    limits: _Floats  # pool x Pool
    meters: _Floats  # replica x Meter
    gateway_meters: _Floats
    replicas: NDArray[np.void]  # of REPLICA
    tenants: NDArray[np.void]  # of TENANT
    pools: NDArray[np.void]  # of POOL
    workers: _Floats  # gateway x worker: free from then
    running: _Ints  # replica x place in the batch
    prefix_used: _Floats  # replica x group: when last; -1 = not there
    prefix_blocks: _Ints  # of a group
    seen: _Ints  # replica x size of step
    loras: _Ints  # replica x adapter: sequences in the batch


class Samples(NamedTuple):
    """Meters at every tick: tick x replica x Meter, tick x gateway x GatewayMeter."""

    engines: _Floats
    gateways: _Floats


@njit(cache=True)
def run(
    work: Any,
    fate: Any,
    fleet: Fleet,
    changes: Changes,
    samples: Samples,
    tick_s: float,
    until_s: float,
    seed: int,
) -> int:
    """Run until everything that starts before `until_s` is over; return the ticks sampled."""
    np.random.seed(seed)  # noqa: NPY002 - numba has no other
    heap = [(np.float64(_NEVER), np.int64(0), np.int64(_WAKE), np.int64(-1))]
    arrival, change, tick = 0, 0, 0
    last_tick = samples.engines.shape[0]
    n, replicas = len(work), len(fleet.replicas)
    while True:
        now = heap[0][0]
        what = _HEAP
        if arrival < n and work[arrival].start < now:
            now, what = work[arrival].start, _ARRIVAL
        for r in range(replicas):
            if fleet.replicas[r].step_end < now:
                now, what = fleet.replicas[r].step_end, _STEP + r
        if change < len(changes.at) and changes.at[change] <= now:
            now, what = changes.at[change], _CHANGE
        if tick < last_tick and tick * tick_s < now:
            now, what = tick * tick_s, _TICK
        if now >= _NEVER or (now > until_s and what <= _CHANGE):
            break
        if what == _TICK:
            _sample(fate, fleet, samples, tick, now)
            tick += 1
        elif what == _CHANGE:
            _change(work, fate, fleet, changes, change, now, heap)
            change += 1
        elif what == _ARRIVAL:
            _start(work, fate, fleet, arrival, now, heap)
            arrival += 1
        elif what >= _STEP:
            r = what - _STEP
            _end_step(work, fate, fleet, r, now, heap)
            _begin_step(work, fate, fleet, r, now, heap)
        else:
            _, _, kind, i = heapq.heappop(heap)
            if kind == _START:
                _start(work, fate, fleet, i, now, heap)
            elif kind == _GATEWAY:
                _at_gateway(work, fate, fleet, i, now, heap)
            elif kind == _ROUTE:
                _route(work, fate, fleet, i, now, heap)
            elif kind == _ENGINE:
                _at_engine(work, fate, fleet, i, now, heap)
            elif kind == _DONE:
                _done(work, fate, fleet, i, now, heap)
            elif i >= 0 and fleet.replicas[i].step_end >= _NEVER:
                _begin_step(work, fate, fleet, i, now, heap)
    return tick


@njit(cache=True)
def _push(heap: Any, at: float, kind: int, i: int) -> None:
    # Equal times are ordered by the request, so that the order is the same in every run.
    heapq.heappush(heap, (np.float64(at), np.int64(i), np.int64(kind), np.int64(i)))


# --- the client ---------------------------------------------------------------------------------


@njit(cache=True)
def _start(work: Any, fate: Any, fleet: Fleet, i: int, now: float, heap: Any) -> None:
    fate[i].started = now
    pool = work[i].pool
    if fleet.pools[pool].open >= fleet.limits[pool, SIZE]:
        fate[i].next = -1
        if fleet.pools[pool].head < 0:
            fleet.pools[pool].head = i
        else:
            fate[fleet.pools[pool].tail].next = i
        fleet.pools[pool].tail = i
        return
    _send(work, fate, fleet, i, now, heap)


@njit(cache=True)
def _send(work: Any, fate: Any, fleet: Fleet, i: int, now: float, heap: Any) -> None:
    fleet.pools[work[i].pool].open += 1
    fate[i].sent = now
    fate[i].attempt = now
    fate[i].attempts = 1
    _push(heap, now + work[i].before, _GATEWAY, i)


@njit(cache=True)
def _done(work: Any, fate: Any, fleet: Fleet, i: int, now: float, heap: Any) -> None:
    """Let the next one of the pool go, and the request that follows this one."""
    pool = work[i].pool
    fleet.pools[pool].open -= 1
    while fleet.pools[pool].head >= 0 and fleet.pools[pool].open < fleet.limits[pool, SIZE]:
        j = fleet.pools[pool].head
        fleet.pools[pool].head = fate[j].next
        if now > fate[j].started + work[j].patience:
            fate[j].sent = fate[j].started + work[j].patience
            fate[j].end = fate[j].sent
            fate[j].outcome = CANCELLED
        else:
            _send(work, fate, fleet, j, now, heap)
    _follow(work, fate, i, now, heap)


@njit(cache=True)
def _follow(work: Any, fate: Any, i: int, now: float, heap: Any) -> None:
    j = work[i].follow
    if j >= 0 and fate[i].outcome == SUCCESS:
        _push(heap, now + work[i].follow_s, _START, j)


@njit(cache=True)
def _finish(work: Any, fate: Any, i: int, at: float, outcome: int, status: int, heap: Any) -> None:
    """End a request at `at` on the server; the client learns of it half a round trip later."""
    seen = at + work[i].back
    if outcome == CANCELLED or outcome == TIMED_OUT:  # noqa: PLR1714, SIM109 - faster compiled
        seen = at  # it was the client who ended it
    if not np.isnan(fate[i].first):
        wait = max(0.0, seen - fate[i].free_at)
        if outcome == SUCCESS:
            wait = 0.0  # the end comes with the last chunk
        fate[i].waited += wait
        fate[i].gap = max(fate[i].gap, wait)
        seen = fate[i].free_at + wait
    fate[i].end = seen
    fate[i].outcome = outcome
    fate[i].status = status
    _push(heap, seen, _DONE, i)


@njit(cache=True)
def _fail(work: Any, fate: Any, fleet: Fleet, i: int, at: float, status: int, heap: Any) -> None:
    """Answer an attempt with an error status; the client tries again while it may."""
    seen = at + work[i].back
    if fate[i].attempts > work[i].retries:
        fate[i].retry_gateway += seen - fate[i].attempt
        fate[i].attempt = seen
        _finish(work, fate, i, at, FAILED, status, heap)
        return
    backoff = min(_FIRST_BACKOFF_S * 2.0 ** (fate[i].attempts - 1), _MAX_BACKOFF_S)
    backoff *= 1.0 - 0.25 * np.random.random()  # noqa: NPY002
    if status == _TOO_MANY:
        backoff = max(backoff, fleet.gateways[work[i].gateway, RETRY_AFTER_S])
    fate[i].retry_gateway += seen + backoff - fate[i].attempt
    fate[i].retried_status = status
    _again(work, fate, i, seen + backoff, heap)


@njit(cache=True)
def _again(work: Any, fate: Any, i: int, at: float, heap: Any) -> None:
    fate[i].attempt = at
    fate[i].attempts += 1
    _push(heap, at + work[i].back, _GATEWAY, i)  # over the connection it has


# --- the gateway --------------------------------------------------------------------------------


@njit(cache=True)
def _at_gateway(work: Any, fate: Any, fleet: Fleet, i: int, now: float, heap: Any) -> None:
    g = work[i].gateway
    tenant = work[i].tenant
    rate = fleet.quotas[tenant, RATE]
    if rate > 0:
        burst = fleet.quotas[tenant, BURST]
        left = min(
            burst, fleet.tenants[tenant].tokens + rate * (now - fleet.tenants[tenant].filled)
        )
        fleet.tenants[tenant].filled = now
        if left < 1.0:
            fleet.tenants[tenant].tokens = left
            fleet.gateway_meters[g, M_TOO_MANY] += 1
            _fail(work, fate, fleet, i, now, _TOO_MANY, heap)
            return
        fleet.tenants[tenant].tokens = left - 1.0
    if np.random.random() < fleet.gateways[g, ERROR_SHARE]:  # noqa: NPY002
        fleet.gateway_meters[g, M_FAILED] += 1
        _fail(work, fate, fleet, i, now, _UNAVAILABLE, heap)
        return
    service = fleet.gateways[g, SERVICE_S] * np.exp(
        fleet.gateways[g, SIGMA] * np.random.normal()  # noqa: NPY002
    )
    free, worker = _NEVER, 0
    for k in range(int(fleet.gateways[g, WORKERS])):
        if fleet.workers[g, k] < free:
            free, worker = fleet.workers[g, k], k
    done = max(now, free) + service
    fleet.workers[g, worker] = done
    fate[i].gateway_s = done - now
    _push(heap, done, _ROUTE, i)


@njit(cache=True)
def _choose(work: Any, fleet: Fleet, i: int) -> int:
    """Return the replica for a request, or -1 if there is none."""
    policy = int(fleet.gateways[work[i].gateway, POLICY])
    replicas = len(fleet.replicas)
    best, least = -1, np.inf
    total = 0.0
    for r in range(replicas):
        if fleet.engines[r, ROUTABLE] > 0:
            load = fleet.replicas[r].count + fleet.replicas[r].waiting + 0.5 * np.random.random()  # noqa: NPY002
            total += fleet.engines[r, WEIGHT]
            if load < least:
                best, least = r, load
    if policy == WEIGHTED and total > 0:
        x = total * np.random.random()  # noqa: NPY002
        for r in range(replicas):
            if fleet.engines[r, ROUTABLE] > 0:
                x -= fleet.engines[r, WEIGHT]
                best = r
                if x <= 0:
                    break
    elif policy == PREFIX and work[i].group >= 0:
        home = int(work[i].group) % replicas
        busy = fleet.replicas[home].count + fleet.replicas[home].waiting
        if fleet.engines[home, ROUTABLE] > 0 and busy <= 1.5 * least + 8:
            best = home
    return best


@njit(cache=True)
def _route(work: Any, fate: Any, fleet: Fleet, i: int, now: float, heap: Any) -> None:
    r = _choose(work, fleet, i)
    if r < 0 or fleet.engines[r, ALIVE] == 0:
        fleet.gateway_meters[work[i].gateway, M_FAILED] += 1
        fate[i].replica = r
        _fail(work, fate, fleet, i, now, _BAD_GATEWAY, heap)
        return
    limit = fleet.engines[r, MAX_QUEUED]
    if limit > 0 and fleet.replicas[r].waiting >= limit:
        fleet.meters[r, M_REJECTED] += 1
        fleet.gateway_meters[work[i].gateway, M_FAILED] += 1
        _fail(work, fate, fleet, i, now, _UNAVAILABLE, heap)
        return
    fate[i].replica = r
    fate[i].routed = now
    fate[i].last_out = now
    _set_limit(work, fate, fleet, i)
    cost = fleet.engines[r, FRONT_REQUEST_S] + work[i].prompt * fleet.engines[r, FRONT_PROMPT_S]
    _push(heap, _front(fleet, r, now, cost), _ENGINE, i)


# --- the engine's front end ---------------------------------------------------------------------


@njit(cache=True)
def _front(fleet: Fleet, r: int, now: float, cost: float) -> float:
    """Do work in the API server and return when it is done."""
    fleet.replicas[r].front_free = (
        max(now, fleet.replicas[r].front_free) + cost / fleet.engines[r, FRONT_PROCESSES]
    )
    fleet.meters[r, M_FRONT_BUSY_S] += cost
    # Of several servers each works as slowly as one alone.
    return fleet.replicas[r].front_free + cost * (1.0 - 1.0 / fleet.engines[r, FRONT_PROCESSES])


@njit(cache=True)
def _at_engine(work: Any, fate: Any, fleet: Fleet, i: int, now: float, heap: Any) -> None:
    r = fate[i].replica
    if fleet.engines[r, ALIVE] == 0 or fate[i].routed < fleet.engines[r, STARTED]:
        fleet.gateway_meters[work[i].gateway, M_FAILED] += 1
        _fail(work, fate, fleet, i, now, _BAD_GATEWAY, heap)
        return
    share = fleet.engines[r, KV_SHARE]
    if share > 0:
        moved = share * work[i].prompt
        noise = np.exp(0.5 * np.random.normal())  # noqa: NPY002
        took = fleet.engines[r, KV_BASE_S] + moved * fleet.engines[r, KV_TOKEN_S]
        fate[i].kv_ready = now + took * noise
    else:
        fate[i].kv_ready = now
    fate[i].computed = 0
    fate[i].deferred = 0
    fate[i].produced = 0
    _knock(fate, fleet, r, i)
    if fleet.replicas[r].step_end >= _NEVER:
        _begin_step(work, fate, fleet, r, now, heap)


@njit(cache=True)
def _set_limit(work: Any, fate: Any, fleet: Fleet, i: int) -> None:
    """Note until when a request may stay in the engine if nothing comes out of it."""
    limit = fate[i].started + work[i].timeout
    if np.isnan(fate[i].first):
        limit = min(limit, fate[i].started + work[i].patience)
    idle = fleet.gateways[work[i].gateway, IDLE_S]
    if idle > 0:
        limit = min(limit, fate[i].last_out + idle)
    fate[i].limit = max(limit, fate[i].routed)


@njit(cache=True)
def _expire(work: Any, fate: Any, fleet: Fleet, r: int, i: int, heap: Any) -> None:
    """End what ran into the client's patience or timeout, or into a proxy's."""
    fleet.meters[r, M_ABORT] += 1
    at = fate[i].limit
    idle = fleet.gateways[work[i].gateway, IDLE_S]
    if idle > 0 and at == fate[i].last_out + idle:
        _finish(work, fate, i, at, TRUNCATED, _HTTP_OK, heap)
    elif at == fate[i].started + work[i].timeout:
        _finish(work, fate, i, at, TIMED_OUT, _HTTP_OK, heap)
    else:
        _finish(work, fate, i, at, CANCELLED, _HTTP_OK, heap)


# --- lists of waiting requests -------------------------------------------------------------------


@njit(cache=True)
def _queue(fate: Any, fleet: Fleet, r: int, i: int) -> None:
    """Put a request at the end of the scheduler's queue."""
    fate[i].next = -1
    if fleet.replicas[r].head < 0:
        fleet.replicas[r].head = i
    else:
        fate[fleet.replicas[r].tail].next = i
    fleet.replicas[r].tail = i


@njit(cache=True)
def _knock(fate: Any, fleet: Fleet, r: int, i: int) -> None:
    """Put a request where it waits to be taken in."""
    fate[i].next = -1
    if fleet.replicas[r].inbox < 0:
        fleet.replicas[r].inbox = i
    else:
        fate[fleet.replicas[r].inbox_tail].next = i
    fleet.replicas[r].inbox_tail = i
    fleet.replicas[r].waiting += 1


@njit(cache=True)
def _unlink(fate: Any, fleet: Fleet, r: int, before: int, i: int) -> None:
    """Take `i` out of the scheduler's queue; `before` is the one in front of it, or -1."""
    if before < 0:
        fleet.replicas[r].head = fate[i].next
    else:
        fate[before].next = fate[i].next
    if fleet.replicas[r].tail == i:
        fleet.replicas[r].tail = before
    fleet.replicas[r].waiting -= 1


# --- the engine's steps -------------------------------------------------------------------------


@njit(cache=True)
def _begin_step(work: Any, fate: Any, fleet: Fleet, r: int, now: float, heap: Any) -> None:
    """Choose the work of the next step of a replica, and note when it ends."""
    engine = fleet.engines[r]
    fleet.replicas[r].step_end = _NEVER
    if engine[ALIVE] == 0:
        return
    if now < engine[PAUSED_UNTIL]:
        _push(heap, engine[PAUSED_UNTIL], _WAKE, r)
        return
    # Taken in only now: what waited for the step waited unseen.
    while fleet.replicas[r].inbox >= 0:
        i = fleet.replicas[r].inbox
        fleet.replicas[r].inbox = fate[i].next
        fate[i].queued = now
        _queue(fate, fleet, r, i)
    if now >= fleet.replicas[r].look:
        fleet.replicas[r].look = now + _LOOK_EVERY_S
        _drop_waiting(work, fate, fleet, r, now, heap)
    _make_room(work, fate, fleet, r, now, heap)
    budget, seconds, running = _run_on(work, fate, fleet, r)
    seconds, admitted, woken = _admit(work, fate, fleet, r, now, budget, seconds)
    if fleet.replicas[r].count == 0:
        if woken < _NEVER:
            _push(heap, woken, _WAKE, r)
        return
    seconds *= engine[SPEED] * max(0.2, 1.0 + engine[JITTER] * np.random.normal())  # noqa: NPY002
    if engine[WARM_FACTOR] > 0:
        age = now - engine[STARTED]
        seconds *= 1.0 + engine[WARM_FACTOR] * np.exp(-age / engine[WARM_S])
    size = min(_SIZES - 1, int(np.log2(running + admitted + 1)))
    if fleet.seen[r, size] == 0:
        fleet.seen[r, size] = 1
        seconds += engine[COMPILE_S]
    fleet.meters[r, M_BUSY_S] += seconds
    fleet.replicas[r].step_end = now + seconds


@njit(cache=True)
def _run_on(work: Any, fate: Any, fleet: Fleet, r: int) -> tuple[int, float, int]:
    """Give those that run their tokens; return what is left, seconds so far, and how many."""
    engine = fleet.engines[r]
    budget = int(engine[MAX_TOKENS])
    spec = int(engine[SPEC_TOKENS])
    seconds = engine[BASE_S]
    tokens_in_step = 0
    speculating = False
    for k in range(fleet.replicas[r].count):
        i = fleet.running[r, k]
        known = work[i].prompt + fate[i].produced
        left = known - fate[i].computed
        if left == 1 and fate[i].produced > 0:
            tokens = 1 if budget > 0 else 0
            seconds += tokens * (
                engine[SEQUENCE_S] * (1.0 + engine[VERIFY] * spec)
                + engine[CONTEXT_S] * fate[i].computed
            )
            speculating = spec > 0
            budget -= tokens * (1 + spec)
        else:
            tokens = min(left, max(budget, 0))
            if engine[LONG_PREFILL] > 0:
                tokens = min(tokens, int(engine[LONG_PREFILL]))
            seconds += _prefill_s(engine, tokens, fate[i].computed)
            budget -= tokens
        fate[i].step_tokens = tokens
        tokens_in_step += tokens
    if speculating:
        seconds += spec * engine[DRAFT_S]
    return budget, seconds, tokens_in_step


@njit(cache=True)
def _admit(
    work: Any, fate: Any, fleet: Fleet, r: int, now: float, budget: int, seconds: float
) -> tuple[float, int, float]:
    """Take requests of the queue into the batch, in order, as long as there is room.

    Returns:
        The step's seconds so far, tokens of those taken in, and when a KV cache arrives.
    """
    engine = fleet.engines[r]
    tokens_in_step = 0
    before = -1
    i = fleet.replicas[r].head
    woken = _NEVER
    while i >= 0 and budget > 0 and fleet.replicas[r].count < int(engine[MAX_SEQS]):
        after = fate[i].next
        if fate[i].kv_ready > now:  # its KV cache is still on the way
            fate[i].deferred = 1
            woken = min(woken, fate[i].kv_ready)
            before, i = i, after
            continue
        if not _has_lora(work, fleet, r, i):
            fate[i].deferred = 1
            before, i = i, after
            continue
        hit = _hit(work, fleet, r, i)
        known = work[i].prompt + fate[i].produced
        fetched = int(engine[KV_SHARE] * work[i].prompt) // BLOCK * BLOCK
        done = min(max(hit, fetched), work[i].prompt - 1)
        tokens = known - done
        if engine[CHUNKED] == 0 and tokens > budget and fleet.replicas[r].count > 0:
            break
        tokens = min(tokens, budget)
        if engine[LONG_PREFILL] > 0:
            tokens = min(tokens, int(engine[LONG_PREFILL]))
        need = (known - hit + BLOCK) // BLOCK
        if fleet.replicas[r].used + need > engine[BLOCKS] and fleet.replicas[r].count > 0:
            break
        fleet.replicas[r].used += need
        fate[i].blocks = need
        _evict(fleet, r)
        _unlink(fate, fleet, r, before, i)
        fate[i].deferred = 0
        fate[i].computed = done
        if fate[i].preemptions == 0 or fate[i].produced == 0:
            fate[i].scheduled = now
            fate[i].cached = done
            fleet.meters[r, M_TOKENS_IN] += work[i].prompt
            fleet.meters[r, M_PREFIX_QUERIES] += work[i].prompt
            fleet.meters[r, M_PREFIX_HITS] += hit
        if work[i].adapter >= 0:
            fleet.loras[r, work[i].adapter] += 1
        seconds += _prefill_s(engine, tokens, done)
        budget -= tokens
        fate[i].step_tokens = tokens
        tokens_in_step += tokens
        fleet.running[r, fleet.replicas[r].count] = i
        fleet.replicas[r].count += 1
        i = after
    return seconds, tokens_in_step, woken


@njit(cache=True)
def _prefill_s(engine: _Floats, tokens: int, done: int) -> float:
    return tokens * (engine[PREFILL_TOKEN_S] + engine[ATTENTION_S] * (done + 0.5 * tokens))


@njit(cache=True)
def _has_lora(work: Any, fleet: Fleet, r: int, i: int) -> bool:
    adapter = work[i].adapter
    if adapter < 0 or fleet.engines[r, MAX_LORAS] <= 0 or fleet.loras[r, adapter] > 0:
        return True
    loaded = 0
    for a in range(fleet.loras.shape[1]):
        if fleet.loras[r, a] > 0:
            loaded += 1
    return loaded < fleet.engines[r, MAX_LORAS]


@njit(cache=True)
def _hit(work: Any, fleet: Fleet, r: int, i: int) -> int:
    """Return how many tokens of a prompt the prefix cache holds: whole blocks, never all."""
    group = work[i].group
    if group < 0 or fleet.engines[r, PREFIX_CACHING] == 0 or fleet.prefix_used[r, group] < 0:
        return 0
    return min(work[i].group_tokens, work[i].prompt - 1) // BLOCK * BLOCK


@njit(cache=True)
def _evict(fleet: Fleet, r: int) -> None:
    """Give up the prefixes used longest ago until what runs has room."""
    while (
        fleet.replicas[r].shared > 0
        and fleet.replicas[r].used + fleet.replicas[r].shared > fleet.engines[r, BLOCKS]
    ):
        oldest, when = -1, np.inf
        for g in range(fleet.prefix_used.shape[1]):
            if 0 <= fleet.prefix_used[r, g] < when:
                oldest, when = g, fleet.prefix_used[r, g]
        if oldest < 0:
            fleet.replicas[r].shared = 0.0
            return
        fleet.prefix_used[r, oldest] = -1.0
        fleet.replicas[r].shared = 0.0
        for g in range(fleet.prefix_used.shape[1]):
            if fleet.prefix_used[r, g] >= 0:
                fleet.replicas[r].shared += fleet.prefix_blocks[g]


@njit(cache=True)
def _drop_waiting(work: Any, fate: Any, fleet: Fleet, r: int, now: float, heap: Any) -> None:
    before = -1
    i = fleet.replicas[r].head
    while i >= 0:
        after = fate[i].next
        if now > fate[i].limit:
            _unlink(fate, fleet, r, before, i)
            _expire(work, fate, fleet, r, i, heap)
        else:
            before = i
        i = after


@njit(cache=True)
def _make_room(work: Any, fate: Any, fleet: Fleet, r: int, now: float, heap: Any) -> None:
    """Drop what ran into a limit; preempt the youngest while the KV cache cannot hold the rest."""
    kept = 0
    need = 0
    for k in range(fleet.replicas[r].count):
        i = fleet.running[r, k]
        if now > fate[i].limit:
            _release(work, fate, fleet, r, i)
            _expire(work, fate, fleet, r, i, heap)
            continue
        need += _grows(work, fate, i)
        fleet.running[r, kept] = i
        kept += 1
    fleet.replicas[r].count = kept
    while fleet.replicas[r].used + need > fleet.engines[r, BLOCKS] and fleet.replicas[r].count > 1:
        fleet.replicas[r].count -= 1
        i = fleet.running[r, fleet.replicas[r].count]
        need -= _grows(work, fate, i)
        _release(work, fate, fleet, r, i)
        fate[i].computed = 0
        fate[i].preemptions += 1
        fleet.meters[r, M_PREEMPTIONS] += 1
        fate[i].next = fleet.replicas[r].head  # to the front of the queue
        fleet.replicas[r].head = i
        if fleet.replicas[r].tail < 0 or fate[i].next < 0:
            fleet.replicas[r].tail = i
        fleet.replicas[r].waiting += 1
    if need > 0:
        for k in range(fleet.replicas[r].count):
            i = fleet.running[r, k]
            if _grows(work, fate, i) > 0:
                fate[i].blocks += 1
        fleet.replicas[r].used += need
        _evict(fleet, r)


@njit(cache=True)
def _grows(work: Any, fate: Any, i: int) -> int:
    return 1 if fate[i].produced > 0 and (work[i].prompt + fate[i].produced) % BLOCK == 0 else 0


@njit(cache=True)
def _release(work: Any, fate: Any, fleet: Fleet, r: int, i: int) -> None:
    fleet.replicas[r].used -= fate[i].blocks
    fate[i].blocks = 0
    if work[i].adapter >= 0:
        fleet.loras[r, work[i].adapter] -= 1


@njit(cache=True)
def _end_step(work: Any, fate: Any, fleet: Fleet, r: int, now: float, heap: Any) -> None:
    """Book the step that ended: tokens, their way to the client, and who is finished."""
    engine = fleet.engines[r]
    spec = int(engine[SPEC_TOKENS])
    makers = 0
    for k in range(fleet.replicas[r].count):
        i = fleet.running[r, k]
        if fate[i].computed + fate[i].step_tokens >= work[i].prompt + fate[i].produced:
            makers += 1
    # One batch of outputs goes through the API server at once.
    out = _front(fleet, r, now, makers * engine[FRONT_TOKEN_S]) if makers > 0 else now
    kept = 0
    for k in range(fleet.replicas[r].count):
        i = fleet.running[r, k]
        was_decoding = fate[i].produced > 0
        fate[i].computed += fate[i].step_tokens
        if fate[i].computed < work[i].prompt + fate[i].produced:
            fleet.running[r, kept] = i
            kept += 1
            continue
        made = 1
        if was_decoding and spec > 0:
            chance = work[i].acceptance * engine[ACCEPTANCE]
            right = 0
            while right < spec and np.random.random() < chance:  # noqa: NPY002
                right += 1
            fate[i].drafted += spec
            fate[i].accepted += right
            fleet.meters[r, M_DRAFTED] += spec
            fleet.meters[r, M_ACCEPTED] += right
            made = min(1 + right, work[i].output - fate[i].produced)
            # The blocks of accepted tokens are taken when they fill up, all but the last of them
            # here: `_grows` sees the one after the step.
            known = work[i].prompt + fate[i].produced
            extra = (known + made - 1) // BLOCK - known // BLOCK
            if extra > 0:
                fate[i].blocks += extra
                fleet.replicas[r].used += extra
            fate[i].computed += made - 1
        if not was_decoding:
            _first_token(work, fate, fleet, r, i, now, out)
        fate[i].produced += made
        fate[i].last_token = now
        fleet.meters[r, M_TOKENS_OUT] += made
        if 0 <= work[i].break_at <= fate[i].produced and fate[i].attempts == 1:
            _break(work, fate, fleet, r, i, out, heap)
            continue
        is_last = fate[i].produced >= work[i].output
        _deliver(work, fate, fleet, i, out, is_last)
        if is_last:
            _release(work, fate, fleet, r, i)
            fleet.meters[r, M_STOP if work[i].output % 16 else M_LENGTH] += 1
            _finish(work, fate, i, out, SUCCESS, _HTTP_OK, heap)
            continue
        fleet.running[r, kept] = i
        kept += 1
    fleet.replicas[r].count = kept


@njit(cache=True)
def _first_token(
    work: Any, fate: Any, fleet: Fleet, r: int, i: int, now: float, out: float
) -> None:
    group = work[i].group
    if group >= 0:
        if fleet.prefix_used[r, group] < 0:
            fleet.replicas[r].shared += fleet.prefix_blocks[group]
        fleet.prefix_used[r, group] = now
        _evict(fleet, r)
    if not np.isnan(fate[i].first):
        return  # repeated after it broke: the client has had its first chunk
    fate[i].first_token = now
    fate[i].queue_s = fate[i].scheduled - fate[i].queued
    fate[i].prefill_s = now - fate[i].scheduled
    fate[i].front_s = out - fate[i].routed - (now - fate[i].queued)
    fleet.meters[r, M_FRONT_S] += fate[i].front_s
    fleet.meters[r, M_FRONT_N] += 1


@njit(cache=True)
def _break(work: Any, fate: Any, fleet: Fleet, r: int, i: int, out: float, heap: Any) -> None:
    """Let the engine fail in the middle of an answer."""
    _release(work, fate, fleet, r, i)
    fleet.meters[r, M_ERROR] += 1
    if work[i].resume > 0:
        again = out + work[i].back + _FIRST_BACKOFF_S
        fate[i].retry_decode += again - fate[i].attempt
        fate[i].pending = 0
        _again(work, fate, i, again, heap)
    else:
        _finish(work, fate, i, out, FAILED, _HTTP_OK, heap)


@njit(cache=True)
def _deliver(work: Any, fate: Any, fleet: Fleet, i: int, out: float, is_last: bool) -> None:
    """Bring a chunk to the consumer: through the proxy's buffer, and when the consumer asks."""
    made = fate[i].produced
    if work[i].silent_from <= made < work[i].silent_until and not is_last:
        return
    fate[i].last_out = out
    fate[i].pending += 1
    if fate[i].pending < fleet.gateways[work[i].gateway, BUFFER] and not is_last:
        _set_limit(work, fate, fleet, i)
        return
    came = out + work[i].back
    chunks = fate[i].pending
    fate[i].pending = 0
    fate[i].chunks += chunks
    hold = work[i].hold
    if np.isnan(fate[i].first):
        fate[i].first = came
        handed = came
    else:
        wait = max(0.0, came - fate[i].free_at)
        handed = fate[i].free_at + wait
        fate[i].waited += wait
        fate[i].gap = max(fate[i].gap, wait)
        if wait < _BURST_S:
            fate[i].bursts += 1
    fate[i].bursts += chunks - 1
    fate[i].last = handed + hold * (chunks - 1)
    fate[i].held += hold * chunks
    fate[i].free_at = handed + hold * chunks
    _set_limit(work, fate, fleet, i)


# --- what happens to replicas -------------------------------------------------------------------


@njit(cache=True)
def _change(
    work: Any, fate: Any, fleet: Fleet, changes: Changes, k: int, now: float, heap: Any
) -> None:
    table, row = changes.table[k], changes.row[k]
    column, value = changes.column[k], changes.value[k]
    if table == T_ENGINE:
        for r in range(len(fleet.replicas)):
            if row in (-1, r):
                was = fleet.engines[r, column]
                fleet.engines[r, column] = value
                if column == ALIVE and was > 0 and value == 0:
                    _kill(work, fate, fleet, r, now, heap)
                if column == ALIVE and was == 0 and value > 0:
                    _boot(fleet, r, now)
    elif table == T_GATEWAY:
        for g in range(fleet.gateways.shape[0]):
            if row in (-1, g):
                fleet.gateways[g, column] = value
    elif table == T_QUOTA:
        for t in range(fleet.quotas.shape[0]):
            if row in (-1, t):
                fleet.quotas[t, column] = value
    else:
        for p in range(fleet.limits.shape[0]):
            if row in (-1, p):
                fleet.limits[p, column] = value


@njit(cache=True)
def _kill(work: Any, fate: Any, fleet: Fleet, r: int, now: float, heap: Any) -> None:
    """End the process of a replica, with everything in it."""
    for k in range(fleet.replicas[r].count):
        i = fleet.running[r, k]
        _release(work, fate, fleet, r, i)
        _lose(work, fate, fleet, i, now, heap)
    fleet.replicas[r].count = 0
    for first in (fleet.replicas[r].inbox, fleet.replicas[r].head):
        i = first
        while i >= 0:
            after = fate[i].next
            _lose(work, fate, fleet, i, now, heap)
            i = after
    fleet.replicas[r].inbox = -1
    fleet.replicas[r].inbox_tail = -1
    fleet.replicas[r].head = -1
    fleet.replicas[r].tail = -1
    fleet.replicas[r].waiting = 0
    fleet.replicas[r].step_end = _NEVER


@njit(cache=True)
def _lose(work: Any, fate: Any, fleet: Fleet, i: int, now: float, heap: Any) -> None:
    if np.isnan(fate[i].first):
        fleet.gateway_meters[work[i].gateway, M_FAILED] += 1
        _fail(work, fate, fleet, i, now, _BAD_GATEWAY, heap)
    else:
        _finish(work, fate, i, now, TRUNCATED, _HTTP_OK, heap)


@njit(cache=True)
def _boot(fleet: Fleet, r: int, now: float) -> None:
    """Start a process again: empty caches, counters from zero."""
    fleet.engines[r, STARTED] = now
    fleet.replicas[r].used = 0.0
    fleet.replicas[r].shared = 0.0
    fleet.replicas[r].front_free = now
    fleet.prefix_used[r, :] = -1.0
    fleet.seen[r, :] = 0
    fleet.loras[r, :] = 0
    fleet.meters[r, M_COUNTERS:] = 0.0
    fleet.replicas[r].step_end = _NEVER


@njit(cache=True)
def _sample(fate: Any, fleet: Fleet, samples: Samples, tick: int, now: float) -> None:
    for r in range(len(fleet.replicas)):
        deferred = 0
        i = fleet.replicas[r].head
        while i >= 0:
            deferred += fate[i].deferred
            i = fate[i].next
        meters = fleet.meters[r]
        meters[M_RUNNING] = fleet.replicas[r].count
        meters[M_WAITING] = fleet.replicas[r].waiting
        meters[M_DEFERRED] = deferred
        meters[M_KV_USAGE] = min(1.0, fleet.replicas[r].used / fleet.engines[r, BLOCKS])
        is_paused = now < fleet.engines[r, PAUSED_UNTIL]
        meters[M_SLEEP] = fleet.engines[r, ASLEEP] if is_paused else 0.0
        meters[M_STARTED] = fleet.engines[r, STARTED]
        meters[M_UP] = fleet.engines[r, ALIVE]
        meters[M_CLOCK] = fleet.engines[r, CLOCK]
        meters[M_THROTTLED] = fleet.engines[r, THROTTLED]
        samples.engines[tick, r, :] = meters
    samples.gateways[tick, :, :] = fleet.gateway_meters
