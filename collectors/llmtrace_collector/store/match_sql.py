"""Match, in SQL, each request that may have changed with what belongs to it.

`gather` has found the parts. Engines' spans and records belong to a request by an id that they name,
or by their place below it in its trace; gateways' spans and a page's beacon by their place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from llmtrace.core.row import TURN
from llmtrace_collector.store.gather import (
    FIGURE,
    ID_OF,
    IDS,
    PLACED,
    RECORDS,
    REQUESTS,
    SMALL_TRACE,
)
from llmtrace_collector.store.row_columns import TEXTS
from llmtrace_collector.store.sql_builder import quoted, replace, step

_TOGETHER: Final = (
    "Tuple(queue Nullable(Int64), prefill Nullable(Int64), decode Nullable(Int64),"
    " frontend Nullable(Int64), prompt Nullable(Int64), cached Nullable(Int64),"
    " output Nullable(Int64), preemptions Nullable(Int64), replica String, connector String,"
    " kv_transfer Nullable(Int64))"
)
_PAGE: Final = f"Tuple(arrived DateTime64(6, 'UTC'), span_id String, browser {TEXTS})"
EVERY_KIND: Final = frozenset({"row", "genai", "engine", "plugin", "gateway", "page", "slice"})


def records_of(kinds: Collection[str]) -> list[str]:
    """Return which of `RECORDS` parts of these kinds can make: slices make an engine's."""
    return [one for one in RECORDS if one in kinds or (one == "engine" and "slice" in kinds)]


def found(kinds: Collection[str] = EVERY_KIND, ids: Collection[str] = IDS, local: str = "") -> str:
    """Return the query of what belongs to each affected request, if it makes a row.

    Args:
        kinds: of parts that there are at all; the query leaves out what the others would need.
        ids: of `IDS`, by which any record of an engine names an affected request.
        local: the suffix of the tables of one shard; see `gather.traces`.
    """
    keys = {key: field for key, field in ID_OF.items() if field in ids}
    placed, records = bool(PLACED & set(kinds)), records_of(kinds)
    of_row = ", ".join(
        f"row.{name} AS {name}"
        for name in ("trace_id", "span_id", "parent_span_id", "start", "service", "operation",
                     "attempts", "response_id")
    )  # fmt: skip
    joins = ""
    if placed:
        joins = f"""
LEFT JOIN (
{_below()}
) AS below ON below.trace_id = row.trace_id AND below.span_id = row.span_id
LEFT JOIN (
{_outermost()}
) AS outermost ON outermost.trace_id = row.trace_id AND outermost.span_id = row.span_id"""
        of_row += (
            ", below.engines AS engines_below, below.gateways AS gateways_below,"
            " below.slices AS slices_below,"
            + ", ".join(f" outermost.{name} AS {name}" for name in (
                "single", "a_turn", "last", "engines_in_trace", "slices_in_trace",
                "gateways_in_trace", "pages"))
            + ", mapContains(row.browser, 'browser_e2e_s') AS has_page"
        )  # fmt: skip
    for key, field in keys.items() if records else ():
        for who in records:
            of_row += (
                f", if(row.{field} != '' AND {key}.users <= 1, {key}.{who}, []) AS {who}_by_{key},"
                f" length({key}.{who}) AS {who}_with_{key}"
            )
        joins += f"\nLEFT JOIN (\n{_records(field)}\n) AS {key} ON {key}.id = row.{field}"
    twice = "row.kind = 'row' OR (row.trace_id, row.service) NOT IN"
    query = f"""\
SELECT {of_row}, sizes.parts AS trace_parts, made.start AS made_start, made.parts AS made_parts
FROM join_around AS row
INNER JOIN join_affected AS affected
  ON affected.trace_id = row.trace_id AND affected.span_id = row.span_id
LEFT JOIN (
  SELECT trace_id, count() AS parts FROM join_around WHERE kind != 'plugin' GROUP BY trace_id
) AS sizes ON sizes.trace_id = row.trace_id
LEFT JOIN (
  SELECT trace_id, span_id, argMin(start, version_ns) AS start, max(parts) AS parts
  FROM request_keys{local}
  WHERE (trace_id, span_id) GLOBAL IN (SELECT trace_id, span_id FROM join_affected)
  GROUP BY trace_id, span_id
) AS made ON made.trace_id = row.trace_id AND made.span_id = row.span_id{joins}
WHERE row.{REQUESTS} AND ({twice} (SELECT trace_id, service FROM join_around WHERE kind = 'row'))"""
    query = step(
        query,
        ("joins", f"operation != '{TURN}'"),
        *((f"{who}_named", _first_of([f"{who}_by_{key}" for key in keys])) for who in records),
        ("parts", "trace_parts" + "".join(
            f" + {who}_with_{key}" for who in records for key in keys)),
    )  # fmt: skip
    if placed:
        query = _placed(query)
    joined = ["gateway_found", "page_found", "app_ns"] if placed else []
    for who in records:
        sure = "joins AND (attempts <= 1 OR length({0}) <= 1)"
        known = f"{who}_named"
        if who == "engine" and placed:
            known = "if(empty(engine_named), engine_traced, engine_named)"
        query = step(query, (f"{who}_all", known))
        if who == "engine" and "slice" in kinds:
            query = _with_slices(query)
        query = step(
            query,
            (f"{who}_found", f"if({sure.format(f'{who}_all')}, {_sorted(f'{who}_all')}, [])"),
        )
        query = _combined(query, who)
        joined += [who, f"{who}_joined"]
    return f"""\
SELECT {
        ", ".join(
            (
                "trace_id",
                "span_id",
                "if(made_parts > 0, made_start, start) AS made_start",
                "toUInt32(parts) AS parts",
                *joined,
            )
        )
    }
FROM (
{query}
) WHERE parts >= made_parts"""


def _first_of(lists: Sequence[str]) -> str:
    """Return the expression of the first list of records that is not empty."""
    if not lists:
        return f"CAST([], 'Array({FIGURE})')"
    first, *others = lists
    return f"if(empty({first}), {_first_of(others)}, {first})" if others else first


def _combined(query: str, who: str) -> str:
    """Work out what a request saw of all its records: see `engine_join.together`."""
    found, one = f"{who}_found", f"{who}_found[1]"
    query = step(
        query,
        ("known", f"arrayAll(x -> isNotNull(x.queue + x.prefill + x.decode), {found})"),
        ("prefills", f"arrayFilter(x -> ifNull(x.decode, -1) = 0, {found})"),
        ("decodes", f"arrayFilter(x -> ifNull(x.decode, -1) != 0, {found})"),
        ("ended", f"arrayMax(arrayMap(x -> ifNull(x.queue + x.prefill + x.decode, 0), {found}))"),
        ("engines_joined", f"arrayDistinct(arrayMap(x -> x.engine, {found}))"),
    )

    def summed(name: str) -> str:
        return (
            f"if(arrayExists(x -> x.{name} IS NULL, {found}), NULL,"
            f" arraySum(arrayMap(x -> ifNull(x.{name}, 0), {found})))"
        )

    def of(record: str, **other: str) -> str:
        names = ("queue", "prefill", "decode", "frontend", "prompt", "cached", "output",
                 "preemptions", "replica", "connector")  # fmt: skip
        figures = ", ".join(other.get(name, f"{record}.{name}") for name in names)
        figures += f", {other.get('kv_transfer', 'NULL')}"
        return f"CAST(tuple({figures}), '{_TOGETHER}')"

    prefill, decode = "prefills[1]", "decodes[1]"
    legs = of(
        prefill, decode=f"{decode}.decode", output=f"{decode}.output",
        preemptions=summed("preemptions"), replica=f"{decode}.replica",
        kv_transfer=f"{decode}.queue",
    )  # fmt: skip
    sequences = of(
        one, decode=f"ended - ({one}.queue + {one}.prefill)", prompt="NULL", cached="NULL",
        output=summed("output"), preemptions=summed("preemptions"),
    )  # fmt: skip
    none = f"CAST(tuple({'NULL, ' * 8}'', '', NULL), '{_TOGETHER}')"
    return step(
        query,
        (who, f"multiIf(length({found}) = 1, {of(one)}, NOT known OR empty({found}), {none},"
              f" length(prefills) = 1 AND length(decodes) = 1 AND ({prefill}.replica = '' OR"
              f" {prefill}.replica != {decode}.replica), {legs},"
              f" length(engines_joined) = 1 AND engines_joined[1] != '', {sequences}, {none})"),
        (f"{who}_joined", f"notEmpty({found})"),
    ).replace("SELECT *,", "SELECT * EXCEPT (known, prefills, decodes, ended, engines_joined),", 1)  # fmt: skip


def _with_slices(query: str) -> str:
    """Put slices into the one record of the whole: see `engines.join.together`."""

    def slowest(stage: str) -> str:
        of_rank = (
            f"arrayMap(r -> arraySum(arrayMap(x -> if(x.rank = r, ifNull(x.{stage}, 0), 0),"
            " slices)), arrayDistinct(arrayMap(x -> x.rank, slices)))"
        )
        known = f"arrayExists(x -> x.{stage} IS NOT NULL, slices)"
        return f"if({known}, arrayMax({of_rank}), NULL)"

    names = [one.split()[0] for one in FIGURE.removeprefix("Tuple(").split(", ")]
    first = {
        "queue": "ifNull(engine_all[1].queue, slice_queue)",
        "prefill": "ifNull(engine_all[1].prefill, slice_prefill)",
    }
    figure = ", ".join(first.get(name, f"engine_all[1].{name}") for name in names)
    one = f"[CAST(tuple({figure}), '{FIGURE}')]"
    query = step(query, ("slice_queue", slowest("queue")), ("slice_prefill", slowest("prefill")))
    return replace(
        query, ("engine_all", f"if(empty(slices) OR length(engine_all) > 1, engine_all, {one})")
    )


def _below() -> str:
    """Engines' and gateways' spans below each affected request."""
    return """\
  SELECT above.trace_id AS trace_id, above.ancestor AS span_id,
    groupArrayIf(part.figure, part.kind = 'engine') AS engines,
    groupArrayIf(part.a_slice, part.kind = 'slice') AS slices,
    arraySort(groupArrayIf(part.gateway_part, part.kind = 'gateway')) AS gateways
  FROM join_above AS above INNER JOIN (
    SELECT trace_id, span_id, kind, figure, a_slice, gateway_part
    FROM join_around WHERE kind IN ('engine', 'slice', 'gateway')
  ) AS part ON part.trace_id = above.trace_id AND part.span_id = above.span_id
  WHERE (above.trace_id, above.ancestor) IN (SELECT trace_id, span_id FROM join_affected)
  GROUP BY trace_id, span_id"""


def _outermost() -> str:
    """What a trace gives to its outermost request, the last one if there are several."""
    ends = "toUnixTimestamp64Nano(start) + ifNull(e2e_ns, 0)"
    outer = (
        f"{REQUESTS} AND operation != '{TURN}' AND (trace_id, parent_span_id) NOT IN"
        f" (SELECT trace_id, span_id FROM join_around WHERE {REQUESTS})"
    )
    return f"""\
  SELECT trace_id, outer[-1].2 AS span_id, length(outer) = 1 AND NOT turns AS single,
    turns AS a_turn, if(single, engines, []) AS engines_in_trace, slices AS slices_in_trace,
    gateways AS gateways_in_trace,
    pages, NOT arrayExists(x -> x.2 != outer[-1].2 AND x.3 > toUnixTimestamp64Nano(outer[-1].1),
      outer) AS last
  FROM (
    SELECT trace_id, arraySort(groupArrayIf((start, span_id, {ends}), {outer})) AS outer,
      countIf(operation = '{TURN}' AND {REQUESTS}) > 0 AS turns,
      groupArrayIf(figure, kind = 'engine') AS engines,
      groupArrayIf(a_slice, kind = 'slice') AS slices,
      arraySort(groupArrayIf(gateway_part, kind = 'gateway')) AS gateways,
      arraySort(groupArrayIf(CAST(tuple(arrived, span_id, browser), '{quoted(_PAGE)}'),
        kind = 'page')) AS pages
    FROM join_around WHERE kind != 'plugin' AND {SMALL_TRACE} GROUP BY trace_id
  ) WHERE notEmpty(outer)"""


def _placed(query: str) -> str:
    """Choose among what lies below a request, and what else is in the trace of an only one."""
    query = step(
        query,
        ("engine_in_trace", "if(empty(engines_below) AND single, engines_in_trace, engines_below)"),
        ("slices", "if(empty(slices_below) AND single, slices_in_trace, slices_below)"),
        # Those above are this application's own.
        ("gateways_between", "if(empty(gateways_below) AND single, arrayFilter(x -> x.service !="
                             " service AND x.span_id != parent_span_id, gateways_in_trace),"
                             " gateways_below)"),
        ("gateways_above", "arrayFilter(x -> x.service = service AND NOT has(arrayMap(y ->"
                           " y.span_id, gateways_below), x.span_id), gateways_in_trace)"),
    )  # fmt: skip
    # Several records of one request go together; several requests do not.
    return step(
        query,
        ("gateway_found", "if(joins, gateways_between, [])"),
        ("page_found", "if(joins AND NOT has_page AND last AND NOT a_turn,"
                       " arraySlice(pages, 1, 1), [])"),
        ("app_ns", "if(notEmpty(gateways_above), gateways_above[1].own, NULL)"),
        ("engine_traced", "multiIf(length(engine_in_trace) <= 1, engine_in_trace,"
                          " response_id != '' AND arrayExists(x -> x.answered = response_id,"
                          " engine_in_trace), arrayFilter(x -> x.answered = response_id,"
                          " engine_in_trace), engine_in_trace[1].answered != '' AND"
                          " length(arrayDistinct(arrayMap(x -> x.answered, engine_in_trace))) = 1,"
                          " engine_in_trace, [])"),
    )  # fmt: skip


def _records(field: str) -> str:
    """Records of engines by an id, and how many requests share it: of those none gets any."""
    read = f"SELECT kind, trace_id, span_id, {field} AS id, figure"
    of = f"{field} != '' AND {field} IN (SELECT {field} FROM join_affected)"
    return f"""\
  SELECT id, uniqExactIf((trace_id, span_id), {REQUESTS}) AS users,
    groupArrayIf(figure, kind = 'plugin') AS plugin, groupArrayIf(figure, kind = 'engine') AS engine
  FROM (
    {read} FROM join_around WHERE {of}
    UNION ALL
    {read} FROM join_named WHERE {of}
  ) GROUP BY id"""


def _sorted(found: str) -> str:
    """Sequences by when their first token came, then their last."""
    return (
        f"arraySort(x -> (ifNull(x.queue + x.prefill, {1 << 62}),"
        f" ifNull(x.queue + x.prefill + x.decode, {1 << 62}), x.span_id), {found})"
    )
