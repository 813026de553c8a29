"""Find waits in the client in which it does nothing else either: its event loop is blocked."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.stats.arrays import Mask, finite
from llmtrace.triage.evidence.evidence import Evidence, memoized
from llmtrace.triage.evidence.window_rows import Side

_EXPECTED: Final = 5.0  # chunks and ends: that none comes by chance has a probability of 1 %
_HARDLY_ANY: Final = 0.05  # of those expected


@memoized
def stands_still(e: Evidence) -> bool:
    """Return whether no response goes on in a client while one of its requests waits to be sent.

    A limit holds only what it keeps waiting, and it is the end of another response that lets the
    next request go. Of requests that wait longer than usual, only those count that come while
    others are in progress: a client with nothing else to do does not show what blocks it.
    """
    usual = e.row("client_delay_s")
    if usual is None:
        return False
    bar = max(usual.before_p95, e.floor("client_delay_s"))
    codes = e.after.rows.words["client"].codes
    found = [_while_waiting(e.after, codes == code, bar) for code in np.unique(codes)]
    seen, expected = np.sum(found, axis=0) if found else (0.0, 0.0)
    return bool(expected >= _EXPECTED and seen <= _HARDLY_ANY * expected)


def _while_waiting(side: Side, mine: Mask, bar: float) -> tuple[float, float]:
    """Count first chunks and ends during long waits, and as many as there are at other times."""
    mine = mine & np.isfinite(side.number("e2e_s"))
    start, ends = side.t[mine], side.ends[mine]
    sent = start + np.nan_to_num(side.number("client_delay_s")[mine])
    events = np.sort(finite(np.concatenate([start + side.number("ttft_s")[mine], ends])))
    long = sent - start > bar
    since, until = start[long], sent[long]
    others = np.searchsorted(np.sort(sent), since, "right") - np.searchsorted(
        np.sort(ends), since, "right"
    )
    served = float((ends - sent).sum())
    if not (others > 0).any() or served <= 0:
        return 0.0, 0.0
    seen = np.searchsorted(events, until, "left") - np.searchsorted(events, since, "right")
    expected = float((others * (until - since)).sum()) * len(events) / served
    return float(seen[others > 0].sum()), expected
