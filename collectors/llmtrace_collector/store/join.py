"""How do the parts of one request become one row, in whatever order they arrive?

In SQL, over all requests of which a part has arrived since the last run. A row is worked out from
all its parts each time, so that duplicates change nothing and a late part changes what it should;
of the versions of a row the newest counts. What belongs together:

    engine span, plugin record   the id in the answer, else the id that was sent (`engine_join`)
    engine span                  else below the request in its trace
    gateway span                 below the request in its trace
    page's beacon                the same trace, over the outermost request (`browser.join`)

The pure functions of `llmtrace` say what comes of it, and tests hold the SQL against them.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from llmtrace.rendering import IN_JSON, name_of
from llmtrace.rows import TURN
from llmtrace.stages import STAGES
from llmtrace_collector.store.engine import Engine
from llmtrace_collector.store.fields import FIELDS, SOURCE, TEXTS
from llmtrace_collector.store.parts import KIND
from llmtrace_collector.store.protocol import JoinReport
from llmtrace_collector.store.split_sql import split_sql
from llmtrace_collector.store.sql import keep, quoted, replace, step

# A part that comes later than this after the others of its request is joined in the next round
# over all of the day (`_FAR_S`), which comes once a minute.
_NEAR_S: Final = 600
_FAR_S: Final = 6 * 3600
_FAR_EVERY_S: Final = 60
_NS: Final = 1_000_000_000

# What one trace may hold before its parts are no longer told apart: it is no request's then.
_MOST_IN_TRACE: Final = 256
# How far below its request a span may lie: gateways of gateways, and their calls.
_DEEPEST: Final = 8

_FIGURE_TYPE: Final = (
    "Tuple(span_id String, queue Nullable(Int64), prefill Nullable(Int64), decode Nullable(Int64),"
    " frontend Nullable(Int64), prompt Nullable(Int64), cached Nullable(Int64),"
    " output Nullable(Int64), preemptions Nullable(Int64), replica String, answered String)"
)
_REQUESTS: Final = "kind IN ('row', 'genai')"
_RANKED: Final = (
    "engine_inband", "engine_span", "engine_plugin", "server_timing", "client", "kernel",
    "client_bound", "engine_window",
)  # fmt: skip


# What the steps look at or change. The rest of a row rides along in one tuple.
_LOOKED_AT: Final = tuple(
    field.name
    for field in FIELDS
    if field.name.endswith("_ns")
    or field.name.endswith("_source")
    or field.name
    in {
        "outcome", "error_type", "replica", "gateway", "cache_hit", "prompt_tokens",
        "cached_tokens", "output_tokens", "preemptions", "browser", "attempts", "response_id",
        "request_id", "operation", "stream", "unwatched", "marked_before", "marked_after",
    }
)  # fmt: skip
_RIDING: Final = tuple(field.name for field in FIELDS if field.name not in _LOOKED_AT)
_IDENTITY: Final = ("trace_id", "span_id", "parent_span_id", "start", "service", "kind")
_ALONG: Final = (*_IDENTITY, "rest", *_LOOKED_AT)
COLUMNS: Final = (
    "start", "trace_id", "span_id", "parent_span_id", "service", "told_by", *_LOOKED_AT, *_RIDING,
    *(f"{stage}_{what}" for stage in STAGES for what in ("ns", "source")),
    "unattributed_ns", "inconsistent", "ttft_arrival_ns",
)  # fmt: skip
_NAMED: Final = frozenset({"engine", "plugin"})  # joined by the ids they name
EVERY_KIND: Final = frozenset({"row", "genai", "engine", "plugin", "gateway", "page"})


def _figure() -> str:
    """One sequence's figures, as a tuple. Of an engine's own span only its durations are taken."""
    tokens = ", ".join(
        f"if(kind = 'plugin', {name}, NULL)"
        for name in ("prompt_tokens", "cached_tokens", "output_tokens")
    )
    return (
        "CAST(tuple(span_id, reported_queue_ns, reported_prefill_ns, reported_decode_ns,"
        f" first_chunk_frontend_ns, {tokens}, if(kind = 'plugin', preemptions, NULL),"
        f" if(kind = 'plugin', toString(replica), ''), response_id), '{_FIGURE_TYPE}')"
    )


@dataclass(frozen=True, slots=True)
class Times:
    """Which parts a run looks at; each an expression of a DateTime64.

    Attributes:
        since: parts that arrived after that,
        until: and not after that, make it look at their requests;
        window: the other parts of those requests arrived after that.
    """

    since: str
    until: str
    window: str

    @property
    def within(self) -> str:
        """The condition on every part it looks at."""
        return f"arrived > {self.window} AND arrived <= {self.until}"


def affected(times: Times, kinds: Collection[str] = EVERY_KIND) -> str:
    """Return the query of the traces whose rows may be others now.

    A part of the trace has come, or a part of another trace with an id of its requests.
    """
    fresh = f"arrived > {times.since} AND arrived <= {times.until}"
    query = f"SELECT DISTINCT trace_id FROM request_parts WHERE {fresh} AND kind != 'plugin'"
    if not _NAMED & set(kinds):
        return query
    ids = "(SELECT {0} FROM request_parts WHERE " + fresh + " AND {0} != '')"
    return f"""\
{query}
UNION DISTINCT
SELECT trace_id FROM request_parts WHERE {times.within} AND {_REQUESTS}
  AND (response_id IN {ids.format("response_id")} OR request_id IN {ids.format("request_id")})"""


def select(times: Times, traces: str, kinds: Collection[str] = EVERY_KIND) -> str:
    """Return the query that makes the rows of all requests of some traces.

    Args:
        times: when their parts arrived.
        traces: the query of their ids.
        kinds: of parts that there are at all; the query leaves out what the others would need.
    """
    within, named = times.within, bool(_NAMED & set(kinds))
    here = f"{within} AND trace_id IN (\n{traces}\n)"
    looked_at = ", ".join(_LOOKED_AT)
    rows = f"""\
SELECT {", ".join(_IDENTITY)}, tuple({", ".join(_RIDING)}) AS rest, {looked_at}
FROM request_parts WHERE {here} AND {_REQUESTS}
LIMIT 1 BY trace_id, span_id"""
    extra: tuple[str, ...] = ()
    if set(kinds) - {"row"}:
        rows = _linked(rows, here, within, named=named)
        extra = ("engine_found", "plugin_found", "gateway_found", "page_found", "gateways_above")
        rows = keep(rows, (*_ALONG, *extra))
    if "engine" in kinds:
        rows = keep(_with_figures(rows, "engine", "engine_span"), (*_ALONG, *extra))
    if "plugin" in kinds:
        rows = keep(_with_figures(rows, "plugin", "engine_plugin"), (*_ALONG, *extra))
    if "gateway" in kinds:
        rows = _with_gateways(rows)
    if "page" in kinds:
        rows = keep(_with_page(rows), (*_ALONG, *extra))
    told_by = "[toString(kind)]"
    if extra:
        told_by = (
            "arrayConcat([toString(kind)], if(notEmpty(engine_found), ['engine'], []),"
            " if(notEmpty(plugin_found), ['plugin'], []),"
            " if(notEmpty(gateway_found), ['gateway'], []),"
            " if(notEmpty(page_found) AND mapContains(browser, 'browser_app_e2e_s'), ['page'], []))"
        )
    rows = step(rows, ("told_by", f"CAST({told_by}, '{quoted(f'Array({KIND})')}')"))
    rows = split_sql(keep(rows, (*_ALONG, "told_by")))
    riding = ", ".join(f"rest.{number} AS {name}" for number, name in enumerate(_RIDING, 1))
    stages = ", ".join(f"{stage}_ns, {stage}_source" for stage in STAGES)
    return (
        f"SELECT start, trace_id, span_id, parent_span_id, service, told_by, {looked_at}, {riding},"
        f" {stages}, unattributed_ns, inconsistent, ttft_arrival_ns\nFROM (\n{rows}\n)"
    )


def _linked(rows: str, here: str, within: str, *, named: bool) -> str:
    """Find what other parts belong to each row."""
    records = f"""\
SELECT {{0}} AS id, {{1}} FROM (
  SELECT kind, response_id, request_id, {_figure()} AS figure FROM request_parts
  WHERE {within} AND kind IN ('engine', 'plugin')
    AND {{0}} IN (SELECT {{0}} FROM request_parts WHERE {here} AND {_REQUESTS} AND {{0}} != '')
  LIMIT 1 BY trace_id, span_id
) GROUP BY id"""
    figures = (
        f"groupArrayIf({_MOST_IN_TRACE})(figure, kind = 'plugin') AS plugin,"
        f" groupArrayIf({_MOST_IN_TRACE})(figure, kind = 'engine') AS engine"
    )
    # Of an id that several rows share, nobody can tell whose it is.
    users = f"""\
SELECT {{0}} AS id, uniqExact(trace_id, span_id) AS users FROM request_parts
WHERE {within} AND {_REQUESTS} AND {{0}} != '' GROUP BY id HAVING users > 1"""
    ids, found = "", ""
    for key, field in (("answer", "response_id"), ("question", "request_id")):
        if named:
            ids += (
                f"LEFT JOIN (\n{records.format(field, figures)}\n) AS {key} ON {key}.id = row.{field}\n"
                f"LEFT JOIN (\n{users.format(field)}\n) AS {key}s ON {key}s.id = row.{field}\n"
            )
        for who in ("plugin", "engine"):
            is_sure = f"row.{field} != '' AND {key}s.users = 0"
            none = f"CAST([], 'Array({quoted(_FIGURE_TYPE)})')"
            known = f"if({is_sure}, {key}.{who}, [])" if named else none
            found += f",\n    {known} AS {who}_by_{key}"
    of_row = ", ".join(f"row.{name} AS {name}" for name in _ALONG)
    most = _MOST_IN_TRACE
    query = f"""\
SELECT {of_row},
    traces.small AND row.operation != '{TURN}' AS joins,
    traces.links AS links, traces.asked AS asked, traces.engines AS engines,
    traces.gateways AS gateways, traces.pages AS pages{found}
FROM (
{rows}
) AS row
INNER JOIN (
  SELECT
    trace_id,
    count() <= {most} AS small,
    groupArray({most})((span_id, parent_span_id)) AS links,
    groupArrayIf({most})((start, span_id, parent_span_id, ifNull(e2e_ns, 0),
      operation = '{TURN}', toString(service), toString(kind)), {_REQUESTS}) AS asked,
    groupArrayIf({most})({_figure()}, kind = 'engine') AS engines,
    arraySort(groupArrayIf({most})((start, span_id, parent_span_id, toString(service),
      reported_gateway_ns, toString(gateway), cache_hit), kind = 'gateway')) AS gateways,
    arraySort(groupArrayIf({most})((arrived, span_id, browser), kind = 'page')) AS pages
  FROM (
    SELECT * FROM request_parts WHERE {here} AND kind != 'plugin'
    LIMIT 1 BY trace_id, span_id, kind
  ) GROUP BY trace_id
) AS traces ON traces.trace_id = row.trace_id
{ids}WHERE row.kind = 'row'
  OR NOT arrayExists(x -> x.7 = 'row' AND x.6 = row.service, traces.asked)"""
    beneath = (
        "arrayFold((found, i) -> arrayDistinct(arrayConcat(found, arrayMap(l -> l.1,"
        " arrayFilter(l -> has(found, l.2), links)))), range(if(length(links) > 1, "
        f"toUInt64({_DEEPEST}), toUInt64(0))), [span_id])"
    )
    query = step(
        query,
        ("beneath", beneath),
        ("outer", "arraySort(arrayFilter(x -> NOT has(arrayMap(y -> y.2, asked), x.3) AND NOT x.5,"
                  " asked))"),
        ("a_turn", "arrayExists(x -> x.5, asked)"),
    )  # fmt: skip
    query = step(
        query,
        ("single", "length(outer) = 1 AND outer[1].2 = span_id AND NOT a_turn"),
        ("engines_beneath", "arrayFilter(x -> has(beneath, x.span_id), engines)"),
        ("gateways_beneath", "arrayFilter(x -> has(beneath, x.2), gateways)"),
    )
    query = step(
        query,
        ("engine_in_trace", "if(empty(engines_beneath) AND single, engines, engines_beneath)"),
        # Those above are this application's own.
        ("gateways_between", "if(empty(gateways_beneath) AND single,"
                             " arrayFilter(x -> x.4 != service AND x.2 != parent_span_id, gateways),"
                             " gateways_beneath)"),
        ("gateways_above", "arrayFilter(x -> x.4 = service AND NOT has(beneath, x.2), gateways)"),
    )  # fmt: skip
    query = step(
        query,
        # Several sequences of one request go together; several requests do not.
        ("engine_traced", "multiIf(length(engine_in_trace) <= 1, engine_in_trace,"
                          " response_id != '' AND arrayExists(x -> x.answered = response_id,"
                          " engine_in_trace), arrayFilter(x -> x.answered = response_id,"
                          " engine_in_trace), engine_in_trace[1].answered != '' AND"
                          " length(arrayDistinct(arrayMap(x -> x.answered, engine_in_trace))) = 1,"
                          " engine_in_trace, [])"),
        ("plugin_named", "if(empty(plugin_by_answer), plugin_by_question, plugin_by_answer)"),
        ("engine_named", "if(empty(engine_by_answer), engine_by_question, engine_by_answer)"),
    )  # fmt: skip
    unsure = "NOT joins OR (attempts > 1 AND length({0}) > 1)"
    engine = "if(empty(engine_named), engine_traced, engine_named)"
    return step(
        query,
        ("plugin_found", f"if({unsure.format('plugin_named')}, [], {_sorted('plugin_named')})"),
        ("engine_found", f"if({unsure.format(engine)}, [], {_sorted(engine)})"),
        ("gateway_found", "if(joins, gateways_between, [])"),
        ("page_found", "if(joins AND NOT a_turn AND NOT mapContains(browser, 'browser_e2e_s')"
                       " AND outer[-1].2 = span_id AND NOT arrayExists(x -> x.2 != span_id AND"
                       " toUnixTimestamp64Nano(x.1) + x.4 > toUnixTimestamp64Nano(start), outer),"
                       " arraySlice(pages, 1, 1), [])"),
    )  # fmt: skip


def _sorted(found: str) -> str:
    """Sequences by when their first token came, then their last."""
    return (
        f"arraySort(x -> (ifNull(x.queue + x.prefill, {1 << 62}),"
        f" ifNull(x.queue + x.prefill + x.decode, {1 << 62}), x.span_id), {found})"
    )


def _with_figures(inner: str, who: str, source: str) -> str:
    """Join what an engine told of all the sequences it made for the request."""
    found, one = f"{who}_found", f"{who}_found[1]"
    first = f"({one}.queue + {one}.prefill)"
    last = f"arrayMax(arrayMap(x -> ifNull(x.queue + x.prefill + x.decode, 0), {found}))"
    usable = (
        f"(length({found}) = 1 OR (length({found}) > 1 AND arrayAll(x -> x.queue IS NOT NULL"
        f" AND x.prefill IS NOT NULL AND x.decode IS NOT NULL, {found})))"
    )

    def summed(name: str) -> str:
        return (
            f"multiIf(length({found}) = 1, {one}.{name}, NOT {usable} OR arrayExists(x -> x.{name}"
            f" IS NULL, {found}), NULL, arraySum(arrayMap(x -> ifNull(x.{name}, 0), {found})))"
        )

    query = step(
        inner,
        (f"{who}_queue", f"if({usable}, {one}.queue, NULL)"),
        (f"{who}_prefill", f"if({usable}, {one}.prefill, NULL)"),
        (
            f"{who}_decode",
            f"multiIf(length({found}) = 1, {one}.decode, {usable}, {last} - {first}, NULL)",
        ),
        (f"{who}_frontend", f"if({usable}, {one}.frontend, NULL)"),
        (f"{who}_prompt", f"if(length({found}) = 1, {one}.prompt, NULL)"),
        (f"{who}_cached", f"if(length({found}) = 1, {one}.cached, NULL)"),
        (f"{who}_output", summed("output")),
        (f"{who}_preemptions", summed("preemptions")),
        (f"{who}_replica", f"if({usable}, {one}.replica, '')"),
    )
    changes = []
    for name, figure in (
        ("reported_queue", "queue"),
        ("reported_prefill", "prefill"),
        ("reported_decode", "decode"),
        ("first_chunk_frontend", "frontend"),
    ):
        ranks = f"[{', '.join(repr(one) for one in _RANKED)}], range(toUInt64({len(_RANKED)})), {len(_RANKED)}"
        better = (
            f"{who}_{figure} IS NOT NULL AND ({name}_ns IS NULL OR"
            f" transform(toString({name}_source), {ranks}) > {_RANKED.index(source)})"
        )
        changes.append((f"{name}_ns", f"if({better}, {who}_{figure}, {name}_ns)"))
        changes.append(
            (
                f"{name}_source",
                f"CAST(if({better}, '{source}', toString({name}_source)), '{quoted(SOURCE)}')",
            )
        )
    changes += [
        ("prompt_tokens", f"ifNull(prompt_tokens, {who}_prompt)"),
        ("cached_tokens", f"ifNull(cached_tokens, {who}_cached)"),
        # Of an answer that did not come whole the client got fewer.
        (
            "output_tokens",
            f"if(outcome = 'success', ifNull(output_tokens, {who}_output), output_tokens)",
        ),
        ("preemptions", f"ifNull(preemptions, {who}_preemptions)"),
        ("replica", f"if(replica = '', {who}_replica, toString(replica))"),
    ]
    return replace(query, *changes)


def _with_gateways(inner: str) -> str:
    """Join what gateways between the request and its engine took themselves."""
    told = "arrayFilter(x -> x.5 IS NOT NULL, gateway_found)"
    takes = f"reported_gateway_ns IS NULL AND notEmpty({told})"
    return replace(
        inner,
        ("reported_gateway_ns",
         f"if({takes}, arraySum(arrayMap(x -> ifNull(x.5, 0), {told})), reported_gateway_ns)"),
        ("reported_gateway_source",
         f"CAST(if({takes}, 'server_timing', toString(reported_gateway_source)), '{quoted(SOURCE)}')"),
        ("gateway", "if(gateway = '' AND notEmpty(gateway_found), gateway_found[1].6, toString(gateway))"),
        ("cache_hit", "ifNull(cache_hit, gateway_found[1].7)"),
    )  # fmt: skip


def _with_page(inner: str) -> str:
    """Join what the page told: the row as its user lived through it. See `browser.join`."""

    def told(field: str) -> str:
        name = name_of(f"{field}_ns", IN_JSON)
        return f"accurateCastOrNull(roundBankers(toFloat64OrNull(page['{name}']) * 1e9), 'Int64')"

    figures = (
        "e2e", "ttft", "held_before", "held_after", "first_byte", "last_content", "max_gap",
        "client_wait", "dns", "connect", "tls", "gateway",
    )  # fmt: skip
    query = step(
        inner, ("page", f"if(notEmpty(page_found), page_found[1].3, CAST(map(), '{TEXTS}'))")
    )
    query = step(
        query,
        *((f"page_{figure}", told(figure)) for figure in figures),
        ("page_kind", "page['browser_kind']"),
        ("page_outcome", "page['browser_outcome']"),
        ("app_ns", "if(notEmpty(gateways_above), gateways_above[1].5, NULL)"),
    )
    query = step(
        query,
        ("paged", "page_e2e IS NOT NULL"),
        ("page_streams", "stream AND page_kind != 'whole'"),
        ("page_hb", "ifNull(page_held_before, 0)"),
        ("page_ha", "ifNull(page_held_after, 0)"),
        (
            "page_rtt",
            "if(page_connect > 0 AND page['browser_protocol'] != 'h3', page_connect, NULL)",
        ),
        ("page_wait", "ifNull(page_ttft, page_e2e)"),
        (
            "page_gateway_wins",
            "ifNull(page_gateway > ifNull(reported_gateway_ns, 0) + ifNull(app_ns, 0), false)",
        ),
        ("waited", "ttft_ns - held_before_ns"),
    )
    query = step(
        query,
        ("page_first", "if(page_streams AND page_ttft IS NOT NULL, least(page_ttft, page_e2e), NULL)"),
        ("contradicted", "arrayStringConcat(arrayFilter(x -> x != '', ["
                         "if(page_wait > page_e2e + 2000000, 'ttft', ''),"
                         "if(page_hb > page_wait + 2000000, 'held_before', ''),"
                         "if(page_ha > page_e2e - least(page_wait, page_e2e) + 2000000, 'held_after', ''),"
                         "if(waited IS NOT NULL AND toInt64OrZero(page['browser_chunks']) != 0"
                         " AND page_wait + 2000000 < waited, 'server', '')]), ' ')"),
    )  # fmt: skip

    def added(old: str, new: str) -> str:
        return f"if({old} IS NULL, {new}, if({new} IS NULL, {old}, {old} + {new}))"

    def paged(name: str, new: str) -> tuple[str, str]:
        return name, f"if(paged, {new}, {name})"

    def unrendered(marks: str) -> str:
        return f"mapFilter((k, v) -> k != 'render', {marks})"

    with_app = (
        f"mapUpdate({unrendered('marked_before')}, map(CAST('gateway', 'LowCardinality(String)'),"
        " marked_before['gateway'] + ifNull(app_ns, 0)))"
    )
    seconds = "toString({} / 1e9)"
    extra = (
        "mapConcat(page, mapFilter((k, v) -> v != '', map("
        f"'browser_app_e2e_s', {seconds.format('ifNull(e2e_ns, 0)')},"
        f" 'browser_app_ttft_s', if(ttft_ns IS NULL, '', {seconds.format('assumeNotNull(ttft_ns)')}),"
        f" 'browser_app_held_s', if(unwatched, '', {seconds.format('(held_before_ns + held_after_ns)')}),"
        " 'browser_inconsistent', ifNull(contradicted, ''))))"
    )
    ended = "paged AND outcome = 'success' AND page_outcome != ''"
    return replace(
        query,
        paged("e2e_ns", "page_e2e"),
        paged("ttft_ns", "page_first"),
        paged("stream", "page_streams"),
        paged("held_before_ns", "if(page_first IS NULL, page_hb + page_ha, page_hb)"),
        paged("held_after_ns", "if(page_first IS NULL, 0, page_ha)"),
        paged("unwatched", "false"),
        paged("network_client_wait_ns", added("network_client_wait_ns", "page_client_wait")),
        paged("network_dns_ns", added("network_dns_ns", "page_dns")),
        paged("network_connect_ns", added("network_connect_ns", "page_connect")),
        paged("network_tls_ns", added("network_tls_ns", "page_tls")),
        paged("network_rtt_ns", added("network_rtt_ns", "page_rtt")),
        ("network_rtt_source", "CAST(if(paged AND page_rtt IS NOT NULL, 'client',"
                               f" toString(network_rtt_source)), '{quoted(SOURCE)}')"),
        ("reported_gateway_ns", "if(paged AND page_gateway_wins, page_gateway, reported_gateway_ns)"),
        ("reported_gateway_source", "CAST(if(paged AND page_gateway_wins, 'server_timing',"
                                    f" toString(reported_gateway_source)), '{quoted(SOURCE)}')"),
        ("marked_before", "multiIf(NOT paged, marked_before, page_gateway_wins OR app_ns IS NULL,"
                          f" {unrendered('marked_before')}, {with_app})"),
        paged("marked_after", unrendered("marked_after")),
        ("outcome", f"if({ended}, page_outcome, toString(outcome))"),
        ("error_type", f"if({ended}, page['browser_error_type'], toString(error_type))"),
        paged("max_gap_ns", "page_max_gap"),
        paged("last_content_ns", "page_last_content"),
        paged("first_byte_ns", "page_first_byte"),
        *((f"{mark}_ns", f"if(paged, NULL, {mark}_ns)") for mark in (
            "answered", "first_event", "first_reasoning", "first_text", "first_tool_call")),
        ("browser", f"if(paged, {extra}, browser)"),
    )  # fmt: skip


def insert(times: Times, traces: str, version: str, kinds: Collection[str] = EVERY_KIND) -> str:
    """Return the statement that writes those rows; of the versions of a row the highest counts."""
    columns = ", ".join(COLUMNS)
    return (
        f"INSERT INTO requests ({columns}, version_ns)\n"
        f"SELECT {columns}, toUInt64({version}) AS version_ns\n"
        f"FROM (\n{select(times, traces, kinds)}\n)"
    )


class Joiner:
    """Runs the join of one store, remembering how far it has come."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        told = engine.read(
            "SELECT max(until_ns), max(far_ns), (SELECT max(version_ns) FROM requests) FROM joins",
            "TSV",
        )
        until, far, version = (int(text) for text in told.split())
        self._until, self._far, self._version = until, far, max(version, until)

    def join(self, now_ns: int) -> JoinReport:
        """Write the rows of all requests of which parts arrived since the last call."""
        began = time.perf_counter()
        until = self._engine.settled_ns(now_ns) // 1000 * 1000 - 1000
        if until < self._until - _NEAR_S * _NS:  # the clock was set back: begin anew from there
            self._until = self._far = until - _NEAR_S * _NS
        if until <= self._until:
            return JoinReport(0, self._until, 0.0)
        is_far = until - self._far >= _FAR_EVERY_S * _NS
        since, look_s = (self._far, _FAR_S) if is_far else (self._until, _NEAR_S)
        since = max(since, until - _FAR_S * _NS)
        self._version = max(self._version + 1, until)
        window = min(since, until) - look_s * _NS
        times = Times(*(f"fromUnixTimestamp64Nano({ns}, 'UTC')" for ns in (since, until, window)))
        rows = 0
        if self._kinds(times.since, times.until):
            kinds = self._kinds(times.window, times.until)
            # Asked for once and used six times: planning that many subqueries takes longer.
            self._engine.run(
                "CREATE TEMPORARY TABLE IF NOT EXISTS affected (trace_id String) ENGINE = Memory"
            )
            self._engine.run("TRUNCATE TABLE affected")
            self._engine.run(f"INSERT INTO affected\n{affected(times, kinds)}")
            self._engine.run(
                insert(times, "SELECT trace_id FROM affected", str(self._version), kinds)
            )
            rows = int(
                self._engine.read(
                    f"SELECT count() FROM requests WHERE version_ns = {self._version}",
                    "TSV",
                )
            )
        self._until = until
        self._far = until if is_far else self._far
        seconds = time.perf_counter() - began
        self._engine.run(
            "INSERT INTO joins (until_ns, far_ns, rows, seconds) VALUES"
            f" ({until}, {self._far}, {rows}, {seconds:.6f})"
        )
        return JoinReport(rows, until, seconds)

    def _kinds(self, since: str, until: str) -> frozenset[str]:
        told = self._engine.read(
            f"SELECT DISTINCT toString(kind) FROM request_parts WHERE arrived > {since}"
            f" AND arrived <= {until}",
            "TSV",
        )
        return frozenset(told.decode().split())
