"""The rule for a slow GPU or machine: throttled, shared with other work, short of power."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, finite
from llmtrace.triage.causes.scoring import (
    POSSIBLE,
    Line,
    against,
    gate,
    judge,
    only,
    proof,
    required,
    support,
    with_points,
)
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.blocking_prompts import held_up, long_prompts_of_others
from llmtrace.triage.evidence.changes import HALF
from llmtrace.triage.evidence.counter_ratios import ratio_of
from llmtrace.triage.evidence.engine_starts import starts
from llmtrace.triage.evidence.evidence import ENGINE_STAGES, Evidence, Local
from llmtrace.triage.evidence.inside_engines import drafts_fail, slept, tpot_over_expected
from llmtrace.triage.evidence.signals import Moved
from llmtrace.triage.result import NAMED, Finding, Point

# NVML throttle reasons that are harmless: idle, application clocks, sync boost, display clock.
_HARMLESS: Final = 0x1 | 0x2 | 0x10 | 0x100
_SLOWED: Final = 1.15  # ratio of times for the same work
_FAR_SLOWED: Final = 1.4
# ratio of times for the same work, if something else shows that a GPU is shared
_FELT: Final = 1.08
_CONTEXT_BYTES: Final = 0.3e9  # of a CUDA context, which every program on a GPU has
# ratio of token rates from which a GPU's lower clock may follow from its load
_BUSIER: Final = 1.5
_LONGER: Final = 1.5  # times the longest prompt before
_BY_POWER: Final = 0.25  # of its clock, that a GPU loses at most at its power limit
_LESS_BUSY: Final = 0.8  # of the utilisation before
_SHARED: Final = 1.5  # times the slowdown that the clock explains


def gpu_throttle(e: Evidence) -> Finding:
    """A GPU runs slower than it should: heat, power, a fault, or another program that uses it.

    Looks like:
        Prefill per token and time per token rise together at the same load, usually on one
        replica. The clock falls, a throttle reason is set, an XID error appears, or another
        program takes memory. At its power limit, more work lowers the clock, and is the cause.

    Confirm:
            min by (instance, gpu) (llmtrace_gpu_sm_clock_hertz)
              / max by (instance, gpu) (llmtrace_gpu_sm_clock_max_hertz)
            max by (instance, reason) (llmtrace_gpu_throttled)
            increase(llmtrace_gpu_xid_errors_total[1h])
        On the node: `nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER`, `nvidia-smi pmon`.

    Now:
        Reroute: drain the node, then look at cooling, power caps and the kernel log.

    Later:
        Export throttle reasons (off in dcgm-exporter by default); alert on a low clock under load.
    """
    clock = e.gauge("gpu_sm_clock_mhz")
    throttled, xid = _throttled(e), _new_xid(e)
    fell = None if clock is None else _clock_fell(clock) and not _less_busy(e)
    reported = [one for one in (fell, throttled, xid) if one is not None]
    local = e.local("replica", "tpot_s") or e.local("replica", "ttft_s")
    curve, prefill = of_its_own(e, local)
    slower, unseen = works_slower(e, curve or 0.0, prefill or 0.0)
    shared, busier = _beyond_the_clock(e, clock, curve or 0.0, prefill or 0.0)
    taken = _memory_taken(e, slowed := max(curve or 0.0, prefill or 0.0))
    by_itself = bool(fell) and not (shared.holds or busier.holds)
    lines = [
        # One of many replicas hardly moves all requests, but moves its own.
        gate(local is not None or e.stage_rose(*ENGINE_STAGES),
             say.durations("time per token", e.row("tpot_s")), "stages of requests"),
        required((bool(taken) or any(reported) or bool(slower and shared.holds))
                 if reported else unseen or None,
                 taken or "prompt tokens and batch steps both take longer"
                 if slower and not fell else say.gauge("SM clock, MHz", clock, down=True),
                 "GPU signals: `gpu_sm_clock_mhz` and `gpu_throttle` (NVML or dcgm-exporter)"),
        proof(bool(throttled and by_itself) or bool(xid) if reported else None,
              "a new XID error" if xid else "the clock fell, and a throttle reason is set"),
        support(throttled if reported else None, "a throttle reason is set that was not"),
        proof(bool(taken), f"{taken}: another program is on it"),
        proof(None if fell is None else by_itself and slowed >= _SLOWED,
              "the same work takes longer at a lower clock"),
        shared,
        busier,
        against(_less_busy(e), "the GPUs have less to do, and lower their clock", strongly=True),
        support(None if curve is None else curve >= _SLOWED,
                f"time per token is {say.amount(curve or 0)} times what the batch explains"),
        support(None if prefill is None else prefill >= _SLOWED,
                f"prefill at the same length: {say.amount(prefill or 0)} times what it was"),
        proof(None if local is None or clock is None else _clock_fell_far(clock, local.value),
              f"slow on {local}, whose clock fell"),
        *_heat(e, fell=bool(fell)),
    ]  # fmt: skip
    at, action = _slow_node(clock if fell else None, shared=bool(shared.holds or taken))
    found = judge("gpu_throttle", lines, action, group=local or only(e, at))
    return _possible_without_gpu(found) if unseen and not reported else found


def _clock_fell(clock: Moved) -> bool:
    """Return whether the clock fell; now and then shows only in the mean."""
    return clock.fell(0.0, 0.08) or clock.fleet.mean_fell(0.08)


def _less_busy(e: Evidence) -> bool:
    """Return whether the GPUs' utilisation fell."""
    util = e.gauge("gpu_util")
    return util is not None and util.fleet.after_mean < _LESS_BUSY * util.fleet.before_mean


def _heat(e: Evidence, *, fell: bool) -> tuple[Line, Line]:
    """Make two lines: a GPU is hotter, or takes less power at a lower clock."""
    heat, power = e.gauge("gpu_temp_c"), e.gauge("gpu_power_w")
    return (
        support(heat.rose(0.0, 0.08) if heat else None, say.gauge("temperature, °C", heat)),
        support(power.fell(0.0, 0.1) if power and fell else None,
                say.gauge("power, W", power, down=True)),
    )  # fmt: skip


def _memory_taken(e: Evidence, slowed: float) -> str:
    """Say by how much a GPU's memory in use rose, if another program is on it; else empty.

    Engines take theirs when they start, or for prompts longer than any before. Whatever else
    computes on a GPU needs a context there, and makes the same work take `slowed` times as long.
    """
    usual, longest = (finite(side.number("computed_tokens")).max(initial=1.0)
                      for side in (e.before, e.after))  # fmt: skip
    longer = longest > _LONGER * usual or long_prompts_of_others(e) is not None
    if starts(e) or slowed < _FELT or longer:
        return ""
    for name, series in e.series("gpu_mem_used_bytes").items():
        before, after = (series.within(one).value for one in (e.before.window, e.served))
        most = before.max(initial=0.0) or np.inf
        more = after[after >= most + _CONTEXT_BYTES]
        if len(more) >= max(HALF * len(after), 1):
            used = f"{most / 1e9:.1f} → {np.median(more) / 1e9:.1f} GB"
            return f"memory in use on the GPU of {name} {used}"
    return ""


def of_its_own(e: Evidence, local: Local | None) -> tuple[float | None, float | None]:
    """Return how much longer steps and prompt tokens take, of one replica if only that is slow."""
    mine = e if local is None else e.of_replica(local.value)
    return tpot_over_expected(mine), mine.prefill_ratio


def _beyond_the_clock(
    e: Evidence, clock: Moved | None, curve: float, prefill: float
) -> tuple[Line, Line]:
    """Make two lines: another program slows the GPU, or its clock is low because of its load.

    A lower clock makes work slower by the ratio of the clocks at most.
    """
    found = None if clock is None else clock.most(down=True)[1]
    most = 1.0 if found is None else max(found.before_mean / max(found.after_mean, 1.0), 1.0)
    slowed, more = max(curve, prefill), e.token_rate_ratio or 1.0
    seen = clock is not None or e.has("gpu_throttle")
    busier = seen and more >= _BUSIER and not _SLOWED <= prefill <= _SHARED * most
    return (
        support(found is not None and not busier and slowed > _SHARED * most,
                f"the same work takes {slowed:.1f} times as long, of which the clock explains at "
                f"most {most:.2f}: another program uses the GPU"),
        against(busier, f"the engines compute {more:.1f} times as many tokens a second: at its "
                "power limit a GPU lowers its clock", strongly=True),
    )  # fmt: skip


def _clock_fell_far(clock: Moved, name: str) -> bool:
    """Return whether a GPU's clock fell by more than its power limit would lower it."""
    mine = clock.instances.get(name)
    return mine is not None and mine.fell(0.0, _BY_POWER)


def _slow_node(clock: Moved | None, *, shared: bool) -> tuple[str | None, str]:
    """Return the node whose clock fell most, if one stands out, and the action to take."""
    at = None if clock is None else clock.most(down=True)[0]
    if shared:
        return at, "Fix: find the other program (`nvidia-smi pmon`), and give it another GPU."
    if clock is not None and at is None and len(clock.instances) > 1:
        return at, "Fix what the nodes share, for all are slower: power caps, cooling, drivers."
    node = at or "the node whose clock fell"
    return at, f"Reroute: drain {node}, look at cooling, power and XIDs."


def _possible_without_gpu(found: Finding) -> Finding:
    """Make the finding just possible: without GPU signals, a slow GPU is only one explanation."""
    text = "no GPU is seen: another program, a quota or a setting may take its time"
    points = [Point(text, POSSIBLE - found.score)]
    return with_points(found, points) if found.status in NAMED else found


def works_slower(e: Evidence, *times: float) -> tuple[bool, bool]:
    """Return whether the same work takes longer for no other known reason, and without a GPU seen.

    `times` are ratios of the time for the same work, after over before, per prompt token and per
    step. If cached tokens are not reported, prompts may take longer only for fewer cached tokens.
    """
    halts = slept(e) or bool(starts(e)) or bool(held_up(e)) or e.more_load
    slower = min(times) >= _SLOWED and math.prod(times) >= _SLOWED * _FAR_SLOWED
    hits = ratio_of(e, "prefix_hits", "prefix_queries")
    cached = e.after.known("cached_tokens") or hits is not None
    slower = slower and not halts and cached and not drafts_fail(e)
    seen = any(e.has(f"gpu_{name}") for name in ("sm_clock_mhz", "throttle", "util", "power_w"))
    return slower, slower and not seen


def _throttled(e: Evidence) -> bool | None:
    """Return whether a throttle reason was set clearly more often than before, anywhere."""
    moved = e.gauge("gpu_throttle")
    if moved is None:
        return None
    every = np.concatenate([s.value for s in (*moved.before.values(), *moved.after.values())])
    flag = bool(np.isin(every, (0.0, 1.0)).all())

    def throttled(values: Floats) -> float:
        bits = values > 0 if flag else (values.astype(np.int64) & ~_HARMLESS) != 0
        return float(bits.mean()) if len(bits) else 0.0

    return any(
        throttled(after.value) >= throttled(moved.before[name].value) + 0.2
        for name, after in moved.after.items()
    )


def _new_xid(e: Evidence) -> bool | None:
    """Return whether a GPU reports an XID error that it did not report before.

    Exporters give the last error or count each kind; some give nothing until there is one.
    """
    found = []
    for signal in ("gpu_xid", "gpu_xid_errors"):
        for name, series in e.series(signal).items():
            before, after = (series.within(one) for one in (e.before.window, e.served))
            if len(before.t) or _gpu_seen_before(e, name):
                found.append(bool(set(after.value) - set(before.value) - {0.0}))
    return any(found) if found else None


def _gpu_seen_before(e: Evidence, name: str) -> bool:
    """Return whether anything else was sampled of an instance's GPUs in the window before."""
    window = e.before.window
    series = (e.series(signal).get(name) for signal in ("gpu_sm_clock_mhz", "gpu_util"))
    return any(one is not None and len(one.within(window).t) for one in series)
