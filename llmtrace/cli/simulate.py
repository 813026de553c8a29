"""How is a fleet's bad day asked for?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from llmtrace.cli.arguments import Commands, add_command, positive
from llmtrace.errors import ConfigError


def add_simulate(commands: Commands) -> None:
    """Declare `llmtrace simulate`."""
    simulate = add_command(
        commands,
        "simulate",
        _simulate,
        "simulate a fleet of engines on a bad day, and write what was seen as a case folder",
        "Simulate half an hour of a fleet of engines and ten minutes of an incident, and write "
        "rows, signals and facts as a case folder. truth.json in it says what was done. Without "
        "--fault and --shift nothing happens that day.",
    )
    what = simulate.add_argument_group("what happens")
    what.add_argument(
        "--fault", action="append", default=[], metavar="NAME", help="a cause; may be repeated"
    )
    what.add_argument(
        "--severity", type=positive(float), default=2.0, metavar="S",
        help="from 1, hardly felt, to 3 (default: 2)",
    )  # fmt: skip
    what.add_argument("--shift", metavar="NAME", help="people ask differently; nothing is broken")
    what.add_argument("--list", action="store_true", help="list faults and shifts, and stop")
    simulate.add_argument(
        "--seed", type=int, default=1, metavar="N", help="another one, another day (default: 1)"
    )
    simulate.add_argument(
        "--drop", action="append", default=[], metavar="SIGNAL",
        help="a signal nobody scraped; * = all of them",
    )  # fmt: skip
    simulate.add_argument("--out", type=Path, metavar="DIR", help="the folder to write")


def _simulate(options: argparse.Namespace) -> None:
    from llmtrace.simulator.fleet.command import list_faults, write_day

    if options.list:
        list_faults(sys.stdout)
        return
    if options.out is None:
        raise ConfigError("--out DIR is missing: say where the case folder goes")
    faults = [(name, options.severity) for name in options.fault]
    write_day(options.out, faults, options.seed, shift=options.shift, drop=options.drop)
