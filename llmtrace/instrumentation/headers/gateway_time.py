"""Read from a response's headers which gateways it passed, and each gateway's self time.

Read: `Server-Timing`, and LiteLLM's and Kong's own headers. Envoy's reports how long the upstream
took, which is no gateway's time, so that Envoy and nginx need a line of configuration: see
docs/instrument/gateways.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from llmtrace.instrumentation.headers.server_timing import Entry, milliseconds

SELF_TIME: Final = frozenset({"gateway", "gw"})
# From a gateway that cannot subtract: all its time up to now, and what of it was its upstream's.
TOTAL: Final = "gateway-total"
UPSTREAM: Final = "gateway-upstream"
OWN_TIME: Final = SELF_TIME | {UPSTREAM}  # every entry by which a gateway reports its self time

# Headers that show a gateway between client and engine, even if it reports no time. A server
# that is not vLLM's own shows the same (`engine_itself`).
SIGNS: Final = frozenset({
    "via", "x-litellm-version", "x-litellm-overhead-duration-ms", "x-envoy-upstream-service-time",
    "x-kong-proxy-latency", "x-kong-upstream-latency", "x-served-by", "cf-ray", "server-timing",
})  # fmt: skip
# All that is read here and not shown by a sign alone.
NAMES: Final = frozenset({*SIGNS, "server"})

_ENGINES_SERVER: Final = "uvicorn"
_SERVERS: Final = {
    "nginx": "nginx", "openresty": "nginx", "envoy": "envoy", "istio-envoy": "envoy",
    "kong": "kong",
}  # fmt: skip
_SERVER: Final = re.compile(rf"(?:{'|'.join(_SERVERS)})\b", re.IGNORECASE)
_CALLED: Final = re.compile(r"[0-9A-Za-z][\w.:-]{0,63}", re.ASCII)


class Hop(NamedTuple):
    """A gateway on the way: its name, and its self time in nanoseconds; `None` = not reported.

    `id` identifies a gateway that has llmtrace inside.
    """

    name: str | None
    ns: int | None = None
    id: str | None = None


def engine_itself(headers: Mapping[str, str]) -> bool:
    """Return whether a response looks as if it came from a vLLM without a gateway."""
    return headers.get("server") == _ENGINES_SERVER and SIGNS.isdisjoint(headers)


def hops(headers: Mapping[str, str], timing: Sequence[Entry] = ()) -> Iterator[Hop]:
    """Yield every gateway that a response's headers and its `Server-Timing` report.

    Each reports its self time and not that of gateways behind it, so that the sum counts nothing
    twice. Headers are by lower-case name.
    """
    total: int | None = None
    passed_on: set[str | None] = set()  # what a gateway has reported of those behind it
    for name, ns, description, hop in timing:
        if name in SELF_TIME:
            if hop is not None:
                passed_on.add(description)
            yield Hop(_called(description), ns, hop)
        elif name == TOTAL:
            total = ns
        elif name == UPSTREAM:
            # Both are cut to milliseconds, so their difference may be below zero by one.
            own = None if total is None or ns is None else max(0, total - ns)
            yield Hop(_called(description), own)
            total = None
    overhead = headers.get("x-litellm-overhead-duration-ms")
    if (overhead is not None or "x-litellm-version" in headers) and "litellm" not in passed_on:
        yield Hop("litellm", _ns(overhead))
    latency = headers.get("x-kong-proxy-latency")
    if latency is not None and "kong" not in passed_on:
        yield Hop("kong", _ns(latency))
    if "x-envoy-upstream-service-time" in headers:
        yield Hop("envoy")
    server = headers.get("server")
    if server is not None and (found := _SERVER.match(server)):
        yield Hop(_SERVERS[found[0].lower()])


@lru_cache(maxsize=64)
def by_server(server: str) -> tuple[bool, bool]:
    """Return whether a `Server` header alone shows an engine, and whether it shows a gateway."""
    headers = {"server": server}
    return engine_itself(headers), next(hops(headers), None) is not None


def _ns(milliseconds_text: str | None) -> int | None:
    duration = None if milliseconds_text is None else milliseconds(milliseconds_text)
    return None if duration is None else duration.ns


def _called(description: str | None) -> str | None:
    """Take a description for a name, if it is a short word: it becomes a label."""
    return description if description and _CALLED.fullmatch(description) else None
