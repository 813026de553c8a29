"""Define the alerts: when they fire, and what they carry for the person on call.

Burn-rate alerts from the budget file, and a few faults that no budget covers: the collector or an
engine is gone, responses break off, clients give up. Each carries where to look (dashboard,
runbook) and the `llmtrace triage` command for its window.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from llmtrace.exporters.prometheus.buckets import LATENCY_S
from llmtrace_dashboards.rules import recording_series as names
from llmtrace_dashboards.rules.burn_rate import RuleSettings, Severity, Window, seconds
from llmtrace_dashboards.rules.slo import Slo, bound, plain, quoted

BUDGET_DASHBOARD: Final = "llmtrace-budget"
ENGINE_DASHBOARD: Final = "llmtrace-engine"
TRIAGE_DASHBOARD: Final = "llmtrace-triage"
_BEFORE: Final = 4  # times its own length that is shown with a window
_USUAL_S: Final = 21_600  # how far `llmtrace triage` looks back by default
_BY: Final = ("model", "route", "service")
_AND_SITES: Final = ", ".join((*_BY, *names.SITES))
# Named in a text, and chosen on a dashboard, where Prometheus labels its series with them.
_AT: Final = "".join(
    f"{{{{ with $labels.{one} }}}}, {one} {{{{ . }}}}{{{{ end }}}}" for one in names.SITES
)
_CHOSEN: Final = "".join(
    f"{{{{ with $labels.{one} }}}}&var-{one}={{{{ . | urlquery }}}}{{{{ end }}}}"
    for one in names.SITES
)
# Thresholds of what no budget covers: shares of the requests, and how many it takes at least.
IN_STREAM_SHARE: Final = 0.01
TRUNCATED_SHARE: Final = 0.01
GIVEN_UP_SHARE: Final = 0.05
MIN_BROKEN: Final = 5
_BROKEN_WINDOW: Final = "10m"  # over which broken responses are counted
MAX_LAG_S: Final = 120  # with something in the spool all the time
# How recently a collector must have been there for its absence to be a fault.
_SEEN: Final = "1d"
_BESIDE: Final = "gateway|gpu"  # kinds of targets that are no engine
_INSTANCE: Final = "&var-instance={{ $labels.instance | urlquery }}"
# Most of a pile-up lies in one or two buckets; this is the largest ratio of their bounds.
PILE_WIDTH: Final = 1.8


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule.

    Attributes:
        name: in CamelCase; its heading in docs/on-call/alerts.md.
        severity: `page` = a person, now; `ticket` = a person, in working hours.
        expression: PromQL.
        lasting: how long it must hold before it fires, in Prometheus's notation; `None` = 0.
        labels: in addition to the severity.
        annotations: texts, which may hold Prometheus's templates.
    """

    name: str
    severity: Severity
    expression: str
    lasting: str | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    def as_rule(self) -> dict[str, Any]:
        """Return it as Prometheus reads it."""
        lasting = {} if self.lasting is None else {"for": self.lasting}
        return {
            "alert": self.name,
            "expr": self.expression,
            **lasting,
            "labels": {"severity": self.severity, **self.labels},
            "annotations": dict(self.annotations),
        }


def burning(slos: Iterable[Slo], settings: RuleSettings) -> Iterator[Alert]:
    """Yield the burn-rate alerts of the SLOs that have any: a rule for each rung of the ladder."""
    for slo in slos:
        if slo.alerts:
            for window in settings.ladder:
                yield _burn(slo, window, settings)


def _burn(slo: Slo, window: Window, settings: RuleSettings) -> Alert:
    most = f"{window.threshold(slo.allowed):g}"
    latency = slo.threshold_s is not None
    name = "LlmtraceLatencyBudgetBurn" if latency else "LlmtraceAvailabilityBudgetBurn"
    bad = "too slow" if latency else "broken"
    spent = window.spent(slo.allowed, settings.period)
    filters = {"model": plain(slo.models), "route": plain(slo.routes)}
    return Alert(
        name=name,
        severity=window.severity,
        # By site; and over all sites, where no single one burns.
        expression=(
            f"{_burns(slo, window, settings, names.SITE_LEVEL)}\n"
            f"or on (budget, slo)\n{_burns(slo, window, settings, names.SLO_LEVEL)}"
        ),
        lasting=None,
        labels={
            "budget": slo.budget,
            "slo": slo.name,
            "window": window.long,
            **{label: value for label, value in filters.items() if value is not None},
        },
        annotations=_annotations(
            name, BUDGET_DASHBOARD, window.long, settings, filters,
            summary=(
                f"{slo.budget}{_AT}: {{{{ $value | humanizePercentage }}}} of the requests of the "
                f"last {window.long} are {bad} ({slo.name})"
            ),
            description=(
                f"Promised: {slo.promise}. Above {100 * float(most):g} % over {window.long} and "
                f"still over {window.short}, {spent:.1%} of the error budget of {settings.period} "
                f"is gone within {window.long}; at {100 * slo.allowed:g} % it would last exactly "
                f"{settings.period}."
            ),
            metric=slo.name if latency else None,
        ),
    )  # fmt: skip


def _burns(slo: Slo, window: Window, settings: RuleSettings, level: str) -> str:
    where = f"{{budget={quoted(slo.budget)}, slo={quoted(slo.name)}}}"
    most = f"{window.threshold(slo.allowed):g}"
    return (
        f"({names.bad_ratio(window.long, level)}{where} > {most}\n"
        f"and {names.bad_ratio(window.short, level)}{where} > {most}\n"
        f"and {names.valid_count(window.short, level)}{where} >= {settings.least_requests})"
    )


def unmeasured(slos: Iterable[Slo], settings: RuleSettings) -> Iterator[Alert]:
    """Yield an alert for each threshold that some instance does not count by.

    A histogram has exact counts at its own bucket bounds alone. An instance that was not given the
    budget file has no bound at the threshold, and its requests would burn nothing, unseen. One
    that is gone, as every old one after a rolling restart, is not reported.
    """
    for slo in slos:
        if slo.threshold_s is None:
            continue
        name = "LlmtraceBudgetUnmeasured"
        metric = f"llmtrace_{slo.name}_seconds"
        where = ", ".join(slo.selector)
        edge = ", ".join((*slo.selector, f'le="{bound(slo.threshold_s)}"'))
        yield Alert(
            name=name,
            severity="ticket",
            expression=(
                f"count by (service, instance, {', '.join(names.SITES)}) (\n"
                f"(rate({metric}_count{{{where}}}[10m]) > 0 and {metric}_count{{{where}}})\n"
                f"unless ignoring (le) {metric}_bucket{{{edge}}}\n)"
            ),
            lasting="10m",
            labels={"budget": slo.budget, "slo": slo.name},
            annotations=_annotations(
                name, BUDGET_DASHBOARD, "1h", settings, {},
                summary=(
                    f"{{{{ $labels.service }}}} on {{{{ $labels.instance }}}} does not count "
                    f"{slo.name} by the limit of the budget {slo.budget}"
                ),
                description=(
                    f"No bucket of its {metric} ends at {bound(slo.threshold_s)} s, so that "
                    "its requests count neither as good nor as bad. Give the application and the "
                    "collector the budget file these rules were made from."
                ),
                metric=slo.name,
            ),
        )  # fmt: skip


def lost(settings: RuleSettings) -> Iterator[Alert]:
    """Yield the alerts for what went silent: the collector, an engine, another target."""
    yield _stalled(settings)
    yield _silent(
        "LlmtraceEngineDown",
        "page",
        # The kind of a target that never answered is unknown: it may be an engine.
        f'kind!~"{_BESIDE}"',
        settings,
        lasting="1m",
        window="30m",
        summary="{{ $labels.instance }} does not answer the collector",
        description=(
            "An engine has not exposed its metrics for a minute: its process died, hangs, or "
            "cannot be reached. Requests that were running there broke off together."
        ),
    )
    yield _silent(
        "LlmtraceTargetDown",
        "ticket",
        f'kind=~"{_BESIDE}"',
        settings,
        lasting="10m",
        window="1h",
        summary="{{ $labels.instance }} ({{ $labels.kind }}) does not answer the collector",
        description=(
            "A gateway or GPU exporter has not exposed its metrics for ten minutes. If requests "
            "fail, other alerts say so; meanwhile triage cannot blame or clear what it exposes "
            "of: a gateway's own time and retries, a GPU's clocks and throttling."
        ),
    )


def _stalled(settings: RuleSettings) -> Alert:
    name = "LlmtraceCollectorStalled"
    collector = f"{{job={quoted(settings.collector_job)}}}"
    job = f"(job, {', '.join(names.SITES)})"
    return Alert(
        name=name,
        severity="page",
        expression=(
            f"up{collector} == 0\n"
            f"or (absent(up{collector}) and on () "
            f"count(present_over_time(llmtrace_ingest_lag_seconds[{_SEEN}])))\n"
            f"or max by {job} (llmtrace_ingest_lag_seconds{collector}) > {MAX_LAG_S}\n"
            f"or min by {job} (increase(llmtrace_target_late_total{collector}[5m])) > 0"
        ),
        lasting="2m",
        labels={},
        annotations=_annotations(
            name, ENGINE_DASHBOARD, "1h", settings, {},
            summary="The collector is down, stores nothing, or reads none of its targets in time",
            description=(
                "Requests or engines are not counted while this lasts: no other alert can be "
                "trusted, and no alert means nothing."
            ),
        ),
    )  # fmt: skip


def _silent(
    name: str,
    severity: Severity,
    kinds: str,
    settings: RuleSettings,
    *,
    lasting: str,
    window: str,
    summary: str,
    description: str,
) -> Alert:
    return Alert(
        name=name,
        severity=severity,
        expression=f"llmtrace_target_up{{{kinds}}} == 0",
        lasting=lasting,
        labels={},
        annotations=_annotations(
            name, ENGINE_DASHBOARD, window, settings, {},
            summary=summary, description=description, more=_INSTANCE,
        ),
    )  # fmt: skip


def broken(settings: RuleSettings) -> Iterator[Alert]:
    """Yield the alerts for responses that break off, by model, route and service."""
    yield _in_stream(settings)
    yield _truncated(settings)
    yield _given_up(settings)


def _increase(metric: str, where: str = "") -> str:
    return f"sum by ({_AND_SITES}) (increase(llmtrace_{metric}{where}[{_BROKEN_WINDOW}]))"


def _in_stream(settings: RuleSettings) -> Alert:
    started = _increase("ttft_seconds_count")
    broke = _increase("ttft_seconds_count", '{outcome="error"}')
    return _breaking(
        "LlmtraceErrorsInStream",
        f"{broke} / {started} > {IN_STREAM_SHARE:g}\n"
        f"and {broke} >= {MIN_BROKEN}\n"
        f"and {started} >= {settings.least_requests}",
        settings,
        summary="{{ $value | humanizePercentage }} of the responses break off with an error",
        description=(
            "The stream was answered with 200, showed content, and then an error came inside it: "
            "rate limit, context overflow, an engine that died. No status code counts these."
        ),
    )


def _truncated(settings: RuleSettings) -> Alert:
    where = '{outcome="truncated"}'
    requests = _increase("requests_total")
    truncated = _increase("requests_total", where)
    age, aged = (_increase(f"e2e_seconds_{of}", where) for of in ("sum", "count"))
    increase = f"increase(llmtrace_e2e_seconds_bucket{where}[{_BROKEN_WINDOW}])"
    buckets = f"sum by ({_AND_SITES}, le) ({increase})"
    low, high = (f"histogram_quantile({q}, {buckets})" for q in (0.1, 0.9))
    return _breaking(
        "LlmtraceTruncationPileUp",
        # Above the last bound every quantile is that bound, which looks like a pile and is none.
        f"{age} / {aged}\n"
        f"and {truncated} / {requests} > {TRUNCATED_SHARE:g}\n"
        f"and {truncated} >= {MIN_BROKEN}\n"
        f"and {high} < {PILE_WIDTH:g} * {low}\n"
        f"and {high} > {low}\n"
        f"and {high} < {LATENCY_S[-1]:g}\n"
        f"and {requests} >= {settings.least_requests}",
        settings,
        summary=(
            "responses are cut off, nearly all of them after about {{ $value | humanizeDuration }}"
        ),
        description=(
            "Streams end without a finish reason, and at much the same age: an idle or read "
            "timeout of a proxy, load balancer or gateway between client and engine."
        ),
    )


def _given_up(settings: RuleSettings) -> Alert:
    where = '{outcome="cancelled"}'
    requests = _increase("requests_total")
    cancelled = _increase("requests_total", where)
    given_up = f"({cancelled} - {_increase('ttft_seconds_count', where)})"
    return _breaking(
        "LlmtraceCallersGiveUp",
        f"{given_up} / {requests} > {GIVEN_UP_SHARE:g}\n"
        f"and {given_up} >= {MIN_BROKEN}\n"
        f"and {requests} >= {settings.least_requests}",
        settings,
        summary="{{ $value | humanizePercentage }} of the callers leave before the first content",
        description=(
            "A client that leaves before the first content is in no percentile of TTFT: the "
            "slowest waits are missing, and a p95 may even look better for it."
        ),
    )


def _breaking(
    name: str, expression: str, settings: RuleSettings, *, summary: str, description: str
) -> Alert:
    about = (
        "{{ $labels.service }}{{ with $labels.model }}, {{ . }}{{ end }}"
        "{{ with $labels.route }}, route {{ . }}{{ end }}" + _AT
    )
    return Alert(
        name=name,
        severity="ticket",
        expression=expression,
        lasting=None,
        labels={},
        annotations=_annotations(
            name, TRIAGE_DASHBOARD, _BROKEN_WINDOW, settings, dict.fromkeys(_BY, ""),
            summary=f"{about}: {summary}", description=description,
        ),
    )  # fmt: skip


def _annotations(
    name: str,
    dashboard: str,
    window: str,
    settings: RuleSettings,
    filters: Mapping[str, str | None],
    *,
    summary: str,
    description: str,
    metric: str | None = None,
    more: str = "",
) -> dict[str, str]:
    """Return an alert's texts: what is wrong, where to look, and the command for its window."""
    shown = _BEFORE * seconds(window)
    if settings.managed:
        start, end = f"now-{_minutes(shown)}", "now"
    else:
        start, end = _milliseconds(f"time() - {shown:.10g}"), _milliseconds("time()")
    chosen = "".join(
        f"&var-{label}={quote(value, safe='') if value else _URL.format(label=label)}"
        for label, value in filters.items()
        if value is not None
    )
    base = settings.dashboards.rstrip("/")
    return {
        "summary": summary,
        "description": description,
        "dashboard_url": f"{base}/d/{dashboard}?from={start}&to={end}{chosen}{_CHOSEN}{more}",
        "runbook_url": f"{settings.runbooks}#{name.lower()}",
        "triage": _triage(window, settings, filters, metric),
    }


def _triage(
    window: str, settings: RuleSettings, filters: Mapping[str, str | None], metric: str | None
) -> str:
    """Return the command that compares a window that ends now with the time before it."""
    long = seconds(window)
    if settings.managed:
        after = f"{_minutes(long)}/now"
    else:
        after = f"{_time(f'time() - {long:.10g}')}/{_time('time()')}"
    words = [f"llmtrace triage --after {after}"]
    if _BEFORE * long > _USUAL_S:
        words.append(f"--last {_BEFORE * long / 3600:g}h")
    if metric is not None:
        words.append(f"--metric {metric}")
    if settings.collector is not None:
        words.append(f"--url {shlex.quote(settings.collector)}")
    for label, value in filters.items():
        if value:
            words.append(f"--where {shlex.quote(f'{label}={value}')}")
    unset = "".join(_WORD.format(label=label) for label, value in filters.items() if value == "")
    return " ".join(words) + unset


# A label's value comes from a request: quoted for a URL, and for a shell.
_URL: Final = "{{{{ $labels.{label} | urlquery }}}}"
_WORD: Final = (
    "{{{{ with $labels.{label} }}}} --where '{label}="
    r"""{{{{ . | reReplaceAll "'" "'\\''" }}}}'{{{{ end }}}}"""
)


def _minutes(seconds_long: float) -> str:
    """Write a stretch of time as Grafana and `llmtrace triage` both read it."""
    return f"{math.ceil(seconds_long / 60)}m"


def _time(expression: str) -> str:
    """Return a template for a moment, as `llmtrace` reads it: the alert has no time of its own."""
    return (
        f'{{{{ with query "{expression}" }}}}'
        '{{ (. | first | value | toTime).Format "2006-01-02T15:04:05Z" }}{{ end }}'
    )


def _milliseconds(expression: str) -> str:
    return (
        f'{{{{ with query "1000 * ({expression})" }}}}'
        '{{ . | first | value | printf "%.0f" }}{{ end }}'
    )


def alerts(slos: Sequence[Slo], settings: RuleSettings) -> tuple[Alert, ...]:
    """Return every alert there is for some SLOs."""
    return (
        *burning(slos, settings),
        *unmeasured(slos, settings),
        *lost(settings),
        *broken(settings),
    )
