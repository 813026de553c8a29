"""Adjust windows that the user gave to the data, and say what is odd about them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Doubt
from llmtrace.display.summary_tables import date_and_zone

_HEAD: Final = 0.1  # of a window: so much of it may be before all data


def within_the_data(
    before: Window | None, after: Window | None, case: Case
) -> tuple[Window | None, Window | None, list[str]]:
    """Return the given windows without the time before all data, and warnings.

    What both windows have in common counts as after. A window after without any request before it
    is dropped, since there is nothing to compare it with: then all of the time is searched.
    """
    if before is None and after is not None and not (case.rows.start / 1e9 < after.start).any():
        said = "no request is older than the window after: all of the time was searched"
        return None, None, [said]
    odd: list[str] = []
    if before is not None and after is not None and before.start >= after.end:
        odd.append(Doubt("the window before is later than the window after: are they swapped?"))
    if before is not None and after is not None and before.start < after.start < before.end:
        before = replace(before, end=after.start)
        said = (
            "the windows overlap: the window before was cut to end where the window after begins"
        )
        odd.append(f"{said}, {date_and_zone(after.start)}")
    first = min((float(t.min()) for t in (case.rows.start / 1e9, case.signals.t) if len(t)),
                default=-math.inf)  # fmt: skip

    def from_first(name: str, window: Window | None) -> Window | None:
        if window is None or not window.start + _HEAD * window.seconds < first < window.end:
            return window
        odd.append(f"the data begin {date_and_zone(first)}: the window {name} was cut to that")
        return replace(window, start=first)

    return from_first("before", before), from_first("after", after), odd
