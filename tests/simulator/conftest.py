"""Fixtures: one fast simulated engine a file, and the two SDKs pointed at it."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest

from llmtrace.simulator.server import ServerConfig, SimulatedServer, serve

from .asking import FAST


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatedServer]:
    """Serve a fast engine that all tests of a file share."""
    with serve(ServerConfig(engine=FAST)) as server:
        yield server


@pytest.fixture
def client(engine: SimulatedServer) -> Iterator[openai.OpenAI]:
    """Return OpenAI's own client of that engine, without retries."""
    with openai.OpenAI(base_url=engine.url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def claude(engine: SimulatedServer) -> Iterator[anthropic.Anthropic]:
    """Return Anthropic's own client of that engine, without retries."""
    with anthropic.Anthropic(base_url=engine.root, api_key="none", max_retries=0) as made:
        yield made
