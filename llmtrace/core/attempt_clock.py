"""Time the HTTP attempts of one request, and charge those that failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from llmtrace.core.attempts import MAX_ATTEMPTS, Attempt, keep
from llmtrace.core.request_clock import Clock, RequestClock, since
from llmtrace.core.row import Outcome
from llmtrace.core.stages import Network, Reported

_HTTP_ERROR: Final = 400


@dataclass(slots=True)
class LiveAttempt:
    """One HTTP attempt as it goes: monotonic nanoseconds, `None` until it happened."""

    started: int
    first_wire: int | None = None
    phase_started: int = 0
    dns: int | None = None
    connect: int | None = None
    tunnel: int = 0  # what a proxy took to connect on, after `connect` and before TLS
    tls: int | None = None
    handshake: int | None = None
    send_started: int | None = None
    send: int | None = None
    rtt: Reported | None = None
    sent: bool = False
    answered: int | None = None
    status: int | None = None
    under_way: bool = False  # sent by one HTTP library, which may use another for it
    ended: int | None = None  # where it failed: by an error's headers, or by an exception
    error: str | None = None
    retry_after: int | None = None


class AttemptClock(RequestClock):
    """The clock of a request that HTTP attempts are made for."""

    __slots__ = (
        "attempt_log", "attempts", "attempts_forgotten", "client", "retry_gateway",
        "retry_network",
    )  # fmt: skip

    def __init__(self, clock: Clock, wall: Clock) -> None:
        super().__init__(clock, wall)
        self.attempts: list[LiveAttempt] = []
        self.attempts_forgotten = 0
        self.attempt_log: list[Attempt] = []  # attempts that are over
        # From the start to the first attempt, less consumer time and marks; None: no attempt seen.
        self.client: int | None = None
        self.retry_network = self.retry_gateway = 0

    def attempt(self) -> LiveAttempt:
        """Begin an HTTP attempt; a failed one before it is charged to the side that failed it."""
        now = self.clock()
        last = self.attempts[-1] if self.attempts else None
        if last is not None and (last.status is None or last.status >= _HTTP_ERROR):
            self.charge(last, now)
        else:
            # The first, or an earlier call of a decorated function that went well: all the time
            # up to here was the client's own.
            marked = sum(self.marked_before.values()) if self.marked_before else 0
            retried = self.retry_network + self.retry_gateway
            self.client = since(self.start + self.consumer_time + marked + retried, now)
            self.attempts.clear()
            self.attempts_forgotten = 0
        attempt = LiveAttempt(now)
        self.attempts.append(attempt)
        if len(self.attempts) > MAX_ATTEMPTS:
            del self.attempts[0]
            self.attempts_forgotten += 1
        return attempt

    def charge(self, failed: LiveAttempt, now: int) -> None:
        """Charge a failed attempt and its backoff to the answering gateway, or to the network."""
        if failed.status is None:
            self.retry_network += now - failed.started
        else:
            self.retry_gateway += now - failed.started
        self.keep_attempt(failed, now)

    def keep_attempt(self, attempt: LiveAttempt, now: int) -> None:
        """Keep what an attempt came to; the time since it failed was backoff."""
        ended = now if attempt.ended is None else min(now, attempt.ended)
        duration = max(0, ended - attempt.started)
        one = Attempt(
            start_ns=max(0, attempt.started - self.start),
            duration_ns=duration,
            backoff_ns=max(0, now - attempt.started - duration),
            status=attempt.status,
            error_type=attempt.error,
            retry_after_ns=attempt.retry_after,
        )
        keep(self.attempt_log, one)

    def network(self) -> Network:
        """Sub-phases of the attempt that carried the answer, from its waiting for a connection."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or last.first_wire is None:  # the HTTP library reported nothing
            return Network()
        return Network(
            client_wait=last.first_wire - last.started,
            dns=last.dns,
            connect=None if last.connect is None else last.connect + last.tunnel,
            tls=last.tls,
            handshake=last.handshake,
            send=last.send,
            rtt=None if last.rtt is None else last.rtt.ns,
            rtt_source=None if last.rtt is None else last.rtt.source,
        )

    def last_failed(self, last: LiveAttempt, outcome: Outcome) -> bool:
        """Say whether the request ended with its last attempt's failure, or in its backoff."""
        if self.ttft is not None or outcome == "success":
            return False
        if last.status is not None:
            return last.status >= _HTTP_ERROR
        # Time that ran out once the request was sent passed on the server, not on the way.
        return outcome == "error" or (outcome == "timeout" and not last.sent)
