"""Describe panels and boards as plain data, without Grafana's format.

Each panel is made in its board's file in `boards/`; `grafana_json.py` turns them into Grafana's
JSON, in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["timeseries", "stat", "bargauge", "table", "heatmap", "text"]
Step = tuple[float | None, str]  # a colour, and the lowest value that has it; `None` = any


@dataclass(frozen=True, slots=True)
class Query:
    """One query of Prometheus.

    Attributes:
        legend: the names of its series, as in `{{stage}}`.
        instant: query only the end of the time shown.
        form: how the result is laid out.
        exemplar: query the trace ids of single requests too.
        bound: a limit for other series: a dashed line, not in the legend.
    """

    expr: str
    legend: str = "__auto"
    instant: bool = False
    form: Literal["time_series", "table", "heatmap"] = "time_series"
    exemplar: bool = False
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """Where a click on a value leads, with the time and the data source kept.

    Attributes:
        title: its text in the menu of the value.
        board: uid of the target.
        chosen: a variable of the target, and what it is set to, in Grafana's notation.
        kept: other variables whose values are passed on.
    """

    title: str
    board: str
    chosen: tuple[str, str]
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """How one column of a table is shown; `name` is its name after all renaming."""

    name: str
    unit: str | None = None
    steps: tuple[Step, ...] = ()
    decimals: int | None = None
    width: int | None = None
    most: float | None = None
    gauge: bool = False
    link: Link | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        description: how to read it, and what to do about it.
        unit: Grafana's id of the unit; durations are in seconds.
        empty: text shown when there are no data, with the likely reason.
        width, height: in cells of Grafana's grid, which is 24 wide.
        colours: of series, by their name.
        steps: thresholds; drawn into a graph if `lines`.
        stacked: pile the series up, to their sum or to 100 %.
        bars: draw bars instead of lines.
        calcs: summaries of each series in the legend, which is then a table.
        columns: of a table.
        transformations: id and options of each, as Grafana has them.
        text: of a text panel, as Markdown.
    """

    kind: Kind
    title: str
    description: str
    queries: tuple[Query, ...] = ()
    unit: str = "none"
    empty: str = "No data in this time range"
    width: int = 12
    height: int = 8
    decimals: int | None = None
    least: float | None = None
    most: float | None = None
    colours: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    lines: bool = False
    stacked: Literal["normal", "percent"] | None = None
    bars: bool = False
    calcs: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    transformations: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    sort: tuple[str, bool] | None = None  # a table's column, and whether the largest comes first
    text: str = ""
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The panels under one heading, as a row of a dashboard."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice at the top of a dashboard.

    Attributes:
        query: of Prometheus, as `label_values(...)`.
        choices: values to choose from, where they are not queried; the first is the default.
        several: whether several values, or all, can be chosen.
        regex: extracts the value from a result of `query_result`.
        hidden: it is computed, not chosen by people.
    """

    name: str
    label: str
    description: str
    query: str = ""
    choices: tuple[str, ...] = ()
    several: bool = True
    regex: str = ""
    hidden: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """Marks across all graphs: of Grafana's own annotations by tag, or a query's."""

    name: str
    colour: str
    tags: tuple[str, ...] = ()
    expr: str = ""
    title: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard.

    Attributes:
        uid: identifies it in links, and when it is imported again.
    """

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    annotations: tuple[Annotation, ...] = ()
    since: str = "now-1h"
