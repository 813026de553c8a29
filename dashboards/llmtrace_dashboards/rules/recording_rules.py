"""Make the rule files for Prometheus.

Two, from a budget file: recording rules for what panels and alerts query again and again, and
the alerts. They are plain Prometheus: `promtool check rules` reads them, and so do Mimir, Thanos
and VictoriaMetrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from llmtrace.budget import Budget
from llmtrace_dashboards.rules.alerts import alerts
from llmtrace_dashboards.rules.burn_rate import RuleSettings, seconds
from llmtrace_dashboards.rules.engine_limits import engine_limits
from llmtrace_dashboards.rules.recording_series import (
    ALLOWED,
    DIMENSIONS,
    PLACES,
    REMAINING,
    SITE_LEVEL,
    SITES,
    SLO_LEVEL,
    Recorded,
    bad_rate,
    bad_ratio,
    bad_total,
    valid_count,
    valid_rate,
    valid_total,
)
from llmtrace_dashboards.rules.slo import Slo, counted, promised, quoted, slos
from llmtrace_dashboards.rules.totals import totals, totals_by

_KEPT: Final = (*DIMENSIONS, *PLACES)
# What is recorded of SLOs, and by which labels.
_LEVELS: Final = {SLO_LEVEL: ("budget", "slo"), SITE_LEVEL: ("budget", "slo", *SITES)}


def rule_files(
    budgets: Iterable[Budget], settings: RuleSettings | None = None
) -> dict[str, dict[str, Any]]:
    """Return rule files by their names, as Prometheus reads them.

    Raises:
        ConfigError: the budgets set nothing to alert on, or a setting is wrong.
    """
    settings = settings or RuleSettings()
    budgets = tuple(budgets)
    slos(budgets)
    return {
        "recording.yaml": {
            "groups": [*_recording(counted(budgets), settings), _limits(budgets, settings)]
        },
        "alerts.yaml": {
            "groups": [
                {
                    "name": "llmtrace-alerts",
                    "interval": settings.interval,
                    "rules": [alert.as_rule() for alert in alerts(promised(budgets), settings)],
                }
            ]
        },
    }


def engine_file(
    budgets: Iterable[Budget], normalised: Sequence[Mapping[str, Any]], settings: RuleSettings
) -> dict[str, dict[str, Any]]:
    """Return the rule file for a Prometheus that scrapes engines itself, by its name.

    It records the engine's share of budgets, and `normalised`: groups of rules that the
    collector's profiles make.
    """
    return {"engines.yaml": {"groups": [*normalised, _limits(budgets, settings)]}}


def _limits(budgets: Iterable[Budget], settings: RuleSettings) -> dict[str, Any]:
    return _group("llmtrace-engine-budget", settings.interval, engine_limits(budgets))


def _recording(of: Sequence[Slo], settings: RuleSettings) -> Iterator[dict[str, Any]]:
    # The long windows are sums over what was recorded before them.
    levels = (rule for level in _LEVELS for rule in _of_all(settings, level))
    yield _group("llmtrace-slo", settings.interval, (*_of_each(of, settings), *levels))
    yield _group("llmtrace-slo-period", settings.period_interval, _over_the_period(settings))
    sums = totals(settings.base, seconds(settings.totals_interval))
    yield _group("llmtrace-totals", settings.totals_interval, sums)
    yield _group("llmtrace-totals-by", settings.base, totals_by(settings.base))


def _group(name: str, interval: str, rules: Iterable[Recorded]) -> dict[str, Any]:
    return {
        "name": name,
        "interval": interval,
        "rules": [
            {
                "record": rule.name,
                "expr": rule.expression,
                **({"labels": dict(rule.labels)} if rule.labels else {}),
            }
            for rule in rules
        ],
    }


def _of_each(of: Sequence[Slo], settings: RuleSettings) -> Iterator[Recorded]:
    base = settings.base
    for slo in of:
        labels = (("budget", slo.budget), ("slo", slo.name))
        yield Recorded(bad_rate(base), slo.bad(base, _KEPT), f"Not so: {slo.promise}.", labels)
        valid = slo.valid(base, _KEPT)
        if slo.threshold_s is not None:
            # What the rule above has just recorded need not be computed again.
            bad = (
                f"sum by ({', '.join(_KEPT)}) "
                f"({bad_rate(base)}{{budget={quoted(slo.budget)}, slo={quoted(slo.name)}}})"
            )
            valid = f"{bad}\n + ({slo.fast(base, _KEPT)}\n or 0 * {bad})"
        yield Recorded(valid_rate(base), valid, "Requests that count.", labels)
        if slo.objective is not None:
            help_ = "The share that may be bad."
            yield Recorded(ALLOWED, f"vector({slo.allowed:g})", help_, labels)


def _of_all(settings: RuleSettings, level: str) -> Iterator[Recorded]:
    base = settings.base
    # Summed once: every longer window is over these two series of each SLO, however many label
    # sets there are.
    for total, each in ((bad_total, bad_rate), (valid_total, valid_rate)):
        summed = f"sum by ({', '.join(_LEVELS[level])}) ({each(base)})"
        yield Recorded(total(base, level), summed, "Of all label sets.")
    bad, valid = bad_total(base, level), valid_total(base, level)
    for window in settings.windows:
        share = f"{bad} / ({valid} > 0)" if window == base else _share(bad, valid, window)
        yield Recorded(bad_ratio(window, level), share, f"Share of bad requests over {window}.")
    # A rate is recorded every so often: its sum, times that, is how many requests there were.
    every = f"{seconds(settings.interval):g}"
    for window in settings.short_windows:
        if window == base:
            count = f"{valid} * {seconds(base):g}"
        else:
            count = f"sum_over_time({valid}[{window}]) * {every}"
        yield Recorded(valid_count(window, level), count, f"Requests that count in {window}.")


def _over_the_period(settings: RuleSettings) -> Iterator[Recorded]:
    base, period = settings.base, settings.period
    ratio = bad_ratio(period)
    yield Recorded(
        ratio,
        _share(bad_total(base), valid_total(base), period),
        f"Share of bad requests over {period}.",
    )
    yield Recorded(REMAINING, f"1 - {ratio} / {ALLOWED}", "What is left of the error budget.")


def _share(bad: str, valid: str, window: str) -> str:
    # Sums, and not averages: a busy hour counts for more than a quiet one.
    return f"sum_over_time({bad}[{window}])\n/ (sum_over_time({valid}[{window}]) > 0)"


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def as_yaml(content: Mapping[str, Any] | Sequence[Mapping[str, Any]], remark: str = "") -> str:
    """Write one document, or several, with a remark on top."""
    head = "".join(f"# {line}\n" for line in remark.splitlines())
    documents = [content] if isinstance(content, Mapping) else content
    return head + yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True
    )
