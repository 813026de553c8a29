"""How is the change of one metric divided, between kinds of work as fine as the rows carry?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from llmtrace.columns import Columns
from llmtrace.triage.attribute import Attribution, Requests, attribute, requests
from llmtrace.triage.parts import Values, split
from llmtrace.triage.workload import FEWEST, Cells, cells

_LEAST_EFFECTIVE: Final = 100
_LEAST_SHARE: Final = 0.5  # of the smaller window, where it has fewer than that


@dataclass(frozen=True, slots=True)
class Divided:
    """A metric's requests in both windows, in cells of the same work, and what moved.

    Attributes:
        found: the change in parts; `None` = the windows have no work in common.
    """

    before: Requests
    after: Requests
    cells: Cells
    found: Attribution | None


def divide(sides: tuple[Columns, Columns], both: tuple[Values, Values], q: float) -> Divided:
    """Divide the change of a metric's quantile.

    Cells so fine that weighting them leaves fewer than a hundred requests' worth tell little: they
    are made coarser until it does not.

    Args:
        sides: the rows of the windows before and after.
        both: the metric of those rows.
        q: the quantile.
    """
    fewest = FEWEST
    enough = min(_LEAST_EFFECTIVE, _LEAST_SHARE * min(len(both[0]), len(both[1])))
    while True:
        made = _divide(sides, both, q, fewest)
        if made.found is None or made.found.effective_n >= enough or made.cells.count == 1:
            return made
        fewest *= 2


def _divide(
    sides: tuple[Columns, Columns], both: tuple[Values, Values], q: float, fewest: int
) -> Divided:
    name = both[0].metric
    made = cells(sides, (both[0].index, both[1].index), name, fewest)
    before, after = (
        requests(rows.start[one.index], one.value, split(rows, name, one.index), one.weight, cell)
        for rows, one, cell in zip(sides, both, (made.before, made.after), strict=True)
    )
    found = attribute(before, after, q) if len(before) and len(after) else None
    return Divided(before, after, made, found)
