"""Rules for causes in load: more than the engines take, or an uneven share of it."""

from __future__ import annotations

import numpy as np

from llmtrace.triage.causes import scoring
from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.causes.kv_capacity import full_from, kv_room
from llmtrace.triage.causes.scoring import against, gate, judge, note, proof, required, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.changes import HALF
from llmtrace.triage.evidence.engine_starts import restarted, starts
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.gone_engines import shares_of_replicas
from llmtrace.triage.evidence.inside_engines import (
    at_limit,
    batch_filled,
    cache_shrank,
    drafts_fail,
    highest_p95,
    limit_fell,
    waits_for_steps,
)
from llmtrace.triage.evidence.signals import Moved
from llmtrace.triage.result import Finding

_CALM_KV = 0.8
_HALF_EMPTY = 0.5  # so full a cache is at most: what is preempted then makes no room in it
_EMPTY = 0.25  # so full at most, it has room for any request
_SURE = 3.0  # standard errors
_LESS = 0.3  # of a queue
_OFF_THE_LINE = 1.3  # times as long for their batch as slow ones took before
_ROOM = 0.7  # of its slots are taken at most: there is room


def queue_saturation(e: Evidence) -> Finding:
    """More requests come than the engines take on at once, so they wait in the scheduler.

    Looks like:
        `queue` carries the change; prefill and time per token at the same batch stay. Requests
        wait in the engine for minutes on end while as many run as `max_num_seqs` (or the token
        budget of a step) allows. KV cache is not full. Everybody is hit.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_waiting)
            sum by (instance) (llmtrace_engine_requests_running)
            sum(rate(llmtrace_requests_total[5m]))
        Running must sit at its limit while waiting is above 0. If running is well below it, look
        at [KV exhaustion](kv_exhaustion.md); if only one instance waits, at
        [replica imbalance](replica_imbalance.md).

    Now:
        Add capacity: start replicas. Until they are up, shed requests that can wait
        (batch jobs, retries), at the gateway or at the engine's door.

    Later:
        Scale on waiting requests or queue time, not on GPU utilisation, which reads 100 % long
        before. Set a limit at the door, so that overload is a fast 503 and not a slow response.
    """
    waiting, kv = map(e.gauge, ("waiting", "kv_usage"))
    full_batch, limit = at_limit(e)
    full = kv is not None and highest_p95(kv) >= full_from(e)
    volume, tokens, waits = _volume(e), e.rate("tokens_in"), _more_wait(e)
    queued, grown = e.gate("queue"), _later_by_load(e)
    first = say.durations("time to first chunk", e.row("ttft_s"))
    # A gauge read now and then misses short waits; requests tell of each.
    mostly = queued and (e.part_of_metric("queue_s") or 0.0) >= HALF
    fell = limit_fell(e)
    by_requests = bool(mostly) and full_batch is not False
    lines = [
        gate(grown or queued,
             say.durations("queue", e.row("queue_s")) if queued or not grown
             else f"each engine gets more load, and {first}",
             "the engine's queue time per request"),
        required(waits or grown or by_requests or (None if queued is None else waits),
                 say.gauge("requests waiting for capacity", waiting) if waits or not by_requests
                 else say.durations("queue", e.row("queue_s")),
                 "the engines' gauge `waiting`"),
        proof(full_batch or (volume and full),
              limit if full_batch else say.gauge("KV usage", kv)),
        support(e.more_load, _load(e)),
        support(bool(full_batch and fell), fell),
        support(None if tokens is None else tokens.rose(0.0, 0.2),
                say.gauge("prompt tokens a second", tokens)),
        scoring.steady(against(full and not volume and not full_batch, say.gauge("KV usage", kv)
                       + ", running is below its limit, and load is no reason")),
        against(bool(waits) and _slots_free(e),
                f"requests wait though there is room: {limit}", strongly=True),
        against(_preempted(e) and not e.more_load,
                say.counted("preemptions", e.counted_in_as_long("preemptions"))),
    ]  # fmt: skip
    action = "Add capacity: start replicas; until they are up, shed or defer what can wait."
    return judge("queue_saturation", lines, action + flags(e, "queue_saturation"))


def _later_by_load(e: Evidence) -> bool:
    """Return whether engines get more to do and first chunks are later, in no queue that is seen.

    Waiting for the running step is in none: it is where more load shows first. Where engines have
    seats and count no request that waits, it is steps that take longer, and no queue.
    """
    if e.metric not in (None, "ttft_s") or not e.more_load or not e.up("ttft_s"):
        return False
    if _more_wait(e) is False and _slots_free(e):
        return False
    steps = waits_for_steps(e) is not False and e.gate("first_chunk")
    return bool(e.gate("queue", "prefill") or steps)


def kv_exhaustion(e: Evidence) -> Finding:
    """The KV cache is full: requests wait for blocks, and running ones are put back.

    Looks like:
        KV usage near 1, preemptions counted, requests waiting although fewer run than
        `max_num_seqs` allows. vLLM counts a preempted request's second wait as `decode`; on a real
        one most of it showed as `queue`, with running far below its limit.

    Confirm:
            max by (instance) (llmtrace_engine_kv_cache_usage_ratio)
            sum by (instance) (rate(llmtrace_engine_preemptions_total[5m]))
        Preemptions are the proof. Usage near 1 alone is what a well-used engine looks like.

    Now:
        Add capacity, or lower the number of sequences, so that those that run can finish. Cap
        `max_tokens` where responses run away.

    Later:
        Give the cache more room (GPU memory share, FP8 KV, tensor parallelism), and admit by
        tokens and not by requests. `llmtrace kv` works out how many requests of today's lengths
        fit, before and after such a change.
    """
    kv, preemptions = e.gauge("kv_usage"), e.counted_in_as_long("preemptions")
    full_batch, limit = at_limit(e)
    rows = e.share("preempted", lambda side: side.number("preemptions") > 0)
    used = 1.0 if kv is None else highest_p95(kv)
    full = None if kv is None else used >= full_from(e)
    volume, waits = _volume(e), _more_wait(e)
    # Who waits though seats are free, while the cache is full, waits for its blocks.
    known = None not in (full, waits, full_batch)
    for_blocks = bool(full and waits and not full_batch and not volume) if known else None
    preempted = _preempted(e) and used >= _HALF_EMPTY
    shrank = used >= _EMPTY and bool(cache_shrank(e)) and bool(e.gate("queue"))
    short = None if full is None else full or bool(preempted) or bool(for_blocks) or shrank
    gap = e.row("gap_per_token")
    lines = [
        gate(e.gate("queue", "decode", "first_chunk", "prefill"),
             f"{say.durations('queue', e.row('queue_s'))}; "
             f"{say.durations('decode', e.row('decode_s'))}",
             "the engine's queue time, or decode times"),
        required(short, say.gauge("KV usage", kv), "the engines' gauge `kv_usage`"),
        proof(preempted, say.counted("preemptions", preemptions),
              "the engines' counter `preemptions`"),
        proof(for_blocks, f"requests wait, the cache is full and the batch is not: {limit}"),
        support(shrank, "requests wait, and the same tokens fill far more of the cache"),
        support(rows.rose(0.01) if e.after.known("preemptions") else None,
                f"requests preempted: {rows}"),
        support(None if kv is None else kv.rose(0.0, 0.1), "KV usage is up"),
        note(kv_room(e) if short else None),
        support(None if gap is None else gap.rose(0.0, 0.5),
                say.amounts("longest gap, in tokens", gap)),
        against(volume and bool(full), f"load rose: {_load(e)}"),
        against(full_batch and not preempted, f"the batch is full, not the cache: {limit}"),
        against(None if kv is None or preemptions is None else
                used < min(_CALM_KV, full_from(e)) and not (preemptions[1] or shrank),
                f"KV usage {say.percent(used)} at most and no preemptions", strongly=True),
    ]  # fmt: skip
    action = "Add capacity, or lower the batch so that what runs can finish; cap `max_tokens`."
    return judge("kv_exhaustion", lines, action + flags(e, "kv_exhaustion"))


def batch_size(e: Evidence) -> Finding:
    """More requests share each decode step, so every token takes longer; no request queues.

    Looks like:
        Time per token is up and follows `running` along the same line as before; the queue is
        short. Volume grew, at the same mix.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_running)
            histogram_quantile(0.95, sum by (le) (rate(llmtrace_tpot_seconds_bucket[5m])))
        Plot one over the other: points of today must lie on the line of last week. Above it, look
        at [GPU throttling](gpu_throttle.md) or [speculation](low_spec_acceptance.md).

    Now:
        Rebalance or add capacity; or cap the batch, and let some wait instead.

    Later:
        Choose the batch limit from the time per token that users were promised.
    """
    running, tokens = e.gauge("running"), e.row("output_tokens")
    curve, slow = e.on_curve(), e.slow_on_curve()
    clock = e.gauge("gpu_sm_clock_mhz")
    acceptance = e.ratio("spec_accepted", "spec_drafted")
    lines = [
        gate(e.up("tpot_s"), say.durations("time per token", e.row("tpot_s")),
             "output tokens per request"),
        required(*_more_run(e, running), "the engines' gauge `running`"),
        support(None if curve is None else curve <= 1.3,
                f"time per token is {say.amount(curve or 0)} times what this batch explains"),
        required(e.more_load or _let_in(e, running), _load(e)),
        scoring.steady(support(e.up("queue_s") is False or None,
                       say.durations("queue", e.row("queue_s")))),
        against(e.metric != "tpot_s" and (bool(e.gate("queue")) or (
                    bool(e.up("ttft_s")) and not steps_longer(e))),
                say.durations("the wait for the first chunk grew too: it", e.row("ttft_s"))),
        against(None if curve is None else curve > 1.6,
                f"time per token is {say.amount(curve or 0)} times what this batch explains"),
        against(None if clock is None else clock.fell(0.0, 0.05),
                say.gauge("SM clock, MHz", clock, down=True), strongly=True),
        against(drafts_fail(e), say.ratio("draft tokens accepted", acceptance)),
        against(None if tokens is None or e.beside("tokens_out") else tokens.rose(0.0, 0.2),
                say.amounts("output tokens", tokens)),
    ]  # fmt: skip
    action = "Rebalance or add capacity; or cap the batch, if waiting is better than slow tokens."
    found = judge("batch_size", lines, action + flags(e, "batch_size"))
    if slow is None or slow < _OFF_THE_LINE:
        return found
    return scoring.at_most_possible(found, f"the slow ones take {slow:.1f} times as long as slow "
                                    "ones did for their batch")  # fmt: skip


def _let_in(e: Evidence, running: Moved | None) -> bool:
    """Return whether a limit was raised: it is said, or more run at once where they queued."""
    queue = e.row("queue_s")
    fewer = queue and queue.sank(_LESS) and running and running.rose(0.0, _LESS)
    return bool(fewer or e.events("config", "scale"))


def _volume(e: Evidence) -> bool:
    """Return whether more requests fill the cache: of a smaller one, or by others, they do not."""
    return e.more_load and e.beside("tokens_out") is None and not cache_shrank(e)


def _more_run(e: Evidence, running: Moved | None) -> tuple[bool | None, str]:
    """Say whether more requests run at a time: by the gauge, or by the requests' times.

    A gauge that is read now and then misses what requests show.
    """
    rows = None if e.of_means else e.row("in_progress")
    rose = None if rows is None else rows.rose(0.0, 0.2)
    if running is not None and (running.rose(0.0, 0.2) or not rose):
        return running.rose(0.0, 0.2), say.gauge("requests running", running)
    return rose, say.amounts("requests in progress", rows)


def replica_imbalance(e: Evidence) -> Finding:
    """One replica gets more than its share, and its requests wait while others idle.

    Looks like:
        The same traffic as ever, slow on one replica only. It runs and queues more than the
        others. Routing changed, sticky sessions piled up, or a hot prefix draws everybody.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_running)
            sum by (instance) (llmtrace_engine_requests_waiting)
            sum by (instance) (rate(llmtrace_engine_prompt_tokens_total[5m]))
        The slow replica must get more. If it gets its share and is slow all the same, it is ill:
        look at [GPU throttling](gpu_throttle.md), and at its host where the clock is as ever.

    Now:
        Rebalance: take the replica out for a minute, or lower its weight; check the router's
        policy and its health checks.

    Later:
        Route by least waiting requests (or by prefix with a limit on load), never by connection.
    """
    share = _share_of_one(e)
    running, waiting = _apart(e, "running"), _apart(e, "waiting")
    local = e.local("replica", "ttft_s") or e.local("replica", "tpot_s")
    clock = e.gauge("gpu_sm_clock_mhz")
    several = len(e.instances) > 1
    apart = [one for one in (running, waiting) if one is not None]
    # What waits on one replica may be its own slowness: where shares are known, they decide.
    uneven = share[1] if share is not None else any(one[1] for one in apart)
    # At the clock that it had, one that gets its share and keeps its requests longer is ill.
    uneven = uneven or (clock is not None and running is not None and _keeps_more(e, *running[1:]))
    by_replica = "; ".join(one[0] for one in (share, running, waiting) if one)
    fewer, scaled = _scaled_in(e), bool(e.events("scale"))
    elsewhere = share is not None and local is not None and local.value != share[3]
    # Requests that are divided otherwise, and wait no longer anywhere, are no incident.
    waits = bool(e.moved) or local is not None or (waiting is not None and waiting[1])
    lines = [
        gate(several and (waits or (None if e.coarse else False)),
             f"{len(e.instances)} replicas: {', '.join(e.instances[:6])}"),
        required(uneven if share or apart else None, by_replica or "load by replica: not reported",
                 "the rows' `replica`, or `running` and `waiting` by instance"),
        proof(None if share is None else
              share[1] and bool(share[2]) and not (elsewhere or fewer or scaled),
              share[0] if share else ""),
        against(elsewhere, f"slow on {local}, which gets no more than before") if elsewhere else
        support(None if local is None else True, f"slow on {local}"),
        scoring.steady(support(not e.more_requests, say.rates("all requests", *e.request_rate))),
        against(None if clock is None else clock.fell(0.0, 0.05),
                say.gauge("SM clock, MHz", clock, down=True), strongly=True),
        against(scaled, "the number of engines was changed", strongly=fewer),
        against(bool(restarted(e)), "an engine was restarted: the others took its share",
                strongly=True),
        against(bool(starts(e)) and not restarted(e), "an engine has just started"),
        against(bool(silent := _silent(e)), f"{', '.join(silent)} reports nothing, others do",
                strongly=True),
        against(None if local is not None or not e.after.known("ttft_s") else
                bool(e.moved) and _all_rose(e), "all replicas got slower"),
    ]  # fmt: skip
    action = "Rebalance: lower the weight of the loaded replica and check the router's policy."
    return judge("replica_imbalance", lines, action, group=local)


def _silent(e: Evidence) -> list[str]:
    """Return the engines without a sample in the window after, where others have some."""
    samples = {name: len(one.within(e.served).t) for name, one in e.series("running").items()}
    return [name for name, n in samples.items() if not n and max(samples.values()) > 1]


def _more_wait(e: Evidence) -> bool | None:
    """Return whether more requests wait in the engines, by what counts beside those that run."""
    waiting, running = e.gauge("waiting"), e.gauge("running")
    if waiting is None:
        return None
    least = 0.02 * running.fleet.before_mean if running is not None else 0.0
    return waiting.rose(least, 0.3) or waiting.grew(least, 0.5) or waiting.more_often(_SURE)


def _load(e: Evidence) -> str:
    each, others = e.load_per_engine, e.beside("tokens_out")
    text = say.rates("requests", *e.request_rate)
    text += "" if others is None else f"; {say.beside('tokens made', others)}"
    return text if each is None else f"{text}, to each engine {say.rates('', *each).strip()}"


def _preempted(e: Evidence) -> bool | None:
    """Return whether so many requests are put back that a p95 can feel it."""
    counted = e.counted_in_as_long("preemptions")
    if counted is None:
        return None
    before, after = counted
    felt = max(3.0, 0.02 * len(e.after))
    return after >= felt and after >= 2 * before + 2


def _slots_free(e: Evidence) -> bool:
    """Return whether every engine runs far fewer than it may."""
    share = batch_filled(e)
    return share is not None and share[0] < _ROOM


def steps_longer(e: Evidence) -> bool:
    """Return whether first chunks are later because steps take longer, and no request waits."""
    free = _more_wait(e) is False and _slots_free(e)
    return free and bool(e.up("tpot_s")) and waits_for_steps(e) is not False


def _scaled_in(e: Evidence) -> bool:
    """Return whether an engine was taken away: what is left gets no more than its share."""
    shares = shares_of_replicas(e).values()
    return bool(e.events("scale")) and any(one.before_k and not one.after_k for one in shares)


def _keeps_more(e: Evidence, apart: bool, name: str) -> bool:
    """Return whether one engine runs far more than it did, beyond chance, and than the others."""
    running = e.gauge("running")
    mine = None if running is None else running.instances.get(name)
    return apart and mine is not None and mine.rose(0.0, HALF)


def _apart(e: Evidence, signal: str) -> tuple[str, bool, str] | None:
    """Say whether one instance stands out in a gauge as it did not before, and which."""
    moved = e.gauge(signal)
    if moved is None or len(moved.after) < 2:
        return None
    means = [{name: float(s.value.mean()) for name, s in side.items() if len(s.value)}
             for side in (moved.before, moved.after)]  # fmt: skip
    if min(len(one) for one in means) < 2:
        return None
    name = max(means[1], key=lambda one: means[1][one])
    stands = []
    for one in means:
        rest = [value for other, value in one.items() if other != name]
        stands.append((one.get(name, 0.0) + 1) / (float(np.median(rest)) + 1))
    text = (
        f"{signal} on {name}: {say.amount(stands[0])} → {say.amount(stands[1])} times the others'"
    )
    return text, stands[1] >= 1.5 and stands[1] >= 1.35 * stands[0], name


def _share_of_one(e: Evidence) -> tuple[str, bool, bool, str] | None:
    """Say whether one replica's share of the requests grew: text, whether, by far, and which."""
    shares = shares_of_replicas(e)
    if len(shares) < 2:
        return None
    name = max(shares, key=lambda one: shares[one].after - shares[one].before)
    found = shares[name]
    if not found.before_k:
        return None
    grown = found.after - found.before
    alike = [one for one in shares.values() if one.after - one.before >= 0.5 * grown]
    # One that gets again what the others get has no more than its share.
    usual = max(found.before, float(np.median([s.after for n, s in shares.items() if n != name])))
    grew = found.rose(0.0) and found.after >= 1.15 * usual and len(alike) == 1
    far = grew and found.after >= 1.35 * usual
    return f"{name} gets {found} of the requests", grew, far, name


def _all_rose(e: Evidence) -> bool:
    metric = e.moved[0]
    found = e.uneven("replica", metric)
    return found is not None and not found[1]
