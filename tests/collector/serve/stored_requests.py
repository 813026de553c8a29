"""A store with requests of every kind, for the request list and the request page."""

from __future__ import annotations

import time
from dataclasses import replace

from prometheus_client import CollectorRegistry
from starlette.routing import Mount
from starlette.types import ASGIApp

from llmtrace.core.attempts import Attempt
from llmtrace.core.row import TURN
from llmtrace.core.stages import Reported, Timeline
from llmtrace.testing import make_row
from llmtrace_collector.serve.app import make_app
from llmtrace_collector.serve.pages import Pages
from llmtrace_collector.serve.store_access import StoreAccess
from llmtrace_collector.store import Facts, SignalSample
from tests.collector.store.sent import join, send

HOSTILE = "<script>alert(1)</script>\"'&"
MS = 1_000_000
NOW = time.time_ns()
COUNT = 60
# Slots of 0.13 s, in one of which no chunk came.
GAPS = "134217: 21034 20555 - 80000"


def timeline(queue_ms: int = 20, decode_ms: int = 400) -> Timeline:
    """Return where the time of a request went."""
    first = 150 + queue_ms
    return Timeline(
        e2e=(first + decode_ms) * MS, ttft=first * MS,
        queue=Reported(queue_ms * MS, "engine_inband"),
        prefill=Reported(100 * MS, "engine_inband"),
    )  # fmt: skip


def stored_rows():
    """Make sixty requests of which one queued long, a hostile one, and a turn with one inside."""
    rows = [
        make_row(
            trace_id=f"{n + 1:032x}", span_id=f"{n + 1:016x}", request_id=f"lt-{n}",
            start=NOW - (COUNT - n) * 1000 * MS, service="shop", model="m", route="chat",
            tenant="acme" if n % 2 else "zeta", replica="engine-1:8000", chunks=20,
            max_gap_ns=80 * MS, gaps=GAPS, last_content_ns=(550 + n % 5) * MS, prompt_tokens=100,
            output_tokens=20, timeline=timeline(20 + n % 5),
        )
        for n in range(COUNT)
    ]  # fmt: skip
    rows[-1] = replace(
        rows[-1],
        timeline=timeline(900),
        last_content_ns=1_430 * MS,
        attempts=2,
        attempt_log=(
            Attempt(start_ns=0, duration_ns=30 * MS, backoff_ns=20 * MS, status=503),
            Attempt(start_ns=50 * MS, duration_ns=400 * MS, status=200),
        ),
        response_headers={"x-ratelimit-remaining": "7"},
    )
    hostile = make_row(
        trace_id="f" * 32, span_id="f" * 16, request_id=HOSTILE, start=NOW - 500 * MS,
        service=HOSTILE, model=HOSTILE, route=HOSTILE, tenant="=cmd()", outcome="error",
        error_type=HOSTILE, attributes={HOSTILE: HOSTILE}, timeline=timeline(),
        gaps=HOSTILE,
    )  # fmt: skip
    turn = make_row(
        trace_id="e" * 32, span_id="e" * 16, request_id=None, operation=TURN, agent="planner",
        service="shop", start=NOW - 9_000 * MS, timeline=Timeline(e2e=8_000 * MS),
    )  # fmt: skip
    within = make_row(
        trace_id="e" * 32, span_id="d" * 16, parent_span_id="e" * 16, request_id="lt-within",
        service="shop", model="m", start=NOW - 8_000 * MS, nested=True, timeline=timeline(),
    )  # fmt: skip
    return [*rows, hostile, turn, within]


def fill(store):
    """Store these rows, samples of their engine, and its settings."""
    send(store, stored_rows())
    join(store)
    samples = [
        SignalSample(NOW - ago * 1000 * MS, "engine-1:8000", signal, value)
        for ago in range(0, 600, 15)
        for signal, value in (("waiting", 40.0 if ago < 30 else 2.0), ("kv_usage", 0.97))
    ]
    store.insert_signals(samples)
    store.insert_facts([Facts(NOW - 900 * 1000 * MS, "engine-1:8000", {"max_num_seqs": 64})])


def application(store, token: str | None = None, links=(), now_s=NOW / 1e9 + 1) -> ASGIApp:
    """Return the application that serves the pages of a store."""
    pages = Pages(StoreAccess(store), lambda: links, wall=lambda: now_s)
    return make_app(
        CollectorRegistry(), Mount("/api/v1", routes=[]), lambda: None, token=token,
        pages=pages.routes(),
    )  # fmt: skip
