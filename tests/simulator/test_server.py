"""Are the simulated engine's metrics true, its shutdown clean, its rejections right?"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmtrace.core.errors import ConfigError
from llmtrace.simulator.engine.realtime import LiveEngine
from llmtrace.simulator.engine.scheduler import EngineConfig, Request
from llmtrace.simulator.server import ServerConfig, SimulatedServer, serve
from tests.support.waiting import until

from .asking import FAST, MODEL, chat, metric, payloads, post, streamed


def test_figures_are_what_the_client_saw() -> None:
    """On an engine at its default speed, the in-band figures match the client's own clock."""
    with serve() as server, httpx2.Client() as http:
        http.get(server.root + "/health")  # the connection is open before the clock starts
        body = streamed("word " * 800, tokens=30)
        started_s = time.perf_counter()
        seen_s: list[float] = []
        with http.stream("POST", server.url + "/chat/completions", json=body) as response:
            for line in response.iter_lines():
                if '"content":"' in line and '"role"' not in line:
                    seen_s.append(time.perf_counter())
                if '"metrics"' in line:
                    figures = json.loads(line.removeprefix("data: "))["metrics"]

    prefill_s = figures["time_to_first_token_ms"] / 1e3
    ttft_s = seen_s[0] - started_s
    assert 0 <= ttft_s - prefill_s - figures["queue_time_ms"] / 1e3 < 0.05
    assert figures["generation_time_ms"] / 1e3 == pytest.approx(seen_s[-1] - seen_s[0], abs=0.05)
    assert figures["mean_itl_ms"] == pytest.approx(figures["generation_time_ms"] / 29)
    inference_ms = figures["time_to_first_token_ms"] + figures["generation_time_ms"]
    assert figures["tokens_per_second"] == pytest.approx(30 / inference_ms * 1e3)


def test_figures_come_from_the_clock_and_not_from_the_plan() -> None:
    """With a clock that jumps a second at every look, the figures are those seconds."""
    ticks = iter(range(1_000))

    async def ask() -> list[float | None]:
        live = LiveEngine(FAST, lambda *_: None, clock=lambda: float(next(ticks)))
        running = asyncio.create_task(live.run())
        with live.answering(Request("a", prompt_tokens=10, output_tokens=3)) as inbox:
            tokens: list[Any] = [await inbox.get() for _ in range(3)]
        running.cancel()
        figures = tokens[-1].figures
        return [figures.queue_s, figures.prefill_s, figures.tpot_s, tokens[1].gap_s]

    queue_s, prefill_s, tpot_s, gap_s = asyncio.run(ask())
    # One look to take in, one to schedule, one to sleep, one to complete.
    assert (queue_s, prefill_s, tpot_s, gap_s) == (1.0, 2.0, 3.0, 3.0)


def test_headers_leave_before_prefill() -> None:
    """As on a bare vLLM the response headers come first, and the body with the first token."""
    slow = ServerConfig(engine=EngineConfig(base_s=0.2, max_num_seqs=1))
    with serve(slow) as server, httpx2.Client() as http:
        http.get(server.root + "/health")
        started_s = time.perf_counter()
        body = streamed(tokens=1)
        with http.stream("POST", server.url + "/chat/completions", json=body) as response:
            headers_s = time.perf_counter() - started_s
            lines = response.iter_lines()
            next(lines)
            first_s = time.perf_counter() - started_s

    assert headers_s < 0.15 < first_s


def test_answer_of_one_token_has_no_mean_gap(engine: SimulatedServer) -> None:
    """The mean of no gap is null, not 0."""
    figures = payloads(post(engine, "/chat/completions", streamed(tokens=1)))[-1]["metrics"]

    assert figures["mean_itl_ms"] is None
    assert figures["generation_time_ms"] == 0


def test_many_clients_queue_and_all_are_served() -> None:
    """Sixteen streams on six slots: all complete, some waited in the queue, metrics agree."""
    with serve(ServerConfig(engine=FAST)) as server, ThreadPoolExecutor(16) as pool:
        bodies = [streamed(f"hello {n}", tokens=40, ignore_eos=True) for n in range(16)]
        answers = list(pool.map(lambda body: post(server, "/chat/completions", body), bodies))
        queue_s = metric(server, "vllm:request_queue_time_seconds_sum")
        finished = metric(server, "vllm:request_success_total", finished_reason="length")
        made = metric(server, "vllm:generation_tokens_total")

    waits_ms = [payloads(answer)[-1]["metrics"]["queue_time_ms"] for answer in answers]
    assert max(waits_ms) > 20
    assert sum(waits_ms) / 1e3 == pytest.approx(queue_s)
    assert (finished, made) == (16, 640)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's sockets from /proc")
def test_connections_do_not_delay_small_writes(engine: SimulatedServer) -> None:
    """Accepted connections have TCP_NODELAY set, or tokens would wait for acknowledgements."""
    with httpx2.Client() as http:
        http.get(engine.root + "/health")
        flags = []
        for entry in Path("/proc/self/fd").iterdir():
            try:
                connection = socket.socket(fileno=int(entry.name))
            except OSError:
                continue  # no socket, or gone by now
            try:
                if connection.getsockname()[1:] == (engine.port,) and connection.getpeername():
                    flags.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            except OSError:
                pass  # the listener has no peer
            finally:
                connection.detach()

    assert flags
    assert all(flags)


def test_metrics_carry_vllms_names(engine: SimulatedServer) -> None:
    """The families dashboards and collectors read are there, labelled, from the first scrape."""
    families = {
        family.name: family
        for family in text_string_to_metric_families(httpx2.get(engine.root + "/metrics").text)
    }

    assert {
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries",
        "vllm:prefix_cache_hits",
        "vllm:num_preemptions",
        "vllm:prompt_tokens",
        "vllm:generation_tokens",
        "vllm:request_success",
        "vllm:iteration_tokens_total",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds",
        "vllm:cache_config_info",
        "llmtrace_simulated_engine_info",
    } <= set(families)
    sample = families["vllm:num_requests_running"].samples[0]
    assert sample.labels == {"engine": "0", "model_name": MODEL}


def test_running_requests_show_in_the_gauges() -> None:
    """While a stream is open on one slot, one request runs, another waits, and the cache fills."""
    one = EngineConfig(base_s=0.005, max_num_seqs=1)
    with serve(ServerConfig(engine=one)) as server, httpx2.Client() as http:
        body = streamed(tokens=4000, ignore_eos=True)
        url = server.url + "/chat/completions"
        with http.stream("POST", url, json=body), http.stream("POST", url, json=body):
            assert until(lambda: metric(server, "vllm:num_requests_waiting") == 1)
            assert metric(server, "vllm:num_requests_running") == 1
            assert 0 < metric(server, "vllm:kv_cache_usage_perc") < 0.2


def test_disconnect_aborts_the_request(engine: SimulatedServer) -> None:
    """A client that goes away frees its slot at once, and never counts as finished."""
    before = metric(engine, "vllm:e2e_request_latency_seconds_count")
    body = streamed(tokens=10_000, ignore_eos=True)
    with httpx2.stream("POST", engine.url + "/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert metric(engine, "vllm:num_requests_running") == 1

    assert until(lambda: metric(engine, "vllm:num_requests_running") == 0)
    assert metric(engine, "vllm:e2e_request_latency_seconds_count") == before


def test_disconnect_aborts_a_whole_answer_too(engine: SimulatedServer) -> None:
    """A client that gives up waiting for a whole answer frees its slot as well."""
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(
            engine.url + "/chat/completions",
            json=chat(max_tokens=10_000, ignore_eos=True),
            timeout=0.1,
        )

    assert until(lambda: metric(engine, "vllm:num_requests_running") == 0)


def test_stop_ends_open_streams() -> None:
    """Stopping the server ends what is open without a finish, and frees the port."""
    with serve(ServerConfig(engine=FAST)) as server:
        body = streamed(tokens=10_000, ignore_eos=True)
        with httpx2.stream("POST", server.url + "/chat/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.stop()
            rest = "".join(lines)

    assert "finish_reason" in rest
    assert "[DONE]" not in rest
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(server.root + "/health")


def test_taken_port_is_refused(engine: SimulatedServer) -> None:
    """A port in use is a configuration error that says what to do."""
    with pytest.raises(ConfigError, match=str(engine.port)), serve(port=engine.port):
        pass


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/chat/completions", "not an object", 400, None),
        ("/chat/completions", {"model": MODEL}, 400, "messages"),
        ("/chat/completions", chat(max_tokens=0), 400, "max_tokens"),
        ("/chat/completions", chat(max_tokens=100_000), 400, "max_tokens"),
        ("/chat/completions", chat(n=2), 400, "n"),
        ("/chat/completions", chat(tools=7), 400, "tools"),
        ("/completions", {"prompt": ["a", "b"]}, 400, "prompt"),
        ("/responses", {"input": []}, 400, "input"),
        ("/chat/completions", chat() | {"model": "gpt"}, 404, "model"),
        ("/responses", {"input": "hello", "model": "gpt"}, 404, "model"),
    ],
)
def test_bad_requests_are_refused_in_openais_shape(
    engine: SimulatedServer, path: str, body: object, status: int, param: str | None
) -> None:
    """What cannot be served gets a status and an error object that names the field."""
    response = post(engine, path, body)

    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (status, param)


def test_broken_json_is_refused(engine: SimulatedServer) -> None:
    """A body that is not JSON is a 400 that still carries the labels."""
    response = httpx2.post(engine.url + "/chat/completions", content=b"{")

    assert response.status_code == 400
    assert response.json()["error"]["type"] == "BadRequestError"
    assert response.headers["server"] == "llmtrace-simulated-engine"


def test_sdks_raise_their_own_errors(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    """An unknown model is a NotFoundError in either SDK."""
    with pytest.raises(openai.NotFoundError, match="gpt"):
        client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        claude.messages.create(
            model="gpt", max_tokens=1, messages=[{"role": "user", "content": "x"}]
        )


def test_unknown_fault_is_refused(engine: SimulatedServer) -> None:
    """A fault header with a typo is refused, with the known names."""
    response = post(engine, "/chat/completions", chat(), x_llmtrace_sim="cut_aftr=3")

    assert response.status_code == 400
    assert "cut_after" in response.json()["error"]["message"]
