"""Split the time of a turn into stages, from its requests, concurrent or not.

Pure integers: the sum of the requests' stages, with overlap counted once, and the rest, which is
the application's own time, tools included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from llmtrace.core.stages import DRAWN_ORDER, Reported, Source, StageName, Stages, Timeline, better

_ORDER: Final = ("client", *DRAWN_ORDER)
_REPORTED: Final[tuple[StageName, ...]] = ("gateway", "queue", "prefill", "decode")
_MARKED: Final[tuple[StageName, ...]] = ("network", "first_chunk")


@dataclass(frozen=True, slots=True)
class Inside:
    """A request inside a turn.

    Attributes:
        start: nanoseconds from the turn's start to this one's.
        end: the same, to its end.
        stages: into which it split; `None` = it was still open when the turn ended.
    """

    start: int
    end: int
    stages: Stages | None


def turn_timeline(wall: int, requests: Iterable[Inside], first: int | None = None) -> Timeline:
    """Make the timeline that `split` cuts into the stages of a turn that took `wall` nanoseconds.

    Each moment that any request covers goes to one stage of one of them: the one that began first.
    Its stages lie end to end within it. What no request covers is the caller's own, `render`; what
    a request that is still open covers cannot be split. `first`, nanoseconds to the first content
    that the user saw, divides nothing.
    """
    got: dict[str, int] = {}
    sources: dict[str, Source] = {}
    until = total = 0
    for request in sorted(requests, key=_first):
        at = request.start
        for name, ns in _laid_out(request):
            start, at = at, at + ns
            share = max(0, min(at, wall) - max(start, until))
            got[name] = got.get(name, 0) + share
            total += share
        until = max(until, min(at, wall))
        if request.stages is not None:
            for name in _REPORTED:
                source = request.stages.sources.get(name)
                if source is not None:
                    sources[name] = _weaker(sources.get(name), source)
    reported = {
        name: Reported(got[name], sources.get(name, "client")) for name in _REPORTED if name in got
    }
    return Timeline(
        e2e=wall,
        ttft=first,
        client=got.get("client"),
        held_before=got.get("render", 0) + wall - total,
        gateway=reported.get("gateway"),
        queue=reported.get("queue"),
        prefill=reported.get("prefill"),
        engine_decode=reported.get("decode"),
        marked_before={name: got[name] for name in _MARKED if name in got},
        unsplit=got.get("unattributed", 0),
        stream=False,
    )


def _laid_out(request: Inside) -> Iterable[tuple[str, int]]:
    """Yield the stages of a request that are known, with their nanoseconds, end to end."""
    if request.stages is None:
        yield "unattributed", request.end - request.start
        return
    client = request.stages.client or 0
    for name in _ORDER:
        ns = getattr(request.stages, name)
        if ns is not None:
            yield name, ns - client if name == "unattributed" else ns


def _first(request: Inside) -> tuple[int, ...]:
    """Order requests by when they began; the rest makes the order deterministic."""
    stages = request.stages
    known = () if stages is None else tuple(-1 if ns is None else ns for _, ns in stages)
    return (request.start, -request.end, stages is None, *known)


def _weaker(one: Source | None, other: Source) -> Source:
    """Return the less trustworthy of two sources: a sum is no better than its worst part."""
    if one is None:
        return other
    best = better(Reported(0, one), Reported(0, other))
    return other if best is not None and best.source == one else one
