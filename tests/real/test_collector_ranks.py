"""Beside a vLLM of two ranks, two API servers and drafts: does the collector tell them apart?

One vLLM, since it takes a minute to start: data parallel 2, a front end for each rank, n-gram
speculation, its spans straight to the collector by gRPC, our plugin's records by HTTP. It says
nothing of a request's times in its answers, so what rows know of them came those two ways.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

import llmtrace
from llmtrace.core.row import Row, from_dict
from llmtrace.engines import local_vllm
from llmtrace.exporters.otlp.sink import otlp_sink
from llmtrace_collector.store import open_store
from tests.collector.collecting import process, wait_for
from tests.support.free_ports import free_port

from .conftest import IN_ONE_PROCESS, ONE_PROCESS, do_without
from .kept import Kept
from .plugin_path import make_plugin_path
from .prometheus import PROMETHEUS, missing, prometheus, query, scraping
from .test_collector import rows_of

SERVICE: Final = "real-ranks"
TOKENS: Final = 24
DRAFTED: Final = 3  # tokens a draft
LETTERS: Final = [*range(64, 90)]  # a to z: other bytes of the tiny model's are often no text
RANKS: Final = frozenset({"0", "1"})
SPAN: Final = "llm_request"
QUEUE, PREFILL = "gen_ai.latency.time_in_queue", "gen_ai.latency.time_in_model_prefill"
SETTINGS: Final = {
    "scrape_interval": "2",
    "scrape_timeout": "2",
    "metrics_settle": "1",
    "store_wait": "1",
}
_US: Final = 1_000

# What vLLM counts and what the collector makes of it; each series is of one rank.
SAME: Final = {
    "vllm:spec_decode_num_drafts_total": "spec_decode_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total": "spec_decode_drafted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total": "spec_decode_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total":
        "spec_decode_accepted_tokens_by_position_total",
    "vllm:generation_tokens_total": "generation_tokens_total",
    "vllm:prompt_tokens_total": "prompt_tokens_total",
    "vllm:request_success_total": "requests_finished_total",
    "vllm:request_queue_time_seconds_sum": "queue_seconds_sum",
    "vllm:request_prefill_time_seconds_sum": "prefill_seconds_sum",
    "vllm:request_prefill_time_seconds_bucket": "prefill_seconds_bucket",
    "vllm:num_requests_running": "requests_running",
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A vLLM, the ports it sends to, and how a collector is started on them."""

    server: local_vllm.Server
    http: int
    grpc: int

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the collector's command line."""
        ports = ("--otlp-http", str(self.http), "--otlp-grpc", str(self.grpc))
        return (*ports, "--target", f"{self.server.url}/metrics")

    @property
    def otlp(self) -> str:
        """Return where applications send to."""
        return f"http://127.0.0.1:{self.http}"


@pytest.fixture(scope="module")
def place(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Start the vLLM; nothing listens yet where it sends its spans."""
    http, grpc = free_port(), free_port()
    drafts = {"method": "ngram", "num_speculative_tokens": DRAFTED,
              "prompt_lookup_max": 3, "prompt_lookup_min": 1}  # fmt: skip
    flags = (
        *ONE_PROCESS,
        *("--data-parallel-size", "2"),
        *("--speculative-config", json.dumps(drafts)),
        *("--per-request-spec-decode-metrics", "summary"),
        *("--otlp-traces-endpoint", f"grpc://127.0.0.1:{grpc}"),
        "--no-enable-per-request-metrics",
    )
    variables = {
        **IN_ONE_PROCESS,
        "PYTHONPATH": str(make_plugin_path(tmp_path_factory.mktemp("plugin"))),
        "LLMTRACE_VLLM_PLUGIN": "1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{http}",
        "OTEL_BSP_SCHEDULE_DELAY": "500",  # ms; vLLM's spans wait for company, 5 s by default
    }
    serve = ("-m", "vllm.entrypoints.cli.main", "serve")
    with local_vllm.start(flags=flags, env=variables, program=serve, log=print) as server:
        yield Place(server, http, grpc)
    shutil.rmtree(server.log_path.parent, ignore_errors=True)  # it stays when a test killed vLLM


@pytest.fixture
def kept(place: Place) -> Iterator[Kept]:
    """Set llmtrace up to send to the collector, and keep what it sends."""
    rows = Kept()
    # A collector that starts again may take its time on a busy machine.
    sink = otlp_sink(endpoint=place.otlp, give_up_after_s=300)
    llmtrace.init(SERVICE, exporters=[sink, rows])
    try:
        yield rows
    finally:
        llmtrace.shutdown()


def ask(server: local_vllm.Server, numbers: Sequence[int]) -> None:
    """Stream chats that repeat themselves, four at a time, over a connection each."""

    @llmtrace.trace(route="ranks")
    def answer(client: openai.OpenAI, number: int) -> Iterator[str]:
        stream = client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": f"Number {number}. " * 20}],
            max_tokens=TOKENS,
            temperature=0,  # or no draft is right
            stream=True,
            extra_body={"ignore_eos": True, "allowed_token_ids": LETTERS},
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content

    def whole(number: int) -> None:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            assert "".join(answer(client, number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(whole, numbers))


def reported_by_all(web: str, sent: Sequence[Row]) -> dict[str, dict[str, Any]] | None:
    """Return the collector's rows once it has these, and both records of each."""
    found = rows_of(web, SERVICE)
    whole = (found.get(row.trace_id, {"reported_by": []})["reported_by"] for row in sent)
    return found if all({"engine", "plugin"} <= set(fields) for fields in whole) else None


def get(url: str) -> str:
    """Fetch a page."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def engine_page(server: local_vllm.Server) -> dict[tuple[str, str, str], float]:
    """Read vLLM's own page: by our name, rank and the series' own label."""
    return {
        (SAME[one.name], one.labels["engine"], own_label(one.labels)): one.value
        for family in text_string_to_metric_families(get(f"{server.url}/metrics"))
        for one in family.samples
        if one.name in SAME
    }


def collector_page(web: str) -> dict[tuple[str, str, str], float]:
    """Read the same from the collector's page."""
    head, found = "llmtrace_engine_", {}
    for family in text_string_to_metric_families(get(f"{web}/metrics")):
        for one in family.samples:
            if (name := one.name.removeprefix(head)) in SAME.values():
                key = (name, one.labels["replica"], own_label(one.labels))
                assert key not in found, "a series is there twice"
                found[key] = one.value
    return found


def counted(web: str) -> float:
    """Return how many requests the collector has counted."""
    return sum(
        one.value
        for family in text_string_to_metric_families(get(f"{web}/metrics"))
        for one in family.samples
        if one.name == "llmtrace_requests_total" and one.labels["service"] == SERVICE
    )


def own_label(labels: dict[str, str]) -> str:
    """Return the label a series has beside model and rank."""
    names = ("position", "finished_reason", "reason", "le")
    text = next((labels[name] for name in names if name in labels), "")
    return str(float(text)) if "le" in labels else text


def test_two_ranks_two_front_ends_and_drafts(place: Place, kept: Kept, tmp_path: Path) -> None:
    """Rows and signals agree with the engine by rank; killed, nothing acknowledged is lost."""
    server = place.server
    with process(tmp_path, *place.flags, **SETTINGS) as (running, _, web):
        ask(server, range(8))
        assert llmtrace.flush(60)
        rows = wait_for(lambda: reported_by_all(web, kept.rows), "8 rows, with both records")
        page = wait_for(lambda: settled(server, web), "all of it on the collector's page")
        check_rows(web, kept.rows, rows)
        check_ranks(kept.rows, rows, page)
        wait_for(lambda: counted(web) == len(kept.rows), "each request counted once")
        running.send_signal(signal.SIGKILL)
        running.wait(60)
    ask(server, range(8, 12))
    with process(tmp_path, *place.flags, **SETTINGS) as (running, _, web):
        ask(server, range(12, 16))
        assert llmtrace.flush(120)
        certain = [*kept.rows[:8], *kept.rows[12:]]
        found = wait_for(lambda: reported_by_all(web, certain), "16 rows")
        assert len(found) == len(kept.rows) == 16
        assert [found[row.trace_id] for row in kept.rows[:8]] == [
            rows[row.trace_id] for row in kept.rows[:8]
        ]
        for row in kept.rows[8:12]:  # vLLM may have given up on telling of these
            fields = found[row.trace_id]
            assert ("queue_s" in fields) == bool({"engine", "plugin"} & set(fields["reported_by"]))
        check_rows(web, certain, found)
        assert wait_for(lambda: settled(server, web), "the page of a new collector")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    # Each API server has a plugin of its own, which tells of the requests it took.
    asked = ("SELECT uniqExact(ResourceAttributes['service.instance.id']) FROM otel_traces"
             " WHERE SpanName = 'llmtrace.engine_request'")  # fmt: skip
    with closing(open_store(tmp_path / "store")) as store:
        assert store.query(asked) == [(2,)]


def settled(server: local_vllm.Server, web: str) -> dict[tuple[str, str, str], float] | None:
    """Return the engine's own page once nothing runs and the collector's says the same."""
    own, ours = engine_page(server), collector_page(web)
    idle = all(own["requests_running", rank, ""] == 0 for rank in RANKS)
    return own if idle and own == ours else None


def check_rows(web: str, sent: Sequence[Row], found: dict[str, dict[str, Any]]) -> None:
    """Each row as its application has it, and with what the engine's one span says of it."""
    for row in sent:
        fields = found[row.trace_id]
        stored = from_dict(fields)
        trace = json.loads(get(f"{web}/api/v1/traces/{row.trace_id}"))
        [span] = [span["attributes"] for span in trace["spans"] if span["name"] == SPAN]
        assert len(trace["rows"]) == 1
        assert (row.outcome, row.output_tokens) == ("success", TOKENS)
        assert row.stages.queue is None  # the answer did not say
        assert stored.stages.total == stored.e2e_ns == row.e2e_ns
        assert stored.stages.inconsistent == ()
        for stage, name in (("queue", QUEUE), ("prefill", PREFILL)):
            assert stored.stages.sources[stage] == "engine_span"
            assert abs(getattr(stored.stages, stage) - float(span[name]) * 1e9) <= _US
        assert fields["replica"].rpartition("/")[2] in RANKS


def check_ranks(
    sent: Sequence[Row], found: dict[str, dict[str, Any]], page: dict[tuple[str, str, str], float]
) -> None:
    """Of each rank its rows add up to its counters: requests, tokens, drafts, times."""
    sums: Counter[tuple[str, str]] = Counter()
    for row in sent:
        fields = found[row.trace_id]
        rank = fields["replica"].rpartition("/")[2]
        sums["requests_finished_total", rank] += 1
        for field, signal_name in (
            ("output_tokens", "generation_tokens_total"),
            ("prompt_tokens", "prompt_tokens_total"),
            ("spec_drafted", "spec_decode_drafted_tokens_total"),
            ("spec_accepted", "spec_decode_accepted_tokens_total"),
            ("queue_s", "queue_seconds_sum"),
            ("prefill_s", "prefill_seconds_sum"),
        ):
            sums[signal_name, rank] += fields[field]
    assert {rank for _, rank in sums} == RANKS, "one rank served all"
    assert {name for name, _, _ in page} == set(SAME.values())
    for (name, rank), value in sums.items():
        of_rank = [v for (n, r, _), v in page.items() if (n, r) == (name, rank)]
        assert sum(of_rank) == pytest.approx(value, abs=1e-6), (name, rank)
        assert value > 0, (name, rank)
    for rank in RANKS:
        name = "spec_decode_accepted_tokens_by_position_total"
        by_position = [page[name, rank, str(position)] for position in range(DRAFTED)]
        assert sum(by_position) == page["spec_decode_accepted_tokens_total", rank, ""]


def test_an_engine_that_dies_leaves_a_row_and_a_gap(
    place: Place, kept: Kept, tmp_path: Path
) -> None:
    """The request it held is an error of unknown stages; its signals end, rather than stay."""
    if reason := missing(PROMETHEUS):
        do_without(reason)
    server = place.server
    running_now = "llmtrace_engine_requests_running"
    with (
        process(tmp_path, *place.flags, **SETTINGS) as (_, _, web),
        prometheus(scraping({"collector": f"{web}/metrics"})) as scraped,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        seen = wait_for(lambda: query(scraped, running_now), "signals in Prometheus")
        assert {labels["replica"] for labels, _ in seen} == RANKS
        stream = client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": "Tell me all."}],
            max_tokens=3_000,
            stream=True,
            extra_body={"ignore_eos": True, "allowed_token_ids": LETTERS},
        )
        next(iter(stream))
        os.killpg(server.pid, signal.SIGKILL)
        with pytest.raises(openai.APIError):
            list(stream)
        assert llmtrace.flush(60)

        [row] = kept.rows
        fields = wait_for(lambda: rows_of(web, SERVICE).get(row.trace_id), "the row")
        stored = from_dict(fields)
        assert (stored.outcome, fields["reported_by"]) == (row.outcome, ["row"])
        assert row.outcome == "error"
        assert stored.stages.queue is None
        assert stored.stages.total == stored.e2e_ns == row.e2e_ns
        wait_for(lambda: query(scraped, "llmtrace_target_up == 0"), "that the target is down")
        wait_for(lambda: not query(scraped, running_now), "a gap")
        assert collector_page(web) == {}
        assert query(scraped, f"count_over_time({running_now}[10m])")  # what it was is still there
