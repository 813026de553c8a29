"""On a real vLLM with a real Prometheus: does the collector lose nothing, and agree with both?

The session's vLLM sends its spans to the session's receiver, which hands them on as they came.
"""

from __future__ import annotations

import json
import signal
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import llmtrace
from llmtrace.core.row import Row, from_dict
from llmtrace.core.stages import PARTITION
from tests.collector.collecting import post, process, wait_for
from tests.support.free_ports import free_port

from .conftest import do_without
from .kept import Kept
from .prometheus import PROMETHEUS, missing, prometheus, query, scraping

SERVICE = "real-collector"
_US = 1_000


def ask(client: openai.OpenAI, times: int) -> None:
    """Stream some chats, as an application does."""

    @llmtrace.trace(route="collected")
    def answer(number: int) -> Iterator[str]:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": f"Number {number}. " * 20}],
            max_tokens=12,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content

    for number in range(times):
        assert "".join(answer(number))


def rows_of(web: str, service: str = SERVICE) -> dict[str, dict[str, Any]]:
    """Return the collector's rows of a service, by trace id."""
    url = f"{web}/api/v1/rows?start=-1h&service={service}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        rows = [json.loads(line) for line in answer]
    found = {row["trace_id"]: row for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


def test_nothing_acknowledged_is_lost_and_all_agrees(
    vllm: Any, engine_spans: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle: every row is there once, with the engine's own figures in it."""
    if reason := missing(PROMETHEUS):
        do_without(reason)
    receiver = engine_spans[0]
    http, web_port = str(free_port()), str(free_port())
    flags = ("--otlp-http", http, "--web", web_port, "--target", f"{vllm.url}/metrics")
    settings = {
        "scrape_interval": "1",
        "scrape_timeout": "1",
        "metrics_settle": "1",
        "store_wait": "1",
    }
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{http}/v1/traces")
    undelivered: list[bytes] = []
    handing = threading.Lock()  # the receiver has several threads

    def hand_on(*bodies: bytes) -> None:
        """Send on what the engine sent, later if it is not there, as an exporter would."""
        with handing:
            undelivered.extend(bodies)
            while undelivered:
                try:
                    post(f"http://127.0.0.1:{http}", undelivered[0])
                except OSError:
                    return
                undelivered.pop(0)

    kept = Kept()
    receiver.also = hand_on
    try:
        llmtrace.init(SERVICE, exporters=["otlp", kept])
        with openai.OpenAI(base_url=f"{vllm.url}/v1", api_key="none", max_retries=0) as client:
            with process(tmp_path, *flags, **settings) as (running, _, _):
                ask(client, 6)
                assert llmtrace.flush(60)  # all of it was acknowledged
                for row in kept.rows:
                    receiver.of(row.trace_id)
                running.send_signal(signal.SIGKILL)
                running.wait(60)
            with (
                process(tmp_path, *flags, **settings) as (running, _, web),
                prometheus(scraping({"collector": f"{web}/metrics"})) as scraped,
            ):
                ask(client, 6)
                assert llmtrace.flush(60)
                for row in kept.rows:
                    receiver.of(row.trace_id)
                hand_on()  # what could not be sent while it was not there
                assert undelivered == []
                check_rows(web, kept.rows, receiver)
                check_prometheus(scraped, vllm, web)
                running.send_signal(signal.SIGTERM)
                assert running.wait(60) == 0
    finally:
        receiver.also = None
        llmtrace.shutdown()


def check_rows(web: str, sent: list[Row], receiver: Any) -> None:
    """Every row once, as the application has it, and with what the engine's span tells."""
    found = wait_for(
        lambda: (
            rows
            if len(rows := rows_of(web)) == len(sent)
            and all("engine" in row["reported_by"] for row in rows.values())
            else None
        ),
        "every row, with its engine's span",
    )
    for row in sent:
        fields = found[row.trace_id]
        stored = from_dict(fields)
        assert stored.stages == row.stages
        assert stored.stages.total == stored.e2e_ns
        span = receiver.of(row.trace_id)
        assert stored.stages.sources["queue"] == "engine_inband"
        for stage, name in (
            ("queue", "gen_ai.latency.time_in_queue"),
            ("prefill", "gen_ai.latency.time_in_model_prefill"),
        ):
            assert abs((getattr(stored.stages, stage) or 0) - span[name] * 1e9) <= 2 * _US
        parts = sum(round(fields.get(f"{name}_s", 0) * 1e9) for name in PARTITION)
        assert parts == stored.e2e_ns


def check_prometheus(scraped: str, vllm: Any, web: str) -> None:
    """Prometheus sees the engine as it sees itself, and the requests of this collector's life."""
    with urllib.request.urlopen(f"{vllm.url}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    own = sum(
        float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith("vllm:request_queue_time_seconds_count")
    )
    engine = wait_for(
        lambda: [
            value
            for _, value in query(scraped, "sum(llmtrace_engine_queue_seconds_count)")
            if value == own
        ],
        f"{own:g} requests in the engine's own histogram",
    )
    assert engine
    asked = f'sum(llmtrace_requests_total{{service="{SERVICE}",outcome="success"}})'
    wait_for(lambda: [1 for _, n in query(scraped, asked) if n >= 6], "six requests counted")
    chosen = f'service="{SERVICE}",le="0.15",stage="queue"'
    within = f"sum(llmtrace_stage_duration_seconds_bucket{{{chosen}}})"
    assert query(scraped, within)[0][1] >= 6
    assert query(scraped, "llmtrace_target_up == 1")
    with urllib.request.urlopen(f"{web}/readyz", timeout=60) as ready:
        assert ready.status == 200
