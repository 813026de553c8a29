"""Find times in which an engine sends nothing although requests are in progress.

Rows of one client are placed by its own clock, and compared only with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask, finite
from llmtrace.triage.evidence.blocking_prompts import least_pace, typical_pace
from llmtrace.triage.evidence.changes import MIN_COUNT, Share
from llmtrace.triage.evidence.cut_streams import BAND, failed
from llmtrace.triage.evidence.evidence import Evidence, memoized
from llmtrace.triage.evidence.window_rows import Side

_TOGETHER: Final = 2  # requests that must wait together; a single one may just be slow
_MIN_ARRIVALS: Final = 4
_DRAWS: Final = 40
_HIGH: Final = -3  # index into the sorted draws: one in twenty is longer
_LONGEST: Final = 8  # gaps of each engine that are looked at, however short
_MAX_GAPS: Final = 100  # of each engine, if they are about as long as the longest
_AS_LONG: Final = 0.4  # of the longest gap
_SLOWER: Final = 1.5  # ratio of medians
_STALLED: Final = 0.7  # share of responses
_FEW_STALLS: Final = 5
_BUNCHED: Final = 0.8  # share of arrivals
_MIN_STREAMS: Final = 2
_MAX_STALLS: Final = 500  # that are compared with each other
FAR: Final = 2.5  # times the longest gap before


@dataclass(frozen=True, slots=True)
class Gap:
    """A span in which requests came to an engine and nothing left it; or several alike, summed.

    Attributes:
        instance: the engine; `None` = not known, or several.
        start, end: of the longest one, unix seconds.
        seconds: for how long several requests waited in it together.
        arrivals: requests that came and waited.
        streams: responses in progress all through it whose longest gap is known.
        stalled: how many of those have a longest gap of about its length.
        bunched: how many of the arrivals got their first chunk right after its end.
        prompt: tokens of a prompt long enough to explain it; `None` = there was none.
        times: how many gaps alike are summed.
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
        """Whether the engine stood still, rather than only began nothing new; `None` = unknown.

        Without responses in progress, new requests show it: after a queue they are served one by
        one, after a halt all at once.
        """
        if self.streams < _MIN_STREAMS:
            few = self.arrivals < _MIN_ARRIVALS
            return True if not few and self.bunched >= _BUNCHED * self.arrivals else None
        return self.stalled >= _STALLED * self.streams


@memoized
def engine_gaps(e: Evidence) -> tuple[Gap | None, Gap | None]:
    """Return the longest gap of any engine before and after.

    Gaps of requests of before that reach into the window after are left out.
    """
    return _longest(_gaps_before(e)), _longest(_gaps(e.after))


def usual_gap_s(e: Evidence) -> float:
    """Return the longest gap before in which responses may have stood still, or of gaps alike."""
    gaps = [*_gaps_before(e)]
    together = _longest(gaps)
    every = [one for one in gaps if one.prompt is None] + ([together] if together else [])
    stood = (one for one in every if one.whole is not False)
    return max((one.seconds for one in stood), default=0.0)


def _gaps_before(e: Evidence) -> Iterator[Gap]:
    window = e.after.window
    return (one for one in _gaps(e.before) if one.end <= window.start or one.start >= window.end)


def halts(e: Evidence) -> Share:
    """Count gaps like the longest one after, relative to all requests, before and after."""
    _, longest = engine_gaps(e)
    found = [0 if longest is None else sum(_is_like(one, longest) for one in gaps)
             for gaps in (_gaps_before(e), _gaps(e.after))]  # fmt: skip
    return Share(found[0], len(e.before), found[1], len(e.after))


@memoized
def beyond_chance(e: Evidence) -> float:
    """Return how many times as long the longest gap after is as the 95th percentile by chance.

    By chance = the same arrivals, with response times shuffled among an engine's requests. If the
    engine stood still, waits end together, which no shuffle reproduces.
    """
    side = e.after
    words = side.rows.words["replica"]
    ttft, e2e = side.number("ttft_s"), np.where(failed(side), np.nan, side.number("e2e_s"))
    most = 0.0
    for code in np.unique(words.codes):
        here = np.flatnonzero((words.codes == code) & np.isfinite(ttft))
        if code < 0 <= words.codes.max(initial=-1) or len(here) < MIN_COUNT:
            continue
        here = here[np.argsort(side.t[here], kind="stable")]
        t, rng = side.t[here], np.random.default_rng(1)  # the same for an engine beside any others
        drawn = [rng.permutation(here) for _ in range(_DRAWS)]
        longest = sorted(_longest_wait_s(t, ttft[one], e2e[one]) for one in drawn)[_HIGH]
        if longest:
            most = max(most, _longest_wait_s(t, ttft[here], e2e[here]) / longest)
        elif _longest_wait_s(t, ttft[here], e2e[here]):
            most = np.inf
    return most


def _longest_wait_s(t: Floats, ttft: Floats, e2e: Floats) -> float:
    """Return the longest time that several requests waited together for the next chunk or end."""
    signs = np.concatenate([t[:1], t + ttft, t + e2e])
    signs = np.sort(signs[np.isfinite(signs)])
    at = np.searchsorted(t, signs)
    came = np.diff(at)
    width = signs[1:] - t[np.minimum(at[:-1] + _TOGETHER - 1, len(t) - 1)]
    return float(np.where(came >= _TOGETHER, width, 0.0).max(initial=0.0))


def _longest(gaps: Iterable[Gap]) -> Gap | None:
    """Return the longest gap, preferring those in which responses in progress stood still.

    Gaps alike are summed, since few requests may come in each of several short halts.
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
    speed = typical_pace(side) or least_pace(side) or 0.0
    for code in known if len(known) else np.unique(words.codes):
        name = words.names[code] if code >= 0 else None
        yield from _engine_gaps(side, words.codes == code, name, speed)


def in_halts(e: Evidence) -> tuple[float, float] | None:
    """Return the shares of the slow requests, and of all, that came while an engine stood still.

    Halts about as long as the longest count. `None` = no halt, or too few slow requests.
    """
    _, longest = engine_gaps(e)
    ttft, before = e.after.number("ttft_s"), e.before.number("ttft_s")
    if longest is None or not np.isfinite(before).any():
        return None
    # Unary responses have their first chunk at their end, so they are left out.
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


@memoized
def stalled_together(e: Evidence) -> tuple[float, int] | None:
    """Return for how long streams stood still, each like another on its engine, and how many.

    An engine that halts stops all that it serves at once, for another time in each halt. Only
    stalls far longer than before count. `None` = too few, most of them alone, a slower pace of the
    others, or more tokens in a chunk: a slow front end passes on together what was made meanwhile.
    """
    usual, before, after = longest_wait(e), e.before, e.after
    gap = np.where(failed(after), np.nan, after.number("max_gap_s"))
    still = gap >= FAR * (np.inf if usual is None else usual)
    long = np.flatnonzero(still)[:_MAX_STALLS]
    slower = _times(before.number("tpot_s"), after.number("tpot_s")[~still])
    sizes, sizes_after = (side.number("output_tokens") / np.maximum(side.number("chunks"), 1)
                            for side in (before, after))  # fmt: skip
    merged = _times(sizes, sizes_after[long])
    gap, engine = gap[long], after.rows.words["replica"].codes[long]
    since, until = (after.t + after.number("ttft_s"))[long], after.ends[long]
    like = np.abs(np.subtract.outer(gap, gap)) <= BAND * gap
    like &= np.equal.outer(engine, engine) & np.less.outer(since, until)
    like &= like.T & ~np.eye(len(long), dtype=bool)
    alike = like.any(axis=1)
    found = alike.sum() >= _FEW_STALLS and alike.mean() >= _STALLED
    if not found or max(slower, merged) > _SLOWER:
        return None
    return float(np.median(gap[alike])), int(alike.sum())


def _times(before: Floats, after: Floats) -> float:
    """Return the ratio of the known values' medians, after over before; 1 = not known."""
    usual, now = (float(np.median(one)) if len(one := finite(values)) else 0.0
                  for values in (before, after))  # fmt: skip
    return now / usual if usual and now else 1.0


def longest_wait(e: Evidence) -> float | None:
    """Return the longest gap of nearly all responses before (p99); `None` = not known."""
    over = e.before.ends <= e.after.window.start  # leave out those still in progress after
    gaps = finite(e.before.number("max_gap_s")[~failed(e.before) & over])
    return float(np.percentile(gaps, 99)) if len(gaps) >= MIN_COUNT else None


def _engine_gaps(side: Side, here: Mask, name: str | None, speed: float) -> Iterator[Gap]:
    """Yield the longest spans of one engine without any first chunk or end, longest first."""
    t, ends = side.t[here], side.ends[here]
    ended = np.where(failed(side)[here], np.nan, ends)  # failures may come from a proxy
    first, gap = t + side.number("ttft_s")[here], side.number("max_gap_s")[here]
    tokens = side.number("computed_tokens")[here]
    signs = np.concatenate([t.min(keepdims=True), first, ended])  # it may begin in a gap
    signs = np.sort(signs[np.isfinite(signs)])
    if len(signs) <= MIN_COUNT:
        return
    arrivals = np.sort(t)
    came = np.searchsorted(arrivals, signs)
    # A gap begins when several requests wait: before, the engine has no reason to send anything.
    together = arrivals[np.minimum(came[:-1] + _TOGETHER - 1, len(arrivals) - 1)]
    width = np.where(np.diff(came) >= _TOGETHER, signs[1:] - together, 0.0)
    order = np.argsort(-width, kind="stable")[:_MAX_GAPS]
    most = int((width[order] >= _AS_LONG * width.max()).sum())
    for number, at in enumerate(order):
        if not width[at] or number >= max(most, _LONGEST):
            return
        low, high = signs[at], signs[at + 1]
        # Requests computed in it came before its end, and got a first chunk close to it.
        near = (t < high) & (first >= low) & (first <= high + 0.5 * width[at] + 0.5)
        giants = tokens[near & (tokens * speed >= 0.4 * width[at])]
        if not number and len(giants):
            most = 0  # a long prompt explains the longest one
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
