"""What do the headers of a request and its answer carry between client, gateway and engine?

Out go `traceparent` and `x-request-id`, the join keys. Back come the gateway's own time and, where
a server tells them, queue and prefill. Headers are untrusted: read within bounds, never raised on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from llmtrace.record import Recording
from llmtrace.stages import EngineFigures, Reported

_NS_PER_MS: Final = 1_000_000
_LONGEST_MS: Final = 86_400_000.0
_MOST_BYTES: Final = 4096
_MOST_ENTRIES: Final = 32

# name;dur=1.5;desc="…" - the name and the first dur parameter; the rest is skipped. What stands
# between quotes separates nothing.
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"?'
_ENTRY: Final = re.compile(rf'(?:[^,"]|{_QUOTED})+')
_PARAMETER: Final = re.compile(rf'(?:[^;"]|{_QUOTED})+')
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DURATION: Final = re.compile(
    r'\s*dur\s*=\s*"?([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+)', re.IGNORECASE
)

_GATEWAY_NAMES: Final = frozenset({"gateway", "gw"})
_PROXY_HEADERS: Final = (
    "via", "x-litellm-version", "x-litellm-overhead-duration-ms", "x-envoy-upstream-service-time",
    "x-kong-upstream-latency", "x-served-by", "cf-ray", "server-timing",
)  # fmt: skip
# All that `incoming` looks for, as they come over the wire.
NAMES: Final = frozenset(name.encode() for name in _PROXY_HEADERS)
_LITELLM_OVERHEAD: Final = "x-litellm-overhead-duration-ms"


def outgoing(recording: Recording, already: Mapping[str, object]) -> dict[str, str]:
    """Return the headers to add to a request so that the server's side can be joined to it.

    A `traceparent` or `x-request-id` the caller sets stays; the latter becomes the row's id.
    """
    lowered = {name.lower(): value for name, value in already.items()}
    added = {}
    if "traceparent" not in lowered:
        added["traceparent"] = recording.span.traceparent
    given = lowered.get("x-request-id")
    if isinstance(given, str) and given:
        recording.info["request_id"] = given
    else:
        added["X-Request-Id"] = recording.info["request_id"]
    return added


def incoming(recording: Recording, headers: Mapping[str, str]) -> None:
    """Note what an answer's headers tell of where its time went."""
    recording.bare = not any(name in headers for name in _PROXY_HEADERS)
    if recording.bare:
        return
    timing = dict(server_timing(headers.get("server-timing", "")))
    gateway = [ns for name, ns in timing.items() if name in _GATEWAY_NAMES]
    if gateway:
        recording.gateway = Reported(gateway[0], "server_timing")
    queue, prefill = timing.get("queue"), timing.get("prefill")
    if queue is not None or prefill is not None:
        recording.engine.append(
            EngineFigures(
                queue=None if queue is None else Reported(queue, "server_timing"),
                prefill=None if prefill is None else Reported(prefill, "server_timing"),
            )
        )
    overhead = headers.get(_LITELLM_OVERHEAD)
    if overhead is not None:
        recording.info["gateway"] = "litellm"
        ns = _milliseconds(overhead)
        if ns is not None and recording.gateway is None:
            recording.gateway = Reported(ns, "server_timing")


def server_timing(value: str) -> Iterator[tuple[str, int]]:
    """Yield the name (lower case) and nanoseconds of each entry of a `Server-Timing` header.

    Entries without a duration and everything malformed are skipped; at most 32 entries and 4 KiB
    are looked at. Durations are milliseconds, as the specification recommends.
    """
    for entry in islice(_ENTRY.finditer(value[:_MOST_BYTES]), _MOST_ENTRIES):
        name, _, parameters = entry[0].partition(";")
        matches = map(_DURATION.match, _PARAMETER.findall(parameters))
        durations = (match[1] for match in matches if match)
        ns = _milliseconds(next(durations, ""))
        if ns is not None and _NAME.fullmatch(name.strip()):
            yield name.strip().lower(), ns


def _milliseconds(text: str) -> int | None:
    try:
        ms = float(text)
    except ValueError:
        return None
    return round(ms * _NS_PER_MS) if 0 <= ms < _LONGEST_MS else None
