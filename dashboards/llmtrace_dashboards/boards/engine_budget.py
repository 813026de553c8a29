"""The board about the engine's part of a latency budget, as engines count their requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from llmtrace.display.colours import NEUTRAL, STAGE_COLOURS
from llmtrace_dashboards import promql, variables
from llmtrace_dashboards.boards.shared_panels import NO_ENGINES, graph, table
from llmtrace_dashboards.panels import Board, Column, Link, Panel, Query, Row
from llmtrace_dashboards.promql import ENGINES, RANGE, RATE
from llmtrace_dashboards.rules.engine_limits import METRIC

_Q: Final = 0.95
_JUST_WITHIN: Final = 0.999999999  # a product of floats may come to more than its share
_PLACES: Final = tuple(one.name for one in variables.ENGINE_PLACES)
_LIMITED: Final = {
    "ttft": "TTFT",
    "queue": "Queue",
    "prefill": "Prefill",
    "decode": "Decode",
    "tpot": "Time per token",
    "e2e": "Whole request",
}
_STAGES: Final = ("queue", "prefill", "decode")
_NO_LIMITS: Final = "No limit: load the rules of `llmtrace slo engines`, made from your budget"
_SILENT: Final = "Not reported by these engines, or no request ended"
_BOUNDED: Final = (
    "Between two bounds of the engine's own buckets a percentile is interpolated: it lies in that "
    "bucket, and nowhere more exactly."
)


# Buckets of engines of one kind alone have the same bounds, and may be added up.
_WHERE: Final = f'{ENGINES}, engine="$engine"'


def _limit(which: str) -> str:
    return f'max by (limit) ({METRIC}{{budget="$budget", limit=~"{which}"}})'


def _metric(which: str) -> str:
    return f"llmtrace_engine_{which}_seconds"


def _quantile(which: str, q: float, *by: str, window: str = RATE) -> str:
    return promql.quantile(q, _metric(which), *by, where=_WHERE, window=window)


def _mean(which: str, window: str = RATE) -> str:
    return promql.mean(_metric(which), where=_WHERE, window=window)


def _highest(which: str) -> str:
    """Ask for the upper bound of the bucket that the p95 lies in.

    It is the quantile of exactly the share of requests that are within that bound.
    """
    bucket = f"{_metric(which)}_bucket{{{_WHERE}"
    within = promql.total(f"{bucket}}}", "le", window=RANGE)
    counted = promql.total(f'{bucket}, le="+Inf"}}', window=RANGE)
    reached = f"min({within} >= {_Q:g} * scalar({counted})) / {counted}"
    return f"histogram_quantile(scalar({reached}) * {_JUST_WITHIN}, {within})"


def _each(of: Callable[[str], str]) -> str:
    """Put an expression for each limited duration next to each other, labelled `limit`."""
    return promql.either(*(promql.named(of(which), which, "limit") for which in _LIMITED))


_MEANS: Final = _each(partial(_mean, window=RANGE))
_P95S: Final = _each(partial(_quantile, q=_Q, window=RANGE))

_USED: Final = Row(
    "Are the engines within their part of the budget?",
    (
        graph(
            "Share of its limit that each p95 uses",
            "The p95 of what engines count themselves over what the budget leaves "
            "them: 100 % is the limit. TTFT and the whole request are left what the stages "
            f"outside the engine do not take. {_BOUNDED}",
            Query(
                f"sort_desc(({_P95S}) / on (limit) group_left () {_limit('.+')})",
                "{{limit}}",
                instant=True,
            ),
            kind="bargauge",
            unit="percentunit",
            empty=_NO_LIMITS,
            width=10,
            steps=variables.USED,
        ),
        table(
            "Means, percentiles and limits",
            "Means are exact: sums over counts. A p95 is interpolated between bounds "
            "of the engine's buckets; `p95 is at most` is the upper bound of the bucket it lies "
            "in, which is certain. Where that is far above the p95, finer buckets say more (vLLM "
            "0.32: --custom-histogram-buckets).",
            {
                "mean": _MEANS,
                "p95": _P95S,
                "p95 is at most": _each(_highest),
                "the engine's limit": _limit(".+"),
            },
            unit="s",
            empty=_SILENT,
            width=14,
        ),
    ),
)


def _over_time(which: str, description: str) -> Panel:
    return graph(
        f"{_LIMITED[which]} against its limit",
        f"{description} {_BOUNDED}",
        *(Query(_quantile(which, q), f"p{100 * q:g}") for q in (0.5, 0.95, 0.99)),
        Query(_mean(which), "mean"),
        Query(_limit(which), "limit", bound=True),
        unit="s",
        empty=_SILENT,
        width=8,
        colours={"limit": NEUTRAL},
    )


_OVER_TIME: Final = Row(
    "Since when?",
    (
        graph(
            "Queue, prefill and decode (means, which add up)",
            "Mean time of a request in each of the engine's stages, over all engines. "
            "The stage that grows is where to "
            "look; what users wait for outside of the engine is not on this page.",
            *(Query(_mean(stage), stage) for stage in _STAGES),
            unit="s",
            empty=_SILENT,
            stacked="normal",
            colours={stage: STAGE_COLOURS[stage] for stage in _STAGES},
            width=24,
        ),
        _over_time("ttft", "From arrival at the engine to its first token."),
        _over_time("queue", "Wait before the first schedule: load, or a full KV cache."),
        _over_time("prefill", "First schedule to first token: prompts, cache misses, load."),
        _over_time("decode", "First token to the last: also longer where responses are longer."),
        _over_time("tpot", "A request's mean time per token after the first: batch size, clocks."),
        _over_time("e2e", "Arrival to last token: also longer where responses are longer."),
    ),
)

_WHICH: Final = Row(
    "Which engine?",
    (
        table(
            "Engines, by the p95 of TTFT",
            "Every instance's own p95s over the time shown, and how many requests it "
            "finished. One above the others is a replica to look at; all together is load. "
            f"{_BOUNDED}",
            {
                "TTFT p95": _quantile("ttft", _Q, "instance", window=RANGE),
                "queue p95": _quantile("queue", _Q, "instance", window=RANGE),
                "prefill p95": _quantile("prefill", _Q, "instance", window=RANGE),
                "e2e p95": _quantile("e2e", _Q, "instance", window=RANGE),
                "requests": promql.total(
                    f"{_metric('e2e')}_count{{{_WHERE}}}", "instance", window=RANGE
                ),
            },
            unit="s",
            empty=NO_ENGINES,
            width=24,
            columns=(
                Column(
                    name="instance",
                    link=Link(
                        "This engine", "llmtrace-engine", ("instance", "${__value.raw}"), _PLACES
                    ),
                ),
                Column(name="requests", unit="short", decimals=0),
            ),
            sort=("TTFT p95", True),
        ),
    ),
)

ENGINE_BUDGET: Final = Board(
    uid="llmtrace-engine-budget",
    title="llmtrace / Engine budget",
    description="Are the engines within their part of the latency budget, by their own counts?",
    rows=(_USED, _OVER_TIME, _WHICH),
    variables=(
        *variables.ENGINE_PLACES,
        variables.ENGINE_KIND,
        variables.ENGINE_MODEL,
        variables.INSTANCE,
        variables.ENGINE_BUDGET_NAME,
        variables.RECORDED,
    ),
    annotations=variables.MARKS,
)
