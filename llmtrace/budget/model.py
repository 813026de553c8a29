"""A latency budget: its limits, and the requests it covers.

An objective (p95 by default), a total, and each stage's share, for all requests or those of some
models and routes. Its thresholds become exact histogram bounds: "share within budget" is never
interpolated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from llmtrace.core.stages import StageName


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A latency budget. Durations in seconds; `None` = no limit set.

    Attributes:
        objective: the quantile the limits are for, 0 to 1.
        total_s: the whole request.
        ttft_s: start to first content.
        tpot_s: each output token after the first.
        turn_ttft_s: of a turn of an agent, start to the first content that its user sees.
        tokens: output tokens expected, so that `decode` is `tpot_s` times these.
        stages_s: what each stage may take.
        buffer_s: kept free.
        availability: share of the requests that end well, 0 to 1; what their clients cancelled
            does not count.
        model: the models whose requests it covers, by name or by pattern, as in `llama-*`; empty =
            all.
        route: the same of routes.
    """

    name: str = "default"
    objective: float = 0.95
    total_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    turn_ttft_s: float | None = None
    tokens: int | None = None
    stages_s: Mapping[StageName, float] = field(default_factory=dict)
    buffer_s: float = 0.0
    availability: float | None = None
    model: tuple[str, ...] = ()
    route: tuple[str, ...] = ()

    def covers(self, model: str | None, route: str | None) -> bool:
        """Return whether this budget covers a request of this model and route."""
        return _matches(self.model, model) and _matches(self.route, route)

    def thresholds_s(self) -> dict[str, float]:
        """Return the limit for each metric and stage that has one: the exact bucket bounds."""
        stages: Mapping[Any, float] = self.stages_s
        return {**self._limits_s("e2e"), **stages}

    def allocations_s(self) -> dict[str, dict[str, float]]:
        """Return what the budget, by its name, allows each stage, and its other limits."""
        stages: Mapping[Any, float] = self.stages_s
        return {self.name: {**stages, **self._limits_s("total")}}

    def _limits_s(self, whole: str) -> dict[str, float]:
        limits = {
            whole: self.total_s,
            "ttft": self.ttft_s,
            "tpot": self.tpot_s,
            "turn_ttft": self.turn_ttft_s,
        }
        return {name: limit for name, limit in limits.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets of one file. A request is compared with each that covers it."""

    all: tuple[Budget, ...]

    def __iter__(self) -> Iterator[Budget]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def thresholds_s(self) -> dict[str, tuple[float, ...]]:
        """Return every limit there is for each metric and stage: the exact bucket bounds."""
        found: dict[str, set[float]] = {}
        for budget in self.all:
            for name, limit in budget.thresholds_s().items():
                found.setdefault(name, set()).add(limit)
        return {name: tuple(sorted(limits)) for name, limits in found.items()}

    def allocations_s(self) -> dict[str, dict[str, float]]:
        """Return what each budget, by its name, allows each stage and the total."""
        return {name: limits for one in self.all for name, limits in one.allocations_s().items()}


def _matches(patterns: tuple[str, ...], value: str | None) -> bool:
    return not patterns or any(fnmatchcase(value or "", pattern) for pattern in patterns)


# Targets people set for a dialogue (docs/on-call/budgets.md); 50 tokens at 30 ms make the decode.
DEFAULT: Final = Budget(
    name="dialogue",
    total_s=2.5,
    ttft_s=1.0,
    tpot_s=0.030,
    tokens=50,
    stages_s={
        "network": 0.100,
        "gateway": 0.050,
        "queue": 0.150,
        "prefill": 0.400,
        "first_chunk": 0.050,
        "decode": 1.500,
        "render": 0.050,
    },
    buffer_s=0.200,
    availability=0.99,
)


def regex(pattern: str) -> str:
    """Write a pattern for models or routes, as `fnmatch` reads it, as a regular expression.

    In the syntax of RE2, which Prometheus and ClickHouse use: it has less than Python's.

    Example:
        >>> regex("llama-*"), regex("qwen?")
        ('llama-.*', 'qwen.')
    """
    # * is anything, ? one character, [..] one of these.
    parts = re.split(r"(\*|\?|\[!?[^\]]+\])", pattern)
    return "".join(_regex_part(part) for part in parts)


def _regex_part(part: str) -> str:
    if part in {"*", "?"}:
        return {"*": ".*", "?": "."}[part]
    if part.startswith("[") and part.endswith("]"):
        return part.replace("[!", "[^", 1)
    return re.sub(r"([.+*?()|\[\]{}^$\\])", r"\\\1", part)
