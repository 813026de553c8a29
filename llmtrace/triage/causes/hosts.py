"""Rules for causes in a machine or an engine process: throttled, starting, paused, down."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from llmtrace.stats.arrays import Floats, finite
from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.causes.scoring import (
    POSSIBLE,
    Group,
    Line,
    against,
    at_most_possible,
    gate,
    judge,
    proof,
    required,
    steady,
    support,
    with_points,
)
from llmtrace.triage.evidence import engine_halts, gone_engines
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.blocking_prompts import held_up, long_prompts_of_others, overlap
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, Shift
from llmtrace.triage.evidence.counter_ratios import ratio_of
from llmtrace.triage.evidence.cut_streams import broken, failures_by_end, where_broken
from llmtrace.triage.evidence.engine_starts import (
    Fresh,
    fresh,
    loading,
    restarted,
    stalled_start,
    starts,
)
from llmtrace.triage.evidence.evidence import ENGINE_STAGES, Evidence, Local
from llmtrace.triage.evidence.inside_engines import (
    drafts_fail,
    front_end_part,
    highest,
    late_after_prefill,
    limit_fell,
    serves_more_others,
    slow_front_end,
    tpot_over_expected,
    waits_for_steps,
)
from llmtrace.triage.evidence.refusals import over_quota, refused_connections
from llmtrace.triage.evidence.signals import Moved
from llmtrace.triage.result import NAMED, Finding, Point

# NVML throttle reasons that are harmless: idle, application clocks, sync boost, display clock.
_HARMLESS = 0x1 | 0x2 | 0x10 | 0x100
_CUT_OFF = 2  # requests
_STREAMS = 4  # responses in progress that stood still together
_SMALL_PART = 0.25
_LONGER = 1.5  # times the longest wait of nearly all responses, or the longest prompt, before
_SEVERAL = 3  # gaps
_SLOWED = 1.15  # ratio of times for the same work
_FAR_SLOWED = 1.4
_FELT = 1.08  # ratio of times for the same work, if something else shows that a GPU is shared
_CONTEXT_BYTES = 0.3e9  # of a CUDA context, which every program on a GPU has
_GATHERED = 0.3  # added share of chunks that arrive together
_BUSIER = 1.5  # ratio of token rates from which a GPU's lower clock may follow from its load
_BY_POWER = 0.25  # of its clock, that a GPU loses at most at its power limit
_SHARED = 1.5  # times the slowdown that the clock explains
_BEYOND_CHANCE = 1.05  # times the longest gap that chance makes of the same requests
_NEARLY_ALL = 0.9  # of the failed requests


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
    # A clock that falls now and then shows only in the mean.
    fell = None if clock is None else clock.fell(0.0, 0.08) or clock.fleet.mean_fell(0.08)
    reported = [one for one in (fell, throttled, xid) if one is not None]
    local = e.local("replica", "tpot_s") or e.local("replica", "ttft_s")
    curve, prefill = _of_its_own(e, local)
    slower, unseen = _works_slower(e, curve or 0.0, prefill or 0.0)
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
        support(None if curve is None else curve >= _SLOWED,
                f"time per token is {say.amount(curve or 0)} times what the batch explains"),
        support(None if prefill is None else prefill >= _SLOWED,
                f"prefill at the same length: {say.amount(prefill or 0)} times what it was"),
        proof(None if local is None or clock is None else _clock_fell_far(clock, local.value),
              f"slow on {local}, whose clock fell"),
        *_heat(e, fell=bool(fell)),
    ]  # fmt: skip
    at, action = _slow_node(clock if fell else None, shared=bool(shared.holds or taken))
    found = judge("gpu_throttle", lines, action, group=local or _on(e, at))
    return _possible_without_gpu(found) if unseen and not reported else found


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


def _of_its_own(e: Evidence, local: Local | None) -> tuple[float | None, float | None]:
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


def _works_slower(e: Evidence, *times: float) -> tuple[bool, bool]:
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


def slept(e: Evidence) -> bool | None:
    """Return whether an engine reported that it was asleep; `None` = not reported."""
    asleep = e.gauge("sleep")
    return None if asleep is None else any((s.value > 0).any() for s in asleep.after.values())


def cold_start(e: Evidence) -> Finding:
    """Requests went to an engine that had only just started.

    Looks like:
        First chunks are slow in a replica's first minutes (loading, compiling, graph capture,
        an empty cache), and recover by themselves. Other replicas are unchanged. Behind a
        gateway without a readiness check, the wait is in `first_chunk`.

    Confirm:
            time() - max by (instance) (process_start_time_seconds)
        In the engine's log: what it did before it reported ready.

    Now:
        Reroute until it is warm: mark it unready, and send it a few requests of every shape
        yourself.

    Later:
        Make readiness depend on a real response, not a port; keep compiled kernels on a volume;
        keep a minimum of replicas, and scale up before the daily peak.
    """
    absent = loading(e) if e.events("scale") else {}
    started, again = {**starts(e), **absent}, restarted(e)
    found = fresh(e, started)
    failures = e.outcome("error", "truncated", "timeout")
    events = e.events("scale", "deploy")
    known = e.has("started") or _start_time_in_facts(e)
    stood, first = stalled_start(e), e.row("ttft_s")
    stuck = stood is not None and first is not None and (
        stood[1] >= max(first.before_p95, _SMALL_PART * first.after_p95))  # fmt: skip
    stood_text = "" if stood is None else (
        f"{stood[0]} made no token for {say.seconds(stood[1])} after its start, while requests "
        "waited")  # fmt: skip
    names = ", ".join(sorted(started)) or "no engine"
    fell = limit_fell(e)
    all_again = len(again) >= max(2, 0.6 * len(e.instances))
    lines = [
        gate(bool(started) if known or started else None,
             f"{names} started shortly before or in the window",
             "when each engine started: the gauge `started`, or `started` in the facts"),
        required(stuck or bool(absent and e.moved) or (None if found is None else found.slower),
                 "it did not serve what waited for it" if stuck or absent else _fresh_text(found),
                 "the engine of each request, and enough of them"),
        proof(stuck, stood_text),
        proof(None if found is None else found.slower and found.slow_share >= 0.35,
              f"of the slow requests {say.percent(found.slow_share if found else 0)} are those"),
        support(None if found is None else found.slower and found.early >= 1.25 * found.late,
                "it gets better: median of the first half "
                f"{say.seconds(found.early if found else 0)}, of the second "
                f"{say.seconds(found.late if found else 0)}"),
        support(bool(events) if started else None,
                "; ".join(f"{one.kind}: {one.text}" for one in events)),
        against(None if found is None else found.stays,
                "the last requests are slow as well: a cold start ends", strongly=True),
        against(bool(fell) and not stuck, f"fewer run at once since then: {fell}", strongly=True),
        against(bool(again) and not all_again and failures.rose(0.003, 3, 2.0),
                f"requests failed with it: {failures}"),
    ]  # fmt: skip
    action = "Reroute until it is warm; send it warm-up requests before it is called ready."
    return judge("cold_start", lines, action + flags(e, "cold_start"), group=_on(e, *started))


def engine_paused(e: Evidence) -> Finding:
    """An engine paused and continued: put to sleep, updating weights, or stuck.

    Looks like:
        For a while a replica with open requests sends nothing; then all of them continue at
        once. There are no failures and no restart. Requests that arrive during the pause wait
        in `first_chunk`, because a stopped engine does not see them arrive.

    Confirm:
            min by (instance) (llmtrace_engine_awake)
            sum by (instance) (rate(llmtrace_engine_generation_tokens_total[1m]))
        Tokens are at 0 while requests run. Read the engine's log of that minute.

    Now:
        Reroute: take it out of the router while it sleeps, and before its weights are swapped.

    Later:
        Fix the schedule of updates; let the router watch `awake`.
    """
    asleep, long = slept(e), None if _serves_others_in_gap(e) else _stood_still(e)
    (before, quiet), others = engine_halts.engine_gaps(e), long_prompts_of_others(e)
    # A front end that is short of CPU counts tokens late, so this alone proves nothing.
    stopped = (scrapes := _scrapes_without_tokens(e)) and long is not False
    halts, text = _alike_halts(e, _gap_text(quiet, before.seconds if before else 0.0), long=long)
    reported = [one for one in (asleep, long, stopped, halts) if one is not None]
    seen = asleep or long or halts
    open_ = quiet is not None and long is None and not (stopped or seen)
    gap, gaps = e.row("max_gap_s"), e.up("max_gap_s", relative=0.5)
    still = None if long is None or quiet is None else long and quiet.streams >= _STREAMS
    slow, most = _slow_in_halts(e) if long else (None, None)
    still_text = f"{quiet.streams if quiet else 0} responses in progress stood still in it"
    lines = [
        gate(halts or (e.stage_rose(*ENGINE_STAGES) if e.moved else
                       gaps or asleep or (None if e.coarse else False)),
             say.durations("time to first chunk", e.row("ttft_s")), "stages of requests"),
        required(any(reported) if reported and not open_ else None,
                 _NO_TOKENS if stopped and not seen else text,
                 "the gauge `sleep`, the counter `tokens_out`, or the longest gap of each stream"),
        proof(asleep, "the engine said that it was asleep"),
        # A long prompt that is computed in one step holds up all streams, too.
        proof(None if held_up(e) or most is False else still, still_text),
        support(still, still_text),
        proof(halts and not (long or held_up(e) or others is not None), text),
        support(bool(stopped) and (seen or scrapes != 1), f"{_NO_TOKENS}: {scrapes} scrapes"),
        support(most, slow or ""),
        support(gaps, say.durations("longest gap", gap)),
        against(None if most is None or asleep or stopped else not most, slow or "",
                strongly=True),
        against(bool(restarted(e)), f"{', '.join(restarted(e))} was restarted", strongly=True),
        against(_gathered(e) and not asleep, _HELD_BACK, strongly=True),
        against(None if quiet is None or asleep or (halts and not long) else bool(quiet.prompt),
                f"a prompt of {say.amount(quiet.prompt or 0 if quiet else 0)} tokens was computed "
                "in it", strongly=True),
        against(None if asleep else others is not None,
                f"prompts of others, of {say.amount(others or 0)} tokens or more, were computed",
                strongly=True),
        against(None if asleep else _met_long_ones(e), _MET_LONG_ONES),
    ]  # fmt: skip
    action = "Reroute while it sleeps: take an engine out of the router before pausing it."
    return judge("engine_paused", lines, action, group=_on(e, quiet.instance if quiet else None))


_NO_TOKENS = "no tokens came out while requests were running"
_HELD_BACK = "chunks come many at once: they are held back on the way"


def _gathered(e: Evidence) -> bool:
    """Return whether far more chunks arrive together than before."""
    bursts = e.row("burst_share")
    return bursts is not None and bursts.mean_change >= _GATHERED


def engine_down(e: Evidence) -> Finding:
    """An engine process died or was restarted while requests were on it.

    Looks like:
        Connection errors and 5xx from one replica, streams truncated at the same instant, a new
        start time. The other replicas take its load, and may queue.

    Confirm:
            min by (instance) (llmtrace_target_up)
            changes(process_start_time_seconds[30m])
        In the last lines of the engine's log: out of memory, a CUDA error, a fatal exception.

    Now:
        Reroute: take it out of the router, and add capacity for its share.

    Later:
        Fix what killed it. Let clients resume, or retry requests that had not begun. Check
        health by a response, not a port.
    """
    again, gone = restarted(e), gone_engines.vanished(e)
    new, down = sorted({*starts(e)} - {*again}), list(dict.fromkeys((*again, *gone)))
    failures, (_, cut) = failures_by_end(e), broken(e)
    known = e.has("started") or e.has("running") or _start_time_in_facts(e)
    limited = e.share("quota", over_quota).after_k >= _NEARLY_ALL * failures.after_k
    failing = failures.rose(0.003, 3, 2.0) and not limited
    left_out = gone_engines.starved(e) if failing and not known else []
    lost = gone_engines.lost_traffic(e, [*down, *left_out])
    cut_off = gone_engines.failed_when_it_stopped(e, gone) if lost else 0
    local, refused = where_broken(e), e.share("connect", refused_connections)
    server = e.share("5xx", lambda side: side.number("http_status") >= 500)
    again_sent = e.share("retried", lambda side: side.number("attempts") > 1)
    turned_away = any(one.rose(0.003, 2, 2.0) for one in (server, refused))
    lines = [
        gate(failing or bool(lost) or again_sent.rose(0.003, 3, 2.0),
             f"requests ended in a failure: {failures}"),
        required(bool(down or left_out) or (False if known else None),
                 f"{', '.join(left_out)}: hardly any requests, and some fail" if left_out else
                 f"{', '.join(down) or 'no engine'} was restarted or stopped reporting",
                 "when each engine started: the gauge `started`"),
        proof(bool(again) and failing, "the start time moved, and requests failed"),
        proof(bool(lost) and bool(set(again) & set(gone)),
              "it stopped reporting for a while, and started again"),
        proof(cut_off >= _CUT_OFF, f"{cut_off} requests on it failed as its signals stopped"),
        support(bool(lost), "; ".join(f"{name} gets {one} of requests" for name, one in lost)),
        proof(cut.at_once and turned_away and not again,
              "streams ended at one instant, and there were no responses after that"),
        support(cut.together >= 0.4 and cut.n >= 3,
                f"of {cut.n} truncated streams {say.percent(cut.together)} ended together"),
        support(turned_away, f"5xx: {server}; refused: {refused}"),
        support(None if local is None else True, local or ""),
        *_restart_on_purpose(e, again, new if gone else [], failed=bool(failures.after_k)),
        against(bool(lost) and cut_off < _CUT_OFF and bool(e.events("scale")),
                "the number of engines was changed"),
        against(cut.n >= 5 and cut.idle_share >= 0.7 and cut.together < 0.3,
                "truncated streams had sent nothing for the same time"),
    ]  # fmt: skip
    action = "Reroute round the engine that went down and add capacity for its share; then fix it."
    return judge("engine_down", lines, action, group=_on(e, *down))


def _restart_on_purpose(
    e: Evidence, again: Collection[str], new: Sequence[str], *, failed: bool
) -> list[Line]:
    """Make lines against a failure: engines were restarted or replaced on purpose."""
    return [
        against(len(again) >= max(2, 0.6 * len(e.instances)),
                f"{len(again)} of {len(e.instances)} engines were restarted in turn: a rollout",
                strongly=True),
        against(bool(again) and bool(e.events("deploy", "restart")) and not failed,
                f"{', '.join(again)} was restarted on purpose, and no request failed"),
        against(bool(new) and not failed,
                f"{', '.join(new)} took its place, and no request failed", strongly=True),
    ]  # fmt: skip


def _start_time_in_facts(e: Evidence) -> bool:
    return any("started" in one for one in e.facts.instances.values())


def _on(e: Evidence, *instances: str | None) -> Group | None:
    """Return the requests of one engine of several as a group; `None` if it is not exactly one."""
    name = instances[0] if len(instances) == 1 < len(e.instances) else None
    return None if name is None else Group("replica", name)


def frontend_cpu(e: Evidence) -> Finding:
    """The engine's front end (HTTP, template, tokeniser, output) is short of CPU.

    Looks like:
        Time to first chunk and front-end time are up; queue and prefill are not. The front end
        uses a whole core while the GPU is not busy. Time per token becomes uneven.

    Confirm:
            llmtrace_engine_frontend_mean_seconds
            rate(process_cpu_seconds_total[1m])
        Front-end time is not proof: on a real vLLM it includes the wait for the running step.

    Now:
        Add capacity: more front-end processes, or cores for them.

    Later:
        Fix logprobs, huge JSON, a slow tokeniser. Leave two cores free, plus one per GPU.
    """
    frontend, cpu = e.gauge("frontend_time"), e.gauge("api_cpu")
    rows = e.row("first_chunk_frontend_s")
    far = None if frontend is not None else _far_above_before(e, "frontend_time")
    slow = bool(far) or slow_front_end(e)
    left = _unseen_front_end(e) if slow is None else ""
    # Half a core can be a shortage too; the counter shows only a front end that does more work.
    more = None if cpu is None else cpu.rose(0.0, 0.3)
    part = front_end_part(e)
    busy = None if more is None or cpu is None else more and highest(cpu, 50) >= 0.75
    by_load = bool(more and not busy and e.more_load)
    (before, quiet), stalls = engine_halts.engine_gaps(e), _stood_still(e) or _long_prompt_gap(e)
    waiting, action = e.gauge("waiting"), _MORE_FRONT_ENDS + flags(e, "frontend_cpu")
    lines = [
        # SGLang's queue time begins when the front end receives the request.
        gate(e.stage_rose("first_chunk", "queue", "unattributed"),
             say.durations("time to first chunk", e.row("ttft_s")),
             "the engine's queue and prefill times"),
        against(None if part is None else part < 0.3,
                f"the front end is only {say.percent(part or 0)} of what the wait grew by"),
        required(bool(left) or slow, left or (
                     say.durations("the engine's front end", rows) if rows is not None
                     else far or say.gauge("front-end seconds", frontend)),
                 "`frontend_time` of the engines, or of each request"),
        proof(busy, say.gauge("cores used by the API server", cpu),
              "`api_cpu`: cores used by the API server"),
        support(more and not by_load, say.gauge("cores used by the API server", cpu)),
        steady(support(not (e.up("queue_s") or e.up("prefill_s")) if e.row("queue_s") else None,
                "queue and prefill did not move: " + say.durations("queue", e.row("queue_s")))),
        support(None if waiting is None else not waiting.rose(0.0, 0.5),
                "not more requests wait in the engine than before"),
        against((cpu is None or by_load) and (e.up("tpot_s", relative=0.3 if cpu is None else 0.1)
                or False) and waits_for_steps(e) is not False,
                "steps got slower, and new requests wait for the running one: "
                + say.durations("time per token", e.row("tpot_s"))),
        # A front end that does more work and cannot keep up stalls everything by itself.
        against(stalls and not more, _gap_text(quiet, before.seconds if before else 0.0)),
        against(_met_long_ones(e), _MET_LONG_ONES),
        against(_explained_by_work(e, rows or (frontend.most()[1] if frontend else None), more),
                _ALL_SLOWER, strongly=True),
    ]  # fmt: skip
    found = judge("frontend_cpu", lines, action)
    return at_most_possible(found, _UNSEEN) if left == _AFTER_PREFILL else found


_UNSEEN = "nothing reports the front end's own time"
_ALL_SLOWER = "prompt tokens and batch steps take longer too: the whole engine is slower"
_MORE_FRONT_ENDS = "Add capacity to the front end: more API server processes, or cores for them."


def _explained_by_work(e: Evidence, mine: Shift | None, more: bool | None) -> bool:
    """Return whether the engine's computation got slower, and explains the slower front end.

    A new request waits for the running step before the engine sees it. So the front end has to be
    slower by more than the computation, and busier, if its CPU time is known (`more`).
    """
    local = e.local("replica", "tpot_s") or e.local("replica", "ttft_s")
    curve, prefill = (ratio or 0.0 for ratio in _of_its_own(e, local))
    slower, _ = _works_slower(e, curve, prefill)
    return mine is not None and slower and (more is False or mine.ratio < min(curve, prefill))


_IN_ENGINE = "engines see most of the added time themselves, and neither queue nor prefill has it"
_AFTER_PREFILL = "most of the added time is after the prefill, and no proxy holds chunks back"


def _unseen_front_end(e: Evidence) -> str:
    """Say where time is lost that only the front end explains; empty if something else may.

    KV blocks may be transferred after the prefill if there is a connector.
    """
    if _is_in_engine(e):
        return _IN_ENGINE
    transfers = e.kv_connector or e.has("kv_transfer_time_count")
    return _AFTER_PREFILL if late_after_prefill(e) and not transfers else ""


def _is_in_engine(e: Evidence) -> bool:
    """Return whether engines count most of the added time, but not in queue, prefill or steps."""
    part, queue, prefill = e.engine_share(), e.row("queue_s"), e.row("prefill_s")
    if part is None or part < HALF or queue is None or prefill is None:
        return False
    engine = max(queue.mean_change, 0.0) + max(prefill.mean_change, 0.0)
    first = e.row("ttft_s")
    mine = first is not None and engine <= _SMALL_PART * first.mean_change
    return mine and waits_for_steps(e) is False and not starts(e)


_MET_LONG_ONES = "slow requests came while long prompts were worked on"


def _met_long_ones(e: Evidence) -> bool | None:
    """Return whether slow requests mostly arrived while a long prompt was computed."""
    found = overlap(e)
    return None if found is None else found.slow_during >= 0.6 and found.lift >= 1.5


def _far_above_before(e: Evidence, signal: str) -> str | None:
    """Say that one instance's few samples of a duration are all far above every sample before.

    A front end that hardly responds is hardly sampled. `None` = they are not.
    """
    for name, series in e.series(signal).items():
        before, after = (series.within(one).value for one in (e.before.window, e.served))
        if len(before) >= MIN_COUNT and len(after) >= 2 and after.min() > 3 * before.max():
            return (
                f"front end of {name}: at most {say.seconds(float(before.max()))} before, in its "
                f"{len(after)} samples now {say.seconds(float(after.min()))} or more"
            )
    return None


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


def _fresh_text(found: Fresh | None) -> str:
    if found is None:
        return "too few requests to an engine that had just started"
    what = "p75 to first chunk" if found.of == "ttft_s" else "p75 per token"
    young = f"within {say.seconds(found.within)} of the start" if found.within > 0 else (
        "of those that waited for the start")  # fmt: skip
    return (
        f"{what} {young} "
        f"{say.seconds(found.fresh)} ({found.n} requests), others {say.seconds(found.other)}"
    )


def _gap_text(found: engine_halts.Gap | None, usual: float) -> str:
    if found is None:
        return "no span in which requests came and nothing left"
    where = f"{found.instance}: " if found.instance else ""
    times = "" if found.times == 1 else f"{found.times} times, "
    streams = f" and {found.streams} responses were in progress" if found.streams else ""
    return (
        f"{where}{times}nothing came out for {'up to ' if times else ''}"
        f"{say.seconds(found.seconds)} though {found.arrivals} requests came{streams} "
        f"(longest before: {say.seconds(usual)})"
    )


def _alike_halts(e: Evidence, text: str, *, long: bool | None) -> tuple[bool | None, str]:
    """Return whether several responses stood still together, and the text to show."""
    found = engine_halts.stalled_together(e)
    if found is not None and not long:
        text = f"{found[1]} responses stood still for {say.seconds(found[0])}, longer than before"
    return None if found is None else True, text


def _slow_in_halts(e: Evidence) -> tuple[str | None, bool | None]:
    """Say how many slow requests came while an engine stood still, and return whether most did.

    Some requests wait behind others by chance; when an engine halts, most of the slow ones do.
    """
    shares = engine_halts.in_halts(e)
    if shares is None:
        return None, None
    slow, every = shares
    text = f"of the slow requests {say.percent(slow)} came then, of all {say.percent(every)}"
    most = slow >= max(HALF, 1.5 * every)
    return text, most if most or slow < min(_SMALL_PART, 3 * every) else None


def _replicas_known(e: Evidence) -> bool:
    """Return whether rows say which engine they were on, or there is only one."""
    known = (e.after.rows.words["replica"].codes >= 0).any()
    return bool(known) or len(e.instances) == 1


def _stood_still(e: Evidence) -> bool | None:
    """Return whether an engine sent nothing for far longer than before, beyond chance.

    `None` if rows do not name the engine: others may respond while one stands still.
    """
    _, quiet = engine_halts.engine_gaps(e)
    not_seen = False if _replicas_known(e) else None
    if quiet is None:
        return not_seen
    usual = engine_halts.usual_gap_s(e, quiet)
    far = quiet.seconds >= engine_halts.FAR * usual or (
        quiet.seconds > usual and engine_halts.halts(e).rose(0.0, _SEVERAL))  # fmt: skip
    far &= quiet.seconds >= _LONGER * (engine_halts.longest_wait(e) or 0.0)  # normal gaps
    return quiet.whole if far and engine_halts.beyond_chance(e) >= _BEYOND_CHANCE else not_seen


def _serves_others_in_gap(e: Evidence) -> bool:
    """Return whether an engine may serve others in its longest gap: few responses were open."""
    _, quiet = engine_halts.engine_gaps(e)
    others = serves_more_others(e) or e.other_clients("tokens_out") is not None
    return quiet is not None and quiet.streams < _STREAMS and others


def _long_prompt_gap(e: Evidence) -> bool:
    """Return whether requests waited far longer than before while a long prompt was computed."""
    before, quiet = engine_halts.engine_gaps(e)
    usual = before.seconds if before is not None else 0.0
    if quiet is None or quiet.prompt is None:
        return False
    return quiet.seconds >= engine_halts.FAR * usual


def _scrapes_without_tokens(e: Evidence) -> int | None:
    """Return the longest run of scrapes without tokens from an engine with requests in it."""
    running, longest = e.series("running"), None
    for name, rate in e.rates("tokens_out").items():
        after, gauge = rate.within(e.after.window), running.get(name)
        if gauge is None or len(after.t) < 3 or not len(gauge.t):
            continue
        longest = longest or 0
        before = rate.within(e.before.window).value
        if len(before) and (before == 0).mean() > 0.02:
            continue
        open_ = np.interp(after.t, gauge.t, gauge.value)
        if (held := e.series("waiting").get(name)) is not None and len(held.t):
            open_ += np.interp(after.t, held.t, held.value)  # a pause may requeue running ones
        active = np.flatnonzero((after.value > 0) | (open_ < 1))
        longest = max(longest, int(np.diff(active, prepend=-1, append=len(after.t)).max()) - 1)
    return longest
