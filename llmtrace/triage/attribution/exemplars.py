"""Choose the traces that an engineer should open first."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.dataset.columns import Columns
from llmtrace.triage.attribution.components import Values

_SHOWN: Final = 3


def exemplars(
    sides: tuple[Columns, Columns],
    both: tuple[Values, Values],
    p95_before: float | None,
    p95_after: float | None,
) -> dict[str, tuple[str, ...]]:
    """Return the trace ids nearest to the p95: `slow` ones after, `normal` ones before."""
    listed = {}
    for name, rows, one, at in (
        ("slow", sides[1], both[1], p95_after), ("normal", sides[0], both[0], p95_before),
    ):  # fmt: skip
        ids: list[str] = []
        if at is not None:
            for i in np.lexsort((one.t, np.abs(one.value - at))):
                text = rows.id("trace_id", int(one.index[i]))
                if text and text not in ids:
                    ids.append(text)
                if len(ids) == _SHOWN:
                    break
        listed[name] = tuple(ids)
    return listed
