"""Rules for an engine's processes: an engine that pauses, a front end short of CPU."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.causes.gpus import of_its_own, works_slower
from llmtrace.triage.causes.scoring import (
    against,
    at_most_possible,
    gate,
    judge,
    only,
    proof,
    required,
    steady,
    support,
)
from llmtrace.triage.evidence import engine_halts
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.blocking_prompts import held_up, long_prompts_of_others, overlap
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, Shift
from llmtrace.triage.evidence.engine_starts import restarted, starts
from llmtrace.triage.evidence.evidence import ENGINE_STAGES, Evidence
from llmtrace.triage.evidence.inside_engines import (
    front_end_part,
    highest,
    late_after_prefill,
    serves_more_others,
    slept,
    slow_front_end,
    waits_for_steps,
)
from llmtrace.triage.result import Finding

_STREAMS: Final = 4  # responses in progress that stood still together
_SMALL_PART: Final = 0.25
_LONGER: Final = 1.5  # times the longest wait of nearly all responses before
_SEVERAL: Final = 3  # gaps
_GATHERED: Final = 0.3  # added share of chunks that arrive together
_BEYOND_CHANCE: Final = 1.05  # times the longest gap that chance makes of the same requests


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
    return judge("engine_paused", lines, action, group=only(e, quiet.instance if quiet else None))


_NO_TOKENS: Final = "no tokens came out while requests were running"
_HELD_BACK: Final = "chunks come many at once: they are held back on the way"


def _gathered(e: Evidence) -> bool:
    """Return whether far more chunks arrive together than before."""
    bursts = e.row("burst_share")
    return bursts is not None and bursts.mean_change >= _GATHERED


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
        gate(bool(slow and more and not by_load and e.moved)
             or e.stage_rose("first_chunk", "queue", "unattributed"),
             say.durations("time to first chunk", e.row("ttft_s")), "queue and prefill times"),
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


_UNSEEN: Final = "nothing reports the front end's own time"
_ALL_SLOWER: Final = "prompt tokens and batch steps take longer too: the whole engine is slower"
_MORE_FRONT_ENDS: Final = (
    "Add capacity to the front end: more API server processes, or cores for them."
)


def _explained_by_work(e: Evidence, mine: Shift | None, more: bool | None) -> bool:
    """Return whether the engine's computation got slower, and explains the slower front end.

    A new request waits for the running step before the engine sees it. So the front end has to be
    slower by more than the computation, and busier, if its CPU time is known (`more`).
    """
    local = e.local("replica", "tpot_s") or e.local("replica", "ttft_s")
    curve, prefill = (ratio or 0.0 for ratio in of_its_own(e, local))
    slower, _ = works_slower(e, curve, prefill)
    return mine is not None and slower and (more is False or mine.ratio < min(curve, prefill))


_IN_ENGINE: Final = (
    "engines see most of the added time themselves, and neither queue nor prefill has it"
)
_AFTER_PREFILL: Final = (
    "most of the added time is after the prefill, and no proxy holds chunks back"
)


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


_MET_LONG_ONES: Final = "slow requests came while long prompts were worked on"


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
    usual = engine_halts.usual_gap_s(e)
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
