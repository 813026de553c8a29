"""Run the command that compares two runs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

from llmtrace.core.errors import SourceError, explain_error, missing_extra

FAILED: Final = 10


def run_compare(options: argparse.Namespace) -> int:
    """Run `llmtrace compare` as its options say."""
    try:
        from llmtrace.run_comparison import comparison_page, runs, wording
        from llmtrace.run_comparison.comparison_text import print_comparison
        from llmtrace.run_comparison.conditions import read_condition
        from llmtrace.run_comparison.read_run import read_run
    except ImportError as error:
        raise missing_extra("llmtrace compare", "triage", error.name or "") from error
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
        try:
            options.html.write_text(comparison_page.page(comparison), encoding="utf-8")
        except OSError as error:
            msg = f"--html {options.html}: cannot write it: {explain_error(error)}"
            raise SourceError(msg) from error
    if options.json:
        print(json.dumps(wording.as_dict(comparison), indent=2))
    else:
        print_comparison(sys.stdout, comparison)
    failed = [condition.text for condition in conditions if condition.fails(comparison)]
    for text in failed:
        print(f"llmtrace: failed: {text}", file=sys.stderr)
    return FAILED if failed else 0
