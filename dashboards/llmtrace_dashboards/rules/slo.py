"""Define what a budget promises, and which requests keep or break the promise.

An SLO for each limit a budget sets on `e2e`, `ttft`, `tpot` and `turn_ttft` (which covers the
turns of its routes, whatever their models), and one for its availability. A request counts as slow
if it took longer than the limit, whatever its outcome; for `ttft` also if it ended after the limit
without any content. It counts as fast only if it succeeded in time. Errors and cancelled requests
that ended before the limit count as neither; errors count against the availability.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from llmtrace.budget import Budget, regex
from llmtrace.core.errors import ConfigError
from llmtrace.core.row_fields import FAILED as FAILED_OUTCOMES

SloName = Literal["e2e", "ttft", "tpot", "turn_ttft", "availability"]

FAILED: Final = f'outcome=~"{"|".join(FAILED_OUTCOMES)}"'
# Below it there is no alert: where more than a tenth may be bad, a burn rate means nothing.
MIN_OBJECTIVE: Final = 0.9
_NS: Final = 1_000_000_000
_WORDS: Final = {
    "e2e": "take no longer than {limit} in all",
    "ttft": "show their first content within {limit}",
    "tpot": "take no more than {limit} for each token after the first",
    "turn_ttft": "show their user something within {limit}",
    "availability": "end well",
}


@dataclass(frozen=True, slots=True)
class Slo:
    """One promise of one budget.

    Attributes:
        budget: its name.
        name: which of the budget's limits it is.
        objective: share of the valid requests that must be good, 0 to 1; `None` = nothing is
            promised, and it is counted all the same.
        threshold_s: what a good request may take; `None` for the availability.
        models: whose requests, as in `Budget.model`.
        routes: the same of routes.
    """

    budget: str
    name: SloName
    objective: float | None
    threshold_s: float | None
    models: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()

    @property
    def allowed(self) -> float:
        """The share of the valid requests that may be bad; all of them if nothing is promised."""
        return 1.0 if self.objective is None else round(1 - self.objective, 9)

    @property
    def alerts(self) -> bool:
        """Whether an alert can be made of it: with a p50 half of the requests may be bad."""
        return self.objective is not None and self.objective >= MIN_OBJECTIVE

    @property
    def promise(self) -> str:
        """The objective in words, for alerts and panels."""
        limit = "" if self.threshold_s is None else _milliseconds(self.threshold_s)
        must = _WORDS[self.name].format(limit=limit)
        counted = "turns" if self.name == "turn_ttft" else "requests"
        return f"{100 * (1 - self.allowed):g} % of the {counted} {must}"

    def bad(self, window: str, by: Sequence[str] = ()) -> str:
        """Return PromQL for the bad requests a second, over a window such as `5m`, by labels.

        Subtracted series by series: a process that has no bound at the threshold is left out, and
        not counted as if all its requests were slow.
        """
        if self.threshold_s is None:
            bad = _sum(self._rate("requests_total", window, FAILED), by)
            return f"({bad}\n or 0 * {self.valid(window, by)})"
        counted = self._rate(f"{self.name}_seconds_count", window)
        within = self._rate(f"{self.name}_seconds_bucket", window, self._edge)
        slow = _sum(f"clamp_min({counted}\n - ignoring (le) {within}, 0)", by)
        if self.name != "ttft":
            return slow
        return f"({slow}\n + ({_sum(self._never(window), by)}\n or 0 * {slow}))"

    def _never(self, window: str) -> str:
        """Return PromQL for the requests a second that failed late, without any content.

        They are in no histogram of TTFT. Of the requests without content those are left out that
        were over before the limit: the histogram of the whole request has its bound, too.
        """
        failed = 'outcome!="success"'
        requests = self._rate("requests_total", window, failed)
        shown = self._rate("ttft_seconds_count", window, failed)
        early = self._rate("e2e_seconds_bucket", window, failed, self._edge)
        return (
            f"clamp_min({requests}\n - ({shown} or 0 * {requests})\n - ignoring (le) {early}, 0)"
        )

    def valid(self, window: str, by: Sequence[str] = ()) -> str:
        """Return PromQL for all requests a second that count, good and bad."""
        if self.threshold_s is None:
            return _sum(self._rate("requests_total", window, 'outcome!="cancelled"'), by)
        bad = self.bad(window, by)
        return f"({bad}\n + ({self.fast(window, by)} or 0 * {bad}))"

    def fast(self, window: str, by: Sequence[str] = ()) -> str:
        """Return PromQL for the requests a second that succeeded within the threshold."""
        bucket = f"{self.name}_seconds_bucket"
        return _sum(self._rate(bucket, window, 'outcome="success"', self._edge), by)

    @property
    def _edge(self) -> str:
        return f'le="{bound(self.threshold_s or 0)}"'

    def _rate(self, metric: str, window: str, *more: str) -> str:
        where = ", ".join((*self.selector, *more))
        return f"rate(llmtrace_{metric}{f'{{{where}}}' if where else ''}[{window}])"

    @property
    def selector(self) -> tuple[str, ...]:
        """The label matchers of the requests it is about."""
        given = {"model": self.models, "route": self.routes}
        return tuple(matcher(name, patterns) for name, patterns in given.items() if patterns)


def _sum(rates: str, by: Sequence[str]) -> str:
    kept = f" by ({', '.join(by)}) " if by else ""
    return f"sum{kept}({rates})"


def promised(budgets: Iterable[Budget]) -> tuple[Slo, ...]:
    """Return what budgets promise, also what leaves too much room for an alert.

    Raises:
        ConfigError: a name cannot stand in the texts of alerts.
    """
    return tuple(slo for budget in budgets for slo in _of(budget))


def slos(budgets: Iterable[Budget]) -> tuple[Slo, ...]:
    """Return the SLOs that budgets come to and that alerts can be made of.

    Raises:
        ConfigError: there is none; or each objective leaves too much room for an alert to mean
            anything.
    """
    found = promised(budgets)
    if not found:
        raise ConfigError(
            "no budget sets total, ttft, tpot or availability: there is nothing to alert on"
        )
    alerting = tuple(slo for slo in found if slo.alerts)
    if not alerting:
        raise ConfigError("; ".join(map(_too_much_room, found)))
    return alerting


def counted(budgets: Iterable[Budget]) -> tuple[Slo, ...]:
    """Return what budgets promise, and the availability of those that do not promise one.

    Dashboards show how many requests failed whatever a budget promises.

    Raises:
        ConfigError: as `promised`.
    """
    budgets = tuple(budgets)
    return (
        *promised(budgets),
        *(
            Slo(budget.name, "availability", None, None, budget.model, budget.route)
            for budget in budgets
            if budget.availability is None
        ),
    )


def unalerted(budgets: Iterable[Budget]) -> Iterator[str]:
    """Yield a sentence for each limit and kind of failure that gets no alert.

    Raises:
        ConfigError: as `promised`.
    """
    for budget in budgets:
        silent = [slo for slo in _of(budget) if not slo.alerts]
        for allowed in dict.fromkeys(slo.allowed for slo in silent):
            same = [slo for slo in silent if slo.allowed == allowed]
            yield f"{_too_much_room(*same)}; without an alert, it is counted all the same"
        if budget.availability is None:
            yield (
                f"budget {budget.name}: sets no availability: no alert fires on failures that are "
                "quick (docs/on-call/alerts.md)"
            )


def _too_much_room(*slos: Slo) -> str:
    allowed = f"{100 * slos[0].allowed:g} %"
    names = ", ".join(slo.name for slo in slos)
    return (
        f"budget {slos[0].budget}: with an objective of {100 - 100 * slos[0].allowed:g} % for "
        f"{names} {allowed} of the requests may miss it, and no alert means anything; write p90 "
        "or more (docs/on-call/alerts.md)"
    )


def _of(budget: Budget) -> Iterator[Slo]:
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
        "turn_ttft": budget.turn_ttft_s,
    }
    for name, limit in limits.items():
        if limit:
            models = () if name == "turn_ttft" else budget.model  # a turn may call several
            yield Slo(budget.name, name, budget.objective, limit, models, budget.route)
    if budget.availability is not None:
        objective = budget.availability
        yield Slo(budget.name, "availability", objective, None, budget.model, budget.route)


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
