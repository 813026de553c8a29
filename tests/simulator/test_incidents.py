"""Can the embedded engine be given a fault while it runs, and does it show where it should?"""

from __future__ import annotations

import asyncio
import urllib.request

import openai
import pytest

from llmtrace.core.errors import ConfigError
from llmtrace.core.row import Row
from llmtrace.simulator.engine.incidents import INCIDENTS, healthy, incident
from llmtrace.simulator.server import EngineConfig, ServerConfig, SimulatedServer, serve
from llmtrace.testing import capture

CONFIG = healthy(ServerConfig(engine=EngineConfig(seed=3), answer_tokens=20, gateway_s=0.01))


def ask(server: SimulatedServer, prompt: str, at_once: int = 6) -> list[Row]:
    """Ask a few times at once and return the rows."""

    async def run() -> None:
        async with openai.AsyncOpenAI(
            base_url=server.url, api_key="none", max_retries=3
        ) as client:

            async def one(number: int) -> None:
                try:
                    stream = await client.chat.completions.create(
                        model="llmtrace-sim",
                        messages=[{"role": "user", "content": f"{number} {prompt}"}],
                        stream=True,
                    )
                    async for _ in stream:
                        pass
                except openai.APIError:
                    pass

            await asyncio.gather(*(one(number) for number in range(at_once)))

    with capture() as rows:
        asyncio.run(run())
    return rows


def page(server: SimulatedServer, path: str) -> dict[str, float]:
    """Read a metrics page: series without labels' values, summed by name."""
    with urllib.request.urlopen(server.root + path) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line and not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


def total(rows: list[Row], stage: str) -> float:
    """Return seconds in a stage, over all rows."""
    return sum(getattr(row.stages, stage) or 0 for row in rows) / 1e9


def least(rows: list[Row], stage: str) -> float:
    """Return the fewest seconds in a stage of any row: a busy machine only adds to them."""
    return min(getattr(row.stages, stage) or 0 for row in rows) / 1e9


@pytest.mark.parametrize("cause", INCIDENTS)
def test_a_fault_begins_and_ends_while_the_engine_runs(cause):
    """The server goes on answering, before, during and after."""
    with serve(CONFIG) as server:
        assert all(row.outcome == "success" for row in ask(server, "well"))
        server.change(incident(CONFIG, cause, 3))
        during = ask(server, "unwell " * 30, at_once=10)
        server.change(CONFIG)
        assert all(row.outcome == "success" for row in ask(server, "well again"))

    assert len(during) == 10
    for row in during:
        assert row.stages.total == row.e2e_ns


def test_faults_show_in_their_stage_and_on_the_pages():
    """Compared with the healthy server, in one run."""
    long = "word " * 1200
    with serve(CONFIG) as server:
        well = ask(server, long)
        clock = page(server, "/gpu/metrics")["DCGM_FI_DEV_SM_CLOCK"]
        server.change(incident(CONFIG, "gateway_overhead", 1))
        assert least(ask(server, long), "gateway") > least(well, "gateway") + 0.19
        server.change(incident(CONFIG, "prefix_cache_collapse", 3))
        assert sum(row.cached_tokens or 0 for row in ask(server, long)) == 0
        server.change(incident(CONFIG, "gpu_throttle", 3))
        assert least(ask(server, long), "decode") > 1.5 * least(well, "decode")
        assert page(server, "/gpu/metrics")["DCGM_FI_DEV_SM_CLOCK"] < 0.5 * clock
        server.change(incident(CONFIG, "queue_saturation", 3))
        assert total(ask(server, long), "queue") > total(well, "queue")
        server.change(incident(CONFIG, "rate_limit_retries", 3))
        assert max(row.attempts for row in ask(server, long, 12)) > 1
        server.change(incident(CONFIG, "midstream_errors", 3))
        assert any(row.outcome == "error" for row in ask(server, long, 12))


def test_kv_exhaustion_preempts():
    """Long answers outgrow a small cache, and the engine counts it."""
    config = healthy(ServerConfig(engine=EngineConfig(), answer_tokens=400))
    with serve(incident(config, "kv_exhaustion", 3)) as server:
        ask(server, "word " * 800)
        assert page(server, "/metrics")["vllm:num_preemptions_total"] > 0


@pytest.mark.parametrize(
    ("cause", "severity", "said"), [("moon", 2, "no fault 'moon'"), ("gpu_throttle", 7, "1 to 3")]
)
def test_what_cannot_be_is_refused(cause, severity, said):
    """With what is wrong."""
    with pytest.raises(ConfigError, match=said):
        incident(CONFIG, cause, severity)
