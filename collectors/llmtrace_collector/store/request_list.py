"""Read what the request list and the request page show: a page of requests, and a request's peers.

The store sorts, filters and limits, so that a page out of a million requests costs little more
than one out of a thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from llmtrace.core.row import TURN
from llmtrace.core.stages import PARTITION
from llmtrace_collector.store import read
from llmtrace_collector.store.clickhouse_store import StoreReader
from llmtrace_collector.store.sql_builder import from_file

_NS: Final = 1_000_000_000
# Every version of a row is older than this one.
_ANY_VERSION: Final = 1 << 64
SORTS: Final = ("start", *read.SLOWEST_BY)
KINDS: Final[Mapping[str, str]] = {
    "requests": f" AND operation != '{TURN}'", "turns": f" AND operation = '{TURN}'", "all": "",
}  # fmt: skip
# The filters on the page; its address takes all of `read.FILTERS`.
CHOSEN_BY: Final = ("service", "model", "route", "tenant", "outcome", "replica")
_MAX_CHOICES: Final = 100
# The newest requests are usually within the last minute.
_FIRST_LOOK_NS: Final = 60 * _NS
# A few of the rows found may turn out to be replaced by a later version.
_SPARE: Final = 10
# The columns that the list reads, of about a hundred.
_SHOWN: Final = (
    "service", "operation", "agent", "model", "route", "tenant", "outcome", "error_type",
    "e2e_ns", "ttft_ns", *(f"{stage}_ns" for stage in PARTITION),
)  # fmt: skip
# The columns that `llmtrace.dataset.explain_request` compares.
_COMPARED: Final = (
    "service", "operation", "agent", "model", "route", "outcome", "stream", "prompt_tokens",
    "output_tokens", "e2e_ns", "ttft_ns", *(f"{stage}_ns" for stage in PARTITION),
)  # fmt: skip

Place = tuple[int, int, str, str]  # the value that is sorted by, start (unix ns), trace, span


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """Which requests are listed, and in which order.

    Attributes:
        start_ns: unix nanoseconds.
        end_ns: unix nanoseconds, exclusive.
        filters: by the names in `read.FILTERS`.
        kind: one of `KINDS`.
        slower_than_s: only those that took longer.
        sort: one of `SORTS`; the newest or the longest come first. By a stage or a metric, only
            requests that report it are listed.
        limit: maximum number.
        after: only those that follow this one in the order.
        name: a request, response or trace id; then the time does not matter.
    """

    start_ns: int
    end_ns: int
    filters: Mapping[str, str] = field(default_factory=dict)
    kind: str = "requests"
    slower_than_s: float | None = None
    sort: str = "start"
    limit: int = 50
    after: Place | None = None
    name: str | None = None


def listed(store: StoreReader, query: ListQuery) -> tuple[list[dict[str, Any]], Place | None]:
    """Return a page of requests as `Row.as_dict` has them, and where the next page begins.

    Returns:
        The rows, and the place of the last one; `None` = there are no more.
    """
    where, given = _conditions(query)
    wanted = query.limit + 1
    for since, most in _looks(query, wanted):
        tops = _tops(store, query, where, given | {"since": since}, most)
        found = _current(store, query, where, given | {"since": since}, tops)
        if len(found) >= wanted or (len(tops) < most and since == query.start_ns):
            break
    shown = found[: query.limit]
    more = len(found) > query.limit
    return [row for _, row in shown], shown[-1][0] if more else None


def _tops(
    store: StoreReader, query: ListQuery, where: str, given: Mapping[str, object], most: int
) -> set[tuple[int, int]]:
    """Return the first values in the order of the list, each with the start of its request."""
    value = _value(query.sort)
    if query.after is not None:
        given = {**given, "at_value": query.after[0], "at_start": query.after[1]}
        behind = from_file("list_behind", value=value)
        where += f" AND {behind}"
    found = store.query(from_file("list_tops", value=value, where=where, limit=f"{most:d}"), given)
    return {(int(top), int(start)) for top, start in found}


def _current(
    store: StoreReader,
    query: ListQuery,
    where: str,
    given: Mapping[str, object],
    tops: set[tuple[int, int]],
) -> list[tuple[Place, dict[str, Any]]]:
    """Return the rows whose last version has one of these values, in the order of the list."""
    if not tops:
        return []
    columns = (*_SHOWN, "tpot_s") if query.sort == "tpot" else _SHOWN
    starts = ", ".join(f"fromUnixTimestamp64Nano({start:d})" for start in {at for _, at in tops})
    value = _value(query.sort)
    sql = from_file(
        "list_rows", columns=", ".join(columns), value=value, where=where, starts=starts
    )
    last: dict[tuple[str, str], Any] = {}
    for row in store.query(sql, given):
        known = last.get((row[1], row[2]))
        if known is None or int(row[3]) > int(known[3]):
            last[row[1], row[2]] = row
    found = [
        ((int(row[-2]), int(row[0]), str(row[1]), str(row[2])), read.flat_row(row[:-2], columns))
        for row in last.values()
        if int(row[-1]) and (int(row[-2]), int(row[0])) in tops
    ]
    found.sort(key=lambda one: one[0], reverse=True)
    after = query.after
    return found if after is None else [one for one in found if one[0] < after]


def counted(store: StoreReader, query: ListQuery) -> int:
    """Return an upper bound of the number of requests on all pages of a query."""
    where, given = _conditions(query)
    sql = from_file("count_requests", figures="count()", where=where)
    [(count,)] = store.query(sql, given)
    return int(count)


def choices(store: StoreReader, start_ns: int, end_ns: int) -> dict[str, list[str]]:
    """Return the values that the requests of a time range have, for each filter."""
    columns = ", ".join(f"groupUniqArray({_MAX_CHOICES})({name})" for name in CHOSEN_BY)
    [found] = store.query(
        from_file("count_requests", figures=columns, where=read.BETWEEN),
        {"since": start_ns, "until": end_ns},
    )
    return {
        name: sorted(value for value in values if value)
        for name, values in zip(CHOSEN_BY, found, strict=True)
    }


def peers(
    store: StoreReader, start_ns: int, end_ns: int, filters: Mapping[str, str], limit: int
) -> list[dict[str, Any]]:
    """Return the last requests of a time range, with the columns that an explanation compares."""
    where, given = read.where_of(filters)
    return read.flat_rows(
        store,
        f"{read.BETWEEN}{where} AND outcome = 'success' ORDER BY start DESC LIMIT {limit:d}",
        {**given, "since": start_ns, "until": end_ns},
        _COMPARED,
        _ANY_VERSION,
    )


def _conditions(query: ListQuery) -> tuple[str, dict[str, object]]:
    given: dict[str, object] = {}
    if query.name is not None:
        given = {"name": query.name, "since": query.start_ns}
        return read.HAS_ID + _known(query.sort), given
    where, filters = read.where_of(query.filters)
    given = {**filters, "since": query.start_ns, "until": query.end_ns}
    words = f"{read.BETWEEN}{KINDS[query.kind]}{where}"
    if query.slower_than_s is not None:
        given["slower"] = round(query.slower_than_s * _NS)
        words += " AND e2e_ns > {slower:Int64}"
    return words + _known(query.sort), given


def _known(sort: str) -> str:
    return "" if sort == "start" else f" AND {_value(sort)} IS NOT NULL"


def _value(sort: str) -> str:
    if sort == "start":
        return "toUnixTimestamp64Nano(start)"
    return "toInt64(tpot_s * 1e9)" if sort == "tpot" else f"{sort}_ns"


def _looks(query: ListQuery, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the limit of each attempt to find enough rows, each wider than the last.

    The newest requests are first looked for in the last minute only.
    """
    end = query.end_ns if query.after is None else min(query.end_ns, query.after[1] + 1)
    if query.sort == "start" and query.name is None and end - _FIRST_LOOK_NS > query.start_ns:
        yield end - _FIRST_LOOK_NS, wanted
    most = wanted + _SPARE
    while True:
        yield query.start_ns, most
        most *= 4
