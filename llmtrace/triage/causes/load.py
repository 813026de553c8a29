"""Rules for causes in load: more than the engines can take, or an uneven share of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from llmtrace.triage.causes import scoring
from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.causes.kv_capacity import full_from, kv_room
from llmtrace.triage.causes.scoring import against, gate, judge, note, proof, required, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.changes import HALF, RATHER_SURE
from llmtrace.triage.evidence.counter_ratios import ratio_of
from llmtrace.triage.evidence.engine_starts import restarted, starts
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.gone_engines import failed_and_left, shares_of_replicas
from llmtrace.triage.evidence.inside_engines import (
    at_limit,
    batch_filled,
    cache_shrank,
    drafts_fail,
    gauge_misses_waits,
    highest,
    is_disaggregated,
    limit_fell,
    slow_tpot_over_expected,
    tpot_over_expected,
    waits_for_steps,
)
from llmtrace.triage.evidence.signals import Moved
from llmtrace.triage.result import Finding

_NEARLY_ALL: Final = 0.95  # of the time spent in queues
_CALM_KV: Final = 0.8  # KV usage
_MIN_PREEMPTING_KV: Final = 0.5  # below this usage, preemption is not for room in the cache
_EMPTY_KV: Final = 0.25  # below this usage, there is room for any request
_SURE: Final = 3.0  # standard errors
_LESS: Final = 0.3  # relative change
_OFF_THE_LINE: Final = 1.3  # slow tokens' time at the same batch, over that of slow tokens before
_GROWN: Final = 1.15  # ratio of shares of tokens
_HARDLY: Final = 0.1  # of all the work
_FREE: Final = 0.7  # share of slots taken, at most, if an engine has free slots


def queue_saturation(e: Evidence) -> Finding:
    """More requests come than the engines take on at once, so they wait in the scheduler.

    Looks like:
        `queue` has the change; prefill, and time per token at the same batch size, do not.
        Requests wait in the engine for minutes while as many run as `max_num_seqs` (or a step's
        token budget) allows. The KV cache is not full. All requests are affected.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_waiting)
            sum by (instance) (llmtrace_engine_requests_running)
            sum(rate(llmtrace_requests_total[5m]))
        Running must be at its limit while waiting is above 0. If running is well below it, look
        at [KV exhaustion](kv_exhaustion.md); if only one instance waits, at [replica
        imbalance](replica_imbalance.md).

    Now:
        Add capacity: start replicas. Until they are up, shed requests that can wait (batch
        jobs, retries), at the gateway or the engine.

    Later:
        Scale on waiting requests or queue time, not on GPU utilisation, which reaches 100 %
        long before. Limit queued requests, so that overload is a fast 503 and not a slow
        response.
    """
    kv = e.gauge("kv_usage")
    full_batch, limit = at_limit(e)
    full = kv is not None and highest(kv) >= full_from(e)
    by_volume, tokens, waits = _more_requests_fill_cache(e), e.rate("tokens_in"), _more_wait(e)
    queued, grown = e.stage_rose("queue"), _load_delays_first_chunk(e)
    first = say.durations("time to first chunk", e.row("ttft_s"))
    # A sampled gauge misses short waits; requests report each of them.
    mostly = queued and (e.part_of_metric("queue_s") or 0.0) >= HALF
    fell = limit_fell(e)
    by_requests = bool(mostly) and (full_batch is not False or gauge_misses_waits(e))
    lines = [
        gate(grown or queued,
             say.durations("queue", e.row("queue_s")) if queued or not grown
             else f"each engine gets more load, and {first}",
             "the engine's queue time per request"),
        required(waits or grown or by_requests or (None if queued is None else waits),
                 _waited(e, first if grown else "", by_requests=by_requests and not waits),
                 "the engines' gauge `waiting`"),
        proof(full_batch or (by_volume and full),
              limit if full_batch else say.gauge("KV usage", kv)),
        support(e.more_load, _load_text(e)),
        support(bool(full_batch and fell), fell),
        support(None if tokens is None else tokens.rose(0.0, 0.2),
                say.gauge("prompt tokens a second", tokens)),
        scoring.steady(against(full and not by_volume and not full_batch, say.gauge("KV usage", kv)
                       + ", running is below its limit, and load is no reason")),
        against(bool(waits) and _slots_free(e),
                f"requests wait though there is room: {limit}", strongly=True),
        against(_preempted(e) and not e.more_load,
                say.counted("preemptions", e.counted_in_equal_time("preemptions"))),
    ]  # fmt: skip
    action = "Add capacity: start replicas; until they are up, shed or defer what can wait."
    return judge("queue_saturation", lines, action + flags(e, "queue_saturation"))


def _waited(e: Evidence, first: str, *, by_requests: bool) -> str:
    """Say what shows that requests wait; `first` = that their first chunk is late."""
    waiting = e.gauge("waiting")
    if waiting is None and first:
        return f"requests wait longer as load grows: {first}"
    if by_requests:
        return say.durations("queue", e.row("queue_s"))
    return say.gauge("requests waiting for capacity", waiting)


def _load_delays_first_chunk(e: Evidence) -> bool:
    """Return whether engines get more load and first chunks are later, in no queue that is seen.

    A new request waits for the running step, which no queue counts. If engines have free slots and
    no request waits, longer steps are the reason, not a queue.
    """
    if e.metric not in (None, "ttft_s") or not e.more_load or not e.up("ttft_s"):
        return False
    if _more_wait(e) is False and _slots_free(e):
        return False
    steps = waits_for_steps(e) is not False and e.stage_rose("first_chunk")
    return bool(e.stage_rose("queue", "prefill") or steps)


def kv_exhaustion(e: Evidence) -> Finding:
    """The KV cache is full: requests wait for blocks, and running ones are preempted.

    Looks like:
        KV usage is near 1, there are preemptions, and requests wait although fewer run than
        `max_num_seqs` allows. vLLM counts a preempted request's second wait as `decode`; on a
        real one most of the time was in `queue`.

    Confirm:
            max by (instance) (llmtrace_engine_kv_cache_usage_ratio)
            sum by (instance) (rate(llmtrace_engine_preemptions_total[5m]))
        Preemptions are the proof. Usage near 1 alone is normal for a busy engine.

    Now:
        Add capacity, or lower the number of sequences, so that running ones can finish. Cap
        `max_tokens` if responses run away.

    Later:
        Enlarge the cache (GPU memory share, FP8 KV, tensor parallelism), and limit tokens
        instead of requests. `llmtrace kv` calculates how many requests of today's lengths fit,
        before and after such a change.
    """
    kv, preemptions = e.gauge("kv_usage"), e.counted_in_equal_time("preemptions")
    full_batch, limit = at_limit(e)
    rows = e.share("preempted", lambda side: side.number("preemptions") > 0)
    used = 1.0 if kv is None else highest(kv)
    full = None if kv is None else used >= full_from(e)
    by_volume, waits = _more_requests_fill_cache(e), _more_wait(e)
    # Requests that wait while slots are free and the cache is full, wait for KV blocks.
    known = None not in (full, waits, full_batch)
    for_blocks = bool(full and waits and not full_batch and not by_volume) if known else None
    preempted = _preempted(e) and used >= _MIN_PREEMPTING_KV
    shrank = used >= _EMPTY_KV and bool(cache_shrank(e)) and bool(e.stage_rose("queue"))
    short = None if full is None else full or bool(preempted) or bool(for_blocks) or shrank
    gap = e.row("gap_per_token")
    lines = [
        gate(e.stage_rose("queue", "decode", "first_chunk", "prefill"),
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
        against(by_volume and bool(full), f"load rose: {_load_text(e)}"),
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
        Time per token is up, in the same relation to `running` as before. The queue is short.
        There are more requests, with the same mix.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_running)
            histogram_quantile(0.95, sum by (le) (rate(llmtrace_tpot_seconds_bucket[5m])))
        Plot one over the other: today's points must lie on last week's line. If they are above
        it, look at [GPU throttling](gpu_throttle.md) or [speculation](low_spec_acceptance.md).

    Now:
        Rebalance or add capacity; or cap the batch size, and let some requests wait.

    Later:
        Derive the batch limit from the time per token that users were promised.
    """
    running, tokens = e.gauge("running"), e.row("output_tokens")
    curve, slow = tpot_over_expected(e), slow_tpot_over_expected(e)
    clock = e.gauge("gpu_sm_clock_mhz")
    acceptance = ratio_of(e, "spec_accepted", "spec_drafted")
    lines = [
        gate(e.up("tpot_s"), say.durations("time per token", e.row("tpot_s")),
             "output tokens per request"),
        required(*_more_run(e, running), "the engines' gauge `running`"),
        support(None if curve is None else curve <= 1.3,
                f"time per token is {say.amount(curve or 0)} times what this batch explains"),
        required(e.more_load or _limit_raised(e, running), _load_text(e)),
        scoring.steady(support(e.up("queue_s") is False or None,
                       say.durations("queue", e.row("queue_s")))),
        against(e.metric != "tpot_s" and (bool(e.stage_rose("queue")) or (
                    bool(e.up("ttft_s")) and not steps_longer(e))),
                say.durations("the wait for the first chunk grew too: it", e.row("ttft_s"))),
        against(None if curve is None else curve > 1.6,
                f"time per token is {say.amount(curve or 0)} times what this batch explains"),
        against(None if clock is None else clock.fell(0.0, 0.05),
                say.gauge("SM clock, MHz", clock, down=True), strongly=True),
        against(drafts_fail(e), say.ratio("draft tokens accepted", acceptance)),
        against(None if tokens is None or e.other_clients("tokens_out") else tokens.rose(0.0, 0.2),
                say.amounts("output tokens", tokens)),
    ]  # fmt: skip
    action = "Rebalance or add capacity; or cap the batch, if waiting is better than slow tokens."
    found = judge("batch_size", lines, action + flags(e, "batch_size"))
    if slow is None or slow < _OFF_THE_LINE:
        return found
    return scoring.at_most_possible(found, f"the slow ones take {slow:.1f} times as long as slow "
                                    "ones did for their batch")  # fmt: skip


def _limit_raised(e: Evidence, running: Moved | None) -> bool:
    """Return whether a limit was raised: by an event, or more requests run and fewer queue."""
    queue = e.row("queue_s")
    fewer = queue and queue.mean_fell(_LESS) and running and running.rose(0.0, _LESS)
    return bool(fewer or e.events("config", "scale"))


def _more_requests_fill_cache(e: Evidence) -> bool:
    """Return whether more requests fill the cache; not a smaller cache or other clients."""
    return e.more_load and e.other_clients("tokens_out") is None and not cache_shrank(e)


def _more_run(e: Evidence, running: Moved | None) -> tuple[bool | None, str]:
    """Return whether more requests run at a time, by the gauge or else by requests, and say so.

    If other clients get more tokens, a gauge of few samples need not be beyond chance: a counter
    misses nothing between two of them.
    """
    rows = None if e.of_means else e.row("in_progress")
    rose = None if rows is None else rows.rose(0.0, 0.2)
    if running is not None:
        counted = running.fleet.is_higher(0.0, 0.2) and e.other_clients("tokens_out")
        more = running.rose(0.0, 0.2) or bool(counted)
        if more or not rose:
            return more, say.gauge("requests running", running)
    return rose, say.amounts("requests in progress", rows)


def replica_imbalance(e: Evidence) -> Finding:
    """One replica gets more than its share, and its requests wait while others idle.

    Looks like:
        Traffic is unchanged, but one replica is slow, and runs and queues more than the others.
        Routing changed, sticky sessions piled up, or a popular prefix attracts too much.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_running)
            sum by (instance) (llmtrace_engine_requests_waiting)
            sum by (instance) (rate(llmtrace_engine_prompt_tokens_total[5m]))
        The slow replica must get more than its share. If it does not, the replica itself is
        slow: look at [GPU throttling](gpu_throttle.md), and, if its clock is normal, at its
        host.

    Now:
        Rebalance: take the replica out for a minute, or lower its weight; check the router's
        policy and its health checks.

    Later:
        Route by least waiting requests (or by prefix with a limit on load), never by connection.
    """
    local = e.local("replica", "ttft_s") or e.local("replica", "tpot_s")
    share = _share_grew(e, slow=_queues_at(e) if local is None else local.value)
    running, waiting = (_instance_stands_out(e, signal) for signal in ("running", "waiting"))
    clock = e.gauge("gpu_sm_clock_mhz")
    several = len(e.instances) > 1
    apart = [one for one in (running, waiting) if one is not None]
    # A queue on one replica may be due to its own slowness: if shares are known, they decide.
    uneven = share[1] if share is not None else any(one[1] for one in apart)
    uneven = uneven or (running is not None and _does_more(e, *running[1:]))
    by_replica = "; ".join(one[0] for one in (share, running, waiting) if one)
    uneven = uneven and not _taken_over(e)
    fewer, scaled, silent = _scaled_in(e), bool(e.events("scale")), _silent(e)
    elsewhere = share is not None and local is not None and local.value != share[3]
    # Another division of the requests without longer waits anywhere is no incident.
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
        against(bool(silent), f"{', '.join(silent)}: silent, others are not", strongly=True),
        against(None if local is not None or not e.after.known("ttft_s") else
                bool(e.moved) and _all_replicas_rose(e), "all replicas got slower"),
    ]  # fmt: skip
    action = "Rebalance: lower the weight of the loaded replica and check the router's policy."
    return judge("replica_imbalance", lines, action, group=local)


def _taken_over(e: Evidence) -> bool:
    """Return whether one engine does all the work that it did none of before: as if deployed."""
    made = e.counted_by("tokens_out")
    before, after = (sum(one[side] for one in made.values()) for side in (0, 1))
    moved = any(one[0] <= _HARDLY * before and one[1] >= (1 - _HARDLY) * after
                for one in made.values())  # fmt: skip
    return bool(before and after and moved)


def _silent(e: Evidence) -> list[str]:
    """Return the engines that serve nothing after failures, or report nothing while others do."""
    samples = {name: len(one.within(e.served).t) for name, one in e.series("running").items()}
    return [*failed_and_left(e), *(name for name, n in samples.items()
                                   if not n and max(samples.values()) > 1)]  # fmt: skip


def _more_wait(e: Evidence) -> bool | None:
    """Return whether more requests wait in the engines, relative to those that run."""
    waiting, running = e.gauge("waiting"), e.gauge("running")
    if waiting is None:
        return None
    least = 0.02 * running.fleet.before_mean if running is not None else 0.0
    return waiting.rose(least, 0.3) or waiting.mean_rose(least, 0.5) or waiting.more_often(_SURE)


def _load_text(e: Evidence) -> str:
    """Say how the load changed: all requests, other clients' tokens, requests to each engine."""
    each, others = e.load_per_engine, e.other_clients("tokens_out")
    text = say.rates("requests", *e.request_rate)
    text += "" if others is None else f"; {say.other_clients('tokens made', others)}"
    return text if each is None else f"{text}, to each engine {say.rates('', *each).strip()}"


def _preempted(e: Evidence) -> bool | None:
    """Return whether enough requests are preempted for a p95 to show it."""
    counted = e.counted_in_equal_time("preemptions")
    if counted is None:
        return None
    before, after = counted
    enough = max(3.0, 0.02 * len(e.after))
    return after >= enough and after >= 2 * before + 2


def _slots_free(e: Evidence) -> bool:
    """Return whether every engine runs far fewer requests than its limit."""
    share = batch_filled(e)
    return share is not None and share[0] < _FREE


def steps_longer(e: Evidence) -> bool:
    """Return whether first chunks are later because steps take longer, while no request waits."""
    free = _more_wait(e) is False and _slots_free(e)
    return free and bool(e.up("tpot_s")) and waits_for_steps(e) is not False


def _scaled_in(e: Evidence) -> bool:
    """Return whether an engine was taken away, so that the others get more for good reason."""
    shares = shares_of_replicas(e).values()
    return bool(e.events("scale")) and any(one.before_k and not one.after_k for one in shares)


def _does_more(e: Evidence, apart: bool, name: str) -> bool:
    """Return whether an engine that runs more requests than the others also does more work.

    A slow one makes no more tokens. If clocks are reported, another line looks at a lower one.
    """
    running, made = e.gauge("running"), e.counted_by("tokens_out")
    mine = None if running is None else running.instances.get(name)
    if e.has("gpu_sm_clock_mhz") and mine is not None and mine.rose(0.0, HALF):
        return apart
    before, after = (made.get(name, (0.0, 0.0))[i] / max(sum(n[i] for n in made.values()), 1e-9)
                     for i in (0, 1))  # fmt: skip
    return apart and 0 < _GROWN * before <= after


def _instance_stands_out(e: Evidence, signal: str) -> tuple[str, bool, str] | None:
    """Compare the instance with the highest gauge with the median of the others.

    Return text, whether it stands out now and did not before, and its name.
    """
    moved = e.gauge(signal)
    if moved is None:
        return None
    before, after = ({name: float(s.value.mean()) for name, s in side.items() if len(s.value)}
                     for side in (moved.before, moved.after))  # fmt: skip
    groups = [one for one in _by_role(e, after) if len(one) > 1 and len(one & before.keys()) > 1]
    if not groups:
        return None
    group = max(groups, key=lambda one: _times_the_others(after, one)[0])
    now, name = _times_the_others(after, group)
    then, _ = _times_the_others(before, group, name)
    text = f"{signal} on {name}: {say.amount(then)} → {say.amount(now)} times the others'"
    return text, now >= 1.5 and now >= 1.35 * then, name


def _by_role(e: Evidence, names: Iterable[str]) -> list[set[str]]:
    """Group engines that may replace each other: one that prefills does not decode."""
    apart = is_disaggregated(e)
    groups: dict[Any, set[str]] = {}
    for name in names:
        groups.setdefault(e.fact("kv_role", name) if apart else None, set()).add(name)
    return [*groups.values()]


def _times_the_others(
    means: Mapping[str, float], group: Iterable[str], name: str | None = None
) -> tuple[float, str]:
    """Compare an engine (by default the highest) with the median of the others in its group."""
    name = name or max(group, key=lambda one: means.get(one, 0.0))
    others = [means[one] for one in group if one != name and one in means]
    return (means.get(name, 0.0) + 1) / (float(np.median(others)) + 1), name


def _share_grew(e: Evidence, *, slow: str | None) -> tuple[str, bool, bool, str] | None:
    """Return how the replica's share that grew most did: text, beyond chance, by far, its name.

    That the same replica is the only `slow` one is no chance either, so less certainty will do.
    """
    shares = shares_of_replicas(e)
    if len(shares) < 2:
        return None
    name = max(shares, key=lambda one: shares[one].after - shares[one].before)
    found = shares[name]
    if not found.before_k:
        return None
    grown = found.after - found.before
    alike = [one for one in shares.values() if one.after - one.before >= 0.5 * grown]
    # A replica that only catches up with the others has no more than its share.
    usual = max(found.before, float(np.median([s.after for n, s in shares.items() if n != name])))
    certain = found.rose(0.0, sure=RATHER_SURE if name == slow else None)
    grew = certain and found.after >= 1.15 * usual and len(alike) == 1
    far = grew and found.after >= 1.35 * usual
    return f"{name} gets {found} of the requests", grew, far, name


def _queues_at(e: Evidence) -> str | None:
    """Return the replica in whose queue nearly all of the waiting is, if requests wait longer."""
    queue, replica = e.after.number("queue_s"), e.after.rows.words["replica"]
    if not e.stage_rose("queue"):
        return None
    by_replica = {name: np.nansum(queue[replica.where(name)]) for name in e.instances}
    most = max(by_replica, key=by_replica.__getitem__, default=None)
    return most if most and by_replica[most] >= _NEARLY_ALL * np.nansum(queue) else None


def _all_replicas_rose(e: Evidence) -> bool:
    """Return whether the metric that moved rose on every replica."""
    found = e.rising_values("replica", e.moved[0])
    return found is not None and not found[1]
