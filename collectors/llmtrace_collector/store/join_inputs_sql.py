"""Collect, in SQL, what a run of the join needs: which requests may have changed, and their parts.

The cost of a run depends on what arrived since the last one. The keys of every new part (its trace,
and the ids it names) are looked up in `part_keys`, which finds all stored parts of its traces,
whatever their age. Each step fills one table from those before it: temporary tables where a process
runs the join, refreshed views where the server does (`ddl`). The text is the same. Stored tables may
be spread over many nodes while a step's table is only on this one, so the two are compared by
`GLOBAL IN`, which on a single node is `IN`.

    join_fresh      parts that arrived since the last run
    join_traces     the traces they belong to, by trace or by an id; which of them are too large
    join_around     all parts of those traces
    join_above      each part with the parts above it in its trace
    join_affected   the requests whose rows may change
    join_named      parts of other traces that name an id of these requests
    join_found      each of these requests with what belongs to it: see `match_sql`
"""

from __future__ import annotations

from typing import Final

from llmtrace.core.row import TURN
from llmtrace_collector.store.sql_builder import from_file, quoted

# Up to this many parts in a trace they are matched by their place in it; an agent's long session
# has some thousand. Above it, they are matched only by the ids they name.
MAX_IN_TRACE: Final = 10_000
# How many levels below its request a span may be: gateways of gateways, and their calls.
_MAX_DEPTH: Final = 8
# A request takes at most a day: anything longer is an error of a clock or a sender.
MAX_S: Final = 86_400
_MAX_NS: Final = MAX_S * 1_000_000_000

FIGURE: Final = (
    "Tuple(span_id String, queue Nullable(Int64), prefill Nullable(Int64), decode Nullable(Int64),"
    " frontend Nullable(Int64), prompt Nullable(Int64), cached Nullable(Int64),"
    " output Nullable(Int64), preemptions Nullable(Int64), replica String, connector String,"
    " answered String, engine String)"
)
_SLICE: Final = "Tuple(queue Nullable(Int64), prefill Nullable(Int64), rank String)"
_GATEWAY: Final = (
    "Tuple(start DateTime64(9, 'UTC'), span_id String, parent_span_id String, service String,"
    " own Nullable(Int64), gateway String, cache_hit Nullable(Bool))"
)
# Kinds of parts that may be matched by their place in the trace; and those that name ids.
PLACED: Final = frozenset({"engine", "gateway", "page", "slice"})
RECORDS: Final = ("engine", "plugin")
# How an engine's record names a request: by the response id, else by the request id.
ID_OF: Final = {"answer": "response_id", "question": "request_id"}
IDS: Final = tuple(ID_OF.values())
REQUESTS: Final = "kind IN ('row', 'genai')"
MAKES_ROW: Final = from_file("makes_row")
# The key by which all parts of a trace are found.
_TRACE_KEY: Final = "cityHash64('trace', trace_id)"
# The keys of the ids that a part names.
_ID_KEYS: Final = from_file("id_keys")
_LAST: Final = "ORDER BY arrived DESC LIMIT 1 BY trace_id, span_id, kind"


def keys_select(parts: str) -> str:
    """Return the query that makes lines of `part_keys` from lines of `request_parts`."""
    return from_file("part_keys", trace_key=_TRACE_KEY, id_keys=_ID_KEYS, parts=parts)


def missing_keys(since: str) -> str:
    """Return the query of the missing lines of `part_keys`, for parts that arrived after `since`."""
    lacking = from_file("parts_without_keys", since=since)
    return keys_select(f"(\n{lacking}\n)")


def fresh(since: str, until: str) -> str:
    """Return the query of the parts that arrived after `since`, up to `until`."""
    return from_file("join_fresh", id_keys=_ID_KEYS, since=since, until=until)


def traces(local: str = "") -> str:
    """Return the query of the traces of new parts, in all shards or in the tables of one."""
    return from_file("join_traces", trace_key=_TRACE_KEY, most=str(MAX_IN_TRACE), local=local)


def around(local: str = "") -> str:
    """Return the query of all parts of those traces, each once, in its last version.

    Traces that are too large are left to `around_large`.
    """
    small = "trace_id GLOBAL IN (SELECT trace_id FROM join_traces WHERE NOT large)"
    keyed = f"key GLOBAL IN (SELECT {_TRACE_KEY} FROM join_traces WHERE NOT large)"
    return f"{_with_tuples(_stored(keyed, small, local))}\n{_LAST}"


def around_large(local: str = "") -> str:
    """Return the query of the relevant parts of traces that are too large.

    These are the new parts, and those that name an id that a new part names.
    """
    keyed = "key GLOBAL IN (SELECT arrayJoin(keys) FROM join_fresh)"
    named = _with_tuples(_stored(keyed, from_file("names_fresh"), local))
    arrived = from_file("join_large", longest_ns=str(_MAX_NS), local=local)
    both = f"{named}\n{_LAST}\nUNION ALL\n{_with_tuples(arrived)}"
    return f"SELECT * FROM (\n{both}\n) {_LAST}"


def named() -> str:
    """Return the query of parts in other traces that name an id of an affected request.

    These are records of engines that came earlier, and requests with the same id.
    """
    keyed = f"key GLOBAL IN (SELECT arrayJoin({_ID_KEYS}) FROM join_affected)"
    stored = _stored(keyed, from_file("names_affected"))
    return from_file("join_named", figure=_figure(), stored=stored)


def _stored(keyed: str, where: str, local: str = "") -> str:
    return from_file(
        "stored_parts", keyed=keyed, where=where, longest_ns=str(_MAX_NS), local=local
    )


def _with_tuples(parts: str) -> str:
    gateway = quoted(_GATEWAY)
    return from_file("join_parts", figure=_figure(), slice=_SLICE, gateway=gateway, parts=parts)


def _figure() -> str:
    return from_file("figure", type=FIGURE)


def without_row() -> str:
    """Return the query of the reasons why new parts make no row, with the number of parts."""
    longest = str(_MAX_NS)
    return from_file("without_row", requests=REQUESTS, makes_row=MAKES_ROW, longest_ns=longest)


SMALL_TRACE: Final = "trace_id IN (SELECT trace_id FROM join_traces WHERE NOT large)"


def present() -> str:
    """Return the query of the kinds of parts that exist, and of the ids that engines' records name.

    Its one line has the list of kinds, and for each of `IDS` how many records name a request by it.
    """
    return from_file("join_present")


def above() -> str:
    """Return the query of the spans above each part in its trace, up to `_MAX_DEPTH`."""
    return from_file("join_above", small=SMALL_TRACE, most=str(_MAX_DEPTH))


def affected(*, placed: bool = True) -> str:
    """Return the query of the requests whose rows may change.

    These are the new ones, those that share an id with a new part, and those above a new part in
    its trace. Of the other requests in that trace only the outermost one that began last can change:
    the figures of the trace's engines, or the page's beacon, may belong to it.

    Args:
        placed: whether any part may be matched by its place in the trace.
    """
    by = {"small": SMALL_TRACE, "turn": TURN, "makes_row": MAKES_ROW}
    by_place = from_file("affected_by_place", **by) if placed else ""
    return from_file("join_affected", requests=REQUESTS, by_place=f"\n  {by_place}")
