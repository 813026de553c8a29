"""Read and check the conditions under which a comparison fails in CI."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from llmtrace.errors import ConfigError
from llmtrace.run_comparison.durations import DURATIONS
from llmtrace.run_comparison.runs import Comparison
from llmtrace.run_comparison.wording import QUANTILE_NAMES

_TEXT: Final = re.compile(r"\s*(\w+)\.(p\d+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*(%|ms)\s*")
_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Condition:
    """A change of a quantile that fails a comparison, if a difference is shown.

    Attributes:
        text: as it was given.
        name: of the duration.
        quantile: 0 to 1.
        above: fails above the limit; else below it.
        limit: seconds, or a share of the value before.
        relative: which of the two.
    """

    text: str
    name: str
    quantile: float
    above: bool
    limit: float
    relative: bool

    def fails(self, comparison: Comparison) -> bool:
        """Return whether the change is shown, and beyond the limit."""
        for effect in comparison.effects:
            change, before = (
                effect.changes.get(self.quantile),
                effect.before.quantile(self.quantile),
            )
            if effect.name != self.name or change is None or effect.direction is None:
                continue
            by = change.by / before if self.relative and before else change.by
            return by > self.limit if self.above else by < self.limit
        return False


def read_condition(text: str) -> Condition:
    """Read a condition such as `ttft.p95 > 10%` or `e2e.p50 > 200ms`.

    Raises:
        ConfigError: it is none; the message says what one looks like.
    """
    found = _TEXT.fullmatch(text)
    quantiles = {name: q for q, name in QUANTILE_NAMES.items()}
    if found is None or found[1] not in DURATIONS or found[2] not in quantiles:
        raise ConfigError(
            f"--fail-if {text!r}: wanted a duration, a quantile ({', '.join(quantiles)}) and a "
            f"limit, such as 'ttft.p95 > 10%' or 'e2e.p50 > 200ms'; durations are "
            f"{', '.join(DURATIONS)}"
        )
    relative = found[5] == "%"
    return Condition(
        text=text.strip(),
        name=found[1],
        quantile=quantiles[found[2]],
        above=found[3] == ">",
        limit=float(found[4]) / (100 if relative else _MS),
        relative=relative,
    )
