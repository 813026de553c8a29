"""Run `llmtrace simulate`: an incident of a fleet, as a case folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llmtrace.core.errors import ConfigError, missing_extra


def run_simulate(options: argparse.Namespace) -> None:
    """Run `llmtrace simulate` as its options say."""
    from llmtrace.simulator.fleet.command import list_faults, write_day

    if options.list:
        list_faults(sys.stdout)
        return
    if options.case is not None and options.alert is None:
        raise ConfigError("--case DIR is for --alert URL: where to send its alert")
    if options.case is not None and options.out is not None:
        raise ConfigError("--case and --out exclude each other: a saved incident is not simulated")
    if options.case is not None:
        _rehearse(options.case, options)
        return
    if options.out is None:
        raise ConfigError("--out DIR is missing: name the case folder to write")
    faults = [(name, options.severity) for name in options.fault]
    write_day(
        options.out, faults, options.seed,
        shift=options.shift, drop=options.drop, arrivals=options.arrivals,
    )  # fmt: skip
    if options.alert is not None:
        _rehearse(options.out, options)


def _rehearse(folder: Path, options: argparse.Namespace) -> None:
    try:
        from llmtrace.triage.oncall.rehearsal import rehearse
    except ImportError as error:
        raise missing_extra(
            "llmtrace simulate --alert", "triage", error.name or "numpy"
        ) from error
    rehearse(folder, options.alert, options.alert_token_file, sys.stdout)
