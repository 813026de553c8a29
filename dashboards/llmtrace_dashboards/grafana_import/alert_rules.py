"""Turn Prometheus's alerts into Grafana-managed ones.

The same expressions, evaluated by Grafana: an alert fires while its expression has a result. For
people whose Prometheus evaluates no alerts; it must still load the recording rules.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmtrace_dashboards.rules.burn_rate import seconds
from llmtrace_dashboards.rules.sloth import dns_name

_GROUP: Final = "llmtrace"
_EXPRESSIONS: Final = "__expr__"
_INTERVAL_S: Final = 60  # between two evaluations
_QUERIED_S: Final = 600
_QUERY, _NUMBER, _FIRES = "query", "number", "fires"
# In Grafana `$value` is a text about all queries; a query's number has another name.
_VALUE: Final = re.compile(r"\$value\b")
_NUMERIC: Final = f"$values.{_QUERY}.Value"
_IS_NUMBER: Final = f"is_number(${_QUERY}) || is_nan(${_QUERY}) || is_inf(${_QUERY})"


def rule_groups(
    rules: Sequence[Mapping[str, Any]], folder: str, datasource: str
) -> list[dict[str, Any]]:
    """Return groups of Grafana-managed rules: one for each budget, one for all other rules.

    Saving a group replaces the whole group of that name: each budget has its own, so that
    importing a second budget keeps the rules of the first.

    Args:
        rules: as in a Prometheus rule file: `alert`, `expr`, `for`, `labels`, `annotations`; made
            with `RuleSettings.managed`.
        folder: uid of the folder they go to.
        datasource: uid of the Prometheus to query.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        budget = rule.get("labels", {}).get("budget")
        title = _GROUP if budget is None else f"{_GROUP}-{dns_name(str(budget))}"
        groups.setdefault(title, []).append(_rule(rule, folder, datasource, title))
    return [
        {"title": title, "folderUid": folder, "interval": _INTERVAL_S, "rules": made}
        for title, made in groups.items()
    ]


def _rule(rule: Mapping[str, Any], folder: str, datasource: str, group: str) -> dict[str, Any]:
    name = str(rule["alert"])
    labels = {key: str(value) for key, value in rule.get("labels", {}).items()}
    identity = " ".join([name, *(f"{key}={labels[key]}" for key in sorted(labels))])
    distinct = " ".join(labels[key] for key in ("budget", "slo", "window") if key in labels)
    # Uids are unique in the whole organisation.
    uid = hashlib.sha256(f"{folder} {identity}".encode()).hexdigest()[:16]
    lasting = rule.get("for", "0s")
    return {
        "uid": f"llmtrace-{uid}",
        "title": f"{name} {distinct}".strip(),
        "ruleGroup": group,
        "folderUID": folder,
        "orgID": 1,
        "condition": _FIRES,
        "data": [
            _queried(str(rule["expr"]), datasource),
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
        "for": _duration(int(seconds(lasting)) // _INTERVAL_S * _INTERVAL_S),
        "noDataState": "OK",  # no answer = nothing is wrong, as in Prometheus
        "execErrState": "Error",
        "isPaused": False,
        "labels": labels,
        "annotations": {
            key: _VALUE.sub(_NUMERIC, text) for key, text in rule.get("annotations", {}).items()
        },
    }


def _duration(whole: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if whole and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _queried(expression: str, datasource: str) -> dict[str, Any]:
    return {
        "refId": _QUERY,
        "queryType": "",
        "relativeTimeRange": {"from": _QUERIED_S, "to": 0},
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
