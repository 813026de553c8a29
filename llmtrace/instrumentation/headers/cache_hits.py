"""Decide whether a response came from a cache and not from an engine.

By `Server-Timing: cache;desc=hit`, as our own middleware reports it, or by a header of a gateway
or proxy whose meaning is documented. A provider's prompt cache is none of these: its engine
responds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from llmtrace.instrumentation.headers.server_timing import Entry

CACHE: Final = "cache"
HIT: Final = "hit"
MISS: Final = "miss"

# Each says HIT or MISS, some with more: `SEMANTIC HIT`.
_STATUS: Final = ("x-portkey-cache-status", "cf-aig-cache-status", "helicone-cache")
# LiteLLM names the key of what it took from its cache, and sends no such header otherwise.
_KEY: Final = "x-litellm-cache-key"
# What proxies say: `HIT`, `TCP_HIT`, `Hit from cloudfront`. Of several values the last is of the
# one nearest to the client. Their MISS means nothing: most of them never cache such answers.
_PROXIES: Final = "x-cache"
NAMES: Final = frozenset({*_STATUS, _KEY, _PROXIES})

_HIT: Final = re.compile(r"(?:[A-Z]+[_ ])*HIT\b", re.IGNORECASE)
_MISS: Final = re.compile(r"(?:[A-Z]+[_ ])*MISS\b", re.IGNORECASE)


def hit(headers: Mapping[str, str], timing: Iterable[Entry] = ()) -> bool | None:
    """Return whether a response came from a cache; `None` = not reported.

    Args:
        headers: of the response, by lower-case name.
        timing: the entries of its `Server-Timing`.

    Example:
        >>> hit({"x-cache": "MISS, HIT"}), hit({"x-portkey-cache-status": "SEMANTIC HIT"})
        (True, True)
        >>> hit({"cf-aig-cache-status": "MISS"}), hit({"x-cache": "BYPASS"})
        (False, None)
    """
    said = [entry.description for entry in timing if entry.name == CACHE]
    said += [headers[name] for name in _STATUS if name in headers]
    nearest = headers.get(_PROXIES, "").rpartition(",")[2].strip()
    if headers.get(_KEY) or any(_HIT.match(text) for text in [nearest, *filter(None, said)]):
        return True
    return False if any(_MISS.match(text) for text in filter(None, said)) else None
