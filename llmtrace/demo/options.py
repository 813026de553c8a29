"""The options of `llmtrace demo`, and the phases of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SECONDS: Final = 24.0
# With a fault: enough for a p95 of either half to have an interval, whatever chance leaves out.
_QUIET_REQUESTS: Final = 200
_FAULTY_REQUESTS: Final = 150
_USERS_OF_FAULT: Final = 5
QUIET: Final = "quiet"
_CALM_SHARE: Final = 0.4
_USERS: Final = 12
_CALM_USERS: Final = 4  # of the users, one in so many


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of `llmtrace demo`.

    Attributes:
        endpoint: base URL to use instead of the simulated engine.
        model: the model to request.
        api_key_env: environment variable with the endpoint's key.
        vllm: use a real vLLM, started for this.
        budget: budget file; default: `LLMTRACE_BUDGET`, else common targets for a dialogue.
        rows_out: file to write the rows to, one JSON object a line.
        seconds: length of the run in seconds; default: 24, or no limit if `requests` is given.
            With a fault: the least, and until there are as many requests as triage needs.
        requests: largest number of requests.
        users: concurrent users in the busiest phase.
        arrivals: trace whose times and lengths are replayed, scaled to the demo's engine.
        fault: fault injected half-way, and then triaged; `None` = none.
        severity: of the fault, from 1 to 3.
        html: file of the triage's page; default: llmtrace's folder for what can be
            made again.
    """

    endpoint: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    vllm: bool = False
    budget: Path | None = None
    rows_out: Path | None = None
    seconds: float | None = None
    requests: int | None = None
    users: int | None = None
    arrivals: Path | None = None
    fault: str | None = None
    severity: float = 3.0
    html: Path | None = None

    @property
    def time_limit_s(self) -> float | None:
        """Length of the run in seconds; `None` = until there are enough requests."""
        if self.seconds is not None or self.requests is not None or self.fault is not None:
            return self.seconds
        return _SECONDS

    @property
    def wanted(self) -> int | None:
        """How many requests are made; `None` = as many as the time allows."""
        if self.fault is None or self.requests is not None:
            return self.requests
        return _QUIET_REQUESTS + _FAULTY_REQUESTS


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run: so many users at once, until so many seconds or requests are over.

    Attributes:
        both: whether it ends when both limits are reached, and not at the first.
    """

    name: str
    users: int
    seconds: float | None
    requests: int | None
    both: bool = False


def plan(options: DemoOptions) -> tuple[Phase, ...]:
    """Split the run into a calm phase and a rush, in which an engine has to queue.

    Too few users for two phases make one. With a fault it is a quiet half, and one with the fault.

    Example:
        >>> [(phase.name, phase.users, phase.seconds) for phase in plan(DemoOptions(seconds=10))]
        [('calm', 3, 4.0), ('rush', 12, 6.0)]
    """
    seconds, requests = options.time_limit_s, options.requests
    users = options.users or (_USERS if options.fault is None else _USERS_OF_FAULT)
    if options.fault is not None:
        half_s = None if seconds is None else seconds / 2
        quiet_n, faulty_n = _QUIET_REQUESTS, _FAULTY_REQUESTS
        if requests is not None:
            quiet_n, faulty_n = requests - requests // 2, requests // 2
        both = requests is None
        return (
            Phase(QUIET, users, half_s, quiet_n, both),
            Phase(options.fault, users, half_s, faulty_n, both),
        )
    calm_users = users // _CALM_USERS
    if not calm_users:
        return (Phase("steady", users, seconds, requests),)
    calm_s = None if seconds is None else seconds * _CALM_SHARE
    rush_s = None if seconds is None or calm_s is None else seconds - calm_s
    calm_n = None if requests is None else round(requests * _CALM_SHARE)
    rush_n = None if requests is None or calm_n is None else requests - calm_n
    return (Phase("calm", calm_users, calm_s, calm_n), Phase("rush", users, rush_s, rush_n))
