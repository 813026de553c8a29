"""Find requests that are refused: for a limit, by an error of a server, or a closed connection."""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.stats.arrays import Mask
from llmtrace.triage.evidence.changes import HALF, RATHER_SURE
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.window_rows import Side

REFUSED: Final = 400  # HTTP status from which on a request was answered with an error
TOO_MANY: Final = 429  # HTTP status of a request beyond a limit
ERROR: Final = 500  # HTTP status from which on a server says that it failed


def refused_connections(side: Side) -> Mask:
    """Return which requests failed because their connection was refused or closed.

    Before anything came: a stream that breaks may be called the same.
    """
    words = ("connect", "refused", "reset", "protocol")
    names = side.rows.words["error_type"].names
    named = side.where("error_type", *(n for n in names if any(w in n.lower() for w in words)))
    found: Mask = named & np.isnan(side.number("ttft_s"))
    return found


def sent_again(side: Side) -> Mask:
    """Return which requests were sent more than once."""
    return side.number("attempts") > 1


def over_quota(side: Side) -> Mask:
    """Return which requests were refused for a limit of requests or tokens."""
    words = ("429", "ratelimit", "quota", "throttl", "toomanyrequests", "resourceexhausted")
    names = [(name, name.lower().replace("_", "")) for name in side.rows.words["error_type"].names]
    named = side.where("error_type", *(n for n, low in names if any(w in low for w in words)))
    last, retried = (side.number(f"{one}_status") == TOO_MANY for one in ("http", "retried"))
    found: Mask = named | last | retried
    return found


def retried_busy(side: Side) -> Mask:
    """Return which requests got an error of the server and were sent again, or had been."""
    found: Mask = sent_again(side) & ((side.number("http_status") >= ERROR)
                                      | (side.number("retried_status") >= ERROR))  # fmt: skip
    return found


def server_errors_again(e: Evidence) -> bool:
    """Return whether more is sent again, after 5xx or in vain, and for no limit."""
    again, busy = e.share("retried", sent_again), e.share("busy", retried_busy)
    named = e.share("quota", over_quota).after_k >= HALF * busy.after_k
    named = named or e.rate("gateway_429") is not None
    return again.rose(0.01, sure=RATHER_SURE) and busy.after_k > 0 and not named
