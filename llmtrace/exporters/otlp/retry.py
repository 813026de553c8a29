"""Retry a failed export, up to a deadline.

Only responses that OTLP calls retryable are retried, after the wait that the server requests or a
growing one, and never for longer than a fixed time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from llmtrace.core.failopen import count_internal, internal_error

GIVE_UP_AFTER_S: Final = 30.0
_FIRST_WAIT_S: Final = 0.5
_MAX_WAIT_S: Final = 10.0

# Not `random` itself: an application may have seeded it, all replicas with the same seed.
_random: Final = random.SystemRandom()

# Sends one request's bytes and returns the answer's, or raises `RetryExhausted`.
Send = Callable[[bytes], bytes]


class RetryExhausted(Exception):  # noqa: N818 - named after what happened
    """A request that was not accepted.

    Args:
        reason: in words, without anything secret.
        retryable: whether sending it again may help.
        wait_s: the wait that the server requests, in seconds.
    """

    def __init__(self, reason: str, *, retryable: bool, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.retryable = retryable
        self.wait_s = wait_s


def deliver(
    send: Send,
    body: bytes,
    *,
    name: str,
    pause: Callable[[float], bool],
    give_up_after_s: float = GIVE_UP_AFTER_S,
    clock: Callable[[], float] = time.monotonic,
    jitter: Callable[[], float] = _random.random,
) -> None:
    """Send an OTLP export request until it is accepted or it is time to give up.

    Args:
        send: makes one attempt.
        body: the request.
        name: what is rejected out of an accepted request is counted under `<name>.rejected`.
        pause: waits some seconds; returns `False` if there is no more time to wait.
        give_up_after_s: longest time from the first attempt to the last one's start.
        clock: monotonic seconds.
        jitter: 0 to 1, so that many processes do not retry at the same moment.

    Raises:
        RetryExhausted: it was rejected for good, or for too long.
    """
    deadline = clock() + give_up_after_s
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            answer = send(body)
        except RetryExhausted as error:
            if not error.retryable:
                raise
            delay_s = error.wait_s if error.wait_s is not None else wait_s * (0.5 + jitter())
            if clock() + delay_s > deadline or not pause(delay_s):
                raise
            wait_s = min(2 * wait_s, _MAX_WAIT_S)
        else:
            _check(answer, f"{name}.rejected")
            return


def _check(answer: bytes, kind: str) -> None:
    """Count the spans or metrics that the receiver rejected in a request that it accepted."""
    if not answer:
        return
    try:
        # The answers for spans and for metrics differ in names only, not in bytes.
        partial = ExportTraceServiceResponse.FromString(answer).partial_success
    except Exception:  # noqa: BLE001 - some receivers answer JSON or text to protobuf
        return
    if partial.rejected_spans > 0:
        internal_error(kind, partial.error_message or "no reason given")
        count_internal(kind, partial.rejected_spans - 1)
