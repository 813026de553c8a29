"""Is a real vLLM's page unified into what it did, and does the doctor know it?"""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request

from llmtrace.engines import local_vllm
from llmtrace_collector.commands.doctor import examine
from llmtrace_collector.scrape.fetch import fetch, make_session
from llmtrace_collector.signals.interval import engine_intervals
from llmtrace_collector.signals.normalise import Normaliser, Reading
from llmtrace_collector.signals.profile import builtin_profiles

from .test_vllm_server import stream_chat

REQUESTS, TOKENS = 3, 8


def finished(text: str) -> float:
    """Return how many requests a page says are over, by a reading of it that is not ours."""
    found = re.findall(r"^vllm:e2e_request_latency_seconds_count\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(float(one) for one in found)


def total(reading: Reading, signal: str) -> float:
    """Return a gauge or counter, added up over all series of it."""
    return sum(one.value for one in reading.measured if one.signal.name == signal)


def page(server: local_vllm.Server) -> str:
    """Fetch its page as the collector does."""

    async def get() -> str:
        async with make_session() as session:
            return await fetch(session, f"{server.url}/metrics", timeout_s=30, size=8 << 20)

    return asyncio.run(get())


def test_a_window_holds_the_requests_that_were_made_in_it(vllm: local_vllm.Server):
    """Counts, tokens and times of three requests between two readings, and nothing older."""
    stream_chat(vllm, "before the window", TOKENS)
    normaliser = Normaliser(builtin_profiles())
    first = page(vllm)
    before = normaliser.read(first)
    started = time.perf_counter()
    for number in range(REQUESTS):
        stream_chat(vllm, f"request {number} of the window", TOKENS)
    took = time.perf_counter() - started
    for _ in range(200):  # the last may be counted a moment after it was answered
        second = page(vllm)
        if finished(second) >= finished(first) + REQUESTS:
            break
        time.sleep(0.1)
    after = normaliser.read(second)
    (window,) = engine_intervals(before, after)

    assert [one.signal for one in after.missing if one.why is None] == []
    assert not window.restarted
    for name in ("queue", "prefill", "decode", "ttft", "e2e"):
        assert window.means[name].count == REQUESTS, name
    assert total(after, "generation_tokens") - total(before, "generation_tokens") == (
        REQUESTS * TOKENS
    )
    means = {name: mean.mean_s for name, mean in window.means.items()}
    assert 0 < means["prefill"] <= means["ttft"] <= means["e2e"] <= took
    assert window.frontend_s is not None
    assert abs(means["ttft"] - means["queue"] - means["prefill"] - window.frontend_s) < 1e-9
    assert 0 <= total(after, "kv_usage") <= 1


def test_the_doctor_knows_a_real_vllm(vllm: local_vllm.Server):
    """Its version, all its signals, and what its answers carry."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"{vllm.url}/version", timeout=30
    ) as answer:
        version = json.load(answer)["version"]

    report = asyncio.run(examine(vllm.url, timeout_s=60, ask=True))

    assert report.engines == ("vLLM",)
    assert report.version == version
    assert report.lacking == ()
    assert [one.signal for one in report.signals if one.state == "missing"] == []
    found = {one.setting.split()[0]: one.state for one in report.settings}
    assert found["--enable-per-request-metrics"] == "set"
    assert found["--custom-histogram-buckets"] == "needed"
