"""The waits between a stream's chunks over time, in few enough figures for a row.

The time from the first content on is divided into at most `MAX_SLOTS` slots of equal length, which
doubles whenever the stream outgrows them. For each slot the longest wait that ended in it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_SLOTS: Final = 32
FIRST_SLOT_NS: Final = 1 << 27  # 0.13 s: some seven tokens at 20 ms each

_US: Final = 1_000
_NO_WAIT: Final = "-"
_TEXT: Final = re.compile(rf"[1-9]\d{{0,12}}:(?: (?:\d{{1,12}}|-)){{1,{MAX_SLOTS}}}", re.ASCII)


class GapSlots(NamedTuple):
    """How long each slot is, and the longest wait of each; `None` = no wait ended in it."""

    slot_ns: int
    longest_ns: tuple[int | None, ...]


def halved(slots: Sequence[int]) -> list[int]:
    """Return the same waits in slots twice as long."""
    return [max(slots[place : place + 2]) for place in range(0, len(slots), 2)]


def written(slot_ns: int, slots: Sequence[int]) -> str:
    """Write slots as text, in whole microseconds; below 0 is one in which no wait ended.

    Example:
        >>> written(134_217_728, [21_034_000, -1, 250_000_000])
        '134217: 21034 - 250000'
    """
    waits = str([gap // _US for gap in slots])
    return f"{slot_ns // _US}: {waits[1:-1].replace(',', '').replace('-1', _NO_WAIT)}"


def read_slots(text: str | None) -> GapSlots | None:
    """Read what `written` wrote; `None` = there is nothing, or nothing of that form."""
    if text is None or not _TEXT.fullmatch(text):
        return None
    slot, _, waits = text.partition(": ")
    longest = tuple(None if one == _NO_WAIT else int(one) * _US for one in waits.split())
    return GapSlots(int(slot) * _US, longest)
