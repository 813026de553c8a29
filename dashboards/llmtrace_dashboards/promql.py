"""Write the PromQL of each number on the dashboards.

Strings in, strings out: the few expressions all panels are made of. Percentiles are of requests
that succeeded (an error after 2 ms is no fast response); outcomes are shown next to them.

`RATE` goes with the step of a graph; `RANGE` is the whole time shown, for panels with one number.
`rate` in the one and `increase` in the other come to the same where they are divided.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from llmtrace_dashboards.rules.recording_series import DIMENSIONS, bad_rate, valid_rate
from llmtrace_dashboards.rules.totals import INTERVAL, P95S, TOTALS, Total, p95_of

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"

# Which requests are shown: the variables at the top. An unknown label is an empty one, which `.*`
# matches.
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


# A label that no series has: it matches a regular expression as the empty text does. All choices
# put together do match that as long as nothing is chosen, which is `.*`, and as the last variable
# is `*`: sums over all label sets have been recorded for the whole time shown.
_NOTHING_CHOSEN: Final = {
    REQUESTS: 'selection=~"$cluster$namespace$job$service$model$route$region-$recorded"',
    TURNS: 'selection=~"$cluster$namespace$job$service$region$agent-$recorded"',
    TOOLS: 'selection=~"$cluster$namespace$job$service$region$tool-$recorded"',
    ENGINES: 'selection=~"$cluster$namespace$job$instance$model-$recorded"',
}


_RECORDED_Q: Final = 0.95
_GROWTH: Final = {RATE: "rate", RANGE: "increase"}


def total(series: str, *by: str, window: str = RATE, before: str = "") -> str:
    """Add up how much counters, or recorded rates, grew, by labels: a second, or over a window.

    Reads the sums that are recorded if nothing is chosen at the top of the dashboard, and the
    series themselves if something is.

    Args:
        series: a selector.
        by: labels to keep.
        window: a graph's `RATE`, or `RANGE`.
        before: as `1d`: a window that lies so far back.
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
    chosen = next((one for one in _NOTHING_CHOSEN if one in where), None)
    kept = _recorded(TOTALS.get(metric), where, by)
    if chosen is None or kept is None:
        return live(series)
    unchosen = _NOTHING_CHOSEN[chosen]
    sums = recorded(f"{kept}{{{where.replace(chosen, unchosen)}")
    if window == RANGE and not is_rate:
        sums += f" * scalar(max({INTERVAL}))"
    something = f"{chosen}, {unchosen.replace('=~', '!~', 1)}"
    return f"({sums} or {live(series.replace(chosen, something))})"


def _recorded(kept: Total | None, where: str, by: tuple[str, ...]) -> str | None:
    """Name the recorded sum that has all labels of a query; `None` = there is none."""
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
    """Ask for a quantile of a histogram, by labels: the one that is recorded, if there is one."""
    of_graph = (q, window, before) == (_RECORDED_Q, RATE, "")
    chosen = next((one for one in _NOTHING_CHOSEN if one in where), None)
    if of_graph and chosen is not None and metric in P95S and by == P95S[metric][:1]:
        unchosen = _NOTHING_CHOSEN[chosen]
        rest = where.replace(chosen, f"{chosen}, {unchosen.replace('=~', '!~', 1)}")
        buckets = f"sum by (le, {', '.join(by)}) (rate({metric}_bucket{{{rest}}}[{window}]))"
        return f"({p95_of(metric)}{{{unchosen}}} or histogram_quantile({q:g}, {buckets}))"
    buckets = total(f"{metric}_bucket{{{where}}}", "le", *by, window=window, before=before)
    return f"histogram_quantile({q:g}, {buckets})"


def mean(
    metric: str, *by: str, where: str = SUCCEEDED, window: str = RATE, before: str = ""
) -> str:
    """Ask for the mean of a histogram, by labels."""
    sums = total(f"{metric}_sum{{{where}}}", *by, window=window, before=before)
    counts = total(f"{metric}_count{{{where}}}", *by, window=window, before=before)
    return f"{sums} / {counts}"


def stage_mean(*by: str) -> str:
    """Query how long a request is in each stage on average; what is not reported counts as 0.

    Divided by all requests, so that the stages add up to the mean of `e2e`.
    """
    sums = total(f"llmtrace_stage_duration_seconds_sum{{{SUCCEEDED}}}", "stage", *by)
    requests = total(f"llmtrace_requests_total{{{SUCCEEDED}}}", *by)
    on = f"on ({', '.join(by)})"
    return f"{sums} / {on} group_left () {requests}"


def anatomy(q: float = 0.95, window: str = RATE, *, before: str = "") -> str:
    """Ask where the time of the request at a quantile goes, by stage; adds up to the quantile.

    Of the requests of the band that the quantile falls into, each stage's share of their time.
    """
    cumulated = total(
        f"llmtrace_e2e_seconds_bucket{{{SUCCEEDED}}}", "le", window=window, before=before
    )
    counted = total(f"llmtrace_e2e_seconds_count{{{SUCCEEDED}}}", window=window, before=before)
    reached = f"{cumulated} >= {q:g} * scalar({counted})"
    spent = total(
        f"llmtrace_anatomy_seconds_total{{{SUCCEEDED}}}",
        "stage", "over", "le", window=window, before=before,
    )  # fmt: skip
    band = (
        f"({spent} and on (le) ({reached})) "
        f'unless on (over) label_replace({reached}, "over", "$1", "le", "(.*)")'
    )
    value = quantile(q, "llmtrace_e2e_seconds", window=window, before=before)
    return (
        f"sum by (stage) ({band}) / on () group_left () (sum ({band}) > 0) "
        f"* on () group_left () {value}"
    )


def limit(which: str = ".+") -> str:
    """Query the budget's limits of metrics and stages, from whichever process exposes them."""
    return f'max by (stage) (llmtrace_budget_seconds{{budget="$budget", stage=~"{which}"}})'


# What a budget calls a limit, and the SLO of it.
_SLO: Final = {"total": "e2e"}


def within(limited: str, *by: str, window: str = RATE) -> str:
    """Ask for the share of the requests that kept a budget's promise, by labels.

    Of what the recording rules count as bad and valid, as the alerts do: exact, of the models and
    routes that the budget is for, and of no request for which it is not reported.

    Args:
        limited: `total`, `ttft`, `tpot` or `availability`.
        by: labels to keep.
        window: a graph's `RATE`, or `RANGE`.
    """
    return "1 - " + _bad_share(f'slo="{_SLO.get(limited, limited)}"', by, window)


def least_within(*by: str, window: str = RATE) -> str:
    """Ask for the same of whichever promise of the budget is kept least."""
    worst = _bad_share('slo!=""', ("slo", *by), window)
    return f"1 - max{_by(by)} ({worst})"


def _bad_share(slo: str, by: tuple[str, ...], window: str) -> str:
    where = f'{{budget="$budget", {slo}, {REQUESTS}}}'
    bad, valid = (
        total(f"{series}{where}", *by, window=window) for series in (bad_rate(), valid_rate())
    )
    return share(bad, valid)


def stage_within(window: str = RATE) -> str:
    """Ask for the share of requests, of those that know it, that are within each stage's limit.

    The limit carries the bucket bound that it became, so that the share is exact and no threshold
    is written here.
    """
    name = "llmtrace_stage_duration_seconds"
    limits = 'max by (stage, bound) (llmtrace_budget_seconds{budget="$budget"})'
    edges = f'label_replace(topk by (stage) (1, {limits}), "le", "$1", "bound", "(.*)")'
    good = total(f"{name}_bucket{{{SUCCEEDED}}}", "stage", "le", window=window)
    known = total(f"{name}_count{{{SUCCEEDED}}}", "stage", window=window)
    return f"sum by (stage) ({good} and on (stage, le) {edges}) / {known}"


def stage_share(stage: str) -> str:
    """Ask which share of all the time requests took was in one stage."""
    sums = f'llmtrace_stage_duration_seconds_sum{{{SUCCEEDED}, stage="{stage}"}}'
    return share(total(sums), total(f"llmtrace_e2e_seconds_sum{{{SUCCEEDED}}}"))


def share(part: str, whole: str) -> str:
    """Divide, with nothing where there was nothing to divide."""
    return f"{part} / ({whole} > 0)"


def or_zero(part: str, whole: str) -> str:
    """Take 0 for a part that is missing where the whole is there: nothing failed, say."""
    return f"({part} or {whole} * 0)"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def named(expression: str, name: str, label: str = "stage") -> str:
    """Give what has no such label one."""
    return f'label_replace({expression}, "{label}", "{name}", "", "")'


def either(*expressions: str) -> str:
    """Put series of different labels next to each other."""
    return " or ".join(expressions)
