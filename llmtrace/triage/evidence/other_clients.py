"""Find work of engines that no row tells of: other clients send them requests, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.triage.evidence.changes import MIN_COUNT, Shift
from llmtrace.triage.evidence.signals import Series
from llmtrace.triage.evidence.window_rows import Side

# What engines count, and what rows tell of it; some engines count what they compute alone.
COUNTED: Final[Mapping[str, Sequence[str]]] = {
    "tokens_in": ("prompt_tokens", "computed_tokens"),
    "tokens_out": ("output_tokens",),
}
# What counts the requests that ended: the first that there is.
ENDED: Final = ("e2e_count", "queue_count", "ttft_count")
_MORE: Final = 0.2  # as a share of what was counted before
_SURE: Final = 2.0  # standard errors; that rows tell of a smaller part says the same
_BEYOND: Final = 1.25  # times what rows tell, by how much that was before
GAP: Final = 4.0  # times as long as usual between two scrapes


@dataclass(frozen=True, slots=True)
class Beside:
    """Tokens that engines count, of which rows tell a smaller part than before.

    Attributes:
        counted: a second, before and after.
        shares: what part of it rows tell of, before and after.
        others: tokens in the window after beyond those that go with these rows.
        interval_s: between two scrapes.
    """

    counted: tuple[float, float]
    shares: tuple[float, float]
    others: float
    interval_s: float


def more_beside(
    signal: str,
    sides: Sequence[Side],
    series: Mapping[str, Series],
    counted: tuple[float, float] | None,
    change: Shift | None,
) -> Beside | None:
    """Return how much more of these tokens engines count than rows tell of; `None` = no more.

    Rows may always tell of a part alone, as of one service of several, or of a sample: what
    matters is that this part got smaller while the whole grew.
    """
    if counted is None or change is None or min(counted) <= 0:
        return None
    sure = max(change.z, change.mean_z) >= _SURE
    if not (sure and change.mean_change >= _MORE * change.before_mean):
        return None
    interval = float(np.median(np.concatenate([np.diff(one.t) for one in series.values()])))
    windows = [side.window for side in sides]
    if any(_unread(one, each) > GAP * interval for one in series.values() for each in windows):
        return None  # what an engine did while it was not read is not known
    found = []
    for name in COUNTED[signal]:
        before, after = (_by_rows(side, name) for side in sides)
        if min(before, after) <= 0:
            return None
        shares = (before / counted[0], after / counted[1])
        found.append((shares, counted[1] - after / shares[0]))
    shares, others = max(found, key=lambda one: one[0][1] / one[0][0])
    if shares[0] > _BEYOND or shares[0] < _BEYOND * shares[1]:
        return None  # rows that tell of more are answered elsewhere, too
    a_second = (counted[0] / windows[0].seconds, counted[1] / windows[1].seconds)
    return Beside(a_second, shares, others, interval)


def _unread(series: Series, window: Window) -> float:
    """Return the longest time of a window without a sample, in seconds."""
    marks = np.concatenate([[window.start], series.within(window).t, [window.end]])
    return float(np.diff(marks).max())


def _by_rows(side: Side, name: str) -> float:
    """Return the tokens of the rows of a window that an engine served; 0 = too few know theirs.

    Those that do not are taken to have as many as others.
    """
    served = ~(side.number("cache_hit") == 1)
    tokens = side.number(name)[served]
    known = np.isfinite(tokens)
    if known.sum() < MIN_COUNT:
        return 0.0
    weights = side.rows.weights[served]
    return float((tokens * weights)[known].sum() * weights.sum() / weights[known].sum())
