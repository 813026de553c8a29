"""What does a budget promise, and which requests keep or break the promise?

An SLO for each limit a budget sets on `e2e`, `ttft` and `tpot`, and one for its availability. A
request counts as slow if it took longer than the limit, whoever ended it, or if it timed out; as
fast only if it succeeded in time. Errors and cancelled requests that were over before the limit
say nothing of speed: the errors are the availability's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from llmtrace.budget import Budget, regex
from llmtrace.errors import ConfigError

SloName = Literal["e2e", "ttft", "tpot", "availability"]

# What an alert may still mean: with more than a tenth allowed, nothing burns.
LEAST_OBJECTIVE: Final = 0.9
_NS: Final = 1_000_000_000
_WORDS: Final = {
    "e2e": "take no longer than {limit} in all",
    "ttft": "show their first content within {limit}",
    "tpot": "take no more than {limit} for each token after the first",
    "availability": "end well",
}


@dataclass(frozen=True, slots=True)
class Slo:
    """One promise of one budget.

    Attributes:
        budget: its name.
        name: which of the budget's limits it is.
        objective: share of the valid requests that must be good, 0 to 1.
        threshold_s: what a good request may take; `None` for the availability.
        models: whose requests, as in `Budget.model`.
        routes: the same of routes.
    """

    budget: str
    name: SloName
    objective: float
    threshold_s: float | None
    models: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()

    @property
    def allowed(self) -> float:
        """The share of the valid requests that may be bad."""
        return round(1 - self.objective, 9)

    @property
    def promise(self) -> str:
        """What is promised, in words."""
        limit = "" if self.threshold_s is None else _milliseconds(self.threshold_s)
        must = _WORDS[self.name].format(limit=limit)
        return f"{100 * self.objective:g} % of the requests {must}"

    def bad(self, window: str, by: Sequence[str] = ()) -> str:
        """Return PromQL for the bad requests a second.

        Args:
            window: of the rate, as in `5m`.
            by: labels to keep.
        """
        if self.threshold_s is None:
            bad = self._requests(window, by, 'outcome=~"error|truncated|timeout"')
            return f"({bad}\n or 0 * {self.valid(window, by)})"
        slow = f"clamp_min({self._all(window, by)}\n - {self._within(window, by)}, 0)"
        if self.name != "ttft":
            return f"({slow})"
        # Who timed out before the first content is in no histogram of it, and was slow for sure.
        timeout = 'outcome="timeout"'
        never = (
            f"clamp_min({self._requests(window, by, timeout)}\n"
            f" - {self._rate('ttft_seconds_count', window, by, timeout)}, 0)"
        )
        return f"({slow}\n + ({never} or 0 * {self._all(window, by)}))"

    def valid(self, window: str, by: Sequence[str] = ()) -> str:
        """Return PromQL for all requests a second that count, good and bad."""
        if self.threshold_s is None:
            return self._requests(window, by, 'outcome!="cancelled"')
        fast = f"({self.fast(window, by)} or 0 * {self._all(window, by)})"
        return f"({self.bad(window, by)}\n + {fast})"

    def fast(self, window: str, by: Sequence[str] = ()) -> str:
        """Return PromQL for the requests a second that succeeded within the threshold."""
        return self._within(window, by, 'outcome="success"')

    def _all(self, window: str, by: Sequence[str]) -> str:
        return self._rate(f"{self.name}_seconds_count", window, by)

    def _within(self, window: str, by: Sequence[str], *more: str) -> str:
        edge = f'le="{bound(self.threshold_s or 0)}"'
        return self._rate(f"{self.name}_seconds_bucket", window, by, *more, edge)

    def _requests(self, window: str, by: Sequence[str], *more: str) -> str:
        return self._rate("requests_total", window, by, *more)

    def _rate(self, metric: str, window: str, by: Sequence[str], *more: str) -> str:
        kept = f" by ({', '.join(by)}) " if by else ""
        where = ", ".join((*self.selector, *more))
        return f"sum{kept}(rate(llmtrace_{metric}{f'{{{where}}}' if where else ''}[{window}]))"

    @property
    def selector(self) -> tuple[str, ...]:
        """The label matchers of the requests it is about."""
        given = {"model": self.models, "route": self.routes}
        return tuple(matcher(name, patterns) for name, patterns in given.items() if patterns)


def slos(budgets: Iterable[Budget]) -> tuple[Slo, ...]:
    """Return the SLOs that budgets come to.

    Raises:
        ConfigError: there is none; or an objective leaves too much room for an alert to mean
            anything.
    """
    found = tuple(slo for budget in budgets for slo in _of(budget))
    if not found:
        raise ConfigError(
            "no budget sets total, ttft, tpot or availability: there is nothing to alert on"
        )
    return found


def _of(budget: Budget) -> Iterable[Slo]:
    for text in (budget.name, *budget.model, *budget.route):
        if "{{" in text:
            raise ConfigError(
                f"budget {budget.name}: {text!r} holds {{{{, which the texts of alerts would take "
                "for a template; name it without"
            )
    limits: dict[SloName, float | None] = {
        "e2e": budget.total_s,
        "ttft": budget.ttft_s,
        "tpot": budget.tpot_s,
    }
    wanted = [(name, budget.objective, limit) for name, limit in limits.items() if limit]
    told: list[tuple[SloName, float, float | None]] = [*wanted]
    if budget.availability is not None:
        told.append(("availability", budget.availability, None))
    for name, objective, limit in told:
        if objective < LEAST_OBJECTIVE:
            raise ConfigError(
                f"budget {budget.name}: with an objective of {100 * objective:g} % for {name} "
                f"{100 - 100 * objective:g} % of the requests may miss it, and no alert means "
                "anything; write p90 or more (docs/alerts.md)"
            )
        yield Slo(budget.name, name, objective, limit, budget.model, budget.route)


def bound(seconds: float) -> str:
    """Write a threshold as our exporters write the bucket bound it becomes.

    Example:
        >>> bound(1), bound(0.03)
        ('1.0', '0.03')
    """
    return repr(round(seconds * _NS) / _NS)


def matcher(label: str, patterns: Sequence[str]) -> str:
    """Return the PromQL matcher for values that match any of some patterns.

    Example:
        >>> print(matcher("model", ["gpt-4o"]), matcher("route", ["chat", "v1/*"]))
        model="gpt-4o" route=~"chat|v1/.*"
    """
    if len(patterns) == 1 and not _wild(patterns[0]):
        return f"{label}={quoted(patterns[0])}"
    return f"{label}=~{quoted('|'.join(regex(one) for one in patterns))}"


def plain(patterns: Sequence[str]) -> str | None:
    """Return the one value that patterns stand for; `None` = several, or all."""
    return patterns[0] if len(patterns) == 1 and not _wild(patterns[0]) else None


def _wild(pattern: str) -> bool:
    return any(character in pattern for character in "*?[")


def quoted(text: str) -> str:
    """Write text as a PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,g} ms" if seconds < 1 else f"{seconds:g} s"
