"""Find work that engines do for other clients, whose requests are in no row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.triage.evidence.changes import MIN_COUNT, Shift
from llmtrace.triage.evidence.signals import Series
from llmtrace.triage.evidence.window_rows import Side

# Engines' counters and the row fields they match; some engines count only computed tokens.
COUNTED: Final[Mapping[str, Sequence[str]]] = {
    "tokens_in": ("prompt_tokens", "computed_tokens"),
    "tokens_out": ("output_tokens",),
}
ENDED: Final = ("e2e_count", "queue_count", "ttft_count")  # counters of ended requests, best first
_MORE: Final = 0.2  # relative rise of the counter
_SURE: Final = 2.0  # standard errors; enough, since the smaller share of rows agrees
_BEYOND: Final = 1.25  # factor by which the rows' share must have shrunk
GAP: Final = 4.0  # times the usual interval between two scrapes


@dataclass(frozen=True, slots=True)
class OtherClients:
    """Tokens that engines count, of which rows account for a smaller share than before.

    Attributes:
        counted: tokens per second, before and after.
        shares: share of them in rows, before and after.
        others: tokens in the window after beyond those that go with its rows.
        interval_s: between two scrapes.
    """

    counted: tuple[float, float]
    shares: tuple[float, float]
    others: float
    interval_s: float


def other_clients_work(
    signal: str,
    sides: Sequence[Side],
    series: Mapping[str, Series],
    counted: tuple[float, float] | None,
    change: Shift | None,
) -> OtherClients | None:
    """Return the tokens that engines count beyond the rows' usual share; `None` = no more.

    Rows may always cover only a part, such as one service or a sample: what matters is that their
    share shrank while the whole grew.
    """
    if counted is None or change is None or min(counted) <= 0:
        return None
    sure = max(change.z, change.mean_z) >= _SURE
    if not (sure and change.mean_change >= _MORE * change.before_mean):
        return None
    interval = float(np.median(np.concatenate([np.diff(one.t) for one in series.values()])))
    windows = [side.window for side in sides]
    gaps = (_longest_gap_s(one, window) for one in series.values() for window in windows)
    if max(gaps) > GAP * interval:
        return None  # what an engine did between two distant scrapes is not known
    found = []
    for name in COUNTED[signal]:
        before, after = (_tokens_in_rows(side, name) for side in sides)
        if min(before, after) <= 0:
            return None
        shares = (before / counted[0], after / counted[1])
        found.append((shares, counted[1] - after / shares[0]))
    shares, others = max(found, key=lambda one: one[0][1] / one[0][0])
    if shares[0] > _BEYOND or shares[0] < _BEYOND * shares[1]:
        return None  # some of the rows' requests are served elsewhere
    per_second = (counted[0] / windows[0].seconds, counted[1] / windows[1].seconds)
    return OtherClients(per_second, shares, others, interval)


def _longest_gap_s(series: Series, window: Window) -> float:
    """Return the longest time of a window without a sample, in seconds."""
    marks = np.concatenate([[window.start], series.within(window).t, [window.end]])
    return float(np.diff(marks).max())


def _tokens_in_rows(side: Side, name: str) -> float:
    """Return the tokens of the rows that an engine served; 0 = too few report theirs.

    Rows that do not are counted with the mean of the others.
    """
    served = ~(side.number("cache_hit") == 1)
    tokens = side.number(name)[served]
    known = np.isfinite(tokens)
    if known.sum() < MIN_COUNT:
        return 0.0
    weights = side.rows.weights[served]
    return float((tokens * weights)[known].sum() * weights.sum() / weights[known].sum())
