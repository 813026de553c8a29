"""Links from a request to other tools, by templates that the operator sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import quote

from llmtrace.core.row import Row
from llmtrace_collector.config.link_templates import PLACES, LinkTemplate

_MS: Final = 1_000_000
_MARGIN_MS: Final = 60_000  # tools search a time range around the trace


def links_for(row: Row, templates: Sequence[LinkTemplate]) -> Iterator[tuple[str, str]]:
    """Yield the name and the address of each link whose values a request has."""
    values: dict[str, str | None] = {
        "start_ms": str(row.start // _MS - _MARGIN_MS),
        "end_ms": str((row.start + row.e2e_ns) // _MS + _MARGIN_MS),
    }
    for template in templates:
        url: str | None = template.url
        for place in PLACES:
            if url is not None and f"{{{place}}}" in url:
                value = values.get(place, getattr(row, place, None))
                url = value and url.replace(f"{{{place}}}", quote(value, safe=""))
        if url:
            yield template.name, url
