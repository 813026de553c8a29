"""How are rules, alerts and SLO files made from a budget asked for?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llmtrace.cli.arguments import Commands, add_command
from llmtrace.cli.extras import dashboards_module


def add_slo(commands: Commands) -> None:
    """Declare `llmtrace slo`."""
    slo = add_command(
        commands,
        "slo",
        _slo,
        "make recording rules, alerts and SLO files from a budget",
        "Make what alerting needs from a budget file: Prometheus's recording rules and alerts, "
        "or the files of Sloth or OpenSLO. docs/alerts.md says what each alert means.",
    )
    slo.add_argument(
        "what", choices=("rules", "sloth", "openslo"),
        help="Prometheus's own rules, or the files of a tool you have",
    )  # fmt: skip
    slo.add_argument(
        "--budget", type=Path, metavar="FILE",
        help="a budget file (default: targets people set for a dialogue)",
    )  # fmt: skip
    slo.add_argument(
        "--out", type=Path, metavar="DIR", help="write files there, instead of printing them"
    )
    slo.add_argument("--grafana", metavar="URL", help="where alerts link their dashboards to")
    slo.add_argument("--runbooks", metavar="URL", help="where your copy of docs/alerts.md is")
    slo.add_argument(
        "--collector", metavar="URL", help="the collector that `llmtrace triage` is to ask"
    )
    slo.add_argument(
        "--collector-job", metavar="JOB",
        help="what Prometheus scrapes the collector as (default: llmtrace-collector)",
    )  # fmt: skip


def _slo(options: argparse.Namespace) -> None:
    dashboards_module("rules.command", "llmtrace slo").run(
        options.what,
        budget=options.budget,
        folder=options.out,
        grafana=options.grafana,
        runbooks=options.runbooks,
        collector=options.collector,
        collector_job=options.collector_job,
        out=sys.stdout,
    )
