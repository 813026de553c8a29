"""Rules for causes in the workload: longer prompts, longer responses, very long prompts."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from llmtrace.stats.arrays import finite
from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.causes.kv_capacity import full_from
from llmtrace.triage.causes.scoring import against, gate, judge, proof, required, steady, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.blocking_prompts import (
    Overlap,
    held_up,
    long_from,
    long_prompts_of_others,
    overlap,
)
from llmtrace.triage.evidence.changes import Share, Shift
from llmtrace.triage.evidence.evidence import ENGINE_STAGES, Evidence
from llmtrace.triage.evidence.inside_engines import cache_shrank, highest, tpot_over_expected
from llmtrace.triage.result import Finding

_LONGER: Final = 1.2  # ratio of mean lengths
_SLOWED: Final = 1.3  # ratio of times for the same work
_MANY_LONG: Final = 0.15  # share of prompts above the p90 before; 0.10 = as before


def long_prompts(e: Evidence) -> Finding:
    """Prompts got longer, and computing them takes as long per token as before.

    Looks like:
        Prompt tokens are up; prefill per token is unchanged. The slow requests are the long
        ones. The verdict is `workload`: the system did not change.

    Confirm:
            sum(rate(llmtrace_tokens_total{type="input"}[5m]))
              / sum(rate(llmtrace_requests_total[5m]))
        Compare TTFT within a class of prompt length: it must not have moved.

    Now:
        Find out which tenant or route sends them, and whether it is intended. Reroute long
        prompts to their own replicas, or cap them at the gateway.

    Later:
        Cap history and retrieved documents; compress prompts; keep prefixes stable, so that the
        cache serves them; give long prompts their own budget.
    """
    tokens = e.computed_row("prompt_tokens")
    per_token = e.prefill_ratio
    mix = e.explained_by("ttft_s", "computed_tokens")
    by_length = f"prompt lengths alone explain {say.percent(min(mix or 0, 1))} of the change"
    slow = _share_of_slow_long(e)
    long = _share_above_p90(e)
    few = _few_are_long(e, long)
    blocked = _long_prompts_delay(e, overlap(e))
    tenant = e.local("tenant", "prompt_tokens") or e.local("route", "prompt_tokens")
    lines = [
        gate(e.rising("e2e_s" if e.row("ttft_s") is None else "ttft_s"),
             say.durations("time to first chunk", e.row("ttft_s")),
             "time to first chunk"),
        required(None if tokens is None else tokens.rose(0.0, 0.08) or tokens.mean_rose(0.0, 0.08),
                 say.amounts("prompt tokens", tokens), "prompt tokens per request"),
        proof(None if slow is None and mix is None else max(slow or 0.0, mix or 0.0) >= 0.5,
              f"{say.percent(slow or 0)} of the slow requests are longer than the p90 before"
              if (slow or 0.0) >= 0.5 else by_length),
        support(None if mix is None else mix >= 0.4, by_length),
        support(None if per_token is None else 0.7 <= per_token <= 1.3,
                f"prefill at the same length: {say.amount(per_token or 0)} times what it was"),
        support(None if tenant is None else True, f"longer prompts come from {tenant}"),
        support(_prompts_fill_cache(e, tokens),
                "they fill the KV cache, which is as large as before"),
        # Of a hosted API, nothing shows that prompts block each other.
        against(blocked and few and e.sees_engines,
                f"only {say.percent(long or 0)} of the prompts are longer than 90 % were, and "
                "short ones wait for them"),
        against(None if slow is None else slow < 0.2,
                f"only {say.percent(slow or 0)} of the slow requests have a long prompt"),
        against(None if per_token is None else per_token > 1.5,
                f"prefill at the same length: {say.amount(per_token or 0)} times what it was"),
    ]  # fmt: skip
    who = "find who sends them" if tenant is None else f"the longer ones come from {tenant}"
    action = f"Reroute or cap long prompts; {who}. The system is as fast as it was."
    return judge("long_prompts", lines, action + flags(e, "long_prompts"), group=tenant)


def _prompts_fill_cache(e: Evidence, tokens: Shift | None) -> bool | None:
    """Return whether longer prompts fill the KV cache, rather than a smaller cache."""
    kv = e.gauge("kv_usage")
    if kv is None or tokens is None:
        return None
    longer = tokens.after_mean >= _LONGER * tokens.before_mean
    return highest(kv) >= full_from(e) and longer and not cache_shrank(e)


def longer_outputs(e: Evidence) -> Finding:
    """Responses got longer, at the same time per token.

    Looks like:
        Output tokens and end-to-end time are up; time to first chunk and time per token are
        not. The verdict is `workload`.

    Confirm:
            sum(rate(llmtrace_tokens_total{type="output"}[5m]))
              / sum(rate(llmtrace_requests_total[5m]))
            histogram_quantile(0.5, sum by (le) (rate(llmtrace_tpot_seconds_bucket[5m])))

    Now:
        Find out why: a prompt's wording, a model, reasoning turned on, missing stop sequences.
        Cap `max_tokens`.

    Later:
        Set targets per token: an end-to-end target without a length depends on what clients
        send.
    """
    # Without token counts (not every client requests usage), count chunks.
    counted = e.computed_row("output_tokens") is not None
    length, pace = ("output_tokens", "time per token") if counted else ("chunks", "time per chunk")
    tokens = e.computed_row(length)
    per_token = e.row("tpot_s" if counted else "decode_per_chunk_s")
    mix = e.explained_by("e2e_s", length)
    slower = None if per_token is None else per_token.ratio
    thought, cap = e.row("reasoning_tokens"), e.row("max_tokens")
    thinks = thought is not None and thought.rose(0.0)
    renamed, others = e.new_values("response_model"), e.other_clients("tokens_out")
    ttft, whole, curve = e.row("ttft_s"), e.row("e2e_s"), tpot_over_expected(e)
    parts = [] if mix is None else [mix]
    if tokens is not None and whole is not None and whole.ratio > 1.05 and tokens.ratio > 0:
        parts.append(math.log(tokens.ratio) / math.log(whole.ratio))
    lines = [
        # Longer reasoning before the answer shows in the time to first content.
        gate((thinks and e.rising("ttft_s")) or _whole_longer(e) or e.stage_rose("decode"),
             say.durations("decode", e.row("decode_s")), "decode times"),
        required(None if tokens is None else tokens.rose(0.0, 0.12) or tokens.mean_rose(0.0, 0.12),
                 say.amounts(length.replace("_", " "), tokens), "output tokens per request"),
        proof(max(parts) >= 0.5 if parts else None,
              "response lengths alone explain "
              f"{say.percent(min(max(parts, default=0.0), 1))} of the change"),
        steady(support(None if slower is None else slower <= 1.15,
                       say.durations(pace, per_token))),
        support(None if thought is None else thought.rose(8.0, 0.15),
                say.amounts("reasoning tokens", thought)),
        support(None if cap is None else cap.rose(8.0, 0.15), say.amounts("max_tokens", cap)),
        support(True if renamed else None, f"another model answers: {', '.join(renamed)}"),
        steady(support(None if ttft is None else not e.up("ttft_s"),
                       say.durations("time to first chunk", ttft))),
        against(None if slower is None else slower >= 1.5 and not (curve or 9.0) <= 1.35,
                say.durations(pace, per_token)),
        against(others is not None, "" if others is None else
                say.other_clients("tokens made", others), strongly=True),
    ]  # fmt: skip
    action = (
        "Cap `max_tokens`, and find the origin of longer responses. Tokens come as fast as ever."
    )
    return judge("longer_outputs", lines, action)


def _whole_longer(e: Evidence) -> bool | None:
    """Return whether responses take longer of which most come in one chunk, or are unary."""
    decode = e.row("decode_s")
    return decode is not None and not decode.before_p50 and e.rising("e2e_s")


def head_of_line(e: Evidence) -> Finding:
    """A few very long prompts delay all other requests while they are computed.

    Looks like:
        Most slow requests are short, and arrived while their replica computed a far longer
        prompt. Streams in progress stall at the same time. On a real vLLM, the wait for the
        running step is in no engine metric, but in `first_chunk`.

    Confirm:
            histogram_quantile(0.99, sum by (le) (rate(llmtrace_engine_step_tokens_bucket[5m])))
            histogram_quantile(0.99,
              sum by (le) (rate(llmtrace_inter_chunk_gap_seconds_bucket[5m])))
        Steps are as large as the token budget, and the p99 of gaps is far above their p50.

    Now:
        Reroute very long prompts to their own replica, or cap their length at the gateway.

    Later:
        Use chunked prefill with a smaller token budget per step; separate prefill from decode.
    """
    found = overlap(e)
    slow = _share_of_slow_long(e, few=True)
    blocks = _computed_in_one_step(e)
    long = _share_above_p90(e)
    few = _few_are_long(e, long)
    waits = e.stage_rose(*ENGINE_STAGES)
    held, others = held_up(e), e.other_clients("tokens_in")
    each = None if held else long_prompts_of_others(e)
    as_before = None if found is None else not _long_prompts_rose(e, found)
    per_token = e.prefill_ratio or 0.0
    slowed = f", each token {say.amount(per_token)} times as slow" if per_token >= _SLOWED else ""
    lines = [
        gate(waits, say.durations("time to first chunk", e.row("ttft_s")), "stages of requests"),
        required(True if each is not None else held,
                 _overlap_text(found) if each is None else
                 f"others send prompts of {say.amount(each)} tokens or more on average"
                 + (f": {say.other_clients('prompt tokens', others)}" if others else ""),
                 "prompt tokens per request"),
        proof(_long_prompts_delay(e, found) and few is not False,
              f"of the slow short requests {say.percent(found.slow_during if found else 0)} came "
              f"then, of all {say.percent(found.all_during if found else 0)}"),
        support(None if slow is None else slow <= 0.35,
                f"only {say.percent(slow or 0)} of the slow requests are long themselves"),
        support(blocks[0], blocks[1]),
        support(None if found is None or not found.tpot_during or not found.tpot_outside else
                found.tpot_during >= 1.25 * found.tpot_outside,
                "time per token of short requests that were decoded then is up too"),
        against(_mix_brings_long(e, found), "another mix of routes, models or tenants has brought "
                "them", strongly=True),
        against(None if few is None else not few,
                f"{say.percent(long or 0)} of the prompts are longer than the p90 before: it is "
                "not a few"),
        against(found is not None and e.more_load and not blocks[0]
                and found.long_n <= 1.5 * _scaled_to_after(e, found.long_before),
                "load rose, and long prompts are no larger a part of it"),
        against(as_before and bool(slowed or not blocks[0]),
                f"as many long prompts came before{slowed}", strongly=bool(slowed)),
    ]  # fmt: skip
    action = "Reroute very long prompts to a replica of their own, or cap them."
    return judge("head_of_line", lines, action + flags(e, "head_of_line"))


def _overlap_text(found: Overlap | None) -> str:
    if found is None:
        return "no short requests that arrived while a far longer prompt was worked on"
    return (
        f"{found.long_n} prompts of {say.amount(found.tokens)} tokens or more "
        f"({found.long_before} before); short requests that arrived while one was worked on: "
        f"p90 to first chunk {say.seconds(found.during)}, others {say.seconds(found.outside)}; "
        f"on average a short one waits {say.seconds(found.cost_before)} → "
        f"{say.seconds(found.cost)} for them"
    )


def _scaled_to_after(e: Evidence, before: float) -> float:
    """Scale a count of before to the length of the window after."""
    return before * e.after.window.seconds / max(e.before.window.seconds, 1e-9)


def _computed_in_one_step(e: Evidence) -> tuple[bool | None, str]:
    """Return whether the longest prompt fits into one step, by the facts, and say why."""
    chunked = e.fact("chunked_prefill")
    if chunked is False:
        return True, "chunked prefill is off"
    budget, longest = e.number_fact("max_num_batched_tokens"), e.number_fact("max_model_len")
    if budget is None or longest is None:
        return None, ""
    return budget >= longest, (
        f"a step may take {say.amount(budget)} tokens, a prompt {say.amount(longest)}"
    )


def _long_prompts_delay(e: Evidence, found: Overlap | None) -> bool | None:
    """Return whether most slow short requests met a long one, and these are more or unchunked."""
    if found is None:
        return None
    met = (found.slow_during >= 0.6 and found.lift >= 1.5) or (
        found.slow_during >= 0.4 and found.lift >= 2.5)  # fmt: skip
    return met and (_long_prompts_rose(e, found) or bool(_computed_in_one_step(e)[0]))


def _long_prompts_rose(e: Evidence, found: Overlap) -> bool:
    """Return whether there are clearly more long prompts in equal time."""
    more = min(found.long_before + 1, 2)
    return found.long_n > 1.5 * _scaled_to_after(e, found.long_before) + more


def far_more_long(e: Evidence) -> bool:
    """Return whether long prompts are a larger share of the requests, beyond chance."""
    found = overlap(e)
    return found is not None and Share(
        found.long_before, len(e.before), found.long_n, len(e.after)).rose(0.0)  # fmt: skip


def _mix_brings_long(e: Evidence, found: Overlap | None) -> bool | None:
    """Return whether another mix of requests accounts for the longer prompts."""
    tokens, expected = e.row("computed_tokens"), e.at_same_mix("computed_tokens")
    if found is None or tokens is None or expected is None:
        return None
    grown = tokens.mean_change
    return (
        tokens.mean_rose(0.0, 0.1)
        and found.long_n > _scaled_to_after(e, found.long_before)
        and expected.before_mean - tokens.before_mean >= 0.6 * grown
    )


def _share_above_p90(e: Evidence) -> float | None:
    """Return the share of the prompts that are longer than the p90 before."""
    before, after = (finite(side.number("prompt_tokens")) for side in (e.before, e.after))
    if not len(before) or not len(after):
        return None
    return float((after > np.percentile(before, 90)).mean())


def _few_are_long(e: Evidence, long: float | None) -> bool | None:
    """Return whether only a few prompts are longer than before, but far longer."""
    limit = long_from(e)
    if long is None or limit is None:
        return None
    before, after = (
        float((side.number("computed_tokens") >= limit).mean()) for side in (e.before, e.after)
    )
    ordinary = long - 0.1 - max(after - before, 0.0)
    chance = 2 * np.sqrt(0.1 * 0.9 / len(e.after))  # standard errors
    return long < _MANY_LONG or bool(ordinary < max(0.03, chance) and after < _MANY_LONG)


def _share_of_slow_long(e: Evidence, *, few: bool = False) -> float | None:
    """Return the share of the slow requests with a long prompt (`few`: with a far longer one)."""
    name = "computed_tokens" if few else "prompt_tokens"
    before, after = e.before.number(name), e.after.number(name)
    ttft_b, ttft = e.before.number("ttft_s"), e.after.number("ttft_s")
    known = finite(before)
    if not len(known) or not np.isfinite(ttft_b).any():
        return None
    limit = float(np.percentile(known, 90))
    if few:
        limit = max(1.3 * limit, 5 * float(np.median(known)))
    elif not (after > limit).any():
        return None  # prompts are capped at the p90
    slow = (ttft > np.nanpercentile(ttft_b, 95)) & np.isfinite(after)
    return float((after[slow] > limit).mean()) if e.requests_after(slow) >= 10 else None
