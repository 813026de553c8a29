"""Make a row, in SQL, of a request and of what belongs to it.

`match_sql` has found what belongs together; here the request's own span, the engines' figures, the gateways' and
the page's become one row, and that is split into stages. The pure functions of `llmtrace` say what
comes of it, and tests hold the SQL against them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from llmtrace.core.browser_timing import IN_JSON, name_of
from llmtrace.core.row_fields import MARKS
from llmtrace.core.stages import STAGES
from llmtrace_collector.store.gather import REQUESTS
from llmtrace_collector.store.row_columns import FIELDS, SOURCE, TEXTS
from llmtrace_collector.store.span_facts import KIND
from llmtrace_collector.store.sql_builder import keep, quoted, replace, step
from llmtrace_collector.store.stage_split_sql import READS, split_sql

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
        "kv_connector", "gaps",
    }
)  # fmt: skip
_RIDING: Final = tuple(field.name for field in FIELDS if field.name not in _LOOKED_AT)
_IDENTITY: Final = ("trace_id", "span_id", "parent_span_id", "start", "service", "kind")
_ALONG: Final = (*_IDENTITY, "rest", *_LOOKED_AT, "parts")
COLUMNS: Final = (
    "start", "trace_id", "span_id", "parent_span_id", "service", "reported_by", "parts", *_LOOKED_AT,
    *_RIDING,
    *(f"{stage}_{what}" for stage in STAGES for what in ("ns", "source")),
    "unattributed_ns", "inconsistent", "ttft_arrival_ns",
)  # fmt: skip
# What may belong to a request beside its own span.
FOUND: Final = ("engine", "plugin", "gateway", "page")
_SOURCES: Final = {"engine": "engine_span", "plugin": "engine_plugin"}


def select(found: Collection[str] = FOUND) -> str:
    """Return the query that makes the rows of the requests in `join_found`.

    Args:
        found: what belongs to any of them; the query leaves out what the others would need.
    """
    extra = {
        "engine": ("engine_joined", "engine"),
        "plugin": ("plugin_joined", "plugin"),
        "gateway": ("gateway_found",),
        "page": ("page_found", "app_ns"),
    }
    along = [name for kind in FOUND if kind in found for name in extra[kind]]
    identity = ", ".join(
        f"row.{name} AS {name}" if name != "start" else "found.made_start AS start"
        for name in _IDENTITY
    )
    columns = ", ".join(
        (
            identity,
            f"tuple({', '.join(f'row.{name}' for name in _RIDING)}) AS rest",
            *(f"row.{name} AS {name}" for name in _LOOKED_AT),
            *(f"found.{name} AS {name}" for name in ("parts", *along)),
        )
    )
    rows = f"""\
SELECT {columns}
FROM join_around AS row
INNER JOIN join_found AS found ON found.trace_id = row.trace_id AND found.span_id = row.span_id
WHERE row.{REQUESTS}"""
    for who in ("engine", "plugin"):
        if who in found:
            rows = _with_figures(rows, who)
    if "gateway" in found:
        rows = _with_gateways(rows)
    if "page" in found:
        rows = keep(_with_page(rows), (*_ALONG, *along))
    kinds = ["[toString(kind)]"]
    kinds += [f"if({who}_joined, ['{who}'], [])" for who in ("engine", "plugin") if who in found]
    if "gateway" in found:
        kinds.append("if(notEmpty(gateway_found), ['gateway'], [])")
    if "page" in found:
        is_joined = "notEmpty(page_found) AND mapContains(browser, 'browser_app_e2e_s')"
        kinds.append(f"if({is_joined}, ['page'], [])")
    reported_by = f"arrayConcat({', '.join(kinds)})"
    rows = step(rows, ("reported_by", f"CAST({reported_by}, '{quoted(f'Array({KIND})')}')"))
    done = [name for name in (*_ALONG, "reported_by") if name not in {*READS, "rest"}]
    rows = split_sql(keep(rows, ("rest", f"tuple({', '.join(done)}) AS done", *READS)))
    unpacked = {name: f"done.{number} AS {name}" for number, name in enumerate(done, 1)}
    unpacked |= {name: f"rest.{number} AS {name}" for number, name in enumerate(_RIDING, 1)}
    columns = ", ".join(unpacked.get(name, name) for name in COLUMNS)
    return f"SELECT {columns}\nFROM (\n{rows}\n)"


def _with_figures(inner: str, who: str) -> str:
    """Join what engines reported of the request."""
    source = _SOURCES[who]
    changes = []
    ranks = f"[{', '.join(repr(one) for one in _RANKED)}], range(toUInt64({len(_RANKED)})), {len(_RANKED)}"
    for name, figure in (
        ("reported_queue", "queue"),
        ("reported_prefill", "prefill"),
        ("reported_decode", "decode"),
        ("first_chunk_frontend", "frontend"),
        ("first_chunk_kv_transfer", "kv_transfer"),
    ):
        better = (
            f"{who}.{figure} IS NOT NULL AND ({name}_ns IS NULL OR"
            f" transform(toString({name}_source), {ranks}) > {_RANKED.index(source)})"
        )
        changes.append((f"{name}_ns", f"if({better}, {who}.{figure}, {name}_ns)"))
        changes.append(
            (
                f"{name}_source",
                f"CAST(if({better}, '{source}', toString({name}_source)), '{quoted(SOURCE)}')",
            )
        )
    changes += [
        ("prompt_tokens", f"ifNull(prompt_tokens, {who}.prompt)"),
        ("cached_tokens", f"ifNull(cached_tokens, {who}.cached)"),
        # Of an answer that did not come whole the client got fewer.
        (
            "output_tokens",
            f"if(outcome = 'success', ifNull(output_tokens, {who}.output), output_tokens)",
        ),
        ("preemptions", f"ifNull(preemptions, {who}.preemptions)"),
        ("replica", f"if(replica = '', {who}.replica, toString(replica))"),
        ("kv_connector", f"if(kv_connector = '', {who}.connector, toString(kv_connector))"),
    ]
    return replace(inner, *changes)


def _with_gateways(inner: str) -> str:
    """Join what gateways between the request and its engine took themselves."""
    with_own = "arrayFilter(x -> x.own IS NOT NULL, gateway_found)"
    takes = f"reported_gateway_ns IS NULL AND notEmpty({with_own})"
    return replace(
        inner,
        ("reported_gateway_ns",
         f"if({takes}, arraySum(arrayMap(x -> ifNull(x.own, 0), {with_own})), reported_gateway_ns)"),
        ("reported_gateway_source",
         f"CAST(if({takes}, 'server_timing', toString(reported_gateway_source)), '{quoted(SOURCE)}')"),
        ("gateway", "if(gateway = '' AND notEmpty(gateway_found), gateway_found[1].gateway, toString(gateway))"),
        ("cache_hit", "ifNull(cache_hit, gateway_found[1].cache_hit)"),
    )  # fmt: skip


def _with_page(inner: str) -> str:
    """Join what the page reported: the row as its user lived through it. See `browser.join`."""

    def seconds_of(field: str) -> str:
        name = name_of(f"{field}_ns", IN_JSON)
        return f"accurateCastOrNull(roundBankers(toFloat64OrNull(page['{name}']) * 1e9), 'Int64')"

    figures = (
        "e2e", "ttft", "held_before", "held_after", "first_byte", "last_content", "max_gap",
        "client_wait", "dns", "connect", "tls", "gateway",
    )  # fmt: skip
    query = step(
        inner, ("page", f"if(notEmpty(page_found), page_found[1].browser, CAST(map(), '{TEXTS}'))")
    )
    query = step(
        query,
        *((f"page_{figure}", seconds_of(figure)) for figure in figures),
        ("page_kind", "page['browser_kind']"),
        ("page_outcome", "page['browser_outcome']"),
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
        paged("gaps", "''"),
        paged("last_content_ns", "page_last_content"),
        paged("first_byte_ns", "page_first_byte"),
        *((f"{mark.field}_ns", f"if(paged, NULL, {mark.field}_ns)") for mark in MARKS
          if mark.field not in figures),
        ("browser", f"if(paged, {extra}, browser)"),
    )  # fmt: skip
