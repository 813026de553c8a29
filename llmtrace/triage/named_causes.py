"""Apply the rules to what the windows show, as far as the verdict lets causes be named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns
from llmtrace.triage.attribution.attribute import NAMES
from llmtrace.triage.attribution.components import PARTS
from llmtrace.triage.attribution.divide_change import Divided
from llmtrace.triage.causes import causes
from llmtrace.triage.evidence.evidence import gather
from llmtrace.triage.result import NAMED, Finding, Metric, Verdict


def lacks_what(verdict: Verdict, *, blind: bool) -> str | None:
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
    lacks: str | None,
    blind: bool,
) -> tuple[Finding, ...]:
    """Apply the rules; they see the first token's stages and the pace's, each of its own metric.

    Where too little is known for a verdict, or nothing moved, no cause is named. Where the search
    found nothing, the windows are any, and what they show rules no cause out.
    """
    seconds: dict[str, float] = {}
    for one, stages in ((divided["ttft"], PARTS[:5]), (divided["tpot"], PARTS[5:7])):
        if one.found is not None:
            for stage in stages:
                seconds[stage] = float(one.found.seconds[NAMES.index(stage)])
    evidence = gather(
        rows, case.signals, case.facts, *windows, metric=about, contributions=seconds
    )
    if lacks is None:
        return tuple(causes(evidence))
    return tuple(
        replace(one, status="unknown", missing=(*one.missing, lacks))
        if one.status in NAMED or blind
        else one
        for one in causes(evidence)
    )
