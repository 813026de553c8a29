"""How is a latency budget checked, suggested, or held against requests?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llmtrace.cli.arguments import Commands, add_command


def add_budget(commands: Commands) -> None:
    """Declare the commands of `llmtrace budget`."""
    budget = add_command(
        commands,
        "budget",
        _budget,
        "check a latency budget, suggest one, or hold requests against it",
        "Check whether a latency budget adds up, suggest one from measured requests, or hold "
        "requests against it.",
    )
    kinds = budget.add_subparsers(dest="what", metavar="WHAT", required=True)
    check = kinds.add_parser(
        "check",
        help="add a budget file up, and say what would fit where it does not",
        description="Add a budget file up, and say what would fit where it does not. Exit status "
        "1 = it contradicts itself.",
    )
    check.add_argument("file", type=Path, metavar="FILE", help="a budget, as YAML or JSON")
    suggest = kinds.add_parser(
        "suggest",
        help="deal a total out among the stages, from measured rows",
        description="Deal a total out among the stages, from measured rows: what a request at "
        "the objective spends in each. Unlike the stages' own percentiles that adds up.",
    )
    suggest.add_argument("file", type=Path, metavar="ROWS", help="rows, one JSON object a line")
    suggest.add_argument(
        "--total", metavar="TIME", help="to deal out, as 2.5s (default: what it takes now)"
    )
    suggest.add_argument("--objective", metavar="Q", help="the quantile it is for (default: p95)")
    suggest.add_argument(
        "--buffer", metavar="SHARE", help="kept free of the total, as 10%% (default: nothing)"
    )
    suggest.add_argument("--name", metavar="NAME", help="of the budget")
    suggest.add_argument("--model", metavar="NAME", help="only rows of this model, or llama-*")
    suggest.add_argument("--route", metavar="NAME", help="only rows of this route, or v1/*")
    suggest.add_argument("--out", type=Path, metavar="FILE", help="write the budget file there")
    report = kinds.add_parser(
        "report",
        help="hold measured rows against a budget: which stage eats it",
        description="Hold measured rows against a budget: which stage eats it, how much of it, "
        "and how sure that is.",
    )
    report.add_argument("file", type=Path, metavar="ROWS", help="rows, one JSON object a line")
    report.add_argument(
        "--budget", type=Path, metavar="FILE",
        help="a budget file (default: targets people set for a dialogue)",
    )  # fmt: skip
    report.add_argument("--html", type=Path, metavar="FILE", help="draw it there, too")


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
        command.report(options.file, options.budget, options.html)
