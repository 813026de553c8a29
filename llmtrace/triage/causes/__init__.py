"""Weigh each cause by the evidence.

One rule a cause, each of its own mechanism; a rule's docstring is its runbook. No rule knows of
another: relations.toml lists which cause may be behind which effect.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from llmtrace.triage.causes import (
    caches,
    clients,
    hosts,
    load,
    network,
    request_numbers,
    response_path,
    workload,
)
from llmtrace.triage.causes.look_alikes import RELATIONS, look_alikes
from llmtrace.triage.causes.scoring import LIKELY, with_points
from llmtrace.triage.evidence import changes
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.inside_engines import cache_fell_first, cache_shrank
from llmtrace.triage.result import NAMED, OF_THE_WORK, OF_TRAFFIC, SURE, Finding, Point

Rule = Callable[[Evidence], Finding]

# In the order ties are shown in: workload before queues, causes before their effects.
RULES: Final[Mapping[str, Rule]] = {
    rule.__name__: rule
    for rule in (
        hosts.engine_down, network.idle_timeout, network.rate_limit_retries,
        network.midstream_errors, response_path.provider_errors, request_numbers.traffic_lost,
        request_numbers.traffic_surge,
        clients.client_cold, clients.client_gate, clients.busy_client, clients.serial_tools,
        clients.slow_renderer, network.proxy_buffering, response_path.response_cache_misses,
        response_path.streaming_off, workload.long_prompts, workload.longer_outputs,
        caches.low_spec_acceptance, caches.prefix_cache_collapse,
        load.kv_exhaustion, hosts.engine_paused, hosts.cold_start, workload.head_of_line,
        caches.lora_slots, caches.disaggregated_kv, caches.kv_transfer, caches.grammar_compilation,
        load.replica_imbalance, hosts.frontend_cpu, hosts.gpu_throttle, network.network_path,
        network.gateway_overhead, load.queue_saturation, load.batch_size, clients.client_give_ups,
    )
}  # fmt: skip

# Seen in how requests end, whatever becomes of their latency.
BY_OUTCOME: Final = frozenset(
    {
        "engine_down", "idle_timeout", "midstream_errors", "client_give_ups", "rate_limit_retries",
        "provider_errors",
    }
)  # fmt: skip
_IF_SLOW: Final = {True: RELATIONS["behind_if_slow"], False: RELATIONS["behind_if_not_slow"]}
OUTSIDE: Final[Mapping[str, Sequence[str]]] = RELATIONS["outside"]
WITHIN_ENGINES: Final = frozenset(RELATIONS["engines"]["within"])
_OUTSIDE: Final = -4
_MAKES_NO: Final = "it makes no"
_WAITS: Final[Mapping[str, str]] = RELATIONS["waits"]
_SMALL_PART: Final = 0.25
BY_LOAD: Final = frozenset({"queue_saturation", "batch_size"})
_IS_BEHIND: Final = -6
_NOTHING_MOVED: Final = -10
_EXPLAINED: Final = -6
_MADE_OF: Final[Mapping[str, str]] = {**_WAITS, **RELATIONS["made_of"]}
_NONE: Final = 0.02  # of requests that came all along: no burst leaves so few
_FAR: Final = 4.0  # standard errors, by which many more requests come, or fewer
_RANK: Final = {"confirmed": 0, "likely": 1, "possible": 2, "unknown": 3, "ruled_out": 4}


def may_be_behind(effect: str, *, slow: Iterable[bool] = (True, False)) -> list[str]:
    """Return the causes that one may follow from; `slow` = whether slowness drove clients away."""
    tables = (RELATIONS["behind"], *(_IF_SLOW[one] for one in slow))
    listed = {name for one in tables for name in one.get(effect, ())}
    return [name for name in RULES if name != effect and ("*" in listed or name in listed)]


def causes(evidence: Evidence, can_show: Container[str] = RULES) -> list[Finding]:
    """Return what the evidence says of every cause, the best supported first.

    Args:
        evidence: of both windows.
        can_show: the causes that evidence of this kind can show; the others are left open, and
            explain nothing of what these are about.
    """
    weighed = {name: rule(evidence) for name, rule in RULES.items()}
    weighed = {name: one if name in can_show else replace(one, status="unknown")
               for name, one in weighed.items()}  # fmt: skip
    for step in (_as_reported, _if_moved, _of_the_metric, _of_its_wait):
        weighed = {name: step(evidence, one) for name, one in weighed.items()}
    beyond = {name: _beyond_unrest(evidence, one) for name, one in weighed.items()}
    ranked = _after_the_first(_ranked(_behind(evidence, one, beyond) for one in weighed.values()))
    first, *others = _ranked(_beyond_unrest(evidence, one) for one in ranked)
    if first.status in NAMED:
        first = replace(first, or_else=look_alikes(first, weighed))
    return [first, *others]


def _ranked(found: Iterable[Finding]) -> list[Finding]:
    order = list(RULES)
    return sorted(found, key=lambda one: (_RANK[one.status], -one.score, order.index(one.id)))


def _after_the_first(ranked: Sequence[Finding]) -> list[Finding]:
    """Take points off all but the best supported cause: what it explains is explained.

    What causes make that cannot affect the metric, it does not explain.
    Measured on worlds that rules were written on (docs/reference/triage-accuracy.md): a cause that
    is not the first needs so much more to be as often true.
    """
    first = ranked[0]
    return [
        with_points(one, [Point(f"{first.id} explains the change already", _EXPLAINED)])
        if one is not first
        and one.status in NAMED
        and _same_change(first, one)
        and _is_outside(first) == _is_outside(one)
        else one
        for one in ranked
    ]


def _is_outside(one: Finding) -> bool:
    return any(point.text.startswith(_MAKES_NO) for point in one.against)


def _same_change(first: Finding, other: Finding) -> bool:
    """Return whether two causes are about the same change: of outcomes, of numbers, of times."""
    followed = any("would follow from" in point.text for point in other.against)
    # That some are not served does not explain why others wait for an attempt to work.
    # Nor is how they are answered explained by how long it takes.
    kinds = (BY_OUTCOME, OF_TRAFFIC, ("provider_errors",), ("streaming_off",))
    return not followed and all((first.id in kind) == (other.id in kind) for kind in kinds)


def _as_reported(evidence: Evidence, finding: Finding) -> Finding:
    """Leave open a cause that only a field which no row has would rule out, or could show."""
    if finding.status in NAMED and finding.id in WITHIN_ENGINES and not evidence.sees_engines:
        return replace(
            finding, status="unknown", missing=(*finding.missing, "signals of the engine")
        )
    unknown = "" if evidence.instances else "replica"
    if finding.id in BY_OUTCOME:
        unknown = "" if (evidence.after.rows.words["outcome"].codes >= 0).any() else "outcome"
    elif finding.id != "replica_imbalance":
        return finding
    if finding.status != "ruled_out" or not unknown or not len(evidence.after):
        return finding
    missing = (*finding.missing, f"the rows' `{unknown}`")
    return replace(finding, status="unknown", against=(), missing=missing)


def _if_moved(evidence: Evidence, finding: Finding) -> Finding:
    """Take points off causes of slowness where nothing got slower."""
    seen = evidence.moved or evidence.coarse
    # Turns are few of the requests: what they lose moves no metric of all.
    felt = finding.id in BY_OUTCOME | OF_TRAFFIC or finding.id == "serial_tools"
    if felt or finding.status not in NAMED or seen:
        return finding
    return with_points(finding, [Point("no metric moved beyond its usual unrest", _NOTHING_MOVED)])


def _of_the_metric(evidence: Evidence, finding: Finding) -> Finding:
    """Take points off causes that cannot affect the metric in question."""
    outside = OUTSIDE.get(evidence.metric or "", ())
    # Longer responses keep their slots, for which others queue.
    queues = finding.id == "longer_outputs" and evidence.up("queue_s")
    # What waits for the running step waits for a larger batch.
    queues = queues or (finding.id == "batch_size" and load.steps_longer(evidence))
    if finding.status not in NAMED or finding.id not in outside or queues:
        return finding
    # They vary on any day: what makes it longer, if it is longer, goes first.
    lower = finding.id == "longer_outputs" and evidence.metric in evidence.moved
    points = min(_OUTSIDE, LIKELY - 1 - finding.score) if lower else _OUTSIDE
    return with_points(
        finding, [Point(f"{_MAKES_NO} {(evidence.metric or '')[:-2]} longer", points)]
    )


def _of_its_wait(evidence: Evidence, finding: Finding) -> Finding:
    """Leave a cause at most possible if its wait is a small part of what the metric grew by."""
    wait = _WAITS.get(finding.id)
    part = None if wait is None else evidence.part_of_metric(wait)
    if finding.status not in NAMED or part is None or part >= _SMALL_PART:
        return finding
    if wait == "network_s" and (
        finding.status == "possible" or evidence.felt_alone(wait)
        or part + (evidence.part_of_metric("first_chunk_s") or 0.0) >= changes.HALF  # the way back
    ):  # fmt: skip
        return finding  # nothing that keeps engines or clients busy makes the way longer
    text = f"it is only {say.percent(max(part, 0))} of what the metric grew by"
    return with_points(finding, [Point(text, min(_IS_BEHIND, LIKELY - 1 - finding.score))])


def _beyond_unrest(evidence: Evidence, finding: Finding) -> Finding:
    """Leave a cause at most possible if what it is made of is as high in stretches before.

    On any day prompts are longer for a while, bursts of requests wait, and clients leave then.
    Means of a few scrapes cannot be cut into stretches.
    """
    sure = finding.status in SURE and not evidence.of_means
    if not sure or not (text := _is_usual(evidence, finding)):
        return finding
    return with_points(finding, [Point(text, min(_IS_BEHIND, LIKELY - 1 - finding.score))])


def _is_usual(evidence: Evidence, finding: Finding) -> str:
    """Say what of a cause is no rarer than stretches of the time before; empty = nothing."""
    cause = finding.id
    of = _MADE_OF.get(cause)
    moved = None if of is None else evidence.row(of)
    # The stretch that a search takes has the longest requests of many.
    bar = changes.SURE if evidence.searched and cause in OF_THE_WORK else changes.STANDS_OUT
    if (
        moved is not None
        and moved.stretch_z < bar
        and not (cause in _WAITS and moved.middle_z >= bar)
        and not (cause == "head_of_line" and workload.far_more_long(evidence))
    ):
        return f"stretches of the time before differ as much in `{of}`"
    if cause in BY_LOAD and evidence.is_burst:
        return "bursts of requests as large came before"
    if cause in OF_TRAFFIC:
        both = (evidence.arrivals(), evidence.arrivals(**finding.group))
        far = [one for one in both if abs(one.z) >= _FAR
               and abs(one.stretches_z) >= changes.STANDS_OUT]  # fmt: skip
        if not far and not both[1].stopped(_NONE):
            return "requests come in bursts: their number varies as much by itself"
        if far and all(one.change_slowly for one in far):
            return "their number changes little by little, as over a day"
    if cause == "client_give_ups" and evidence.moved and clients.could_be_slowness(evidence):
        return "requests take longer, for which clients may leave"
    return ""


def _behind(evidence: Evidence, finding: Finding, found: Mapping[str, Finding]) -> Finding:
    """Take points off a cause that would follow from another, well supported one."""
    if finding.status not in NAMED:
        return finding
    names = may_be_behind(finding.id, slow=[clients.could_be_slowness(evidence)])
    if finding.id in BY_LOAD and evidence.more_load and not evidence.rather_longer:
        # There is more to do: that needs no other cause. But a full batch is one cause, not two,
        # and as many requests are more for each engine where one of them is gone, or where no
        # cache serves them.
        fewer = ("engine_down",) if not evidence.more_requests else ()
        other = ("replica_imbalance", "response_cache_misses", "traffic_surge", *fewer)
        names = [name for name in names if name in (*BY_LOAD, *other)]
    behind = [
        found[name]
        for name in names
        if found[name].status in SURE
        and not _came_first(evidence, finding, name)
        and not _is_longer_itself(evidence, finding, found[name])
        and not _rather_behind_it(finding, found[name])
    ]
    if not behind:
        return finding
    first = max(behind, key=lambda one: one.score)
    points = min(_IS_BEHIND, LIKELY - 1 - finding.score)  # an effect is at most possible
    return with_points(finding, [Point(f"would follow from {first.id} by itself", points)])


def _is_longer_itself(evidence: Evidence, finding: Finding, other: Finding) -> bool:
    """Return whether requests of each kind got longer, and not only more of one came on top."""
    if other.id != "traffic_surge" or finding.id not in OF_THE_WORK:
        return False
    longer = evidence.beyond_kind(_MADE_OF[finding.id])
    return not other.group or longer is None or longer.rose(0.0, 0.1)


def _rather_behind_it(finding: Finding, other: Finding) -> bool:
    """Return whether each could follow from the other, and this one is better supported.

    A full cache always evicts prefixes: of those two, order decides, and not support.
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
    if finding.id == "kv_exhaustion" and other == "prefix_cache_collapse":
        return cache_fell_first(evidence) is not True or bool(cache_shrank(evidence))
    if finding.id == "queue_saturation" and other == "prefix_cache_collapse":
        return cache_fell_first(evidence) is not True
    return False
