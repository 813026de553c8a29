"""Rules for causes between the client and the engine: network, gateways and proxies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Mask, finite
from llmtrace.triage.causes.scoring import against, gate, judge, proof, required, steady, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.changes import HALF, RATHER_SURE, SURE, Shift
from llmtrace.triage.evidence.cut_streams import failed
from llmtrace.triage.evidence.engine_starts import held_for_start, restarted, starts
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.inside_engines import (
    first_chunk_later,
    front_end_part,
    slow_front_end,
)
from llmtrace.triage.evidence.refusals import (
    FAR_LATER,
    lost_per_retry,
    over_quota,
    refused_connections,
    retried_busy,
    sent_again,
    server_errors_again,
)
from llmtrace.triage.evidence.window_rows import Side
from llmtrace.triage.result import Finding

_PHASES: Final = {
    "rtt": "round trip",
    "dns": "DNS",
    "connect": "TCP connect",
    "tls": "TLS",
    "handshake": "handshake",
    "send": "sending",
}
_SET_UP: Final = ("connect", "tls", "handshake")
_MOSTLY: Final = 0.6
_PERCENTILES: Final = (10, 25, 50, 75, 90)
_ALIKE: Final = (0.6, 1.5)  # range of rises at these percentiles, over the median rise
_GOOD_PART: Final = 0.3
_FAR_SLOWER: Final = 4.0  # relative rise
_FAR_FASTER: Final = 3.0  # times: no engine with less load gets as much faster
_LATER: Final = 1.3  # times
_QUARTER: Final = 0.25


def network_path(e: Evidence) -> Finding:
    """The network path to the server got longer: routing, region, DNS, no connection reuse.

    Looks like:
        `network` is up without a wait for the client's own pool, often from one region or
        client only. Round trip, connect or TLS shows which part. Engines are unchanged.

    Confirm:
            histogram_quantile(0.95,
              sum by (le, region) (
                rate(llmtrace_stage_duration_seconds_bucket{stage="network"}[5m])))
        From a client of the slow cohort: `mtr` to the server, `curl -w` with its timings. A
        proxy that ends TCP hides the path behind it: that delay is in `first_chunk`.

    Now:
        Reroute: pin the region, undo the DNS or load balancer change, keep connections alive.

    Later:
        Watch round trips per client region and server region; keep traffic within a region.
    """
    path, floor = e.row("network_path_s"), e.floor("network_s")
    phases, longer = _phases(e, floor)
    opened = _reconnects_after_failures(e, phases["rtt"], path)
    longer_path = not opened and (phases["rtt"] is None or _path_longer(e, longer))
    moved = "; ".join(say.durations(_PHASES[part], one) for part, one in longer.items())
    # On a client that is short of CPU, sending takes longer as well as connecting.
    sets_up = phases["send"] is not None and "send" not in longer and path is not None and (
        sum(longer[one].mean_change for one in _SET_UP if one in longer)
        >= HALF * path.mean_change > 0)  # fmt: skip
    wait, whole = e.row("network_client_wait_s"), e.row("network_s")
    waits = bool(wait and whole and wait.mean_change >= HALF * whole.mean_change)
    local = e.local("region", "network_s") or e.local("client", "network_s")
    other_mix = _more_from_far(e, path, floor)
    hidden = "" if e.stage_rose("network") else _same_delay_for_all(e)
    lines = [
        gate(None if hidden else e.stage_rose("network"), say.durations("network", whole),
             "network hooks of the client"),
        required(None if path is None or whole is None else not other_mix and (
                     bool(hidden) or _network_rose(e, path, whole, floor)),
                 hidden or say.durations("network without one's own pool", path)
                 + (", but not within regions" if other_mix else "")
                 + (f"; {moved}" if longer and not longer_path else ""),
                 "the network's phases (HTTP client hooks)"),
        proof(longer_path and bool(longer)
              and (e.stage_share("network") >= HALF or e.felt_alone("network_s"))
              if any(one is not None for one in phases.values()) else None,
              moved),
        support(e.stage_share("network") >= HALF,
                f"network is {say.percent(e.stage_share('network'))} of the time added"),
        support(None if local is None else True, f"only {local}"),
        support(_engine_steady(e), "queue and prefill did not move"),
        against(waits, say.durations("wait for one's own pool", wait), strongly=True),
        against(not (longer_path or _reconnects(e) or sets_up or hidden),
                "connecting and sending wait for a machine: a round trip takes as long as before",
                strongly=bool(e.up("client_lag_s"))),
        against(opened, "requests that ended early left connections closed", strongly=True),
    ]  # fmt: skip
    fix = "Reroute: undo the routing or DNS change, pin the region, keep connections alive."
    return judge("network_path", lines, f"{fix} It is {local}." if local else fix, group=local)


def _network_rose(e: Evidence, path: Shift, whole: Shift, floor: float) -> bool:
    """Return whether the network takes longer, or adds most of a metric that rose."""
    enough = path.mean_change >= max(HALF * whole.mean_change, floor)
    return (path.rose(floor) or path.mean_rose(floor)
            or (bool(e.moved) and e.stage_share("network") >= HALF and enough))  # fmt: skip


def _more_from_far(e: Evidence, path: Shift | None, floor: float) -> bool:
    """Return whether only more requests come from regions that are farther away."""
    within = e.at_same_mix("network_path_s", by=("region",))
    return (within is not None and path is not None
            and within.mean_change < HALF * path.mean_change
            and not (within.rose(floor) or within.mean_rose(floor)))  # fmt: skip


def _phases(e: Evidence, floor: float) -> tuple[dict[str, Shift | None], dict[str, Shift]]:
    """Return the change of each network phase, and those that take longer."""
    every = {part: e.row(f"network_{part}_s") for part in _PHASES}
    known = ((name, one) for name, one in every.items() if one is not None)
    return every, {name: one for name, one in known if one.rose(floor) or one.mean_rose(floor)}


def _reconnects_after_failures(e: Evidence, trip: Shift | None, path: Shift | None) -> bool:
    """Return whether more connections are opened because more requests fail or are cancelled.

    Round trips do not get longer then.
    """
    ended = e.share("ended early", lambda side: failed(side) | side.where(
        "outcome", "cancelled")).rose(0.002, 4, 2.5)  # fmt: skip
    farther = trip is not None and path is not None and trip.mean_change >= HALF * path.mean_change
    return ended and not farther and e.share("connected", _connected).rose(0.1)


def _path_longer(e: Evidence, longer: Iterable[str]) -> bool:
    """Return whether round trips or DNS take longer, for all or for some new connections.

    A client that is short of CPU also connects slowly. New connections show a longer round trip
    even if those that are kept alive hide it.
    """
    trip = e.row("network_rtt_s")
    bar = np.inf if trip is None else 2 * trip.before_p95 + e.floor("network_s")
    some = e.share("far", lambda side: side.number("network_rtt_s") > bar)
    return bool({"rtt", "dns"} & set(longer)) or some.rose(0.0, 4, RATHER_SURE)


def gateway_overhead(e: Evidence) -> Finding:
    """The gateway itself takes longer: CPU, auth, guardrails, a database.

    Looks like:
        The gateway's self time is up, with no more attempts than before. Engines behind it are
        unchanged. If a gateway reports nothing, its time is in `first_chunk`; it is then found
        by excluding the engine's front end, bursts and restarts, and may be any hop on the
        path.

    Confirm:
            histogram_quantile(0.95,
              sum by (le) (rate(llmtrace_stage_duration_seconds_bucket{stage="gateway"}[5m])))
            histogram_quantile(0.95,
              sum by (le) (rate(llmtrace_gateway_overhead_seconds_bucket[5m])))

    Now:
        Add capacity to the gateway, or roll back its last change. Bypass guardrails for streams
        that do not need them.

    Later:
        Profile it under load; cache authorisation; give guardrails a timeout.
    """
    own = e.row("gateway_once_s")
    whole = e.row("gateway_s")
    retried = e.share("retried", sent_again)
    local = e.local("gateway", "gateway_s")
    limited = _over_limit(e)
    own_time = "the gateway's own time (Server-Timing, its headers, or our middleware)"
    # Of several proxies in a row, one may report its time and another not.
    by_exclusion = None if e.up("gateway_s") else _lost_between(e)
    if by_exclusion:
        lost = "first_chunk" if e.row("first_chunk_s") is not None else "unattributed"
        text = ("no gateway reports it, but time is lost on the path and not in the engine: "
                + say.durations(lost.replace("_", " "), e.row(f"{lost}_s")))  # fmt: skip
        seen = [gate(e.stage_rose(lost), text), required(by_exclusion, text, own_time)]
    else:
        seen = [
            gate(e.stage_rose("gateway"), say.durations("gateway", whole), own_time),
            required(e.up("gateway_once_s"),
                     say.durations("gateway, of requests sent once", own), own_time),
        ]  # fmt: skip
    lines = [
        *seen,
        # A busy machine slows everything on it: require most of the added time for a proof.
        against(bool(held_for_start(e)), "it held them until an engine that started served them",
                strongly=True),
        steady(proof(None if own is None or whole is None else e.stage_share("gateway") >= HALF and
              own.mean_change >= 0.6 * (whole.mean_change),
              f"it is the gateway's own time; more than one attempt: {retried}")),
        support(e.stage_share("gateway") >= HALF,
                f"the gateway is {say.percent(e.stage_share('gateway'))} of the time added"),
        support(_engine_steady(e), "queue and prefill did not move"),
        support(None if local is None else True, f"only {local}"),
        against(retried.rose(0.03) and bool(limited), f"more than one attempt: {retried}"),
    ]  # fmt: skip
    action = "Add capacity to the gateway or roll back its last change; then profile it."
    return judge("gateway_overhead", lines, action, group=local)


def rate_limit_retries(e: Evidence) -> Finding:
    """Requests are rejected for a limit: they fail, or users wait until they are sent again.

    Looks like:
        Responses with 429 or a quota message, or more attempts per request after 5xx. Failed
        attempts and backoff are in `gateway`. Often one tenant or key. 5xx without retries are
        not a quota: the provider or an upstream fails.

    Confirm:
            sum by (reason) (rate(llmtrace_engine_requests_rejected_total[5m]))
        Rows, by tenant: `http_status`, `attempts > 1`, `retry_s`, `retried_status`.

    Now:
        Raise the quota, or rebalance over keys; honour Retry-After; add jitter to the backoff.
        After 5xx alone: look at the provider's status page, and fail over.

    Later:
        Limit requests in the client before the provider does. Hedge carefully: retries are load
        too.
    """
    retried = e.share("retried", sent_again)
    by_status = _share_ended_by_status(e)
    wait, gateway = e.row("retry_s"), e.row("gateway_s")
    limited, seen = _over_limit(e), _limit_counts_rose(e)
    local = e.local("tenant", "retry_s")
    refused = e.share("connect", refused_connections)
    knows = bool(np.isfinite(e.after.number("attempts")).any())
    quota, busy = e.share("quota", over_quota), e.share("busy", retried_busy)
    counts = {"more than one attempt": retried, "429 or a quota named": quota,
              "5xx in spite of retries": busy}  # fmt: skip
    some = (f"{name}: {one}" for name, one in counts.items() if one.before_k + one.after_k)
    said = f"refused or sent again: {'; '.join(some) or 'none'}"
    lines = [
        gate((e.stage_rose("gateway", "network") or bool(limited) or bool(e.moved)
              or retried.rose(0.02)) if knows else None, said, "attempts of each request"),
        required(_rejected_and_retried(e, seen, by_status) if knows else None,
                 said if by_status is None else f"{said}; of the attempts' time "
                 f"{say.percent(by_status)} ended in a status",
                 "the status of each attempt, or the gateway's counter of 429"),
        proof(any(seen) if seen else None,
              f"429 or a quota named: {quota}" if e.rate("gateway_429") is None else
              f"gateway: {say.counted('429', e.counted_in_equal_time('gateway_429'))}",
              "the gateway's counter of 429, or the status of each attempt"),
        support(None if wait is None or not (any(seen) or by_status or busy.after_k)
                else wait.after_mean > 2 * wait.before_mean + 0.005,
                say.durations("failed attempts and backoff", wait)),
        support(None if local is None else True, f"only {local}"),
        support(bool(gateway) and e.stage_rose("gateway"), say.durations("gateway", gateway)),
        against(refused.rose(0.01, 3, 2.0) and not any(seen),
                f"connections were refused: {refused}"),
        against(bool(restarted(e)), f"{', '.join(restarted(e))} was restarted"),
        against(server_errors_again(e),
                f"what is sent again ends in 5xx, and no limit is named: {busy}"),
    ]  # fmt: skip
    action = "Raise the quota or rebalance over keys; honour Retry-After, and add jitter."
    if busy.rose(0.005, 3) and not any(seen):
        action = (
            "Provider or upstream errors: look at its status page, fail over; back off longer."
        )
    return judge("rate_limit_retries", lines, action, group=local)


_UNBUFFERED: Final = (
    "Fix the proxy: no buffering and no compression for `text/event-stream` "
    "(nginx: `proxy_buffering off; gzip off`, or `X-Accel-Buffering: no` from upstream)."
)


def proxy_buffering(e: Evidence) -> Finding:
    """A proxy on the path collects chunks, and passes them on in bursts.

    Looks like:
        The first chunk is late and the rest come in bursts: `first_chunk` is up, time per token
        *down*, end-to-end time unchanged. Compression of event streams causes it, and so does
        buffering, depending on how the server writes.

    Confirm:
        Compare `curl -N` through the proxy and past it, also with `accept-encoding: gzip`.
            histogram_quantile(0.5,
              sum by (le) (rate(llmtrace_inter_chunk_gap_seconds_bucket[5m])))

    Now:
        Fix the proxy: nginx `proxy_buffering off; gzip off; proxy_http_version 1.1` for
        `text/event-stream`, or `X-Accel-Buffering: no` from upstream.

    Later:
        Run a synthetic stream through every proxy; alert when the first chunk comes with the
        last.
    """
    per_token, decode = e.row("wait_per_token_s") or e.row("tpot_s"), e.row("decode_s")
    bursts, chunks = e.row("burst_share"), e.row("chunks_per_token")
    whole = e.row("e2e_s")
    faster = None if per_token is None else per_token.fell(0.0, 0.15) or per_token.mean_fell(0.2)
    bursty = None if bursts is None else bursts.mean_rose(0.03, 0.3)
    fewer = None if chunks is None else chunks.mean_fell(0.1)
    # An engine with less load is faster too; buffered chunks arrive together, or merged.
    if held := _held_back(e, per_token):
        faster = True
    marks = (faster,) if held or (bursty is None and not fewer) else (bursty, fewer)
    reported = [one for one in marks if one is not None]
    away, away_text = _reader_was_away(e)
    # A little buffering shows in bursts before it shows in the first chunk.
    gathers = bool((bursty or held) and faster) and not e.up("client_delay_s")
    pace_text = _chunk_pace_text(per_token, bursts, chunks if fewer else None)
    later, longer = first_chunk_later(e)
    local = e.local("gateway", "first_chunk_s") or e.local("region", "first_chunk_s")
    lines = [
        gate(gathers or bool(later and faster) or _delayed_on_the_path(e),
             say.durations("first chunk", e.row("first_chunk_s")),
             "time to first chunk by stages"),
        required(any(reported) if reported else None, pace_text or "chunks: not reported",
                 "output tokens and chunks of each request"),
        proof(None if bursty is None and not fewer else
              bool(bursty or fewer) and bool(faster) and not away,
              pace_text, "which chunks came at once (`burst_chunks`)"),
        support(later, say.durations("end to end", whole) + "; "
                + say.durations("first chunk", e.row("ttft_s"))),
        support(_engine_steady(e), "queue and prefill did not move"),
        support(None if decode is None else decode.after_mean <= 0.6 * decode.before_mean,
                say.durations("decode", decode)),
        support(None if local is None else True, f"only {local}"),
        against(away, away_text, strongly=True),
        against(*_front_end_delays(e), strongly=True),
        against(longer, say.durations("the whole response is as much later: end to end", whole)),
        against(e.up("tpot_s"), say.durations("time per token", e.row("tpot_s"))),
    ]  # fmt: skip
    return judge("proxy_buffering", lines, _UNBUFFERED, group=local)


def _held_back(e: Evidence, per_token: Shift | None) -> bool:
    """Return whether tokens come far faster once the first, which comes later, is there."""
    first = e.row("first_chunk_s") or e.row("ttft_s")
    if per_token is None or first is None or first.after_p50 < _LATER * first.before_p50:
        return False
    far = per_token.before_p50 > _FAR_FASTER * per_token.after_p50
    return far and replace(per_token, sure=RATHER_SURE).mean_fell(0.2)


def _front_end_delays(e: Evidence) -> tuple[bool | None, str]:
    """Return whether the engine's front end is a good part of the first chunk's delay; text."""
    part, own = front_end_part(e), e.gauge("frontend_time")
    if own is not None and own.rose(0.0, _FAR_SLOWER):  # it merges chunks, too
        return True, say.gauge("the engine's front end has slowed down as well, seconds", own)
    text = f"the engine's front end is {say.percent(min(part or 0, 1))} of what the wait grew by"
    return None if part is None else part >= _GOOD_PART, text


def _reader_was_away(e: Evidence) -> tuple[bool | None, str]:
    """Return whether chunks arrived together because the client was not reading, and say so."""
    away, decode = reader_away(e), e.row("decode_s")
    if away is None or decode is None:
        return None, ""
    text = f"the client was away for {say.seconds(away)} more of each response"
    return away >= HALF * max(decode.before_mean - decode.after_mean, 0.0) > 0, text


def _chunk_pace_text(per_token: Shift | None, bursts: Shift | None, chunks: Shift | None) -> str:
    """Say how chunks arrived before and after, as far as it is reported."""
    said = []
    if per_token is not None:
        said.append(say.durations("waited per token", per_token))
    if bursts is not None:
        said.append(f"chunks that came at once, mean {say.percent(bursts.before_mean)} → "
                    f"{say.percent(bursts.after_mean)}")  # fmt: skip
    if chunks is not None:
        said.append(f"chunks per token, mean {say.amount(chunks.before_mean)} → "
                    f"{say.amount(chunks.after_mean)}")  # fmt: skip
    return "; ".join(said)


def _delayed_on_the_path(e: Evidence) -> bool | None:
    """Return whether time is added where a proxy adds it, not in the client's own pool."""
    held = e.stage_rose("first_chunk", "unattributed")
    if not held and e.row("gateway_s") is not None:
        # A retried request waited too, but not in the proxy: look at those sent once.
        held = bool(e.stage_rose("gateway")) and bool(e.up("gateway_once_s"))
    path = e.row("network_path_s")
    in_network = e.stage_rose("network") and (path is None or path.rose(e.floor("network_s")))
    if in_network:
        return True
    return in_network if held is None else held


def _engine_steady(e: Evidence) -> bool | None:
    rose = [one for one in (e.up("queue_s"), e.up("prefill_s")) if one is not None]
    return not any(rose) if rose else None


def _same_delay_for_all(e: Evidence) -> str:
    """Say by how much all requests' first chunks are later, if by the same for slow and fast ones.

    A longer path does that, and load does not. Needed because a kept-alive connection reports the
    shortest round trip of five minutes. Not used if engines report a queue, which shows more.
    Empty = the delay differs.
    """
    seen = e.row("queue_s") is not None or bool(e.series("running"))
    if seen or e.row("unattributed_s") is None or "ttft_s" not in e.moved:
        return ""
    low, high = (np.nanpercentile(side.number("unattributed_s"), _PERCENTILES)
                 for side in (e.before, e.after))  # fmt: skip
    rise, typical = high - low, float(np.median(high - low))
    same = rise.min() >= _ALIKE[0] * typical and rise.max() <= _ALIKE[1] * typical
    if not same or not typical >= e.floor("network_s") > 0:
        return ""
    return f"all first chunks come {say.seconds(typical)} later, the fastest and the slowest alike"


def _lost_between(e: Evidence) -> bool | None:
    """Return whether time is lost between client and engine, by ruling out everything else.

    `None` if too little is reported. Time that engines count themselves is not between.
    """
    theirs, front = e.engine_share(), slow_front_end(e)
    bursts, pace = e.row("burst_share"), e.row("wait_per_token_s")
    outside = None if theirs is None else theirs <= _QUARTER
    if pace is None or (front is None and outside is None):
        return None
    gathered = pace.after_mean <= 0.8 * pace.before_mean or (
        bursts is not None and bursts.mean_change >= 0.15
    )
    _, longer = first_chunk_later(e)
    gathered &= not longer  # buffering does not delay the end of a response
    lost = e.stage_rose("first_chunk") if e.row("first_chunk_s") is not None else (
        outside and e.stage_rose("unattributed"))  # fmt: skip
    part = front_end_part(e)
    seen = (front and (part is None or part >= _GOOD_PART)) or outside is False
    # A longer path delays requests and responses alike.
    phases = _phases(e, e.floor("network_s"))[1]
    seen = seen or bool(e.stage_rose("network") and _path_longer(e, phases))
    return bool(lost) and not (seen or gathered or starts(e))


def _rejected_and_retried(e: Evidence, seen: list[bool], by_status: float | None) -> bool | None:
    """Return whether more requests get an error status, and are sent again or fail.

    A broken stream or connection is sent again as well, and is no rate limit.
    """
    again = e.share("retried", sent_again).rose(0.01, sure=RATHER_SURE)
    if not (again or _over_limit(e)):
        return False
    if any(seen) or e.share("busy", retried_busy).rose(0.005, 3):
        return True
    if by_status is not None:
        return by_status >= _MOSTLY
    # The status of what is sent again is not known: a limit answers at once, a silence does not.
    lost, first = finite(lost_per_retry(e.after)), e.row("ttft_s")
    at_once = len(lost) and first is not None and np.median(lost) <= FAR_LATER * first.before_p95
    return True if at_once else None


def _share_ended_by_status(e: Evidence) -> float | None:
    """Return the share of failed attempts' time that is in `gateway`, i.e. ended with a status."""
    again = sent_again(e.after)
    lost = e.after.number("retry_s")[again]
    gateway = e.after.number("gateway_s")[again]
    known = np.isfinite(lost) & np.isfinite(gateway)
    if not known.any() or lost[known].sum() <= 0:
        return None
    return float(np.minimum(gateway, lost)[known].sum() / lost[known].sum())


def _reconnects(e: Evidence) -> bool:
    """Return whether more requests open a connection, each in about a round trip."""
    each, trip = e.row_among("network_connect_s", "connected", _connected), e.row("network_rtt_s")
    if each is None or trip is None or not e.share("connected", _connected).rose(0.1):
        return False
    return each.after_p50 <= 3 * trip.after_p50 + e.floor("network_s")


def _connected(side: Side) -> Mask:
    return side.number("network_connect_s") > 0


def _over_limit(e: Evidence) -> bool | None:
    """Return whether more requests are over a limit; `None` = statuses of retries not reported."""
    if e.share("quota", over_quota).rose(0.005, 3, RATHER_SURE):
        return True
    # Some clients report only the last attempt's status, so a missing 429 proves nothing.
    again = sent_again(e.after)
    named = np.isfinite(e.after.number("retried_status"))[again]
    return False if again.any() and named.mean() >= _MOSTLY else None


def _limit_counts_rose(e: Evidence) -> list[bool]:
    """Return whether requests over a limit rose, by each count that is reported."""
    many, rejected = e.rate("gateway_429"), e.counted("rejected")
    turned = None if rejected is None else _counter_rose(e, "rejected")
    counter = None if many is None else many.rose(0.0, 0.5) or _counter_rose(e, "gateway_429")
    return [one for one in (_over_limit(e), counter, turned) if one is not None]


def _counter_rose(e: Evidence, signal: str) -> bool:
    """Return whether a counter counts clearly more in equal time (Poisson)."""
    counted = e.counted_in_equal_time(signal)
    if counted is None:
        return False
    before, after = counted
    return bool(after - before >= SURE * np.sqrt(after + before + 1))


def reader_away(e: Evidence) -> float | None:
    """Return by how many seconds more, on average, the client did not read a response in progress.

    It worked on what it had read, or was too busy to notice more. `None` = not known.
    """
    shifts = (e.row("render_own_s"), e.row("client_lag_s"))
    known = [one.mean_change for one in shifts if one is not None]
    return sum(known) if known else None
