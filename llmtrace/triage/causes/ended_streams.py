"""Rules for streams that something on the path ends too early."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.causes.scoring import against, gate, judge, proof, required, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence import gone_engines
from llmtrace.triage.evidence.changes import HALF, STANDS_OUT
from llmtrace.triage.evidence.cut_streams import (
    Cuts,
    broken,
    broken_midstream,
    cut_before_content,
    failed,
    longest_silence,
    where_broken,
)
from llmtrace.triage.evidence.engine_starts import restarted
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.refusals import sent_again
from llmtrace.triage.result import Finding

_MOSTLY: Final = 0.6
_LONGER: Final = 1.1  # times a timer's length: it would have closed the stream
_SEVERAL: Final = 3  # responses
_TIMEOUTS_S: Final = (5, 10, 15, 20, 30, 45, 50, 55, 60, 75, 90, 100, 120, 180, 240, 300, 350, 600)


def idle_timeout(e: Evidence) -> Finding:
    """A hop on the path closes streams after a fixed time, of silence or in total.

    Looks like:
        Streams end without a finish reason, all after the same gap (30, 60, 100 s ...) or all
        at the same age. The engine counts no failure.

    Confirm:
            sum by (outcome) (rate(llmtrace_requests_total[5m]))
        Rows with outcome `truncated` share one `max_gap_s` or `e2e_s`. Look for that value in
        every hop's configuration: nginx `proxy_read_timeout`, a load balancer's idle timeout.

    Now:
        Fix: raise the idle timeout of that hop, or send SSE comments to keep the stream alive.

    Later:
        Send heartbeats more often than the shortest idle timeout on the path; let clients
        resume.
    """
    cut = e.share("failed", failed)
    before, found = broken(e)
    idle = found.idle
    known = not found.n or idle is not None or found.idle_share > 0 or bool(
        np.isfinite(e.after.number("max_gap_s")[failed(e.after)]).any())  # fmt: skip
    aged = _cut_at_an_age(e, found)
    constant = found.by_timer and not aged
    after_s = found.age if aged else idle
    usual = after_s is not None and any(
        abs(after_s - one) <= 0.04 * one + 0.3 for one in _TIMEOUTS_S)  # fmt: skip
    floor = constant and found.idle_floor > found.idle_share
    text = _cut_text(before, found, aged=aged, floor=floor)
    limit = cut_before_content(e)
    limited = "" if limit is None else (
        f"{limit[1]} requests got no content for {say.seconds(limit[0])} and were cut, and about "
        "as many waited longer before")  # fmt: skip
    lines = [
        gate(cut.rose(0.002, 4, 1.6 if constant or aged else 2.5),
             f"truncated, timed out or failed: {cut}"),
        required(bool(limited) or (constant or aged if known else None), limited or text,
                 "the longest gap of each stream, the one before its end included"),
        proof(bool(limited), "a hop gives an answer less time than it always took"),
        proof(aged and found.age_share >= 0.75, "all ended at one age"),
        proof(constant and found.idle_share >= 0.75 and (
                  found.age_share <= 0.7 * found.idle_share or _only_silence_limited(e, idle)),
              "the gap is always the same, the length of the streams is not"),
        support(usual, f"{say.seconds(after_s or 0)} is a usual setting"),
        support(not restarted(e), "no engine was restarted"),
        against(found.at_once, "they ended at the same instant"),
        # Of engines that are seen, the timer is what is known: each request reached one of them.
        against(not (limited or e.sees_engines or e.up("ttft_s")) and not
                (np.isfinite(e.after.number("ttft_s")) & failed(e.after)).any(),
                "none of them had any content, and what is answered is as fast as before: they "
                "hang, whichever hop gives up on them"),
    ]  # fmt: skip
    action = (
        f"Fix: find the hop with a time-out of {say.seconds(after_s)} and raise it"
        + (", or keep streams alive with comments." if not aged else ".") if after_s is not None
        else "Fix: raise the idle time-out, or keep streams alive with comments."
    )  # fmt: skip
    return judge("idle_timeout", lines, action + flags(e, "idle_timeout"))


def _only_silence_limited(e: Evidence, idle: float | None) -> bool:
    """Return whether some responses ran past the idle time, but none was silent for as long.

    So the hop limits silence: with a limit on age, none of these would have passed.
    """
    whole = e.after.number("e2e_s")[~failed(e.after)]
    longer = whole > _LONGER * (idle or np.inf)
    silence = longest_silence(e.after)
    return idle is not None and longer.sum() >= _SEVERAL and silence < idle


def midstream_errors(e: Evidence) -> Finding:
    """Streams break after their first chunk, not after a fixed silence.

    Looks like:
        Outcomes `truncated` or `error` with content already delivered: an error event inside a
        200, or a connection that just ends. Some requests are retried, and their prompts
        computed twice.

    Confirm:
            sum by (outcome) (rate(llmtrace_requests_total[5m]))
            sum by (reason) (rate(llmtrace_engine_requests_finished_total[5m]))
        Search the engine's log for the `request_id` of a broken row.

    Now:
        Reroute away from the replica or version that the broken rows share, or roll back.

    Later:
        Let clients resume, or retry what is idempotent; fix the engine.
    """
    cut = e.share("broken after the first chunk", broken_midstream)
    resent = e.share(
        "stream sent again", lambda side: sent_again(side) & (side.number("chunks") > 0)
    )
    _, found = broken(e)
    again = restarted(e)
    local = where_broken(e)
    hop = found.at_once and _broken_by_a_hop(e)
    finished = e.counted_in_equal_time("finished", reason="error")
    counted = None if finished is None else finished[1] >= 3 and finished[1] >= 2 * finished[0]
    decode = e.row("decode_s")
    retries = resent.rose(0.01) and decode is not None and decode.tail_share > 0.07
    more = cut.rose(0.005, 3, STANDS_OUT) or retries or hop
    aged = _cut_at_an_age(e, found)
    idle = found.by_timer or aged
    lines = [
        gate(more,
             f"broken after the first chunk: {cut}; sent again: {resent}"),
        required(more, f"broken after the first chunk: {cut}"),
        proof(counted, "the engines count: " + say.counted("finished with an error", finished)),
        proof(not idle and not again and found.n >= 4 and found.together < 0.3,
              "they broke one by one, after gaps of all sorts, and no engine was restarted"),
        proof(not (idle or again) and found.again_and_again,
              f"they broke at {found.moments} instants: no engine dies so often"),
        proof(hop, f"{found.n} broke at one instant, and every engine went on: a hop between did"),
        support(None if local is None else True, local or ""),
        against(idle and found.together < 0.4,
                f"they were all {say.seconds(found.age or 0)} old" if aged else
                f"they had all been silent for {say.seconds(found.idle or 0)}", strongly=True),
        against(bool(again), f"{', '.join(again)} was restarted"),
        # As when an engine dies; of a hosted API, it is the API's servers that are replaced.
        against(found.at_once and not hop and e.sees_engines, "they broke at the same instant"),
    ]  # fmt: skip
    action = "Reroute away from what the broken streams share, roll back; then fix the engine."
    return judge("midstream_errors", lines, action)


def _broken_by_a_hop(e: Evidence) -> bool:
    """Return whether streams ended at one instant though every engine went on."""
    known = e.has("started") and broken(e)[0].together < HALF
    return known and not restarted(e) and not gone_engines.vanished(e)


def _cut_text(before: Cuts, found: Cuts, *, aged: bool, floor: bool) -> str:
    """Say what the streams that ended early have in common."""
    earlier = f"({before.n} truncated before)"
    if aged:
        return (f"of {found.n} truncated streams {say.percent(found.age_share)} were "
                f"{say.seconds(found.age or 0)} old, silent or not {earlier}")  # fmt: skip
    if found.idle is None:
        return f"{found.n} truncated streams, after no common gap"
    silent = say.seconds(found.idle)
    if floor:
        return (f"{found.n} truncated streams had sent nothing for {silent} or a little longer "
                f"{earlier}")  # fmt: skip
    return (f"of {found.n} truncated streams {say.percent(found.idle_share)} had sent nothing for "
            f"{silent} {earlier}")  # fmt: skip


def _cut_at_an_age(e: Evidence, found: Cuts) -> bool:
    """Return whether responses that had begun were cut at one age, and few got older.

    Time-outs are left out: the client's own deadline is no hop's.
    """
    ended = failed(e.after)
    begun = np.isfinite(e.after.number("ttft_s")) | e.after.where("outcome", "truncated")
    broke = begun & ~e.after.where("outcome", "timeout")
    alike = found.age_share >= max(0.95 * found.idle_share, _MOSTLY) and not found.closer
    older = e.after.number("e2e_s")[~ended] > _LONGER * (found.age or np.inf)
    return alike and bool(broke[ended].mean() > HALF) and bool(older.sum() <= found.n)
