"""Find past reports that are similar to a new one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from llmtrace.triage.oncall.alert import Alert
from llmtrace.triage.oncall.report_store import Reports
from llmtrace.triage.over_time import Similar
from llmtrace.triage.result import NAMED, Result

_READ: Final = 200  # of the latest reports
_MOST: Final = 3


def similar_reports(
    reports: Reports, result: Result, alert: Alert, name: str
) -> tuple[Similar, ...]:
    """Return the most similar past reports; of equally similar ones, the latest first.

    They have the same first cause or, if none is named, the same alert and metric. Each of the
    same metric, the same alert, and an affected kind of requests in common adds to the similarity.

    Args:
        reports: the stored reports.
        result: the new one.
        alert: its alert.
        name: its own name, to be left out.
    """
    cause = next((one.id for one in result.causes if one.status in NAMED), None)
    affected = {pair for one in result.cohorts for pair in one.attributes.items()}
    found: list[tuple[int, Similar]] = []
    for past, flat in _past(reports, name):
        same = [past.metric == result.metric, past.alert == alert.name]
        if past.cause != cause or (cause is None and not all(same)):
            continue
        kinds = {pair for one in flat.get("cohorts", ()) for pair in one["attributes"].items()}
        found.append((sum(same) + bool(affected & kinds), past))
    found.sort(key=lambda one: (-one[0], -one[1].started))
    return tuple(past for _, past in found[:_MOST])


def _past(reports: Reports, name: str) -> Iterator[tuple[Similar, dict[str, Any]]]:
    """Yield the latest reports and their results, without reports of other versions."""
    for other in islice((one for one in reports.names() if one != name), _READ):
        try:
            flat = reports.content(other) or {}
            result, alert = flat["result"], flat["alert"]
            named = [one["id"] for one in result["causes"] if one["status"] in NAMED]
            past = Similar(
                report=other,
                alert=alert["name"],
                started=float(alert["started"]),
                verdict=result["verdict"],
                metric=result["metric"],
                cause=named[0] if named else None,
            )
        except (KeyError, TypeError, ValueError):
            continue
        yield past, result
