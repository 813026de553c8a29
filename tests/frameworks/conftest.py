"""Fixtures: those of the instrumentation tests, and an underlying SDK, instrumented or not."""

from __future__ import annotations

import os

import pytest

from tests.instrumentation.conftest import _server, faultless, faulty, mode, server

__all__ = ["_server", "faultless", "faulty", "instrumented", "mode", "server"]

# Otherwise LiteLLM downloads its list of prices as it is imported.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.fixture(
    params=[("openai", "httpx", "httpx2"), ("httpx", "httpx2"), ()],
    ids=["sdk", "http", "nothing"],
)
def instrumented(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Instrument the underlying SDK, its HTTP library alone, or nothing."""
    return tuple(request.param)
