"""Put into a simulated day the causes that the fleet simulator itself has none of.

Fewer or more requests are planned before anything runs; what a client or a transfer between two
engines adds is written into the rows afterwards, for nothing else follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from llmtrace.dataset.case import Case, Event
from llmtrace.dataset.columns import Columns, Words
from llmtrace.simulator.fleet.plan import Day
from llmtrace.stats.arrays import Floats, Mask

# What each can be known by, as in `worlds.KNOWN_BY`.
KNOWN_BY: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "traffic_lost": (("tenant", "region"),),
    "traffic_surge": (("tenant",),),
    "client_cold": (
        ("network_client_wait_s", "network_connect_s", "version"),
        ("network_client_wait_s", "network_connect_s"),
    ),
    "disaggregated_kv": (("first_chunk_kv_transfer_s",),),
}
_BUSIEST: Final = 0.3  # of what the machines can take: more requests are answered as fast


def plan(cause: str, severity: float, day: Day) -> None:
    """Plan fewer or more requests from the onset on; of other causes nothing is planned."""
    if cause not in ("traffic_lost", "traffic_surge"):
        return
    there = day.deployment
    whose = "tenant" if cause == "traffic_surge" or day.rng.random() < 0.5 else "region"
    given = there.tenants if whose == "tenant" else tuple(one.share for one in there.regions)
    shares = np.array(given, np.float64) / sum(given)
    everywhere = day.rng.random() < 0.4
    if cause == "traffic_lost":
        left = 1 / (1 + severity) if everywhere else 1 - float(shares.max())
        shares = shares if everywhere else np.where(shares == shares.max(), 0.0, shares)
        day.volume = max(left, 0.02)
    else:
        times = 1.5 + severity
        room = max(_BUSIEST * there.capacity / (times * there.rate), 1e-9)
        day.deployment = replace(there, rate=there.rate * min(room, 1.0))
        day.volume = times
        if not everywhere:
            shares[int(np.argmin(shares))] += times - 1
    day.mix[whose] = tuple((shares / shares.sum()).tolist())


def write(cause: str, severity: float, case: Case, rng: np.random.Generator) -> Case:
    """Write into the rows what a client's start or a slow transfer adds to them."""
    if cause not in ("client_cold", "disaggregated_kv") or case.after is None:
        return case
    rows = case.rows
    t = rows.start / 1e9
    after = t >= case.after.start
    ttft = rows.numbers["ttft_s"]
    usual = float(np.nanmedian(ttft))
    if cause == "disaggregated_kv":
        before = usual * 0.1 * rng.gamma(4.0, 0.25, rows.n)
        more = usual * (0.3 + severity) * rng.gamma(4.0, 0.25, rows.n)
        moved = np.where(after, more, before)
        moved = np.where(np.isfinite(rows.numbers["first_chunk_s"]), moved, np.nan)
        numbers = dict(rows.numbers) | {"first_chunk_kv_transfer_s": moved}
        return replace(case, rows=_longer(replace(rows, numbers=numbers), "first_chunk_s", moved))
    share = (0.2, 0.3, 0.4)[round(severity) - 1]
    until = case.after.start + share * case.after.seconds
    first = after & (t < until) & (rng.random(rows.n) < 0.5)
    added = np.where(first, usual * (1 + severity) * rng.gamma(4.0, 0.25, rows.n), 0.0)
    numbers, words = dict(rows.numbers), dict(rows.words)
    for name, part in (("network_client_wait_s", 0.6), ("network_connect_s", 0.4)):
        numbers[name] = np.nan_to_num(numbers[name]) + part * added
    words["version"] = _new_version(words["version"], after)
    rows = _longer(replace(rows, numbers=numbers, words=words), "network_s", added)
    happened = Event(case.after.start, "deploy", "the application's new version is rolled out")
    facts = replace(case.facts, events=(*case.facts.events, happened))
    return replace(case, rows=rows, facts=facts)


def _longer(rows: Columns, stage: str, by: Floats) -> Columns:
    """Return rows of which a stage, and what it is part of, takes longer."""
    added, numbers = np.nan_to_num(by), dict(rows.numbers)
    for name in (stage, "ttft_s", "e2e_s", "ttft_arrival_s", "last_content_s"):
        numbers[name] = numbers[name] + added
    return replace(rows, numbers=numbers)


def _new_version(words: Words, after: Mask) -> Words:
    names = (*words.names, "3.0.0")
    return Words(np.where(after, len(words.names), words.codes).astype(np.int32), names)
