from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from llmtrace.core.failopen import internal_errors
from llmtrace.exporters.otlp.retry import RetryExhausted, deliver


class Tries:
    """A receiver that fails as set, a clock that its pauses move, and what was waited."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.sent = 0
        self.now = 0.0
        self.waits = []

    def send(self, body):
        """Fail as often as set, then accept."""
        self.sent += 1
        if self.failures:
            raise self.failures.pop(0)
        return b""

    def pause(self, seconds):
        """Wait, on this clock."""
        self.waits.append(seconds)
        self.now += seconds
        return True

    def deliver(self, **given):
        """Deliver to this receiver."""
        deliver(
            self.send,
            b"body",
            name="export.otlp",
            **{"pause": self.pause, "clock": lambda: self.now, "jitter": lambda: 0.5, **given},
        )


def passing(wait_s=None):
    """Make a refusal that may pass."""
    return RetryExhausted("later", retryable=True, wait_s=wait_s)


def test_accepted_at_once():
    """What is accepted is sent once."""
    tries = Tries()
    tries.deliver()

    assert (tries.sent, tries.waits) == (1, [])


def test_waits_grow():
    """Each wait is twice as long as the one before, up to a limit."""
    tries = Tries(*[passing() for _ in range(6)])
    tries.deliver(give_up_after_s=100)

    assert tries.waits == [0.5, 1, 2, 4, 8, 10]


def test_the_server_says_how_long_to_wait():
    """A wait the server asks for replaces our own."""
    tries = Tries(passing(7.0), passing(0.0))
    tries.deliver()

    assert tries.waits == [7.0, 0.0]


def test_a_refusal_for_good_is_not_retried():
    """What another attempt cannot fix is given up at once."""
    tries = Tries(RetryExhausted("no", retryable=False))
    with pytest.raises(RetryExhausted, match="no"):
        tries.deliver()

    assert tries.sent == 1


def test_giving_up():
    """After the time allowed no further attempt is made, however the server asks."""
    tries = Tries(*[passing() for _ in range(99)])
    with pytest.raises(RetryExhausted):
        tries.deliver(give_up_after_s=3.6)
    assert tries.waits == [0.5, 1, 2]

    patient = Tries(passing(3600.0))
    with pytest.raises(RetryExhausted):
        patient.deliver()
    assert patient.waits == []


def test_no_more_waiting_once_closing():
    """When there is no time to pause, the last refusal stands."""
    tries = Tries(passing())
    with pytest.raises(RetryExhausted):
        tries.deliver(pause=lambda _: False)

    assert tries.sent == 1


def test_partial_success_is_counted():
    """Spans an accepted request lost after all are counted."""
    partial = ExportTracePartialSuccess(rejected_spans=3, error_message="too old")
    answer = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    deliver(lambda _: answer, b"", name="export.otlp", pause=lambda _: True)

    assert internal_errors() == {"export.otlp.rejected": 3}


@pytest.mark.parametrize("answer", [b"", b"{}", b"<html>", b"\x0a\x02\x12\x00"])
def test_odd_answers_to_an_accepted_request(answer):
    """An accepted request is accepted, whatever the body says in whatever format."""
    deliver(lambda _: answer, b"", name="export.otlp", pause=lambda _: True)

    assert internal_errors() == {}
