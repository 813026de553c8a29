"""Rules for causes in caches, speculation, KV transfer and adapters."""

from __future__ import annotations

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.causes.scoring import against, gate, judge, proof, required, steady, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, STANDS_OUT, SURE, Shift
from llmtrace.triage.evidence.evidence import ENGINE_STAGES, Evidence, Ratio
from llmtrace.triage.evidence.inside_engines import at_limit, highest_p95, late_after_prefill
from llmtrace.triage.evidence.kinds import moved
from llmtrace.triage.evidence.signals import Moved
from llmtrace.triage.result import Finding

_FALLS_TO = 0.8
_AT_ONCE = 0.2  # of its wait, by which others are let in before one or after it
_PART = 0.03  # of all prompt tokens
_LITTLE = 0.1
_QUARTER = 0.25  # of what a stage grew by
_FEW_READS = 10  # that meet a request: as many may be next to none by chance
_TIMES = 1.5  # as many models in demand
_ENOUGH = 200  # that wait: whether they are overtaken shows in a part of many
_LOADS_LONGER = 1.25  # times as long
_SEVERAL = 2  # models
_MANY = 3  # models in demand alike on engines that all serve them
_MEETS = 3  # samples in which requests wait
_ALL_TAKEN = 0.95  # of the slots for adapters
_NEARLY_FULL = 0.8  # of the KV cache
_OTHERS = 1.2  # times as many requests as rows tell of
_OTHER_WORK = 0.1  # as a share of the mean prompt


def prefix_cache_collapse(e: Evidence) -> Finding:
    """Prompts that the prefix cache used to serve are computed again.

    Looks like:
        Fewer cached tokens a request at the same prompt length; hits over queries falls. Prefill
        per computed token is what it was, there are only more to compute. Other requests' streams
        slow down as well: on a real vLLM more than prefill itself. Often after a deploy: a time
        stamp in the system prompt, a new template, a router that scatters prefixes.

    Confirm:
            sum(rate(llmtrace_engine_prefix_cache_hits_tokens_total[5m]))
              / sum(rate(llmtrace_engine_prefix_cache_queries_tokens_total[5m]))
            histogram_quantile(0.95,
              sum by (le) (rate(llmtrace_stage_duration_seconds_bucket{stage="prefill"}[5m])))

    Now:
        Fix what changed: roll the template or the routing back. Diff the first kilobyte of two
        prompts of the same route.

    Later:
        Keep what varies at the end of the prompt; route by prefix; give the cache room; watch the
        hit ratio like an SLO.
    """
    tokens, prompts = e.row("found_prefix_tokens"), e.row("prompt_tokens")
    per_token = e.prefill_at_same
    by_rows = _by_rows(e)
    by_signals, ratio = _by_counters(e, by_rows)
    less = bool(by_rows) or bool(by_signals)
    known = by_rows is not None or by_signals is not None
    deploys = e.events("deploy", "config")
    off = e.fact("prefix_caching") is False
    text = "; ".join([say.ratio("prefix hits", ratio), _mean_text("cached tokens", tokens)])
    lines = [
        gate(e.gate(*ENGINE_STAGES),
             say.durations("prefill", e.row("prefill_s")), "the engine's prefill time"),
        required(less if known else None, text,
                 "the engines' counters `prefix_hits` and `prefix_queries`, or cached tokens of "
                 "each request (vLLM: `--enable-prompt-tokens-details`)"),
        proof(less and by_rows is not False and by_signals is not False and _same_work(e)
              and not _waits_for_else(e), "every source that counts cached tokens agrees"),
        steady(support(None if prompts is None else not prompts.rose(0.0, 0.15),
                       say.amounts("prompt tokens", prompts))),
        support(None if per_token is None else 0.7 <= per_token <= 1.3,
                f"prefill per computed token: {say.amount(per_token or 0)} times what it was"),
        support(bool(deploys) if known else None,
                "changed shortly before: " + "; ".join(one.text for one in deploys)),
        support(off if known else None, "prefix caching is off"),
    ]  # fmt: skip
    action = "Fix what broke the shared prefix: roll back the template or the routing."
    return judge("prefix_cache_collapse", lines, action + flags(e, "prefix_cache_collapse"))


def _waits_for_else(e: Evidence) -> bool:
    """Return whether requests wait in the queue alone: more to compute takes prefill as well."""
    queue, prefill = e.part_of_metric("queue_s"), e.part_of_metric("prefill_s")
    return (queue or 0.0) >= HALF and prefill is not None and prefill < _LITTLE


def _same_work(e: Evidence) -> bool:
    """Return whether lengths are as before, for all that rows name of the kinds of requests.

    Otherwise fewer cached tokens may be those of another mix, of kinds that rows do not name.
    """
    lengths = [e.beyond_kind(name) or e.row(name) for name in ("prompt_tokens", "output_tokens")]
    known = [one for one in lengths if one is not None]
    return not any(one.rose(0.0, 0.15) or one.fell(0.0, 0.15) for one in known)


def _by_rows(e: Evidence) -> bool | None:
    """Return whether requests of the same kind report fewer tokens from the cache.

    Other routes have other prefixes: that is no cache's doing. Nor is it that a longer prompt
    has more beside its prefix.
    """
    tokens = e.beyond_kind("found_prefix_tokens", by_length=True)
    if tokens is None:
        return None
    fewer = tokens.after_mean <= _FALLS_TO * tokens.before_mean and tokens.mean_z <= -SURE
    return fewer and tokens.stretch_z <= -STANDS_OUT


def _by_counters(e: Evidence, by_rows: bool | None) -> tuple[bool | None, Ratio | None]:
    """Return whether engines count fewer hits, unless requests explain it, and by which ratio."""
    ratio = e.ratio("prefix_hits", "prefix_queries")
    worst = e.worst_ratio("prefix_hits", "prefix_queries")
    prompts = e.row("prompt_tokens")
    # A longer prompt has more beside its prefix, of which as many tokens are cached.
    longer = 1.0
    if prompts is not None and prompts.before_mean > 0:
        longer = max(prompts.after_mean / prompts.before_mean, 1.0)
    fewer = None if ratio is None else _sank(ratio, longer)
    if fewer is False and worst is not None and _sank(worst, longer):
        fewer, ratio = True, worst
    others = _other_kinds(e) or e.beside("tokens_in") is not None
    others = others or _as_many_hits(e)
    if fewer and by_rows is None and not others:
        others = _usual(e, ratio) or _of_another_mix(e, ratio)
    if fewer and (by_rows is False or (by_rows is None and others)):
        fewer = None
    return fewer, ratio


def _of_another_mix(e: Evidence, ratio: Ratio | None) -> bool:
    """Return whether enough requests are of other kinds, which may find less in the cache."""
    if ratio is None or not ratio.before:
        return False
    return moved(e.before, e.after) >= HALF * max(1 - ratio.after / ratio.before, _LITTLE)


def _as_many_hits(e: Evidence) -> bool:
    """Return whether a request still finds as many tokens in the cache: there are only others."""
    hits, ended = e.counted("prefix_hits"), e.ended
    if hits is None or ended is None or min(hits[0], *ended) <= 0:
        return False
    return hits[1] / ended[1] >= _FALLS_TO * hits[0] / ended[0]


def _usual(e: Evidence, ratio: Ratio | None) -> bool:
    """Return whether stretches of the time before have as few hits: prompts differ."""
    if ratio is None:
        return False
    z = e.ratio_z("prefix_hits", "prefix_queries", ratio.instance)
    return z is not None and z > -STANDS_OUT


def low_spec_acceptance(e: Evidence) -> Finding:
    """Drafted tokens are rejected, so speculation costs more than it saves.

    Looks like:
        Accepted over drafted falls, or drafts give fewer of the output tokens; time per token
        rises at the same batch. Below about 40 % accepted, speculation is slower than none.

    Confirm:
            sum(rate(llmtrace_engine_spec_decode_accepted_tokens_total[5m]))
              / sum(rate(llmtrace_engine_spec_decode_drafted_tokens_total[5m]))

    Now:
        Fix: shorten the draft, or turn speculation off. Reroute traffic that the drafter does not
        know (another language, code) to replicas without it.

    Later:
        Train or choose the drafter on today's traffic; turn speculation off above a batch size.
    """
    ratio = e.ratio("spec_accepted", "spec_drafted")
    worst = e.worst_ratio("spec_accepted", "spec_drafted")
    rows = e.row("acceptance")
    off = e.fact("spec_decode") in (False, "", "off", "none")
    by_signals = None if ratio is None else _fell(ratio.before, ratio.after, 0.05, 0.85)
    if by_signals is False and worst is not None and _fell(worst.before, worst.after, 0.1, 0.8):
        by_signals, ratio = True, worst
    label, given = "draft tokens accepted", e.ratio("spec_accepted", "tokens_out")
    if not by_signals and given is not None and _fell(given.before, given.after, 0.1, 0.7):
        # A drafter that finds nothing to go by drafts little, of which most may be accepted.
        by_signals, label, ratio = True, "output tokens that are accepted drafts", given
    by_rows = None if rows is None else _fell(rows.before_mean, rows.after_mean, 0.05, 0.85)
    if e.beside("tokens_out") is not None:
        by_signals = None  # engines count what they make for others, too
    reported = [one for one in (by_signals, by_rows) if one is not None]
    holds = any(reported) if reported else (False if off else None)
    text = say.ratio(label, ratio)
    if ratio is None and rows is not None:
        text = (f"draft tokens accepted, mean {say.percent(rows.before_mean)} → "
                f"{say.percent(rows.after_mean)}")  # fmt: skip
    running = e.gauge("running")
    lines = [
        gate(e.rising("tpot_s"), say.durations("time per token", e.row("tpot_s")),
             "output tokens per request"),
        required(holds, text, "the engines' counters `spec_accepted` and `spec_drafted`"),
        proof(all(reported) if reported else None, "every source that counts draft tokens agrees"),
        steady(support(None if running is None else not running.rose(0.0, 0.3),
                       say.gauge("requests running", running))),
    ]  # fmt: skip
    action = "Fix: shorten the draft or turn speculation off; it pays above about 40 % accepted."
    return judge("low_spec_acceptance", lines, action + flags(e, "low_spec_acceptance"))


def kv_transfer(e: Evidence) -> Finding:
    """Requests wait for KV blocks to come from another tier or another engine.

    Looks like:
        `queue` is up while the engine reports requests *deferred*, not short of capacity; all
        models alike. Offloading to memory or disk, or prefill and decode on separate engines.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_waiting_by_reason{reason="deferred"})
            sum by (instance) (rate(llmtrace_engine_external_prefix_cache_hits_tokens_total[5m]))
            sum by (instance, stage) (llmtrace_engine_requests_kv_fetch)
            sum by (instance) (rate(llmtrace_engine_kv_transfer_seconds_sum[5m]))
              / sum by (instance) (rate(llmtrace_engine_kv_transfer_seconds_count[5m]))
            sum by (instance, reason) (rate(llmtrace_engine_kv_transfer_failures_total[5m]))

    Now:
        Reroute round the slow link or tier; or fall back to computing prompts locally.

    Later:
        Fix the network between the engines; alert on transfer time and on expired requests.
    """
    deferred, share = _deferred(e)
    fetching = e.gauge("kv_fetch")
    waits = deferred if fetching is None else fetching
    slow, calm, known = _models(e)
    some, fetches = bool(slow) and bool(calm), _fetches_blocks(e)
    more = None if waits is None else _more(waits)
    alone = more is False and _hardly_read(e)
    held = not more and (waits is None or alone or (share or 0.0) >= HALF) and fetches
    (by_loads, loads), (late, as_ever) = _loads_longer(e), _routes(e)
    in_steps, uneven = _held_by_loads(e) if fetches and not by_loads else ("", False)
    queue = say.durations("queue", e.row("queue_s"))
    named = "requests deferred" if fetching is None else "requests that fetch KV blocks"
    text = (f"{queue}, and {at_limit(e)[1]}"
            if held and _wait_with_room(e) else "")  # fmt: skip
    shown = (by_loads and loads) or in_steps or text or _by_transfers(e)
    tells = known and (more or shown) and not (fetches is None and len(slow) < _SEVERAL)
    lines = [
        gate(e.gate("queue") or by_loads or bool(in_steps), queue,
             "the engine's queue time per request"),
        required(bool(shown) or (None if alone else more), shown or say.gauge(named, waits),
                 "the gauges `kv_fetch` (vLLM 0.32) or `waiting_deferred` (vLLM 0.20)"),
        proof(None if fetching is None else _more(fetching), say.gauge(named, fetching)),
        support(*_transfers_slower(e)),
        # That all wait alike tells it from a grammar or an adapter only where there are several.
        (proof if fetches else support)(
              None if share is None or not tells else share >= HALF and not some,
              f"{say.percent(share or 0)} of waiting requests are deferred, of every model",
              "the rows' `model`, to distinguish it from adapters that wait for a slot"),
        against(fetches is False, "no KV blocks are fetched from elsewhere", strongly=True),
        against(_compete(e, share), "requests of more models wait for adapters", strongly=True),
        support(e.kv_connector or None, "a KV connector is in use"),
        against(some, _models_text(slow, calm), strongly=True),
        against(_prefill_apart(e), "one engine prefills, another decodes", strongly=True),
        against(bool(in_steps) and not uneven, "a slower GPU does that as well"),
        against(fetches is None and bool(late) and bool(as_ever),
                f"routes that wait no longer than before: {', '.join(as_ever[:5])}"),
    ]  # fmt: skip
    action = "Reroute round the slow KV tier or link, or compute prompts locally until it is well."
    return judge("kv_transfer", lines, action + flags(e, "kv_transfer"))


def _by_transfers(e: Evidence) -> str:
    """Say that what each transfer takes longer is what requests wait for longer, if it is."""
    time, queue = _transfer_time(e), e.row("queue_s")
    if time is None or queue is None or not _transfers_slower(e)[0] or not e.gate("queue"):
        return ""
    longer = time.after - time.before
    if longer < max(_QUARTER * queue.mean_change, e.floor("queue_s")):
        return ""
    return (f"each transfer takes {say.seconds(longer)} longer, and a request waits "
            f"{say.seconds(queue.mean_change)} longer")  # fmt: skip


def _fetches_blocks(e: Evidence) -> bool | None:
    """Return whether KV blocks come from another tier or engine; `None` = not counted.

    Engines that say why requests are deferred have counted for longer what they fetch: vLLM does
    the one since 0.20, the other since 0.11.
    """
    queries = e.counted("external_prefix_queries")
    moves = ("kv_fetch", "kv_transfer_time_count", "kv_offload_load_time")
    if e.kv_connector or any(e.has(one) for one in moves):
        return True
    if queries is None:
        return None if e.gauge("waiting_deferred") is None else False
    return max(queries) > 0


def _loads_longer(e: Evidence) -> tuple[bool | None, str]:
    """Return whether loading blocks from another tier takes a part of what was added, and say so.

    By the seconds that engines count, for each request; `None` = they count none.
    """
    seconds, first = e.counted("kv_offload_load_time"), e.row("ttft_s")
    if seconds is None or first is None:
        return None, ""
    before, after = (one / max(len(side), 1)
                     for one, side in zip(seconds, (e.before, e.after), strict=True))  # fmt: skip
    text = f"loading KV blocks takes {say.seconds(before)} → {say.seconds(after)} a request"
    return after - before >= max(_QUARTER * first.mean_change, e.floor("ttft_s")), text


def _held_by_loads(e: Evidence) -> tuple[str, bool]:
    """Say that steps may be held up by blocks loaded in them, and whether some are far longer.

    The same prompts take longer then, other responses stand still meanwhile, and none queues.
    """
    hits, prefill = e.counted("external_prefix_hits"), e.row("prefill_s")
    held = hits is not None and hits[1] > 0 and bool(e.up("prefill_s") and e.up("max_gap_s"))
    if not held or prefill is None or e.gate("queue") or prefill.before_p50 <= 0:
        return "", False
    longer = (e.prefill_at_same or 0.0) >= _LOADS_LONGER
    text = f"steps are held up, in which blocks are loaded: {say.durations('prefill', prefill)}"
    tail = prefill.after_p95 / prefill.before_p95 / (prefill.after_p50 / prefill.before_p50)
    return text if longer else "", tail >= _LOADS_LONGER


def disaggregated_kv(e: Evidence) -> Finding:
    """Prefill and decode run apart, and the KV blocks take longer from one to the other.

    Looks like:
        Requests wait for the engine that decodes, after a prefill as fast as ever: the first chunk
        is late by the transfer. One pair of engines or one link, or all at once where the network
        between them is full.

    Confirm:
            sum by (instance) (rate(llmtrace_engine_kv_transfer_seconds_sum[5m]))
              / sum by (instance) (rate(llmtrace_engine_kv_transfer_seconds_count[5m]))
            sum by (instance, reason) (rate(llmtrace_engine_kv_transfer_failures_total[5m]))
            sum by (instance, stage) (llmtrace_engine_requests_kv_fetch)
        Rows: `first_chunk_kv_transfer_s`, the queue of the engine that decodes.

    Now:
        Reroute round the slow link or pair; or serve prefill and decode on one engine until it is
        well. Transfers that fail are computed again: look at failures first.

    Later:
        Place both on one fast network; alert on the time and on failures of transfers.
    """
    wait = e.row("first_chunk_kv_transfer_s")
    failures = e.counted_in_as_long("kv_transfer_failures")
    floor, part = e.floor("first_chunk_s"), e.part_of_metric("first_chunk_kv_transfer_s")
    longer = _part_by_engines(e) if wait is None else None
    late = wait is None and not longer and e.kv_connector and late_after_prefill(e)
    local = e.local("replica", "first_chunk_kv_transfer_s")
    lines = [
        gate(e.gate("first_chunk", "queue"), say.durations("first chunk", e.row("first_chunk_s")),
             "time to first chunk by stages"),
        required(late or longer if wait is None else wait.rose(floor) or wait.grew(floor),
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
        support(_prefill_apart(e), "one engine prefills, another decodes"),
        against(e.gate("prefill"), say.durations("prefill", e.row("prefill_s"))),
    ]  # fmt: skip
    action = "Reroute round the slow link between prefill and decode, or serve both on one engine."
    return judge("disaggregated_kv", lines, action, group=local)


def _prefill_apart(e: Evidence) -> bool:
    """Return whether engines are known to have the roles of vLLM's `kv_transfer_config`."""
    roles = {facts.get("kv_role") for facts in e.facts.instances.values()}
    return roles >= {"kv_producer", "kv_consumer"}


def _transfers_slower(e: Evidence) -> tuple[bool | None, str]:
    """Return whether a transfer takes 1.5 times as long or more by the engines, and say so."""
    time = _transfer_time(e)
    if time is None:
        return None, ""
    text = f"a transfer of KV blocks {say.seconds(time.before)} → {say.seconds(time.after)}"
    return time.after >= 1.5 * time.before, text


def _part_by_engines(e: Evidence) -> bool | None:
    """Return whether transfers that take longer are a part of what the first chunk waits for.

    No request decodes before its blocks are there: what each transfer takes longer is in its
    first chunk, at least once. `None` = engines do not say that they do.
    """
    lost = "first_chunk" if e.row("first_chunk_s") is not None else "unattributed"
    lost = "queue" if _prefill_apart(e) and e.gate("queue") else lost
    time, first = _transfer_time(e), e.row(f"{lost}_s")
    if time is None or first is None or not _transfers_slower(e)[0]:
        return None
    if lost == "unattributed" and e.gate("queue"):
        return None  # where rows report no queue, it is a part of that
    part = max(_QUARTER * first.mean_change, e.floor("first_chunk_s"))
    return bool(e.gate(lost)) and time.after - time.before >= part


def _transfer_time(e: Evidence) -> Ratio | None:
    return e.ratio("kv_transfer_time_sum", "kv_transfer_time_count")


def lora_slots(e: Evidence) -> Finding:
    """More adapters are in demand than fit at once, so their requests wait for a slot.

    Looks like:
        `queue` is up for some models (adapters) and not for others on the same engine; the engine
        reports requests deferred.

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
    slow, calm, known = _models(e)
    more = None if deferred is None else _more(deferred) or (
        _hardly_read(e) and _wait_with_room(e))  # fmt: skip
    apart, beside = bool(slow) and bool(calm), _others_ended(e)
    # Deferred are those that fetch KV blocks, or wait for a grammar or an adapter.
    grammar, models = e.gauge("waiting_grammar"), np.unique(e.after.rows.words["model"].codes)
    left = more and _fetches_blocks(e) is False and not (grammar and _more(grammar))
    left = bool(left) and (len(models) > 1 or beside)
    wanted = _models_wanted(e)
    crowded = wanted[1] >= _MANY and not calm and _wait_with_room(e) and _only_seats(e)
    compete = _compete(e, share) or crowded
    others = e.new_words("model")
    lines = [
        gate(e.gate("queue"), say.durations("queue", e.row("queue_s")),
             "the engine's queue time per request"),
        required(apart or left or compete or bool(_slots_full(e) and e.gate("queue"))
                 if known else None, _models_text(slow, calm)
                 + ("; no KV blocks are fetched" if left else ""), "the rows' `model`"),
        support(compete, f"requests wait though there is room, and {say.amount(wanted[0])} → "
                f"{say.amount(wanted[1])} models are in demand alike"),
        proof(apart and _same_engine(e, slow, calm) if known else None,
              "models that wait and models that do not run on the same engines"),
        proof(left and bool(others), "requests are deferred since other models are wanted: "
              + ", ".join(others[:5])),
        support(left and beside, "engines serve requests that no row tells of, as not before"),
        support(more, say.gauge("requests deferred", deferred),
                "the gauge `waiting_deferred` (vLLM 0.20: waiting by reason)"),
        proof(_slots_full(e), "all slots for adapters are in use while requests wait"),
        against(None if more is None or compete else not more,
                "no more requests are deferred than before"),
        support(None if share is None else share >= 0.4,
                f"{say.percent(share or 0)} of waiting requests are deferred"),
    ]  # fmt: skip
    action = "Rebalance: give each adapter replicas of its own, or more slots."
    return judge("lora_slots", lines, action + flags(e, "lora_slots"))


def grammar_compilation(e: Evidence) -> Finding:
    """Requests for structured answers wait until their grammar is compiled.

    Looks like:
        First content is late for requests with a JSON schema or a grammar, and not for others.
        The engine's queue is short; requests wait for their grammar.

    Confirm:
            sum by (instance) (llmtrace_engine_requests_waiting_by_reason{reason="grammar"})
            sum by (instance) (rate(llmtrace_engine_grammar_compile_seconds_sum[5m]))
              / sum by (instance) (rate(llmtrace_engine_grammar_compile_seconds_count[5m]))

    Now:
        Fix: send the same schema for the same work, so that the compiled grammar is found again;
        or roll back the schema that changes with every request.

    Later:
        Keep generated values out of schemas; alert on the time that grammars take to compile.
    """
    waiting = e.gauge("waiting_grammar")
    spent = e.counted_in_as_long("grammar_compile_sum")
    more = None if spent is None else spent[1] > max(2 * spent[0], 1.0)
    known = None if waiting is None and more is None else bool(more) or (
        waiting is not None and _more(waiting))  # fmt: skip
    # Deferred are those that fetch KV blocks, or wait for an adapter or a grammar.
    _, share = _deferred(e)
    models = np.unique(e.after.rows.words["model"].codes)
    alone = len(models) == 1 and bool(models[0] >= 0) and not _others_ended(e)
    fetches, routes = _fetches_blocks(e), _routes(e)
    by_route = bool(routes[0]) and bool(routes[1])
    deferred, one = (share or 0.0) >= HALF, e.local("replica", "queue_s")
    room = one is None and _wait_with_room(e) and _only_seats(e)
    # None waits for a longer step, for an engine that stands still, or at one engine alone.
    together = _let_in_together(e) if room else None
    computes = not e.up("prefill_s") and e.up("max_gap_s") is False and together is not True
    left = known is None and (deferred or (room and computes)) and alone and (
        fetches is False or (fetches is None and (by_route or not deferred)))  # fmt: skip
    which = f"{say.percent(share or 0)} of waiting requests are deferred" if deferred else (
        "requests wait though there are seats")  # fmt: skip
    text = f"{which}, not for KV blocks and not for an adapter"
    part = e.part_of_metric("queue_s") or 0.0
    lines = [
        gate(e.rising("ttft_s"), say.durations("time to first chunk", e.row("ttft_s")),
             "time to first chunk"),
        required(bool(e.gate("queue")) if left else known,
                 text if left else say.gauge("requests that wait for a grammar", waiting),
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


def _slots_full(e: Evidence) -> bool | None:
    """Return whether some engine has no slot for an adapter left; `None` = not reported.

    While requests wait, that is, where enough samples of it meet any.
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
            meets = np.interp(taken.t, wait.t, wait.value) > 0
            value = value[meets] if meets.sum() >= _MEETS else value
        if len(value) and value.mean() >= _ALL_TAKEN * slots.after[name].value.mean() > 0:
            return True
    return False if names else None


def _sank(ratio: Ratio, longer: float) -> bool:
    """Return whether so much less is served by the cache that the prompts' work shows it."""
    return ratio.after * longer <= _FALLS_TO * ratio.before and ratio.before - ratio.after >= _PART


def _fell(before: float, after: float, drop: float, to: float) -> bool:
    return before - after >= drop and after <= to * before


def _other_kinds(e: Evidence) -> bool:
    """Return whether requests are of other kinds, as far as their prompts show it."""
    prompts, now = e.row("prompt_tokens"), e.beyond_kind("prompt_tokens")
    if prompts is None or now is None:
        return False
    return abs(now.before_mean - prompts.before_mean) >= _OTHER_WORK * prompts.before_mean


def _mean_text(label: str, found: Shift | None) -> str:
    if found is None:
        return f"{label} a request: not reported"
    return (
        f"{label} a request, mean {say.amount(found.before_mean)} → {say.amount(found.after_mean)}"
    )


def _routes(e: Evidence) -> tuple[list[str], list[str]]:
    """Return the routes that wait longer, and those that do not: by the queue if that is known."""
    return e.uneven("route", "queue_s") or e.uneven("route", "ttft_s") or ([], [])


def _deferred(e: Evidence) -> tuple[Moved | None, float | None]:
    """Return the gauge of deferred requests, and their share of all that wait, after."""
    deferred, waiting = e.gauge("waiting_deferred"), e.gauge("waiting")
    if deferred is None or waiting is None:
        return deferred, None
    part = sum(float(s.value.sum()) for s in deferred.after.values())
    whole = sum(float(s.value.sum()) for s in waiting.after.values())
    return deferred, part / whole if whole > 0 else None


def _more(waiting: Moved) -> bool:
    """Return whether more wait; few samples of a gauge that is mostly 0 need not be certain."""
    return waiting.rose(0.0, 0.3) or waiting.grew(0.0, 0.5) or waiting.more_often(2.0)


def _hardly_read(e: Evidence) -> bool:
    """Return whether so few requests wait at a time that a gauge hardly meets one of them.

    By the seconds that they wait in all (Little's law), and how often the gauge is read.
    """
    waiting = e.gauge("waiting")
    waits = np.nansum(e.after.number("queue_s") * e.after.rows.weights) / e.served.seconds
    reads = [len(one.t) for one in waiting.after.values()] if waiting is not None else [0]
    return bool(waits * np.mean(reads) < _FEW_READS)


def _wait_with_room(e: Evidence) -> bool:
    """Return whether requests say that they wait, though there are seats: no gauge need see it."""
    full, _ = at_limit(e)
    return full is False and (e.part_of_metric("queue_s") or 0.0) >= HALF


def _let_in_together(e: Evidence) -> bool | None:
    """Return whether those that wait are let in together; `None` = hardly any meet, or in turn.

    Who waits for a longer step, or for an engine that stands still, is let in with those behind.
    Who waits for something of its own is overtaken, or takes turns at it.
    """
    queue = e.row("queue_s")
    if queue is None:
        return None
    side, waited = e.after, e.after.number("queue_s")
    let_in: Floats = side.t + side.number("ttft_s") - side.number("prefill_s")
    let_in -= side.number("first_chunk_s")
    came, where = let_in - waited, side.rows.words["replica"].codes
    met, overtook, together = 0, 0, 0
    late = np.flatnonzero(waited > max(queue.before_p95, e.floor("queue_s")))
    for i in late[:: len(late) // _ENOUGH + 1]:
        behind = (where == where[i]) & (came > came[i]) & (came < let_in[i])
        met += int(behind.sum())
        overtook += int((behind & (let_in < let_in[i] - queue.before_p95)).sum())
        together += int((behind & (np.abs(let_in - let_in[i]) <= _AT_ONCE * waited[i])).sum())
    if met < MIN_COUNT or max(overtook, together) < HALF * met:
        return None
    return overtook < HALF * met


def _others_ended(e: Evidence) -> bool:
    """Return whether engines serve clearly more requests than rows tell of, as not before."""
    counted = e.ended or (0.0, 0.0)
    before, after = counted[0] / max(len(e.before), 1), counted[1] / max(len(e.after), 1)
    return after >= _OTHERS * max(before, 1.0)


def _models(e: Evidence) -> tuple[list[str], list[str], bool]:
    """Return the models whose queue grew, the others, and whether rows report the model."""
    words = e.after.rows.words["model"]
    slow, calm = e.uneven("model", "queue_s" if e.after.known("queue_s") else "ttft_s") or ([], [])
    return slow, calm, bool((words.codes >= 0).any())


def _compete(e: Evidence, deferred: float | None) -> bool:
    """Return whether more models are in demand than before, and slots to run are free."""
    before, after = _models_wanted(e)
    waits = _wait_with_room(e) or (
        (deferred or 0.0) >= HALF and (e.part_of_metric("queue_s") or 0.0) >= HALF)  # fmt: skip
    return after >= _TIMES * before and waits and not _fetches_blocks(e)


def _only_seats(e: Evidence) -> bool:
    """Return whether requests wait neither for the KV cache nor for a transfer of its blocks."""
    used = e.gauge("kv_usage")
    room = used is not None and highest_p95(used) < _NEARLY_FULL
    return room and not _fetches_blocks(e) and not _transfers_slower(e)[0]


def _models_wanted(e: Evidence) -> tuple[float, float]:
    """Return how many models are in demand, before and after: as if all of them were alike."""
    found = []
    for side in (e.before, e.after):
        codes = side.rows.words["model"].codes
        counts = np.bincount(codes[codes >= 0])
        found.append(float(counts.sum()) ** 2 / max(float((counts.astype(float) ** 2).sum()), 1.0))
    return found[0], found[1]


def _same_engine(e: Evidence, slow: list[str], calm: list[str]) -> bool:
    """Return whether an engine serves both kinds of models, or engines are not known."""
    words = e.after.rows.words["replica"]
    on = [set(np.unique(words.codes[e.after.where("model", *names) & (words.codes >= 0)]).tolist())
          for names in (slow, calm)]  # fmt: skip
    return bool(on[0] & on[1]) or not (on[0] or on[1])


def _models_text(slow: list[str], calm: list[str]) -> str:
    return (f"models that wait more: {', '.join(slow[:5]) or 'all alike'}; "
            f"as before: {', '.join(calm[:5]) or 'none'}")  # fmt: skip
