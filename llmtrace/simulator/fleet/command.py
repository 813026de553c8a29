"""Run `llmtrace simulate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from llmtrace.core.errors import ConfigError, needs_extra


def write_day(
    out: Path | None,
    faults: Sequence[tuple[str, float]],
    seed: int,
    *,
    shift: str | None,
    drop: Sequence[str],
    arrivals: Path | None,
    say: TextIO,
) -> None:
    """Simulate a day and write it as a case folder, with the truth in a file of its own.

    Args:
        out: the folder.
        faults: causes and their severities, from 1 to 3; none = a quiet day.
        seed: decides what is left to chance.
        shift: change of the workload; `None` = none.
        drop: signals that were not scraped; `*` = all of them.
        arrivals: a trace whose times and lengths are replayed; `None` = drawn.
        say: where progress and result are printed.

    Raises:
        ConfigError: a cause, a severity or the trace is invalid, no folder is named, or the extra
            is not installed.
    """
    with needs_extra("llmtrace simulate", "simulate"):
        from llmtrace.dataset.arrivals import read_arrivals
        from llmtrace.simulator.fleet.scenario import Scenario, simulate
    from llmtrace.dataset.case import write_case

    scenario = Scenario(
        seed=seed,
        faults=tuple(faults),
        shift=shift,
        drop=tuple(drop),
        arrivals=None if arrivals is None else read_arrivals(arrivals),
    )
    if out is None:
        raise ConfigError("--out DIR is missing: name the case folder to write")
    print(f"simulating {scenario.name}; the first time, it is compiled for a minute", file=say)
    simulated = simulate(scenario)
    write_case(out, simulated.case)
    truth = simulated.truth
    content = {"causes": truth.causes, "shift": truth.shift, "shown": truth.shown}
    (out / "truth.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    case = simulated.case
    print(f"{out}: {case.rows.n} rows, {len(case.signals)} samples", file=say)
    for metric, (before, after) in truth.moved.items():
        if metric == "outcomes":
            line = f"not successful  {before:8.1%} -> {after:8.1%}"
        else:
            line = f"p95 {metric:10}  {before:7.3f}s -> {after:7.3f}s"
        print(f"  {line}", file=say)
    if (faults or shift) and not truth.shown:
        print("  no metric moved visibly: there is no incident", file=say)


def list_faults(out: TextIO) -> None:
    """Print the faults that can be injected, and the changes of the workload."""
    with needs_extra("llmtrace simulate", "simulate"):
        from llmtrace.simulator.fleet.faults import FAULTS
        from llmtrace.simulator.fleet.traffic_shifts import SHIFTS
    width = max(map(len, FAULTS))
    print("faults (--fault NAME, --severity 1 to 3):", file=out)
    for cause, fault in sorted(FAULTS.items()):
        print(f"  {cause:{width}}  {fault.about}", file=out)
    print("\nshifts, with nothing broken (--shift NAME):", file=out)
    for name, shift in SHIFTS.items():
        print(f"  {name:{width}}  {(shift.__doc__ or '').splitlines()[0]}", file=out)
