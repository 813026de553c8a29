"""The board about budgets: is latency within the budget, and which stage uses it up?"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from llmtrace.display.colours import NEAR, NEUTRAL, OVER
from llmtrace_dashboards import promql, variables
from llmtrace_dashboards.boards import shared_panels
from llmtrace_dashboards.panels import Board, Column, Link, Panel, Query, Row
from llmtrace_dashboards.promql import RANGE, either, limit, named, quantile, within
from llmtrace_dashboards.rules.burn_rate import LADDER
from llmtrace_dashboards.rules.recording_series import ALLOWED, DIMENSIONS, REMAINING, bad_ratio
from llmtrace_dashboards.variables import BUDGET as BUDGET_CHOICE

_METRICS: Final = (
    ("llmtrace_e2e_seconds", "total", "whole request"),
    ("llmtrace_ttft_seconds", "ttft", "TTFT"),
    ("llmtrace_tpot_seconds", "tpot", "TPOT"),
)
_PROMISES: Final = (
    *((name, words) for _, name, words in _METRICS),
    ("availability", "ended well"),
)
# By SLO, so that a metric has one colour on the page.
METRIC_COLOURS: Final = {
    "total": "#5794F2", "e2e": "#5794F2", "ttft": "#FF8833", "tpot": "#56A64B",
    "availability": "#A378D9",
}  # fmt: skip
PALE_COLOURS: Final = {
    "e2e": "#8AB8FF", "ttft": "#FFB357", "tpot": "#96D98D", "availability": "#CA95E5",
}  # fmt: skip
_STAGE: Final = "llmtrace_stage_duration_seconds"
_NO_RULES: Final = "No recorded series: load the recording rules and a budget's"
_FRACTION: Final = "percentunit"

_P95: Final = either(
    *(named(quantile(0.95, metric, window=RANGE), name) for metric, name, _ in _METRICS),
    quantile(0.95, _STAGE, "stage", window=RANGE),
)
_WITHIN: Final = either(
    *(named(within(name, window=RANGE), name) for name, _ in _PROMISES), promql.stage_within()
)

_QUESTION: Final = Row(
    "Are we within budget?",
    (
        shared_panels.stat(
            "Requests within budget",
            "Share of the budget's requests that kept each limit, and that ended "
            "well, as the alerts count them: of the models and routes it is for, and of those "
            "that have the figure. Exact: each limit is a bucket's bound. Below the objective "
            "(95 % unless it says otherwise) it is being overspent: the next row says by which "
            "stage.",
            {words: within(name, window=RANGE) for name, words in _PROMISES},
            unit=_FRACTION,
            decimals=1,
            empty=_NO_RULES,
            steps=variables.GOOD,
            width=9,
            height=5,
        ),
        shared_panels.stat(
            "p95",
            "Nineteen of twenty requests that succeeded were faster than this. TTFT "
            "is up to the first content, TPOT is a token after the first.",
            {words: quantile(0.95, metric, window=RANGE) for metric, _, words in _METRICS},
            unit="s",
            empty="no requests",
            width=9,
            height=5,
        ),
        shared_panels.stat(
            "Requests",
            "How many requests these numbers are of. Under some hundreds a p95 is "
            "made of a handful of requests: choose a longer time.",
            {
                "__auto": promql.total(
                    f"llmtrace_requests_total{{{promql.REQUESTS}}}", window=RANGE
                )
            },
            unit="locale",
            decimals=0,
            empty="none",
            width=6,
            height=5,
        ),
    ),
)

_EATEN: Final = Row(
    "Which stage eats it?",
    (
        shared_panels.STAGES_OVER_TIME,
        shared_panels.graph(
            "Budget used by the p95 request, by stage",
            "What the p95 request spends in each stage, over what the budget allows "
            "that stage. Above 100 % the stage takes time from the others. Start with the longest "
            "bar; the stage breakdown says since when.",
            Query(
                f"sort_desc(({promql.anatomy()}) / on (stage) {limit()})",
                "{{stage}}",
                instant=True,
            ),
            kind="bargauge",
            unit=_FRACTION,
            decimals=0,
            empty=shared_panels.NO_BUDGET,
            steps=variables.USED,
            most=2,
            width=6,
        ),
        replace(shared_panels.ANATOMY, width=6),
    ),
)

_LIMITS: Final = Row(
    "How many are within each limit?",
    (
        Panel(
            kind="timeseries",
            title="Share of requests within each limit",
            description="Exact shares, from the buckets that end at the limits. A dip in one line "
            "says which promise broke, and when.",
            queries=tuple(Query(within(name), words) for name, words in _PROMISES),
            unit=_FRACTION,
            empty=_NO_RULES,
            most=1,
            colours={words: METRIC_COLOURS[name] for name, words in _PROMISES},
            steps=((None, NEUTRAL), (0.95, OVER)),
            lines=True,
            calcs=("mean", "min"),
            height=12,
        ),
        shared_panels.table(
            "Every limit, and what was measured",
            "Limits of the budget compared with what was measured. The p95s of stages "
            "must not be added: slow stages seldom meet in one request. Used above 100 % = the "
            "p95 is over its limit. A stage without a p95 is not reported.",
            {
                "limit": limit(),
                "p95": _P95,
                "requests within": _WITHIN,
                "p95 uses": f"({_P95}) / on (stage) {limit()}",
            },
            order=("stage", "limit", "p95", "p95 uses", "requests within"),
            renamed={"stage": "limit of"},
            unit="s",
            empty=shared_panels.NO_BUDGET,
            height=12,
            columns=(
                Column(
                    name="p95 uses",
                    unit=_FRACTION,
                    decimals=0,
                    steps=variables.USED,
                    most=2,
                    gauge=True,
                ),
                Column(name="requests within", unit=_FRACTION, decimals=1, steps=variables.GOOD),
            ),
            sort=("p95 uses", True),
        ),
    ),
)

_BURN: Final = Row(
    "How fast is the error budget burnt?",
    (
        shared_panels.graph(
            "Burn rate: 1 uses the error budget up in 30 days",
            "Share of bad requests over the share that may be bad, in two windows. "
            "Above the dashed line of its colour it pages; one of the four limits may hide "
            "another, the tooltip lists all. A line that stays above 1 in six hours will cost the "
            "month. All requests of the budget, whatever is chosen above.",
            *(
                tuple(
                    Query(
                        f'max by (slo) ({bad_ratio(window)}{{budget="$budget"}} '
                        f'/ on (budget, slo) {ALLOWED}{{budget="$budget"}})',
                        f"{{{{slo}}}}, {window}",
                    )
                    for window in ("1h", "6h")
                )
                + tuple(
                    Query(
                        f"max by (slo) (clamp_min(clamp_max({rung.ceiling:g} / "
                        f'{ALLOWED}{{budget="$budget"}}, {rung.factor:g}), 1))',
                        f"{{{{slo}}}} pages above, {rung.long}",
                        bound=True,
                    )
                    for rung in LADDER
                    if rung.severity == "page"
                )
            ),
            unit="suffix:x",
            decimals=1,
            empty=_NO_RULES,
            steps=((None, NEUTRAL), (1, NEAR)),
            lines=True,
            colours={
                f"{slo}{of}, {window}": colour
                for window, colours in (("1h", METRIC_COLOURS), ("6h", PALE_COLOURS))
                for slo, colour in colours.items()
                for of in ("", " pages above")
            },
            width=16,
            height=8,
        ),
        shared_panels.graph(
            "Error budget left of 30 days",
            "What is left of the requests that may be bad in thirty days. At 0 every "
            "risk waits: freeze what can be frozen, and fix what burns.",
            Query(
                f'sort(max by (slo) ({REMAINING}{{budget="$budget"}}))', "{{slo}}", instant=True
            ),
            kind="bargauge",
            unit=_FRACTION,
            decimals=0,
            empty=_NO_RULES,
            steps=variables.LEFT,
            most=1,
            width=8,
            height=8,
        ),
    ),
)

_GROUP: Final = "$by"
_SEEN: Final = promql.total(f"llmtrace_requests_total{{{promql.REQUESTS}}}", _GROUP, window=RANGE)
_LOST: Final = promql.total(
    f'llmtrace_requests_total{{{promql.REQUESTS}, outcome!="success"}}', _GROUP, window=RANGE
)

_COMPARED: Final = Row(
    "What is affected?",
    (
        shared_panels.table(
            "By $by",
            "The same numbers for each $by; choose at the top what to compare by. One "
            "line much worse than the others: the trouble is there. All alike: it is everywhere. "
            "Within budget: of the promise that is kept least, which may be to end well.",
            {
                "requests": _SEEN,
                "within budget": promql.least_within(_GROUP, window=RANGE),
                **{
                    name: quantile(0.95, metric, _GROUP, window=RANGE)
                    for name, (metric, _, _) in zip(
                        ("p95", "p95 TTFT", "p95 TPOT"), _METRICS, strict=True
                    )
                },
                "not succeeded": promql.share(promql.or_zero(_LOST, _SEEN), _SEEN),
            },
            unit="s",
            empty=shared_panels.NO_REQUESTS,
            width=14,
            height=9,
            columns=(
                *(
                    Column(
                        name=one,
                        link=Link(
                            "Only these", "llmtrace-budget", (one, "${__value.raw}"), ("budget",)
                        ),
                    )
                    for one in DIMENSIONS
                ),
                Column(name="requests", unit="locale", decimals=0),
                Column(name="within budget", unit=_FRACTION, decimals=1, steps=variables.GOOD),
                Column(name="not succeeded", unit=_FRACTION, decimals=1, steps=variables.BAD),
            ),
            sort=("within budget", False),
        ),
        Panel(
            kind="timeseries",
            title="Requests within budget, by $by",
            description="Share that kept whichever promise is kept least. Lines that fall "
            "together have one cause; a line that falls alone has its own.",
            queries=(Query(promql.least_within(_GROUP), "{{$by}}"),),
            unit=_FRACTION,
            empty=_NO_RULES,
            most=1,
            width=10,
            height=9,
        ),
        replace(shared_panels.NOT_SUCCEEDED, width=10, height=6),
        replace(shared_panels.OUTCOMES, width=14, height=6),
    ),
)

BUDGET: Final = Board(
    uid="llmtrace-budget",
    title="llmtrace / Latency budget",
    description="Are we within the latency budget, and which stage eats it?",
    rows=(_QUESTION, _EATEN, _LIMITS, _BURN, _COMPARED),
    variables=(BUDGET_CHOICE, *variables.REQUESTS, variables.COMPARED, variables.RECORDED),
    annotations=variables.MARKS,
)
