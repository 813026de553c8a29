"""Read the address of the request list: which requests, in which order, and which page of them.

The address holds all of the page's state, so that a link shows everyone the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from llmtrace_collector.serve import query_params
from llmtrace_collector.serve.query_params import QueryParamError
from llmtrace_collector.store import read
from llmtrace_collector.store.request_list import KINDS, SORTS, ListQuery, Place

_NS: Final = 1_000_000_000
_DEFAULT_LINES: Final = 50
_MAX_LINES: Final = 1_000
_FILTERS: Final = frozenset(read.FILTERS)
NAMES: Final = _FILTERS | {
    "start", "end", "id", "kind", "slower_than", "sort", "limit", "after",
}  # fmt: skip
_PLACE: Final = re.compile(r"(-?[0-9]{1,19}):([0-9]{1,19}):([0-9a-f]{32}):([0-9a-f]{16})")


def list_query(given: Mapping[str, str], now_s: float) -> ListQuery:
    """Read the parameters of the list; by default the newest requests of the last hour.

    Raises:
        QueryParamError: one is wrong; says which, and what is valid.
    """
    # A form also sends the fields that were left empty.
    said = {name: value.strip() for name, value in given.items() if value.strip()}
    query_params.known(said, NAMES)
    start_ns, end_ns = query_params.between(said, now_s)
    return ListQuery(
        start_ns=start_ns,
        end_ns=end_ns,
        filters=query_params.texts(said, _FILTERS),
        kind=query_params.one_of(said, "kind", tuple(KINDS)),
        slower_than_s=_seconds(said.get("slower_than")),
        sort=query_params.one_of(said, "sort", SORTS),
        limit=query_params.number(said, "limit", _DEFAULT_LINES, _MAX_LINES),
        after=_place(said.get("after")),
        name=query_params.identifier(said["id"]) if "id" in said else None,
    )


def _seconds(said: str | None) -> float | None:
    if said is None:
        return None
    try:
        found = float(said)
    except ValueError:
        found = math.nan
    if not 0 <= found < query_params.MAX_S:
        raise QueryParamError(f"slower_than: {said[:64]!r} is not a number of seconds, as 2.5")
    return found


def _place(said: str | None) -> Place | None:
    if said is None:
        return None
    if match := _PLACE.fullmatch(said):
        return int(match[1]), int(match[2]), match[3], match[4]
    raise QueryParamError("after: write value:start:trace_id:span_id of the last line there was")


def address(query: ListQuery, **changes: str | None) -> str:
    """Return the query string of a list, with absolute times.

    Args:
        query: of the list.
        changes: parameters that differ; `None` leaves one out.
    """
    said: dict[str, str | None] = {
        "start": _unix(query.start_ns), "end": _unix(query.end_ns), **query.filters,
        "kind": query.kind if query.kind != "requests" else None,
        "slower_than": None if query.slower_than_s is None else f"{query.slower_than_s:g}",
        "sort": query.sort if query.sort != "start" else None,
        "limit": str(query.limit) if query.limit != _DEFAULT_LINES else None,
        "id": query.name,
        "after": None if query.after is None else ":".join(map(str, query.after)),
    }  # fmt: skip
    kept = {name: value for name, value in (said | changes).items() if value is not None}
    return urlencode(kept)


def _unix(ns: int) -> str:
    return f"{ns // _NS}" if ns % _NS == 0 else f"{ns / _NS:.6f}"


def earlier(query: ListQuery, windows: int) -> str:
    """Return the query string of the same list over an earlier time range of the same length.

    Args:
        query: of the list.
        windows: how many of its lengths earlier; negative = later.
    """
    shift = windows * (query.end_ns - query.start_ns)
    return address(
        query, start=_unix(query.start_ns - shift), end=_unix(query.end_ns - shift), after=None
    )
