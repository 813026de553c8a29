"""Fixtures: a clock that is moved, what is recorded on it, and a look for what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from llmtrace.core.failopen import internal_errors
from llmtrace.testing import FakeClock, capture
from tests.support.internal_errors import reset_internal_errors

from .asgi import Spans


@dataclass
class Recorded:
    """What a test records."""

    clock: FakeClock
    spans: Spans


@pytest.fixture
def clock() -> FakeClock:
    """A clock that moves when advanced."""
    return FakeClock(1_000_000_000)


@pytest.fixture
def spans(clock: FakeClock) -> Iterator[Spans]:
    """Collect the spans and rows of a test, on its clock."""
    sink = Spans()
    with capture(clock=clock, wall=lambda: 5, sinks=[sink]):
        yield sink


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
