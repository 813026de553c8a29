"""Find requests that were rejected: over a limit, by a server error, or by a closed connection."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.evidence.changes import HALF, RATHER_SURE
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.window_rows import Side

REFUSED: Final = 400  # from this HTTP status on, a request was answered with an error
TOO_MANY: Final = 429  # HTTP status of a request over a limit
ERROR: Final = 500  # from this HTTP status on, the server failed
FAR_LATER: Final = 2.0  # of the p95 of first content: a failed attempt that took longer was silent


def refused_connections(side: Side) -> Mask:
    """Return which requests failed because their connection was refused or closed.

    Only before any content came: a stream that breaks may have the same error type.
    """
    words = ("connect", "refused", "reset", "protocol")
    names = side.rows.words["error_type"].names
    named = side.where("error_type", *(n for n in names if any(w in n.lower() for w in words)))
    return named & np.isnan(side.number("ttft_s"))


def sent_again(side: Side) -> Mask:
    """Return which requests were sent more than once."""
    return side.number("attempts") > 1


def lost_per_retry(side: Side) -> Floats:
    """Return the seconds that each failed attempt took, with the pause after it; NaN = none."""
    return side.number("retry_s") / np.where(sent_again(side), side.number("attempts") - 1, np.nan)


def over_quota(side: Side) -> Mask:
    """Return which requests were rejected for a limit of requests or tokens."""
    words = ("429", "ratelimit", "quota", "throttl", "toomanyrequests", "resourceexhausted")
    names = [(name, name.lower().replace("_", "")) for name in side.rows.words["error_type"].names]
    named = side.where("error_type", *(n for n, low in names if any(w in low for w in words)))
    last, retried = (side.number(f"{one}_status") == TOO_MANY for one in ("http", "retried"))
    found: Mask = named | last | retried
    return found


def retried_busy(side: Side) -> Mask:
    """Return which requests were sent again and got a server error, at last or earlier."""
    return sent_again(side) & ((side.number("http_status") >= ERROR)
                                      | (side.number("retried_status") >= ERROR))  # fmt: skip


def server_errors_again(e: Evidence) -> bool:
    """Return whether more requests are sent again after 5xx, and hardly any for a limit."""
    again, busy = e.share("retried", sent_again), e.share("busy", retried_busy)
    limited = e.share("quota", over_quota).after_k >= HALF * busy.after_k
    limited = limited or e.rate("gateway_429") is not None
    return again.rose(0.01, sure=RATHER_SURE) and busy.after_k > 0 and not limited
