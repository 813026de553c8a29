"""Match, in SQL, each request that may have changed with what belongs to it.

`join_inputs_sql` has found the parts. Engines' spans and records are matched by an id that they
name, or by their place below the request in its trace; gateways' spans and a page's beacon by their
place.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from llmtrace.core.row import TURN
from llmtrace_collector.store import join_inputs_sql
from llmtrace_collector.store.row_columns import TEXTS
from llmtrace_collector.store.sql_builder import from_file, quoted, step

_TOGETHER: Final = (
    "Tuple(queue Nullable(Int64), prefill Nullable(Int64), decode Nullable(Int64),"
    " frontend Nullable(Int64), prompt Nullable(Int64), cached Nullable(Int64),"
    " output Nullable(Int64), preemptions Nullable(Int64), replica String, connector String,"
    " kv_transfer Nullable(Int64))"
)
_PAGE: Final = f"Tuple(arrived DateTime64(6, 'UTC'), span_id String, browser {TEXTS})"
# What `parts_by_place.sql` finds.
_BY_PLACE: Final = (
    ", below.engines AS engines_below, below.gateways AS gateways_below,"
    " below.slices AS slices_below, outermost.single AS single, outermost.a_turn AS a_turn,"
    " outermost.last AS last, outermost.engines_in_trace AS engines_in_trace,"
    " outermost.slices_in_trace AS slices_in_trace,"
    " outermost.gateways_in_trace AS gateways_in_trace, outermost.pages AS pages,"
    " mapContains(row.browser, 'browser_e2e_s') AS has_page"
)
EVERY_KIND: Final = frozenset({"row", "genai", "engine", "plugin", "gateway", "page", "slice"})


def records_of(kinds: Collection[str]) -> list[str]:
    """Return the kinds of `RECORDS` that these kinds of parts yield: slices yield an engine's."""
    return [
        one
        for one in join_inputs_sql.RECORDS
        if one in kinds or (one == "engine" and "slice" in kinds)
    ]


def found(
    kinds: Collection[str] = EVERY_KIND,
    ids: Collection[str] = join_inputs_sql.IDS,
    local: str = "",
) -> str:
    """Return the query of what belongs to each affected request, if it makes a row.

    Args:
        kinds: of the parts that exist; the query leaves out the steps for the others.
        ids: those of `IDS` by which any engine record names an affected request.
        local: the suffix of the tables of one shard; see `join_inputs_sql.traces`.
    """
    keys = {key: field for key, field in join_inputs_sql.ID_OF.items() if field in ids}
    placed, records = bool(join_inputs_sql.PLACED & set(kinds)), records_of(kinds)
    query = step(
        _matched(keys, records, local, placed=placed),
        ("joins", f"operation != '{TURN}'"),
        *((f"{who}_named", _first_of([f"{who}_by_{key}" for key in keys])) for who in records),
        ("parts", "trace_parts" + "".join(
            f" + {who}_with_{key}" for who in records for key in keys)),
    )  # fmt: skip
    if placed:
        query = from_file("choose_by_place", rows=query)
    joined = ["gateway_found", "page_found", "app_ns"] if placed else []
    for who in records:
        query = _seen(query, who, kinds, placed=placed)
        joined += [who, f"{who}_joined"]
    return from_file("join_found", columns="".join(f", {name}" for name in joined), rows=query)


def _matched(keys: Mapping[str, str], records: Sequence[str], local: str, *, placed: bool) -> str:
    """Return the query of affected requests, each with everything that may belong to it."""
    columns = joins = ""
    makes_row = join_inputs_sql.MAKES_ROW
    if placed:
        joins = "\n" + from_file(
            "parts_by_place",
            turn=TURN,
            page=quoted(_PAGE),
            small_trace=join_inputs_sql.SMALL_TRACE,
            makes_row=makes_row,
        )
        columns = _BY_PLACE
    for key, field in keys.items() if records else ():
        for who in records:
            columns += (
                f", if(row.{field} != '' AND {key}.users <= 1, {key}.{who}, []) AS {who}_by_{key},"
                f" length({key}.{who}) AS {who}_with_{key}"
            )
        joins += "\n" + from_file("records_by_id", key=key, field=field, makes_row=makes_row)
    texts = {"columns": columns, "joins": joins, "local": local, "makes_row": makes_row}
    return from_file("match_requests", **texts)


def _first_of(lists: Sequence[str]) -> str:
    """Return the expression of the first list of records that is not empty."""
    if not lists:
        return f"CAST([], 'Array({join_inputs_sql.FIGURE})')"
    first, *others = lists
    return f"if(empty({first}), {_first_of(others)}, {first})" if others else first


def _seen(query: str, who: str, kinds: Collection[str], *, placed: bool) -> str:
    """Add the records of engines, or of plugins, that belong to each request."""
    known = f"{who}_named"
    if who == "engine" and placed:
        known = "if(empty(engine_named), engine_traced, engine_named)"
    query = step(query, (f"{who}_all", known))
    if who == "engine" and "slice" in kinds:
        query = _with_slices(query)
    sure = f"joins AND (attempts <= 1 OR length({who}_all) <= 1)"
    query = step(query, (f"{who}_found", f"if({sure}, {_sorted(f'{who}_all')}, [])"))
    return from_file("together", rows=query, who=who, together=_TOGETHER)


def _with_slices(query: str) -> str:
    """Merge slices into the engine's record of the whole request."""
    names = [one.split()[0] for one in join_inputs_sql.FIGURE.removeprefix("Tuple(").split(", ")]
    first = {
        "queue": "ifNull(engine_all[1].queue, slice_queue)",
        "prefill": "ifNull(engine_all[1].prefill, slice_prefill)",
    }
    record = ", ".join(first.get(name, f"engine_all[1].{name}") for name in names)
    return from_file("add_slices", rows=query, record=record, figure=join_inputs_sql.FIGURE)


def _sorted(found: str) -> str:
    """Sort sequences by the time of their first token, then of their last."""
    return (
        f"arraySort(x -> (ifNull(x.queue + x.prefill, {1 << 62}),"
        f" ifNull(x.queue + x.prefill + x.decode, {1 << 62}), x.span_id), {found})"
    )
