"""Write the PromQL of each number on the dashboards.

Strings in, strings out: the few expressions all panels are made of. Percentiles are of requests
that succeeded (an error after 2 ms is no fast response); outcomes are shown next to them.

`RATE` goes with the step of a graph; `RANGE` is the whole time shown, for panels with one number.
`rate` in the one and `increase` in the other come to the same where they are divided.
"""

from __future__ import annotations

from typing import Final

from llmtrace_dashboards.rules.recording_series import bad_rate, valid_rate

RATE: Final = "$__rate_interval"
RANGE: Final = "$__range"

# Which requests are shown: the variables at the top. An unknown label is an empty one, which `.*`
# matches.
REQUESTS: Final = (
    'service=~"$service", model=~"$model", route=~"$route", region=~"$region"'
)  # fmt: skip
SUCCEEDED: Final = f'{REQUESTS}, outcome="success"'
TURNS: Final = 'service=~"$service", region=~"$region", agent=~"$agent"'
TOOLS: Final = 'service=~"$service", region=~"$region", tool=~"$tool"'
ENGINES: Final = 'instance=~"$instance", model=~"$model"'
# GPUs and targets do not say which model they serve.
INSTANCES: Final = 'instance=~"$instance"'


def change(series: str, window: str = RATE, *, before: str = "") -> str:
    """Ask how much a counter grew: a second, or over a whole window.

    Args:
        series: a selector.
        window: a graph's `RATE`, or `RANGE`.
        before: as `1d`: a window that lies so far back.
    """
    function = "rate" if window == RATE else "increase"
    return f"{function}({series}[{window}]{_offset(before)})"


def total(series: str, *by: str, window: str = RATE, before: str = "") -> str:
    """Add up how much counters grew, by labels."""
    return f"sum{_by(by)} ({change(series, window, before=before)})"


def quantile(
    q: float, metric: str, *by: str, where: str = SUCCEEDED, window: str = RATE, before: str = ""
) -> str:
    """Ask for a quantile of a histogram, by labels."""
    buckets = total(f"{metric}_bucket{{{where}}}", "le", *by, window=window, before=before)
    return f"histogram_quantile({q:g}, {buckets})"


def mean(
    metric: str, *by: str, where: str = SUCCEEDED, window: str = RATE, before: str = ""
) -> str:
    """Ask for the mean of a histogram, by labels."""
    sums = total(f"{metric}_sum{{{where}}}", *by, window=window, before=before)
    counts = total(f"{metric}_count{{{where}}}", *by, window=window, before=before)
    return f"{sums} / {counts}"


def stage_mean(*by: str, window: str = RATE, before: str = "") -> str:
    """Query how long a request is in each stage on average; what is not reported counts as 0.

    Divided by all requests, so that the stages add up to the mean of `e2e`.
    """
    sums = total(
        f"llmtrace_stage_duration_seconds_sum{{{SUCCEEDED}}}",
        "stage", *by, window=window, before=before,
    )  # fmt: skip
    requests = total(f"llmtrace_requests_total{{{SUCCEEDED}}}", *by, window=window, before=before)
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

    def added(series: str) -> str:
        one = f"{series}{where}"
        return f"sum{_by(by)} ({one if window == RATE else f'sum_over_time({one}[{window}])'})"

    return f"{added(bad_rate())} / ({added(valid_rate())} > 0)"


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


def _offset(before: str) -> str:
    return f" offset {before}" if before else ""


def named(expression: str, name: str, label: str = "stage") -> str:
    """Give what has no such label one."""
    return f'label_replace({expression}, "{label}", "{name}", "", "")'


def either(*expressions: str) -> str:
    """Put series of different labels next to each other."""
    return " or ".join(expressions)
