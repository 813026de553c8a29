"""Make rows, in SQL, of requests and the parts that belong to them.

`match_sql` has found what belongs together; here the request's own span and the figures of engines,
gateways and the web page become one row, which is then split into stages. The result is defined by
the pure functions of `llmtrace`; tests compare the SQL with them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from llmtrace.core.row_fields import MARKS
from llmtrace.core.stages import STAGES
from llmtrace_collector.store.row_columns import FIELDS, SOURCE, TEXTS
from llmtrace_collector.store.span_facts import KIND
from llmtrace_collector.store.sql_builder import columns, from_file, keep, quoted, step
from llmtrace_collector.store.stage_split_sql import READS, split_sql

_RANKED: Final = (
    "engine_inband", "engine_span", "engine_plugin", "server_timing", "client", "kernel",
    "client_bound", "engine_window",
)  # fmt: skip


# The columns that the steps read or change. The rest of a row is carried along in one tuple.
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
# What may belong to a request in addition to its own span.
FOUND: Final = ("engine", "plugin", "gateway", "page")
# Moments that a web page also reports.
_OF_PAGE: Final = frozenset({"first_byte", "last_content", "max_gap"})
_FIGURES: Final = {
    "reported_queue": "queue",
    "reported_prefill": "prefill",
    "reported_decode": "decode",
    "first_chunk_frontend": "frontend",
    "first_chunk_kv_transfer": "kv_transfer",
}
_SOURCES: Final = {"engine": "engine_span", "plugin": "engine_plugin"}


def select(found: Collection[str] = FOUND) -> str:
    """Return the query that makes the rows of the requests in `join_found`.

    Args:
        found: kinds that belong to any of them; the query leaves out the steps for the others.
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
    read = ", ".join(
        (
            identity,
            f"tuple({', '.join(f'row.{name}' for name in _RIDING)}) AS rest",
            *(f"row.{name} AS {name}" for name in _LOOKED_AT),
            *(f"found.{name} AS {name}" for name in ("parts", *along)),
        )
    )
    rows = from_file("request_rows", columns=read)
    for who in ("engine", "plugin"):
        if who in found:
            rows = _with_figures(rows, who)
    if "gateway" in found:
        rows = from_file("add_gateways", rows=rows, source=quoted(SOURCE))
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
    made = ", ".join(unpacked.get(name, name) for name in COLUMNS)
    return f"SELECT {made}\nFROM (\n{rows}\n)"


def _with_figures(inner: str, who: str) -> str:
    """Add the figures that engines reported of the request."""
    source = _SOURCES[who]
    names = ", ".join(map(repr, _RANKED))
    better = [
        from_file(
            "better_figure",
            name=name,
            figure=f"{who}.{figure}",
            source=source,
            ranks=f"[{names}], range(toUInt64({len(_RANKED)})), {len(_RANKED)}",
            rank=str(_RANKED.index(source)),
            type=quoted(SOURCE),
        )
        for name, figure in _FIGURES.items()
    ]
    return from_file("add_figures", rows=inner, who=who, better=",\n    ".join(better))


def _with_page(inner: str) -> str:
    """Add what the web page reported."""
    unknown = (
        (f"{mark.field}_ns", f"if(paged, NULL, {mark.field}_ns)")
        for mark in MARKS
        if mark.field not in _OF_PAGE
    )
    return from_file(
        "lay_page_over",
        rows=inner,
        texts=TEXTS,
        source=quoted(SOURCE),
        unknown_marks=columns(unknown),
    )
