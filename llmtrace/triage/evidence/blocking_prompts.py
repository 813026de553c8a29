"""Find long prompts that delay short ones, which arrive while a long one is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask, finite
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, RATHER_SURE, Share
from llmtrace.triage.evidence.evidence import Evidence, memoized
from llmtrace.triage.evidence.signals import Series
from llmtrace.triage.evidence.window_rows import Side

_LONG_TO_MEDIAN: Final = 5.0
_LONG_TO_P90: Final = 1.3
_SEVERAL: Final = 3  # scrapes
_PAIR: Final = 2  # long prompts; what one delays may be slow by chance
_MAX_PACE: Final = 3.0  # times the typical prefill time per token


@dataclass(frozen=True, slots=True)
class Overlap:
    """Short prompts in the window after, by whether a long one was being computed.

    Attributes:
        tokens: computed tokens from which a prompt counts as long.
        long_n, long_before: number of long prompts after, and before.
        during, outside: p90 of the time to first chunk of short prompts that arrived while a long
            one was computed, and of the others; seconds.
        tpot_during, tpot_outside: median time per token of short ones decoded then, and of the
            others; seconds.
        cost, cost_before: mean delay of all short prompts by long ones, after and before; seconds.
        grown: by how much the mean time to first chunk of short prompts rose; seconds.
        slow_during, all_during: share of the slow short prompts, and of all, that arrived then.
    """

    tokens: float
    long_n: int
    long_before: int
    during: float
    outside: float
    tpot_during: float | None
    tpot_outside: float | None
    slow_during: float
    all_during: float
    cost: float
    cost_before: float
    grown: float

    @property
    def lift(self) -> float:
        """Share of slow short prompts that met a long one, over that of all short prompts."""
        return self.slow_during / self.all_during if self.all_during else 0.0


def long_from(e: Evidence) -> float | None:
    """Return the computed tokens from which a prompt is several times an ordinary one."""
    tokens = finite(e.before.number("computed_tokens"))
    if len(tokens) < MIN_COUNT:
        return None
    return max(
        _LONG_TO_MEDIAN * float(np.median(tokens)), _LONG_TO_P90 * float(np.percentile(tokens, 90))
    )


def long_prompts_of_others(e: Evidence) -> float | None:
    """Return the least mean tokens of other clients' prompts; `None` = not long, or not known."""
    found, limit = e.other_clients("tokens_in"), long_from(e)
    ended = e.ended
    if found is None or limit is None or ended is None:
        return _long_between_scrapes(e)
    added = ended[1] - ended[0] * len(e.after) / len(e.before)
    uncertain = 2 * ended[1] * found.interval_s / e.after.window.seconds  # at the window's edges
    requests = max(added, 0.0) + uncertain
    if found.others >= limit * requests > 0:
        return found.others / requests
    return _long_between_scrapes(e)


@memoized
def _long_between_scrapes(e: Evidence) -> float | None:
    """Return the typical tokens of long prompts that engines computed beside those of rows.

    Between two scrapes an engine counts far more tokens than the rows whose first chunk came then
    have, and hardly more requests. `None` = in no more scrapes than before, or not known.
    """
    limit, long, scrapes = long_from(e), [], []
    for side in (e.before, e.after):
        parts = [_beside_rows(e, name, side) for name in e.rates("tokens_in")]
        tokens, requests = np.concatenate([np.zeros((2, 0)), *parts], axis=1)
        long.append(tokens[tokens >= (limit or np.inf) * np.maximum(requests, 1)])
        scrapes.append(len(tokens))
    more = Share(len(long[0]), scrapes[0], len(long[1]), scrapes[1])
    return float(np.median(long[1])) if more.rose(0.0, _SEVERAL, RATHER_SURE) else None


def _beside_rows(e: Evidence, name: str, side: Side) -> Floats:
    """Return the tokens and the requests that an engine counts beyond rows, by scrape; (2, n).

    A row may be counted a scrape earlier or later: sums with neighbours are no less than this.
    """
    empty = Series(np.zeros(0), np.zeros(0))
    tokens, requests = (e.rates(signal).get(name, empty).within(side.window)
                        for signal in ("tokens_in", "ttft_count"))  # fmt: skip
    words, engines = side.rows.words["replica"], e.rates("tokens_in")
    mine = words.where(name) | (words.codes < 0)
    known = len(engines) == 1 or words.where(name).any()
    if not known or len(tokens.t) < MIN_COUNT or not np.array_equal(tokens.t, requests.t):
        return np.zeros((2, 0))
    at = np.searchsorted(tokens.t, (side.t + side.number("ttft_s"))[mine])
    weights = np.nan_to_num(side.number("prompt_tokens"))[mine], np.ones(mine.sum())
    beside = np.array([
        one.value[1:] * np.diff(one.t) - np.bincount(at, weight, len(one.t) + 1)[1:-1]
        for one, weight in zip((tokens, requests), weights, strict=True)
    ])  # fmt: skip
    around = np.pad(beside[0], 1, constant_values=np.inf)
    beside[0] += np.minimum(np.minimum(around[:-2], around[2:]), 0.0)
    return beside


def held_up(e: Evidence) -> bool | None:
    """Return whether short prompts waited for long ones, more than before; `None` = unknown."""
    found = overlap(e)
    if found is None:
        limit = long_from(e)
        if limit is None or not e.after.known("prompt_tokens"):
            return None
        # If there are long ones all the time, there is nothing to compare with.
        return None if (e.after.number("computed_tokens") >= limit).sum() >= 3 else False
    worse = found.cost >= max(2.0 * found.cost_before, e.floor("ttft_s"))
    # If all short prompts wait longer, so do those that meet a long one: require most of it.
    worse &= found.cost - found.cost_before >= HALF * found.grown
    return found.during >= 1.4 * found.outside and found.slow_during >= 0.3 and worse


@memoized
def overlap(e: Evidence) -> Overlap | None:
    """Compare short prompts that met a long one with the others; `None` = too few of either."""
    limit = long_from(e)
    if limit is None or len(e.after) < 3 * MIN_COUNT:
        return None
    tokens, ttft = e.after.number("computed_tokens"), e.after.number("ttft_s")
    long, busy, during, outside = _meetings(e.after, limit)
    if long.sum() < _PAIR or during.sum() < MIN_COUNT or outside.sum() < MIN_COUNT:
        return None
    long_b, _, during_b, outside_b = _meetings(e.before, limit)
    ttft_b = e.before.number("ttft_s")
    before, short = ttft_b[during_b | outside_b], during | outside
    slow = short & (ttft > (float(np.percentile(before, 95)) if len(before) else np.inf))
    ran = _meets_long(busy, busy[-1], e.after.ends)
    return Overlap(
        tokens=limit, long_n=int(long.sum()), long_before=int(long_b.sum()),
        during=float(np.percentile(ttft[during], 90)),
        outside=float(np.percentile(ttft[outside], 90)),
        tpot_during=_median(e.after.number("tpot_s"), (tokens < limit) & ran),
        tpot_outside=_median(e.after.number("tpot_s"), (tokens < limit) & ~ran),
        slow_during=float(during[slow].mean()) if slow.any() else 0.0,
        all_during=float(during.sum() / short.sum()),
        cost=_mean_cost(ttft, during, outside),
        cost_before=_mean_cost(ttft_b, during_b, outside_b),
        grown=float(ttft[short].mean() - before.mean()) if len(before) else 0.0,
    )  # fmt: skip


_LongWork = tuple[Side, Mask, Floats, Floats]


def _meetings(side: Side, limit: float) -> tuple[Mask, _LongWork, Mask, Mask]:
    """Return the long prompts, when they were computed, and which short ones met them."""
    tokens, ttft, t = side.number("computed_tokens"), side.number("ttft_s"), side.t
    long = tokens >= limit
    # A long prompt delays others only while it is computed, not while it is queued or held up
    # itself: at most `_MAX_PACE` times as long as its tokens usually take, before its first chunk.
    until = t + np.where(np.isfinite(ttft), ttft, side.number("e2e_s"))
    pace = typical_pace(side)
    work = np.inf if pace is None else _MAX_PACE * pace * tokens
    since = np.maximum(t + np.nan_to_num(side.number("queue_s")), until - work)
    busy = (side, long, since, until)
    arrived = _meets_long(busy, t, t)
    known = (tokens < limit) & np.isfinite(ttft)
    return long, busy, known & arrived, known & ~arrived


def _mean_cost(ttft: Floats, during: Mask, outside: Mask) -> float:
    """Return the mean delay of all short prompts, whether or not they met a long one."""
    if not during.any() or not outside.any():
        return 0.0
    more = float(ttft[during].mean() - ttft[outside].mean())
    return max(more, 0.0) * float(during.sum() / (during.sum() + outside.sum()))


def _meets_long(busy: _LongWork, of: Floats, to: Floats) -> Mask:
    """Return which rows' span `of`..`to` overlaps with the computation of a long prompt there."""
    side, long, since, until = busy
    codes = side.rows.words["replica"].codes
    met = np.zeros(len(side), bool)
    for code in np.unique(codes[long]):
        here = codes == code
        spans = long & here & np.isfinite(until)
        begins, ends = _union(since[spans], until[spans])
        if not len(begins):
            continue
        # The last span that began before this row's own end must reach beyond its start.
        last = np.searchsorted(begins, to[here], side="right") - 1
        met[here] = (last >= 0) & (ends[np.maximum(last, 0)] > of[here])
    return met


def _union(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Merge overlapping spans; return starts and ends in order."""
    order = np.argsort(start)
    start, reach = start[order], np.maximum.accumulate(end[order]) if len(end) else end
    first = np.ones(len(start), bool)
    first[1:] = start[1:] > reach[:-1]
    last = np.flatnonzero(np.append(first[1:], True)) if len(start) else np.empty(0, np.int64)
    return start[first], reach[last]


def _median(values: Floats, mask: Mask) -> float | None:
    chosen = finite(values[mask])
    return float(np.median(chosen)) if len(chosen) >= MIN_COUNT else None


def typical_pace(side: Side) -> float | None:
    """Return the median prefill time per computed token, seconds."""
    found = finite(side.number("prefill_s") / np.maximum(side.number("computed_tokens"), 1))
    return float(np.median(found)) if len(found) else None


def least_pace(side: Side) -> float | None:
    """Return the time to first chunk per computed token of a fast request, seconds.

    Of the longer prompts, the fastest 10 %: about the prefill, where no engine reports that.
    """
    tokens = side.number("computed_tokens")
    ttft = np.where(side.number("stream") == 0, np.nan, side.number("ttft_s"))
    known = np.isfinite(tokens) & np.isfinite(ttft) & (tokens > 0)
    if known.sum() < MIN_COUNT:
        return None
    longer = known & (tokens >= np.median(tokens[known]))
    return float(np.percentile(ttft[longer] / tokens[longer], 10))
