"""Write the PromQL of each number on the dashboards.

Strings in, strings out: the few expressions that all panels are made of. Percentiles are of
requests that succeeded (an error after 2 ms is no fast response); outcomes are shown next to them.

`RATE` is the window of a graph, which follows its step; `RANGE` is the whole time shown, for
panels with one number. Ratios may use either, since `rate` and `increase` differ by a factor that
cancels out.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from llmtrace_dashboards.rules.recording_series import DIMENSIONS, bad_rate, valid_rate
from llmtrace_dashboards.rules.totals import INTERVAL, P95S, TOTALS, Total, p95_of

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"

# Which requests are shown: the variables at the top. A series without a label is matched by `.*`.
PLACES: Final = 'cluster=~"$cluster", namespace=~"$namespace", job=~"$job"'
REQUESTS: Final = (
    f'{PLACES}, service=~"$service", model=~"$model", route=~"$route", region=~"$region"'
)
SUCCEEDED: Final = f'{REQUESTS}, outcome="success"'
TURNS: Final = f'{PLACES}, service=~"$service", region=~"$region", agent=~"$agent"'
TOOLS: Final = f'{PLACES}, service=~"$service", region=~"$region", tool=~"$tool"'
ENGINES: Final = f'{PLACES}, instance=~"$instance", model=~"$model"'
# GPUs and targets do not say which model they serve.
INSTANCES: Final = f'{PLACES}, instance=~"$instance"'


# No series has the label `selection`, so it is compared as an empty text. The regular expression
# of all variables together matches that only while nothing is chosen (each variable is `.*`) and
# `$recorded` is `*`: sums over all label sets were recorded for the whole time shown.
_NOTHING_CHOSEN: Final = {
    REQUESTS: 'selection=~"$cluster$namespace$job$service$model$route$region-$recorded"',
    TURNS: 'selection=~"$cluster$namespace$job$service$region$agent-$recorded"',
    TOOLS: 'selection=~"$cluster$namespace$job$service$region$tool-$recorded"',
    ENGINES: 'selection=~"$cluster$namespace$job$instance$model-$recorded"',
}


_P95: Final = 0.95  # the quantile that is recorded
_GROWTH: Final = {RATE: "rate", RANGE: "increase"}


def total(series: str, *by: str, window: str = RATE, before: str = "") -> str:
    """Sum counters or recorded rates, by labels: their growth per second, or over the time shown.

    Reads recorded sums while nothing is chosen at the top of the dashboard, and otherwise the
    series themselves.

    Args:
        series: a selector.
        by: labels to keep.
        window: a graph's `RATE`, or `RANGE`.
        before: as `1d`: how much earlier the window lies.
    """
    past = f" offset {before}" if before else ""

    def added(one: str, function: str) -> str:
        return f"sum{_by(by)} ({function}({one}[{window}]{past}))"

    def recorded(one: str) -> str:
        if window == RANGE:
            return added(one, "sum_over_time")
        return f"sum{_by(by)} ({one}{past})"

    metric, _, where = series.partition("{")
    is_rate = ":" in metric
    live = recorded if is_rate else partial(added, function=_GROWTH[window])
    chosen = _choices_in(where)
    kept = _recorded(TOTALS.get(metric), where, by)
    if chosen is None or kept is None:
        return live(series)
    sums = recorded(f"{kept}{{{where.replace(chosen, _NOTHING_CHOSEN[chosen])}")
    if window == RANGE and not is_rate:
        sums += f" * scalar(max({INTERVAL}))"
    return f"({sums} or {live(series.replace(chosen, _something_chosen(chosen)))})"


def _choices_in(where: str) -> str | None:
    """Return the matchers of a dashboard's variables in a selector; `None` = there are none."""
    return next((choices for choices in _NOTHING_CHOSEN if choices in where), None)


def _something_chosen(choices: str) -> str:
    """Return the matchers of series that are read only while something is chosen."""
    return f"{choices}, {_NOTHING_CHOSEN[choices].replace('=~', '!~', 1)}"


def _recorded(kept: Total | None, where: str, by: tuple[str, ...]) -> str | None:
    """Return the name of the recorded sum that has all labels of a query, if there is one."""
    if kept is None or kept.only not in where:
        return None
    more = [label for label in by if label not in kept.own]
    if not more:
        return kept.name()
    if more == ["$by"] and set(DIMENSIONS) <= set(kept.by):
        return kept.name("${by}")
    return kept.name(more[0]) if len(more) == 1 and more[0] in kept.by else None


def quantile(
    q: float, metric: str, *by: str, where: str = SUCCEEDED, window: str = RATE, before: str = ""
) -> str:
    """Query a quantile of a histogram, by labels: the recorded one, if there is one."""
    of_graph = (q, window, before) == (_P95, RATE, "")
    chosen = _choices_in(where)
    if of_graph and chosen is not None and metric in P95S and by == P95S[metric][:1]:
        rest = where.replace(chosen, _something_chosen(chosen))
        buckets = f"sum by (le, {', '.join(by)}) (rate({metric}_bucket{{{rest}}}[{window}]))"
        recorded = f"{p95_of(metric)}{{{_NOTHING_CHOSEN[chosen]}}}"
        return f"({recorded} or histogram_quantile({q:g}, {buckets}))"
    buckets = total(f"{metric}_bucket{{{where}}}", "le", *by, window=window, before=before)
    return f"histogram_quantile({q:g}, {buckets})"


def mean(metric: str, *by: str, where: str = SUCCEEDED, window: str = RATE) -> str:
    """Query the mean of a histogram, by labels."""
    sums = total(f"{metric}_sum{{{where}}}", *by, window=window)
    counts = total(f"{metric}_count{{{where}}}", *by, window=window)
    return f"{sums} / {counts}"


def stage_mean(*by: str) -> str:
    """Query how long a request is in each stage on average; what is not reported counts as 0.

    Divided by all requests, so that the stages add up to the mean of `e2e`.
    """
    sums = total(f"llmtrace_stage_duration_seconds_sum{{{SUCCEEDED}}}", "stage", *by)
    requests = total(f"llmtrace_requests_total{{{SUCCEEDED}}}", *by)
    on = f"on ({', '.join(by)})"
    return f"{sums} / {on} group_left () {requests}"


def anatomy(before: str = "") -> str:
    """Query where the time of the p95 request goes, by stage; the stages add up to the p95.

    Each stage's share of the time of the requests in the p95's bucket, over the time shown, or
    that time so much earlier as `before` says (`1d`).
    """
    past = partial(total, window=RANGE, before=before)
    cumulated = past(f"llmtrace_e2e_seconds_bucket{{{SUCCEEDED}}}", "le")
    counted = past(f"llmtrace_e2e_seconds_count{{{SUCCEEDED}}}")
    reached = f"{cumulated} >= {_P95:g} * scalar({counted})"
    spent = past(f"llmtrace_anatomy_seconds_total{{{SUCCEEDED}}}", "stage", "over", "le")
    band = (
        f"({spent} and on (le) ({reached})) "
        f'unless on (over) label_replace({reached}, "over", "$1", "le", "(.*)")'
    )
    value = quantile(_P95, "llmtrace_e2e_seconds", window=RANGE, before=before)
    return (
        f"sum by (stage) ({band}) / on () group_left () (sum ({band}) > 0) "
        f"* on () group_left () {value}"
    )


def limit(which: str = ".+") -> str:
    """Query the budget's limits of metrics and stages, from any process that exposes them."""
    return f'max by (stage) (llmtrace_budget_seconds{{budget="$budget", stage=~"{which}"}})'


# What a budget calls a limit, and the SLO of it.
_SLO: Final = {"total": "e2e"}


def within(limited: str, *by: str, window: str = RATE) -> str:
    """Query the share of requests within one limit of a budget, by labels.

    Counted by the recording rules, as for the alerts: exactly, for the models and routes that the
    budget covers, and without requests that do not report the limited duration.

    Args:
        limited: `total`, `ttft`, `tpot` or `availability`.
        by: labels to keep.
        window: a graph's `RATE`, or `RANGE`.
    """
    return "1 - " + _bad_share(f'slo="{_SLO.get(limited, limited)}"', by, window)


def least_within(*by: str, window: str = RATE) -> str:
    """Query the same for the limit that the fewest requests are within."""
    worst = _bad_share('slo!=""', ("slo", *by), window)
    return f"1 - max{_by(by)} ({worst})"


def _bad_share(slo: str, by: tuple[str, ...], window: str) -> str:
    where = f'{{budget="$budget", {slo}, {REQUESTS}}}'
    bad, valid = (
        total(f"{series}{where}", *by, window=window) for series in (bad_rate(), valid_rate())
    )
    return share(bad, valid)


def stage_within() -> str:
    """Query the share of requests within each stage's limit, over the time shown.

    Requests that do not report the stage are not counted. The limit's series is labelled with the
    bucket bound that it became, so the share is exact.
    """
    name = "llmtrace_stage_duration_seconds"
    limits = 'max by (stage, bound) (llmtrace_budget_seconds{budget="$budget"})'
    edges = f'label_replace(topk by (stage) (1, {limits}), "le", "$1", "bound", "(.*)")'
    good = total(f"{name}_bucket{{{SUCCEEDED}}}", "stage", "le", window=RANGE)
    known = total(f"{name}_count{{{SUCCEEDED}}}", "stage", window=RANGE)
    return f"sum by (stage) ({good} and on (stage, le) {edges}) / {known}"


def stage_share(stage: str) -> str:
    """Query one stage's share of the time of all requests."""
    sums = f'llmtrace_stage_duration_seconds_sum{{{SUCCEEDED}, stage="{stage}"}}'
    return share(total(sums), total(f"llmtrace_e2e_seconds_sum{{{SUCCEEDED}}}"))


def share(part: str, whole: str) -> str:
    """Divide, with nothing where there was nothing to divide."""
    return f"{part} / ({whole} > 0)"


def or_zero(part: str, whole: str) -> str:
    """Use 0 for a part that has no series although the whole has: nothing failed, say."""
    return f"({part} or {whole} * 0)"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def named(expression: str, name: str, label: str = "stage") -> str:
    """Add a label to series that lack it."""
    return f'label_replace({expression}, "{label}", "{name}", "", "")'


def either(*expressions: str) -> str:
    """Combine series that have different labels."""
    return " or ".join(expressions)
