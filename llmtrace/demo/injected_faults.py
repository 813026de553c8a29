"""The faults that the demo can inject, and how each is injected.

Some causes are given to the simulated engine, others to the users. Each changes what happens,
never what is recorded: that triage finds them is not arranged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from llmtrace.core.errors import ConfigError
from llmtrace.demo.simulated_users import MAX_PROMPT, Job, lengthened
from llmtrace.simulator.api.reply_plan import ServerConfig
from llmtrace.simulator.engine.incidents import INCIDENTS, MILD, SEVERE, incident
from llmtrace.simulator.fleet.faults import find

NONE: Final = "none"
DEFAULT: Final = "gpu_throttle"
_LONGER_PROMPT: Final = 2 * MAX_PROMPT  # characters
_Jobs = Callable[[Iterator[Job], float], Iterator[Job]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One cause at a severity, from 1 (hardly noticed) to 3."""

    cause: str
    severity: float

    @property
    def about(self) -> str:
        """The effect of the fault, in a sentence."""
        return FAULTS[self.cause]

    def change(self, config: ServerConfig) -> ServerConfig:
        """Return the engine's configuration with it; the same if it is the users who change."""
        if self.cause in _USERS:
            return config
        return incident(config, self.cause, self.severity)

    def jobs(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Return what users ask with it; the same if it is the engine that changes."""
        change = _USERS.get(self.cause)
        return jobs if change is None else change(jobs, self.severity)


def named(cause: str, severity: float) -> Fault:
    """Return a cause by its name.

    Raises:
        ConfigError: there is none of that name, or no such severity.
    """
    if cause not in FAULTS:
        raise ConfigError(f"--fault {cause}: no such fault; see `llmtrace demo --list`")
    if not MILD <= severity <= SEVERE:
        raise ConfigError(f"--severity is from {MILD:g} to {SEVERE:g}, not {severity:g}")
    return Fault(cause, severity)


def _slow_renderer(jobs: Iterator[Job], severity: float) -> Iterator[Job]:
    for job in jobs:
        yield replace(job, render_s=0.02 * severity)


def _long_prompts(jobs: Iterator[Job], severity: float) -> Iterator[Job]:
    for number, job in enumerate(jobs):
        every = 5 - round(severity)
        yield lengthened(job, _LONGER_PROMPT) if number % every == 0 else job


_USERS: Final[Mapping[str, _Jobs]] = {
    "slow_renderer": _slow_renderer,
    "long_prompts": _long_prompts,
}

# By the names triage has for causes, in a sentence each.
FAULTS: Final[Mapping[str, str]] = {
    cause: find(cause).about for cause in sorted((*INCIDENTS, *_USERS))
}
