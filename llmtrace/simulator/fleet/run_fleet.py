"""Build the event loop's tables for a day, run it, and return the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.simulator.fleet import event_loop
from llmtrace.simulator.fleet.array_layout import (
    BLOCK,
    Engine,
    Gateway,
    GatewayMeter,
    Meter,
    Pool,
    Quota,
)
from llmtrace.simulator.fleet.deployment import Deployment
from llmtrace.simulator.fleet.faults import KV_BASE_S, KV_TOKEN_S
from llmtrace.simulator.fleet.plan import Day, Records
from llmtrace.simulator.fleet.traffic import Demand, draw_demand

_SIZES: Final = 24
_MAX_WORKERS: Final = 512
_MAX_SEATS: Final = 65_536  # of a batch, whatever the settings
_NEVER: Final = 1e18
_VERIFY: Final = 0.25  # a drafted token costs this much of a sequence
_DRAFT: Final = 0.06  # and this much of a step, for the draft model


@dataclass(frozen=True, slots=True)
class FleetRun:
    """A simulated day with its results."""

    day: Day
    demand: Demand
    fate: Records  # of event_loop.FATE
    samples: event_loop.Samples


def run_day(day: Day, seed: int) -> FleetRun:
    """Run a planned day from its first request to the end of its last answer."""
    demand = draw_demand(day, seed)
    fate, samples = run_requests(day, demand.work, seed)
    return FleetRun(day, demand, fate, samples)


def run_requests(day: Day, work: Records, seed: int) -> tuple[Records, event_loop.Samples]:
    """Run requests (`event_loop.WORK`) through a day's fleet; return fate and meters."""
    fleet = _fleet(day.deployment, work)
    fate = _fate(len(work))
    ticks = int(day.end / day.tick_s) + 1
    samples = event_loop.Samples(
        np.zeros((ticks, len(fleet.engines), len(Meter))),
        np.zeros((ticks, len(fleet.gateways), len(GatewayMeter))),
    )
    event_loop.run(work, fate, fleet, _changes(day), samples, day.tick_s, day.end, seed % 2**31)
    return fate, samples


def _changes(day: Day) -> event_loop.Changes:
    # Changes after the end of the day are left out: they would end it before its last answer.
    planned = sorted((c for c in day.changes if c.at <= day.end), key=lambda c: c.at)
    return event_loop.Changes(
        at=np.array([c.at for c in planned], np.float64),
        table=np.array([int(c.table) for c in planned], np.int64),
        row=np.array([c.row for c in planned], np.int64),
        column=np.array([int(c.what) for c in planned], np.int64),
        value=np.array([c.value for c in planned], np.float64),
    )


def _engines(deployment: Deployment) -> NDArray[np.float64]:
    cost = deployment.cost
    figures = {
        Engine.ALIVE: 1,
        Engine.ROUTABLE: 1,
        Engine.WEIGHT: 1,
        Engine.MAX_SEQS: deployment.max_seqs,
        Engine.MAX_TOKENS: deployment.max_tokens,
        Engine.BLOCKS: deployment.blocks,
        Engine.CHUNKED: deployment.chunked,
        Engine.PREFIX_CACHING: 1,
        Engine.MAX_LORAS: deployment.max_loras,
        Engine.BASE_S: cost.base_s,
        Engine.PREFILL_TOKEN_S: cost.prefill_token_s,
        Engine.ATTENTION_S: cost.attention_s,
        Engine.SEQUENCE_S: cost.sequence_s,
        Engine.CONTEXT_S: cost.context_s,
        Engine.JITTER: cost.jitter,
        Engine.SPEED: 1,
        Engine.SPEC_TOKENS: deployment.spec_tokens,
        Engine.DRAFT_S: _DRAFT * cost.base_s,
        Engine.VERIFY: _VERIFY,
        Engine.ACCEPTANCE: 1,
        Engine.FRONT_REQUEST_S: cost.front_request_s,
        Engine.FRONT_PROMPT_S: cost.front_prompt_s,
        Engine.FRONT_TOKEN_S: cost.front_token_s,
        Engine.FRONT_PROCESSES: 1,
        Engine.KV_SHARE: deployment.kv_share,
        Engine.KV_BASE_S: KV_BASE_S,
        Engine.KV_TOKEN_S: KV_TOKEN_S,
        Engine.STARTED: -86_400.0,
        Engine.WARM_S: 1,
        Engine.CLOCK: 1,
    }
    return _table(deployment.replicas, len(Engine), figures)


def _fleet(deployment: Deployment, work: Records) -> event_loop.Fleet:
    replicas, requests = deployment.replicas, len(work)
    gateways, pools = len(deployment.regions), len(deployment.regions) * len(deployment.apps)
    tenants, groups = len(deployment.tenants), int(work["group"].max(initial=0)) + 1
    prefix_blocks = np.zeros(groups, np.int64)
    shared = work["group"] >= 0
    prefix_blocks[work["group"][shared]] = work["group_tokens"][shared] // BLOCK
    gateway = {
        Gateway.WORKERS: min(deployment.gateway_workers, _MAX_WORKERS),
        Gateway.SERVICE_S: deployment.gateway_s,
        Gateway.SIGMA: 0.35,
        Gateway.RETRY_AFTER_S: 1.0,
        Gateway.BUFFER: 1,
        Gateway.POLICY: deployment.policy,
    }
    sizes = np.repeat([app.pool for app in deployment.apps], len(deployment.regions))
    return event_loop.Fleet(
        engines=_engines(deployment),
        gateways=_table(gateways, len(Gateway), gateway),
        quotas=_table(tenants, len(Quota), {Quota.BURST: 10}),
        limits=sizes.astype(np.float64).reshape(pools, len(Pool)),
        meters=np.zeros((replicas, len(Meter))),
        gateway_meters=np.zeros((gateways, len(GatewayMeter))),
        replicas=_records(
            event_loop.REPLICA, replicas, step_end=_NEVER, head=-1, tail=-1, inbox=-1
        ),
        tenants=_records(event_loop.TENANT, tenants, tokens=10.0),
        pools=_records(event_loop.POOL, pools, head=-1, tail=-1),
        workers=np.zeros((gateways, _MAX_WORKERS)),
        running=np.zeros((replicas, min(requests + 1, _MAX_SEATS)), np.int64),
        prefix_used=np.full((replicas, groups), -1.0),
        prefix_blocks=prefix_blocks,
        seen=np.zeros((replicas, _SIZES), np.int64),
        loras=np.zeros((replicas, max(1, deployment.adapters)), np.int64),
    )


def _records(kind: np.dtype[np.void], n: int, **values: float) -> Records:
    records = np.zeros(n, kind)
    for name, value in values.items():
        records[name] = value
    return records.view(np.recarray)


def _table(rows: int, columns: int, figures: Mapping[Any, float]) -> NDArray[np.float64]:
    table = np.zeros((rows, columns))
    for column, value in figures.items():
        table[:, column] = value
    return table


def _fate(n: int) -> Records:
    unknown = (
        "started", "sent", "attempt", "routed", "queued", "scheduled", "first_token",
        "last_token", "queue_s", "prefill_s", "front_s", "first", "last", "end",
    )  # fmt: skip
    return _records(
        event_loop.FATE, n, **dict.fromkeys(unknown, np.nan), replica=-1, outcome=-1, next=-1
    )
