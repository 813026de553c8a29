"""A finding: what the linter reports about a dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        rule: its name, by which it can be excluded.
        where: the panel, query or variable, in words; empty = the dashboard.
        message: what is wrong and how to fix it.
    """

    rule: str
    severity: Severity
    where: str
    message: str

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{self.severity}: {place}{self.message} [{self.rule}]"
