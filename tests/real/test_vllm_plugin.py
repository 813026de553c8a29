"""Does our plugin inside a real vLLM tell of every request, and never get in its way?"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from llmtrace.core.row import Row
from llmtrace.core.stages import EngineFigures, Reported
from llmtrace.engines import local_vllm
from llmtrace.engines.join import client_ids, join
from llmtrace.engines.spans import read_plugin_span
from llmtrace.testing import capture
from tests.exporters.receivers import Answer, Receiver, http_receiver
from tests.exporters.test_wire import attributes_of

from .best_of import settles
from .plugin_path import make_plugin_path
from .test_vllm_server import group_of
from .test_vllm_stages import ASYNC, SYNC, ask_openai, exactly, record

_US = 1_000


@dataclass
class EngineRecords:
    """What the plugin sent, and a switch: while `hang` is set, it gets no response."""

    receiver: Receiver
    hang: threading.Event = field(default_factory=threading.Event)

    def records(self) -> list[tuple[str, EngineFigures]]:
        """Return every record by the engine's id; one that was sent again counts once."""
        spans = {span.span_id: attributes_of(span) for span in self.receiver.spans()}
        return [read for one in spans.values() if (read := read_plugin_span(one)) is not None]

    def of(self, row: Row) -> list[EngineFigures]:
        """Return the records of a row, by the id in its answer."""
        return [
            figures
            for engine_id, figures in self.records()
            if client_ids(engine_id).response_id == row.response_id
        ]

    def wait_for(self, rows: Sequence[Row], timeout_s: float = 20.0) -> None:
        """Wait until each row has a record: they are sent once a second."""
        deadline = time.monotonic() + timeout_s
        while not all(self.of(row) for row in rows):
            assert time.monotonic() < deadline, f"{len(self.records())} records"
            time.sleep(0.05)


@contextmanager
def telling(folder: Path) -> Iterator[tuple[local_vllm.Server, EngineRecords]]:
    """Run a vLLM with the plugin installed and on; yield it and what it tells."""
    path, over = make_plugin_path(folder), threading.Event()

    def answer(_number: int) -> Answer:
        while recorded.hang.is_set() and not over.wait(0.05):
            pass
        return Answer()

    with http_receiver(answer) as receiver:
        recorded = EngineRecords(receiver)
        variables = {
            "PYTHONPATH": str(path),
            "LLMTRACE_VLLM_PLUGIN": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        }
        try:
            with local_vllm.start(env=variables, log=print) as server:
                yield server, recorded
        finally:
            over.set()


@pytest.fixture(scope="module")
def one(
    vllm_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[local_vllm.Server, EngineRecords]]:
    """Run a vLLM with one API server and the plugin."""
    with telling(tmp_path_factory.mktemp("plugin")) as both:
        yield both


def agree(rows: Sequence[Row], recorded: EngineRecords) -> None:
    """Check that each row has one record, which says what the engine says in band."""
    recorded.wait_for(rows)
    for row in rows:
        (figures,) = recorded.of(row)
        if row.client == "openai":  # vLLM says nothing in band on /v1/messages
            for inband, ours in (
                (row.timeline.queue, figures.queue),
                (row.timeline.prefill, figures.prefill),
                (row.timeline.engine_decode, figures.decode),
            ):
                assert (inband.source, ours.source) == ("engine_inband", "engine_plugin")
                assert abs(inband.ns - ours.ns) <= _US
        assert (figures.prompt_tokens, figures.output_tokens) == (
            row.prompt_tokens,
            row.output_tokens,
        )
        assert figures.preemptions == 0
    for before, row in zip(rows, join(rows, recorded.records()), strict=True):
        exactly(row)
        source = "engine_inband" if before.client == "openai" else "engine_plugin"
        assert row.stages.sources["queue"] == row.stages.sources["prefill"] == source
        assert row.stages.first_chunk is not None
        assert row.stages.inconsistent == ()
        assert row.replica is not None


def test_every_request_has_one_record_that_says_what_the_engine_says(one: Any) -> None:
    """Streams and whole answers of all four APIs, sync and async, joined by request id."""
    server, recorded = one
    rows = record(server, [*SYNC, *ASYNC], times=2)

    assert len(rows) == 2 * len([*SYNC, *ASYNC])
    assert {row.outcome for row in rows} == {"success"}
    agree(rows, recorded)


def test_a_request_given_up_has_no_record(one: Any) -> None:
    """The client left while vLLM was at it: only the client's row knows of that.

    It leaves while the engine stands still, and then in the middle of a stream. The engine may be
    done with that one before a starved machine lets the client leave: it counts whether it was.
    """
    server, recorded = one
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        capture() as rows,
    ):
        with engine_stopped(server):
            ask_openai(client, 3_000).close()
            read_metrics(server)  # one loop serves all connections: it has seen that one close
        until_idle(server)
        before = finished(server)
        stream = ask_openai(client, 3_000)
        next(iter(stream))
        stream.close()
        until_idle(server)
        done_first = finished(server) - before
        list(ask_openai(client))
    recorded.wait_for(rows[2:])  # one process's records come in the order its requests ended

    assert [row.outcome for row in rows] == ["cancelled", "cancelled", "success"]
    assert [len(recorded.of(row)) for row in rows] == [0, done_first, 1]


@contextmanager
def engine_stopped(server: local_vllm.Server) -> Iterator[None]:
    """Let the engine's own processes stand still within the block; the API server goes on."""
    engine = [pid for pid in group_of(server.pid) if pid != server.pid]
    assert engine
    try:
        for pid in engine:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in engine:
            os.kill(pid, signal.SIGCONT)


def read_metrics(server: local_vllm.Server) -> str:
    """Return the page of metrics, which the API server writes."""
    return urllib.request.urlopen(f"{server.url}/metrics", timeout=10).read().decode()


def finished(server: local_vllm.Server) -> int:
    """Return how many requests the engine has completed; those that were given up are not."""
    lines = read_metrics(server).splitlines()
    return sum(int(float(line.rpartition(" ")[2])) for line in lines
               if line.startswith("vllm:request_success_total{"))  # fmt: skip


def until_idle(server: local_vllm.Server, timeout_s: float = 60.0) -> None:
    """Wait until the engine runs nothing."""
    deadline = time.monotonic() + timeout_s
    while True:
        page = read_metrics(server)
        running = [line for line in page.splitlines() if "num_requests_running{" in line]
        if running and all(line.endswith(" 0.0") for line in running):
            return
        assert time.monotonic() < deadline, running
        time.sleep(0.1)


@contextmanager
def waits_of(pids: Sequence[int]) -> Iterator[dict[int, float]]:
    """Keep, of each process, the seconds its first thread waits for a CPU within the block."""
    waited, before, over = dict.fromkeys(pids, 0.0), dict.fromkeys(pids, 0.0), threading.Event()

    def look() -> None:
        for pid in pids:
            with suppress(OSError, IndexError):  # it has ended, or the kernel does not count
                seconds = int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
                waited[pid] = seconds - before[pid]

    def watch() -> None:
        while not over.wait(0.1):
            look()

    look()
    before.update(waited)
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield waited
    finally:
        over.set()
        watching.join()


def test_an_exporter_that_hangs_costs_records_and_not_requests(
    one: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing answering, requests are as fast as before; what is lost is counted.

    Then the server is stopped: its processes and its files are gone.
    """
    server, recorded = one
    before: list[float] = []
    during: list[float] = []

    def took(times: int) -> float:
        with capture() as rows:
            for _ in range(times):
                list(ask_openai(client, 32))
        assert [row.outcome for row in rows] == ["success"] * times
        # The faster ones: on a busy machine some wait for reasons of their own.
        return statistics.quantiles((row.e2e_s for row in rows), n=4)[0]

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        def more() -> None:
            recorded.hang.clear()
            before.append(took(15))
            recorded.hang.set()
            during.append(took(15))

        def check() -> None:
            assert during[-1] <= before[-1] * 1.3 + 0.030

        took(3)
        settles(more, check)
    with server.log_path.open(encoding="utf-8") as log:
        running = group_of(server.pid)
        monkeypatch.setattr(local_vllm, "_STOP_S", 90.0)  # a busy machine takes longer than usual
        with waits_of(running) as waited:
            asked = time.monotonic()
            server.stop()
            stopped_s = time.monotonic() - asked
        text = log.read()

    assert re.search(r"llmtrace: .*: \d+ rows? at exit: not sent within", text)
    assert "vllm_plugin failed" not in text
    # vLLM's own end, and 3 s for the records; a second later it would usually be killed.
    assert stopped_s < 14 + sum(waited.values())
    assert len(running) > 1
    assert group_of(server.pid) == []
    assert not server.log_path.parent.exists()


IDLE = """
import logging, sys, threading
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import AggregateStatLoggerBase, load_stat_logger_plugin_factories
from vllm.v1.metrics.stats import IterationStats, RequestStateStats, SchedulerStats

(factory,) = load_stat_logger_plugin_factories()
assert issubclass(factory, AggregateStatLoggerBase)
logger = factory(vllm_config=None, engine_indexes=[0])
logger.log_engine_initialized()
stats = IterationStats()
stats.update_from_finished_request(
    finish_reason=FinishReason.LENGTH, request_id="chatcmpl-lt-01", num_prompt_tokens=7,
    max_tokens_param=9, num_cached_tokens=3, req_stats=RequestStateStats(
        arrival_time=stats.iteration_timestamp - 9, num_generation_tokens=9, queued_ts=1.0,
        scheduled_ts=1.5, first_token_ts=3.5, last_token_ts=7.5,
    ),
)
logger.record(scheduler_stats=SchedulerStats(), iteration_stats=stats, engine_idx=0)
logger.log()

from llmtrace.engines.spans import read_plugin_span
from llmtrace.core.failopen import internal_errors
from llmtrace.engines.vllm_plugin.finished import Engine, finished_request

assert (logger._sink, internal_errors(), threading.active_count()) == (None, {}, 1)
span = finished_request(
    stats.finished_requests[0], Engine(service="vllm"), finished_at=stats.iteration_timestamp
)
print(span.attributes["gen_ai.response.finish_reasons"], read_plugin_span(span.attributes))
"""


def test_installed_and_not_asked_for_it_is_idle_in_vllm(vllm_python: Path, tmp_path: Path) -> None:
    """VLLM finds it; it makes no queue and no thread. VLLM's own classes are read as they are."""
    path = make_plugin_path(tmp_path)
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("LLMTRACE_", "OTEL_"))}
    done = subprocess.run(
        [vllm_python, "-c", IDLE],
        env={**ours, "PYTHONPATH": str(path), "VLLM_PLUGINS": "llmtrace"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "llmtrace is installed and off: LLMTRACE_VLLM_PLUGIN=1 turns it on" in done.stdout
    figures = EngineFigures(
        queue=Reported(500_000_000, "engine_plugin"),
        prefill=Reported(2_000_000_000, "engine_plugin"),
        decode=Reported(4_000_000_000, "engine_plugin"),
        frontend=Reported(2_500_000_000, "engine_plugin"),
        prompt_tokens=7,
        cached_tokens=3,
        output_tokens=9,
        preemptions=0,
    )
    assert done.stdout.splitlines()[-1] == f"('length',) {('chatcmpl-lt-01', figures)}"
