"""Run `llmtrace triage --prometheus URL` without a source of rows."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from llmtrace.core.errors import ConfigError
from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import empty
from llmtrace.display.summary_tables import console_for
from llmtrace.triage.command import CANNOT_TELL, LAST, MOVED, Steps, settings_of, span
from llmtrace.triage.without_rows.find import as_plain, triage_engines
from llmtrace.triage.without_rows.terminal_screen import engines_screen

_STATUS: Final = {"stopped": MOVED, "moved": MOVED, "no_change": 0, "not_enough_data": CANNOT_TELL}
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Options that are about rows of requests.
_OF_ROWS: Final = ("html", "save")


def main(options: argparse.Namespace, prometheus: Any) -> int:
    """Run the command with the collector's module that reads a Prometheus; return its exit status.

    Raises:
        ConfigError: an option is invalid, or is about rows.
        SourceError: the Prometheus does not respond.
        DataError: it has no metrics of engines of that time.
    """
    for name in _OF_ROWS:
        if getattr(options, name):
            raise ConfigError(
                f"--{name} is about requests: name a source of rows in addition to --prometheus, "
                "as --url or --case"
            )
    if options.metric == "render":
        raise ConfigError("--metric render: engines do not know what happens at their clients")
    now = time.time()
    settings = settings_of(options, now)
    searched = span(settings, options.last or LAST, now)
    at = (options.prometheus, options.prometheus_token_file)
    labels = _labels(options.where)
    progress = Steps(sys.stderr)
    try:
        signals, odd = prometheus.read_signals(*at, searched, progress.report, labels)
        case = Case(rows=empty(), signals=signals, searched=searched, warnings=odd)

        def buckets(name: str, one: Window) -> Sequence[tuple[float, float]]:
            found: Sequence[tuple[float, float]] = prometheus.read_buckets(*at, name, one, labels)
            return found

        result = triage_engines(case, settings, buckets)
    finally:
        progress.done()
    if options.json:
        json.dump(as_plain(result), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        console_for(sys.stdout).print(engines_screen(result, explain=options.explain))
    return _STATUS[result.verdict]


def _labels(given: Sequence[str]) -> dict[str, str]:
    """Read `--where LABEL=VALUE`: which series of the Prometheus to use."""
    found: dict[str, str] = {}
    for text in given:
        name, _, value = text.partition("=")
        if not _LABEL.fullmatch(name) or not value:
            raise ConfigError(f"--where {text}: write LABEL=VALUE, as cluster=eu-1")
        if name in found:
            raise ConfigError(
                f"--where {text}: {name} can have one value, and {found[name]} is it"
            )
        found[name] = value
    return found
