"""Is a row in the store what it was in the application, to the nanosecond?"""

from __future__ import annotations

import time
from dataclasses import replace

from llmtrace.core.browser_timing import IN_JSON, flatten
from llmtrace.core.stages import STAGES
from llmtrace_collector.store import read
from llmtrace_collector.store.row_columns import FIELDS
from tests.collector.collecting import some_rows
from tests.collector.store.sent import STORABLE, drawn, fetch, join, send

WORDS = [field.name for field in FIELDS if field.type in {"LowCardinality(String)", "String"}]
COUNTS = [
    "http_status", "attempts", "prompt_tokens", "cached_tokens", "output_tokens", "chunks",
    "burst_chunks", "preemptions", "spec_drafted", "spec_accepted", "tool_calls", "tool_wall_s",
    "cache_write_tokens", "reasoning_tokens", "max_tokens", "inference_calls",
    "tool_serial_s", "tool_critical_path_s", "tool_serial_loss_s", "weight", "cache_hit", "nested",
]  # fmt: skip
FLOATS = [
    "tool_wall_s", "tool_serial_s", "tool_critical_path_s", "tool_serial_loss_s", "weight"
]  # fmt: skip
MARKS = [
    "max_gap_ns", "answered_ns", "first_byte_ns", "first_event_ns", "first_reasoning_ns",
    "first_text_ns", "first_tool_call_ns", "last_content_ns",
]  # fmt: skip
RAW = ["held_before_ns", "held_after_ns", "retry_network_ns", "retry_gateway_ns", "unsplit_ns"]
REPORTS = {
    "reported_gateway": "gateway",
    "reported_queue": "queue",
    "reported_prefill": "prefill",
    "reported_decode": "engine_decode",
    "first_chunk_frontend": "frontend",
    "first_chunk_kv_transfer": "kv_transfer",
}
PARTS = ["client_wait", "dns", "connect", "tls", "handshake", "send", "rtt"]
COLUMNS = [
    *WORDS, *COUNTS, *MARKS, *RAW, "trace_id", "parent_span_id", "service", "e2e_ns", "ttft_ns",
    "stream", "unwatched", "network_rtt_source", "marked_before", "marked_after", "browser",
    "unattributed_ns", "client_ns", "inconsistent", "ttft_arrival_ns",
    *(f"network_{part}_ns" for part in PARTS),
    *(f"{name}_{what}" for name in REPORTS for what in ("ns", "source")),
    *(f"{stage}_{what}" for stage in STAGES for what in ("ns", "source")),
    "toUnixTimestamp64Nano(start) AS start_ns",
]  # fmt: skip


def expected(row):
    """Say what the store must know of a row, by column."""
    timeline, stages = row.timeline, row.stages
    known = {name: getattr(row, name) or "" for name in WORDS}
    known |= {name: getattr(row, name) for name in (*COUNTS, *MARKS)}
    known |= {name: getattr(timeline, name.removesuffix("_ns")) for name in RAW}
    known |= {
        "trace_id": row.trace_id,
        "parent_span_id": row.parent_span_id or "",
        "service": row.service,
        "e2e_ns": timeline.e2e,
        "ttft_ns": timeline.ttft,
        "client_ns": timeline.client,
        "stream": timeline.stream,
        "unwatched": not timeline.watched,
        "network_rtt_source": timeline.network.rtt_source or "",
        "marked_before": dict(timeline.marked_before),
        "marked_after": dict(timeline.marked_after),
        "unattributed_ns": stages.unattributed,
        "inconsistent": list(stages.inconsistent),
        "start_ns": row.start,
    }
    known["operation"] = row.operation or "chat"
    actual = {} if row.browser is None else flatten(row.browser, IN_JSON)
    known["browser"] = {name: value for name, value in actual.items() if value != ""}
    known |= {f"network_{part}_ns": ns for part, ns in timeline.network.parts()}
    for name, field in REPORTS.items():
        reported = getattr(timeline, field)
        known[f"{name}_ns"] = None if reported is None else reported.ns
        known[f"{name}_source"] = "" if reported is None else reported.source
    for stage, ns in stages:
        known[f"{stage}_ns"] = ns
        known[f"{stage}_source"] = stages.sources.get(stage, "")
    # Of a first content that came after the end nothing is to be said.
    if timeline.ttft is None or timeline.ttft <= timeline.e2e:
        arrival = row.ttft_arrival_s
        known["ttft_arrival_ns"] = None if arrival is None else round(arrival * 1e9)
    return known


def as_stored(columns):
    """Bring a stored row into the form of `expected`: numbers as numbers."""
    actual = dict(columns)
    for name in FLOATS:  # 1e16 comes back as a whole number, and JSON knows no difference
        actual[name] = None if actual[name] is None else float(actual[name])
    actual["browser"] = {
        name: type(kind)(float(text)) if isinstance(kind, int | float) else text
        for name, text in actual["browser"].items()
        for kind in [0.0 if name.endswith("_s") else (0 if text.isdigit() else "")]
        if text != ""
    }
    return actual


def distinct(found):
    """Give each row ids and a time of its own."""
    now = time.time_ns()
    return [
        replace(row, trace_id=f"{now + n:032x}", span_id=f"{now + n:016x}", start=now + n)
        for n, row in enumerate(found)
    ]


def test_rows_arrive_as_they_were(store):
    """Every field, every stage and its source: what is stored is what the application had."""
    sent = distinct(drawn(STORABLE, 150))

    send(store, sent)
    report = join(store)

    assert report.rows == len(sent)
    stored = fetch(
        store, COLUMNS, "trace_id IN {ids:Array(String)}", ids=[row.trace_id for row in sent]
    )
    assert stored.keys() == {row.span_id for row in sent}
    for row in sent:
        known, actual = expected(row), as_stored(stored[row.span_id])
        wrong = {
            name: (value, actual[name]) for name, value in known.items() if actual[name] != value
        }
        assert wrong == {}
        assert actual["e2e_ns"] == actual["unattributed_ns"] + sum(
            actual[f"{stage}_ns"] or 0 for stage in STAGES
        )


class _Meanwhile:
    """A store into which something comes once it was asked what rows say."""

    def __init__(self, store, come):
        self._store, self._come = store, come

    def query(self, sql, parameters=None):
        """Ask the store; then let it come."""
        found = self._store.query(sql, parameters)
        if "count(" in sql and self._come is not None:
            come, self._come = self._come, None
            come()
        return found


def test_rows_that_come_while_they_are_read_are_whole(store):
    """What none of the rows said when reading began is not left out of one that came since."""
    first, *later = some_rows(5, service="meanwhile", tenant="acme")
    send(store, [replace(first, tenant=None)])
    join(store)

    def come():
        send(store, later)
        join(store)

    found = [
        *read.rows(
            _Meanwhile(store, come),
            time.time_ns() - 3600 * 10**9,
            time.time_ns() + 3600 * 10**9,
            {"service": "meanwhile"},
        )
    ]

    assert len(found) == 5
    assert [row.get("tenant") for row in found] == [None, *["acme"] * 4]
