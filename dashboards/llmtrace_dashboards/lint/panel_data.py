"""Find the panels that a Prometheus has no data for, and say why."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.api_clients.prometheus_client import Prometheus
from llmtrace_dashboards.lint.queries import chosen, expand, panels, selectors, targets, variables
from llmtrace_dashboards.rules.totals import INTERVAL

_REQUESTS: Final = "llmtrace_requests_total"
_VALUES: Final = re.compile(r"label_values\((.+),\s*(\w+)\)", re.DOTALL)
# All windows are an hour: a panel with a value in that time is not empty.
_AN_HOUR: Final = {"__rate_interval": "1h", "__range": "1h", "__range_s": "3600"}
_NOT_RECORDED: Final = {"recorded": ""}
_NO_REQUESTS: Final = "no requests: neither an application's metrics nor the collector's are there"
_WITHOUT: Final = {  # why metrics may be missing where there are requests, by how they begin
    "llmtrace_turn_": "no turns of agents were recorded",
    "llmtrace_tool_": "no tool calls were recorded",
    "llmtrace_internal_errors": "no internal errors of llmtrace: applications alone count them",
}
_NO_RULES: Final = "nothing was recorded by the rules of `llmtrace slo rules`"
_NOTHING_COUNTED: Final = "its metrics are there, and none says anything of the last hour"


@dataclass(frozen=True, slots=True)
class Empty:
    """One panel that stays empty.

    Attributes:
        why: the reason, for people.
    """

    dashboard: str
    panel: str
    why: str


def empty_panels(
    server: Prometheus, dashboards: Sequence[Mapping[str, Any]], why: Mapping[str, str]
) -> Iterator[Empty]:
    """Yield the panels that have no value of the last hour, with everything chosen.

    `why` has the reason for metrics that may be missing, by their names.

    Raises:
        SourceError: it does not answer, or rejects a query.
    """
    names = set(map(str, server.ask("label/__name__/values")))
    for dashboard in dashboards:
        values = {**_choices(server, dashboard), **_AN_HOUR}
        for panel in panels(dashboard):
            queries = [expand(one["expr"], values) for one in targets(panel)]
            if queries and not any(_has_value(server, names, one) for one in queries):
                title = expand(panel["title"], values)
                yield Empty(dashboard["title"], title, _reason(queries, names, why))


def _choices(server: Prometheus, dashboard: Mapping[str, Any]) -> dict[str, str]:
    """Return what Grafana would choose: everything, or the first value there is."""
    values = {**chosen(dashboard), **_NOT_RECORDED}
    for variable in variables(dashboard):
        name, query = str(variable["name"]), variable.get("query")
        text = query.get("query") if isinstance(query, Mapping) else query
        found = _VALUES.fullmatch(text) if isinstance(text, str) else None
        if name not in values and found is not None:
            path = f"label/{found[2]}/values"
            there = server.ask(path, **{"match[]": expand(found[1], values)})
            values[name] = str(there[0]) if there else ""
    return values


def _has_value(server: Prometheus, names: set[str], expression: str) -> bool:
    if names.isdisjoint(_metrics(expression)):
        return False  # most of the queries of a board whose rules are not loaded
    found = server.ask("query", query=expression)
    return any(math.isfinite(float(one["value"][1])) for one in found)


def _metrics(expression: str) -> list[str]:
    return [one.metric for one in selectors(expression) if one.metric]


def _reason(queries: Sequence[str], names: set[str], why: Mapping[str, str]) -> str:
    """Say why: of the metrics that are missing, the reason of the one that is queried first."""
    queried = [metric for query in queries for metric in _metrics(query)]
    own = [one for one in queried if ":" not in one and one != INTERVAL]  # recorded: of others
    if not own:
        return _NOTHING_COUNTED if names.issuperset(queried) else _NO_RULES
    missing = [metric for metric in own if metric not in names]
    # Of alternatives, as of engines of different kinds, the metrics of one are enough.
    parts = [{m for m in queried if m in part} for q in queries for part in q.split(" or ")]
    if not missing or any(one and one <= names for one in parts):
        return _NOTHING_COUNTED
    there = f"{missing[0]} is not there, though requests are" if _REQUESTS in names else ""
    without = (words for start, words in _WITHOUT.items() if missing[0].startswith(start))
    return next((why[one] for one in missing if one in why), next(without, there or _NO_REQUESTS))


def describe(
    empty: Sequence[Empty], total: Mapping[str, int], engines: Mapping[str, str]
) -> Iterator[str]:
    """Yield lines that say what stays empty, dashboard by dashboard, together where the reason is.

    `total` counts the panels of each dashboard by its title; `engines` are by instance.
    """
    for instance, title in sorted(engines.items()):
        yield f"{title} at {instance}"
    for dashboard, panels_ in total.items():
        mine = [one for one in empty if one.dashboard == dashboard]
        yield f"{dashboard}: {panels_ - len(mine)} of {panels_} panels have data"
        for why in dict.fromkeys(one.why for one in mine):
            titles = ", ".join(one.panel for one in mine if one.why == why)
            yield f"  empty, because {why}: {titles}"


def panel_counts(dashboards: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many panels with queries each dashboard has, by its title."""
    return {one["title"]: sum(bool(targets(panel)) for panel in panels(one)) for one in dashboards}
