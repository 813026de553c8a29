"""Declare `llmtrace simulate`: an incident of a fleet, as a case folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llmtrace.cli.arguments import Commands, add_command, expect_new_folder, positive
from llmtrace.core.errors import ConfigError, needs_extra


def add_simulate(commands: Commands) -> None:
    """Declare `llmtrace simulate`."""
    simulate = add_command(
        commands,
        "simulate",
        _simulate,
        "simulate an incident of a fleet of engines, and write it as a case folder",
        "Simulate half an hour of a fleet of engines and ten minutes of an incident, and write "
        "rows, signals and facts as a case folder, with the injected faults in truth.json. "
        "Without --fault and --shift there is no incident.",
        examples=(
            "llmtrace simulate --list",
            "llmtrace simulate --fault kv_exhaustion --severity 2 --seed 7 --out incident",
            "llmtrace simulate --arrivals AzureLLMInferenceTrace_conv.csv --out incident",
            "llmtrace triage --case incident",
            "llmtrace simulate --case incident --alert http://127.0.0.1:4321/alerts",
        ),
        docs="develop/simulator.md",
    )
    incident = simulate.add_argument_group("incident")
    incident.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="NAME",
        help="fault to inject, or none; may be repeated (default: none)",
    )
    incident.add_argument(
        "--severity", type=positive(float), default=2.0, metavar="S",
        help="severity of the faults, from 1, hardly noticed, to 3 (default: 2)",
    )  # fmt: skip
    incident.add_argument(
        "--shift", metavar="NAME", help="change of the workload, without any fault"
    )
    incident.add_argument("--list", action="store_true", help="list faults and shifts, and exit")
    simulate.add_argument(
        "--seed", type=int, default=1, metavar="N", help="seed of the random numbers (default: 1)"
    )
    simulate.add_argument(
        "--drop", action="append", default=[], metavar="SIGNAL",
        help="signal to leave out; * = all of them; may be repeated",
    )  # fmt: skip
    simulate.add_argument(
        "--arrivals", type=Path, metavar="FILE",
        help="replay when the requests of a trace came and how long they were: Azure LLM "
        "inference (CSV) or Mooncake (JSON lines), plain or .gz",
    )  # fmt: skip
    simulate.add_argument("--out", type=Path, metavar="DIR", help="new folder to write")
    _add_rehearsal(simulate)


def _add_rehearsal(simulate: argparse.ArgumentParser) -> None:
    """Add the options that play a saved incident to `llmtrace triage serve`."""
    rehearsal = simulate.add_argument_group("rehearsal")
    rehearsal.add_argument(
        "--alert", metavar="URL",
        help="address to send the incident's alert to: of `llmtrace triage serve --case DIR`",
    )  # fmt: skip
    rehearsal.add_argument(
        "--alert-token-file", type=Path, metavar="FILE", help="file with the token it requires"
    )
    rehearsal.add_argument(
        "--case", type=Path, metavar="DIR",
        help="saved incident whose alert is sent; nothing is simulated",
    )  # fmt: skip


def _simulate(options: argparse.Namespace) -> None:
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
    expect_new_folder("--out", options.out)
    faults = [(name, options.severity) for name in options.fault if name != "none"]
    write_day(
        options.out, faults, options.seed,
        shift=options.shift, drop=options.drop, arrivals=options.arrivals, say=sys.stderr,
    )  # fmt: skip
    if options.alert is not None:
        _rehearse(options.out, options)


def _rehearse(folder: Path, options: argparse.Namespace) -> None:
    with needs_extra("llmtrace simulate --alert", "triage"):
        from llmtrace.triage.oncall.rehearsal import rehearse
    rehearse(folder, options.alert, options.alert_token_file, sys.stdout)
