"""Turn a board into the JSON that Grafana imports.

With Grafana's own builders: the classic format (schemaVersion 42), which can be imported by hand
and by API. Every panel queries the variable `datasource`, so that no uid is hard-coded.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from typing import Any, Final

from llmtrace.core.errors import needs_extra
from llmtrace_dashboards import panels

with needs_extra("llmtrace dashboards", "dashboards"), warnings.catch_warnings():
    # The builders recommend the v2 format, which not every import accepts.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import (
        bargauge,
        common,
        dashboard,
        heatmap,
        prometheus,
        stat,
        table,
        text,
        timeseries,
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common as shared
    from grafana_foundation_sdk.models import dashboard as model
    from grafana_foundation_sdk.models import heatmap as heatmap_model
    from grafana_foundation_sdk.models import prometheus as prometheus_model
    from grafana_foundation_sdk.models import text as text_model

TAG: Final = "llmtrace"
DATASOURCE: Final = shared.DataSourceRef("prometheus", "${datasource}")
# Of a graph, however wide the screen: Prometheus evaluates the query at each point, and a line
# does not look different with more.
MAX_POINTS: Final = 400
_GRID: Final = 24
_CAUSE: Final = re.compile(r"(?<!\$)\{(\w+)\}")
_GREY: Final = "#7B8A9E"
_NONE: Final = "-"
_DASHED: Final = [
    model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [6, 6]}),
    model.DynamicConfigValue("custom.lineWidth", 1),
    model.DynamicConfigValue("custom.fillOpacity", 0),
    model.DynamicConfigValue("custom.hideFrom", {"legend": True, "tooltip": False, "viz": False}),
]
# A percentile of nothing is NaN.
_NAN: Final = {
    "type": "special",
    "options": {"match": "nan", "result": {"text": _NONE, "index": 0}},
}
# Least upper end of an axis, by unit; 1 for others. Without one, Grafana draws a flat line of
# zeros on an axis from 0 to 100, which is 1.67 minutes, or 10000 %.
_QUIET: Final = {"s": 0.001, "percentunit": 0.01, "ops": 0.1, "reqps": 0.1}


def as_json(
    board: panels.Board, others: Sequence[panels.Board] = (), *, runbooks: str | None = None
) -> dict[str, Any]:
    """Return a board in Grafana's format.

    It links to `others` with the time and the variables, and to the runbooks of causes at
    `runbooks`, the address of docs/on-call/runbooks.
    """
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .timezone("browser")
        .time(board.since, "now")
        .refresh("1m")
        .readonly()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .links([_link(other) for other in others if other.uid != board.uid])
    )
    made.with_variable(
        dashboard.DatasourceVariable("datasource")
        .label("Data source")
        .description("The Prometheus that has llmtrace's metrics.")
        .type("prometheus")
    )
    for variable in board.variables:
        made.with_variable(_variable(variable))
    for annotation in board.annotations:
        made.annotation(_annotation(annotation))
    plain = _plain(made)
    plain["panels"] = _panels(board.rows, runbooks)
    _tidy(plain)
    return plain


def _plain(builder: Any) -> dict[str, Any]:
    """Return what a builder builds, as plain JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
    return plain


def _tidy(plain: dict[str, Any]) -> None:
    """Remove what the builders write and Grafana itself never does."""
    for variable in plain["templating"]["list"]:
        for noise in ("auto", "auto_count", "auto_min", "skipUrlSync"):
            variable.pop(noise, None)
    for link in plain["links"]:
        if not link.get("tags"):
            link["tags"] = []


def _link(other: panels.Board) -> Any:
    return (
        dashboard.DashboardLink(other.title.removeprefix("llmtrace / "))
        .type(model.DashboardLinkType.LINK)
        .url(f"/d/{other.uid}")
        .icon("dashboard")
        .tooltip(other.description)
        .keep_time(True)
        .include_vars(True)
    )


def _variable(variable: panels.Variable) -> Any:
    if variable.choices:
        options = [
            model.VariableOption(selected=place == 0, text=choice, value=choice)
            for place, choice in enumerate(variable.choices)
        ]
        return (
            dashboard.CustomVariable(variable.name)
            .label(variable.label)
            .description(variable.description)
            .values(",".join(variable.choices))
            .current(options[0])
            .options(options)
        )
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .description(variable.description)
        .datasource(DATASOURCE)
        .query({"query": variable.query, "refId": "variable"})
        .definition(variable.query)
        # Query again when the time range changes: replicas come and go.
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )
    if variable.regex:
        made.regex(variable.regex)
    if variable.hidden:
        made.hide(model.VariableHide.HIDE_VARIABLE)
    if variable.several:
        made.multi(True).include_all(True).all_value(".*")
        made.current(model.VariableOption(selected=True, text="All", value="$__all"))
    return made


def _annotation(annotation: panels.Annotation) -> Any:
    made = dashboard.AnnotationQuery().name(annotation.name).icon_color(annotation.colour)
    made.enable(True)
    if annotation.tags:
        target = dashboard.AnnotationTarget().type("tags").tags(list(annotation.tags))
        made.datasource(shared.DataSourceRef("grafana", "-- Grafana --"))
        return made.target(target.limit(100).match_any(False))  # type: ignore[arg-type]
    made.datasource(DATASOURCE).expr(annotation.expr)
    return made.title_format(annotation.title).text_format(annotation.text)


# --- panels -------------------------------------------------------------------------------------


def _panels(rows: Sequence[panels.Row], runbooks: str | None) -> list[dict[str, Any]]:
    """Lay rows out on the grid, from left to right and down; number them all."""
    placed: list[dict[str, Any]] = []
    number = y = 0
    for row in rows:
        number += 1
        head: dict[str, Any] = {
            "type": "row",
            "id": number,
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"x": 0, "y": y, "w": _GRID, "h": 1},
            "panels": [],
        }
        placed.append(head)
        y += 1
        inner = head["panels"] if row.collapsed else placed
        x = tallest = 0
        for panel in row.panels:
            number += 1
            if x + panel.width > _GRID:
                x, y, tallest = 0, y + tallest, 0
            made = _plain(_panel(panel, runbooks).id(number))
            if panel.link is not None:
                made["fieldConfig"]["defaults"]["links"] = [_data_link(panel.link)]
            made["gridPos"] = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            inner.append(made)
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return placed


def _data_link(link: panels.Link) -> dict[str, Any]:
    name, value = link.chosen
    kept = "&".join(f"${{{one}:queryparam}}" for one in ("datasource", *link.kept))
    url = f"/d/{link.board}?${{__url_time_range}}&{kept}&var-{name}={value}"
    return {"title": link.title, "url": url, "targetBlank": False}


def _panel(panel: panels.Panel, runbooks: str | None) -> Any:
    if panel.kind == "text":
        page = r"`\1`" if runbooks is None else rf"[\1]({runbooks.rstrip('/')}/\1.md)"
        return (
            text.Panel()
            .title(panel.title)
            .description(panel.description)
            .mode(text_model.TextMode.MARKDOWN)
            .content(_CAUSE.sub(page, panel.text))
        )
    made = _MAKERS[panel.kind](panel)
    made.title(panel.title).description(panel.description).datasource(DATASOURCE)
    made.unit(panel.unit).no_value(panel.empty)
    if panel.kind in {"timeseries", "heatmap"}:
        made.max_data_points(MAX_POINTS)
    if panel.decimals is not None:
        made.decimals(panel.decimals)
    if panel.least is not None:
        made.min(panel.least)
    if panel.most is not None:
        made.max(panel.most)
    for place, query in enumerate(panel.queries):
        ref_id = "ABCDEFGHIJ"[place]
        made.with_target(_query(query, ref_id))
        if query.bound:
            made.override_by_query(ref_id, _DASHED)
    for name, colour in panel.colours.items():
        fixed = {"mode": "fixed", "fixedColor": colour}
        made.override_by_name(name, [model.DynamicConfigValue("color", fixed)])
    for column in panel.columns:
        made.override_by_name(column.name, list(_column(column)))
    for kind, options in panel.transformations:
        made.with_transformation(model.DataTransformerConfig(id_val=kind, options=dict(options)))
    return made


def _query(query: panels.Query, name: str) -> Any:
    made = (
        prometheus.Dataquery()
        .ref_id(name)
        .expr(query.expr)
        .legend_format(query.legend)
        .format(prometheus_model.PromQueryFormat(query.form))
        .editor_mode(prometheus_model.QueryEditorMode.CODE)
        .datasource(DATASOURCE)
    )
    made = made.instant() if query.instant else made.range()
    return made.exemplar(True) if query.exemplar else made


def _thresholds(panel: panels.Panel) -> Any:
    steps = panel.steps or ((None, _GREY),)
    made = [model.Threshold(value=value, color=colour) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def _colours(panel: panels.Panel, otherwise: model.FieldColorModeId) -> Any:
    mode = model.FieldColorModeId.THRESHOLDS if panel.steps and not panel.lines else otherwise
    return dashboard.FieldColor().mode(mode)


def _timeseries(panel: panels.Panel) -> Any:
    legend = common.VizLegendOptions().show_legend(True).placement(shared.LegendPlacement.BOTTOM)
    if panel.calcs:
        legend.display_mode(shared.LegendDisplayMode.TABLE).calcs(list(panel.calcs))
    else:
        legend.display_mode(shared.LegendDisplayMode.LIST).calcs([])
    made = (
        timeseries.Panel()
        .legend(legend)
        .tooltip(
            common.VizTooltipOptions()
            .mode(shared.TooltipDisplayMode.MULTI)
            .sort(shared.SortOrder.DESCENDING)
        )
        .color_scheme(_colours(panel, model.FieldColorModeId.PALETTE_CLASSIC))
        .line_width(1)
        .show_points(shared.VisibilityMode.NEVER)
        .span_nulls(False)
    )
    if panel.bars:
        made.draw_style(shared.GraphDrawStyle.BARS).fill_opacity(80)
    elif panel.stacked:
        made.fill_opacity(70)
    else:
        # The area fades downwards, so that lines stay visible on top of each other.
        made.fill_opacity(12).gradient_mode(shared.GraphGradientMode.OPACITY).line_width(2)
    if panel.stacked:
        made.line_width(0 if panel.bars else 1)
        made.stacking(common.StackingConfig().mode(shared.StackingMode(panel.stacked)).group("A"))
    made.thresholds(_thresholds(panel))
    if panel.least == 0 and panel.most is None and panel.stacked != "percent":
        made.axis_soft_max(_QUIET.get(panel.unit, 1))
    if panel.lines:
        made.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(shared.GraphThresholdsStyleMode.DASHED)
        )
    return made


def _reduce() -> Any:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields("")


def _stat(panel: panels.Panel) -> Any:
    several = len(panel.queries) > 1
    return (
        stat.Panel()
        .reduce_options(_reduce())
        .graph_mode(
            shared.BigValueGraphMode.NONE
            if panel.queries[0].instant
            else shared.BigValueGraphMode.AREA
        )
        .color_mode(shared.BigValueColorMode.VALUE)
        .justify_mode(shared.BigValueJustifyMode.AUTO)
        .text_mode(
            shared.BigValueTextMode.VALUE_AND_NAME if several else shared.BigValueTextMode.VALUE
        )
        .orientation(shared.VizOrientation.AUTO)
        .wide_layout(True)
        # A neutral colour below every threshold: "no data" must not look like "all is well".
        .thresholds(_thresholds(panel))
        .color_scheme(_colours(panel, model.FieldColorModeId.THRESHOLDS))
    )


def _bargauge(panel: panels.Panel) -> Any:
    return (
        bargauge.Panel()
        .reduce_options(_reduce())
        .orientation(shared.VizOrientation.HORIZONTAL)
        .display_mode(shared.BarGaugeDisplayMode.BASIC)
        .value_mode(shared.BarGaugeValueMode.TEXT)
        .name_placement(shared.BarGaugeNamePlacement.LEFT)
        .show_unfilled(True)
        .text(common.VizTextDisplayOptions().title_size(12).value_size(15))
        .sizing(shared.BarGaugeSizing.AUTO)
        .min_viz_width(8)
        .min_viz_height(16)
        .max_viz_height(300)
        .thresholds(_thresholds(panel))
        .color_scheme(_colours(panel, model.FieldColorModeId.PALETTE_CLASSIC))
    )


def _table(panel: panels.Panel) -> Any:
    made = (
        table.Panel()
        # A missing cell is a dash; that the whole table is empty is explained in words.
        .override_by_field_type(
            "number",
            [
                model.DynamicConfigValue("noValue", _NONE),
                model.DynamicConfigValue("mappings", [_NAN]),
            ],
        )
        .show_header(True)
        .cell_height(shared.TableCellHeight.SM)
        .filterable(False)
        .min_width(60)
        .thresholds(_thresholds(panel))
    )
    if panel.sort is not None:
        name, largest_first = panel.sort
        made.sort_by([common.TableSortByFieldState().display_name(name).desc(largest_first)])
    return made


def _heatmap(panel: panels.Panel) -> Any:
    return (
        heatmap.Panel()
        .calculate(False)
        .cell_gap(1)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_model.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .fill("dark-orange")
            .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
            .reverse(False)
        )
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .y_axis(heatmap.YAxisConfig().unit(panel.unit))
        .show_legend()
    )


_MAKERS: Final = {
    "timeseries": _timeseries,
    "stat": _stat,
    "bargauge": _bargauge,
    "table": _table,
    "heatmap": _heatmap,
}


def _column(column: panels.Column) -> list[model.DynamicConfigValue]:
    found = []
    if column.unit is not None:
        found.append(model.DynamicConfigValue("unit", column.unit))
    if column.decimals is not None:
        found.append(model.DynamicConfigValue("decimals", column.decimals))
    if column.width is not None:
        found.append(model.DynamicConfigValue("custom.width", column.width))
    if column.most is not None:
        found.append(model.DynamicConfigValue("max", column.most))
        found.append(model.DynamicConfigValue("min", 0))
    if column.link is not None:
        found.append(model.DynamicConfigValue("links", [_data_link(column.link)]))
    if column.steps:
        steps = [{"value": value, "color": colour} for value, colour in column.steps]
        found.append(model.DynamicConfigValue("thresholds", {"mode": "absolute", "steps": steps}))
        cell = {"type": "gauge", "mode": "basic"} if column.gauge else {"type": "color-text"}
        found.append(model.DynamicConfigValue("custom.cellOptions", cell))
    return found
