"""Weigh the evidence for every known cause.

Each cause has one rule for its own mechanism, whose docstring is its runbook. A rule knows nothing
of the other rules: relations.toml lists which cause can produce which effect, and the steps below
use it to lower causes that another cause explains better.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from llmtrace.triage.causes import (
    caches,
    clients,
    deferred,
    ended_streams,
    engine_process,
    gpus,
    load,
    network,
    request_numbers,
    response_path,
    restarts,
    workload,
)
from llmtrace.triage.causes.look_alikes import RELATIONS, look_alikes
from llmtrace.triage.causes.scoring import POSSIBLE, at_most_possible, with_points
from llmtrace.triage.evidence import changes
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.inside_engines import cache_fell_first, cache_shrank
from llmtrace.triage.result import NAMED, OF_THE_WORK, OF_TRAFFIC, SURE, Finding, Point

Rule = Callable[[Evidence], Finding]

# Ties are shown in this order: workload before queues, causes before their effects.
RULES: Final[Mapping[str, Rule]] = {
    rule.__name__: rule
    for rule in (
        restarts.engine_down, ended_streams.idle_timeout, network.rate_limit_retries,
        ended_streams.midstream_errors, response_path.provider_errors,
        request_numbers.traffic_lost, request_numbers.traffic_surge, clients.client_cold,
        clients.client_gate, clients.busy_client, clients.serial_tools, clients.slow_renderer,
        network.proxy_buffering, response_path.response_cache_misses, response_path.streaming_off,
        workload.long_prompts, workload.longer_outputs, caches.low_spec_acceptance,
        caches.prefix_cache_collapse, load.kv_exhaustion, engine_process.engine_paused,
        restarts.cold_start, workload.head_of_line, deferred.lora_slots, deferred.disaggregated_kv,
        deferred.kv_transfer, deferred.grammar_compilation, load.replica_imbalance,
        engine_process.frontend_cpu, gpus.gpu_throttle, network.network_path,
        network.gateway_overhead, load.queue_saturation, load.batch_size, clients.client_give_ups,
    )
}  # fmt: skip

# Causes that show in how requests end, whatever happens to latency.
BY_OUTCOME: Final = frozenset(
    {
        "engine_down", "idle_timeout", "midstream_errors", "client_give_ups", "rate_limit_retries",
        "provider_errors",
    }
)  # fmt: skip
_IF_SLOW: Final = {True: RELATIONS["behind_if_slow"], False: RELATIONS["behind_if_not_slow"]}
OUTSIDE: Final[Mapping[str, Sequence[str]]] = RELATIONS["outside"]
WITHIN_ENGINES: Final = frozenset(RELATIONS["engines"]["within"])
_WAITS: Final[Mapping[str, str]] = RELATIONS["waits"]  # cause: the row field of its wait
_MADE_OF: Final[Mapping[str, str]] = {**_WAITS, **RELATIONS["made_of"]}
BY_LOAD: Final = frozenset({"queue_saturation", "batch_size"})

# Points taken off a cause if ...
_OUTSIDE_POINTS: Final = -4  # it cannot affect the metric
_EFFECT_POINTS: Final = -6  # it is an effect of another cause, too small or too usual
_EXPLAINED_POINTS: Final = -6  # the first cause explains the change
_UNMOVED: Final = -10  # no metric moved
_SMALL_PART: Final = 0.25  # of the metric's growth
_STOPPED: Final = 0.02  # of the requests before: no burst leaves so few
_FAR: Final = 4.0  # standard errors of the number of requests
_RANK: Final = {"confirmed": 0, "likely": 1, "possible": 2, "unknown": 3, "ruled_out": 4}


def may_be_behind(effect: str, *, slow: Iterable[bool] = (True, False)) -> list[str]:
    """Return the causes that can produce an effect; `slow` = whether clients left for slowness."""
    tables = (RELATIONS["behind"], *(_IF_SLOW[case] for case in slow))
    listed = {name for table in tables for name in table.get(effect, ())}
    return [name for name in RULES if name != effect and ("*" in listed or name in listed)]


def causes(evidence: Evidence, can_show: Container[str] = RULES) -> list[Finding]:
    """Return a finding for every cause, the best supported first.

    Args:
        evidence: of both windows.
        can_show: the causes that this kind of evidence can show; the others become `unknown` and
            explain no other cause.
    """
    weighed = {name: rule(evidence) for name, rule in RULES.items()}
    weighed = {name: finding if name in can_show else replace(finding, status="unknown")
               for name, finding in weighed.items()}  # fmt: skip
    for step in (_open_if_not_reported, _lower_if_nothing_moved, _lower_if_outside,
                 _lower_if_small):  # fmt: skip
        weighed = {name: step(evidence, finding) for name, finding in weighed.items()}
    unusual = {name: _lower_if_usual(evidence, finding) for name, finding in weighed.items()}
    by_effect = [_lower_effect(evidence, finding, unusual) for finding in weighed.values()]
    effects = {one.id for one in by_effect if one is not weighed[one.id]}
    best = _ranked(evidence, (_lower_if_usual(evidence, finding) for finding in by_effect))[0]
    explained = (_lower_if_explained(evidence, finding, best, effects) for finding in by_effect)
    last = (_lower_if_usual(evidence, finding) for finding in explained)
    first, *others = _ranked(evidence, last)
    if first.status in NAMED:
        first = replace(first, or_else=look_alikes(first, weighed))
    return [first, *others]


def _ranked(evidence: Evidence, others: Iterable[Finding]) -> list[Finding]:
    """Sort by status, score and points against it; what cannot affect the metric comes later."""
    order = list(RULES)

    def place(one: Finding) -> tuple[int, bool, int, int, int]:
        outside = one.status in SURE and _is_outside(evidence, one)
        # Fewer requests make none slower.
        beside = outside or (one.id == "traffic_lost" and bool(evidence.moved))
        taken = -sum(point.points for point in one.against)
        rank = _RANK["likely" if outside else one.status]
        return rank, beside, -one.score, taken, order.index(one.id)

    return sorted(others, key=place)


def _open_if_not_reported(evidence: Evidence, finding: Finding) -> Finding:
    """Make a cause `unknown` if what would show it, or rule it out, is in no row or signal."""
    if finding.status in NAMED and finding.id in WITHIN_ENGINES and not evidence.sees_engines:
        return replace(
            finding, status="unknown", missing=(*finding.missing, "signals of the engine")
        )
    if finding.id in BY_OUTCOME:
        reported = (evidence.after.rows.words["outcome"].codes >= 0).any()
        missing = "" if reported else "outcome"
    elif finding.id == "replica_imbalance":
        missing = "" if evidence.instances else "replica"
    else:
        return finding
    if finding.status != "ruled_out" or not missing or not len(evidence.after):
        return finding
    settles = (*finding.missing, f"the rows' `{missing}`")
    return replace(finding, status="unknown", against=(), missing=settles)


def _lower_if_nothing_moved(evidence: Evidence, finding: Finding) -> Finding:
    """Take points off causes of slowness if no metric got slower."""
    slower = evidence.moved or evidence.coarse
    # `serial_tools`: turns are few of the requests, so their loss moves no metric of all requests.
    exempt = finding.id in BY_OUTCOME | OF_TRAFFIC or finding.id == "serial_tools"
    if exempt or finding.status not in NAMED or slower:
        return finding
    return with_points(finding, [Point("no metric moved beyond its usual variation", _UNMOVED)])


def _lower_if_outside(evidence: Evidence, finding: Finding) -> Finding:
    """Take points off causes that cannot affect the metric in question."""
    if finding.status not in NAMED or not _is_outside(evidence, finding):
        return finding
    text = f"it does not make {(evidence.metric or '')[:-2]} longer"
    # Output lengths vary on any day: if the metric did get longer, what made it so ranks first.
    # The same holds if no metric moved that the cause can affect.
    affects = {name for name, outside in OUTSIDE.items() if finding.id not in outside}
    elsewhere = finding.id == "longer_outputs" or not affects & {*evidence.moved}
    if elsewhere and evidence.metric in evidence.moved:
        longer = finding.id == "longer_outputs" and "e2e_s" in evidence.moved
        if longer and not _why_usual(evidence, finding):  # beside what made the metric longer
            return at_most_possible(finding, text, points=_OUTSIDE_POINTS)
        below = POSSIBLE - 1 - finding.score
        return with_points(finding, [Point(text, min(_OUTSIDE_POINTS, below))])
    return with_points(finding, [Point(text, _OUTSIDE_POINTS)])


def _is_outside(evidence: Evidence, finding: Finding) -> bool:
    """Return whether a cause cannot affect the metric in question."""
    if finding.id not in OUTSIDE.get(evidence.metric or "", ()):
        return False
    if finding.id == "longer_outputs":  # they keep their slots: others queue, or batches grow
        waits = evidence.metric == "ttft_s"
        return not (evidence.up("queue_s") if waits else evidence.sees_engines)
    # New requests wait for the running step, which takes longer in a larger batch.
    return finding.id != "batch_size" or not load.steps_longer(evidence)


def _lower_if_small(evidence: Evidence, finding: Finding) -> Finding:
    """Make a cause at most possible if its wait is a small part of the metric's growth."""
    wait = _WAITS.get(finding.id)
    part = None if wait is None else evidence.part_of_metric(wait)
    if finding.id == "queue_saturation":  # engines count its wait in their own TTFT
        part = evidence.engine_share()
    elif finding.id == "prefix_cache_collapse" and evidence.metric == "ttft_s":
        queue, prefill = map(evidence.part_of_metric, ("queue_s", "prefill_s"))
        part = None if queue is None or prefill is None else queue + prefill
    if finding.status not in NAMED or part is None or part >= _SMALL_PART:
        return finding
    if wait == "network_s" and (
        finding.status == "possible" or evidence.felt_alone(wait)
        or part + (evidence.part_of_metric("first_chunk_s") or 0.0) >= changes.HALF  # the way back
    ):  # fmt: skip
        return finding  # neither busy engines nor busy clients make the network path longer
    text = f"it is only {say.percent(max(part, 0))} of what the metric grew by"
    if wait == "gateway_s" and not evidence.up(wait):  # then another gateway may report nothing
        text = "the gateway that reports its time is as fast as before"
    return at_most_possible(finding, text, points=_EFFECT_POINTS)


def _lower_if_usual(evidence: Evidence, finding: Finding) -> Finding:
    """Make a cause at most possible if stretches of the time before show as much of it.

    On any day prompts get longer for a while, bursts of requests wait, and clients leave then.
    Means of a few scrapes (`of_means`) cannot be cut into stretches.
    """
    if finding.status not in SURE or evidence.of_means:
        return finding
    text = _why_usual(evidence, finding)
    return at_most_possible(finding, text, points=_EFFECT_POINTS) if text else finding


def _why_usual(evidence: Evidence, finding: Finding) -> str:
    """Say why a cause's evidence is not unusual for the time before; empty = it is unusual."""
    cause = finding.id
    field = _MADE_OF.get(cause)
    shift = None if field is None else evidence.row(field)
    # A search takes the stretch with the longest requests of many.
    bar = changes.SURE if evidence.searched and cause in OF_THE_WORK else changes.STANDS_OUT
    if (
        shift is not None
        and shift.stretch_z < bar
        and not (cause in _WAITS and shift.stretch_median_z >= bar)
        and not (cause == "head_of_line" and workload.far_more_long(evidence))
    ):
        return f"stretches of the time before differ as much in `{field}`"
    if cause in BY_LOAD and evidence.is_burst:
        return "bursts of requests as large came before"
    if cause in OF_TRAFFIC:
        of_all, of_group = evidence.arrivals(), evidence.arrivals(**finding.group)
        far = [one for one in (of_all, of_group)
               if abs(one.z) >= _FAR and abs(one.stretches_z) >= changes.STANDS_OUT]  # fmt: skip
        if not far and not of_group.stopped(_STOPPED):
            return "requests come in bursts: their number varies as much by itself"
        if far and all(arrivals.is_gradual for arrivals in far):
            return "their number changes little by little, as over a day"
    if cause == "client_give_ups" and evidence.moved and clients.could_be_slowness(evidence):
        return "requests take longer, for which clients may leave"
    return ""


def _lower_effect(evidence: Evidence, finding: Finding, others: Mapping[str, Finding]) -> Finding:
    """Make a cause at most possible if another, well supported cause would produce it."""
    if finding.status not in NAMED:
        return finding
    names = may_be_behind(finding.id, slow=[clients.could_be_slowness(evidence)])
    if finding.id in BY_LOAD and evidence.more_load and not evidence.length_outgrew_rate:
        # More load needs no other cause. Exceptions: a full queue and a full batch are one cause;
        # as many requests are more for each engine if one is gone, or if no cache serves them.
        lost = ("engine_down",) if not evidence.more_requests else ()
        kept = (*BY_LOAD, "replica_imbalance", "response_cache_misses", "traffic_surge", *lost)
        names = [name for name in names if name in kept]
    behind = [
        others[name]
        for name in names
        if others[name].status in SURE
        and not _came_first(evidence, finding, name)
        and not _is_longer_itself(evidence, finding, others[name])
        and not _is_stronger(finding, others[name])
    ]
    if not behind:
        return finding
    cause = max(behind, key=lambda one: one.score)
    text = f"would follow from {cause.id} by itself"
    return at_most_possible(finding, text, points=_EFFECT_POINTS)


def _is_longer_itself(evidence: Evidence, finding: Finding, other: Finding) -> bool:
    """Return whether requests of each kind got longer, not only that a surge added one kind."""
    if other.id != "traffic_surge" or finding.id not in OF_THE_WORK:
        return False
    longer = evidence.at_same_mix(_MADE_OF[finding.id])
    return not other.group or longer is None or longer.rose(0.0, 0.1)


def _is_stronger(finding: Finding, other: Finding) -> bool:
    """Return whether each can produce the other, and this one is better supported.

    A full cache always evicts prefixes: between those two causes, order decides, not support.
    """
    if {finding.id, other.id} == {"kv_exhaustion", "prefix_cache_collapse"}:
        return False
    return finding.id in may_be_behind(other.id) and finding.score > other.score


def _came_first(evidence: Evidence, finding: Finding, other: str) -> bool:
    """Return whether a possible effect began before its supposed cause.

    A full cache evicts prefixes, and prefixes that are no longer shared fill the cache.
    """
    if (other in OF_THE_WORK or finding.id == "kv_exhaustion") and cache_shrank(evidence):
        return True
    pressure = ("kv_exhaustion", "queue_saturation")
    if finding.id == "prefix_cache_collapse" and other in pressure:
        return cache_fell_first(evidence) is True and not cache_shrank(evidence)
    if finding.id in pressure and other == "prefix_cache_collapse":
        return cache_fell_first(evidence) is not True
    return False


def _lower_if_explained(
    evidence: Evidence, one: Finding, first: Finding, effects: Container[str]
) -> Finding:
    """Take points off a cause if the best supported one, which is likely, explains the change.

    How many was measured on worlds that rules were written on: a cause that is not the first needs
    that much more to be right as often (docs/reference/triage-accuracy.md).
    """
    if (
        one.id != first.id
        and {one.status, first.status} <= NAMED
        and first.status in SURE
        and one.id not in effects  # lowered already
        and _same_change(first, one)
        and _is_outside(evidence, first) == _is_outside(evidence, one)
        and not _waits_elsewhere(evidence, first, one)
    ):
        text = f"{first.id} explains the change already"
        return with_points(one, [Point(text, _EXPLAINED_POINTS)])
    return one


def _waits_elsewhere(evidence: Evidence, first: Finding, other: Finding) -> bool:
    """Return whether a cause has a long wait of its own that the first one cannot produce."""
    wait = _WAITS.get(other.id)
    if wait is None or first.id in _WAITS or first.id in may_be_behind(other.id):
        return False
    return evidence.felt_alone(wait)


def _same_change(first: Finding, other: Finding) -> bool:
    """Return whether two causes are about one change: of outcomes, request numbers or times."""
    # Provider errors do not explain waits for an attempt that works, nor does how long requests
    # take explain that they are not streamed.
    kinds = (BY_OUTCOME, OF_TRAFFIC, ("provider_errors",), ("streaming_off",))
    return all((first.id in kind) == (other.id in kind) for kind in kinds)
