"""How do Prometheus's alerts become Grafana-managed ones?

The same expressions, asked of a data source of Grafana's: an alert fires while its expression has
an answer. For people without a ruler; recording rules must be loaded into Prometheus all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmtrace_dashboards.windows import seconds

_QUERIED: Final = "{{ with query"
_EXPRESSIONS: Final = "__expr__"
_ASKED_S: Final = 600
_QUERY, _NUMBER, _FIRES = "query", "number", "fires"
_IS_NUMBER: Final = f"is_number(${_QUERY}) || is_nan(${_QUERY}) || is_inf(${_QUERY})"


def rule_group(
    rules: Sequence[Mapping[str, Any]], folder: str, datasource: str, interval_s: int = 60
) -> dict[str, Any]:
    """Return a group of Grafana-managed rules.

    Args:
        rules: as in a Prometheus rule file: `alert`, `expr`, `for`, `labels`, `annotations`.
        folder: uid of the folder they go to.
        datasource: uid of the Prometheus they ask.
        interval_s: between two looks.
    """
    title = "llmtrace"
    made = [_rule(rule, folder, datasource, title, interval_s) for rule in rules]
    return {"title": title, "folderUid": folder, "interval": interval_s, "rules": made}


def _rule(
    rule: Mapping[str, Any], folder: str, datasource: str, group: str, interval_s: int
) -> dict[str, Any]:
    name = str(rule["alert"])
    labels = {key: str(value) for key, value in rule.get("labels", {}).items()}
    told = " ".join([name, *(f"{key}={labels[key]}" for key in sorted(labels))])
    distinct = " ".join(labels[key] for key in ("budget", "slo", "window") if key in labels)
    lasting = rule.get("for", "0s")
    return {
        "uid": _uid(told),
        "title": f"{name} {distinct}".strip(),
        "ruleGroup": group,
        "folderUID": folder,
        "orgID": 1,
        "condition": _FIRES,
        "data": [
            _asked(str(rule["expr"]), datasource),
            _computed(_NUMBER, {"type": "math", "expression": _IS_NUMBER}),
            _computed(
                _FIRES,
                {
                    "type": "threshold",
                    "expression": _NUMBER,
                    "conditions": [{"evaluator": {"type": "gt", "params": [0]}}],
                },
            ),
        ],
        # In whole intervals, and as Grafana writes it back.
        "for": _duration(int(seconds(lasting)) // interval_s * interval_s),
        "noDataState": "OK",  # no answer = nothing is wrong, as in Prometheus
        "execErrState": "Error",
        "isPaused": False,
        "labels": labels,
        "annotations": _annotations(rule.get("annotations", {})),
    }


def _duration(whole: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _uid(told: str) -> str:
    return f"llmtrace-{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _annotations(told: Mapping[str, str]) -> dict[str, str]:
    """Leave out times and what else Grafana's templates cannot say: they have no `query`."""
    said = {key: text for key, text in told.items() if _QUERIED not in text}
    if "dashboard_url" in told:
        said["dashboard_url"] = told["dashboard_url"].partition("?")[0]
    if "triage" in told:
        said.setdefault("triage", "llmtrace triage")
    return said


def _asked(expression: str, datasource: str) -> dict[str, Any]:
    return {
        "refId": _QUERY,
        "queryType": "",
        "relativeTimeRange": {"from": _ASKED_S, "to": 0},
        "datasourceUid": datasource,
        "model": {"refId": _QUERY, "expr": expression, "instant": True, "range": False},
    }


def _computed(name: str, model: Mapping[str, Any]) -> dict[str, Any]:
    source = {"type": _EXPRESSIONS, "uid": _EXPRESSIONS}
    return {
        "refId": name,
        "queryType": "",
        "relativeTimeRange": {"from": 0, "to": 0},
        "datasourceUid": _EXPRESSIONS,
        "model": {"refId": name, "datasource": source, **model},
    }
