"""Fixtures: one scripted server for all tests, and a record of what went wrong inside llmtrace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module

import pytest

from llmtrace.failopen import internal_errors, reset_internal_errors
from tests.sse_server import Server, serve

from . import answers
from .reading import MODES

# What is recorded is what is imported by then; each SDK may be missing.
for _sdk in ("openai", "anthropic"):
    with suppress(ImportError):
        import_module(_sdk)


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    with serve(answers.chat()) as server:
        yield server


@pytest.fixture
def server(_server: Server) -> Server:
    """Return the server, set to answer a short chat."""
    _server.play(answers.chat())
    return _server


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Run a test with the sync and the async client."""
    return str(request.param)


@pytest.fixture
def faulty() -> None:
    """Say that a test makes something go wrong inside llmtrace."""


@pytest.fixture(autouse=True)
def faultless(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which something went wrong inside llmtrace, unless that was its point."""
    reset_internal_errors()
    yield
    broken = internal_errors()
    reset_internal_errors()
    assert not broken or "faulty" in request.fixturenames
