"""Rules for causes in how responses are produced: cached, streamed, or not at all."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.stats.arrays import Mask
from llmtrace.triage.causes.scoring import against, gate, judge, proof, required, steady, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence import gone_engines
from llmtrace.triage.evidence.changes import HALF, RATHER_SURE, SURE, Share
from llmtrace.triage.evidence.cut_streams import broken, broken_midstream, cut_by_deadline
from llmtrace.triage.evidence.engine_starts import restarted
from llmtrace.triage.evidence.evidence import METRICS, Evidence
from llmtrace.triage.evidence.kinds import ALL_KINDS, usual_share
from llmtrace.triage.evidence.refusals import (
    ERROR,
    FAR_LATER,
    REFUSED,
    lost_per_retry,
    over_quota,
    refused_connections,
    server_errors_again,
)
from llmtrace.triage.evidence.window_rows import Side
from llmtrace.triage.result import Finding

_FELT: Final = 0.05  # share of requests; a smaller one cannot move a p95
_NO_MODEL: Final = ("route", "tenant")  # a request that a response cache served may name no model
_AS_BEFORE: Final = 0.25  # relative change of a median, at most
_FEW: Final = 0.01  # share of requests
_NOT_FOUND: Final = 404  # HTTP status
_BEYOND: Final = (_FEW, 5, 2.0)  # requests and standard errors: hardly any failed before
_FAIL_OVER: Final = (
    "Reroute: fail over to another provider, region or model; read its status page."
)
_BEFORE_ENGINES: Final = "See what answers before the engines: its log, its limits of connections."
_SEVERAL: Final = 4  # streams


def response_cache_misses(e: Evidence) -> Finding:
    """Requests that a response cache used to serve are computed again.

    Looks like:
        The share of requests with `cache_hit` falls. Misses take as long as before, but there
        are more of them, so the p95 becomes that of the misses. Engines get more work, and may
        queue.

    Confirm:
            sum by (route) (rate(llmtrace_cache_hits_total[5m]))
              / sum by (route) (rate(llmtrace_requests_total[5m]))
        Also check the cache's own log: evictions, errors, a namespace or a key that changed.

    Now:
        Fix: roll back what changed the cache's key, or restore its store. Add capacity until
        the cache serves again.

    Later:
        Alert on the share of hits; keep timestamps and request ids out of the key.
    """
    missed = e.share("cache_miss", _missed)
    known = e.before.known("cache_hit") or e.after.known("cache_hit")
    metric = e.metric or next(iter(e.moved), METRICS[-1])
    alone = e.row_among(metric, "cache_miss", _missed)
    deploys = e.events("deploy", "config")
    lines = [
        gate(e.rising("ttft_s", "e2e_s"), say.durations("end-to-end time", e.row("e2e_s"))),
        required(missed.rose(_FELT, sure=_sure_enough(e))
                 and _fell_within_kinds(e, "cache_hit", *_NO_MODEL) if known else None,
                 f"served from the response cache: {_rest(missed)}",
                 "the rows' `cache_hit`"),
        steady(proof(None if alone is None or not known else
                     alone.after_p50 <= (1 + _AS_BEFORE) * alone.before_p50,
                     say.durations("requests that miss alone", alone))),
        # With hardly any miss before, the proof above has nothing to compare with.
        steady(support(1 - missed.after <= HALF * (1 - missed.before) if known else None,
                       "most requests that were served from it are computed")),
        support(bool(deploys) if known else None,
                "changed shortly before: " + "; ".join(one.text for one in deploys)),
    ]  # fmt: skip
    action = "Fix the response cache, or roll back what changed its key; add capacity meanwhile."
    return judge("response_cache_misses", lines, action)


def _fell_within_kinds(e: Evidence, flag: str, *by: str) -> bool:
    """Return whether requests of the same kinds have a flag less often than before."""
    usual = usual_share(e.before, e.after, flag, by=by)
    return usual is None or usual - float((e.after.number(flag) == 1).mean()) >= _FELT


def streaming_off(e: Evidence) -> Finding:
    """Responses that used to be streamed are unary, so nothing is seen before the end.

    Looks like:
        The share of streamed requests falls. The whole response takes as long as before, but the
        first content comes with the last. A client, a gateway or a proxy dropped `stream`.

    Confirm:
            sum by (route) (rate(llmtrace_streamed_requests_total[5m]))
              / sum by (route) (rate(llmtrace_requests_total[5m]))

    Now:
        Fix: roll back the client or gateway that stopped requesting a stream.

    Later:
        Alert on the share of streamed requests of each route.
    """
    whole = e.share("not streamed", lambda side: side.number("stream") == 0)
    e2e = e.row("e2e_s")
    known = e.before.known("stream") and e.after.known("stream")
    still = e.row_among("ttft_s", "streamed", lambda side: side.number("stream") > 0)
    # Of a log without chunks, `stream` may be concluded from what it is to explain.
    shown = proof if e.after.known("chunks") else support
    lines = [
        gate(e.rising("ttft_s"), say.durations("first content", e.row("ttft_s")),
             "the time of the first content"),
        required(whole.rose(_FELT, sure=_sure_enough(e))
                 and _fell_within_kinds(e, "stream", *ALL_KINDS) if known else None,
                 f"streamed: {_rest(whole)}",
                 "the rows' `stream`"),
        steady(shown(None if e2e is None or not known else
                     e2e.after_p50 <= (1 + _AS_BEFORE) * e2e.before_p50,
                     say.durations("the whole response", e2e))),
        against(still is not None and whole.before >= _FELT and still.rose(e.floor("ttft_s")),
                say.durations("first content of what is streamed as before", still)),
    ]  # fmt: skip
    action = "Fix: roll back the client or gateway that stopped requesting a stream."
    return judge("streaming_off", lines, action)


def provider_errors(e: Evidence) -> Finding:
    """The provider responds with errors, refuses connections, or does not respond in time.

    Looks like:
        5xx without a quota message, 401 to 404 (the key, the account, the model's name),
        connections that are refused or time out, or requests that time out after longer than
        nearly all responses used to take. Either no engine is seen,
        as with a hosted API (usually one region or model fails); or every engine continues, and
        something in front of them answers, such as a circuit breaker or a connection limit.

    Confirm:
            sum by (provider, model, outcome) (rate(llmtrace_requests_total[5m]))
        Read the provider's status page, and `http_status` and `error_type` of the failed rows.
        Send one of the requests by hand, and from another network: if that works, the path is
        the problem.

    Now:
        Reroute: fail over to another provider, region or model. After 401 to 404, check the key,
        the account and the model's name first. Set a timeout for the first chunk, and back off
        before retrying.

    Later:
        Keep a second provider in use, with a circuit breaker for each; alert on each provider's
        share of failures.
    """
    seen_engines = bool(e.series("running") or e.series("started"))
    failed, counts = _not_served(e, seen_engines=seen_engines)
    answered = counts["error status"]
    said = "; ".join(f"{name}: {one}" for name, one in counts.items() if one.after_k)
    silent = e.share("failed without a word", _failed_silently).rose(_FEW)
    _, cut = broken(e)
    begun = int(broken_midstream(e.after).sum())
    gone = seen_engines and not (e.has("running") or e.has("started"))
    left = bool(gone_engines.failed_and_left(e))
    down = gone or left or bool(restarted(e)) or bool(gone_engines.vanished(e))
    lines = [
        required(failed.rose(*_BEYOND) or server_errors_again(e)
                 or (None if silent else False),
                 f"not served: {said or 'none'}", "the rows' `http_status` or `error_type`"),
        support(not (seen_engines or left), "no engine is seen that serves them"),
        support(seen_engines and not down, "every engine goes on: what is before them answers"),
        against(down, "an engine was restarted, or stopped reporting or serving", strongly=True),
        proof(not (seen_engines or left) and answered.rose(*_BEYOND)
              and answered.after_k >= HALF * failed.after_k,
              f"an error status in place of a response: {answered}"),
        support(seen_engines and answered.rose(*_BEYOND),
                f"an error status in place of a response: {answered}"),
        support(server_errors_again(e), "what is sent again gets 5xx, and no limit is named"),
        against(cut.together >= HALF and cut.n >= _SEVERAL,
                "streams ended at one instant: a serving machine died"),
        against(not answered.rose(*_BEYOND) and begun >= max(HALF * failed.after_k, _SEVERAL),
                f"{begun} streams broke after they began, and no status refuses a request"),
    ]  # fmt: skip
    return judge("provider_errors", lines, _BEFORE_ENGINES if seen_engines else _FAIL_OVER)


def _not_served(e: Evidence, *, seen_engines: bool) -> tuple[Share, dict[str, Share]]:
    """Count the requests that were not served: all of them, and by what happened to them."""
    whole, first = e.row("e2e_s"), e.row("ttft_s")
    deadline = cut_by_deadline(e)
    usual = np.inf if whole is None or deadline else whole.before_p95
    begins = np.inf if seen_engines or first is None or deadline else FAR_LATER * first.before_p95

    def hangs(side: Side) -> Mask:
        """Return which requests timed out after longer than nearly all responses took before."""
        return side.where("outcome", "timeout") & ~_begun(side) & (side.number("e2e_s") >= usual)

    def again(side: Side) -> Mask:
        """Return which were sent again without a status, after longer than responses took."""
        answered = np.nan_to_num(side.number("gateway_s")) >= HALF * side.number("retry_s")
        return (lost_per_retry(side) >= begins) & ~answered

    kinds = {"error status": _error_status, "refused": refused_connections,
             "no answer in time": hangs, "sent again without one": again}  # fmt: skip
    failed = e.share("not served", lambda side: ~over_quota(side) & np.logical_or.reduce(
        [kind(side) for kind in kinds.values()]))  # fmt: skip
    return failed, {name: e.share(f"not served: {name}", kind) for name, kind in kinds.items()}


def _sure_enough(e: Evidence) -> float:
    """Return the standard errors a share needs: fewer if a metric rose beyond chance."""
    return RATHER_SURE if e.moved else SURE


def _begun(side: Side) -> Mask:
    return np.isfinite(side.number("ttft_s"))


def _error_status(side: Side) -> Mask:
    """Return which requests got 5xx, or 401 to 404 for their key, account or model."""
    status = side.number("http_status")  # of the last attempt; it may have a body
    found: Mask = (status >= ERROR) | ((status > REFUSED) & (status <= _NOT_FOUND))
    return found


def _failed_silently(side: Side) -> Mask:
    """Return which requests failed before their response began, without a status or error type."""
    no_reason = np.isnan(side.number("http_status")) & (side.rows.words["error_type"].codes < 0)
    return side.where("outcome", "error") & no_reason & ~_begun(side)


def _missed(side: Side) -> Mask:
    mask: Mask = side.number("cache_hit") != 1
    return mask


def _rest(share: Share) -> str:
    """Say the share of all other requests, before and after."""
    return f"{say.percent(1 - share.before)} → {say.percent(1 - share.after)} of requests"
