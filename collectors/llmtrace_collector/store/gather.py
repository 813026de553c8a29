"""Gather, in SQL, what a run of the join needs: which requests may have changed, and their parts.

A run costs by what arrived since the one before it. Of every fresh part the keys are looked up in
`part_keys` (its trace, and the ids it names), so that all stored parts of its traces are found,
whatever their age. Each step fills one table from those before it: temporary ones where a process
runs the join, refreshed views where the server does (`printed`). The text is the same.

    join_fresh      parts that arrived since the last run
    join_traces     the traces they belong to, by trace or by an id; which of them are too large
    join_around     all parts of those traces
    join_above      each part with the parts it lies below in its trace
    join_affected   the requests that may come out different now
    join_named      parts of other traces that name an id of these requests
    join_found      each of these requests with what belongs to it
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from llmtrace.core.row import TURN
from llmtrace_collector.store.row_columns import TEXTS
from llmtrace_collector.store.sql_builder import quoted, replace, step

# Parts of one trace up to which they are distinguished by their place in it; an agent's long
# session has some thousand. Above it, parts are joined by the ids they name alone.
MAX_IN_TRACE: Final = 10_000
# How far below its request a span may lie: gateways of gateways, and their calls.
_MAX_DEPTH: Final = 8
# A request takes at most a day: a longer one is a clock's or a sender's mistake.
MAX_S: Final = 86_400

_FIGURE: Final = (
    "Tuple(span_id String, queue Nullable(Int64), prefill Nullable(Int64), decode Nullable(Int64),"
    " frontend Nullable(Int64), prompt Nullable(Int64), cached Nullable(Int64),"
    " output Nullable(Int64), preemptions Nullable(Int64), replica String, connector String,"
    " answered String, engine String)"
)
_TOGETHER: Final = (
    "Tuple(queue Nullable(Int64), prefill Nullable(Int64), decode Nullable(Int64),"
    " frontend Nullable(Int64), prompt Nullable(Int64), cached Nullable(Int64),"
    " output Nullable(Int64), preemptions Nullable(Int64), replica String, connector String,"
    " kv_transfer Nullable(Int64))"
)
_SLICE: Final = "Tuple(queue Nullable(Int64), prefill Nullable(Int64), rank String)"
_GATEWAY: Final = (
    "Tuple(start DateTime64(9, 'UTC'), span_id String, parent_span_id String, service String,"
    " own Nullable(Int64), gateway String, cache_hit Nullable(Bool))"
)
_PAGE: Final = f"Tuple(arrived DateTime64(6, 'UTC'), span_id String, browser {TEXTS})"
EVERY_KIND: Final = frozenset({"row", "genai", "engine", "plugin", "gateway", "page", "slice"})
# Of these a part may belong to a request by its place in the trace; these name ids.
PLACED: Final = frozenset({"engine", "gateway", "page", "slice"})
RECORDS: Final = ("engine", "plugin")
REQUESTS: Final = "kind IN ('row', 'genai')"
_NS: Final = 1_000_000_000


def records_of(kinds: Collection[str]) -> list[str]:
    """Return which of `RECORDS` parts of these kinds can make: slices make an engine's."""
    return [one for one in RECORDS if one in kinds or (one == "engine" and "slice" in kinds)]


def trace_key(column: str = "trace_id") -> str:
    """Return the expression of the key by which all parts of a trace are found."""
    return f"cityHash64('trace', {column})"


def id_keys() -> str:
    """Return the expression of the keys of the ids that a part names."""
    return (
        "arrayConcat(if(response_id = '', [], [cityHash64('response', response_id)]),"
        " if(request_id = '', [], [cityHash64('request', request_id)]))"
    )


def keys_select(parts: str) -> str:
    """Return the query that makes lines of `part_keys` of lines of `request_parts`."""
    return f"""\
SELECT arrayJoin(arrayConcat(if(kind = 'plugin', [], [{trace_key()}]), {id_keys()})) AS key,
    arrived, trace_id
FROM {parts}"""


def fresh(since: str, until: str) -> str:
    """Return the query of the parts that arrived after one moment, and not after another."""
    return f"""\
SELECT kind, arrived, trace_id, span_id, response_id, request_id, e2e_ns, {id_keys()} AS keys
FROM request_parts WHERE arrived > {since} AND arrived <= {until}"""


def traces() -> str:
    """Return the query of the traces that fresh parts belong to.

    A trace of a plugin's record is of that record alone, and is not in `part_keys`.
    """
    return f"""\
SELECT trace_id, sum(n) > {MAX_IN_TRACE} AS large FROM (
  SELECT trace_id, count() AS n FROM part_keys WHERE key IN (
    SELECT {trace_key()} FROM join_fresh WHERE kind != 'plugin'
    UNION DISTINCT
    SELECT {trace_key()} FROM part_keys WHERE key IN (SELECT arrayJoin(keys) FROM join_fresh)
  ) AND key = {trace_key()} GROUP BY trace_id
) GROUP BY trace_id"""


def around(longest_s: int = MAX_S) -> str:
    """Return the query of all parts of those traces, each once, as it came last.

    Of a trace that is too large only what is fresh, and what names an id that a fresh part names.
    """
    return f"""\
{
        _parts(
            "key IN (SELECT " + trace_key() + " FROM join_traces WHERE NOT large)",
            "trace_id IN (SELECT trace_id FROM join_traces WHERE NOT large)",
            longest_s,
        )
    }"""


def around_large(longest_s: int = MAX_S) -> str:
    """Return the query of what is looked at of the traces that are too large."""
    large = "trace_id IN (SELECT trace_id FROM join_traces WHERE large)"
    of_fresh = " OR ".join(
        f"{name} IN (SELECT {name} FROM join_fresh WHERE {name} != '')"
        for name in ("response_id", "request_id")
    )
    named = _parts(
        "key IN (SELECT arrayJoin(keys) FROM join_fresh)", f"{large} AND ({of_fresh})", longest_s
    )
    arrived = (
        f"{large} AND (arrived, trace_id) IN (SELECT arrived, trace_id FROM join_fresh)"
        " AND (trace_id, span_id) IN (SELECT trace_id, span_id FROM join_fresh)"
    )
    return f"""\
SELECT * FROM (
{named}
UNION ALL
SELECT * FROM request_parts WHERE {arrived} AND {_believable(longest_s)}
) ORDER BY arrived DESC LIMIT 1 BY trace_id, span_id, kind"""


def named(longest_s: int = MAX_S) -> str:
    """Return the query of parts elsewhere that name an id of an affected request.

    Records of engines that came before the request was affected, and requests of the same id.
    """
    keys = f"SELECT arrayJoin({id_keys()}) FROM join_affected"
    ids = " OR ".join(
        f"{name} IN (SELECT {name} FROM join_affected WHERE {name} != '')"
        for name in ("response_id", "request_id")
    )
    elsewhere = "(trace_id, span_id) NOT IN (SELECT trace_id, span_id FROM join_around)"
    return _parts(f"key IN ({keys})", f"({ids}) AND {elsewhere}", longest_s)


def _parts(keyed: str, where: str, longest_s: int) -> str:
    return f"""\
SELECT * FROM request_parts
WHERE (arrived, trace_id) IN (SELECT arrived, trace_id FROM part_keys WHERE {keyed})
  AND {where} AND {_believable(longest_s)}
ORDER BY arrived DESC LIMIT 1 BY trace_id, span_id, kind"""


def _believable(longest_s: int) -> str:
    return f"(NOT {REQUESTS} OR e2e_ns BETWEEN 0 AND {longest_s * _NS})"


def without_row(longest_s: int = MAX_S) -> str:
    """Return the expression of the reason why a fresh part makes no row; '' = it makes one."""
    return (
        f"multiIf(NOT {REQUESTS}, '', e2e_ns IS NULL, 'unreadable', e2e_ns < 0, 'negative',"
        f" e2e_ns > {longest_s * _NS}, 'too_long', '')"
    )


_SMALL: Final = "trace_id IN (SELECT trace_id FROM join_traces WHERE NOT large)"


def above() -> str:
    """Return the query of the spans above each part in its trace, up to the eighth."""
    return f"""\
WITH RECURSIVE above AS (
  SELECT trace_id, span_id, parent_span_id AS ancestor, 1 AS depth FROM join_around
  WHERE kind != 'plugin' AND parent_span_id != '' AND {_SMALL}
  UNION ALL
  SELECT above.trace_id AS trace_id, above.span_id AS span_id, link.parent_span_id AS ancestor,
    above.depth + 1 AS depth
  FROM above INNER JOIN join_around AS link
    ON link.trace_id = above.trace_id AND link.span_id = above.ancestor
  WHERE link.kind != 'plugin' AND link.parent_span_id != '' AND above.depth < {_MAX_DEPTH}
) SELECT DISTINCT trace_id, span_id, ancestor FROM above"""


def affected(*, placed: bool = True) -> str:
    """Return the query of the requests that may come out different now.

    Fresh ones; those that share an id with a fresh part; those that a fresh part lies below. Of the
    others in its trace only the outermost one that began last can change: the only one, perhaps, to
    which all that the trace's engines reported belonged, or the one that the page waited for.

    Args:
        placed: whether a part can belong to a request by its place in the trace at all.
    """
    is_fresh = "(trace_id, span_id) IN (SELECT trace_id, span_id FROM join_fresh)"
    conditions = [
        is_fresh,
        "response_id IN (SELECT response_id FROM join_fresh WHERE response_id != '')",
        "request_id IN (SELECT request_id FROM join_fresh WHERE request_id != '')",
    ]
    if placed:
        conditions.append(
            "(trace_id, span_id) IN (SELECT trace_id, ancestor FROM join_above WHERE (trace_id,"
            " span_id) IN (SELECT trace_id, span_id FROM join_fresh))"
        )
        for among in (REQUESTS, f"{REQUESTS} AND NOT {is_fresh}"):
            inner = f"(SELECT trace_id, span_id FROM join_around WHERE {among})"
            conditions.append(
                "(trace_id, span_id) IN (SELECT trace_id, argMax(span_id, (start, span_id))"
                f" FROM join_around WHERE {REQUESTS} AND NOT {is_fresh} AND operation != '{TURN}'"
                f" AND {_SMALL} AND (trace_id, parent_span_id) NOT IN {inner} AND trace_id IN"
                " (SELECT trace_id FROM join_fresh) GROUP BY trace_id)"
            )
    either = "\n  OR ".join(conditions)
    return f"""\
SELECT trace_id, span_id, response_id, request_id FROM join_around
WHERE {REQUESTS} AND ({either})"""


def _figure() -> str:
    """One record's figures, as a tuple. Of an engine's own span only its durations are taken."""
    tokens = ", ".join(
        f"if(kind = 'plugin', {name}, NULL)"
        for name in ("prompt_tokens", "cached_tokens", "output_tokens")
    )
    return (
        "CAST(tuple(span_id, reported_queue_ns, reported_prefill_ns, reported_decode_ns,"
        f" first_chunk_frontend_ns, {tokens}, if(kind = 'plugin', preemptions, NULL),"
        " if(kind = 'plugin', toString(replica), ''),"
        " if(kind = 'plugin', toString(kv_connector), ''), response_id, multiIf(kind = 'plugin',"
        f" toString(replica), parent_span_id = '', '', concat(toString(service), ' ', parent_span_id))),"
        f" '{_FIGURE}')"
    )


def _slice() -> str:
    return f"CAST(tuple(reported_queue_ns, reported_prefill_ns, parent_span_id), '{_SLICE}')"


def _gateway() -> str:
    return (
        "CAST(tuple(start, span_id, parent_span_id, toString(service), reported_gateway_ns,"
        f" toString(gateway), cache_hit), '{quoted(_GATEWAY)}')"
    )


def found(kinds: Collection[str] = EVERY_KIND) -> str:
    """Return the query of what belongs to each affected request, if it makes a row.

    Args:
        kinds: of parts that there are at all; the query leaves out what the others would need.
    """
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
    for key, field in (("answer", "response_id"), ("question", "request_id")) if records else ():
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
  FROM request_keys WHERE (trace_id, span_id) IN (SELECT trace_id, span_id FROM join_affected)
  GROUP BY trace_id, span_id
) AS made ON made.trace_id = row.trace_id AND made.span_id = row.span_id{joins}
WHERE row.{REQUESTS} AND ({twice} (SELECT trace_id, service FROM join_around WHERE kind = 'row'))"""
    query = step(
        query,
        ("joins", f"operation != '{TURN}'"),
        *((f"{who}_named", f"if(empty({who}_by_answer), {who}_by_question, {who}_by_answer)")
          for who in records),
        ("parts", "trace_parts" + "".join(
            f" + {who}_with_answer + {who}_with_question" for who in records)),
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

    names = [one.split()[0] for one in _FIGURE.removeprefix("Tuple(").split(", ")]
    first = {
        "queue": "ifNull(engine_all[1].queue, slice_queue)",
        "prefill": "ifNull(engine_all[1].prefill, slice_prefill)",
    }
    figure = ", ".join(first.get(name, f"engine_all[1].{name}") for name in names)
    one = f"[CAST(tuple({figure}), '{_FIGURE}')]"
    query = step(query, ("slice_queue", slowest("queue")), ("slice_prefill", slowest("prefill")))
    return replace(
        query, ("engine_all", f"if(empty(slices) OR length(engine_all) > 1, engine_all, {one})")
    )


def _below() -> str:
    """Engines' and gateways' spans below each affected request."""
    return f"""\
  SELECT above.trace_id AS trace_id, above.ancestor AS span_id,
    groupArrayIf(part.figure, part.kind = 'engine') AS engines,
    groupArrayIf(part.a_slice, part.kind = 'slice') AS slices,
    arraySort(groupArrayIf(part.gateway_part, part.kind = 'gateway')) AS gateways
  FROM join_above AS above INNER JOIN (
    SELECT trace_id, span_id, kind, {_figure()} AS figure, {_slice()} AS a_slice,
      {_gateway()} AS gateway_part
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
      groupArrayIf({_figure()}, kind = 'engine') AS engines,
      groupArrayIf({_slice()}, kind = 'slice') AS slices,
      arraySort(groupArrayIf({_gateway()}, kind = 'gateway')) AS gateways,
      arraySort(groupArrayIf(CAST(tuple(arrived, span_id, browser), '{quoted(_PAGE)}'),
        kind = 'page')) AS pages
    FROM join_around WHERE kind != 'plugin' AND {_SMALL} GROUP BY trace_id
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
    read = f"SELECT kind, trace_id, span_id, {field} AS id, {_figure()} AS figure"
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
