"""Find what truncated streams have in common: the gap before their end, their age, the time."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask, finite
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, Share
from llmtrace.triage.evidence.evidence import Evidence, memoized
from llmtrace.triage.evidence.refusals import REFUSED
from llmtrace.triage.evidence.window_rows import Side

BAND: Final = 0.08  # relative difference of values that count as equal
_SHORT_BAND_S: Final = 0.02  # added to it, for short times
_BAND_S: Final = 0.3  # added to it, for long timers, which proxies check only now and then
_TIMERS_S: Final = 3.0
_MIN_IDLE_S: Final = 0.5
_MIN_CUT: Final = 4  # streams
_TOO_OFTEN: Final = 3  # instants at which streams end together; a machine dies once
_ALIKE: Final = 0.6  # share of streams
_FLOOR: Final = 0.8  # p10 over median
_NEAR: Final = 0.2  # of the mean distance between ends; by chance 2 % of three are as near
_PART: Final = 0.25  # of a typical response
_GATEWAY_TIMEOUT: Final = 504  # HTTP status
# Python's exceptions for what the application does with a response, not for how it came.
_OF_THE_APPLICATION: Final = frozenset(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(
        kind, (ValueError, LookupError, ArithmeticError, AssertionError, AttributeError, NameError)
    )
)  # fmt: skip
_OK: Final = 200  # HTTP status of a response that failed after its status line


@dataclass(frozen=True, slots=True)
class Cuts:
    """Streams in one window that ended unfinished.

    Attributes:
        n: how many.
        idle: the gap before their end that most of them share, seconds; `None` = too few known.
        idle_share: the share of them whose gap is close to it.
        idle_floor: p10 of the gaps over their median; near 1 for a timer, which is never early.
            0 = too few known, or too short for a timer.
        age_share: the share whose length is close to `age`.
        age: the length that most of them share, seconds; `None` = too few known.
        closer: whether gaps differ far less from each other than lengths do.
        together: the share that ended together with two others, nearer than by chance.
        moments: at how many instants those ended.
    """

    n: int
    idle: float | None
    idle_share: float
    idle_floor: float
    age_share: float
    age: float | None
    closer: bool
    together: float
    moments: int

    @property
    def at_once(self) -> bool:
        """Whether most ended at one instant or two, as when a machine dies."""
        return self.n >= _MIN_CUT and self.together >= HALF and self.moments < _TOO_OFTEN

    @property
    def again_and_again(self) -> bool:
        """Whether most ended together, at several instants."""
        return self.together >= HALF and self.moments >= _TOO_OFTEN

    @property
    def by_timer(self) -> bool:
        """Whether a timer closed them: all after the same gap, or none after a shorter one."""
        at_one_gap = self.idle_share >= _ALIKE or self.idle_floor >= _FLOOR
        return self.idle is not None and at_one_gap and self.n >= _MIN_CUT


@memoized
def broken(e: Evidence) -> tuple[Cuts, Cuts]:
    """Describe the truncated streams before and after."""
    return cuts(e.before), cuts(e.after)


def cuts(side: Side) -> Cuts:
    """Describe the requests that were truncated, timed out or failed after they were sent."""
    ended = failed(side) & ~side.where("error_type", *_OF_THE_APPLICATION)
    status = side.number("http_status")
    # A client's time-out before the first chunk is a cancellation, not a truncated stream.
    ended &= ~(side.where("outcome", "timeout") & np.isnan(side.number("ttft_s"))
               & ~(status == _GATEWAY_TIMEOUT))  # fmt: skip
    ended &= ~((status >= REFUSED) & (status != _GATEWAY_TIMEOUT))
    # An error before the first chunk without a status or type may be anything.
    ended &= ~(side.where("outcome", "error") & np.isnan(side.number("ttft_s")) & np.isnan(status)
               & (side.rows.words["error_type"].codes < 0))  # fmt: skip
    silent = side.number("e2e_s") - side.number("last_content_s")
    silent = np.where(np.isfinite(silent), silent, side.number("max_gap_s"))
    # Without any chunk, the gap begins with the status line, or when the last attempt was sent.
    begun, sent = np.isfinite(side.number("ttft_s")), _sent(side)
    gaps = [finite(np.where(begun, silent, side.number("e2e_s") - since)[ended])
            for since in (sent, np.fmax(sent, side.number("answered_s")))]  # fmt: skip
    least = min(_MIN_IDLE_S, longest_silence(side))
    gap = max(gaps, key=lambda one: common_value(one, least)[1])
    idle, idle_share = common_value(gap, least)
    age, age_share = common_value(side.number("e2e_s")[ended], least)
    ends = np.sort(side.ends[ended])
    near_s = _near_s(side, len(ends))
    together = (ends[2:] - ends[:-2] <= near_s) if len(ends) > 2 else np.zeros(0, bool)
    near = np.zeros(len(ends), bool)
    for i in range(3):
        near[i : i + len(together)] |= together
    return Cuts(
        n=int(ended.sum()),
        idle=idle,
        idle_share=idle_share,
        idle_floor=_floor(gap),
        age=age,
        age_share=age_share,
        closer=idle is not None and _spread(gap) < HALF * _spread(side.number("e2e_s")[ended]),
        together=float(near.mean()) if len(near) else 0.0,
        moments=int(near.any()) + int((np.diff(ends[near]) > near_s).sum()),
    )


def _spread(values: Floats) -> float:
    """Return the range of values, without the tenth at either end."""
    known = finite(values)
    return float(np.ptp(np.percentile(known, (10, 90)))) if len(known) else 0.0


def failed(side: Side) -> Mask:
    """Return which requests ended without a whole response, other than by the client's wish."""
    return side.rows.failed


def _near_s(side: Side, n: int) -> float:
    """Return the seconds within which three ends count as one instant.

    Far nearer than by chance, and within a small part of a typical response.
    """
    e2e = side.number("e2e_s")
    typical = float(np.median(e2e[np.isfinite(e2e)])) if np.isfinite(e2e).any() else 0.0
    return min(_NEAR * side.window.seconds / max(n, 1), _PART * typical)


def _floor(values: Floats) -> float:
    """Return p10 over median; 0 if there are too few values, or too small ones for a timer."""
    if len(values) < 2 * _MIN_CUT:
        return 0.0
    low, middle = np.percentile(values, (10, 50))
    return float(low / middle) if low >= _MIN_IDLE_S else 0.0


def longest_silence(side: Side) -> float:
    """Return for how long finished streams sent nothing, at most: no timer is much shorter.

    p90, as a client that reads late makes some seem longer.
    """
    first = np.fmin(side.number("ttft_s"), side.number("first_byte_s"))
    first -= np.fmax(_sent(side), side.number("answered_s"))
    silent = np.fmax(side.number("max_gap_s"), first)[~failed(side)]
    return float(np.nanpercentile(silent, 90)) if np.isfinite(silent).any() else _MIN_IDLE_S


def _sent(side: Side) -> Floats:
    """Return when the last attempt was sent, in seconds since the start of the request."""
    return np.nan_to_num(side.number("network_s")) + np.nan_to_num(side.number("gateway_s"))


def common_value(values: Floats, least: float = _MIN_IDLE_S) -> tuple[float | None, float]:
    """Return the value from `least` on that most values are close to, and their share."""
    values = np.sort(finite(values))
    if len(values) < 4:
        return None, 0.0
    band = BAND * values + np.where(values >= _TIMERS_S, _BAND_S, _SHORT_BAND_S)
    reach = np.searchsorted(values, values + band, side="right")
    counts = reach - np.arange(len(values))
    counts = np.where(values >= least, counts, 0)
    at = int(np.argmax(counts))
    if not counts[at]:
        return None, 0.0
    return float(np.median(values[at : reach[at]])), float(counts[at] / len(values))


def failures_by_end(e: Evidence) -> Share:
    """Count failed requests by the window they ended in; many began before it."""
    before, after = failed(e.before), failed(e.after)
    late = before & (e.before.ends >= e.after.window.start)
    more = int(late.sum())
    return Share(
        int(before.sum()) - more, len(before) - more, int(after.sum()) + more, len(after) + more
    )


@memoized
def cut_by_deadline(e: Evidence) -> bool:
    """Return whether as many requests took longer before as time out now: a deadline cuts them."""
    timed_out = e.share("timed out", lambda side: side.where("outcome", "timeout"))
    lasted = e.after.number("e2e_s")[e.after.where("outcome", "timeout")]
    usual = e.before.number("e2e_s")
    if not np.isfinite(lasted).any() or not np.isfinite(usual).any():
        return False
    longer = float(np.mean(usual[np.isfinite(usual)] >= np.nanmedian(lasted)))
    return longer >= HALF * (timed_out.after - timed_out.before)


def cut_before_content(e: Evidence) -> tuple[float, int] | None:
    """Return after how many seconds attempts end without content, and the number of requests.

    Only if nearly all of them end after the same time, and about as many waited longer before.
    """
    cut, earlier = _unanswered(e.after), _unanswered(e.before)
    each = (e.after.number("e2e_s") / np.fmax(e.after.number("attempts"), 1.0))[cut]
    waits = np.fmin(e.before.number("ttft_s"), e.before.number("e2e_s"))
    if len(each) < MIN_COUNT or not np.isfinite(each).all() or not np.isfinite(waits).any():
        return None
    at = float(np.median(each))
    equal = float(np.mean(np.abs(each - at) <= BAND * at))
    longer = float(np.mean(waits[np.isfinite(waits)] >= (1 - BAND) * at))
    more = float(cut.mean() - earlier.mean())
    return (at, len(each)) if equal >= _ALIKE and longer >= HALF * more > 0 else None


def _unanswered(side: Side) -> Mask:
    """Return which requests ended before any content, with a 504 or after the status line."""
    status = side.number("http_status")
    late = failed(side) & ~np.isfinite(side.number("ttft_s")) & ~side.where("outcome", "timeout")
    found: Mask = late & ((status < REFUSED) | (status == _GATEWAY_TIMEOUT))
    return found


def broken_midstream(side: Side) -> Mask:
    """Return which requests failed after their response had begun."""
    status = side.number("http_status")
    begun: Mask = np.isfinite(side.number("ttft_s")) | (status == _OK)
    ours = side.where("error_type", *_OF_THE_APPLICATION)
    return side.where("outcome", "truncated", "error") & begun & ~(status >= REFUSED) & ~ours


def where_broken(e: Evidence) -> str | None:
    """Say which replica, version, gateway or model most broken streams share."""
    broken = broken_midstream(e.after)
    for column in ("replica", "version", "gateway", "model"):
        words = e.after.rows.words[column]
        codes = words.codes[broken & (words.codes >= 0)]
        if len(codes) < 5:
            continue
        at = int(np.bincount(codes).argmax())
        part = float((codes == at).mean())
        traffic = float((words.codes == at).mean())
        if part >= 0.7 and part >= 1.5 * traffic:
            return f"{say.percent(part)} of them are {column}={words.names[at]}"
    return None
