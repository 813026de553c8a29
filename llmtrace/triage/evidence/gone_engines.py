"""Find engines that vanish, and each engine's share of the requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import methodcaller
from typing import Final

import numpy as np

from llmtrace.triage.evidence.changes import MIN_COUNT, Share
from llmtrace.triage.evidence.cut_streams import failed
from llmtrace.triage.evidence.engine_starts import COUNTERS
from llmtrace.triage.evidence.evidence import Evidence, memoized
from llmtrace.triage.evidence.other_clients import ENDED

_PART_LOST: Final = 0.02  # of all requests
_STEPS: Final = 4  # intervals between samples
_FEW: Final = 2  # requests
_NO_CHANCE: Final = 1e-6  # probability that so many requests in a row miss a replica


def vanished(e: Evidence) -> Mapping[str, float]:
    """Return the engines whose samples stop or pause for several intervals, and since when.

    If the start time or a counter goes on afterwards, the engine was only not scraped.
    """
    found, window, examined = {}, e.after.window, 0
    for name, series in e.series("running").items():
        before = series.t[series.t < window.start]
        if len(before) < 3:
            continue
        examined += 1
        usual = float(np.percentile(np.diff(before), 90))
        marks = np.concatenate([[window.start], series.within(window).t, [window.end]])
        longest = int(np.diff(marks).argmax())
        earlier = series.t[series.t <= marks[longest]]  # empty: the engine is not there yet
        back = longest + 2 < len(marks)
        if (
            np.diff(marks)[longest] > 3 * usual
            and len(earlier)
            and not (back and _went_on(e, name, float(earlier[-1]), float(marks[longest + 1])))
        ):
            found[name] = float(earlier[-1])
    # If all vanish at once, it is more likely the scrape that failed.
    found = found if len(found) < max(examined, 2) else {}
    for name, series in e.series("up").items():
        seen, before = series.within(window), series.value[series.t < window.start]
        if (seen.value == 0).sum() > 1 and len(before) and before.all():  # a new one is not up yet
            found.setdefault(name, float(seen.t[seen.value == 0][0]))
    return found


def _went_on(e: Evidence, name: str, last: float, again: float) -> bool:
    """Return whether an engine is known to be the same process at two times."""
    for signal in ("started", *COUNTERS):
        one = e.series(signal).get(name)
        if one is None:
            continue
        before, after = one.value[one.t <= last], one.value[one.t >= again]
        if len(before) and len(after):
            same = after[0] == before[-1] if signal == "started" else after[0] >= before[-1]
            return bool(same)
    return False


def lost_traffic(e: Evidence, gone: Iterable[str]) -> list[tuple[str, Share]]:
    """Return which of these engines lost a share of the requests beyond chance, and the share."""
    every = shares_of_replicas(e)
    shares = [(name, every[name]) for name in gone if name in every]
    back = (Share(one.after_k, one.after_n, one.before_k, one.before_n) for _, one in shares)
    return [one for one, fall in zip(shares, back, strict=True) if fall.rose(_PART_LOST)]


@memoized
def failed_and_left(e: Evidence) -> Mapping[str, tuple[int, float]]:
    """Return the replicas that serve nothing for a while from failures on.

    For each how many requests failed there, and for how many seconds it serves nothing.

    By rows alone: the last requests that a balancer sends to a dead replica fail.
    """
    found, sides = {}, (e.before, e.after)
    t = np.concatenate([side.t for side in sides])
    lost = np.concatenate([failed(side) for side in sides])
    for name, share in shares_of_replicas(e).items():
        here = np.concatenate([side.where("replica", name) for side in sides])
        served = np.sort(np.append(t[here & ~lost], e.after.window.end))
        if share.before_k < MIN_COUNT or len(served) < _FEW:
            continue
        others = np.diff(np.searchsorted(np.sort(t[~here & ~lost]), served))
        since, until = served[others.argmax() :][:2]
        n = int((here & lost & (t > since) & (t < until)).sum())
        if n >= _FEW and (1 - share.before) ** others.max() < _NO_CHANCE:
            found[name] = n, until - since
    return found


@memoized
def shares_of_replicas(e: Evidence) -> Mapping[str, Share]:
    """Return each replica's share of the requests, by rows, or else by engines' counts."""
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
    """Return each engine's share of the requests by its count, if no row names its engine."""
    if (e.after.rows.words["replica"].codes >= 0).any():
        return {}
    counted = next((found for name in ENDED if (found := e.counted_by(name))), {})
    ended = {name: (round(n[0]), round(n[1])) for name, n in counted.items()}
    before, after = (sum(n[side] for n in ended.values()) for side in (0, 1))
    return {name: Share(n[0], before, n[1], after) for name, n in ended.items()}


def failed_when_it_stopped(e: Evidence, gone: Mapping[str, float]) -> int:
    """Return how many requests failed on these engines as their samples stopped."""
    found = 0
    for side in (e.before, e.after):
        for name, t in gone.items():
            step = float(np.median(np.diff(e.series("running")[name].t)))
            then = (side.ends >= t - step) & (side.ends <= t + _STEPS * step)
            found += int((failed(side) & side.where("replica", name) & then).sum())
    return found
