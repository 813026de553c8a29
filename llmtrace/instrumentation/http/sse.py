"""Classify the bytes of an event stream that no SDK parses.

Events of known protocols are read as they pass: content and its kind, finish reason, usage, the
engine's timings, errors. Nearly all events of a stream differ in one text alone: they are
recognised by the rest, and only the others are parsed. Nothing is delayed or changed.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from llmtrace.core.error_codes import code_in, family_in
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import HIDDEN, NOTHING, OTHER, PIECE, REASONING, TEXT, TOOL_CALL
from llmtrace.instrumentation.headers import sse_comments as comments
from llmtrace.instrumentation.llm_sdks import chunks, message_content
from llmtrace.instrumentation.llm_sdks.attribute_view import View
from llmtrace.instrumentation.streams.chunk_timing import Classify

# Longer events than this are not parsed, and no more than this is ever kept.
_MAX_LENGTH: Final = 1 << 20
_MAX_NAME: Final = 64
# Where every event differs in more than its text, as by a number, there is no pattern to learn.
_MAX_LESSONS: Final = 16

_DATA: Final = b"data:"
_EVENT: Final = b"event:"
_DONE: Final = b"[DONE]"
_ERROR: Final = b"error"
_BOM: Final = b"\xef\xbb\xbf"
_JSON: Final = (b"{", b"[")
# Numbers: looking for one takes a quarter of the time that looking for a string does.
_NEWLINE: Final = 0x0A
_COLON: Final = 0x3A
FIELDS: Final = (_DATA, _EVENT, b"id:", b"retry:")

_LEARNABLE: Final = frozenset({TEXT, REASONING, TOOL_CALL})
# The one text in which events differ; what OpenAI pads them with differs, too.
_TEXT: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|thinking|partial_json|arguments)"'
    rb'\s*:\s*"((?:[^"\\]|\\.)+)"'
)
_PADDING: Final = re.compile(rb'"obfuscation"\s*:\s*"')
# Kinds of events by their names, as the Responses API sends them along.
_NAMED: Final[Mapping[bytes, int]] = {
    name.encode(): kind for name, kind in chunks.RESPONSE_DELTAS.items()
}
_EMPTY: Final = re.compile(rb'"delta"\s*:\s*""')
_LAST: Final = frozenset(
    {"message_stop", "response.completed", "response.incomplete", "response.failed"}
)
_ANTHROPIC: Final = frozenset(
    {
        "message_start", "content_block_start", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop", "ping",
    }
)  # fmt: skip


def looks_like_events(piece: bytes | str) -> bool:
    """Return whether a stream that begins like this is one of server-sent events."""
    begin = piece[:9].encode() if isinstance(piece, str) else piece[:9]
    return begin.removeprefix(_BOM).startswith(FIELDS)


class _Lesson(NamedTuple):
    """The bytes that events have in common which differ in one text alone.

    Attributes:
        head: up to the text.
        tail: from its end on, up to where the event ends or its padding begins.
        kind: of what they carry.
        empty: found in events that carry nothing.
    """

    head: bytes
    tail: bytes
    kind: int
    empty: bytes | None = None

    def knows(self, data: bytes) -> bool:
        """Return whether a piece is one of those events, and nothing else."""
        head, tail, _, empty = self
        if not data.startswith(head):
            return False
        end = data.find(tail, len(head))
        # With a colon in it, more than padding and line ends follows.
        if end <= len(head) or _COLON in data[end + len(tail) :]:
            return False
        return empty is None or empty not in data


class Events:
    """Classifies the pieces of one event stream, however its bytes are cut.

    Args:
        whole: the stream is read as the server sends it, so that it must end with a finish reason.
        lines: each piece is a line without its end.
        encoding: how the bytes are compressed, as its header says.
        comments: a gateway may report more after the last event.
    """

    __slots__ = (
        "_comments", "_counted", "_cr", "_data", "_inflate", "_left", "_lessons", "_lines",
        "_name", "_of_lines", "_of_pieces", "_over", "_parsed", "_readable", "_skipping",
        "_useful",
    )  # fmt: skip

    def __init__(
        self,
        *,
        whole: bool = True,
        lines: bool = False,
        encoding: str = "",
        comments: bool = False,
    ) -> None:
        self._comments = comments
        self._parsed = Parsed(whole=whole)
        self._lines = lines
        encoding = encoding.strip().lower()
        gzip = encoding in {"gzip", "x-gzip", "deflate"}
        self._readable = gzip or encoding in {"", "identity"}
        self._inflate = zlib.decompressobj(wbits=47) if gzip else None
        self._left = bytearray()  # of a line that is not complete yet
        self._skipping = False  # the rest of a line that is too long
        self._cr = False  # the last line ended with a CR, of which the LF may follow
        self._data = b""  # of an event in several lines, so far
        self._counted = False  # this event was, although nothing in it can be read
        self._name = b""
        self._over = False  # the last event was read
        self._of_pieces: _Lesson | None = None
        self._of_lines: _Lesson | None = None
        self._lessons = 0
        self._useful = False  # whether the last lesson was

    def __call__(self, recording: Recording, piece: bytes | str) -> int:
        """Note what a piece reports, and return its kind: of several events, the last one's."""
        lesson = self._of_pieces
        if lesson is not None and piece.__class__ is bytes:
            head, tail, kind, empty = lesson  # `knows`, inline: this is nearly every piece
            if (
                piece.startswith(head)
                and (end := piece.find(tail, len(head))) > len(head)
                and _COLON not in piece[end + len(tail) :]
                and (empty is None or empty not in piece)
                and not self._left
                and (piece[-1] == _NEWLINE or self._lines)
            ):
                self._useful = True
                return kind
        if isinstance(piece, str):
            piece = piece.encode("utf-8", "surrogatepass")
        if self._inflate is not None:
            piece = self._inflated(piece)
        if not self._readable:
            self._all(recording, [], piece)
            return OTHER if piece else PIECE
        return self._all(recording, self._whole_lines(piece), piece)

    def _inflated(self, piece: bytes) -> bytes:
        inflate: Any = self._inflate
        try:
            inflated: bytes = inflate.decompress(piece, _MAX_LENGTH)
        except zlib.error:
            inflated, self._readable = piece, False
        if inflate.unconsumed_tail:  # no server sends that much at once
            self._readable = False
        return inflated

    def tell(self, recording: Recording, body: bytes) -> None:
        """Note what a stream that is complete already reports, without timing."""
        for line in self._whole_lines(body[:_MAX_LENGTH]):
            self._line(recording, line, line)

    def sent(self, recording: Recording, name: str, data: str) -> int:
        """Note what an event reports that a library has parsed from its stream already."""
        self._name = name[:_MAX_NAME].encode()
        line = _DATA + b" " + data.encode("utf-8", "surrogatepass")
        return self._all(recording, [line, b""], line)

    # --- lines ----------------------------------------------------------------------------------

    def _whole_lines(self, piece: bytes) -> list[bytes]:
        if self._lines:
            return [piece]
        if self._cr or b"\r" in piece:
            piece = self._with_lf(piece)
        if b"\n" not in piece:
            self._hold(piece)
            return []
        if self._left:
            piece = bytes(self._left) + piece
            self._left.clear()
        *lines, left = piece.split(b"\n")
        if self._skipping:
            del lines[0]
            self._skipping = False
        self._hold(left)
        return lines

    def _with_lf(self, piece: bytes) -> bytes:
        """End lines with LF alone; they may end with CR, LF or both, cut in between."""
        if self._cr and piece:
            piece = piece.removeprefix(b"\n")
            self._cr = False
        self._cr = self._cr or piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, left: bytes) -> None:
        if self._skipping:
            return
        self._left += left
        if len(self._left) > _MAX_LENGTH:
            self._left.clear()
            self._skipping = True

    def _all(self, recording: Recording, lines: list[bytes], piece: bytes) -> int:
        if recording.first_byte is None and recording.reads_bytes:
            recording.first_byte = recording.mark
        found = PIECE
        for line in lines:
            if found != PIECE and line.startswith(_DATA):
                recording.event(found)  # before the next one is read, which may take it back
                found = PIECE
            found = max(found, self._line(recording, line, piece))
        if self._over:
            self._over = False
            recording.event(found)
            recording.exhausted()  # everything was sent, and some clients read no further
            return PIECE
        return found

    def _line(self, recording: Recording, line: bytes, piece: bytes) -> int:
        if line.startswith(_DATA):
            if self._data:
                return self._more(line)
            lesson = self._of_lines
            if lesson is not None and lesson.knows(line):
                self._useful = True
                return lesson.kind
            kind, lesson = self._event(recording, line)
            if lesson is not None and recording.content is None:
                self._learn(lesson, line, piece)
            return kind
        if line.startswith(_EVENT):
            self._name = line[len(_EVENT) : _MAX_NAME].strip()
        elif line in {b"", b"\r"}:
            kind = self._several(recording) if self._data else PIECE
            self._name, self._counted = b"", False
            return kind
        elif line.startswith(_BOM):
            return self._line(recording, line.removeprefix(_BOM), piece)
        elif line.startswith(comments.BEGIN):
            comments.read(recording, line)
        return PIECE

    def _event(self, recording: Recording, line: bytes) -> tuple[int, _Lesson | None]:
        """Note what an event reports; return its kind, and the lesson learnt from it."""
        named = _NAMED.get(self._name)
        if named is not None and recording.content is None and line.rstrip().endswith(b"}"):
            empty = _EMPTY.search(line)
            return (NOTHING, None) if empty else (named, _named_lesson(named, line))
        data = line[len(_DATA) :].strip()
        if data == _DONE:
            self._over = True
            return PIECE, None
        kind = self._read(recording, data)
        if kind is None:
            if data.startswith(_JSON):  # the rest of it may follow in further lines
                self._data = data
                return PIECE, None
            # Not a known protocol: it only counts as content, once an event.
            kind = PIECE if self._counted else OTHER
            self._counted = True
            return kind, None
        return kind, _text_lesson(kind, line) if kind in _LEARNABLE else None

    def _more(self, line: bytes) -> int:
        """Keep another line of an event in several."""
        self._data += b"\n" + line[len(_DATA) :].strip()
        if len(self._data) > _MAX_LENGTH:
            self._data = self._data[:_MAX_LENGTH]  # no JSON any more
        return PIECE

    def _several(self, recording: Recording) -> int:
        """Note what an event in several lines reports, now that it is complete."""
        data, self._data = self._data, b""
        kind = self._read(recording, data)
        return OTHER if kind is None else kind

    def _read(self, recording: Recording, data: bytes) -> int | None:
        """Note what an event's data reports; return its kind, or `None` if it cannot be read."""
        failed = self._name == _ERROR
        try:
            event = json.loads(data)
            if failed and not (isinstance(event, dict) and event.get("error")):
                because = code_in(event) or family_in(event) or "error"
                recording.failure = ("error", because)
                return NOTHING
            kind = self._parsed(recording, event) if isinstance(event, dict) else OTHER
            last = isinstance(event, dict) and _is_last(recording, event.get("type"))
            self._over = last and not self._comments
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            if failed and not data.startswith(_JSON):
                recording.failure = ("error", "error")
                return NOTHING
            return None
        return kind

    def _learn(self, lesson: _Lesson, line: bytes, piece: bytes) -> None:
        if self._lessons >= _MAX_LESSONS and not self._useful:
            return
        self._lessons += 1
        self._useful = False
        # With the event's name before it, where the piece holds nothing else.
        before = piece[: piece.find(line)]
        named = lesson.empty is not None  # a line alone is not enough without the event's name
        if not named:
            self._of_lines = lesson
        if piece.count(_DATA) == 1 and (before.startswith(_EVENT) or not (before or named)):
            self._of_pieces = lesson._replace(head=before + lesson.head)


class Parsed:
    """Classifies events that are parsed already."""

    __slots__ = ("_classify", "_whole")

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole
        self._classify: Classify | None = None

    def __call__(self, recording: Recording, event: dict[str, Any]) -> int:
        """Note what an event reports, and return its kind."""
        kind = event.get("type")
        if event.get("error") or kind == "error":
            recording.failure = ("error", code_in(event) or family_in(event) or "error")
            return NOTHING
        classify = self._classify
        if classify is None:
            classify = protocol(View(event))
            if classify is None:
                return OTHER
            self._classify = classify = message_content.collecting(recording, classify)
            recording.take_back_unknown()
            recording.expects_finish |= self._whole
            if recording.info.get("model") is None:
                recording.info["model"] = chunks.string(_model(event))
        carried = classify(recording, View(event))
        return NOTHING if carried == HIDDEN else carried


def _text_lesson(kind: int, line: bytes) -> _Lesson | None:
    text = _TEXT.search(line)
    if text is None:
        return None
    padding = _PADDING.search(line, text.end())
    end = len(line.rstrip()) if padding is None else padding.end()
    return _Lesson(line[: text.start(1)], line[text.end(1) : end], kind)


def _named_lesson(kind: int, line: bytes) -> _Lesson:
    """Recognise events by the name before them: each has a number, so more than a text differs."""
    spaced = b'"delta": "' in line
    return _Lesson(_DATA, b"\n", kind, b'"delta": ""' if spaced else b'"delta":""')


def protocol(event: Any) -> Classify | None:
    """Find a stream's protocol by one of its events; `None` = not a known one."""
    choices, kind = event.choices, event.type
    if isinstance(choices, list):
        first = choices[0] if choices else None
        texts = getattr(first, "text", None) is not None and getattr(first, "delta", None) is None
        return chunks.completions if texts else chunks.chat
    if isinstance(kind, str):
        if kind in _ANTHROPIC:
            return chunks.messages
        if kind.startswith("response."):
            return chunks.responses
    return None


def _is_last(recording: Recording, kind: Any) -> bool:
    """Return whether an event ends its stream: later ones report nothing and may stay unread."""
    given = recording.info.get("finish_reason") is not None
    return kind in _LAST or (kind == "message_delta" and given)


def _model(event: Mapping[str, Any]) -> Any:
    for place in (event, event.get("message"), event.get("response")):
        if isinstance(place, Mapping) and "model" in place:
            return place["model"]
    return None
