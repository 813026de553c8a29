"""Apply the rules to what the windows show, as far as the verdict lets causes be named."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns
from llmtrace.triage import result
from llmtrace.triage.attribution.attribute import NAMES
from llmtrace.triage.attribution.divide_change import Divided
from llmtrace.triage.causes import BY_LOAD, BY_OUTCOME, causes
from llmtrace.triage.causes.scoring import WEIGHTS, at_most_possible
from llmtrace.triage.causes.track_record import with_record
from llmtrace.triage.evidence.changes import RATHER_SURE
from llmtrace.triage.evidence.evidence import PACE_STAGES, TTFT_STAGES, Evidence, gather
from llmtrace.triage.result import (
    NAMED,
    OF_THE_WORK,
    OF_TRAFFIC,
    SURE,
    Finding,
    Metric,
    Point,
    Status,
    Verdict,
)
from llmtrace.triage.verdict import MIN_TRAFFIC_S, Judged, of_the_work

_FITS: Final = WEIGHTS["required"][0]
OF_SEVERAL: Final = "replica_imbalance"  # one of several is beyond chance on any day
_WORSE: Final = frozenset({"regression", "mixed", "workload", "drift"})
_PROOF: Final = WEIGHTS["proof"][0]
# What requests that are lost make of the others: they are faster, or of another mix.
_BY_WHO_IS_LEFT: Final = frozenset({"improvement", "workload", "new_workload"})
# On any day there are more requests for a while, or longer ones that others wait for.
_VARIES: Final = OF_THE_WORK | OF_TRAFFIC | {"head_of_line", "queue_saturation"}
_OF_A_BURST: Final = OF_TRAFFIC | BY_LOAD | {"client_gate", "replica_imbalance"}
COUNTED: Final = BY_OUTCOME | OF_TRAFFIC | {"streaming_off", "response_cache_misses"}


def _lacks_what(verdict: Verdict, *, blind: bool) -> str | None:
    """Return what is missing for causes to be named; `None` = nothing."""
    if verdict == "not_enough_data":
        return "more requests"
    if verdict in ("no_change", "traffic"):
        return "an incident that stands out" if blind else "a metric that moved"
    return None


def named_causes(
    rows: Columns,
    case: Case,
    windows: tuple[Window, Window],
    *,
    about: Metric,
    divided: Mapping[Metric, Divided],
    risen: Collection[Metric],
    verdict: Verdict,
    searched: bool,
    dated: bool,
    blind: bool,
    few: bool,
) -> tuple[Finding, ...]:
    """Apply the rules; they see the first token's stages and the pace's, each of its own metric.

    Where too little is known for a verdict, or nothing moved, no cause is named. Where the search
    found nothing, the windows are any, and what they show rules no cause out. What rose beyond
    chance (`risen`) did so for the rules as well. A cause with proof is named all the same, unless
    there are too few requests for a p95 (`few`), and so is traffic that changed between windows
    that were given. Where none is named, what is not quite beyond chance is possible.
    """
    seconds: dict[str, float] = {}
    # What is not attributed counts too: without it a small stage would be all that is known.
    for one, stages in ((divided["ttft"], TTFT_STAGES), (divided["tpot"], PACE_STAGES)):
        if one.found is not None:
            for stage in stages:
                seconds[stage] = float(one.found.seconds[NAMES.index(stage)])
    start = case.rows.start
    evidence = replace(
        gather(rows, case.signals, case.facts, *windows),
        metric=f"{about}_s", contributions=seconds,
        ongoing=len(start) > 0 and float(start.max()) / 1e9 < windows[1].end,
        coarse=verdict == "not_enough_data", searched=searched,
        risen=frozenset(f"{one}_s" for one in risen),
    )  # fmt: skip
    # Where there are signals, but none of this time, it may be the recording that stopped.
    sampled = case.signals.t
    inside = (sampled >= windows[1].start) & (sampled < windows[1].end)
    recorded = len(evidence.after) > 0 or inside.any() or not len(sampled)
    counted = not blind and bool(recorded) and windows[1].seconds >= MIN_TRAFFIC_S
    found = _as_far_as_known(
        causes(evidence), verdict, blind=blind, few=few, counted=counted, given=dated
    )
    found = [_of_a_search(one) for one in found] if searched else found
    if verdict == "new_workload":
        found = [
            at_most_possible(one, "much of it is new, and has nothing to be compared with")
            if one.status == "likely" and one.id not in OF_THE_WORK | OF_TRAFFIC else one
            for one in found
        ]  # fmt: skip
    something = verdict in _WORSE or (verdict == "not_enough_data" and dated)
    if something and not any(one.status in NAMED for one in found):
        found = _leaning(evidence, found)
    return tuple(with_record(one, searched=searched) for one in found)


def _leaning(evidence: Evidence, found: Sequence[Finding]) -> Sequence[Finding]:
    """Return what is possible where no cause is named: what a lower bar of chance speaks for.

    One of several replicas, or kinds of request, is beyond that any day: such causes stay out.
    """
    lower = causes(replace(evidence, sure=RATHER_SURE))
    lacks = ("more requests: its evidence may still be chance",)
    possible = [replace(one, status="possible", missing=(*one.missing, *lacks))
                for one in lower if one.status in NAMED and one.score >= _FITS
                and not one.group and one.id != OF_SEVERAL]  # fmt: skip
    ids = {one.id for one in possible}
    return [*possible, *(one for one in found if one.id not in ids)]


def of_a_burst(causes: Sequence[Finding]) -> tuple[Finding, ...]:
    """Leave what more requests made for a while, and no longer make, at most possible.

    They come and go on any day, and a search takes the time at which most came.
    """
    return tuple(
        at_most_possible(one, "it was over soon: load that varies does that on any day")
        if one.id in _OF_A_BURST else one for one in causes
    )  # fmt: skip


def of_several_windows(causes: Sequence[Finding]) -> tuple[Finding, ...]:
    """Leave causes at most possible where several windows were weighed and none is explained.

    Nor do they rule a cause out: it may be of another time.
    """
    lacks = "more requests: of several windows compared, one may look like this by chance"
    status: dict[Status, Status] = {"confirmed": "possible", "likely": "possible",
                                    "ruled_out": "unknown"}  # fmt: skip
    return tuple(
        replace(one, status=status[one.status], missing=(*one.missing, lacks))
        if one.status in status else one for one in causes
    )  # fmt: skip


def _of_a_search(found: Finding) -> Finding:
    """Leave traffic at most possible without proof: the search took the time at which it is most.

    It comes and goes on any day, and who asks about a time has a reason to.
    """
    likely = found.status == "likely" and found.id in OF_TRAFFIC
    text = "requests come and go over a day, and this is when most or fewest came"
    return at_most_possible(found, text) if likely else found


def _as_far_as_known(
    found: Sequence[Finding],
    verdict: Verdict,
    *,
    blind: bool,
    few: bool,
    counted: bool,
    given: bool,
) -> Sequence[Finding]:
    lacks = _lacks_what(verdict, blind=blind)
    if lacks is None:
        return found
    blind = blind and verdict in result.NOTHING_FOUND

    def stands(one: Finding) -> bool:
        if one.id in OF_TRAFFIC and (verdict == "traffic" or counted):
            return True  # how many came in windows that were given is counted, however few
        return one.status not in NAMED or has_proof(one, few=few)

    counted_out = any(
        one.id in OF_TRAFFIC and one.status in NAMED and stands(one) for one in found
    )

    def known(one: Finding) -> Finding:
        """Return what is known: of windows that were given, what fits is possible at least."""
        if blind and one.status == "ruled_out":
            return replace(one, status="unknown", missing=(*one.missing, lacks), or_else=())
        if stands(one):
            return one
        fits = given or (one.status in SURE and one.id not in _VARIES | BY_LOAD)
        if fits and verdict == "not_enough_data" and not counted_out:
            return replace(one, status="possible", missing=(*one.missing, lacks))
        return replace(one, status="unknown", missing=(*one.missing, lacks), or_else=())

    return [known(one) for one in found]


def with_proof(
    judged: Judged, found: Sequence[Finding], change: result.Change, *, few: bool, beside: bool
) -> Judged:
    """Return a verdict that goes with the causes: with proof of one, something did happen.

    Requests share engines: all wait for those that got longer. So where that is all that is known
    to be behind a change, the workload is what changed, although the same work takes longer.

    Args:
        judged: by the windows.
        found: what the rules say, the best supported first.
        change: of the metric in question.
        beside: more requests fail, or wait outside engines, which other work does not explain.
        few: the windows have too few requests for a p95: what looks like proof may be chance.
    """
    traffic = next((one for one in found if one.id in OF_TRAFFIC and one.status in NAMED), None)
    if judged.verdict == "traffic" and traffic is not None:
        where = _sentences(one for one in traffic.evidence if one.points >= _PROOF)
        return replace(judged, reason=f"{judged.reason} {where}".rstrip())
    lost = traffic is not None and (traffic.id, traffic.status) == ("traffic_lost", "confirmed")
    if traffic is not None and lost and judged.verdict in _BY_WHO_IS_LEFT:
        return Judged("traffic", _sentences(traffic.evidence))
    sure = [one for one in found if one.status in result.SURE]
    only_work = bool(sure) and {one.id for one in sure} <= OF_THE_WORK
    if judged.verdict in ("regression", "mixed") and only_work and not beside:
        return of_the_work(judged, change, _strongest(sure[0]).text)
    if judged.verdict not in result.NOTHING_FOUND:
        return judged
    cause = next((one for one in found if has_proof(one, few=few)), None)
    if cause is None and traffic is not None:
        return Judged("traffic", f"{_sentences(traffic.evidence)} Latency: {judged.reason}")
    if cause is None:
        return judged
    proof = _strongest(cause).text
    where = "".join(f" on {name}={value}" for name, value in cause.group.items())
    return Judged(
        "regression",
        f"{cause.id}{where} has proof: {proof}. All requests together: {judged.reason}",
    )


def _strongest(found: Finding) -> Point:
    return max(found.evidence, key=lambda point: point.points)


def _sentences(points: Iterable[Point]) -> str:
    return " ".join(f"{one.text[:1].upper()}{one.text[1:]}." for one in points)


def has_proof(found: Finding, *, few: bool) -> bool:
    """Return whether something is wrong, whatever the p95; work and traffic vary on any day.

    How requests end, and are answered, does not need as many of them as a p95 does.
    """
    varies = found.id in _VARIES or (few and found.id not in COUNTED)
    return found.status == "confirmed" and not varies
