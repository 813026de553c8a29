"""Decide how fast an error budget may burn before an alert fires, and over which windows.

Multi-window, multi-burn-rate, after Google's SRE workbook: a long window says that it matters, a
short one that it still goes on. The workbook's factors are made for objectives of 99.9 %. With a
p95, 5 % of the requests may be slow: 14.4 times that is 72 % of all requests, and 20 times cannot
happen. So every factor has a ceiling here, a share of the requests beyond which an alert fires
whatever the objective allows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from llmtrace.core.errors import ConfigError
from llmtrace.stats.quantiles import least_values

Severity = Literal["page", "ticket"]

PERIOD: Final = "30d"
_DURATION: Final = re.compile(r"([0-9]+)(ms|s|m|h|d|w)")
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True)
class Window:
    """One rung of the ladder.

    Attributes:
        severity: `page` calls a person, `ticket` waits for office hours.
        short: the window that says it still goes on.
        long: the window that says it matters.
        factor: how many times faster than allowed the budget burns.
        ceiling: share of the requests, 0 to 1, that is enough whatever the factor requires.
    """

    severity: Severity
    short: str
    long: str
    factor: float
    ceiling: float = 1.0

    def threshold(self, allowed: float) -> float:
        """Return the share of bad requests above which this fires.

        Example:
            >>> LADDER[0].threshold(0.001), LADDER[0].threshold(0.05)
            (0.0144, 0.25)
        """
        return round(max(min(self.factor * allowed, self.ceiling), allowed), 9)

    def spent(self, allowed: float, period: str = PERIOD) -> float:
        """Return the share of the period's error budget that is gone when this fires."""
        return self.threshold(allowed) / allowed * seconds(self.long) / seconds(period)


LADDER: Final = (
    Window("page", "5m", "1h", 14.4, 0.25),
    Window("page", "30m", "6h", 6, 0.15),
    Window("ticket", "2h", "1d", 3, 0.10),
    Window("ticket", "6h", "3d", 1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """How rules are made.

    Attributes:
        ladder: when a burning budget fires an alert.
        period: over which the error budget is counted.
        base: what recorded rates are over; four scrapes at least.
        interval: how often the rules are evaluated.
        period_interval: the same of those over the whole period.
        totals_interval: the same of the sums that panels read.
        least_requests: in the short window; below them a share says nothing. 72 is what it takes
            for the p95 of a sample to have an upper bound at all.
        collector_job: the `job` Prometheus scrapes the collector as.
        collector: the collector's address, for the commands of alerts; `None` = on the machine
            they are typed on.
        dashboards: where Grafana is, for the links of alerts.
        runbooks: where the page about the alerts is.
        managed: the alerts are to be Grafana-managed: their templates cannot query, so that
            links and commands count back from when they are opened.
    """

    ladder: tuple[Window, ...] = LADDER
    period: str = PERIOD
    base: str = "5m"
    interval: str = "30s"
    period_interval: str = "5m"
    totals_interval: str = "1m"
    least_requests: int = least_values(0.95)
    collector_job: str = "llmtrace-collector"
    collector: str | None = None
    dashboards: str = "http://localhost:3000"
    runbooks: str = "docs/on-call/alerts.md"
    managed: bool = False

    @property
    def windows(self) -> tuple[str, ...]:
        """Every window a share is recorded over, shortest first."""
        found = {self.base, *(one for w in self.ladder for one in (w.short, w.long))}
        return tuple(sorted(found, key=seconds))

    @property
    def short_windows(self) -> tuple[str, ...]:
        """The windows requests are counted over, shortest first."""
        return tuple(sorted({w.short for w in self.ladder}, key=seconds))


def seconds(duration: str) -> float:
    """Read one of Prometheus's durations.

    Raises:
        ConfigError: it is none.

    Example:
        >>> seconds("5m"), seconds("1h30m")
        (300, 5400)
    """
    parts = _DURATION.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise ConfigError(f"{duration!r} is not a duration such as 5m, 6h or 30d")
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)
