"""Find the first content in the bytes of an event stream, and where its events end.

The gateway passes bytes on and does not parse them, except for this, and only up to the first
content.
"""

from __future__ import annotations

from typing import Final

from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import NOTHING
from llmtrace.instrumentation.http.sse import Events

_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_DONE_ENDS: Final = tuple(b"[DONE]" + end for end in (*_ENDS, b"\n", b"\r\n", b""))


class FirstContent:
    """Finds the first event that carries content, however the bytes are cut."""

    __slots__ = ("_events", "_scratch")

    def __init__(self) -> None:
        self._events = Events(whole=False)
        # What the events report is noted where the request is recorded; there is no row here.
        self._scratch = Recording(lambda _, __: None, {})
        self._scratch.in_decorated_function = True

    def in_these(self, data: bytes) -> bool:
        """Return whether the first content is, or ends, in the next bytes."""
        kind = self._events(self._scratch, data)
        return kind > NOTHING or self._scratch.ttft is not None


def at_end_of_event(data: bytes) -> bool:
    """Return whether bytes end where an event does."""
    return data.endswith(_ENDS)


def before_the_last(data: bytes, *, boundary: bool) -> int | None:
    """Return where the event begins that ends an OpenAI stream, `data: [DONE]`.

    `boundary` says whether an event ends right before these bytes.
    """
    if not data.endswith(_DONE_ENDS):
        return None
    at = data.rfind(b"data:")
    begins = boundary if at == 0 else at > 0 and data[:at].endswith(_ENDS)
    return at if begins else None
