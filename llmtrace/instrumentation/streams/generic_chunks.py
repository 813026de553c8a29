"""Classify the chunks of clients that llmtrace does not know.

A chunk is recognised by its shape: lines or pieces of an event stream, JSON that is parsed
already, chunks like OpenAI's or Anthropic's from any client, LangChain's messages. Every other
chunk that is not empty is content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import HIDDEN, NOTHING, REASONING, TEXT, TOOL_CALL
from llmtrace.instrumentation.http import llm_requests
from llmtrace.instrumentation.http.sse import FIELDS, Events, Parsed, looks_like_events, protocol
from llmtrace.instrumentation.llm_sdks import chunks, endpoints, message_content
from llmtrace.instrumentation.llm_sdks.attribute_view import View, lenient
from llmtrace.instrumentation.streams.chunk_timing import Classify

_MAX_CLASSES: Final = 64
_BEGINS: Final = (*FIELDS, b": ", b":\n")  # of a line of an event stream
_SHORT: Final = max(map(len, _BEGINS))


def reader(recording: Recording, stream: Any, *, whole: bool | None = None) -> Classify:
    """Return the function that classifies the chunks of a stream of any client.

    Args:
        recording: of the request.
        stream: the stream; it is not touched.
        whole: whether it is read as the server sent it, so that it must end with a finish reason;
            by default, unless it is a generator, which may have left it out.
    """
    made = getattr(stream, "gi_code", None) or getattr(stream, "ag_code", None)
    if whole is None:
        # A client's own generator of lines leaves nothing out, an expression is there to do so.
        return _Reader(recording, lines=made is None or made.co_name != "<genexpr>", rest=not made)
    return _Reader(recording, lines=whole, rest=whole)


class _Reader:
    """Classifies chunks by what the first one of each class looks like.

    Args:
        recording: of the request.
        lines: an event stream must end with a finish reason; `rest` = so must all others.
    """

    __slots__ = ("_begun", "_by_class", "_lines", "_plain", "_rest")

    def __init__(self, recording: Recording, *, lines: bool, rest: bool) -> None:
        self._plain = message_content.collecting(recording, chunks.anything)
        self._begun = b""  # of a line, in pieces too short to show what it is
        self._lines = lines
        self._rest = rest
        self._by_class: dict[type[Any], Classify] = {}

    def __call__(self, recording: Recording, chunk: Any) -> int:
        classify = self._by_class.get(chunk.__class__)
        if classify is None:
            classify = self._look(recording, chunk)
        return classify(recording, chunk)

    def _look(self, recording: Recording, chunk: Any) -> Classify:
        if chunk is None:
            return self._plain
        if isinstance(chunk, str | bytes | bytearray):
            return self._text(recording, chunk)
        try:
            found = self._of(recording, chunk)
        except Exception:  # noqa: BLE001 - inspecting it may fail: it is a chunk all the same
            found = self._plain
        if len(self._by_class) < _MAX_CLASSES:
            self._by_class[chunk.__class__] = found
        return found

    def _text(self, recording: Recording, chunk: str | bytes | bytearray) -> Classify:
        begun = self._begun
        if not begun and not chunk.strip():
            return chunks.nothing  # an empty line reports nothing yet
        if isinstance(chunk, bytes) and (begun or len(chunk) < _SHORT):
            chunk = begun + chunk
            self._begun = chunk[chunk.rfind(b"\n") + 1 :]
            if any(begin.startswith(chunk) for begin in _BEGINS):
                return chunks.nothing  # read byte by byte, it shows later what it is
        if isinstance(chunk, str | bytes) and looks_like_events(chunk):
            found: Classify = Events(whole=self._lines, lines=not begun and _is_line(chunk))
            found(recording, begun)
        elif _is_comment(chunk):
            return chunks.nothing
        else:
            found = self._plain
        for text in (str, bytes, bytearray):
            self._by_class[text] = found
        return found

    def _of(self, recording: Recording, chunk: Any) -> Classify:
        if isinstance(chunk, dict):
            return _jsons(Parsed(whole=self._rest), self)
        if isinstance(chunk, tuple):
            return lambda recording, chunk: self(recording, chunk[0] if chunk else None)
        if _is_event(chunk):
            events = Events(whole=self._lines)
            return lambda recording, chunk: events.sent(recording, chunk.event, chunk.data)
        if _is_message(chunk):
            return langchain
        found = protocol(lenient(chunk))
        if found is None:
            return self._plain
        recording.expects_finish |= self._rest
        classify = message_content.collecting(recording, found)
        return classify if _is_an_sdks(chunk) else _through(lenient, classify)


def _is_an_sdks(value: Any) -> bool:
    # Exactly the SDK's: LiteLLM's classes derive from OpenAI's and lack their attributes.
    return type(value).__module__.partition(".")[0] in endpoints.SDKS


def _through(view: Callable[[Any], Any], classify: Classify) -> Classify:
    def through(recording: Recording, chunk: Any) -> int:
        kind = classify(recording, view(chunk))
        return NOTHING if kind == HIDDEN else kind

    return through


def _jsons(parsed: Parsed, other: Classify) -> Classify:
    """Classify dictionaries; LangChain's events carry a chunk of their own."""

    def read(recording: Recording, chunk: dict[str, Any]) -> int:
        data = chunk.get("data")
        if isinstance(data, Mapping) and "chunk" in data:
            return other(recording, data["chunk"])
        return parsed(recording, chunk)

    return read


def _is_line(begin: str | bytes) -> bool:
    """Return whether a stream that begins like this comes by line, not in arbitrary pieces."""
    line = begin.encode("utf-8", "replace") if isinstance(begin, str) else begin
    data = line.partition(b":")[2].strip()
    if b"\n" in line or not data.startswith(b"{"):
        return b"\n" not in line
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _is_comment(text: str | bytes | bytearray) -> bool:
    # A model may well begin with a colon or a smiley: those are no comments.
    comments: Any = (": ", ":\n") if isinstance(text, str) else (b": ", b":\n")
    return text.startswith(comments)


def _is_event(chunk: Any) -> bool:
    """Return whether this is an event object of a library for event streams."""
    named = (getattr(chunk, name, None) for name in ("event", "data"))
    return all(isinstance(value, str) for value in named)


# --- LangChain ----------------------------------------------------------------------------------


def _is_message(chunk: Any) -> bool:
    return hasattr(chunk, "response_metadata") and hasattr(chunk, "content")


_BLOCKS: Final[Mapping[Any, tuple[str, int]]] = {
    "text": ("text", TEXT),
    "reasoning": ("reasoning", REASONING),
    "thinking": ("thinking", REASONING),
}


def langchain(recording: Recording, message: Any) -> int:
    """Classify LangChain's `AIMessageChunk`; of an `AIMessage`, note what it reports."""
    info = recording.info
    metadata = View(message.response_metadata or {})
    reason = chunks.string(metadata.finish_reason or metadata.stop_reason)
    if reason is not None:
        info["finish_reason"] = reason
    if info.get("model") is None:
        info["model"] = chunks.string(metadata.model_name or metadata.model)
    # Its own id is that of the run, where LangChain generates one.
    for answer_id in (metadata.id, message.id):
        if isinstance(answer_id, str) and not answer_id.startswith(("run-", "lc_run-")):
            info["response_id"] = chunks.string(answer_id)
            break
    usage = getattr(message, "usage_metadata", None)
    if isinstance(usage, dict):
        _add_usage(info, View(usage))
    return _message_kind(message)


def _add_usage(info: dict[str, Any], usage: View) -> None:
    """Add the token counts of a chunk: LangChain's chunks are meant to be added up."""
    details, output = usage.input_token_details, usage.output_token_details
    for name, value in (
        ("prompt_tokens", usage.input_tokens),
        ("output_tokens", usage.output_tokens),
        ("cached_tokens", None if details is None else details.cache_read),
        ("cache_write_tokens", None if details is None else details.cache_creation),
        ("reasoning_tokens", None if output is None else output.reasoning),
    ):
        counted = chunks.count(value)
        if counted is not None:
            info[name] = (info.get(name) or 0) + counted


def _message_kind(message: Any) -> int:
    content = message.content
    if isinstance(content, str):
        if content:
            return TEXT
    else:
        for block in content or ():
            if isinstance(block, str) and block:
                return TEXT
            if isinstance(block, dict):
                key, kind = _BLOCKS.get(block.get("type"), ("", NOTHING))
                if block.get(key):
                    return kind
    if getattr(message, "tool_call_chunks", None) or getattr(message, "tool_calls", None):
        return TOOL_CALL
    extra = getattr(message, "additional_kwargs", None) or {}
    return REASONING if extra.get("reasoning_content") else NOTHING


# --- unary responses ----------------------------------------------------------------------------


def read_answer(recording: Recording, answer: Any) -> None:
    """Note what a unary response of any client reports, if it looks like a model's."""
    if isinstance(body := getattr(answer, "_content", None), bytes):
        answer = llm_requests.parsed(body)  # of a response of `requests`
    if answer is None or isinstance(answer, str | bytes | int | float | list | tuple):
        return
    if _is_message(answer):
        langchain(recording, answer)
    else:
        seen = lenient(answer)
        read = _ANSWERS.get(_family(seen))
        if read is not None:
            read(recording, seen)


def _family(answer: Any) -> str | None:
    if isinstance(answer.choices, list) and answer.choices:
        return "choices"
    kind = answer.object or answer.type
    return kind if isinstance(kind, str) else None


_ANSWERS: Final[Mapping[str | None, Callable[[Recording, Any], None]]] = {
    "choices": chunks.answer_chat,
    "response": chunks.answer_responses,
    "message": chunks.answer_messages,
}
