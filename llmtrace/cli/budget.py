"""Run `llmtrace budget`: check a latency budget, suggest one, compare requests with one."""

from __future__ import annotations

import argparse
import sys


def run_budget(options: argparse.Namespace) -> None:
    """Run `llmtrace budget` as its options say."""
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
