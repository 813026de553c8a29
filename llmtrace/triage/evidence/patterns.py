"""Find patterns that no single row shows.

Short prompts that arrive while a long one is computed; an engine that sends nothing for a while;
streams that are all truncated after the same gap; requests to an engine that has just started.
Rows of one client are placed by its own clock, and only against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, SURE, Share
from llmtrace.triage.evidence.evidence import Evidence, kept
from llmtrace.triage.evidence.other_clients import ENDED
from llmtrace.triage.evidence.signals import Series, gauges
from llmtrace.triage.evidence.window_rows import Side

_LONG_TO_MEDIAN: Final = 5.0
_LONG_TO_P90: Final = 1.3
_TOGETHER: Final = 2  # requests that come while nothing leaves: one may just be slow
_MIN_ARRIVALS: Final = 4
_WORK: Final = 3.0  # times as long as a typical prompt's tokens each take
_BAND: Final = 0.08
_SHORT_BAND_S: Final = 0.02
_BAND_S: Final = 0.3  # proxies look at long timers now and then only
_TIMERS_S: Final = 3.0
_MIN_IDLE_S: Final = 0.5
_MIN_CUT: Final = 4
_TOO_OFTEN: Final = 3  # times that all streams of something break: a machine dies once
_ALIKE: Final = 0.6
_FLOOR: Final = 0.8
_FRESH: Final = 1.0  # times the window: so long before it a start is recent
_AGES: Final = (0.15, 0.3, 0.6)  # of the requests to new engines: these came to fresh ones
_SLOW: Final = 0.25  # of requests were slower than the p75 before
_DRAWS: Final = 40
_HIGH: Final = -3  # of the draws in order: one in twenty is longer
_LOOKED_AT: Final = 8
_AS_LONG: Final = 0.4
_SLOWER: Final = 1.5  # times as long in the middle: not a few are
_AS_BEFORE: Final = 1.1  # times as long, at most
_TWICE: Final = 2.0
_EARLY: Final = 0.5
_ROOM: Final = 0.8
_SHRANK: Final = 0.6
_STALLED: Final = 0.7
_BUNCHED: Final = 0.8
_MIN_STREAMS: Final = 2
_PART_LOST: Final = 0.02  # of all requests
_STEPS: Final = 4  # between two samples
_NEAR: Final = 0.2  # of the mean distance of three ends: 2 % of chance ones are as near
_PART: Final = 0.25  # of a typical response
_HARDLY: Final = 0.15  # of its share of the requests, at most
REFUSED: Final = 400  # HTTP status from which on a request was answered with an error
_GATEWAY_TIMEOUT: Final = 504
_USED_TO_IT: Final = 20  # requests that an engine has served before: it has begun already
_KEPT: Final = ("tokens_out", "generation_tokens", "finished", "e2e_count")  # counters
_ANEW: Final = 0.5  # of what was counted before: less is a new count


@dataclass(frozen=True, slots=True)
class Overlap:
    """Short prompts in the window after, by whether a long one was being worked on.

    Attributes:
        tokens: from how many tokens on to be computed a prompt counts as long.
        long_n: long prompts after; `long_before`: before.
        during, outside: p90 of the time to first chunk, of short prompts that arrived then.
        tpot_during, tpot_outside: median time per token of short ones decoded then, seconds.
        cost, cost_before: mean seconds that meeting a long one adds to any short one's wait.
        grown: mean seconds that short ones wait longer than before, whatever for.
        slow_during: of the slow short ones, the share that arrived during; `all_during`: of all.
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
        """How much likelier a slow short prompt is to have met a long one than any short one."""
        return self.slow_during / self.all_during if self.all_during else 0.0


def long_from(e: Evidence) -> float | None:
    """Return from how many tokens to compute on a prompt is several times an ordinary one."""
    tokens = e.before.number("computed_tokens")
    tokens = tokens[np.isfinite(tokens)]
    if len(tokens) < MIN_COUNT:
        return None
    return max(
        _LONG_TO_MEDIAN * float(np.median(tokens)), _LONG_TO_P90 * float(np.percentile(tokens, 90))
    )


def long_beside(e: Evidence) -> float | None:
    """Return the tokens, at least and on average, of others' prompts, if such are long.

    Engines count them and no row tells of them; `None` = they are not so, or not known.
    """
    found, limit = e.beside("tokens_in"), long_from(e)
    ended = e.ended
    if found is None or limit is None or ended is None:
        return None
    more = ended[1] - ended[0] * len(e.after) / len(e.before)
    unsure = 2 * ended[1] * found.interval_s / e.after.window.seconds  # ended beyond an edge
    most = max(more, 0.0) + unsure
    return found.others / most if found.others >= limit * most > 0 else None


def held_up(e: Evidence) -> bool | None:
    """Return whether short prompts waited for long ones, and more than before."""
    found = overlap(e)
    if found is None:
        limit = long_from(e)
        if limit is None or not e.after.known("prompt_tokens"):
            return None
        # There are long ones all the time: no request is left to compare with.
        return None if (e.after.number("computed_tokens") >= limit).sum() >= 3 else False  # noqa: PLR2004
    worse = found.cost >= max(2.0 * found.cost_before, e.floor("ttft_s"))
    # Where all wait longer, those that meet a long one do as well.
    worse &= found.cost - found.cost_before >= HALF * found.grown
    return found.during >= 1.4 * found.outside and found.slow_during >= 0.3 and worse  # noqa: PLR2004


@kept
def overlap(e: Evidence) -> Overlap | None:
    """Look for short prompts behind long ones; `None` where there are no long ones, or too few."""
    limit = long_from(e)
    if limit is None or len(e.after) < 3 * MIN_COUNT:
        return None
    tokens, ttft = e.after.number("computed_tokens"), e.after.number("ttft_s")
    long, busy, during, outside = _met(e.after, limit)
    if long.sum() < 3 or during.sum() < MIN_COUNT or outside.sum() < MIN_COUNT:  # noqa: PLR2004
        return None
    long_b, _, during_b, outside_b = _met(e.before, limit)
    ttft_b = e.before.number("ttft_s")
    before, short = ttft_b[during_b | outside_b], during | outside
    slow = short & (ttft > (float(np.percentile(before, 95)) if len(before) else np.inf))
    ran = _during(busy, busy[-1], e.after.ends)
    return Overlap(
        tokens=limit, long_n=int(long.sum()), long_before=int(long_b.sum()),
        during=float(np.percentile(ttft[during], 90)),
        outside=float(np.percentile(ttft[outside], 90)),
        tpot_during=_median(e.after.number("tpot_s"), (tokens < limit) & ran),
        tpot_outside=_median(e.after.number("tpot_s"), (tokens < limit) & ~ran),
        slow_during=float(during[slow].mean()) if slow.any() else 0.0,
        all_during=float(during.sum() / short.sum()),
        cost=_cost(ttft, during, outside), cost_before=_cost(ttft_b, during_b, outside_b),
        grown=float(ttft[short].mean() - before.mean()) if len(before) else 0.0,
    )  # fmt: skip


_Busy = tuple[Side, Mask, Floats, Floats]


def _met(side: Side, limit: float) -> tuple[Mask, _Busy, Mask, Mask]:
    """Return the long ones, when they were worked on, and the short ones that came then or not."""
    tokens, ttft, t = side.number("computed_tokens"), side.number("ttft_s"), side.t
    long = tokens >= limit
    # A long one that still waits to be scheduled is no reason to wait, nor one that is held up
    # itself: it takes a few times as long as its tokens do otherwise, at most.
    until = t + np.where(np.isfinite(ttft), ttft, side.number("e2e_s"))
    pace = _pace(side)
    work = np.inf if pace is None else _WORK * pace * tokens
    since = np.maximum(t + np.nan_to_num(side.number("queue_s")), until - work)
    busy = (side, long, since, until)
    arrived = _during(busy, t, t)
    known = (tokens < limit) & np.isfinite(ttft)
    return long, busy, known & arrived, known & ~arrived


def _cost(ttft: Floats, during: Mask, outside: Mask) -> float:
    if not during.any() or not outside.any():
        return 0.0
    more = float(ttft[during].mean() - ttft[outside].mean())
    return max(more, 0.0) * float(during.sum() / (during.sum() + outside.sum()))


def _during(busy: _Busy, of: Floats, to: Floats) -> Mask:
    """Return which rows' span `of`..`to` meets the work on a long row on the same replica."""
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
    """Merge spans that meet; in order."""
    order = np.argsort(start)
    start, reach = start[order], np.maximum.accumulate(end[order]) if len(end) else end
    first = np.ones(len(start), bool)
    first[1:] = start[1:] > reach[:-1]
    last = np.flatnonzero(np.append(first[1:], True)) if len(start) else np.empty(0, np.int64)
    return start[first], reach[last]


def _median(values: Floats, mask: Mask) -> float | None:
    chosen = values[mask]
    chosen = chosen[np.isfinite(chosen)]
    return float(np.median(chosen)) if len(chosen) >= MIN_COUNT else None


@dataclass(frozen=True, slots=True)
class Gap:
    """A span in which requests came to an engine and nothing left it, and those much like it.

    Attributes:
        seconds: for how long several requests waited in it together.
        arrivals: requests that came and waited, in all of them.
        streams: responses in progress all through one, of which the longest gap is known.
        stalled: how many of those have a longest gap as long as it.
        bunched: of requests that came in one, how many got their first chunk right after its end.
        prompt: tokens of a prompt that takes as long to compute, and was; `None` = there was none.
    """

    instance: str | None
    start: float
    end: float
    seconds: float
    arrivals: int
    streams: int
    stalled: int
    bunched: int
    prompt: float | None
    times: int = 1

    @property
    def whole(self) -> bool | None:
        """Whether the engine stood still, and did not only begin nothing new.

        Without responses in progress, the new requests show it: after a queue they are served one
        by one, after a halt all at once.
        """
        if self.streams < _MIN_STREAMS:
            few = self.arrivals < _MIN_ARRIVALS
            return True if not few and self.bunched >= _BUNCHED * self.arrivals else None
        return self.stalled >= _STALLED * self.streams


@kept
def engine_gaps(e: Evidence) -> tuple[Gap | None, Gap | None]:
    """Return the longest gap in which no engine sent anything, before and after.

    Requests of before may wait in a gap that goes on, or is, in the window after: it is of then.
    """
    return _longest(_gaps_before(e)), _longest(_gaps(e.after))


def _gaps_before(e: Evidence) -> Iterator[Gap]:
    window = e.after.window
    return (one for one in _gaps(e.before) if one.end <= window.start or one.start >= window.end)


def halts(e: Evidence) -> Share:
    """Count the gaps much like the longest after, of all requests: before there may be some."""
    _, longest = engine_gaps(e)
    found = [0 if longest is None else sum(_is_like(one, longest) for one in gaps)
             for gaps in (_gaps_before(e), _gaps(e.after))]  # fmt: skip
    return Share(found[0], len(e.before), found[1], len(e.after))


@kept
def beyond_chance(e: Evidence) -> float:
    """Return how many times as long the longest gap after is as chance makes it one time in 20.

    The same requests come at the same times, and each takes as long as another of them took: where
    an engine stood still, the waits of those that came then end together, and no draw does that.
    """
    side, rng = e.after, np.random.default_rng(1)
    words = side.rows.words["replica"]
    ttft, e2e = side.number("ttft_s"), np.where(failed(side), np.nan, side.number("e2e_s"))
    most = 0.0
    for code in np.unique(words.codes):
        here = np.flatnonzero((words.codes == code) & np.isfinite(ttft))
        if code < 0 <= words.codes.max(initial=-1) or len(here) < MIN_COUNT:
            continue
        here = here[np.argsort(side.t[here], kind="stable")]
        t = side.t[here]
        drawn = [rng.permutation(here) for _ in range(_DRAWS)]
        longest = sorted(_widest(t, ttft[one], e2e[one]) for one in drawn)[_HIGH]
        if longest:
            most = max(most, _widest(t, ttft[here], e2e[here]) / longest)
        elif _widest(t, ttft[here], e2e[here]):
            most = np.inf
    return most


def _widest(t: Floats, ttft: Floats, e2e: Floats) -> float:
    """Return the longest time that several waited together, until the next sign."""
    signs = np.concatenate([t[:1], t + ttft, t + e2e])
    signs = np.sort(signs[np.isfinite(signs)])
    at = np.searchsorted(t, signs)
    came = np.diff(at)
    width = signs[1:] - t[np.minimum(at[:-1] + _TOGETHER - 1, len(t) - 1)]
    return float(np.where(came >= _TOGETHER, width, 0.0).max(initial=0.0))


def _longest(gaps: Iterable[Gap]) -> Gap | None:
    """Return the longest of spans without a first chunk or an end, though requests were open.

    A gap in which responses in progress stood still is preferred to a longer one in which they
    went on. What halts now and then is seen in all its halts together: few requests may come in
    each of them.
    """
    every = [*gaps]
    longest = max(
        every,
        key=lambda one: (one.whole is not False and one.prompt is None, one.seconds),
        default=None,
    )
    if longest is None or longest.prompt is not None:
        return longest
    alike = [one for one in every if _is_like(one, longest)]
    same = len({one.instance for one in alike}) == 1
    return replace(
        longest,
        instance=longest.instance if same else None,
        times=len(alike),
        **{name: sum(getattr(one, name) for one in alike)
           for name in ("arrivals", "streams", "stalled", "bunched")},
    )  # fmt: skip


def _is_like(one: Gap, longest: Gap) -> bool:
    return one.prompt is None and one.seconds >= _AS_LONG * longest.seconds


def _gaps(side: Side) -> Iterator[Gap]:
    words = side.rows.words["replica"]
    known = np.unique(words.codes[words.codes >= 0])
    speed = _pace(side) or 0.0
    for code in known if len(known) else np.unique(words.codes):
        name = words.names[code] if code >= 0 else None
        yield from _engine_gaps(side, words.codes == code, name, speed)


def _pace(side: Side) -> float | None:
    """Return the seconds that a typical prompt takes for each token to be computed."""
    found = side.number("prefill_s") / np.maximum(side.number("computed_tokens"), 1)
    found = found[np.isfinite(found)]
    return float(np.median(found)) if len(found) else None


def in_halts(e: Evidence) -> tuple[float, float] | None:
    """Return the shares of the slow requests, and of all, that came while an engine stood still.

    In halts as long as the longest one or nearly so; `None` = none, or too few slow requests.
    """
    _, longest = engine_gaps(e)
    ttft, before = e.after.number("ttft_s"), e.before.number("ttft_s")
    if longest is None or not np.isfinite(before).any():
        return None
    # What is not streamed waits for its end, and says nothing of its first chunk.
    usual, streamed = before[e.before.number("stream") != 0], e.after.number("stream") != 0
    if not np.isfinite(usual).any():
        return None
    slow = streamed & (ttft > np.nanpercentile(usual, 95))
    words, came = e.after.rows.words["replica"], np.zeros(len(ttft), bool)
    for one in _gaps(e.after):
        if one.whole is not False and _is_like(one, longest):
            mine = words.codes < 0 if one.instance is None else words.where(one.instance)
            came |= mine & (e.after.t > one.start) & (e.after.t < one.end)
    if slow.sum() < MIN_COUNT:
        return None
    return float(came[slow].mean()), float(came[streamed].mean())


def alike_halts(e: Evidence) -> tuple[float, int] | None:
    """Return for how long several streams stood still, longer than any used to, and how many did.

    What computes long prompts, or preempts, holds each stream up for another time. `None` = none.
    """
    after, most = e.after.number("max_gap_s")[~failed(e.after)], longest_wait(e)
    if most is None or np.isfinite(after).sum() < MIN_COUNT or _paced(e):
        return None
    seconds, _ = _common(after[after > most])
    if seconds is None:
        return None
    long = after[after >= HALF * seconds]
    alike = np.abs(long - seconds) <= _BAND * seconds
    found = alike.sum() >= MIN_COUNT and alike.mean() >= _STALLED
    return (seconds, int(alike.sum())) if found else None


def longest_wait(e: Evidence) -> float | None:
    """Return what next to no response waited longer for a chunk before; `None` = not known."""
    over = e.before.ends <= e.after.window.start  # others went on in the window after
    gaps = e.before.number("max_gap_s")[~failed(e.before) & over]
    gaps = gaps[np.isfinite(gaps)]
    return float(np.percentile(gaps, 99)) if len(gaps) >= MIN_COUNT else None


def _paced(e: Evidence) -> bool:
    """Return whether longest gaps are longer as all gaps are: each in tokens as long as before."""
    gaps, per_token = e.row("max_gap_s"), e.row("gap_per_token")
    if gaps is None or per_token is None:
        return False
    return gaps.ratio >= _SLOWER and per_token.ratio <= _AS_BEFORE


def _engine_gaps(side: Side, here: Mask, name: str | None, speed: float) -> Iterator[Gap]:
    """Yield the longest spans of one engine without a sign, longest first."""
    t, ends = side.t[here], side.ends[here]
    ended = np.where(failed(side)[here], np.nan, ends)  # a proxy ends streams, too
    first, gap = t + side.number("ttft_s")[here], side.number("max_gap_s")[here]
    tokens = side.number("computed_tokens")[here]
    signs = np.concatenate([t.min(keepdims=True), first, ended])  # it may begin in a gap
    signs = np.sort(signs[np.isfinite(signs)])
    if len(signs) <= MIN_COUNT:
        return
    arrivals = np.sort(t)
    came = np.searchsorted(arrivals, signs)
    # Where no request waits, nothing needs to come out: it counts from when several do.
    together = arrivals[np.minimum(came[:-1] + _TOGETHER - 1, len(arrivals) - 1)]
    width = np.where(np.diff(came) >= _TOGETHER, signs[1:] - together, 0.0)
    for at in np.argsort(-width, kind="stable")[:_LOOKED_AT]:
        if not width[at]:
            return
        low, high = signs[at], signs[at + 1]
        # Requests computed in it: came before its end, and got a first token close to it.
        near = (t < high) & (first >= low) & (first <= high + 0.5 * width[at] + 0.5)
        giants = tokens[near & (tokens * speed >= 0.4 * width[at])]
        through = (first <= low) & (ends >= high) & np.isfinite(gap)
        begun = first[(t > low) & (t < high) & np.isfinite(first)]
        yield Gap(
            instance=name,
            start=float(low),
            end=float(high),
            seconds=float(width[at]),
            arrivals=len(begun),
            streams=int(through.sum()),
            stalled=int((gap[through] >= 0.8 * width[at]).sum()),
            bunched=int((begun <= high + 0.25 * width[at] + 0.2).sum()),
            prompt=float(giants.max()) if len(giants) else None,
        )


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
               & ~(status == 504))  # fmt: skip  # noqa: PLR2004
    ended &= ~((status >= 400) & (status != 504))  # noqa: PLR2004 - 504: a proxy waited in vain
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
    idle, alike = _common(gap, least)
    age, of_an_age = _common(side.number("e2e_s")[ended], least)
    ends = np.sort(side.ends[ended])
    near_s = _at_once(side, len(ends))
    together = (ends[2:] - ends[:-2] <= near_s) if len(ends) > 2 else np.zeros(0, bool)  # noqa: PLR2004
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


def _common(values: Floats, least: float = _MIN_IDLE_S) -> tuple[float | None, float]:
    """Return the value most others are close to, of those from `least` on, and the share."""
    values = np.sort(values[np.isfinite(values)])
    if len(values) < 4:  # noqa: PLR2004
        return None, 0.0
    band = _BAND * values + np.where(values >= _TIMERS_S, _BAND_S, _SHORT_BAND_S)
    reach = np.searchsorted(values, values + band, side="right")
    counts = reach - np.arange(len(values))
    counts = np.where(values >= least, counts, 0)
    at = int(np.argmax(counts))
    if not counts[at]:
        return None, 0.0
    return float(np.median(values[at : reach[at]])), float(counts[at] / len(values))


@kept
def starts(e: Evidence) -> Mapping[str, float]:
    """Return when engines started that did so shortly before or in the window after."""
    recent = _FRESH * max(e.after.window.seconds, 0.5 * e.before.window.seconds)
    since = e.after.window.start - recent
    # What started since the requests compared with is new, however short the window is.
    if 0 <= e.after.window.start - e.before.window.end <= e.before.window.seconds:
        since = min(since, e.before.window.end)
    until = e.after.window.end
    found: dict[str, float] = {}
    for name, series in e.series("started").items():
        began = _began(series)
        fresh = began[(began >= since) & (began < until)]
        if len(fresh):
            found[name] = float(fresh.max())
    for name, facts in e.facts.instances.items():
        value = facts.get("started")
        if isinstance(value, int | float) and since <= value < until:
            found.setdefault(name, float(value))
    for seen in (_resets(e), _first_seen(e)):
        for name, t in seen.items():
            if since <= t < until:
                found.setdefault(name, t)
    return {name: t for name, t in found.items() if _served(e, name, t) < _USED_TO_IT}


def _began(series: Series) -> Floats:
    """Return when the process of each sample began, or took over from one that served."""
    earlier = np.roll(series.t, 1)  # the last sample of the one before
    took_over = (np.diff(series.value, prepend=np.inf) > 0) & (series.value < earlier)
    step = float(np.median(np.diff(series.t))) if len(series.t) > 1 else 0.0
    found: Floats = np.where(took_over, series.t - step, series.value)
    return found


def _served(e: Evidence, name: str, since: float) -> float:
    """Return how many requests before an engine served since its start, if need be on average."""
    words, young = e.before.rows.words["replica"], e.before.t >= since
    if (words.codes >= 0).any():
        return float((words.where(name) & young).sum())
    return float(young.sum()) / max(len(e.instances), 1)


def _resets(e: Evidence) -> Mapping[str, float]:
    """Return when counters of engines began anew, where no start is reported: the process did."""
    found: dict[str, float] = {}
    for signal in () if e.has("started") else _KEPT:
        for name, one in gauges(e.signals, signal).items():
            fell = np.flatnonzero(one.value[1:] < _ANEW * one.value[:-1])
            if len(fell):
                found.setdefault(name, float(one.t[fell[-1]]))
    return found


def standing_start(e: Evidence) -> tuple[str, float] | None:
    """Return the engine that made no token for longest after its start, and for how many seconds.

    Only while requests waited for it, by its own count; `None` = none did.
    """
    found: tuple[str, float] | None = None
    for name, at in starts(e).items():
        counters = (e.rates(one).get(name) for one in ("tokens_out", "finished"))
        tokens, waiting = next(filter(None, counters), None), e.series("waiting").get(name)
        if tokens is None or waiting is None:
            continue
        made = tokens.within(Window(at, e.served.end))
        first = made.t[made.value > 0]
        until = float(first[0]) if len(first) else e.served.end
        held = waiting.within(Window(at, until)).value
        if len(held) and held.max() >= 1 and (found is None or until - at > found[1]):
            found = (name, until - at)
    return found


def _first_seen(e: Evidence) -> Mapping[str, float]:
    """Return since when replicas are seen that rows or gauges did not know before, but others."""
    before, after = (_seen(e, side, "running") for side in (e.before, e.after))
    return {name: t for name, t in after.items() if before and name not in before}


def _seen(e: Evidence, side: Side, signal: str) -> Mapping[str, float]:
    """Return when each engine is first seen in a window, by rows or samples of a gauge."""
    words = side.rows.words["replica"]
    first = {words.names[code]: float(side.t[words.codes == code].min())
             for code in np.unique(words.codes[words.codes >= 0])}  # fmt: skip
    for name, series in e.series(signal).items():
        times = series.within(side.window).t
        if len(times):
            first[name] = min(first.get(name, np.inf), float(times[0]))
    return first


def restarted(e: Evidence) -> Mapping[str, float]:
    """Return when engines started again that were running before."""
    first = _seen(e, e.before, "started")
    return {name: t for name, t in starts(e).items() if t > first.get(name, np.inf)}


def vanished(e: Evidence) -> Mapping[str, float]:
    """Return engines whose samples stop, or pause for several intervals, and since when.

    An engine whose start time or counters go on afterwards was not scraped for a while, no more.
    """
    found, window, examined = {}, e.after.window, 0
    for name, series in e.series("running").items():
        before = series.t[series.t < window.start]
        if len(before) < 3:  # noqa: PLR2004
            continue
        examined += 1
        usual = float(np.percentile(np.diff(before), 90))
        marks = np.concatenate([[window.start], series.within(window).t, [window.end]])
        longest = int(np.diff(marks).argmax())
        earlier = series.t[series.t <= marks[longest]]  # none: it is not there yet
        back = longest + 2 < len(marks)
        if (
            np.diff(marks)[longest] > 3 * usual
            and len(earlier)
            and not (back and _went_on(e, name, float(earlier[-1]), float(marks[longest + 1])))
        ):
            found[name] = float(earlier[-1])
    # Several at once is a scrape that failed, as far as anyone can see.
    found = found if len(found) < max(examined, 2) else {}
    for name, series in e.series("up").items():
        seen, before = series.within(window), series.value[series.t < window.start]
        if (seen.value == 0).sum() > 1 and len(before) and before.all():  # a new one is not up yet
            found.setdefault(name, float(seen.t[seen.value == 0][0]))
    return found


def _went_on(e: Evidence, name: str, last: float, again: float) -> bool:
    """Return whether an engine is known to be the same process at two times."""
    for signal in ("started", *_KEPT):
        one = e.series(signal).get(name)
        if one is None:
            continue
        before, after = one.value[one.t <= last], one.value[one.t >= again]
        if len(before) and len(after):
            same = after[0] == before[-1] if signal == "started" else after[0] >= before[-1]
            return bool(same)
    return False


def lost_traffic(e: Evidence, gone: Iterable[str]) -> list[tuple[str, Share]]:
    """Return those of these engines whose share of the requests fell beyond chance, and how."""
    every = shares_of_replicas(e)
    shares = [(name, every[name]) for name in gone if name in every]
    back = (Share(one.after_k, one.after_n, one.before_k, one.before_n) for _, one in shares)
    return [one for one, fall in zip(shares, back, strict=True) if fall.rose(_PART_LOST)]


def left_out(e: Evidence) -> list[str]:
    """Return the replicas that hardly get any requests any more."""
    every = shares_of_replicas(e).items()
    return [name for name, one in every if one.before_k >= MIN_COUNT
            and one.after <= _HARDLY * one.before]  # fmt: skip


@kept
def shares_of_replicas(e: Evidence) -> Mapping[str, Share]:
    """Return each replica's share of the requests, by rows, or else by engines' own counts."""
    return _shares_by_rows(e) or _shares_by_engines(e)


def _shares_by_rows(e: Evidence) -> Mapping[str, Share]:
    words = e.after.rows.words["replica"]
    before = e.before.rows.words["replica"]
    names = sorted({one.names[c] for one in (before, words)
                    for c in np.unique(one.codes[one.codes >= 0])})  # fmt: skip
    shares = {
        name: e.share(f"replica {name}", methodcaller("where", "replica", name)) for name in names
    }
    return shares if len(shares) > 1 else {}


def _shares_by_engines(e: Evidence) -> Mapping[str, Share]:
    """Return what share of the requests each engine counts, where no row names its engine."""
    if (e.after.rows.words["replica"].codes >= 0).any():
        return {}
    counted = next((found for name in ENDED if (found := e.counted_by(name))), {})
    ended = {name: (round(n[0]), round(n[1])) for name, n in counted.items()}
    before, after = (sum(n[side] for n in ended.values()) for side in (0, 1))
    return {name: Share(n[0], before, n[1], after) for name, n in ended.items()}


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
    alike = float(np.mean(np.abs(each - at) <= _BAND * at))
    longer = float(np.mean(waits[np.isfinite(waits)] >= (1 - _BAND) * at))
    more = float(cut.mean() - earlier.mean())
    return (at, len(each)) if alike >= _ALIKE and longer >= HALF * more > 0 else None


def _unanswered(side: Side) -> Mask:
    """Return which requests a hop ended before any content, by a 504 or after an answer began."""
    status = side.number("http_status")
    late = failed(side) & ~np.isfinite(side.number("ttft_s")) & ~side.where("outcome", "timeout")
    found: Mask = late & ((status < REFUSED) | (status == _GATEWAY_TIMEOUT))
    return found


def failed_when_it_stopped(e: Evidence, gone: Mapping[str, float]) -> int:
    """Return how many requests failed on these engines as their samples stopped."""
    found = 0
    for side in (e.before, e.after):
        for name, t in gone.items():
            step = float(np.median(np.diff(e.series("running")[name].t)))
            then = (side.ends >= t - step) & (side.ends <= t + _STEPS * step)
            found += int((failed(side) & side.where("replica", name) & then).sum())
    return found


@dataclass(frozen=True, slots=True)
class Fresh:
    """How slow requests are on engines that had just started, and on all others or later.

    By the time per token where that is the metric in question, else by the time to first chunk.

    Attributes:
        within: how long after the start counts as fresh, seconds.
        early, late: medians of the first and the second half of the fresh requests, by time.
        slow_share: of the slow requests, the share that are fresh.
        slower: whether fresh ones are slower than before and than all others, beyond chance.
        stays: whether the last ones to the same engines are slow as well: a cold start ends.
        of: the field of rows that is compared.
    """

    of: str
    within: float
    n: int
    fresh: float
    other: float
    early: float
    late: float
    slow_share: float
    slower: bool
    stays: bool


def fresh(e: Evidence, started: Mapping[str, float]) -> Fresh | None:
    """Compare requests to engines that had just started with the rest; `None` = too few."""
    words, of = e.after.rows.words["replica"], "tpot_s" if e.metric == "tpot_s" else "ttft_s"
    took, t = e.after.number(of), e.after.t
    known = np.isfinite(took)
    if known.sum() < 3 * MIN_COUNT or not started:
        return None
    if not (words.codes >= 0).any() and len(started) < HALF * len(e.instances):
        return None  # whose requests these are is not known, and most are another engine's
    age = np.full(len(t), np.inf)
    for name, at in started.items():
        here = words.where(name) if (words.codes >= 0).any() else np.ones(len(t), bool)
        age = np.where(here, t - at, age)
    near = known & (age > -0.1 * e.after.window.seconds)  # a request may have waited for the start
    ages = {float(until): near & (age <= until) for until in _ages(age[known])}
    ages = {until: young for until, young in ages.items()
            if min(young.sum(), (known & ~young).sum()) >= MIN_COUNT}  # fmt: skip
    if not ages:
        return None
    within, young = max(ages.items(), key=lambda one: _excess(took, known, one[1]))
    last = max(within, float(_ages(age[known])[-1]))
    order = np.argsort(t[young])
    halves = np.array_split(took[young][order], 2)
    before = e.before.number(of)
    p95 = float(np.nanpercentile(before, 95)) if np.isfinite(before).any() else np.inf
    slow = known & (took > p95)
    return Fresh(
        of=of,
        within=within,
        n=int(young.sum()),
        fresh=float(np.percentile(took[young], 75)),
        other=float(np.percentile(took[known & ~young], 75)),
        early=float(np.median(halves[0])),
        late=float(np.median(halves[1])),
        slow_share=float(young[slow].mean()) if slow.any() else 0.0,
        slower=_slower(before, took, known, young),
        stays=_stays(before, took[young], took[known & np.isfinite(age) & (age > last)]),
    )


def _stays(before: Floats, young: Floats, last: Floats) -> bool:
    """Return whether the last ones are slower than before by half as much as the young or more."""
    if min(int(np.isfinite(before).sum()), len(last)) < MIN_COUNT:
        return False
    usual, early, late = (float(np.nanmedian(one)) for one in (before, young, last))
    sure = _z_slow(before, last) >= SURE
    return bool(sure and late - usual >= _EARLY * (early - usual))


def _z_slow(before: Floats, took: Floats) -> float:
    """Return how many standard errors more of these are slow than of the requests before."""
    share = float((took > np.nanpercentile(before, 100 * (1 - _SLOW))).mean())
    return (share - _SLOW) / float(np.sqrt(_SLOW * (1 - _SLOW) / len(took)))


def _ages(age: Floats) -> Floats:
    """Return the ages, seconds, up to which an engine may count as fresh."""
    age = age[np.isfinite(age)]
    return np.quantile(age, _AGES) if len(age) else np.empty(0)


def _excess(took: Floats, known: Mask, young: Mask) -> float:
    """Return how much slower the young are than the rest, in standard errors of log times."""
    with np.errstate(divide="ignore"):
        a, b = np.log(took[young] + 1e-9), np.log(took[known & ~young] + 1e-9)
    error = float(np.sqrt(a.var() / len(a) + b.var() / len(b)))
    return float(a.mean() - b.mean()) / max(error, 1e-9)


def _slower(before: Floats, took: Floats, known: Mask, young: Mask) -> bool:
    """Return whether more of the young are slow than of the requests before, and of the rest."""
    before = before[np.isfinite(before)]
    if len(before) < MIN_COUNT:
        return False
    slow = took > float(np.percentile(before, 100 * (1 - _SLOW)))
    share, rest = float(slow[young].mean()), float(slow[known & ~young].mean())
    higher = np.percentile(took[young], 75) >= 1.3 * np.percentile(took[known & ~young], 75)
    return bool(_z_slow(before, took[young]) >= SURE and share >= rest and higher)


@kept
def cache_fell_first(e: Evidence) -> bool | None:
    """Return whether prefixes are missed while the KV cache has room: nothing evicted them.

    `None` where it is unknown, also because the cache was full all along.
    """
    share, usual = e.after.number("cached_share"), e.before.number("cached_share")
    usage = e.series("kv_usage")
    if not usage or not np.isfinite(usual).any():
        return None
    words = e.after.rows.words["replica"]
    calm = np.zeros(len(e.after), bool)  # came before the cache was full for the first time
    for name, series in usage.items():
        here = words.where(name) if name in words.names else words.codes < 0
        after = series.within(e.served)
        if len(after.t) < 2:  # noqa: PLR2004
            continue
        full = after.t[after.value >= _ROOM]
        # What was full between two samples was so from the one before on.
        last = max(int(np.searchsorted(after.t, full[0])) - 1, 0) if len(full) else -1
        calm |= here & (e.after.t < (after.t[last] if last >= 0 else np.inf))
    calm &= np.isfinite(share)
    if calm.sum() < MIN_COUNT:
        return None
    return bool(share[calm].mean() <= 0.75 * np.nanmean(usual))


def cache_shrank(e: Evidence) -> bool | None:
    """Return whether the same tokens fill more of the KV cache: there is less of it.

    Then prefixes find no room in it, though what runs leaves some. `None` where it is unknown.
    """
    running, usage = e.gauge("running"), e.gauge("kv_usage")
    if running is None or usage is None:
        return None
    sizes = []
    for side, ran, used in (
        (e.before, running.fleet.before_mean, usage.fleet.before_mean),
        (e.after, running.fleet.after_mean, usage.fleet.after_mean),
    ):
        held = side.number("uncached_tokens") + side.number("output_tokens") / 2
        held = held[np.isfinite(held)]
        if len(held) < MIN_COUNT or used <= 0:
            return None
        sizes.append(ran * float(held.mean()) / used)
    return sizes[1] <= _SHRANK * sizes[0]


def slow_front_end(e: Evidence) -> bool | None:
    """Return whether the engine's front end takes longer; `None` = unknown, or too few samples."""
    floor, answered = e.floor("first_chunk_s"), e.row("answered_s")
    rows, gauge = e.row("first_chunk_frontend_s"), e.gauge("frontend_time")
    found = [one.rose(floor, 0.3) for one in (rows, gauge) if one is not None]
    if any(found) or not found:
        return any(found) if found else None
    fleet = gauge.fleet if gauge is not None else None
    if fleet is None or fleet.after_mean < _TWICE * fleet.before_mean or e.up("gateway_once_s"):
        return False
    # A status line that comes long before the first chunk is the front end's own work.
    first = e.row("ttft_s")
    early = answered and first and answered.before_p50 <= _EARLY * first.before_p50
    return (e.up("answered_s", relative=0.5) or None) if early else None


def front_end_part(e: Evidence) -> float | None:
    """Return the share of the front end in what the stages it may lie in grew by, on average."""
    front = e.row("first_chunk_frontend_s")
    if front is None:
        gauge = e.gauge("frontend_time")
        front = gauge.fleet if gauge is not None else None
    stages = [e.row(f"{name}_s") for name in ("first_chunk", "queue", "unattributed")]
    more = [max(one.mean_change, 0.0) for one in stages if one is not None]
    if front is None or sum(more) <= 0:
        return None
    # A counter that is read late makes one sample that is more than all others.
    return max(front.mean_change, front.after_p50 - front.before_p50) / sum(more)


def reader_away(e: Evidence) -> float | None:
    """Return for how many seconds more of a response, on average, its client did not read.

    It was at work on what it had read, or too busy to notice more. `None` = not known.
    """
    own, lag = e.row("render_own_s"), e.row("client_lag_s")
    known = [one.mean_change for one in (own, lag) if one is not None]
    return sum(known) if known else None


def refused_connections(side: Side) -> Mask:
    """Return which requests failed because their connection was refused or closed.

    Before anything came: a stream that breaks may be called the same.
    """
    words = ("connect", "refused", "reset", "protocol")
    names = side.rows.words["error_type"].names
    named = side.where("error_type", *(n for n in names if any(w in n.lower() for w in words)))
    found: Mask = named & np.isnan(side.number("ttft_s"))
    return found
