"""The reasons for which a request is rejected, and their HTTP and gRPC status.

After some responses a sender retries, after the others it drops its data; see
https://opentelemetry.io/docs/specs/otlp/#failures. Each reason is one word, by which
rejections are also counted.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Answer(NamedTuple):
    """The response to a rejected request.

    Attributes:
        status: of HTTP.
        code: of gRPC, by name.
        again: whether the sender should retry.
    """

    status: int
    code: str
    again: bool = False


ANSWERS: Final = {
    "bad_data": Answer(400, "INVALID_ARGUMENT"),
    "unauthenticated": Answer(401, "UNAUTHENTICATED"),
    "origin": Answer(403, "PERMISSION_DENIED"),
    "too_slow": Answer(408, "DEADLINE_EXCEEDED"),
    "too_large": Answer(413, "INVALID_ARGUMENT"),
    "media_type": Answer(415, "UNIMPLEMENTED"),
    "encoding": Answer(415, "UNIMPLEMENTED"),
    "overloaded": Answer(429, "RESOURCE_EXHAUSTED", again=True),
    "spool_full": Answer(503, "UNAVAILABLE", again=True),
    "disk_full": Answer(503, "UNAVAILABLE", again=True),
    "spool_error": Answer(503, "UNAVAILABLE", again=True),
    "stopping": Answer(503, "UNAVAILABLE", again=True),
}


class RejectedError(Exception):
    """A request is rejected.

    Attributes:
        reason: one of `ANSWERS`.
        words: for the sender's operators; repeats nothing of what was sent.
    """

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason
        self.words = words

    @property
    def answer(self) -> Answer:
        """The response that the reason gets."""
        return ANSWERS[self.reason]
