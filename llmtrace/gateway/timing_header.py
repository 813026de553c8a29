"""Make the `Server-Timing` entries by which a gateway reports its times to its client.

The entries are its self time, that of gateways behind it, the engine's queue and prefill as far as
they are known, and whether a cache answered. Each gateway has an id of its own there, so that a
client that receives the same entry twice counts it once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Final

from llmtrace.core.recording import Recording
from llmtrace.core.stages import Reported, Source, Timeline, with_engine
from llmtrace.instrumentation.headers import cache_hits, propagation
from llmtrace.instrumentation.headers.server_timing import Entry
from llmtrace.runtime.proxied_request import ProxiedRequest, SelfTime

GATEWAY: Final = "gateway"

# Sources that are believed about the times of one request of the engine.
_BELIEVED: Final[frozenset[Source]] = frozenset(
    {"engine_inband", "engine_span", "engine_plugin", "server_timing"}
)
_ENGINE: Final = ("queue", "prefill", "decode")


def timing_entries(
    relay: ProxiedRequest,
    name: str,
    hop: str,
    own: int | None,
    passed_on: Collection[str | None] = (),
) -> Iterator[Entry]:
    """Yield the entries of one request so far.

    Args:
        relay: the request.
        name: the gateway's.
        hop: its id in this trace.
        own: its own time in nanoseconds; `None` = not known.
        passed_on: ids of the gateways behind this one whose headers the application has passed on
            itself; `None` among them stands for those that have no id.
    """
    yield Entry(GATEWAY, own, name, hop)
    for number, call in enumerate(relay.calls):
        for key, behind in list(call.hops.items()):
            if behind.id in passed_on:
                continue
            if behind.id is not None:
                yield Entry(GATEWAY, behind.ns, behind.name, behind.id)
            else:
                yield Entry(GATEWAY, behind.ns, behind.name, f"{hop}.{number}.{key[1:]}")
    hit = cached(relay)
    if hit is not None:
        yield Entry(cache_hits.CACHE, None, cache_hits.HIT if hit else cache_hits.MISS)
    for stage, ns in engine(relay).items():
        yield Entry(stage, ns, None)


def spent(relay: ProxiedRequest, now: int) -> SelfTime:
    """Split the time up to the first content, or up to now, by what the servers behind reported.

    Gateways and the engine behind took at least the time that they report.
    """
    known = relay.elapsed(now) if relay.spent is None else relay.spent
    engine_ns = engine(relay)
    behind = engine_ns.get("queue", 0) + engine_ns.get("prefill", 0)
    if len(relay.calls) == 1:
        behind += sum(hop.ns or 0 for hop in relay.calls[0].hops.values())
    return known.knowing(behind)


def complete(relay: ProxiedRequest) -> bool:
    """Return whether nothing that is still to come can add to the entries."""
    if cached(relay):
        return True
    if relay.blind:
        return False  # a gateway behind may report its own, in what is passed on
    return all(call.ended for call in relay.calls) or (
        bool(engine(relay)) and not any(_may_report_more(call) for call in relay.calls)
    )


def cached(relay: ProxiedRequest) -> bool | None:
    """Return whether a cache answered: here, or at each upstream that was called."""
    if relay.cache_hit is not None or not relay.calls:
        return relay.cache_hit
    return all(call.info.get("cache_hit") for call in relay.calls) or None


def engine(relay: ProxiedRequest) -> dict[str, int]:
    """Return the stages of the engine, in nanoseconds, as far as they are known of every call.

    Calls one after another add up. Of calls at the same time nothing is known, unless only one
    of them was answered.
    """
    if cached(relay) or not any(call.engine for call in relay.calls):
        return {}
    answered = [call for call in relay.calls if not _failed(call)]
    if not _one_after_another(answered):
        return {}
    each = [_figures(call) for call in answered]
    return {
        stage: sum(figures[stage] for figures in each)
        for stage in _ENGINE
        if each and all(stage in figures for figures in each)
    }


def _figures(call: Recording) -> dict[str, int]:
    timeline = Timeline(e2e=0)
    for figures in call.engine:
        timeline = with_engine(timeline, figures)
    known: Iterable[tuple[str, Reported | None]] = (
        ("queue", timeline.queue),
        ("prefill", timeline.prefill),
        ("decode", timeline.engine_decode),
    )
    return {
        stage: reported.ns
        for stage, reported in known
        if reported is not None and reported.source in _BELIEVED
    }


def _failed(call: Recording) -> bool:
    """Return whether a call ended without a response, so without an engine's time."""
    return call.ended and call.ttft is None and (call.stream or call.waits.span is None)


def _may_report_more(call: Recording) -> bool:
    return not call.ended and any(hop.id is not None for hop in call.hops.values())


def _one_after_another(calls: Iterable[Recording]) -> bool:
    spans = sorted(span for call in calls if (span := call.waits.span) is not None)
    return all(one[1] <= other[0] for one, other in pairwise(spans))


def more() -> Entry:
    """Return the entry that announces that another comment may follow."""
    return Entry(propagation.MORE, None, None)
