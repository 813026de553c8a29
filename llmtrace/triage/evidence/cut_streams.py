"""Find what streams that are cut have in common: the gap before their end, their age, the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, Share
from llmtrace.triage.evidence.evidence import Evidence, kept
from llmtrace.triage.evidence.refusals import REFUSED
from llmtrace.triage.evidence.window_rows import Side

BAND: Final = 0.08
_SHORT_BAND_S: Final = 0.02
_BAND_S: Final = 0.3  # proxies look at long timers now and then only
_TIMERS_S: Final = 3.0
_MIN_IDLE_S: Final = 0.5
_MIN_CUT: Final = 4
_TOO_OFTEN: Final = 3  # times that all streams of something break: a machine dies once
_ALIKE: Final = 0.6
_FLOOR: Final = 0.8
_NEAR: Final = 0.2  # of the mean distance of three ends: 2 % of chance ones are as near
_PART: Final = 0.25  # of a typical response
_GATEWAY_TIMEOUT: Final = 504  # a proxy waited in vain
_OK: Final = 200  # a response that failed after its status line was cut


@dataclass(frozen=True, slots=True)
class Cuts:
    """Streams that ended without being finished, in one window.

    Attributes:
        n: how many.
        idle: the gap before their end that most of them share, seconds; `None` = too few known.
        alike: the share of them whose gap is within a few percent of it.
        floor: the gap that next to none of them is below, over their median: a timer cannot
            be early, only late. 0 = too few known, or too short for a timer.
        e2e_alike: the share whose whole length is as uniform.
        age: the length that most of them share, seconds; `None` = too few known.
        closer: whether gaps differ far less from each other than whole lengths do.
        together: the share that ended at once with two others, nearer than chance has it.
        moments: at how many times those did.
    """

    n: int
    idle: float | None
    alike: float
    floor: float
    e2e_alike: float
    age: float | None
    closer: bool
    together: float
    moments: int

    @property
    def at_once(self) -> bool:
        """Whether most ended as where a machine dies: at the same instant, or at two."""
        return self.n >= _MIN_CUT and self.together >= HALF and self.moments < _TOO_OFTEN

    @property
    def again_and_again(self) -> bool:
        """Whether most ended at the same instants, of which there are more."""
        return self.together >= HALF and self.moments >= _TOO_OFTEN

    @property
    def by_timer(self) -> bool:
        """Whether a timer closed them: all after the same gap, or none after less than one."""
        alike = self.alike >= _ALIKE or self.floor >= _FLOOR
        return self.idle is not None and alike and self.n >= _MIN_CUT


@kept
def broken(e: Evidence) -> tuple[Cuts, Cuts]:
    """Describe the truncated streams before and after."""
    return cuts(e.before), cuts(e.after)


def cuts(side: Side) -> Cuts:
    """Describe the requests that were truncated, timed out or failed after they were sent."""
    ended = failed(side)
    status = side.number("http_status")
    # A client that stops waiting before the first chunk cancelled; its stream was not truncated.
    ended &= ~(side.where("outcome", "timeout") & np.isnan(side.number("ttft_s"))
               & ~(status == _GATEWAY_TIMEOUT))  # fmt: skip
    ended &= ~((status >= REFUSED) & (status != _GATEWAY_TIMEOUT))
    # An error before the first chunk that names nothing may be anything.
    ended &= ~(side.where("outcome", "error") & np.isnan(side.number("ttft_s")) & np.isnan(status)
               & (side.rows.words["error_type"].codes < 0))  # fmt: skip
    # Where nothing came at all, the gap is from when the last attempt was sent.
    gap_before = side.number("e2e_s") - sum(
        np.nan_to_num(side.number(one), nan=0.0) for one in ("network_s", "gateway_s")
    )
    silent = side.number("e2e_s") - side.number("last_content_s")
    silent = np.where(np.isfinite(silent), silent, side.number("max_gap_s"))
    gap = np.where(np.isfinite(side.number("ttft_s")), silent, gap_before)[ended]
    gap = gap[np.isfinite(gap)]
    least = min(_MIN_IDLE_S, longest_silence(side))
    idle, alike = common_value(gap, least)
    age, of_an_age = common_value(side.number("e2e_s")[ended], least)
    ends = np.sort(side.ends[ended])
    near_s = _at_once(side, len(ends))
    together = (ends[2:] - ends[:-2] <= near_s) if len(ends) > 2 else np.zeros(0, bool)
    near = np.zeros(len(ends), bool)
    for i in range(3):
        near[i : i + len(together)] |= together
    return Cuts(
        n=int(ended.sum()),
        idle=idle,
        alike=alike,
        floor=_floor(gap),
        age=age,
        e2e_alike=of_an_age,
        closer=idle is not None and _spread(gap) < HALF * _spread(side.number("e2e_s")[ended]),
        together=float(near.mean()) if len(near) else 0.0,
        moments=int(near.any()) + int((np.diff(ends[near]) > near_s).sum()),
    )


def _spread(values: Floats) -> float:
    """Return by how much values differ, without the tenth at either end."""
    known = values[np.isfinite(values)]
    return float(np.ptp(np.percentile(known, (10, 90)))) if len(known) else 0.0


def failed(side: Side) -> Mask:
    """Return which requests ended without a whole response, and not by their client's wish."""
    return side.rows.failed


def _at_once(side: Side, n: int) -> float:
    """Return how near three ends must be to be at once: far nearer than chance puts them.

    And within a small part of a response, of those that were in progress together.
    """
    e2e = side.number("e2e_s")
    typical = float(np.median(e2e[np.isfinite(e2e)])) if np.isfinite(e2e).any() else 0.0
    return min(_NEAR * side.window.seconds / max(n, 1), _PART * typical)


def _floor(values: Floats) -> float:
    """Return the 10th percentile over the median; 0 where that says nothing of a timer."""
    if len(values) < 2 * _MIN_CUT:
        return 0.0
    low, middle = np.percentile(values, (10, 50))
    return float(low / middle) if low >= _MIN_IDLE_S else 0.0


def longest_silence(side: Side) -> float:
    """Return for how long some stream that was finished sent nothing: a timer lets none pass."""
    none = np.fmax(side.number("max_gap_s"), side.number("ttft_s"))[~failed(side)]
    return float(np.nanpercentile(none, 99)) if np.isfinite(none).any() else _MIN_IDLE_S


def common_value(values: Floats, least: float = _MIN_IDLE_S) -> tuple[float | None, float]:
    """Return the value most others are close to, of those from `least` on, and the share."""
    values = np.sort(values[np.isfinite(values)])
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
    """Count the requests that failed by when they ended: what breaks had begun before."""
    before, after = failed(e.before), failed(e.after)
    late = before & (e.before.ends >= e.after.window.start)
    more = int(late.sum())
    return Share(
        int(before.sum()) - more, len(before) - more, int(after.sum()) + more, len(after) + more
    )


@kept
def cut_by_deadline(e: Evidence) -> bool:
    """Return whether about as many took longer before as time out now: a deadline cuts them."""
    timed_out = e.share("timed out", lambda side: side.where("outcome", "timeout"))
    lasted = e.after.number("e2e_s")[e.after.where("outcome", "timeout")]
    usual = e.before.number("e2e_s")
    if not np.isfinite(lasted).any() or not np.isfinite(usual).any():
        return False
    longer = float(np.mean(usual[np.isfinite(usual)] >= np.nanmedian(lasted)))
    return longer >= HALF * (timed_out.after - timed_out.before)


def cut_before_content(e: Evidence) -> tuple[float, int] | None:
    """Return after how long attempts end without content, and of how many requests.

    If nearly all of them end after the same time, and about as many waited for longer before.
    """
    cut, earlier = _unanswered(e.after), _unanswered(e.before)
    each = (e.after.number("e2e_s") / np.fmax(e.after.number("attempts"), 1.0))[cut]
    waits = np.fmin(e.before.number("ttft_s"), e.before.number("e2e_s"))
    if len(each) < MIN_COUNT or not np.isfinite(each).all() or not np.isfinite(waits).any():
        return None
    at = float(np.median(each))
    alike = float(np.mean(np.abs(each - at) <= BAND * at))
    longer = float(np.mean(waits[np.isfinite(waits)] >= (1 - BAND) * at))
    more = float(cut.mean() - earlier.mean())
    return (at, len(each)) if alike >= _ALIKE and longer >= HALF * more > 0 else None


def _unanswered(side: Side) -> Mask:
    """Return which requests a hop ended before any content, by a 504 or after an answer began."""
    status = side.number("http_status")
    late = failed(side) & ~np.isfinite(side.number("ttft_s")) & ~side.where("outcome", "timeout")
    found: Mask = late & ((status < REFUSED) | (status == _GATEWAY_TIMEOUT))
    return found


def broken_midstream(side: Side) -> Mask:
    """Return which requests failed after their response had begun."""
    begun: Mask = np.isfinite(side.number("ttft_s")) | (side.number("http_status") == _OK)
    return side.where("outcome", "truncated", "error") & begun


def where_broken(e: Evidence) -> str | None:
    """Say which replica or version most broken streams share, beyond its traffic."""
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
