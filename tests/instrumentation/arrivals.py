"""When data was sent, a client that is blocked meanwhile, and what its row says of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from llmtrace.core.row import Row
from tests.support.machine_noise import allowed_s
from tests.support.taking_time import spend

# Until the content is sent; when the client is blocked, and for how long; between contents.
SENT_S, BLOCKED_S, FOR_S, APART_S = 0.12, 0.05, 0.3, 0.5
_EXACT_S = 0.005
# Between reading two clocks in a row.
_SLACK_S = 0.0005


@dataclass
class Sent:
    """When pieces went out, by `time.perf_counter`: just before and just after."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def send(self, act: Callable[[], object]) -> None:
        """Note when something is sent."""
        before = time.perf_counter()
        act()
        self.spans.append((before, time.perf_counter()))


@contextmanager
def blocked(after_s: float, for_s: float) -> Iterator[None]:
    """Block this thread for a while, wherever it is: what a late scheduler does."""
    before = signal.signal(signal.SIGALRM, lambda *_: spend(for_s))
    if after_s:
        signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def exact_s() -> float:
    """Return how exact a time must be: 5 ms, and the machine's noise."""
    return _EXACT_S + allowed_s()


def at(row: Row, seconds: float | None) -> float:
    """Return when in `time.perf_counter` something happened, of which a row has the seconds."""
    assert seconds is not None
    between = time.time_ns() - time.perf_counter_ns()
    return (row.start - between) / 1e9 + seconds


def expect_bound(found: float, span: tuple[float, float]) -> None:
    """Check that a bound is not before the truth, and at most 5 ms after it, but for noise."""
    before, after = span
    assert before - _SLACK_S - allowed_s() <= found <= after + exact_s() + _SLACK_S


def arrived_by_s(row: Row) -> float:
    """Return the bound of the first content in seconds."""
    assert row.arrived_by_ns is not None
    return row.arrived_by_ns / 1e9


def lag_s(row: Row) -> float:
    """Return the lag in seconds."""
    assert row.client_lag_ns is not None
    return row.client_lag_ns / 1e9


def expect_on_time(row: Row) -> None:
    """Check that there is no lag, and no earlier bound of the first content, but for noise."""
    assert lag_s(row) < exact_s()
    if row.arrived_by_ns is not None:
        assert row.ttft_s is not None
        assert row.ttft_s - arrived_by_s(row) < allowed_s()
