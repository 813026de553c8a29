"""Find the times in which an engine sends nothing, though requests are in progress.

Rows of one client are placed by its own clock, and only against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.evidence.blocking_prompts import typical_pace
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, Share
from llmtrace.triage.evidence.cut_streams import BAND, common_value, failed
from llmtrace.triage.evidence.evidence import Evidence, kept
from llmtrace.triage.evidence.window_rows import Side

_TOGETHER: Final = 2  # requests that come while nothing leaves: one may just be slow
_MIN_ARRIVALS: Final = 4
_DRAWS: Final = 40
_HIGH: Final = -3  # of the draws in order: one in twenty is longer
_LOOKED_AT: Final = 8
_AS_LONG: Final = 0.4
_SLOWER: Final = 1.5  # times as long in the middle: not a few are
_AS_BEFORE: Final = 1.1  # times as long, at most
_STALLED: Final = 0.7
_BUNCHED: Final = 0.8
_MIN_STREAMS: Final = 2


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
    speed = typical_pace(side) or 0.0
    for code in known if len(known) else np.unique(words.codes):
        name = words.names[code] if code >= 0 else None
        yield from _engine_gaps(side, words.codes == code, name, speed)


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
    seconds, _ = common_value(after[after > most])
    if seconds is None:
        return None
    long = after[after >= HALF * seconds]
    alike = np.abs(long - seconds) <= BAND * seconds
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
