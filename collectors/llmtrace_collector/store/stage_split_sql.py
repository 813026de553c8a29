"""Fill in `sql/split_stages.sql`, which splits a request into stages, with the claims to each stage.

The result is exactly that of `llmtrace.core.stages.split`: tests compare both to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llmtrace.core.stages import STAGES
from llmtrace_collector.store.row_columns import SOURCE
from llmtrace_collector.store.sql_builder import columns, from_file, quoted

# `client` is not a stage: what it claims becomes part of the unattributed time.
_NUMBER: Final[Mapping[str, int]] = {
    name: number for number, name in enumerate((*STAGES, "client"), 1)
}
_NO_FIGURE: Final = "('', 'estimated')"  # an estimate over many requests may not enter a sum
_PARTS: Final = ("client_wait", "dns", "connect", "tls", "handshake", "send", "rtt")
# The columns that the split reads.
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
    """Write claims as three arrays: how much, for which stage, from which source."""
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
# Consumer time may overlap the server's time: that is not a contradiction.
_HOLD_BEFORE: Final = len(_BEFORE)


def split_sql(inner: str) -> str:
    """Return a query that adds the stages to the rows of another, beside auxiliary columns.

    Args:
        inner: a query with the columns `READS`; its other columns are kept.
    """
    before_ns, before_stage, before_source = _claims(_BEFORE)
    after_ns, after_stage, _ = _claims(_AFTER)
    taken = {
        stage: f"{_sum('before_fit', before_stage, stage)} + {_sum('after_fit', after_stage, stage)}"
        for stage in STAGES
    }
    claimed = {
        stage: f"{_any('before_ns', before_stage, stage)} OR {_any('after_ns', after_stage, stage)}"
        for stage in STAGES
    }
    first_chunk = {
        "first_chunk_taken": taken.pop("first_chunk"),
        "first_chunk_claimed": claimed.pop("first_chunk"),
    }
    # The rest of the time after the first content is decoding.
    taken["decode"] += " + if(takes_decode, after_rest, 0)"
    claimed["decode"] += " OR takes_decode"
    stages = []
    for stage, ns in taken.items():
        stages.append((f"{stage}_ns", f"if({claimed[stage]}, {ns}, NULL)"))
        stages.append((f"{stage}_by", _last(stage, before_stage, after_stage)))
    cut_before = _cut("before_ns", "before_fit", before_stage, first=2, upto=_HOLD_BEFORE - 1)
    cut_after = _cut("after_ns", "after_fit", after_stage, first=2)
    return from_file(
        "split_stages",
        rows=inner,
        network_parts=", ".join(f"network_{part}_ns" for part in _PARTS),
        before_ns=before_ns,
        before_source=before_source,
        after_ns=after_ns,
        stages=columns(stages),
        **first_chunk,
        render_before=_sum("before_fit", before_stage, "render"),
        contradicted=f"arrayDistinct(arrayConcat({cut_before}, {cut_after}))",
        sources=columns(
            (f"{stage}_source", f"CAST({stage}_by, '{quoted(SOURCE)}')") for stage in STAGES
        ),
    )


def _sum(fits: str, stages: str, stage: str) -> str:
    number = _NUMBER[stage]
    return f"arraySum(arrayMap((x, s) -> if(s = {number}, x, 0), {fits}, {stages}))"


def _any(claims: str, stages: str, stage: str) -> str:
    number = _NUMBER[stage]
    return f"arrayExists((x, s) -> s = {number} AND x IS NOT NULL, {claims}, {stages})"


def _last(stage: str, before: str, after: str) -> str:
    """The source of a stage: the last one that claimed it."""
    claimed_after = _any("after_ns", after, stage)
    number = str(_NUMBER[stage])
    last = from_file("last_source", number=number, before=before, claimed_after=claimed_after)
    return f"if(takes_decode, 'client', {last})" if stage == "decode" else last


def _cut(claims: str, fits: str, stages: str, *, first: int = 1, upto: int | None = None) -> str:
    """The stages of the claims that did not fit, in order."""
    names = "[" + ", ".join(f"'{stage}'" for stage in STAGES) + "]"
    length = "" if upto is None else f", {upto - first + 1}"
    part = ", ".join(f"arraySlice({array}, {first}{length})" for array in (stages, claims, fits))
    return f"arrayMap(s -> {names}[s], arrayFilter((s, x, fit) -> x IS NOT NULL AND x != fit, {part}))"
