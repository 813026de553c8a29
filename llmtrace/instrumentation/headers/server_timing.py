"""Read and write `Server-Timing` headers.

    Server-Timing: gateway;dur=12.5;desc=edge, cache;desc="a miss"

Untrusted: at most 32 entries and 4 KiB are looked at, and what is malformed is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from llmtrace.core.stages import Reported, reported

NS_PER_MS: Final = 1_000_000
_MAX_CHARACTERS: Final = 4096
_MAX_ENTRIES: Final = 32

# The name and the first `dur` and `desc`; the rest is skipped. What stands between quotes
# separates nothing.
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"?'
_ENTRY: Final = re.compile(rf'(?:[^,"]|{_QUOTED})+')
_PARAMETER: Final = re.compile(rf'(?:[^;"]|{_QUOTED})+')
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DURATION: Final = re.compile(
    r'\s*dur\s*=\s*"?([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|\.[0-9]+)"?\s*\Z', re.IGNORECASE
)
_DESCRIPTION: Final = re.compile(
    r'\s*desc\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",;]+))', re.IGNORECASE | re.DOTALL
)
_HOP: Final = re.compile(r"\s*hop\s*=\s*([0-9A-Za-z._-]{1,64})\s*")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class Entry(NamedTuple):
    """One entry: its name in lower case, its duration in nanoseconds, and what it says of it.

    `hop` is llmtrace's own parameter: the gateway that reports this, so that a time reported
    twice, here and further on, counts once.
    """

    name: str
    ns: int | None
    description: str | None
    hop: str | None = None


def entries(value: str) -> Iterator[Entry]:
    """Yield the entries of a header. Durations are milliseconds, as the specification says."""
    for entry in islice(_ENTRY.finditer(value[:_MAX_CHARACTERS]), _MAX_ENTRIES):
        name, _, rest = entry[0].partition(";")
        name = name.strip().lower()
        if not _NAME.fullmatch(name):
            continue
        duration = description = hop = None
        for parameter in _PARAMETER.findall(rest):
            duration = duration or _DURATION.match(parameter)
            description = description or _DESCRIPTION.match(parameter)
            hop = hop or _HOP.fullmatch(parameter)
        parsed = None if duration is None else milliseconds(duration[1])
        ns = None if parsed is None else parsed.ns
        yield Entry(name, ns, _unquoted(description), None if hop is None else hop[1])


def write(timings: Iterable[Entry]) -> str:
    """Write entries as the value of a header; durations to the nanosecond.

    Example:
        >>> write([Entry("gateway", 1_500_000, "edge", "a1"), Entry("cache", None, "hit")])
        'gateway;dur=1.5;desc="edge";hop=a1, cache;desc="hit"'
    """
    return ", ".join(map(_written, timings))


def _written(entry: Entry) -> str:
    text = entry.name
    if entry.ns is not None:
        text += f";dur={entry.ns / NS_PER_MS:.6f}".rstrip("0").rstrip(".")
    if entry.description is not None:
        escaped = entry.description.replace("\\", "\\\\").replace('"', '\\"')
        text += f';desc="{escaped}"'
    return text if entry.hop is None else f"{text};hop={entry.hop}"


def _unquoted(found: re.Match[str] | None) -> str | None:
    if found is None:
        return None
    return found[2] if found[1] is None else _ESCAPED.sub(r"\1", found[1])


def milliseconds(text: str) -> Reported | None:
    """Read a header's number of milliseconds; what cannot be one is unknown."""
    try:
        return reported(float(text), NS_PER_MS, "server_timing")
    except ValueError:
        return None
