"""Declare `llmtrace budget`: check a latency budget, suggest one, compare requests with one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llmtrace.cli.arguments import (
    Commands,
    add_budget_option,
    add_command,
    add_json,
    add_rows_file,
)

_DOCS = "on-call/budgets.md"


def add_budget(commands: Commands) -> None:
    """Declare the commands of `llmtrace budget`."""
    budget = add_command(
        commands,
        "budget",
        _budget,
        "check a latency budget, suggest one, or compare requests with one",
        "Check whether a latency budget adds up, suggest one from recorded requests, or compare "
        "requests with a budget.",
        examples=(
            "llmtrace budget check budget.yaml",
            "llmtrace budget suggest rows.jsonl --total 2.5s --out budget.yaml",
            "llmtrace budget report rows.jsonl --budget budget.yaml",
        ),
        docs=_DOCS,
    )
    kinds = budget.add_subparsers(dest="what", metavar="WHAT", required=True)
    _add_check(kinds)
    _add_suggest(kinds)
    _add_report(kinds)


def _add_check(kinds: Commands) -> None:
    check = add_command(
        kinds,
        "check",
        _budget,
        "add a budget file up, and propose values that fit where it does not",
        "Add a budget file up, and propose values that fit where it does not. Exit status 1 = it "
        "contradicts itself.",
        examples=("llmtrace budget check budget.yaml",),
        docs=_DOCS,
    )
    check.add_argument("file", type=Path, metavar="FILE", help="budget, as YAML or JSON")


def _add_suggest(kinds: Commands) -> None:
    suggest = add_command(
        kinds,
        "suggest",
        _budget,
        "allocate a total budget to the stages, from recorded requests",
        "Allocate a total budget to the stages, from recorded requests: the time that a request "
        "at the objective spends in each. Unlike the stages' own percentiles that adds up.",
        examples=(
            "llmtrace budget suggest rows.jsonl",
            "llmtrace budget suggest rows.jsonl --total 2.5s --buffer 10% --out budget.yaml",
        ),
        docs=_DOCS,
    )
    add_rows_file(suggest)
    suggest.add_argument(
        "--total", metavar="TIME", help="total to allocate, as 2.5s (default: the measured total)"
    )
    suggest.add_argument("--objective", metavar="Q", help="quantile of the budget (default: p95)")
    suggest.add_argument(
        "--buffer", metavar="SHARE", help="share of the total kept free, as 10%% (default: none)"
    )
    suggest.add_argument("--name", metavar="NAME", help="name of the budget")
    suggest.add_argument("--model", metavar="NAME", help="only this model's requests, or llama-*")
    suggest.add_argument("--route", metavar="NAME", help="only this route's requests, or v1/*")
    suggest.add_argument("--out", type=Path, metavar="FILE", help="budget file to write")


def _add_report(kinds: Commands) -> None:
    report = add_command(
        kinds,
        "report",
        _budget,
        "compare recorded requests with a budget: which stage uses it up",
        "Compare recorded requests with a budget: which stage uses it up, how much of it, and "
        "how certain that is.",
        examples=(
            "llmtrace budget report rows.jsonl",
            "llmtrace budget report rows.jsonl --budget budget.yaml --html budget.html",
        ),
        docs=_DOCS,
    )
    add_rows_file(report)
    add_budget_option(report)
    report.add_argument("--html", type=Path, metavar="FILE", help="web page to write as well")
    add_json(report, "the table: a list with an object for each budget, times in seconds")


def _budget(options: argparse.Namespace) -> None:
    from llmtrace.budget_analysis import command

    if options.what == "check":
        command.check(options.file, sys.stdout)
    elif options.what == "suggest":
        command.suggest(
            options.file,
            sys.stdout,
            total=options.total,
            objective=options.objective,
            buffer=options.buffer,
            name=options.name,
            model=options.model,
            route=options.route,
            write=options.out,
        )
    else:
        command.report(options.file, options.budget, options.html, json=options.json)
