"""Decide which causes are named, and how surely: the rules' findings within the verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns
from llmtrace.dataset.rows_in_order import evenly_weighted
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
# One of several replicas stands out beyond chance on any day.
OF_SEVERAL: Final = "replica_imbalance"
_WORSE: Final = frozenset({"regression", "mixed", "workload", "drift"})
_PROOF: Final = WEIGHTS["proof"][0]
# Verdicts that lost traffic can cause: the other requests are faster, or of another mix.
_IF_TRAFFIC_LOST: Final = frozenset({"improvement", "workload", "new_workload"})
# These vary on any day: more requests for a while, or longer ones that others wait for.
_VARIES: Final = OF_THE_WORK | OF_TRAFFIC | {"head_of_line", "queue_saturation"}
_OF_A_BURST: Final = OF_TRAFFIC | BY_LOAD | {"client_gate", "kv_exhaustion", "replica_imbalance"}
# These show in numbers of requests, which need fewer requests than a p95 does.
COUNTED: Final = BY_OUTCOME | OF_TRAFFIC | {"streaming_off", "response_cache_misses"}


def _missing_to_name(verdict: Verdict, *, blind: bool) -> str | None:
    """Return the data without which the verdict lets no cause be named; `None` = all there."""
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
    """Apply the rules, and limit their findings to what the verdict allows.

    Without enough data, or if nothing moved, no cause is named, except one with proof (unless
    there are too `few` requests for a p95), and traffic that changed between given windows. If
    causes should be named and none is, those almost beyond chance are possible. `risen` metrics
    rose beyond chance, so no rule may find that they did not. `blind`: a search found nothing, so
    the windows are arbitrary and rule no cause out. `dated`: the caller gave a time.
    """
    start = case.rows.start
    evidence = replace(
        gather(evenly_weighted(rows), case.signals, case.facts, *windows),
        metric=f"{about}_s", contributions=_seconds_by_stage(divided),
        ongoing=len(start) > 0 and float(start.max()) / 1e9 < windows[1].end,
        coarse=verdict == "not_enough_data", searched=searched,
        risen=frozenset(f"{one}_s" for one in risen),
    )  # fmt: skip
    # Without requests, and without signals although the case has some, recording may have stopped.
    sampled = case.signals.t
    inside = (sampled >= windows[1].start) & (sampled < windows[1].end)
    recorded = len(evidence.after) > 0 or inside.any() or not len(sampled)
    counted = not blind and bool(recorded) and windows[1].seconds >= MIN_TRAFFIC_S
    found = _limited_by_verdict(
        causes(evidence), verdict, blind=blind, few=few, counted=counted, given=dated
    )
    found = [_limited_by_search(one) for one in found] if searched else found
    if verdict == "traffic":  # nothing is slower, as it is in a queue or a larger batch
        found = [replace(one, or_else=()) if one.id == "traffic_surge" else one for one in found]
    if verdict == "new_workload":
        found = [
            at_most_possible(one, "much of it is new, and has nothing to be compared with")
            if one.status == "likely" and one.id not in OF_THE_WORK | OF_TRAFFIC else one
            for one in found
        ]  # fmt: skip
    something = verdict in _WORSE or (verdict == "not_enough_data" and dated)
    if something and not any(one.status in NAMED for one in found):
        found = _almost_certain(evidence, found)
    return tuple(with_record(one, searched=searched) for one in found)


def _seconds_by_stage(divided: Mapping[Metric, Divided]) -> dict[str, float]:
    """Return each stage's part of the change of TTFT or TPOT, `unattributed` included."""
    by_metric = ((divided["ttft"].found, TTFT_STAGES), (divided["tpot"].found, PACE_STAGES))
    return {
        stage: float(found.seconds[NAMES.index(stage)])
        for found, stages in by_metric if found is not None
        for stage in stages
    }  # fmt: skip


def _almost_certain(evidence: Evidence, found: Sequence[Finding]) -> Sequence[Finding]:
    """Return as possible the causes that are beyond a lower bar of chance, then all others.

    For causes of one replica or one kind of request, that bar is exceeded on any day.
    """
    lower = causes(replace(evidence, sure=RATHER_SURE))
    missing = ("more requests: its evidence may still be chance",)
    possible = [replace(one, status="possible", missing=(*one.missing, *missing))
                for one in lower if one.status in NAMED and one.score >= _FITS
                and not one.group and one.id != OF_SEVERAL]  # fmt: skip
    ids = {one.id for one in possible}
    return [*possible, *(one for one in found if one.id not in ids)]


def of_a_burst(causes: Sequence[Finding]) -> tuple[Finding, ...]:
    """Make causes of load at most possible, because the load was high only for a while.

    Load comes and goes on any day, and a search takes the time when it was highest.
    """
    return tuple(
        at_most_possible(one, "it was over soon: load that varies does that on any day")
        if one.id in _OF_A_BURST else one for one in causes
    )  # fmt: skip


def of_several_windows(causes: Sequence[Finding]) -> tuple[Finding, ...]:
    """Make causes at most possible, and none ruled out, if several windows were compared.

    With several, one may look like this by chance, and a cause may belong to another time.
    """
    missing = "more requests: of several windows compared, one may look like this by chance"
    status: dict[Status, Status] = {**dict.fromkeys(NAMED, "possible"), "ruled_out": "unknown"}
    return tuple(
        replace(one, status=status[one.status], missing=(*one.missing, missing))
        if one.status in status else one for one in causes
    )  # fmt: skip


def _limited_by_search(found: Finding) -> Finding:
    """Make a likely change of traffic at most possible if the window was searched for.

    Numbers of requests vary, and the search takes the time with most or fewest. A caller who gives
    a time has a reason to.
    """
    if found.status != "likely" or found.id not in OF_TRAFFIC:
        return found
    text = "numbers of requests vary, and the search took the time when most or fewest came"
    return at_most_possible(found, text)


def _limited_by_verdict(
    found: Sequence[Finding],
    verdict: Verdict,
    *,
    blind: bool,
    few: bool,
    counted: bool,
    given: bool,
) -> Sequence[Finding]:
    """Lower the findings that the verdict does not allow to be named."""
    missing = _missing_to_name(verdict, blind=blind)
    if missing is None:
        return found
    blind = blind and verdict in result.NOTHING_FOUND

    def stands(one: Finding) -> bool:
        """Return whether the finding needs no moved metric."""
        if one.id in OF_TRAFFIC and (verdict == "traffic" or counted):
            return True  # request numbers are exact, however few the requests
        return one.status not in NAMED or has_proof(one, few=few)

    traffic_changed = any(
        one.id in OF_TRAFFIC and one.status in NAMED and stands(one) for one in found
    )

    def limited(one: Finding) -> Finding:
        """Lower one finding: in given windows a fitting cause stays possible, else unknown."""
        if blind and one.status == "ruled_out":
            return replace(one, status="unknown", missing=(*one.missing, missing), or_else=())
        if stands(one):
            return one
        fits = given or (one.status in SURE and one.id not in _VARIES | BY_LOAD)
        if fits and verdict == "not_enough_data" and not traffic_changed:
            return replace(one, status="possible", missing=(*one.missing, missing))
        return replace(one, status="unknown", missing=(*one.missing, missing), or_else=())

    return [limited(one) for one in found]


def with_proof(
    judged: Judged, found: Sequence[Finding], change: result.Change, *, few: bool, beside: bool
) -> Judged:
    """Adjust a verdict to the causes found: proof of a cause means that something did happen.

    Requests share engines, so all of them wait for longer ones. If longer requests are all that is
    known to be behind a change, the workload is what changed, although the same work takes longer.

    Args:
        judged: the verdict by the windows.
        found: the rules' findings, the best supported first.
        change: of the metric in question.
        beside: whether more requests fail or wait outside engines; longer requests do not do that.
        few: whether there are too few requests for a p95; then seeming proof may be chance.
    """
    traffic = next((one for one in found if one.id in OF_TRAFFIC and one.status in NAMED), None)
    if judged.verdict == "traffic" and traffic is not None:
        where = _sentences(one for one in traffic.evidence if one.points >= _PROOF)
        return replace(judged, reason=f"{judged.reason} {where}".rstrip())
    lost = traffic is not None and (traffic.id, traffic.status) == ("traffic_lost", "confirmed")
    if traffic is not None and lost and judged.verdict in _IF_TRAFFIC_LOST:
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
    """Return the evidence with the most points."""
    return max(found.evidence, key=lambda point: point.points)


def _sentences(points: Iterable[Point]) -> str:
    return " ".join(f"{one.text[:1].upper()}{one.text[1:]}." for one in points)


def has_proof(found: Finding, *, few: bool) -> bool:
    """Return whether a confirmed cause shows by itself that something is wrong.

    Workload and traffic vary on any day. With too few requests for a p95, only causes in request
    numbers count.
    """
    varies = found.id in _VARIES or (few and found.id not in COUNTED)
    return found.status == "confirmed" and not varies
