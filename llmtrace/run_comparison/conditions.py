"""Read and check the conditions under which a comparison fails in CI."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from llmtrace.core.errors import ConfigError, DataError
from llmtrace.run_comparison.durations import DURATIONS
from llmtrace.run_comparison.runs import TWINS, Comparison
from llmtrace.run_comparison.wording import QUANTILE_NAMES, by_how_much, label, percent

_TEXT: Final = re.compile(
    r"\s*(?:(\w+)\.(p\d+)|failures)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*(%|ms)\s*"
)
_MS: Final = 1000

State = Literal["passed", "undecided", "failed"]
_STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True, slots=True)
class Condition:
    """A change that fails a comparison, if it is more than chance.

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

    def judge(self, comparison: Comparison) -> tuple[State, str]:
        """Return what it comes to, and the figures that it is judged by.

        A change fails if it is beyond the limit and the difference of the duration is shown, or if
        all of its own interval is; it passes if none of that is.

        Raises:
            DataError: the runs do not report what it is about, or have too few requests for it.
        """
        if self.name is None:
            first, second = comparison.totals
            if not (first.outcomes and second.outcomes):
                raise DataError(f"--fail-if {self.text!r}: the runs do not both report outcomes")
            low, high = comparison.failures_by
            near, far = (low, high) if self.above else (high, low)
            failed = comparison.failures_differ and self._beyond(
                second.failed - first.failed, self.limit
            )
            failed |= self._beyond(near, self.limit)
            figures = f"{first.failed:.1%} → {second.failed:.1%} failed"
            state = _STATES[self._beyond(far, self.limit) + failed]
            return state, f"{figures}, by [{percent(low)[:-2]}, {percent(high)[:-2]}] points"
        if self.name in comparison.zero:
            return "passed", "0 in both runs"
        found = {effect.name: effect for effect in comparison.effects}
        effect = found.get(self.name) or found.get(TWINS.get(self.name, ""))
        if effect is None:
            raise DataError(f"--fail-if {self.text!r}: the runs do not both report {self.name}")
        before, change = effect.before.quantile(self.quantile), effect.changes.get(self.quantile)
        if before is None or change is None:
            few = min(len(side.values) for side in (effect.before, effect.after))
            raise DataError(f"--fail-if {self.text!r}: {few} requests are too few to show it")
        limit = self.limit * before if self.relative else self.limit
        near, far = (change.low, change.high) if self.above else (change.high, change.low)
        failed = effect.direction is not None and self._beyond(change.by, limit)
        failed |= self.quantile in effect.alone and self._beyond(near, limit)
        name = f"{label(effect)} {QUANTILE_NAMES[self.quantile]}"
        state = _STATES[self._beyond(far, limit) + failed]
        return state, f"{name} {by_how_much(effect, self.quantile, in_ms=not self.relative)}"

    def _beyond(self, by: float, limit: float) -> bool:
        return by > limit if self.above else by < limit


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
