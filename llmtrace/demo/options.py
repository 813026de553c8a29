"""What was `llmtrace demo` asked to do, and in which phases does it do that?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

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


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run: so many users at once, until so many seconds or requests are over."""

    name: str
    users: int
    seconds: float | None
    requests: int | None


def plan(options: DemoOptions) -> tuple[Phase, ...]:
    """Split the run into a calm phase and a rush, in which an engine has to queue.

    Too few users for two phases make one.

    Example:
        >>> [(phase.name, phase.users, phase.seconds) for phase in plan(DemoOptions(seconds=10))]
        [('calm', 3, 4.0), ('rush', 12, 6.0)]
    """
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
