"""Declare `llmtrace slo`: rules, alerts and SLO files from a budget."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llmtrace.cli.arguments import Commands, add_budget_option, add_command
from llmtrace.cli.extras import collector_module, dashboards_module


def add_slo(commands: Commands) -> None:
    """Declare `llmtrace slo`."""
    slo = add_command(
        commands,
        "slo",
        _slo,
        "generate recording rules, alerts and SLO files from a budget",
        "Generate what alerting needs from a budget file: Prometheus recording rules and alerts, "
        "or the files of Sloth or OpenSLO. Each alert is described in docs/on-call/alerts.md.",
        examples=(
            "llmtrace slo rules --budget budget.yaml --out rules",
            "llmtrace slo rules --format prometheusrule --severity page=critical",
            "llmtrace slo engines --budget budget.yaml --out rules",
            "llmtrace slo openslo --budget budget.yaml",
        ),
        docs="on-call/alerts.md",
    )
    slo.add_argument(
        "what", choices=("rules", "engines", "sloth", "openslo"),
        help="Prometheus's own rules; rules that normalise the metrics of engines that Prometheus "
        "scrapes without a collector; or the files of a tool you have",
    )  # fmt: skip
    add_budget_option(slo)
    slo.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of files to write (default: print them)"
    )
    slo.add_argument(
        "--format", choices=("prometheus", "prometheusrule"), default="prometheus",
        help="form of rules: Prometheus's own, or manifests for its Kubernetes operator "
        "(default: prometheus)",
    )  # fmt: skip
    slo.add_argument(
        "--severity", action="append", default=[], metavar="OURS=YOURS",
        help="another word for an alert's severity, as page=critical; may be repeated",
    )  # fmt: skip
    slo.add_argument("--grafana", metavar="URL", help="address of the Grafana that alerts link to")
    slo.add_argument(
        "--runbooks", metavar="URL", help="address of your copy of docs/on-call/alerts.md"
    )
    slo.add_argument(
        "--collector",
        metavar="URL",
        help="address of the collector that `llmtrace triage` is to read",
    )
    slo.add_argument(
        "--collector-job", metavar="JOB",
        help="Prometheus's job name of the collector (default: llmtrace-collector)",
    )  # fmt: skip


def _slo(options: argparse.Namespace) -> None:
    if options.budget is not None:
        _warn_of_contradictions(options.budget)
    if options.what == "engines":
        write_engine_rules(options.budget, options.out, options.format)
        return
    dashboards_module("rules.command", "llmtrace slo").run(
        options.what,
        budget=options.budget,
        folder=options.out,
        grafana=options.grafana,
        runbooks=options.runbooks,
        collector=options.collector,
        collector_job=options.collector_job,
        rule_format=options.format,
        severities=options.severity,
        out=sys.stdout,
        warnings=sys.stderr,
    )


def _warn_of_contradictions(path: Path) -> None:
    """Print to stderr what `llmtrace budget check` says is wrong with a budget."""
    from llmtrace.budget import read_budgets
    from llmtrace.budget_analysis.check import check

    for budget in read_budgets(path):
        for problem in check(budget).problems:
            print(
                f"llmtrace: warning: {path}: {budget.name} does not add up: {problem.what} "
                f"(`llmtrace budget check {path}`)",
                file=sys.stderr,
            )


def write_engine_rules(
    budget: Path | None, folder: Path | None, rule_format: str = "prometheus"
) -> None:
    """Write the rules that normalise engines' metrics into a folder, or print them.

    Raises:
        ConfigError: the budget is wrong.
        SourceError: the folder cannot be written to.
    """
    feature = "llmtrace slo engines"
    profiles = collector_module("signals.profile", feature).builtin_profiles()
    normalised = collector_module("signals.engine_rules", feature).rule_groups(profiles)
    dashboards_module("rules.command", feature).run(
        "engines",
        budget=budget,
        folder=folder,
        normalised=normalised,
        rule_format=rule_format,
        out=sys.stdout,
        warnings=sys.stderr,
    )
