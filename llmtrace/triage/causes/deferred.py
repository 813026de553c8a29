"""Rules for what requests wait for in an engine's queue: KV blocks, adapters, grammars."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.causes.scoring import against, gate, judge, proof, required, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT
from llmtrace.triage.evidence.counter_ratios import Ratio, ratio_of
from llmtrace.triage.evidence.engine_halts import halts
from llmtrace.triage.evidence.evidence import Evidence, memoized
from llmtrace.triage.evidence.inside_engines import (
    at_limit,
    gauge_misses_waits,
    highest,
    is_disaggregated,
    late_after_prefill,
    serves_more_others,
)
from llmtrace.triage.evidence.signals import Moved
from llmtrace.triage.result import Finding

_QUARTER: Final = 0.25  # of a stage's growth
_TIMES: Final = 1.5  # ratio of the models in demand
_SAMPLE: Final = 200  # waiting requests to look at
# of a request's wait, by which others are scheduled before or after it
_SCHEDULED_TOGETHER: Final = 0.2
_LOADS_LONGER: Final = 1.25  # ratio of times
_SEVERAL: Final = 2  # models
_HALTS: Final = 3  # of an engine, so that it is not one by chance
_MANY: Final = 3  # models in equal demand, on engines that all serve them
_MIN_SAMPLES: Final = 3  # samples of a gauge while requests wait
_ALL_TAKEN: Final = 0.95  # of the slots for adapters
_NEARLY_FULL: Final = 0.8  # of the KV cache


def kv_transfer(e: Evidence) -> Finding:
    """Requests wait for KV blocks to come from another tier or another engine.

    Looks like:
        `queue` is up for all models; the engine reports requests *deferred*, not short of
        capacity. It offloads to memory or disk, or prefill and decode run on separate engines.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_waiting_by_reason{reason="deferred"})
            sum by (instance) (rate(llmtrace_engine_external_prefix_cache_hits_tokens_total[5m]))
            sum by (instance, stage) (llmtrace_engine_requests_kv_fetch)
            sum by (instance) (rate(llmtrace_engine_kv_transfer_seconds_sum[5m]))
              / sum by (instance) (rate(llmtrace_engine_kv_transfer_seconds_count[5m]))
            sum by (instance, reason) (rate(llmtrace_engine_kv_transfer_failures_total[5m]))

    Now:
        Reroute around the slow link or tier; or fall back to computing prompts locally.

    Later:
        Fix the network between the engines; alert on transfer time and on expired requests.
    """
    deferred, share = _deferred(e)
    fetching = e.gauge("kv_fetch")
    waits = deferred if fetching is None else fetching
    slow, calm, known = _slow_and_calm_models(e)
    some_models, fetches = bool(slow) and bool(calm), _fetches_kv_blocks(e)
    more = None if waits is None else _more_wait(waits)
    gauge_misses = more is False and gauge_misses_waits(e)
    held = not more and (waits is None or gauge_misses or (share or 0.0) >= HALF) and fetches
    (by_loads, loads), (late, as_ever) = _loads_longer(e), _slow_and_calm_routes(e)
    in_steps, in_tail = _steps_held_by_loads(e) if fetches and not by_loads else ("", False)
    queue = say.durations("queue", e.row("queue_s"))
    named = "requests deferred" if fetching is None else "requests that fetch KV blocks"
    text = (f"{queue}, and {at_limit(e)[1]}"
            if held and _wait_though_slots_free(e) else "")  # fmt: skip
    shown = (by_loads and loads) or in_steps or text or _slower_transfers_text(e)
    tells_apart = known and (more or shown) and not (fetches is None and len(slow) < _SEVERAL)
    lines = [
        gate(e.stage_rose("queue") or by_loads or bool(in_steps), queue,
             "the engine's queue time per request"),
        required(bool(shown) or (None if gauge_misses else more), shown or say.gauge(named, waits),
                 "the gauges `kv_fetch` (vLLM 0.32) or `waiting_deferred` (vLLM 0.20)"),
        proof(None if fetching is None else _more_wait(fetching), say.gauge(named, fetching)),
        support(*_transfers_slower(e)),
        # If all of several models wait, it is not for a grammar or an adapter.
        (proof if fetches else support)(
              None if share is None or not tells_apart else share >= HALF and not some_models,
              f"{say.percent(share or 0)} of waiting requests are deferred, of every model",
              "the rows' `model`, to distinguish it from adapters that wait for a slot"),
        against(fetches is False, "no KV blocks are fetched from elsewhere", strongly=True),
        against(_compete(e, share), "requests of more models wait for adapters", strongly=True),
        support(e.kv_connector or None, "a KV connector is in use"),
        against(some_models, _models_text(slow, calm), strongly=True),
        against(is_disaggregated(e), "one engine prefills, another decodes", strongly=True),
        against(bool(in_steps) and not in_tail, "a slower GPU does that as well"),
        against(fetches is None and bool(late) and bool(as_ever),
                f"routes that wait no longer than before: {', '.join(as_ever[:5])}"),
    ]  # fmt: skip
    action = "Reroute round the slow KV tier or link, or compute prompts locally until it is well."
    return judge("kv_transfer", lines, action + flags(e, "kv_transfer"))


def _slower_transfers_text(e: Evidence) -> str:
    """Say how much longer transfers take and requests wait; empty if that is not explained so."""
    time, queue = _transfer_time(e), e.row("queue_s")
    if time is None or queue is None or not _transfers_slower(e)[0] or not e.stage_rose("queue"):
        return ""
    longer = time.after - time.before
    if longer < max(_QUARTER * queue.mean_change, e.floor("queue_s")):
        return ""
    return (f"each transfer takes {say.seconds(longer)} longer, and a request waits "
            f"{say.seconds(queue.mean_change)} longer")  # fmt: skip


def _fetches_kv_blocks(e: Evidence) -> bool | None:
    """Return whether KV blocks come from another tier or engine; `None` = not counted.

    vLLM counts fetches since 0.11 and reasons for deferral since 0.20: with only the latter, none
    are.
    """
    queries = e.counted("external_prefix_queries")
    moves = ("kv_fetch", "kv_transfer_time_count", "kv_offload_load_time")
    if e.kv_connector or any(e.has(one) for one in moves):
        return True
    if queries is None:
        return None if e.gauge("waiting_deferred") is None else False
    return max(queries) > 0


def _loads_longer(e: Evidence) -> tuple[bool | None, str]:
    """Return whether loading KV blocks takes longer by a good part of the added time, and say so.

    By the seconds that engines count, divided by requests; `None` = not counted.
    """
    seconds, first = e.counted("kv_offload_load_time"), e.row("ttft_s")
    if seconds is None or first is None:
        return None, ""
    before, after = (one / max(len(side), 1)
                     for one, side in zip(seconds, (e.before, e.after), strict=True))  # fmt: skip
    text = f"loading KV blocks takes {say.seconds(before)} → {say.seconds(after)} a request"
    return after - before >= max(_QUARTER * first.mean_change, e.floor("ttft_s")), text


def _steps_held_by_loads(e: Evidence) -> tuple[str, bool]:
    """Say that steps wait for KV blocks to load, and return whether the tail shows it most.

    Prefill at the same length and the longest gap of other streams grow then, but no queue. Empty
    = they do not.
    """
    hits, prefill = e.counted("external_prefix_hits"), e.row("prefill_s")
    held = hits is not None and hits[1] > 0 and bool(e.up("prefill_s") and e.up("max_gap_s"))
    if not held or prefill is None or e.stage_rose("queue") or prefill.before_p50 <= 0:
        return "", False
    longer = (e.prefill_ratio or 0.0) >= _LOADS_LONGER
    text = f"steps are held up, in which blocks are loaded: {say.durations('prefill', prefill)}"
    tail = prefill.after_p95 / prefill.before_p95 / (prefill.after_p50 / prefill.before_p50)
    return text if longer else "", tail >= _LOADS_LONGER


def disaggregated_kv(e: Evidence) -> Finding:
    """Prefill and decode run on separate engines, and KV blocks take longer between them.

    Looks like:
        Prefill is as fast as before, but the first chunk is late by the transfer to the engine
        that decodes. One pair of engines or one link is slow, or all are if the network between
        them is full.

    Confirm:
            sum by (instance) (rate(llmtrace_engine_kv_transfer_seconds_sum[5m]))
              / sum by (instance) (rate(llmtrace_engine_kv_transfer_seconds_count[5m]))
            sum by (instance, reason) (rate(llmtrace_engine_kv_transfer_failures_total[5m]))
            sum by (instance, stage) (llmtrace_engine_requests_kv_fetch)
        Rows: `first_chunk_kv_transfer_s`, the queue of the engine that decodes.

    Now:
        Look at failures first: failed transfers are computed again. Reroute around the slow
        link or pair, or serve prefill and decode on one engine until it recovers.

    Later:
        Place both on one fast network; alert on the time and the failures of transfers.
    """
    wait = e.row("first_chunk_kv_transfer_s")
    failures = e.counted_in_equal_time("kv_transfer_failures")
    floor, part = e.floor("first_chunk_s"), e.part_of_metric("first_chunk_kv_transfer_s")
    longer = _transfers_delay_first_chunk(e) if wait is None else None
    late = wait is None and not longer and e.kv_connector and late_after_prefill(e)
    local = e.local("replica", "first_chunk_kv_transfer_s")
    lines = [
        gate(e.stage_rose("first_chunk", "queue"),
             say.durations("first chunk", e.row("first_chunk_s")),
             "time to first chunk by stages"),
        required(late or longer if wait is None else wait.rose(floor) or wait.mean_rose(floor),
                 "transfers alone make the first chunk later" if longer else
                 "what is added comes after the prefill, with a KV connector in use" if late else
                 say.durations("wait of the engine that decodes", wait),
                 "`first_chunk_kv_transfer_s`: spans of both engines"),
        proof(None if part is None else part >= 0.5,
              f"it is {say.percent(min(max(part or 0, 0), 1))} of what the metric grew by"),
        support(*_transfers_slower(e)),
        support(None if failures is None else failures[1] >= 5 and failures[1] > 2 * failures[0],
                say.counted("transfers that failed", failures)),
        support(None if local is None else True, f"only {local}"),
        support(is_disaggregated(e), "one engine prefills, another decodes"),
        against(e.stage_rose("prefill"), say.durations("prefill", e.row("prefill_s"))),
    ]  # fmt: skip
    action = "Reroute round the slow link between prefill and decode, or serve both on one engine."
    return judge("disaggregated_kv", lines, action, group=local)


def _transfers_slower(e: Evidence) -> tuple[bool | None, str]:
    """Return whether engines report transfers 1.5 times as long or longer, and say so."""
    time = _transfer_time(e)
    if time is None:
        return None, ""
    text = f"a transfer of KV blocks {say.seconds(time.before)} → {say.seconds(time.after)}"
    return time.after >= 1.5 * time.before, text


def _transfers_delay_first_chunk(e: Evidence) -> bool | None:
    """Return whether slower transfers are a good part of the first chunk's delay.

    No request decodes before its blocks have arrived, so a slower transfer delays the first chunk
    by at least as much. `None` = engines report no slower transfers.
    """
    lost = "first_chunk" if e.row("first_chunk_s") is not None else "unattributed"
    lost = "queue" if is_disaggregated(e) and e.stage_rose("queue") else lost
    time, first = _transfer_time(e), e.row(f"{lost}_s")
    if time is None or first is None or not _transfers_slower(e)[0]:
        return None
    if lost == "unattributed" and e.stage_rose("queue"):
        return None  # without stages in rows, the queue is part of `unattributed`
    part = max(_QUARTER * first.mean_change, e.floor("first_chunk_s"))
    return bool(e.stage_rose(lost)) and time.after - time.before >= part


def _transfer_time(e: Evidence) -> Ratio | None:
    return ratio_of(e, "kv_transfer_time_sum", "kv_transfer_time_count")


def lora_slots(e: Evidence) -> Finding:
    """More adapters are in demand than fit at once, so requests wait for a slot.

    Looks like:
        `queue` is up for some models (adapters) but not for others on the same engine. The
        engine reports requests as deferred.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_waiting_by_reason{reason="deferred"})
            histogram_quantile(0.95,
              sum by (le, model) (rate(llmtrace_stage_duration_seconds_bucket{stage="queue"}[5m])))
            sum by (instance) (llmtrace_engine_lora_slots_used)
              / sum by (instance) (llmtrace_engine_lora_slots)
        On vLLM, `vllm:lora_requests_info` lists the adapters that run and wait.

    Now:
        Rebalance: send each adapter to its own replicas, so that fewer share one.

    Later:
        Raise the number of slots; pin the adapters that are always in demand; merge the largest.
    """
    deferred, share = _deferred(e)
    slow, calm, known = _slow_and_calm_models(e)
    more = None if deferred is None else _more_wait(deferred) or (
        share != 0 and gauge_misses_waits(e) and _wait_though_slots_free(e))  # fmt: skip
    # Requests are deferred for KV blocks, a grammar or an adapter: exclude the first two.
    other_clients = serves_more_others(e)
    for_slots = not _compiles_grammars(e)[2] and not _models_fit(e)
    apart = bool(slow and calm) and for_slots
    left = bool(more and _fetches_kv_blocks(e) is False and for_slots)
    demand = _models_in_demand(e)
    crowded = demand[1] >= _MANY and not calm and _wait_though_slots_free(e) and _no_kv_reason(e)
    compete = _compete(e, share) or crowded
    new_models = e.new_values("model")
    lines = [
        gate(e.stage_rose("queue"), say.durations("queue", e.row("queue_s")),
             "the engine's queue time per request"),
        required(apart or left or compete or bool(_adapter_slots_full(e) and e.stage_rose("queue"))
                 if known else None, _models_text(slow, calm)
                 + ("; no KV blocks are fetched" if left else "")
                 + ("" if for_slots else "; there is a slot for each, or grammars are compiled"),
                 "the rows' `model`, and the engine's queue time"),
        support(compete, f"requests wait though there is room, and {say.amount(demand[0])} → "
                f"{say.amount(demand[1])} models are in equal demand"),
        proof(apart and not _by_chance(e, more) and _same_engine(e, slow, calm) if known else None,
              "models that wait and models that do not run on the same engines"),
        proof(left and bool(new_models), "requests are deferred since other models are wanted: "
              + ", ".join(new_models[:5])),
        support(left and other_clients,
                "engines serve more requests that are in no row than before"),
        support(more, say.gauge("requests deferred", deferred),
                "the gauge `waiting_deferred` (vLLM 0.20: waiting by reason)"),
        proof(_adapter_slots_full(e), "all slots for adapters are in use while requests wait"),
        against(None if more is None or compete else not more,
                "no more requests are deferred than before"),
        support(None if share is None else share >= 0.4,
                f"{say.percent(share or 0)} of waiting requests are deferred"),
    ]  # fmt: skip
    action = "Rebalance: give each adapter replicas of its own, or more slots."
    return judge("lora_slots", lines, action + flags(e, "lora_slots"))


def _by_chance(e: Evidence, more: bool | None) -> bool:
    """Return whether engines stand still, and do not report that `more` requests are deferred."""
    return more is None and halts(e).rose(0.0, _HALTS)


def grammar_compilation(e: Evidence) -> Finding:
    """Requests for structured answers wait until their grammar is compiled.

    Looks like:
        First content is late only for requests with a JSON schema or a grammar. The engine's
        queue is short; requests wait for their grammar.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_waiting_by_reason{reason="grammar"})
            sum by (instance) (rate(llmtrace_engine_grammar_compile_seconds_sum[5m]))
              / sum by (instance) (rate(llmtrace_engine_grammar_compile_seconds_count[5m]))

    Now:
        Fix: send the same schema for the same work, so that its compiled grammar is cached; or
        roll back the schema that changes with every request.

    Later:
        Keep generated values out of schemas; alert on grammar compile time.
    """
    spent, more, known = _compiles_grammars(e)
    # Requests are deferred for KV blocks, an adapter or a grammar: exclude the first two.
    _, share = _deferred(e)
    fit = _models_fit(e)
    fetches, routes = _fetches_kv_blocks(e), _slow_and_calm_routes(e)
    by_route = bool(routes[0]) and bool(routes[1])
    deferred, one_engine = (share or 0.0) >= HALF, e.local("replica", "queue_s")
    # If the engine says why they wait, that counts: scrapes miss seats that are taken in between.
    room = share is None and one_engine is None and _wait_though_slots_free(e) and _no_kv_reason(e)
    # Exclude waits for a longer step, for a stopped engine, or on one engine only.
    together = _scheduled_together(e) if room else None
    computes = not e.up("prefill_s") and e.up("max_gap_s") is False and together is not True
    left = known is None and (deferred or (room and computes)) and fit and (
        fetches is False or (fetches is None and (by_route or not deferred)))  # fmt: skip
    which = f"{say.percent(share or 0)} of waiting requests are deferred" if deferred else (
        "requests wait though there are seats")  # fmt: skip
    text = f"{which}, not for KV blocks and not for an adapter"
    part = e.part_of_metric("queue_s") or 0.0
    lines = [
        gate(e.rising("ttft_s"), say.durations("time to first chunk", e.row("ttft_s")),
             "time to first chunk"),
        required(bool(e.stage_rose("queue")) if left else known,
                 text if left else
                 say.gauge("requests that wait for a grammar", e.gauge("waiting_grammar")),
                 "the gauge `waiting_grammar` or the histogram `grammar_compile`"),
        support(left and part >= HALF and (deferred or by_route or together is False),
                f"the queue is {say.percent(min(part, 1.0))} of what the metric grew by"),
        support(left and by_route, f"routes that wait more: {', '.join(routes[0][:5])}; "
                f"as before: {', '.join(routes[1][:5])}"),
        proof(more, "compiling grammars takes "
              + ("-" if spent is None else f"{spent[0]:.1f} → {spent[1]:.1f} s in equal time")),
    ]  # fmt: skip
    action = "Fix: send one schema for the same work, so that its compiled grammar is reused."
    return judge("grammar_compilation", lines, action)


def _models_fit(e: Evidence) -> bool:
    """Return whether no request can wait for an adapter: all models have a slot, or there is one.

    Slots are stated in the facts, as vLLM's option `max_loras`. Other clients may want others. If
    some routes wait and others do not, whatever the model, it is not for its adapter either.
    """
    (late, as_ever), (slow, calm, by_model) = _slow_and_calm_routes(e), _slow_and_calm_models(e)
    if by_model and late and as_ever and not ((slow and calm) or e.new_values("model")):
        return True
    models = np.unique(e.after.rows.words["model"].codes)
    stated = [facts.get("max_loras") for facts in e.facts.instances.values()]
    slots = min((one for one in stated if isinstance(one, int)), default=1)
    known = len(models) > 0 and bool(models[0] >= 0)
    return known and len(models) <= max(slots, 1) and not serves_more_others(e)


@memoized
def _compiles_grammars(e: Evidence) -> tuple[tuple[float, float] | None, bool | None, bool | None]:
    """Return the seconds spent on grammars, whether more, and whether requests wait for them.

    Seconds before and after, in equal time; `None` = not reported.
    """
    spent, waiting = e.counted_in_equal_time("grammar_compile_sum"), e.gauge("waiting_grammar")
    more = None if spent is None else spent[1] > max(2 * spent[0], 1.0)
    if waiting is None:
        return spent, more, more
    return spent, more, bool(more) or _more_wait(waiting)


def _adapter_slots_full(e: Evidence) -> bool | None:
    """Return whether any engine's adapter slots are all in use; `None` = not reported.

    Only samples during which requests wait count, if there are enough of them.
    """
    used, slots, waiting = e.gauge("lora_slots_used"), e.gauge("lora_slots"), e.gauge("waiting")
    if used is None or slots is None:
        return None
    names = [name for name in used.after if name in slots.after and len(slots.after[name].value)]
    queues = {} if waiting is None else waiting.after
    for name in names:
        taken, wait = used.after[name], queues.get(name)
        value = taken.value
        if wait is not None and len(wait.t):
            waits = np.interp(taken.t, wait.t, wait.value) > 0
            value = value[waits] if waits.sum() >= _MIN_SAMPLES else value
        if len(value) and value.mean() >= _ALL_TAKEN * slots.after[name].value.mean() > 0:
            return True
    return False if names else None


def _slow_and_calm_routes(e: Evidence) -> tuple[list[str], list[str]]:
    """Return the routes that wait longer and those that do not: by queue, else by first chunk."""
    return e.rising_values("route", "queue_s") or e.rising_values("route", "ttft_s") or ([], [])


def _deferred(e: Evidence) -> tuple[Moved | None, float | None]:
    """Return the gauge of deferred requests, and their share of all waiting requests after."""
    deferred, waiting = e.gauge("waiting_deferred"), e.gauge("waiting")
    if deferred is None or waiting is None:
        return deferred, None
    part = sum(float(s.value.sum()) for s in deferred.after.values())
    whole = sum(float(s.value.sum()) for s in waiting.after.values())
    return deferred, part / whole if whole > 0 else None


def _more_wait(waiting: Moved) -> bool:
    """Return whether more requests wait: by the gauge's level, or by how often it is above 0."""
    return waiting.rose(0.0, 0.3) or waiting.mean_rose(0.0, 0.5) or waiting.more_often(2.0)


def _wait_though_slots_free(e: Evidence) -> bool:
    """Return whether most of the added time is queue time though no engine's batch is full."""
    full, _ = at_limit(e)
    return full is False and (e.part_of_metric("queue_s") or 0.0) >= HALF


def _scheduled_together(e: Evidence) -> bool | None:
    """Return whether waiting requests are scheduled together; `None` = too few, or one by one.

    A longer step or a stopped engine releases all who wait at once. A request that waits for its
    own grammar or adapter is overtaken by others.
    """
    queue = e.row("queue_s")
    if queue is None:
        return None
    side, waited = e.after, e.after.number("queue_s")
    scheduled: Floats = side.t + side.number("ttft_s") - side.number("prefill_s")
    scheduled -= side.number("first_chunk_s")
    queued, engine = scheduled - waited, side.rows.words["replica"].codes
    met, overtook, together = 0, 0, 0
    late = np.flatnonzero(waited > max(queue.before_p95, e.floor("queue_s")))
    for i in late[:: len(late) // _SAMPLE + 1]:
        behind = (engine == engine[i]) & (queued > queued[i]) & (queued < scheduled[i])
        near = np.abs(scheduled - scheduled[i]) <= _SCHEDULED_TOGETHER * waited[i]
        met += int(behind.sum())
        overtook += int((behind & (scheduled < scheduled[i] - queue.before_p95)).sum())
        together += int((behind & near).sum())
    if met < MIN_COUNT or max(overtook, together) < HALF * met:
        return None
    return overtook < HALF * met


def _slow_and_calm_models(e: Evidence) -> tuple[list[str], list[str], bool]:
    """Return the models whose queue grew, the others, and whether rows and engines show it.

    A model may be slower for any reason: that it waits in an engine has to be reported.
    """
    queues = e.after.known("queue_s")
    slow, calm = e.rising_values("model", "queue_s" if queues else "ttft_s") or ([], [])
    reported = queues or e.row("queue_s") is not None or _deferred(e)[0] is not None
    return slow, calm, reported and bool((e.after.rows.words["model"].codes >= 0).any())


def _compete(e: Evidence, deferred: float | None) -> bool:
    """Return whether more models are in demand, and requests wait though slots are free."""
    before, after = _models_in_demand(e)
    waits = _wait_though_slots_free(e) or (
        (deferred or 0.0) >= HALF and (e.part_of_metric("queue_s") or 0.0) >= HALF)  # fmt: skip
    return after >= _TIMES * before and waits and not _fetches_kv_blocks(e)


def _no_kv_reason(e: Evidence) -> bool:
    """Return whether requests wait neither for room in the KV cache nor for KV blocks."""
    used = e.gauge("kv_usage")
    room = used is not None and highest(used) < _NEARLY_FULL
    return room and not _fetches_kv_blocks(e) and not _transfers_slower(e)[0]


def _models_in_demand(e: Evidence) -> tuple[float, float]:
    """Return the effective number of models (inverse Simpson index) before and after."""
    found = []
    for side in (e.before, e.after):
        codes = side.rows.words["model"].codes
        counts = np.bincount(codes[codes >= 0])
        found.append(float(counts.sum()) ** 2 / max(float((counts.astype(float) ** 2).sum()), 1.0))
    return found[0], found[1]


def _same_engine(e: Evidence, slow: list[str], calm: list[str]) -> bool:
    """Return whether an engine serves both slow and calm models, or rows do not name engines."""
    words = e.after.rows.words["replica"]
    slow_on, calm_on = (
        set(words.codes[e.after.where("model", *names) & (words.codes >= 0)].tolist())
        for names in (slow, calm)
    )
    return bool(slow_on & calm_on) or not (slow_on or calm_on)


def _models_text(slow: list[str], calm: list[str]) -> str:
    return (f"models that wait more: {', '.join(slow[:5]) or 'all alike'}; "
            f"as before: {', '.join(calm[:5]) or 'none'}")  # fmt: skip
