"""Rules for a change in the number of requests: traffic lost, traffic surges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.triage.causes.scoring import Group, against, judge, proof, required, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.request_rates import Arrivals
from llmtrace.triage.result import Finding

_NEARLY: Final = 0.8  # means are known no better than this
_TIMES: Final = 1.5  # ratio of rates; the search for traffic changes uses the same
_SURE: Final = 3.0  # standard errors of the counts
_COLUMNS: Final = (
    "tenant", "route", "region", "client", "version", "service", "gateway", "model", "server",
)  # fmt: skip
_MOST: Final = 0.8  # share of the change that one value must account for
_FELL: Final = 1.5  # standard errors: if others stop as well, it is not for one value
_CALM: Final = 0.25  # relative change of the other values, at most
_STOPPED: Final = 0.1  # share of a group's requests that still come, at most
_STOPPED_ALONE: Final = 0.25  # the same, if no metric changed
_ALL: Final = 1.2  # ratio of the rates of all requests, if one group makes the change
_REST: Final = 0.1  # share of the requests before that other values need for a comparison


def traffic_lost(e: Evidence) -> Finding:
    """Requests stop coming, or far fewer come: they are lost on their way here.

    Looks like:
        The request rate falls, and requests that arrive are served as before. If one route,
        region, tenant or client is gone, look there. If all are, look in front of everything:
        DNS, a load balancer, a certificate, a release.

    Confirm:
            sum by (service, route) (rate(llmtrace_requests_total[5m]))
            sum by (service, route) (rate(llmtrace_requests_total[5m] offset 1d))
        To see whether requests are only not recorded, use `llmtrace doctor` and the engines'
        own counts.

    Now:
        Check what is in front: DNS, certificates, the load balancer's targets, the last release
        of the silent clients. Users see errors that no engine counts.

    Later:
        Alert on each route's request rate compared with the same hour yesterday; run synthetic
        requests from outside.
    """
    before, after = e.request_rate
    alone, where = _where(e)
    group = alone
    if alone is None and after:
        group, where = _stopped(e)
    come = _arrivals(e, group)
    gone = group is not None and come.stopped(_STOPPED if e.moved else _STOPPED_ALONE)
    slower = not (gone and alone) and _slower(e, alone, _arrivals(e, alone))
    fewer = before >= _ALL * after and come.before.rate >= _TIMES * come.after.rate
    far = min(come.z, e.arrivals().z) <= -_SURE
    failing = e.outcome("error", "truncated", "timeout")
    none = not after
    lines = [
        required(gone or (fewer and far), say.rates("requests", before, after)),
        proof(none or group is not None, "no request came at all" if none else f"only {where}"),
        support(bool(after) and not e.moved, "requests that come are answered as fast as before"),
        # If one group stopped and others came as before, slowness is not the reason.
        against(bool(e.moved) and slower,
                "requests take longer, and clients that wait send fewer", strongly=True),
        against(failing.rose(0.01), f"requests fail: {failing}"),
        against(group is None and _engines_go_on(e),
                "engines serve as many as before: rows are missing, not requests", strongly=True),
    ]  # fmt: skip
    place = f" It is {where}." if where and not none else ""
    action = "Check what is in front: DNS, certificates, the load balancer, the clients' release."
    return judge("traffic_lost", lines, action + place, group=group)


def _engines_go_on(e: Evidence) -> bool:
    """Return whether engines count nearly as many requests a second as before."""
    if e.ended is None:
        return False
    before, after = (n / max(side.window.seconds, 1e-9)
                     for n, side in zip(e.ended, (e.before, e.after), strict=True))  # fmt: skip
    return after >= _NEARLY * before > 0


def traffic_surge(e: Evidence) -> Finding:
    """Far more requests come than before.

    Looks like:
        The request rate multiplies, usually from one tenant, route or client: a batch job, a
        retry loop, a release that sends requests twice. Nothing is slower yet, or all wait for
        that one. If every kind of request increased and waits, look for a [saturated
        queue](queue_saturation.md) or a [larger batch](batch_size.md).

    Confirm:
            topk(5, sum by (service, tenant) (rate(llmtrace_requests_total[5m])))
            sum by (instance) (llmtrace_engine_requests_running)

    Now:
        Ask the tenant or client whether it is intended. If not, limit it; if so, add replicas
        before the queue fills.

    Later:
        Set limits per tenant; alert on a tenant's share of all requests.
    """
    before, after = e.request_rate
    group, where = _where(e)
    come = _arrivals(e, group)
    come = come if come.before.rate > 0 else e.arrivals()  # a new group has no rate before
    more = after >= _ALL * before and come.after.rate >= _TIMES * come.before.rate
    lines = [
        required(before > 0 and more and max(come.z, e.arrivals().z) >= _SURE,
                 say.rates("requests", before, after)),
        proof(group is not None, f"only {where}"),
        support(not e.moved, "requests are answered as fast as before"),
    ]  # fmt: skip
    place = f" It is {where}." if where else ""
    action = "Ask whether it is meant; limit that client, or add replicas before the queue fills."
    return judge("traffic_surge", lines, action + place, group=group)


def _arrivals(e: Evidence, group: Group | None) -> Arrivals:
    return e.arrivals() if group is None else e.arrivals(**{group.column: group.value})


def _slower(e: Evidence, group: Group | None, come: Arrivals) -> bool:
    """Return whether these requests take longer by as much as fewer of them come.

    A client that sends its next request after the response to the last cannot send more.
    """
    mine = e.row("e2e_s")
    if group is not None:
        mine = e.row_among("e2e_s", group, lambda side: side.where(*group))
        if mine is not None and not mine.rose(e.floor("e2e_s")):
            return False
    if mine is None:
        return group is None
    return mine.after_mean * come.after.rate >= _NEARLY * mine.before_mean * come.before.rate


def _where(e: Evidence) -> tuple[Group | None, str]:
    """Find the one value of a column that accounts for most of the change in request numbers.

    Return it as a group and in words. `None` if other values changed as well, or no column
    names it.
    """
    for column in _COLUMNS:
        rates = dict(_by_value(e, column))
        before, after = (sum(one[side] for one in rates.values()) for side in (0, 1))
        change = after - before
        if not change or len(rates) <= 1:
            continue
        name, (low, high) = max(rates.items(), key=lambda one: (one[1][1] - one[1][0]) / change)
        rest = before - low
        calm = rest >= _REST * before and abs(after - high - rest) <= _CALM * rest
        if calm and (high - low) / change >= _MOST:
            return Group(column, name), _group_text(column, name, (low, high), (before, after))
    return None, ""


def _stopped(e: Evidence) -> tuple[Group | None, str]:
    """Find a value of a column whose requests stopped and came under no other value instead."""
    for column in _COLUMNS:
        rates = dict(_by_value(e, column))
        totals = tuple(sum(one[side] for one in rates.values()) for side in (0, 1))
        for name, of_it in sorted(rates.items(), key=lambda one: one[1][1] - one[1][0]):
            rest = totals[0] - of_it[0], totals[1] - of_it[1]
            others = _rest_z(e, *rest)
            missing = totals[0] - totals[1] >= _MOST * (of_it[0] - of_it[1]) or others < _SURE
            missing &= others > -_FELL or rest[1] >= (1 - _CALM) * rest[0]
            if len(rates) > 1 and missing and e.arrivals(**{column: name}).stopped(_STOPPED):
                return Group(column, name), _group_text(column, name, of_it, totals)
    return None, ""


def _rest_z(e: Evidence, before: float, after: float) -> float:
    """Return by how many standard errors a rate rose, if requests come independently."""
    seconds = (max(side.window.seconds, 1e-9) for side in (e.before, e.after))
    variance = sum(rate / time for rate, time in zip((before, after), seconds, strict=True))
    return (after - before) / math.sqrt(variance) if variance > 0 else 0.0


def _group_text(column: str, name: str, rates: Sequence[float], of: Sequence[float]) -> str:
    shares = [say.percent(one / max(total, 1e-9)) for one, total in zip(rates, of, strict=True)]
    each = " → ".join(map(say.amount, rates))
    return f"{column}={name} ({' → '.join(shares)} of requests, {each} a second)"


def _by_value(e: Evidence, column: str) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield each value of a column, and its requests a second before and after."""
    found: list[dict[str, float]] = []
    for side in (e.before, e.after):
        words = side.rows.words[column]
        known = words.codes >= 0
        counts = np.bincount(
            words.codes[known], side.rows.weights[known], minlength=len(words.names)
        )
        rates: Floats = counts / max(side.window.seconds, 1e-9)
        found.append(dict(zip(words.names, rates.tolist(), strict=True)))
    for name in dict.fromkeys((*found[0], *found[1])):
        yield name, (found[0].get(name, 0.0), found[1].get(name, 0.0))
