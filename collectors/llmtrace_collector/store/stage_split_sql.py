"""Split a request's wait into stages in SQL, exactly as `llmtrace.core.stages.split` does.

What is taken from a window one after the other gets `min(claim, what is left)`; with the sum of the
claims before it, that is a closed form, so that a split is a few passes over short arrays instead
of a loop. Tests hold it against the Python, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llmtrace.core.stages import STAGES
from llmtrace_collector.store.row_columns import SOURCE
from llmtrace_collector.store.sql_builder import quoted, step

# `client` is no stage: what it claims of the window becomes a part of what is unattributed.
_NUMBER: Final[Mapping[str, int]] = {
    name: number for number, name in enumerate((*STAGES, "client"), 1)
}
_NO_FIGURE: Final = "('', 'estimated')"  # a fit over many requests may not enter a sum
_PARTS: Final = ("client_wait", "dns", "connect", "tls", "handshake", "send", "rtt")
# The columns that a split is made of.
READS: Final = (
    "e2e_ns", "ttft_ns", "stream", "unwatched", "held_before_ns", "held_after_ns", "client_ns",
    "unsplit_ns", "retry_network_ns", "retry_gateway_ns", "marked_before", "marked_after",
    *(f"network_{part}_ns" for part in _PARTS),
    *(f"reported_{stage}_{what}" for stage in ("queue", "prefill", "decode", "gateway")
      for what in ("ns", "source")),
)  # fmt: skip


def _reported_ns(name: str) -> str:
    """A reported figure, unless it is only an estimate."""
    return f"if(reported_{name}_source IN {_NO_FIGURE}, NULL, reported_{name}_ns)"


def _marks(when: str) -> list[tuple[str, str, str]]:
    return [
        (
            stage,
            f"if(mapContains(marked_{when}, '{stage}'), marked_{when}['{stage}'], NULL)",
            "'client'",
        )
        for stage in STAGES
    ]


def _claims(claims: list[tuple[str, str, str]]) -> tuple[str, str, str]:
    """Write claims as three arrays: how much, for which stage, by whom."""
    ns = ", ".join(f"CAST({ns}, 'Nullable(Int64)')" for _, ns, _ in claims)
    stages = ", ".join(str(_NUMBER[stage]) for stage, _, _ in claims)
    sources = ", ".join(f"toString({source})" for _, _, source in claims)
    return f"[{ns}]", f"[{stages}]", f"[{sources}]"


_BEFORE: Final = [
    ("client", "client_ns", "'client'"),
    ("network", "network_claim", "'client'"),
    ("network", "nullIf(retry_network_ns, 0)", "'client'"),
    ("gateway", "nullIf(retry_gateway_ns, 0)", "'client'"),
    ("queue", _reported_ns("queue"), "reported_queue_source"),
    ("prefill", _reported_ns("prefill"), "reported_prefill_source"),
    ("decode", f"if(whole, {_reported_ns('decode')}, NULL)", "reported_decode_source"),
    ("gateway", _reported_ns("gateway"), "reported_gateway_source"),
    *_marks("before"),
    ("render", "if(unwatched, NULL, greatest(held_before_ns, 0))", "'client'"),
]
_AFTER: Final = [
    ("render", "if(unwatched, NULL, least(greatest(held_after_ns, 0), rest_window))", "'client'"),
    *_marks("after"),
]
# The consumer's own hold overlapping the server's time is no contradiction.
_HOLD_BEFORE: Final = len(_BEFORE)


def split_sql(inner: str) -> str:
    """Return a query that adds the stages to the rows of another, and leaves some scaffolding.

    Args:
        inner: a query with the columns `READS`; whatever else it has is dragged along.
    """
    known = "[" + ", ".join(f"network_{part}_ns" for part in _PARTS) + "]"
    server = " + ".join(
        f"ifNull({claim}, 0)"
        for claim in (_reported_ns("queue"), _reported_ns("prefill"), _reported_ns("gateway"),
                      f"if(whole, {_reported_ns('decode')}, NULL)")
    )  # fmt: skip
    before_ns, before_stage, before_source = _claims(_BEFORE)
    after_ns, after_stage, _ = _claims(_AFTER)
    query = step(
        inner,
        ("total", "greatest(ifNull(e2e_ns, 0), 0)"),
        ("window", "if(ttft_ns IS NULL OR NOT stream, greatest(ifNull(e2e_ns, 0), 0),"
                   " least(greatest(assumeNotNull(ttft_ns), 0), greatest(ifNull(e2e_ns, 0), 0)))"),
        ("whole", "NOT stream"),
        ("network_known", f"if(arrayExists(x -> x IS NOT NULL, {known}),"
                          f" arraySum(arrayMap(x -> ifNull(x, 0), {known})), NULL)"),
    )  # fmt: skip
    query = step(
        query,
        ("rest_window", "total - window"),
        ("client_part", "least(greatest(ifNull(client_ns, 0), 0), window)"),
        ("network_claim", f"network_known - least(greatest(network_known + {server} - window"
                          " + least(greatest(ifNull(client_ns, 0), 0), window), 0),"
                          " ifNull(network_send_ns, 0))"),
    )  # fmt: skip
    query = step(
        query, ("before_ns", before_ns), ("before_source", before_source), ("after_ns", after_ns)
    )
    query = step(
        query,
        ("before_fit", _fits("before_ns", "window")),
        ("after_fit", _fits("after_ns", "rest_window")),
    )
    query = step(
        query,
        ("left_before", "window - arraySum(before_fit)"),
        ("after_rest", "rest_window - arraySum(after_fit)"),
        ("takes_decode", "NOT whole AND NOT unwatched"),
        ("render_before", _sum("before_fit", before_stage, "render")),
    )
    stages = []
    for stage in STAGES:
        if stage == "first_chunk":
            continue
        taken = (
            f"{_sum('before_fit', before_stage, stage)} + {_sum('after_fit', after_stage, stage)}"
        )
        known_here = (
            f"{_any('before_ns', before_stage, stage)} OR {_any('after_ns', after_stage, stage)}"
        )
        if stage == "decode":
            taken += " + if(takes_decode, after_rest, 0)"
            known_here += " OR takes_decode"
        stages.append((f"{stage}_ns", f"if({known_here}, {taken}, NULL)"))
        stages.append((f"{stage}_by", _last(stage, before_stage, after_stage)))
    query = step(query, *stages)
    query = step(
        query,
        ("engine_known", "queue_ns IS NOT NULL AND prefill_ns IS NOT NULL AND decode_ns IS NOT NULL"),
        ("unsplit_here", "if(queue_ns IS NOT NULL AND prefill_ns IS NOT NULL AND decode_ns IS NOT NULL,"
                         " least(greatest(unsplit_ns, 0), left_before), left_before)"),
        ("first_chunk_marked", f"{_sum('before_fit', before_stage, 'first_chunk')}"
                               f" + {_sum('after_fit', after_stage, 'first_chunk')}"),
        ("first_chunk_is_marked", f"{_any('before_ns', before_stage, 'first_chunk')}"
                                  f" OR {_any('after_ns', after_stage, 'first_chunk')}"),
    )  # fmt: skip
    cut_before = _cut("before_ns", "before_fit", before_stage, first=2, upto=_HOLD_BEFORE - 1)
    cut_after = _cut("after_ns", "after_fit", after_stage, first=2)
    query = step(
        query,
        ("first_chunk_ns", "multiIf(engine_known, first_chunk_marked + left_before - unsplit_here,"
                           " first_chunk_is_marked, first_chunk_marked, NULL)"),
        ("first_chunk_by", "multiIf(engine_known, if('engine_window' IN (queue_by, prefill_by,"
                             " decode_by), 'engine_window', 'client'),"
                             " first_chunk_is_marked, 'client', '')"),
        ("unattributed_ns", "client_part + unsplit_here + after_rest"
                            " - if(takes_decode, after_rest, 0)"),
        ("inconsistent", f"arrayDistinct(arrayConcat({cut_before}, {cut_after}))"),
        ("ttft_arrival_ns", "multiIf(ttft_ns IS NULL OR unwatched OR NOT stream, NULL,"
                            " held_before_ns <= 1000000, ttft_ns,"
                            " queue_ns IS NULL OR prefill_ns IS NULL, NULL, ttft_ns - render_before)"),
    )  # fmt: skip
    return step(
        query, *((f"{stage}_source", f"CAST({stage}_by, '{quoted(SOURCE)}')") for stage in STAGES)
    )


def _fits(claims: str, window: str) -> str:
    """How much of each claim fits, the earlier ones first."""
    bounded = f"arrayMap(x -> greatest(ifNull(x, 0), 0), {claims})"
    return (
        f"arrayMap((claim, upto) -> least(claim, greatest({window} - (upto - claim), 0)),"
        f" {bounded}, arrayCumSum({bounded}))"
    )


def _sum(fits: str, stages: str, stage: str) -> str:
    number = _NUMBER[stage]
    return f"arraySum(arrayMap((x, s) -> if(s = {number}, x, 0), {fits}, {stages}))"


def _any(claims: str, stages: str, stage: str) -> str:
    number = _NUMBER[stage]
    return f"arrayExists((x, s) -> s = {number} AND x IS NOT NULL, {claims}, {stages})"


def _last(stage: str, before: str, after: str) -> str:
    """The source that claimed a stage last: that of the whole stage."""
    number = _NUMBER[stage]
    in_before = f"arrayLast((w, s, x) -> s = {number} AND x IS NOT NULL, before_source, {before}, before_ns)"
    if stage == "decode":
        first = "if(takes_decode, 'client', "
        last = ")"
    else:
        first, last = "", ""
    return f"{first}if({_any('after_ns', after, stage)}, 'client', {in_before}){last}"


def _cut(claims: str, fits: str, stages: str, *, first: int = 1, upto: int | None = None) -> str:
    """Name the stages of the claims that did not fit; in order."""
    names = "[" + ", ".join(f"'{stage}'" for stage in STAGES) + "]"
    length = "" if upto is None else f", {upto - first + 1}"
    part = ", ".join(f"arraySlice({array}, {first}{length})" for array in (stages, claims, fits))
    return f"arrayMap(s -> {names}[s], arrayFilter((s, x, fit) -> x IS NOT NULL AND x != fit, {part}))"
