"""Join the server's row and the page's beacon: the time that the person at the page waited.

A pure function. The page's measurements come from the page: the whole wait, the first content, its
own time. What only the server side knows comes from the row: the engine, the gateways, the network
between the application and the engine. Only durations of the two are put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from llmtrace.browser.beacon import Beacon
from llmtrace.core.browser_timing import Browser
from llmtrace.core.row import Outcome, Row
from llmtrace.core.stages import Network, Reported, StageName, Timeline

# Browsers round their clocks, to 1 ms at worst.
_ROUNDING_NS: Final = 2_000_000


def with_beacon(row: Row, beacon: Beacon, *, app_ns: int | None = None) -> Row:
    """Return the row as the user of the page experienced it; stages add up to *their* wait.

    The row is of the request that the application made for the page, the beacon of the page's own.
    A row that has been joined already stays as it is, whatever comes later. `app_ns`, if known, is
    what the application took up to its response's first content, which a page sees as a gateway's
    time.
    """
    if row.browser is not None:
        return row
    seen, was = beacon.browser, row.timeline
    return replace(
        row,
        timeline=_timeline(was, seen, app_ns),
        browser=replace(
            seen,
            app_e2e_ns=was.e2e,
            app_ttft_ns=was.ttft,
            app_held_ns=was.held_before + was.held_after if was.watched else None,
            inconsistent=" ".join(_contradictions(row, seen)) or None,
        ),
        **_ending(row, seen),
        # Marks of the server's clock have no place on the page's; these are the page's own.
        max_gap_ns=seen.max_gap_ns,
        gaps=None,
        last_content_ns=seen.last_content_ns,
        first_byte_ns=seen.first_byte_ns,
        answered_ns=None,
        first_event_ns=None,
        first_reasoning_ns=None,
        first_text_ns=None,
        first_tool_call_ns=None,
        arrived_by_ns=None,
        client_lag_ns=None,
    )


def joined_row(rows: Sequence[Row]) -> Row | None:
    """Return the row that a page's beacon is about, among those of the page's request; or `None`.

    Of nested requests the outer; of several in a row the last, which answered. Of
    several at the same time none: the page cannot distinguish them. Nor of a turn, whose time is
    not one request's.
    """
    if any(row.is_turn for row in rows):
        return None
    inner = {row.span_id for row in rows}
    outer = sorted(
        (row for row in rows if row.parent_span_id not in inner), key=lambda row: row.start
    )
    if not outer:
        return None
    *earlier, last = outer
    if any(row.start + row.e2e_ns > last.start for row in earlier):
        return None
    return last


def _timeline(was: Timeline, seen: Browser, app_ns: int | None) -> Timeline:
    consumer_ns = seen.held_before_ns + seen.held_after_ns
    stream = was.stream and seen.kind != "whole"
    ttft = seen.ttft_ns if stream else None
    marked: dict[StageName, int] = _without_render(was.marked_before)
    gateway = was.gateway
    # The page's figure may come from the application, or from a gateway in front of it: the larger
    # one is right, and both together would count twice.
    ours = (0 if gateway is None else gateway.ns) + (app_ns or 0)
    if seen.gateway_ns is not None and seen.gateway_ns > ours:
        gateway = Reported(seen.gateway_ns, "server_timing")
    elif app_ns is not None:
        marked["gateway"] = marked.get("gateway", 0) + app_ns
    return replace(
        was,
        e2e=seen.e2e_ns,
        ttft=None if ttft is None else min(ttft, seen.e2e_ns),
        held_before=consumer_ns if ttft is None else seen.held_before_ns,
        held_after=0 if ttft is None else seen.held_after_ns,
        network=_network(was.network, seen),
        gateway=gateway,
        marked_before=marked,
        marked_after=_without_render(was.marked_after),
        stream=stream,
        watched=True,
    )


def _without_render(marks: Mapping[StageName, int]) -> dict[StageName, int]:
    return {stage: ns for stage, ns in marks.items() if stage != "render"}


def _network(was: Network, seen: Browser) -> Network:
    """Add the network from the page to the application to the network from there on."""
    # A handshake over TCP is one round trip; over QUIC it contains more. The round trip
    # on a connection that was open is not reported.
    shakes = seen.connect_ns is not None and seen.connect_ns > 0 and seen.protocol != "h3"
    rtt = seen.connect_ns if shakes else None
    return replace(
        was,
        client_wait=_sum(was.client_wait, seen.client_wait_ns),
        dns=_sum(was.dns, seen.dns_ns),
        connect=_sum(was.connect, seen.connect_ns),
        tls=_sum(was.tls, seen.tls_ns),
        rtt=_sum(was.rtt, rtt),
        rtt_source=was.rtt_source if rtt is None else "client",
    )


def _sum(one: int | None, other: int | None) -> int | None:
    """Add the known values; the sum of two unknown ones is unknown."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _ending(row: Row, seen: Browser) -> Mapping[str, Any]:
    """Return the user's outcome: the server's, unless only the page saw a failure."""
    if row.outcome != "success" or seen.outcome is None:
        return {}
    return {"outcome": cast("Outcome", seen.outcome), "error_type": seen.error_type}


def _contradictions(row: Row, seen: Browser) -> Iterator[str]:
    """Name the page's figures that cannot be, by themselves or compared with the server's."""
    ttft = seen.e2e_ns if seen.ttft_ns is None else seen.ttft_ns
    if ttft > seen.e2e_ns + _ROUNDING_NS:
        yield "ttft"
    if seen.held_before_ns > ttft + _ROUNDING_NS:
        yield "held_before"
    if seen.held_after_ns > seen.e2e_ns - min(ttft, seen.e2e_ns) + _ROUNDING_NS:
        yield "held_after"
    # The server's wait for the first content lies inside the page's, however late either read on.
    waited = None if row.ttft_ns is None else row.ttft_ns - row.timeline.held_before
    if waited is not None and seen.chunks and ttft + _ROUNDING_NS < waited:
        yield "server"
