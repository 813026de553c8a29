"""Read what a unary response reports from its body, however that is read."""

from __future__ import annotations

import zlib
from typing import Any, Final

from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import NOTHING
from llmtrace.instrumentation.http import llm_requests
from llmtrace.instrumentation.streams.generic_chunks import read_answer

_ANY_HEADER: Final = 47  # of zlib's or of gzip's


class UnaryBody:
    """Classifies pieces as nothing, and notes what the body reports once it is whole."""

    __slots__ = ("_body", "_inflate")

    def __init__(self, encoding: str = "") -> None:
        self._body = bytearray()
        packed = encoding in {"gzip", "deflate"}
        self._inflate = zlib.decompressobj(_ANY_HEADER).decompress if packed else None

    def __call__(self, recording: Recording, piece: bytes | str | dict[str, Any]) -> int:
        """Note the first byte, and, with the last piece, what the whole reports."""
        if isinstance(piece, dict):  # it was read and parsed at once
            read_answer(recording, piece)
            return NOTHING
        if recording.first_byte is None:
            recording.first_byte = recording.mark
        if len(self._body) <= llm_requests.MAX_PARSED:
            data = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
            data = self._inflate(data, llm_requests.MAX_PARSED) if self._inflate else data
            self._body += data
            if data.rstrip().endswith(b"}"):
                read_answer(recording, llm_requests.parsed(bytes(self._body)))
        return NOTHING
