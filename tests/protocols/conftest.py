"""Fixtures: a record of what went wrong inside llmtrace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmtrace.core.failopen import internal_errors
from tests.support.internal_errors import reset_internal_errors


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
