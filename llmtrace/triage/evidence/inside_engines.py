"""Find what limits engines: front end, KV cache, batch size and step time."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, finite
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, TAIL
from llmtrace.triage.evidence.counter_ratios import ratio_of
from llmtrace.triage.evidence.engine_starts import starts
from llmtrace.triage.evidence.evidence import Evidence, memoized
from llmtrace.triage.evidence.signals import Moved
from llmtrace.triage.evidence.window_rows import Side

_TWICE: Final = 2.0
_EARLY: Final = 0.5  # of the time to first chunk
_FULL: Final = 0.8  # KV usage
_SHRANK: Final = 0.6  # tokens that the cache holds, after over before
_FEWER_ACCEPTED: Final = 0.8  # of the share before
_FEW_STEPS: Final = 8
_OTHERS: Final = 1.2  # requests that engines count, over those in rows
_FEW_READS: Final = 10  # samples that meet a waiting request; fewer may all miss by chance
_BURSTS: Final = 0.1  # added share of chunks that arrive together
# Of the line of time per token over batch size:
_MIN_SPREAD: Final = 0.08  # standard deviation of batch sizes over their mean
_SAME_BATCH: Final = 0.01  # range of typical batch sizes over the largest
_EXTRAPOLATE: Final = 2.5  # times the largest batch before
_PARTS: Final = 8  # of the requests, by batch size; each gives one point of the line


@memoized
def cache_fell_first(e: Evidence) -> bool | None:
    """Return whether cache hits fell while the KV cache had room: nothing evicted prefixes.

    `None` = unknown, or the cache was full all along.
    """
    share, usual = e.after.number("cached_share"), e.before.number("cached_share")
    usage = e.series("kv_usage")
    if not usage or not np.isfinite(usual).any():
        return None
    words = e.after.rows.words["replica"]
    early = np.zeros(len(e.after), bool)  # requests from before the cache was first full
    for name, series in usage.items():
        here = words.where(name) if name in words.names else words.codes < 0
        after = series.within(e.served)
        if len(after.t) < 2:
            continue
        full = after.t[after.value >= _FULL]
        # It may have been full from the sample before on.
        last = max(int(np.searchsorted(after.t, full[0])) - 1, 0) if len(full) else -1
        early |= here & (e.after.t < (after.t[last] if last >= 0 else np.inf))
    early &= np.isfinite(share)
    if early.sum() < MIN_COUNT:
        return None
    return bool(share[early].mean() <= 0.75 * np.nanmean(usual))


def cache_shrank(e: Evidence) -> bool | None:
    """Return whether the same tokens fill more of the KV cache, so that it holds fewer.

    Running requests then leave less room for prefixes. `None` = unknown.
    """
    running, usage = e.gauge("running"), e.gauge("kv_usage")
    # Rows do not tell what tokens of other clients fill.
    if running is None or usage is None or e.other_clients("tokens_in") is not None:
        return None
    sizes = []
    for side, ran, used in (
        (e.before, running.fleet.before_mean, usage.fleet.before_mean),
        (e.after, running.fleet.after_mean, usage.fleet.after_mean),
    ):
        held = finite(side.number("uncached_tokens") + side.number("output_tokens") / 2)
        if len(held) < MIN_COUNT or used <= 0:
            return None
        sizes.append(ran * float(held.mean()) / used)
    return sizes[1] <= _SHRANK * sizes[0]


def is_disaggregated(e: Evidence) -> bool:
    """Return whether engines have both roles of vLLM's `kv_transfer_config`."""
    roles = {facts.get("kv_role") for facts in e.facts.instances.values()}
    return roles >= {"kv_producer", "kv_consumer"}


def slow_front_end(e: Evidence) -> bool | None:
    """Return whether the engine's front end takes longer; `None` = unknown, or too few samples."""
    floor, answered = e.floor("first_chunk_s"), e.row("answered_s")
    rows, gauge = e.row("first_chunk_frontend_s"), e.gauge("frontend_time")
    found = [one.rose(floor, 0.3) for one in (rows, gauge) if one is not None]
    if any(found) or not found:
        return any(found) if found else None
    fleet = gauge.fleet if gauge is not None else None
    if fleet is None or fleet.after_mean < _TWICE * fleet.before_mean or e.up("gateway_once_s"):
        return False
    # If status lines usually come long before first chunks, they show the front end alone.
    first = e.row("ttft_s")
    early = answered and first and answered.before_p50 <= _EARLY * first.before_p50
    return (e.up("answered_s", relative=0.5) or None) if early else None


def front_end_part(e: Evidence) -> float | None:
    """Return the front end's share of the mean growth of the stages that may contain it."""
    front = e.row("first_chunk_frontend_s")
    if front is None:
        gauge = e.gauge("frontend_time")
        front = gauge.fleet if gauge is not None else None
    stages = [e.row(f"{name}_s") for name in ("first_chunk", "queue", "unattributed")]
    more = [max(one.mean_change, 0.0) for one in stages if one is not None]
    if front is None or sum(more) <= 0:
        return None
    # The median too: a counter that is read late gives one huge sample.
    return max(front.mean_change, front.after_p50 - front.before_p50) / sum(more)


def drafts_fail(e: Evidence) -> bool | None:
    """Return whether far fewer draft tokens are accepted; `None` = not reported."""
    accepted = ratio_of(e, "spec_accepted", "spec_drafted")
    return None if accepted is None else accepted.after < _FEWER_ACCEPTED * accepted.before


def highest(moved: Moved, percent: float = 95) -> float:
    """Return the highest percentile (p95) of any instance in the window after; 0 = no samples."""
    found = [float(np.percentile(s.value, percent)) for s in moved.after.values() if len(s.value)]
    return max(found, default=0.0)


def at_limit(e: Evidence) -> tuple[bool | None, str]:
    """Return whether any instance runs as many requests as it may, and text."""
    if e.gauge("running") is None:
        return None, "requests running: not reported"
    found = batch_filled(e)
    if found is None:
        return None, "the engines' limit (`max_num_seqs`) is not known"
    filled, text = found
    return filled >= 0.95, text


def batch_filled(e: Evidence) -> tuple[float, str] | None:
    """Return how full the fullest engine's batch is (p90 of running over its limit), and text."""
    running, found = e.gauge("running"), None
    for name, series in running.after.items() if running is not None else ():
        limit = e.number_fact("max_num_seqs", name) or e.number_fact("max_num_seqs")
        if limit and len(series.value):
            highest = float(np.percentile(series.value, 90))
            text = f"{name} runs {say.amount(highest)} of at most {say.amount(limit)}"
            found = max(found or (0.0, text), (highest / limit, text), key=lambda one: one[0])
    return found


def gauge_misses_waits(e: Evidence) -> bool:
    """Return whether so few requests wait at a time that the gauge's samples hardly meet any.

    By Little's law: total seconds waited over the time, times the number of samples.
    """
    waiting = e.gauge("waiting")
    waits = np.nansum(e.after.number("queue_s") * e.after.rows.weights) / e.served.seconds
    reads = [len(one.t) for one in waiting.after.values()] if waiting is not None else [0]
    return bool(waits * np.mean(reads) < _FEW_READS)


def serves_more_others(e: Evidence) -> bool:
    """Return whether engines serve clearly more requests than are in rows, and did not before."""
    counted = e.ended or (0.0, 0.0)
    before, after = counted[0] / max(len(e.before), 1), counted[1] / max(len(e.after), 1)
    return after >= _OTHERS * max(before, 1.0)


def limit_fell(e: Evidence) -> str:
    """Say that an engine ran more requests before than its limit allows now; empty = none did."""
    running = e.gauge("running")
    if running is None:
        return ""
    for name, after in running.after.items():
        limit = e.number_fact("max_num_seqs", name) or e.number_fact("max_num_seqs")
        before = running.before.get(name)
        if limit is None or before is None or not min(len(before.value), len(after.value)):
            continue
        highest = float(before.value.max())
        if highest > limit >= after.value.max():
            return f"{name} ran up to {say.amount(highest)} before, and {say.amount(limit)} now"
    return ""


def first_chunk_later(e: Evidence) -> tuple[bool | None, bool | None]:
    """Return whether only the first chunk is late, and whether the whole response is as late.

    Buffering delays content, but not the end of a response.
    """
    first, whole = e.row("ttft_s"), e.row("e2e_s")
    if first is None or whole is None:
        return None, None
    later = bool(e.up("ttft_s"))
    grew, at_first = (one.mean_change for one in (whole, first))
    longer = later and bool(e.up("e2e_s")) and grew >= 0.8 * at_first
    return later and not longer and whole.change <= 0.5 * max(first.change, 0.0), longer


def late_after_prefill(e: Evidence) -> bool:
    """Return whether rows show a late first chunk, and nothing but the engine makes it late.

    A proxy that buffers would let later chunks arrive together, and the end no later; longer steps
    would delay all chunks.
    """
    part = e.part_of_metric("first_chunk_s")
    held, bursts = e.row("burst_chunks"), e.row("burst_share")
    few = bursts is None or bursts.mean_change < _BURSTS
    flows = (held is not None and not held.mean_rose(0.0)) or (few and first_chunk_later(e)[1])
    elsewhere = e.up("queue_s") or e.up("prefill_s") or e.up("gateway_s") or e.up("client_lag_s")
    return bool((part or 0.0) >= HALF and flows and not elsewhere
                and waits_for_steps(e) is False and not starts(e))  # fmt: skip


def waits_for_steps(e: Evidence) -> bool | None:
    """Return whether longer steps may explain the first chunk's delay; `None` = not known.

    A new request waits for the end of the running step, and for a few more that take longer.
    """
    first, per_token = e.row("first_chunk_s"), e.row("tpot_s")
    if first is None or per_token is None:
        return None
    longer = max(per_token.after_p95 - per_token.before_p95, 0.0)
    return first.mean_change <= per_token.after_p95 + _FEW_STEPS * longer


def tpot_over_expected(e: Evidence) -> float | None:
    """Return the median time per token after, over what a line gives for its batch size.

    The line of time per token over requests running is fitted to the window before, so 1 = as fast
    as before. `None` = not reported, batches hardly differed before, or are far larger now.
    """
    return _over_expected(e)[0]


def slow_tpot_over_expected(e: Evidence) -> float | None:
    """Return the same ratio of the slow requests after, over that of the slow ones before.

    It shows what makes only some of them slow, which a median hides. Slow is above the p95 before.
    `None` also if there are too few.
    """
    return _over_expected(e)[1]


@memoized
def _over_expected(e: Evidence) -> tuple[float | None, float | None]:
    samples = []
    for side in (e.before, e.after):
        batch, tpot = side.sampled(_batch_sizes(e, side)), side.sampled(side.number("tpot_s"))
        known = np.isfinite(batch) & np.isfinite(tpot)
        if known.sum() < 3 * MIN_COUNT:
            return None, None
        samples.append((batch[known], tpot[known]))
    (batch_b, tpot_b), (batch_a, tpot_a) = samples
    if batch_b.std() < _MIN_SPREAD * max(float(batch_b.mean()), 1.0):
        return None, None
    if float(np.median(batch_a)) > _EXTRAPOLATE * max(float(batch_b.max()), 1.0):
        return None, None
    parts = np.array_split(np.argsort(batch_b, kind="stable"), _PARTS)
    x, y = np.array([np.median(np.c_[batch_b, tpot_b][part], axis=0) for part in parts]).T
    if np.ptp(x) <= _SAME_BATCH * float(x.max()):
        return None, None
    slope, base = np.polyfit(x, y, 1)
    line = np.poly1d((max(slope, 0.0), base))
    expected = float(line(np.median(batch_a)))
    typical = float(np.median(tpot_a)) / expected if expected > 0 else None
    limit = np.quantile(tpot_b, 1 - TAIL)
    slow_b, slow_a = ((tpot / line(batch))[tpot > limit] for batch, tpot in samples)
    if min(len(slow_b), len(slow_a)) < MIN_COUNT or float(np.median(slow_b)) <= 0:
        return typical, None
    return typical, float(np.median(slow_a) / np.median(slow_b))


def _batch_sizes(e: Evidence, side: Side) -> Floats:
    """Return the number of requests running on each row's engine during it, from the gauge."""
    words = side.rows.words["replica"]
    middle = side.t + side.number("ttft_s") + side.number("decode_s") / 2
    found = np.full(len(side), np.nan)
    for name, series in e.series("running").items():
        here = words.where(name) if name in words.names else words.codes < 0
        inside = series.within(side.window)
        if len(inside.t) >= 2 and here.any():
            found[here] = np.interp(middle[here], inside.t, inside.value)
    return found


def slept(e: Evidence) -> bool | None:
    """Return whether an engine reported that it was asleep; `None` = not reported."""
    asleep = e.gauge("sleep")
    return None if asleep is None else any((s.value > 0).any() for s in asleep.after.values())
