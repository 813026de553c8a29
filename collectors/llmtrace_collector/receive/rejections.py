"""The reasons for which a request is rejected, and their HTTP and gRPC status.

After some answers a sender tries again, after the others it drops its data; see
https://opentelemetry.io/docs/specs/otlp/#failures. Each refusal has one word, which also counts
it.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Answer(NamedTuple):
    """How a refusal is answered.

    Attributes:
        status: of HTTP.
        code: of gRPC, by name.
        again: whether the sender is to send it again.
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
    """A request is not taken.

    Attributes:
        reason: one of `ANSWERS`.
        words: for the people at the sender; repeats nothing of what they sent.
    """

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason
        self.words = words

    @property
    def answer(self) -> Answer:
        """The response that the reason gets."""
        return ANSWERS[self.reason]
