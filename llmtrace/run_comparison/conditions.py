"""Read and check the conditions under which a comparison fails in CI."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from llmtrace.core.errors import ConfigError, DataError
from llmtrace.run_comparison.durations import DURATIONS
from llmtrace.run_comparison.runs import TWINS, Comparison
from llmtrace.run_comparison.wording import QUANTILE_NAMES

_TEXT: Final = re.compile(
    r"\s*(?:(\w+)\.(p\d+)|failures)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*(%|ms)\s*"
)
_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Condition:
    """A change that fails a comparison, if a difference is shown.

    Attributes:
        text: as it was given.
        name: of the duration; `None` = the share of requests that fail.
        quantile: 0 to 1, of the duration.
        above: fails above the limit; else below it.
        limit: seconds, or a share of the value before; of failures, a share of all requests.
        relative: which of the two.
    """

    text: str
    name: str | None
    quantile: float
    above: bool
    limit: float
    relative: bool

    def fails(self, comparison: Comparison) -> bool:
        """Return whether the change is shown, and beyond the limit.

        Raises:
            DataError: the runs do not report what it is about, or have too few requests for it.
        """
        if self.name is None:
            first, second = comparison.totals
            return comparison.failures_differ and self._beyond(second.failed - first.failed)
        if self.name in comparison.zero:
            return False
        found = {effect.name: effect for effect in comparison.effects}
        effect = found.get(self.name) or found.get(TWINS.get(self.name, ""))
        if effect is None:
            raise DataError(f"--fail-if {self.text!r}: the runs do not both report {self.name}")
        before, change = effect.before.quantile(self.quantile), effect.changes.get(self.quantile)
        if before is None or change is None:
            few = min(len(side.values) for side in (effect.before, effect.after))
            raise DataError(f"--fail-if {self.text!r}: {few} requests are too few to show it")
        by = change.by
        if self.relative and by:
            by = by / before if before else math.copysign(math.inf, by)
        return effect.direction is not None and self._beyond(by)

    def _beyond(self, by: float) -> bool:
        return by > self.limit if self.above else by < self.limit


def read_condition(text: str) -> Condition:
    """Read a condition such as `ttft.p95 > 10%` or `e2e.p50 > 200ms`.

    Raises:
        ConfigError: it is none; the message says what one looks like.
    """
    found = _TEXT.fullmatch(text)
    quantiles = {name: q for q, name in QUANTILE_NAMES.items()}
    failures = found is not None and found[1] is None and found[5] == "%"
    if found is None or not (failures or (found[1] in DURATIONS and found[2] in quantiles)):
        raise ConfigError(
            f"--fail-if {text!r}: wanted a duration, a quantile ({', '.join(quantiles)}) and a "
            f"limit, such as 'ttft.p95 > 10%' or 'e2e.p50 > 200ms', or 'failures > 1%'; durations "
            f"are {', '.join(DURATIONS)}"
        )
    relative = found[5] == "%"
    return Condition(
        text=text.strip(),
        name=found[1],
        quantile=0.0 if failures else quantiles[found[2]],
        above=found[3] == ">",
        limit=float(found[4]) / (100 if relative else _MS),
        relative=relative,
    )
