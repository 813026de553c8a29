"""Rules for causes in caches, speculation, KV transfer and adapters."""

from __future__ import annotations

from typing import Final

from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.causes.scoring import gate, judge, proof, required, steady, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.changes import HALF, RATHER_SURE, STANDS_OUT, SURE, Shift
from llmtrace.triage.evidence.counter_ratios import Ratio, ratio_of, ratio_z, worst_ratio
from llmtrace.triage.evidence.evidence import ENGINE_STAGES, Evidence
from llmtrace.triage.evidence.kinds import mix_moved
from llmtrace.triage.result import Finding

_FALLS_TO: Final = 0.8  # hits after over hits before, at most
_PART: Final = 0.03  # of all prompt tokens
_LITTLE: Final = 0.1
_OTHER_WORK: Final = 0.1  # as a share of the mean prompt


def prefix_cache_collapse(e: Evidence) -> Finding:
    """Prompts that the prefix cache used to serve are computed again.

    Looks like:
        Fewer cached tokens per request at the same prompt length; hits over queries falls.
        Prefill per computed token is unchanged, but there are more tokens to compute. Other
        streams slow down too: on a real vLLM, more than prefill itself. Often after a deploy: a
        timestamp in the system prompt, a new template, a router that scatters prefixes.

    Confirm:
            sum(rate(llmtrace_engine_prefix_cache_hits_tokens_total[5m]))
              / sum(rate(llmtrace_engine_prefix_cache_queries_tokens_total[5m]))
            histogram_quantile(0.95,
              sum by (le) (rate(llmtrace_stage_duration_seconds_bucket{stage="prefill"}[5m])))

    Now:
        Fix what changed: roll back the template or the routing. To find it, diff the first
        kilobyte of two prompts of the same route.

    Later:
        Put what varies at the end of the prompt; route by prefix; enlarge the cache; watch the
        hit ratio like an SLO.
    """
    tokens, prompts = e.row("found_prefix_tokens"), e.row("prompt_tokens")
    per_token = e.prefill_ratio
    by_rows = _rows_show_fewer_hits(e)
    by_signals, ratio = _counters_show_fewer_hits(e, by_rows)
    fewer = bool(by_rows) or bool(by_signals)
    known = by_rows is not None or by_signals is not None
    deploys = e.events("deploy", "config")
    off = e.fact("prefix_caching") is False
    text = "; ".join([say.ratio("prefix hits", ratio), _mean_text("cached tokens", tokens)])
    lines = [
        gate(e.stage_rose(*ENGINE_STAGES),
             say.durations("prefill", e.row("prefill_s")), "the engine's prefill time"),
        required(fewer if known else None, text,
                 "the engines' counters `prefix_hits` and `prefix_queries`, or cached tokens of "
                 "each request (vLLM: `--enable-prompt-tokens-details`)"),
        # A search takes the stretch with the fewest of many, so then one source is no proof.
        proof(fewer and by_rows is not False and by_signals is not False and _same_lengths(e)
              and not _only_queue_grew(e) and not (e.searched and by_signals is None),
              "every source that counts cached tokens agrees"),
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


def _only_queue_grew(e: Evidence) -> bool:
    """Return whether the queue grew and prefill hardly did; computing more prompts takes both."""
    queue, prefill = e.part_of_metric("queue_s"), e.part_of_metric("prefill_s")
    return (queue or 0.0) >= HALF and prefill is not None and prefill < _LITTLE


def _same_lengths(e: Evidence) -> bool:
    """Return whether prompts and outputs are as long as before, at the same mix if rows name it.

    Otherwise fewer cached tokens may be due to kinds of requests that rows do not name.
    """
    lengths = [e.at_same_mix(name) or e.row(name) for name in ("prompt_tokens", "output_tokens")]
    known = [one for one in lengths if one is not None]
    return not any(one.rose(0.0, 0.15) or one.fell(0.0, 0.15) for one in known)


def _rows_show_fewer_hits(e: Evidence) -> bool | None:
    """Return whether rows report fewer cached tokens at the same mix and prompt length.

    Another route has other prefixes, and a longer prompt has more beside its prefix.
    """
    tokens = e.at_same_mix("found_prefix_tokens", by_length=True)
    if tokens is None:
        return None
    counted = ratio_of(e, "prefix_hits", "prefix_queries")
    sure = SURE if counted is None or not _fell_enough(counted, 1.0) else RATHER_SURE
    fewer = tokens.after_mean <= _FALLS_TO * tokens.before_mean and tokens.mean_z <= -sure
    return fewer and tokens.stretch_z <= -STANDS_OUT


def _counters_show_fewer_hits(
    e: Evidence, by_rows: bool | None
) -> tuple[bool | None, Ratio | None]:
    """Return whether engines count fewer hits than requests explain, and the ratio."""
    ratio = ratio_of(e, "prefix_hits", "prefix_queries")
    worst = worst_ratio(e, "prefix_hits", "prefix_queries")
    prompts = e.row("prompt_tokens")
    # A longer prompt has as many cached tokens in its prefix, and more beside it.
    longer = 1.0
    if prompts is not None and prompts.before_mean > 0:
        longer = max(prompts.after_mean / prompts.before_mean, 1.0)
    fewer = None if ratio is None else _fell_enough(ratio, longer)
    if fewer is False and worst is not None and _fell_enough(worst, longer):
        fewer, ratio = True, worst
    if fewer and ratio is not None and by_rows is None:
        explained = (
            _mix_changes_lengths(e)
            or e.other_clients("tokens_in") is not None
            or _same_hits_per_request(e)
            or _was_as_low_before(e, ratio)
            or _mix_explains(e, ratio)
        )
        fewer = None if explained else fewer
    elif fewer and by_rows is False:
        fewer = None
    return fewer, ratio


def _mix_explains(e: Evidence, ratio: Ratio) -> bool:
    """Return whether enough requests are of other kinds, which may have fewer cached tokens."""
    if not ratio.before:
        return False
    return mix_moved(e.before, e.after) >= HALF * max(1 - ratio.after / ratio.before, _LITTLE)


def _same_hits_per_request(e: Evidence) -> bool:
    """Return whether a request has as many cached tokens as before: only the rest is longer."""
    hits, ended = e.counted("prefix_hits"), e.ended
    if hits is None or ended is None or min(hits[0], *ended) <= 0:
        return False
    return hits[1] / ended[1] >= _FALLS_TO * hits[0] / ended[0]


def _was_as_low_before(e: Evidence, ratio: Ratio) -> bool:
    """Return whether stretches of the time before had as few hits: prompts vary."""
    z = ratio_z(e, "prefix_hits", "prefix_queries", ratio.instance)
    return z is not None and z > -STANDS_OUT


def low_spec_acceptance(e: Evidence) -> Finding:
    """Drafted tokens are rejected, so speculation costs more than it saves.

    Looks like:
        Accepted over drafted tokens falls, or fewer output tokens come from drafts. Time per
        token rises at the same batch size. Below about 40 % accepted, speculation slows the
        engine down.

    Confirm:
            sum(rate(llmtrace_engine_spec_decode_accepted_tokens_total[5m]))
              / sum(rate(llmtrace_engine_spec_decode_drafted_tokens_total[5m]))

    Now:
        Fix: shorten the draft, or turn speculation off. Reroute traffic that the drafter does not
        know (another language, code) to replicas without it.

    Later:
        Train or choose the drafter on today's traffic; turn speculation off above a batch size.
    """
    ratio = ratio_of(e, "spec_accepted", "spec_drafted")
    worst = worst_ratio(e, "spec_accepted", "spec_drafted")
    rows = e.row("acceptance")
    off = e.fact("spec_decode") in (False, "", "off", "none")
    by_signals = None if ratio is None else _fell(ratio.before, ratio.after, 0.05, 0.85)
    if by_signals is False and worst is not None and _fell(worst.before, worst.after, 0.1, 0.8):
        by_signals, ratio = True, worst
    label, given = "draft tokens accepted", ratio_of(e, "spec_accepted", "tokens_out")
    if not by_signals and given is not None and _fell(given.before, given.after, 0.1, 0.7):
        # A drafter that finds no pattern drafts little, most of which may be accepted.
        by_signals, label, ratio = True, "output tokens that are accepted drafts", given
    by_rows = None if rows is None else _fell(rows.before_mean, rows.after_mean, 0.05, 0.85)
    if e.other_clients("tokens_out") is not None:
        by_signals = None  # engines also count tokens for clients that have no rows
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


def _fell_enough(ratio: Ratio, longer: float) -> bool:
    """Return whether hits fell by so much, at the same prompt lengths, that prefill shows it."""
    return ratio.after * longer <= _FALLS_TO * ratio.before and ratio.before - ratio.after >= _PART


def _fell(before: float, after: float, drop: float, to: float) -> bool:
    return before - after >= drop and after <= to * before


def _mix_changes_lengths(e: Evidence) -> bool:
    """Return whether another mix of requests changes the mean prompt length."""
    prompts, at_mix = e.row("prompt_tokens"), e.at_same_mix("prompt_tokens")
    if prompts is None or at_mix is None:
        return False
    return abs(at_mix.before_mean - prompts.before_mean) >= _OTHER_WORK * prompts.before_mean


def _mean_text(label: str, found: Shift | None) -> str:
    if found is None:
        return f"{label} a request: not reported"
    return (
        f"{label} a request, mean {say.amount(found.before_mean)} → {say.amount(found.after_mean)}"
    )
