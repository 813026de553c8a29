"""How does llmtrace look at work, with nothing set up? `llmtrace demo` runs this."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import llmtrace
from llmtrace import runtime
from llmtrace.budget import DEFAULT, Budget, read_budget
from llmtrace.configure import read_environment
from llmtrace.errors import ConfigError, SourceError, missing_extra
from llmtrace.jsonl import write_rows

if TYPE_CHECKING:
    from llmtrace.demo.drive import Phase
    from llmtrace.demo.progress import Progress
    from llmtrace.demo.target import Target

INTERRUPTED: Final = 130
_SECONDS: Final = 24.0
_CALM_SHARE: Final = 0.4
_CALM_USERS: Final = 4  # of the users, one in so many


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What `llmtrace demo` was asked to do.

    Attributes:
        endpoint: base URL to ask instead of the simulated engine.
        model: the model to ask the endpoint for.
        api_key_env: environment variable with the endpoint's key.
        vllm: ask a real vLLM, started for this.
        budget: budget file; default: `LLMTRACE_BUDGET`, else targets people set for a dialogue.
        json: file to write the rows to, one JSON object a line.
        seconds: how long to ask; default: 24, or no limit if `requests` is given.
        requests: how many to make at most.
        users: how many ask at once when it is busiest.
    """

    endpoint: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    vllm: bool = False
    budget: Path | None = None
    json: Path | None = None
    seconds: float | None = None
    requests: int | None = None
    users: int = 12

    @property
    def time_limit_s(self) -> float | None:
        """How long to ask, in seconds; `None` = until `requests` are made."""
        return _SECONDS if self.seconds is None and self.requests is None else self.seconds


def run(options: DemoOptions) -> int:
    """Ask an endpoint as many users would, and show where the time of their requests went.

    Returns:
        The exit status: 0, 1 if no request succeeded, 130 if interrupted.

    Raises:
        ConfigError: an option is wrong, or a package is missing.
        SourceError: the endpoint does not answer.
        KeyboardInterrupt: interrupted before there was anything to show.
    """
    for package in ("openai", "rich"):
        if find_spec(package) is None:
            raise missing_extra("llmtrace demo", "demo", package)
    from rich.console import Console

    from llmtrace.demo.progress import Progress
    from llmtrace.demo.report import print_next_steps, print_report

    budget, phases = _budget(options), plan(options)
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    with ExitStack() as opened:
        file = opened.enter_context(_rows_file(options.json))
        target = opened.enter_context(_target(options, err.print))
        out.print(f"llmtrace demo: {target.name} at {target.url}")
        for note in target.notes:
            out.print(note)
        progress = Progress(err, target.name, options.time_limit_s, options.requests)
        interrupted = _measure(target, phases, progress, budget)
        rows = progress.rows
        if file is not None:
            write_rows(file, rows)
        if not rows:
            return _nothing(interrupted)
        if interrupted:
            out.print("\nInterrupted: this is what was measured until then.")
        print_report(out, rows, target, budget, phases, interrupted=interrupted)
        if options.json is not None:
            out.print(f"Rows written to {options.json}", soft_wrap=True)
        print_next_steps(out, target)
    if interrupted:
        return INTERRUPTED
    return 0 if any(row.outcome == "success" for row in rows) else 1


def plan(options: DemoOptions) -> tuple[Phase, ...]:
    """Split the run into a calm phase and a rush, in which the engine has to queue."""
    from llmtrace.demo.drive import Phase

    seconds, requests = options.time_limit_s, options.requests
    calm_users = options.users // _CALM_USERS
    if not calm_users:
        return (Phase("steady", options.users, seconds, requests),)
    calm_s = None if seconds is None else seconds * _CALM_SHARE
    rush_s = None if seconds is None or calm_s is None else seconds - calm_s
    calm_n = None if requests is None else round(requests * _CALM_SHARE)
    rush_n = None if requests is None or calm_n is None else requests - calm_n
    return (
        Phase("calm", calm_users, calm_s, calm_n),
        Phase("rush", options.users, rush_s, rush_n),
    )


def _budget(options: DemoOptions) -> Budget:
    path = options.budget or read_environment(os.environ).budget
    return DEFAULT if path is None else read_budget(path)


@contextmanager
def _rows_file(path: Path | None) -> Iterator[TextIO | None]:
    # Opened before the requests are made, so that a wrong path does not cost them.
    if path is None:
        yield None
        return
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        msg = f"--json {path}: cannot be written: {error.strerror}"
        raise ConfigError(msg) from error
    with file:
        yield file


def _target(
    options: DemoOptions, tell: Callable[[str], None]
) -> AbstractContextManager[Target]:
    from llmtrace.demo import target

    if options.vllm:
        return target.real_vllm(tell)
    if options.endpoint is None:
        return target.simulated()
    if options.model is None:
        msg = "--endpoint needs --model: the name of the model to ask it for"
        raise ConfigError(msg)
    return target.named(options.endpoint, options.model, options.api_key_env)


def _measure(
    target: Target, phases: Sequence[Phase], progress: Progress, budget: Budget
) -> bool:
    """Let the users ask, and return whether they were interrupted."""
    from llmtrace.demo.drive import drive
    from llmtrace.demo.probe import probe

    target = asyncio.run(probe(target))  # before `init`: it is no request of the demo's
    llmtrace.init("llmtrace-demo", exporters=[progress], budget=budget, sample=1.0)
    if runtime.active() is None:
        msg = "LLMTRACE_DISABLED or OTEL_SDK_DISABLED is set: unset it, or nothing is measured"
        raise ConfigError(msg)
    try:
        with progress.shown():
            asyncio.run(drive(target, phases, progress.started))
    except KeyboardInterrupt:
        return True
    finally:
        llmtrace.shutdown()
    return False


def _nothing(interrupted: bool) -> int:  # noqa: FBT001
    if interrupted:
        raise KeyboardInterrupt
    msg = "no request was made: give the demo more --seconds or --requests"
    raise SourceError(msg)
