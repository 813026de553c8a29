"""Draw the workload of a day: which client sends which prompt, and when.

Draws a day's requests as arrays: arrivals that come in bursts, routes with their lengths, tenants
who share prompts, regions, client programs, agents whose tools send more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmtrace.dataset.arrivals import Arrivals
from llmtrace.simulator.fleet.deployment import Deployment
from llmtrace.simulator.fleet.event_loop import WORK
from llmtrace.simulator.fleet.plan import Arrays, Day, Records

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]

_WHOLE = ("route", "region", "app", "turn", "tool_calls")
_REAL = ("dns", "connect", "tls", "send", "rtt", "tool_serial", "tool_critical", "tool_wall")
_BIN_S = 1.0
_UNREST_S = 20.0  # traffic is steady for about so long
_MAX_OUTPUT = 6000
_TOOL_SPREAD = 0.6
_MAX_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Demand:
    """The requests of a day: `work`, and indices into the deployment's names."""

    work: Records  # of event_loop.WORK
    route: _Ints
    region: _Ints
    app: _Ints
    dns: _Floats
    connect: _Floats
    tls: _Floats
    send: _Floats
    rtt: _Floats
    turn: _Ints  # the request that opened its turn; -1 = in none
    tool_calls: _Ints  # after this request
    tool_serial: _Floats
    tool_critical: _Floats
    tool_wall: _Floats


def arrivals(day: Day, rng: np.random.Generator) -> _Floats:
    """Return when requests come: a Poisson process whose rate varies."""
    bins = int(np.ceil(day.end / _BIN_S))
    at = (np.arange(bins) + 0.5) * _BIN_S
    shape = day.steadiness
    level = rng.gamma(shape, 1.0 / shape, int(day.end / _UNREST_S) + 2)
    swing = 1.0 + day.swing * np.sin(2 * np.pi * (at / 2400.0 + rng.random()))
    rate = day.deployment.rate * swing * np.interp(at / _UNREST_S, np.arange(len(level)), level)
    rate = np.where(at >= day.onset, rate * day.volume, rate)
    # A turn of an agent is several requests.
    routes = day.deployment.routes
    extra = sum(r.share * 1.4 for r in routes if r.agent) / sum(r.share for r in routes)
    counts = rng.poisson(rate * _BIN_S / (1.0 + extra))
    return np.sort(np.repeat(np.arange(bins), counts) * _BIN_S + rng.random(counts.sum()))


def replay(day: Day, trace: Arrivals, rng: np.random.Generator) -> tuple[_Floats, _Ints]:
    """Return when requests of a trace come, and which they are.

    The trace goes round, as fast as the deployment was sized for; more volume is requests of
    elsewhere in it, less is fewer of them.
    """
    rate = day.deployment.rate
    stretched = trace.start_s * (trace.rate / rate)
    around = float(stretched[-1]) + 1.0 / rate
    most = max(day.volume, 1.0)
    times, which = [], []
    for copy in range(int(np.ceil(most))):
        part = min(most - copy, 1.0)
        offset = rng.random() * around
        for lap in range(int(np.ceil(day.end / around)) + 1):
            at = stretched - offset + lap * around
            kept = (at >= 0) & (at < day.end) & (rng.random(len(at)) < part)
            if copy:
                kept &= at >= day.onset
            times.append(at[kept])
            which.append(np.flatnonzero(kept))
    t, index = np.concatenate(times), np.concatenate(which)
    if day.volume < 1:
        kept = (t < day.onset) | (rng.random(len(t)) < day.volume)
        t, index = t[kept], index[kept]
    order = np.argsort(t, kind="stable")
    return t[order], index[order]


def _write_replayed(trace: Arrivals, which: _Ints, w: Arrays) -> None:
    """Replace lengths and shared prefixes by those of the trace, where it has any."""
    w["prompt"], w["output"] = trace.prompt[which], np.clip(trace.output[which], 2, _MAX_OUTPUT)
    if (trace.group >= 0).any():
        w["group"], w["group_tokens"] = trace.group[which], trace.shared[which]
    w["group_tokens"] = np.minimum(w["group_tokens"], w["prompt"] - 1)


def draw_demand(day: Day, seed: int) -> Demand:
    """Draw the requests of a day; the seed decides what is left to chance."""
    deployment = day.deployment
    rng = np.random.default_rng([seed, 1])
    replayed = None if day.replay is None else replay(day, day.replay, rng)
    start = arrivals(day, rng) if replayed is None else replayed[0]
    n = len(start)
    after = start >= day.onset
    picks = {
        "route": _pick(day, "route", [r.share for r in deployment.routes], after, rng),
        "tenant": _pick(day, "tenant", deployment.tenants, after, rng),
        "region": _pick(day, "region", [r.share for r in deployment.regions], after, rng),
        "app": _pick(day, "app", [a.share for a in deployment.apps], after, rng),
    }
    w: Arrays = {"start": start, **picks}
    _write(deployment, w, rng)
    if day.replay is not None and replayed is not None:
        _write_replayed(day.replay, replayed[1], w)
    _connect(deployment, w, rng)
    for name, value in (
        ("patience", rng.lognormal(np.log(deployment.patience_s), 0.4, n)),
        ("timeout", np.full(n, deployment.timeout_s)),
        ("retries", np.full(n, 2)),
        ("break_at", np.full(n, -1)),
        ("resume", np.zeros(n, np.int64)),
    ):
        w[name] = value
    for k, edit in enumerate(day.edits):
        edit(w, after, np.random.default_rng([seed, 2, k]))
    _bound(deployment, w)
    _chain(day, w, np.random.default_rng([seed, 3]))
    work = np.zeros(len(w["start"]), WORK).view(np.recarray)
    for name in WORK.names or ():
        work[name] = w[name]

    columns: dict[str, Any] = {
        name: np.ascontiguousarray(w[name], kind)
        for kind, names in ((np.int64, _WHOLE), (np.float64, _REAL)) for name in names
    }  # fmt: skip
    return Demand(work=work, **columns)


def _pick(
    day: Day, dimension: str, shares: object, after: NDArray[np.bool_], rng: np.random.Generator
) -> _Ints:
    usual = np.cumsum(np.asarray(shares, np.float64))
    x = rng.random(len(after))
    found = np.searchsorted(usual, x * usual[-1])
    if dimension in day.mix:
        later = np.cumsum(day.mix[dimension])
        found = np.where(after, np.searchsorted(later, x * later[-1]), found)
    picked: _Ints = np.minimum(found, len(usual) - 1).astype(np.int64)
    return picked


def _write(deployment: Deployment, w: Arrays, rng: np.random.Generator) -> None:
    """Draw lengths, shared prefixes, adapters and what a draft model would make of the text."""
    route = w["route"]
    n = len(route)

    def of(name: str) -> _Floats:
        return np.array([getattr(r, name) for r in deployment.routes], np.float64)[route]

    groups = len(deployment.tenants) * len(deployment.routes)
    w["group"] = w["tenant"] * len(deployment.routes) + route
    size = rng.uniform(0.8, 1.2, groups)[w["group"]]
    w["group_tokens"] = (of("prompt") * of("prefix") * size).astype(np.int64)
    own = of("prompt") * (1 - of("prefix")) * np.exp(of("prompt_spread") * rng.normal(size=n))
    w["prompt"] = w["group_tokens"] + np.maximum(8, own).astype(np.int64)
    output = of("output") * np.exp(of("output_spread") * rng.normal(size=n))
    w["output"] = np.maximum(2, output).astype(np.int64)
    w["acceptance"] = np.clip(of("acceptance") + 0.06 * rng.normal(size=n), 0.05, 0.97)
    if deployment.adapters:
        popular = 1.0 / np.arange(1, deployment.adapters + 2) ** 1.2
        drawn = rng.choice(deployment.adapters + 1, n, p=popular / popular.sum())
        w["adapter"] = drawn - 1  # -1 is the base model
    else:
        w["adapter"] = np.full(n, -1)
    silent_s = of("silent_s") * np.exp(0.7 * rng.normal(size=n))
    hidden = (silent_s / deployment.cost.base_s).astype(np.int64)
    hidden = np.minimum(hidden, _MAX_OUTPUT)
    w["silent_from"] = np.where(hidden > 0, w["output"] // 6 + 1, 0)
    w["silent_until"] = w["silent_from"] + hidden
    w["hidden"] = hidden


def _connect(deployment: Deployment, w: Arrays, rng: np.random.Generator) -> None:
    """Draw what the way to the gateway costs."""
    n = len(w["region"])
    floor = np.array([region.rtt_s for region in deployment.regions])[w["region"]]
    w["rtt"] = floor * (1.0 + 0.05 * rng.exponential(size=n))
    reuse = np.array([app.reuse for app in deployment.apps])[w["app"]]
    fresh = rng.random(n) > reuse
    w["fresh"] = fresh
    w["dns"] = np.where(fresh, 0.002 + 0.004 * rng.exponential(size=n), 0.0)
    w["connect"] = np.where(fresh, w["rtt"], 0.0)
    w["tls"] = np.where(fresh, w["rtt"] + 0.002, 0.0)
    w["send"] = 0.0001 + w["prompt"] * 4 / 1.25e8 + 0.0001 * rng.exponential(size=n)
    hold = np.array([app.hold_s for app in deployment.apps])[w["app"]]
    w["hold"] = hold * np.exp(0.3 * rng.normal(size=n))
    w["gateway"] = w["region"]
    w["pool"] = w["app"] * len(deployment.regions) + w["region"]


def _bound(deployment: Deployment, w: Arrays) -> None:
    """Keep edited requests within what the engine takes, and add up what follows from them."""
    w["output"] = np.clip(w["output"] + w["hidden"], 2, _MAX_OUTPUT)
    room = deployment.max_model_len - w["output"]
    w["prompt"] = np.clip(w["prompt"], 4, room)
    w["group_tokens"] = np.minimum(w["group_tokens"], w["prompt"] - 1)
    w["back"] = w["rtt"] / 2
    w["before"] = w["dns"] + w["connect"] + w["tls"] + w["send"] + w["back"]


def _chain(day: Day, w: Arrays, rng: np.random.Generator) -> None:
    """Append the requests that agents make when their tools have answered."""
    n = len(w["start"])
    is_agent = np.array([route.agent for route in day.deployment.routes])[w["route"]]
    w["turn"] = np.where(is_agent, np.arange(n), -1)
    for name in ("follow", "tool_calls"):
        w[name] = np.full(n, -1 if name == "follow" else 0)
    for name in ("follow_s", "tool_serial", "tool_critical", "tool_wall"):
        w[name] = np.zeros(n)
    opened = w["start"].copy()
    last = np.flatnonzero(is_agent)
    for _ in range(_MAX_ROUNDS):
        if not len(last):
            break
        calls = 1 + rng.binomial(4, 0.5, len(last))
        took = day.deployment.tool_s * np.exp(_TOOL_SPREAD * rng.normal(size=(len(last), 5)))
        took = np.where(np.arange(5) < calls[:, None], took, 0.0)
        size = len(w["start"])
        new = {name: column[last].copy() for name, column in w.items()}
        new["prompt"] = np.minimum(
            w["prompt"][last] + w["output"][last] + 150 * calls,
            day.deployment.max_model_len - w["output"][last],
        )
        new["start"] = np.full(len(last), np.inf)
        for name in ("dns", "connect", "tls"):
            new[name] = np.zeros(len(last))
        new["before"] = new["send"] + new["back"]
        new["follow"] = np.full(len(last), -1)
        new["tool_calls"] = np.zeros(len(last), np.int64)
        serial = took.sum(axis=1)
        longest = took.max(axis=1)
        late = opened[last] >= day.onset
        wall = np.where(late & day.serial_tools, serial, longest)
        w["follow"][last] = size + np.arange(len(last))
        w["follow_s"][last] = wall + 0.002
        w["tool_calls"][last] = calls
        w["tool_serial"][last] = serial
        w["tool_critical"][last] = longest
        w["tool_wall"][last] = wall
        opened = np.concatenate([opened, opened[last]])
        for name, column in new.items():
            w[name] = np.concatenate([w[name], column])
        last = (size + np.arange(len(last)))[rng.random(len(last)) < 0.4]  # noqa: PLR2004
