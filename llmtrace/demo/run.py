"""Run `llmtrace demo`: send an endpoint the requests of many users, and report their rows."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import llmtrace
from llmtrace.budget import DEFAULT, Budget, read_budget
from llmtrace.configure import read_environment
from llmtrace.core.errors import ConfigError, SourceError, needs_extra
from llmtrace.core.row import Row
from llmtrace.demo import target as targets
from llmtrace.demo.injected_faults import Fault, named
from llmtrace.demo.options import DemoOptions, Phase, plan
from llmtrace.demo.target import Target
from llmtrace.exporters.row_files.sink import write_rows

with needs_extra("llmtrace demo", "demo"):
    from llmtrace.demo.final_report import print_next_steps, print_report
    from llmtrace.demo.preflight import probe
    from llmtrace.demo.progress import Progress
    from llmtrace.demo.sample_app import drive
    from llmtrace.display.summary_tables import console_for

if TYPE_CHECKING:
    from llmtrace.dataset.arrivals import Arrivals
    from llmtrace.demo.incident import DemoIncident


def run(options: DemoOptions) -> None:
    """Ask an endpoint as many users would, and print where the time of their requests went.

    Raises:
        ConfigError: an option is wrong.
        SourceError: the endpoint does not answer, or no request succeeded.
        KeyboardInterrupt: interrupted; what was measured is printed.
    """
    budget, phases, fault = _budget(options), plan(options), _fault(options)
    trace = _trace(options.arrivals)
    if fault is not None:
        from llmtrace.demo.incident import demo_incident, linger, room_for_page  # needs numpy

    page = None if fault is None else room_for_page(options.html)
    # What servers say is shown as it is: no markup in it, no colours guessed.
    out, err = console_for(sys.stdout), console_for(sys.stderr)
    with ExitStack() as opened:
        file = opened.enter_context(_rows_file(options.rows_out))
        target = opened.enter_context(_target(options, err.print))
        out.print(f"llmtrace demo: {target.name} at {target.url}", soft_wrap=True)
        incident = None
        if fault is not None:
            incident = opened.enter_context(demo_incident(fault, target, out.print, err.print))
        for note in target.notes:
            out.print(note)
        target = asyncio.run(probe(target))  # before `init`: it is no request of the demo's
        err.print(_announcement(options))
        progress = Progress(err, target.name, options.time_limit_s, options.wanted)
        interrupted = _measure(target, phases, progress, budget, incident=incident, trace=trace)
        rows = progress.rows
        if failures := llmtrace.internal_errors():
            err.print(f"llmtrace itself failed, and lost what it did: {failures}")
        if not rows and interrupted:
            raise KeyboardInterrupt
        if not rows:
            raise SourceError(f"no request to {target.url} was recorded")
        if interrupted:
            out.print("\nInterrupted: this is what was measured until then.")
        print_report(out, rows, target, budget, phases, interrupted=interrupted)
        if file is not None:
            _replace_rows(file, rows)
            out.print(f"\nRows written to {options.rows_out}", soft_wrap=True)
        if interrupted:
            raise KeyboardInterrupt
        if not any(row.outcome == "success" for row in rows):
            raise SourceError(f"no request to {target.url} succeeded")
        result = None
        if incident is not None and page is not None:
            result = incident.triage(len(rows), page, out, err)
        print_next_steps(out, target)
        if incident is not None and result is not None:
            incident.resolve(result, out)
            linger(incident.live, out)


def _fault(options: DemoOptions) -> Fault | None:
    fault = None if options.fault is None else named(options.fault, options.severity)
    if fault is not None and (options.vllm or options.endpoint is not None):
        raise ConfigError("--fault is for the simulated engine; no other server gets a fault")
    if fault is None and options.html is not None:
        raise ConfigError("--html is for the page of a triage; name what goes wrong with --fault")
    return fault


def _budget(options: DemoOptions) -> Budget:
    environment = read_environment(os.environ)
    if environment.disabled:
        msg = "LLMTRACE_DISABLED or OTEL_SDK_DISABLED is set: unset it, or nothing is measured"
        raise ConfigError(msg)
    path = options.budget or environment.budget
    return DEFAULT if path is None else read_budget(path)


def _trace(path: Path | None) -> Arrivals | None:
    if path is None:
        return None
    with needs_extra("--arrivals", "demo"):
        from llmtrace.dataset.arrivals import read_arrivals
    return read_arrivals(path)


@contextmanager
def _rows_file(path: Path | None) -> Iterator[TextIO | None]:
    # Opened before the requests are made, so that a wrong path does not cost them; emptied only
    # when there is something to write.
    if path is None:
        yield None
        return
    try:
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--rows-out {path}: cannot be written: {error.strerror}") from error
    with file:
        yield file


def _replace_rows(file: TextIO, rows: Sequence[Row]) -> None:
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # not /dev/stdout
        file.truncate(0)
    write_rows(file, rows)


def _target(options: DemoOptions, tell: Callable[[str], None]) -> AbstractContextManager[Target]:
    if options.vllm:
        return targets.real_vllm(tell)
    if options.endpoint is None:
        return targets.simulated()
    if options.model is None:
        raise ConfigError("--endpoint needs --model: the name of the model to ask it for")
    return targets.named(options.endpoint, options.model, options.api_key_env)


def _measure(
    target: Target,
    phases: Sequence[Phase],
    progress: Progress,
    budget: Budget,
    *,
    incident: DemoIncident | None,
    trace: Arrivals | None,
) -> bool:
    """Let the users send their requests, and return whether they were interrupted."""

    def started(phase: Phase) -> None:
        progress.started(phase)
        if incident is not None:
            incident.started(phase)

    exporters = [progress] if incident is None else [progress, *incident.sinks()]
    llmtrace.init("llmtrace-demo", exporters=exporters, budget=budget, sample=1.0)
    try:
        with progress.shown():
            if incident is None:
                asyncio.run(drive(target, phases, started, trace=trace))
            else:
                asyncio.run(drive(target, phases, started, incident.jobs_in, trace))
    except KeyboardInterrupt:
        return True
    finally:
        llmtrace.shutdown()
    return False


def _announcement(options: DemoOptions) -> str:
    limits = []
    if options.wanted is not None:
        limits.append(f"{options.wanted} requests")
    if options.time_limit_s is not None:
        limits.append(f"{options.time_limit_s:g} s")
    between = " or " if options.fault is None or options.requests is not None else " and at least "
    return f"Asking for {between.join(limits)}; Ctrl-C ends it and shows what was measured."
