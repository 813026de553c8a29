"""Run `llmtrace slo`: rules, alerts and SLO files from a budget."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llmtrace.cli.extras import collector_module, dashboards_module


def run_slo(options: argparse.Namespace) -> None:
    """Run `llmtrace slo` as its options say."""
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


def write_engine_rules(
    budget: Path | None, folder: Path | None, rule_format: str = "prometheus"
) -> None:
    """Write the rules that unify engines' metrics into a folder, or print them.

    Raises:
        ConfigError: the budget is wrong.
        SourceError: the folder cannot be written to.
    """
    feature = "llmtrace slo engines"
    profiles = collector_module("signals.profile", feature).builtin_profiles()
    unified = collector_module("signals.engine_rules", feature).rule_groups(profiles)
    dashboards_module("rules.command", feature).run(
        "engines",
        budget=budget,
        folder=folder,
        unified=unified,
        rule_format=rule_format,
        out=sys.stdout,
        warnings=sys.stderr,
    )
