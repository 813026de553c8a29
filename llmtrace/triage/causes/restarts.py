"""Rules for engines that go down, and that start."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.causes.scoring import (
    Line,
    against,
    gate,
    judge,
    only,
    proof,
    required,
    support,
)
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence import gone_engines
from llmtrace.triage.evidence.cut_streams import broken, failures_by_end, where_broken
from llmtrace.triage.evidence.engine_starts import (
    Fresh,
    fresh,
    held_for_start,
    loading,
    restarted,
    stalled_start,
    starts,
)
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.inside_engines import limit_fell
from llmtrace.triage.evidence.refusals import over_quota, refused_connections
from llmtrace.triage.result import Finding

_CUT_OFF: Final = 2  # requests
_NEARLY_ALL: Final = 0.9  # of the failed requests
_SMALL_PART: Final = 0.25


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
        proof(bool(held := held_for_start(e)), f"the gateway held {held} requests until then"),
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
    return judge("cold_start", lines, action + flags(e, "cold_start"), group=only(e, *started))


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
    left_out = {} if known else gone_engines.failed_and_left(e)
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
                 f"{', '.join(left_out)}: requests fail, and then none is served for "
                 f"{say.seconds(max(gap for _, gap in left_out.values()))}" if left_out else
                 f"{', '.join(down) or 'no engine'} was restarted or stopped reporting",
                 "when each engine started: the gauge `started`"),
        proof(bool(again) and failing, "the start time moved, and requests failed"),
        proof(bool(lost) and bool(left_out),
              f"{sum(n for n, _ in left_out.values())} failed there; the others serve its share"),
        proof(bool(lost and {*again} & {*gone}), "it stopped reporting, and started again"),
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
    return judge("engine_down", lines, action, group=only(e, *down))


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
