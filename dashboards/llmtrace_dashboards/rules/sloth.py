"""Write a budget as Sloth and OpenSLO files, for teams that use these already.

The same promises as the rules of our own. Sloth takes the ladder of windows as a file of its own,
one for each objective; OpenSLO has no alert over two windows, so it gets the objectives alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

from llmtrace_dashboards.rules.burn_rate import RuleSettings, Severity
from llmtrace_dashboards.rules.slo import Slo

_NOT_IN_NAME: Final = re.compile(r"[^a-z0-9]+")
_MAX_NAME: Final = 63
_MARK: Final = 8
_WINDOW: Final = "{{.window}}"


def sloth(slos: Sequence[Slo], settings: RuleSettings) -> dict[str, dict[str, Any]]:
    """Return Sloth's specs and windows, by file name: a pair for each objective."""
    files: dict[str, dict[str, Any]] = {}
    for allowed in sorted({slo.allowed for slo in slos}):
        same = [slo for slo in slos if slo.allowed == allowed]
        label = f"{100 * (1 - allowed):g}"
        files[f"sloth-{label}.yaml"] = {
            "version": "prometheus/v1",
            "service": "llmtrace",
            "slos": [_sloth_slo(slo, settings) for slo in same],
        }
        files[f"sloth-{label}-windows.yaml"] = _sloth_windows(allowed, settings)
    return files


def _sloth_slo(slo: Slo, settings: RuleSettings) -> dict[str, Any]:
    kind = "Latency" if slo.threshold_s is not None else "Availability"
    name = f"Llmtrace{kind}BudgetBurn"
    return {
        "name": dns_name(f"{slo.budget}-{slo.name}"),
        "objective": round(100 * (1 - slo.allowed), 6),
        "description": f"{slo.promise}.",
        "labels": {"budget": slo.budget, "slo": slo.name},
        "sli": {"events": {"error_query": slo.bad(_WINDOW), "total_query": slo.valid(_WINDOW)}},
        "alerting": {
            "name": name,
            "annotations": {"runbook_url": f"{settings.runbooks}#{name.lower()}"},
            "page_alert": {"labels": {"severity": "page"}},
            "ticket_alert": {"labels": {"severity": "ticket"}},
        },
    }


def _sloth_windows(allowed: float, settings: RuleSettings) -> dict[str, Any]:
    def of(severity: Severity) -> dict[str, Any]:
        rungs = [window for window in settings.ladder if window.severity == severity]
        return {
            name: {
                "errorBudgetPercent": round(100 * window.spent(allowed, settings.period), 4),
                "shortWindow": window.short,
                "longWindow": window.long,
            }
            for name, window in zip(("quick", "slow"), rungs, strict=True)
        }

    return {
        "apiVersion": "sloth.slok.dev/v1",
        "kind": "AlertWindows",
        "spec": {"sloPeriod": settings.period, "page": of("page"), "ticket": of("ticket")},
    }


def openslo(slos: Sequence[Slo], settings: RuleSettings) -> list[dict[str, Any]]:
    """Return OpenSLO objects: a service for each budget, and its SLOs."""
    objects = [_service(budget) for budget in dict.fromkeys(slo.budget for slo in slos)]
    return [*objects, *(_openslo_slo(slo, settings) for slo in slos)]


def _service(budget: str) -> dict[str, Any]:
    return {
        "apiVersion": "openslo/v1",
        "kind": "Service",
        "metadata": {"name": dns_name(budget), "displayName": budget},
        "spec": {"description": f"What the latency budget {budget} is for."},
    }


def _openslo_slo(slo: Slo, settings: RuleSettings) -> dict[str, Any]:
    name = dns_name(f"{slo.budget}-{slo.name}")
    # Rates over any window will do: only their ratio counts.
    window = settings.base

    def source(query: str) -> dict[str, Any]:
        return {"metricSource": {"type": "Prometheus", "spec": {"query": query}}}

    return {
        "apiVersion": "openslo/v1",
        "kind": "SLO",
        "metadata": {"name": name, "displayName": f"{slo.budget}: {slo.name}"},
        "spec": {
            "description": f"{slo.promise}.",
            "service": dns_name(slo.budget),
            "indicator": {
                "metadata": {"name": dns_name(f"{slo.budget}-{slo.name}-sli")},
                "spec": {
                    "ratioMetric": {
                        "counter": False,
                        "bad": source(slo.bad(window)),
                        "total": source(slo.valid(window)),
                    }
                },
            },
            "timeWindow": [{"duration": settings.period, "isRolling": True}],
            "budgetingMethod": "Occurrences",
            "objectives": [{"displayName": slo.name, "target": 1 - slo.allowed}],
        },
    }


def dns_name(text: str) -> str:
    """Make a name of lower case, digits and dashes, 63 characters at most.

    What does not go in as it is gets a part of its hash, so that no two texts get one name.

    Example:
        >>> dns_name("chat-ttft"), dns_name("Chat (EU) ttft")
        ('chat-ttft', 'chat-eu-ttft-107ced27')
    """
    name = _NOT_IN_NAME.sub("-", text.lower()).strip("-")
    if name and name == text and len(name) <= _MAX_NAME:
        return name
    mark = hashlib.sha256(text.encode()).hexdigest()[:_MARK]
    return f"{name[: _MAX_NAME - _MARK - 1].strip('-') or 'budget'}-{mark}"
