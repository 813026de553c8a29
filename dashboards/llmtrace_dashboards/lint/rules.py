"""Find the rules that a dashboard breaks: one function a rule.

The rules of Grafana's dashboard-linter under the names they have there, and some of our own for
what Grafana ignores without a message. A function yields where and what is wrong; its docstring
says why that matters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from llmtrace_dashboards.lint import grafana_names, queries
from llmtrace_dashboards.lint.finding import Severity

Json = Mapping[str, Any]
Classification = Iterator[tuple[str, str]]
Rule = Callable[[Json], Classification]

_WITH_DATA: Final = frozenset(
    {"stat", "singlestat", "graph", "table", "timeseries", "gauge", "bargauge", "heatmap"}
)
_WITH_UNIT: Final = _WITH_DATA - {"heatmap"}
_GRID: Final = 24
_DASHBOARD_SOURCE: Final = "-- Dashboard --"
_LABEL_VALUES: Final = re.compile(r"\s*label_values\s*\((.*),\s*[\w.]+\s*\)\s*", re.DOTALL)
_RANGE: Final = re.compile(r"\b(rate|irate)\s*\(((?:[^()\[\]]|\([^()]*\))*)\[([^\]]*)\]")
_OVER_A_RANGE: Final = frozenset({"rate", "irate", "increase"})


# --- variables ----------------------------------------------------------------------------------


def template_datasource(dashboard: Json) -> Classification:
    """A dashboard with a data source's uid in it works in one Grafana only."""
    found = [one for one in queries.variables(dashboard) if one.get("type") == "datasource"]
    if not found:
        yield "", "has no variable for the data source: add one named `datasource`"
    for one in found:
        name, kind = str(one.get("name")), str(one.get("query"))
        if name not in {"datasource", f"{kind}_datasource"}:
            yield (
                _variable(one),
                f"is a data source: call it `datasource` or `{kind}_datasource`",
            )
        wanted = {"Data source", f"{kind.capitalize()} data source"}
        if one.get("label") not in wanted:
            yield _variable(one), f"should have the label {' or '.join(sorted(wanted))!r}"


def template_label_promql(dashboard: Json) -> Classification:
    """A variable whose query cannot be read has no values, and every panel that uses it none."""
    for one in queries.variables(dashboard):
        query = _query_text(one)
        match = _LABEL_VALUES.fullmatch(query) if one.get("type") == "query" else None
        if match is not None:
            try:
                queries.selectors(queries.expand(match[1], queries.chosen(dashboard)))
            except ValueError as error:
                yield _variable(one), f"its query is no PromQL: {error}"


def template_on_time_change_reload(dashboard: Json) -> Classification:
    """Values of a week ago are not those of now: replicas and routes come and go."""
    for one in queries.variables(dashboard):
        if one.get("type") == "query" and one.get("refresh") != 2:  # noqa: PLR2004
            yield (
                _variable(one),
                "should be queried again when the time range changes (refresh: 2)",
            )


# --- panels -------------------------------------------------------------------------------------


def panel_datasource(dashboard: Json) -> Classification:
    """A panel with a uid of its own shows nothing in another Grafana."""
    names = {
        str(one.get("name"))
        for one in queries.variables(dashboard)
        if one.get("type") == "datasource"
    }
    for panel in _of(dashboard, _WITH_DATA):
        uid = _source_uid(panel)
        if str(uid) in {"-- Mixed --", _DASHBOARD_SOURCE, "-- Grafana --"}:
            continue
        if not isinstance(uid, str) or uid.strip("${}[]") not in names or not _is_variable(uid):
            yield (
                _panel(panel),
                f"queries the data source {uid!r}: name a variable, ${{datasource}}",
            )


def panel_title_description(dashboard: Json) -> Classification:
    """Who is paged at night has not seen the dashboard before."""
    for panel in _of(dashboard, _WITH_DATA):
        for key in ("title", "description"):
            if not str(panel.get(key) or "").strip():
                yield _panel(panel), f"has no {key}: say what it shows, and what to do about it"


def panel_units(dashboard: Json) -> Classification:
    """2.5 of what? And a unit Grafana does not know is printed as it stands."""
    for panel in _of(dashboard, _WITH_DATA):
        defaults = _at(panel, "fieldConfig", "defaults")
        units = [defaults.get("unit")]
        units += [
            one.get("value")
            for override in _overrides(panel)
            for one in queries.objects(override, "properties")
            if one.get("id") == "unit"
        ]
        if (
            not any(units)
            and not defaults.get("mappings")
            and str(panel.get("type")) in _WITH_UNIT
        ):
            yield _panel(panel), "has no unit: set one, or `none` if there is none"
        for unit in filter(None, units):
            if str(unit) not in grafana_names.UNITS and not grafana_names.CUSTOM_UNIT.match(
                str(unit)
            ):
                yield _panel(panel), f"unit {unit!r} is none of Grafana's: it would be a suffix"


def panel_no_targets(dashboard: Json) -> Classification:
    """A panel without a query shows nothing."""
    for panel in _of(dashboard, _WITH_DATA):
        if not queries.targets(panel) and "libraryPanel" not in panel:
            yield _panel(panel), "has no query"


def panel_type(dashboard: Json) -> Classification:
    """Panels of Angular's time are gone from Grafana."""
    for panel in queries.panels(dashboard):
        kind = str(panel.get("type"))
        if kind in grafana_names.GONE:
            yield (
                _panel(panel),
                f"type {kind!r} is gone from Grafana: use {grafana_names.GONE[kind]!r}",
            )


def panel_ignored(dashboard: Json) -> Classification:
    """Grafana ignores an override or transformation it does not know, and says nothing."""
    for panel in queries.panels(dashboard):
        for one in queries.objects(panel, "transformations"):
            if str(one.get("id")) not in grafana_names.TRANSFORMATIONS:
                yield _panel(panel), f"transformation {one.get('id')!r} is none of Grafana's"
        custom = grafana_names.CUSTOM.get(str(panel.get("type")))
        for override in _overrides(panel):
            matcher = _at(override, "matcher").get("id")
            if str(matcher) not in grafana_names.MATCHERS:
                yield _panel(panel), f"an override's matcher {matcher!r} is none of Grafana's"
            for one in queries.objects(override, "properties"):
                name = str(one.get("id"))
                own = name.removeprefix("custom.")
                if name in grafana_names.PROPERTIES or (
                    name != own and (custom is None or own in custom)
                ):
                    continue
                yield _panel(panel), f"an override sets {name!r}, which this panel does not have"
        if custom is not None:
            for name in _at(panel, "fieldConfig", "defaults", "custom"):
                if name not in custom:
                    yield _panel(panel), f"fieldConfig.defaults.custom.{name} is ignored"


def panel_bargauge_order(dashboard: Json) -> Classification:
    """An instant result has no order in Prometheus: bars change places with every refresh."""
    for panel in _of(dashboard, frozenset({"bargauge"})):
        for target in queries.targets(panel):
            expression = str(target.get("expr", ""))
            if target.get("instant") and not expression.lstrip().startswith("sort"):
                yield _query(panel, target), "is instant and not sorted: put sort_desc() around it"


def panel_legend(dashboard: Json) -> Classification:
    """Lines without names mean nothing."""
    for panel in _of(dashboard, frozenset({"timeseries"})):
        legend = _at(panel, "options", "legend")
        if legend.get("showLegend") is False and len(queries.targets(panel)) > 1:
            yield _panel(panel), "hides the legend of several queries (legend.showLegend)"


def panel_no_data_green(dashboard: Json) -> Classification:
    """A tile that is green when there are no data says that all is well."""
    for panel in _of(dashboard, frozenset({"stat"})):
        steps = queries.objects(_at(panel, "fieldConfig", "defaults", "thresholds"), "steps")
        filled = str(_at(panel, "options").get("colorMode", "value")).startswith("background")
        if filled and steps and "green" in str(steps[0].get("color")):
            yield _panel(panel), "is green without data: begin its thresholds with another colour"


def panel_id(dashboard: Json) -> Classification:
    """Links and alerts find a panel by its id."""
    seen: set[str] = set()
    for panel in queries.panels(dashboard):
        number = str(panel.get("id", ""))
        if number and number in seen:
            yield _panel(panel), f"has the id {number}, which another panel has too"
        seen.add(number)


def panel_grid(dashboard: Json) -> Classification:
    """Panels off the grid or on top of each other are moved about by Grafana."""
    taken: list[tuple[int, int, int, int, Json]] = []
    for panel in queries.objects(dashboard, "panels"):
        if panel.get("type") == "row":
            continue  # the panels of a collapsed row are on a grid of their own
        place = _at(panel, "gridPos")
        cells = [place.get(key) for key in "xywh"]
        if not all(isinstance(cell, int) for cell in cells):
            yield _panel(panel), "has no place on the grid (gridPos: x, y, w, h)"
            continue
        x, y, w, h = (int(cell) for cell in cells if cell is not None)
        if x < 0 or y < 0 or w < 1 or h < 1 or x + w > _GRID:
            yield _panel(panel), f"does not fit the grid's {_GRID} columns: x {x}, width {w}"
        for other_x, other_y, other_w, other_h, other in taken:
            across = x < other_x + other_w and other_x < x + w
            if across and y < other_y + other_h and other_y < y + h:
                yield _panel(panel), f"lies on top of {_panel(other)}"
        taken.append((x, y, w, h, panel))


# --- queries ------------------------------------------------------------------------------------


def target_promql(dashboard: Json) -> Classification:
    """A query that is no PromQL shows an error."""
    values = queries.chosen(dashboard)
    ids = {str(panel.get("id")) for panel in queries.panels(dashboard)}
    for panel, target in _queries(dashboard):
        if _queries_a_panel(panel):
            if str(target.get("panelId")) not in ids:
                yield (
                    _query(panel, target),
                    f"queries panel {target.get('panelId')}: there is none",
                )
            continue
        try:
            queries.selectors(queries.expand(str(target["expr"]), values))
        except ValueError as error:
            yield _query(panel, target), f"is no PromQL: {error}"


def target_rate_interval(dashboard: Json) -> Classification:
    """A fixed range is empty when it is shorter than four scrapes, and blurred when it is long."""
    for panel, target in _queries(dashboard):
        for function, _, window in _RANGE.findall(str(target["expr"])):
            if window.partition(":")[0] not in {"$__rate_interval", "${__rate_interval}"}:
                yield (_query(panel, target), f"{function}(...[{window}]): use [$__rate_interval]")


def target_counter_agg(dashboard: Json) -> Classification:
    """A counter as it stands only grows, and falls to 0 with a restart."""
    for panel, target, selected in _selectors(dashboard):
        whole = selected.metric.endswith("_total")
        if whole and not (selected.ranged and set(selected.functions) & _OVER_A_RANGE):
            yield (
                _query(panel, target),
                f"{selected.metric} is a counter: put rate() or increase() around it",
            )


def target_le(dashboard: Json) -> Classification:
    """A bucket's bound must be written as its client writes it, or nothing matches."""
    for panel, target, selected in _selectors(dashboard):
        for label, operator, value in selected.matchers:
            if label == "le" and operator == "=" and value.isdigit():
                message = (
                    f'le="{value}" matches nothing of Python and Prometheus 3, which write '
                    f'"{value}.0": use le=~"{value}([.]0)?"'
                )
                yield _query(panel, target), message


def uneditable(dashboard: Json) -> Classification:
    """What is edited by hand is lost with the next import."""
    if dashboard.get("editable") is not False:
        yield "", "can be edited by hand (editable: false says that it comes from code)"


def template_chooser(dashboard: Json, label: str) -> Classification:
    """People must be able to choose a job, of several of one program, or one instance."""
    sources = [one for one in queries.variables(dashboard) if one.get("type") == "datasource"]
    if not any(one.get("query") == "prometheus" for one in sources):
        return
    found = next((one for one in queries.variables(dashboard) if one.get("name") == label), None)
    if found is None:
        yield "", f"has no variable `{label}`"
        return
    uid = _at(found, "datasource").get("uid")
    if str(uid) not in {"$datasource", "${datasource}", "${prometheus_datasource}"}:
        yield _variable(found), "should use the variable ${datasource}"
    if found.get("type") != "query":
        yield _variable(found), f"should be a query, not {found.get('type')}"
    if found.get("label") != label.capitalize():
        yield _variable(found), f"should have the label {label.capitalize()!r}"
    if not found.get("multi"):
        yield _variable(found), "should allow several values (multi)"
    if str(found.get("allValue")) not in {".+", ".*"}:
        yield _variable(found), 'should have ".+" for all values (allValue)'


def target_filtered(dashboard: Json, label: str) -> Classification:
    """The choice of a job or an instance must hold in every panel."""
    if not any(one.get("name") == label for one in queries.variables(dashboard)):
        return
    # With a sample value of its own, so that another label's choice is not taken for this one.
    values = {**queries.chosen(dashboard), label: f"the-{label}"}
    for panel, target, selected in _selectors(dashboard, values):
        if (label, "=~", f"the-{label}") not in selected.matchers:
            name = selected.metric or "a selector"
            yield _query(panel, target), f'{name} lacks {label}=~"${label}"'


RULES: Final[Mapping[str, tuple[Rule, Severity]]] = {
    "template-datasource-rule": (template_datasource, "error"),
    "template-job-rule": (partial(template_chooser, label="job"), "error"),
    "template-instance-rule": (partial(template_chooser, label="instance"), "error"),
    "template-label-promql-rule": (template_label_promql, "error"),
    "template-on-time-change-reload-rule": (template_on_time_change_reload, "error"),
    "panel-datasource-rule": (panel_datasource, "error"),
    "panel-title-description-rule": (panel_title_description, "error"),
    "panel-units-rule": (panel_units, "error"),
    "panel-no-targets-rule": (panel_no_targets, "error"),
    "target-promql-rule": (target_promql, "error"),
    "target-rate-interval-rule": (target_rate_interval, "error"),
    "target-job-rule": (partial(target_filtered, label="job"), "error"),
    "target-instance-rule": (partial(target_filtered, label="instance"), "error"),
    "target-counter-agg-rule": (target_counter_agg, "error"),
    "uneditable-dashboard": (uneditable, "warning"),
    "panel-type": (panel_type, "error"),
    "panel-ignored": (panel_ignored, "error"),
    "panel-id": (panel_id, "error"),
    "panel-grid": (panel_grid, "error"),
    "panel-bargauge-order": (panel_bargauge_order, "warning"),
    "panel-legend": (panel_legend, "warning"),
    "panel-no-data-green": (panel_no_data_green, "warning"),
    "target-le": (target_le, "warning"),
}

# Of Grafana's linter, and only of use where people choose by these labels: run if requested.
OPTIONAL: Final = frozenset(
    {"template-job-rule", "template-instance-rule", "target-job-rule", "target-instance-rule"}
)


# --- what the rules have in common --------------------------------------------------------------


def _of(dashboard: Json, kinds: frozenset[str]) -> Iterator[Json]:
    yield from (panel for panel in queries.panels(dashboard) if str(panel.get("type")) in kinds)


def _queries(dashboard: Json) -> Iterator[tuple[Json, Json]]:
    for panel in queries.panels(dashboard):
        for target in queries.targets(panel):
            if isinstance(target.get("expr"), str) or _queries_a_panel(panel):
                yield panel, target


def _selectors(
    dashboard: Json, values: Mapping[str, str] | None = None
) -> Iterator[tuple[Json, Json, queries.Selected]]:
    values = queries.chosen(dashboard) if values is None else values
    for panel, target in _queries(dashboard):
        if _queries_a_panel(panel):
            continue
        try:
            found = queries.selectors(queries.expand(str(target["expr"]), values))
        except ValueError:
            continue  # `target_promql` says so
        for selected in found:
            yield panel, target, selected


def _source_uid(panel: Json) -> Any:
    source = panel.get("datasource")
    return source.get("uid") if isinstance(source, Mapping) else source


def _queries_a_panel(panel: Json) -> bool:
    return bool(_source_uid(panel) == _DASHBOARD_SOURCE)


def _query_text(variable: Json) -> str:
    query = variable.get("query")
    return str(query.get("query", "")) if isinstance(query, Mapping) else str(query or "")


def _is_variable(uid: str) -> bool:
    return uid.startswith(("$", "[["))


def _at(content: Json, *path: str) -> Json:
    found: Any = content
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _overrides(panel: Json) -> list[Json]:
    return queries.objects(_at(panel, "fieldConfig"), "overrides")


def _variable(variable: Json) -> str:
    return f"variable {variable.get('name')}"


def _panel(panel: Json) -> str:
    return f"panel {panel.get('id', '?')} {str(panel.get('title') or '(untitled)')!r}"


def _query(panel: Json, target: Json) -> str:
    return f"{_panel(panel)}, query {target.get('refId', '?')}"
