"""Declare the command that compares two runs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from llmtrace.cli.arguments import Commands, add_budget_option, add_command, add_json, positive
from llmtrace.core.errors import needs_extra, writes

FAILED: Final = 10


def add_compare(commands: Commands) -> None:
    """Declare `llmtrace compare`."""
    compare = add_command(
        commands,
        "compare",
        _compare,
        "compare two runs: which stage moved, by how much, beyond chance",
        "Compare two runs, stage by stage: folders that `llmtrace bench` wrote, or files of rows. "
        "The exit status is 10 where a --fail-if holds beyond chance.",
        examples=(
            "llmtrace compare before/ after/",
            "llmtrace compare before/ after/ --fail-if 'ttft.p95>10%'",
            "llmtrace compare before.jsonl after.jsonl --html changes.html",
        ),
        docs="operate/compare.md",
    )
    compare.add_argument("before", type=Path, metavar="BEFORE", help="baseline: folder or rows")
    compare.add_argument("after", type=Path, metavar="AFTER", help="run with one thing changed")
    add_budget_option(compare, "to count and price the requests inside it")
    compare.add_argument(
        "--price-per-hour", type=positive(float), metavar="PRICE",
        help="price of what served each run, to compare the cost of tokens and requests",
    )  # fmt: skip
    compare.add_argument(
        "--same-workload", action="store_true",
        help="refuse runs of another workload instead of weighting their requests",
    )  # fmt: skip
    compare.add_argument(
        "--fail-if", action="append", default=[], metavar="CONDITION",
        help="shown change that fails, such as 'ttft.p95>10%%'; can be repeated",
    )  # fmt: skip
    compare.add_argument("--html", type=Path, metavar="FILE", help="page to write")
    add_json(compare, "text")


def _compare(options: argparse.Namespace) -> int:
    with needs_extra("llmtrace compare", "triage"):
        from llmtrace.run_comparison import comparison_page, runs, wording
        from llmtrace.run_comparison.comparison_text import print_comparison
        from llmtrace.run_comparison.conditions import read_condition
        from llmtrace.run_comparison.read_run import read_run
    from llmtrace.budget import read_budget

    conditions = [read_condition(text) for text in options.fail_if]
    comparison = runs.compare(
        read_run(options.before),
        read_run(options.after),
        budget=None if options.budget is None else read_budget(options.budget),
        price_per_hour=options.price_per_hour,
        reweight=not options.same_workload,
    )
    if options.html is not None:
        with writes(f"--html {options.html}"):
            options.html.write_text(comparison_page.page(comparison), encoding="utf-8")
    if not options.json:
        print_comparison(sys.stdout, comparison)
    found = [(condition.text, *condition.judge(comparison)) for condition in conditions]
    if options.json:
        plain = wording.as_dict(comparison)
        plain["fail_if"] = [dict(zip(("condition", "state", "figures"), one, strict=True))
                            for one in found]  # fmt: skip
        print(json.dumps(plain, indent=2))
    for text, state, figures in found:
        hint = "; more requests would tell" if state == "undecided" else ""
        print(f"llmtrace: {state}: {text}: {figures}{hint}", file=sys.stderr)
    return FAILED if any(state == "failed" for _, state, _ in found) else 0
