"""Panels that are on more than one dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from llmtrace.display.colours import OUTCOME_COLOURS, STAGE_COLOURS
from llmtrace_dashboards import promql
from llmtrace_dashboards.panels import Link, Panel, Query
from llmtrace_dashboards.promql import RANGE, REQUESTS
from llmtrace_dashboards.variables import BAD
from llmtrace_dashboards.variables import REQUESTS as CHOICES

NO_REQUESTS: Final = (
    "No requests in this time range. Is the collector's or the application's /metrics scraped?"
)
NO_GAPS: Final = "No gaps: only an application's own /metrics exposes them"
# From a stage to its breakdown: a series of its own, and a row of a table.
_KEPT: Final = tuple(one.name for one in CHOICES)
TO_STAGE: Final = Link(
    "Its breakdown", "llmtrace-stages", ("stage", "${__field.labels.stage}"), _KEPT
)
ROW_TO_STAGE: Final = Link("Its breakdown", "llmtrace-stages", ("stage", "${__value.raw}"), _KEPT)
NO_BUDGET: Final = "No budget: give init() one"
NO_ENGINES: Final = "No engine read: is the collector running?"


def graph(
    title: str,
    description: str,
    *queries: Query,
    kind: Literal["timeseries", "bargauge"] = "timeseries",
    **more: Any,
) -> Panel:
    """Make a panel of figures that begin at 0: lines over time, or bars of one moment."""
    return Panel(
        kind=kind, title=title, description=description, queries=queries, **({"least": 0} | more)
    )


def stat(title: str, description: str, values: Mapping[str, str], **more: Any) -> Panel:
    """Make a panel of single values: of expressions by their legends, for the time shown."""
    queries = tuple(Query(expr, legend, instant=True) for legend, expr in values.items())
    return Panel(kind="stat", title=title, description=description, queries=queries, **more)


STAGES_OVER_TIME: Final = graph(
    "Where a request's time goes (means, which add up)",
    "The mean time of a request in each stage. Means add up: the top of the pile is "
    "the mean of the whole request. The stage that grows is where to look; `unattributed` is time "
    "on servers that could not be split.",
    Query(promql.stage_mean(), "{{stage}}"),
    unit="s",
    empty=NO_REQUESTS,
    stacked="normal",
    colours=STAGE_COLOURS,
    link=TO_STAGE,
)

ANATOMY: Final = graph(
    "Anatomy of the p95 request (adds up to p95)",
    "Of the requests about as slow as the p95: where their time went. Unlike the "
    "stages' own p95s these add up, to the p95 of the whole request. The longest bar is what a "
    "slow request waits for.",
    Query(f"sort_desc({promql.anatomy()})", "{{stage}}", instant=True),
    kind="bargauge",
    unit="s",
    empty=NO_REQUESTS,
    colours=STAGE_COLOURS,
    link=TO_STAGE,
)

RATE: Final = graph(
    "Requests",
    "Requests a second, however they ended. A p95 that moves with this line is load; "
    "one that moves without it is not.",
    Query(promql.total(f"llmtrace_requests_total{{{REQUESTS}}}", "route"), "{{route}}"),
    unit="reqps",
    empty=NO_REQUESTS,
    stacked="normal",
)

OUTCOMES: Final = graph(
    "Requests that did not succeed, by outcome",
    "Share of all requests, by how they ended. Percentiles are of those that "
    "succeeded: when people give up or streams break, a p95 looks better than it is. Read both "
    "together.",
    Query(
        promql.total(f'llmtrace_requests_total{{{REQUESTS}, outcome!="success"}}', "outcome")
        + " / on () group_left () "
        + promql.total(f"llmtrace_requests_total{{{REQUESTS}}}"),
        "{{outcome}}",
    ),
    unit="percentunit",
    decimals=1,
    empty="Every request succeeded, or there were none",
    stacked="normal",
    colours=OUTCOME_COLOURS,
)

_ALL: Final = promql.total(f"llmtrace_requests_total{{{REQUESTS}}}", window=RANGE)


def _ended(outcomes: str) -> str:
    ended = promql.total(
        f'llmtrace_requests_total{{{REQUESTS}, outcome=~"{outcomes}"}}', window=RANGE
    )
    return promql.share(promql.or_zero(ended, _ALL), _ALL)


NOT_SUCCEEDED: Final = stat(
    "Failed, truncated or cancelled",
    "Share of requests that did not succeed: errors and timeouts, streams truncated "
    "midway, and those their clients cancelled. None of them is in the percentiles. Above a "
    "few percent, look here before you look at any p95.",
    {
        "failed": _ended("error|timeout"),
        "truncated": _ended("truncated"),
        "cancelled": _ended("cancelled"),
    },
    unit="percentunit",
    decimals=1,
    empty="no requests",
    steps=BAD,
)


def heat(
    title: str,
    metric: str,
    description: str,
    *,
    where: str = promql.SUCCEEDED,
    unit: str = "s",
    empty: str = "Nothing was counted in this time range",
    width: int = 12,
) -> Panel:
    """Make a heatmap of a histogram: how many fell into each bucket, over time."""
    return Panel(
        kind="heatmap",
        title=title,
        description=description,
        queries=(
            Query(promql.total(f"{metric}_bucket{{{where}}}", "le"), "{{le}}", form="heatmap"),
        ),
        unit=unit,
        empty=empty,
        width=width,
    )


def table(
    title: str,
    description: str,
    values: Mapping[str, str],
    *,
    order: Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
    then: Sequence[tuple[str, Mapping[str, Any]]] = (),
    **more: Any,
) -> Panel:
    """Make one table of several expressions for the time shown: a column each, in their order.

    Args:
        title: of the panel.
        description: of the panel.
        values: the expressions, by the names of their columns.
        order: all columns in another order: labels, and names of values; default: as they come.
        renamed: labels that are called something else.
        then: more transformations.
        more: settings of the panel.
    """
    results = {name: f"Value #{chr(ord('A') + i)}" for i, name in enumerate(values)}
    places = {results.get(one, one): place for place, one in enumerate(order)}
    called = {result: name for name, result in results.items()}
    options = {
        "excludeByName": {"Time": True},
        **({"indexByName": places} if places else {}),
        "renameByName": {**(renamed or {}), **called},
    }
    return Panel(
        kind="table",
        title=title,
        description=description,
        queries=tuple(Query(expr, instant=True, form="table") for expr in values.values()),
        transformations=(("merge", {}), ("organize", options), *then),
        **more,
    )
