"""Read and write a gateway's time as a comment of an event stream, after its headers have left.

A comment is shown by no parser of events: `:<TAB>llmtrace gateway;dur=53.1;…`, an empty line
after it. A gateway writes it only for a client that declares it is llmtrace. The bytes
pass unchanged; they are searched until the gateway has reported everything.
"""

from __future__ import annotations

from typing import Any, Final

from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.instrumentation.headers import propagation

# JSON has tabs in escaped form only, so that one look for a single byte passes over every event:
# a search for a word would cost ten times as much.
_TAB: Final = 0x09  # a number: `in` takes 20 ns for it, and several times as much for a string
_NAME: Final = b"\tllmtrace "
BEGIN: Final = b":" + _NAME
_MAX_LENGTH: Final = 4096


def line(entries: str) -> bytes:
    """Return the comment line to put between two events, with the entries of `Server-Timing`."""
    return BEGIN + entries.encode("latin-1", "replace") + b"\n\n"


def read(recording: Recording, written: bytes) -> bool:
    """Note what a line that begins with `BEGIN` reports; return whether another may follow."""
    entries = written[len(BEGIN) : len(BEGIN) + _MAX_LENGTH]
    return propagation.commented(recording, entries.decode("latin-1"))


class Comments:
    """Looks for a gateway's comments in the bytes of an event stream.

    Args:
        recording: of the request that they report on.
    """

    __slots__ = ("_recording", "begun", "over")

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.begun = b""  # of a comment that is not all here yet
        self.over = False  # the gateway has reported everything

    def look(self, data: bytes) -> None:
        """Look at the next bytes. Never raises."""
        try:
            self._read(data)
        except Exception as error:  # noqa: BLE001 - the stream goes on
            self.begun, self.over = b"", True
            internal_error("comments", error)

    def _read(self, data: bytes) -> None:
        data = self.begun + data
        self.begun = b""
        at = data.find(_TAB)
        while at >= 0 and not self.over:
            start = data[at : at + len(_NAME)]
            end = data.find(b"\n", at)
            if end < 0 and len(data) - at < _MAX_LENGTH and _NAME.startswith(start):
                self.begun = data[at:]
                return
            if start == _NAME and data[at - 1 : at] in {b":", b""} and 0 <= end - at < _MAX_LENGTH:
                self.over = not read(self._recording, b":" + data[at:end])
            at = data.find(_TAB, at + 1 if end < 0 else end)


def watch(recording: Recording, response: Any) -> None:
    """Look at the bytes of an httpx response as they are decoded, sync or async.

    Its decoder is handed every piece of the body by a plain call, by every way of reading: to look
    there costs a tenth of what one more iterator over the stream would.
    """
    if response.headers.get("content-encoding", "identity") == "identity":
        response._decoder = _Decoder(recording, response._get_content_decoder())  # noqa: SLF001


class _Decoder:
    """Called before a response's own decoder, and removed once everything is reported."""

    def __init__(self, recording: Recording, decoder: Any) -> None:
        self._comments = Comments(recording)
        self._plain = decoder.decode
        self.flush = decoder.flush

    def decode(self, data: bytes) -> Any:
        """Look at a piece of the body, and decode it as usual."""
        if _TAB in data or self._comments.begun:
            self._comments.look(data)
            if self._comments.over:
                self.decode = self._plain  # type: ignore[method-assign]
        return self._plain(data)
