"""Read the prompt and the response content of each protocol.

For the recording of content, if the user enables it; else nothing here runs. One reader a
protocol, identified by its classifier of chunks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.core.content import Content, Message
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import HIDDEN
from llmtrace.instrumentation.llm_sdks import chunks
from llmtrace.instrumentation.streams.chunk_timing import Classify

Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Reader:
    """How one protocol is read: the body of a request, a chunk of a stream, a unary response."""

    prompt: Callable[[Content, Mapping[str, Any]], None]
    chunk: Callable[[Content, Any], None]
    response: Callable[[Content, Any], None]


def note_prompt(recording: Recording, classify: Classify, body: Any) -> None:
    """Note the prompt of a request, if content is recorded.

    `classify` is how the protocol's chunks are; the body is as it was before it was made JSON.
    """
    if recording.content is None:
        return
    reader = _READERS.get(classify)
    if reader is not None and isinstance(body, Mapping):
        recording.content.guarded(reader.prompt, body)


def note_response(recording: Recording, classify: Classify, answer: Any) -> None:
    """Note the content of a unary response, if content is recorded."""
    if recording.content is None:
        return
    reader = _READERS.get(classify)
    if reader is not None:
        recording.content.guarded(reader.response, answer)


def collecting(recording: Recording, classify: Classify) -> Classify:
    """Return a classifier of chunks that also notes their content, if content is recorded."""
    content = recording.content
    if content is None:
        return classify
    reader = _READERS.get(classify)
    if reader is None:
        return classify

    def collect(recording: Recording, chunk: Any) -> int:
        kind = classify(recording, chunk)
        if kind != HIDDEN:
            content.guarded(reader.chunk, chunk)
        return kind

    return collect


def _get(value: Any, key: str) -> Any:
    """Read a field of what may be a dictionary or one of an SDK's objects."""
    if isinstance(value, Mapping):
        return value.get(key)
    return getattr(value, key, None)


def _extra(value: Any, *keys: str) -> Any:
    """Return the first of these fields that an object has outside its SDK's class."""
    known = getattr(value, "model_extra", None) or {}
    return next((known[key] for key in keys if known.get(key)), None)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _role(message: Any) -> str:
    role = _get(message, "role")
    return role if isinstance(role, str) else "user"


def _text(content: Any) -> Part:
    return {"type": "text", "content": content}


def _tool_call(call_id: Any, name: Any, arguments: Any) -> Part:
    return {
        "type": "tool_call",
        "id": call_id if isinstance(call_id, str) else None,
        "name": name if isinstance(name, str) else "",
        "arguments": arguments,
    }


def _response(call_id: Any, response: Any) -> Part:
    return {
        "type": "tool_call_response",
        "id": call_id if isinstance(call_id, str) else None,
        "response": response,
    }


def _parts(content: Any) -> list[Part]:
    """Read the content of a message: a text, or a list of parts. Other parts keep their type."""
    if isinstance(content, str):
        return [_text(content)]
    return [_part(one) for one in _list(content)]


def _part(one: Any) -> Part:
    if isinstance(one, str):
        return _text(one)
    kind = _get(one, "type")
    if kind in {"text", "input_text", "output_text"}:
        return _text(_get(one, "text"))
    if kind == "refusal":
        return _text(_get(one, "refusal"))
    if kind == "thinking":
        return {"type": "reasoning", "content": _get(one, "thinking")}
    if kind == "tool_use":
        return _tool_call(_get(one, "id"), _get(one, "name"), _get(one, "input"))
    if kind == "tool_result":
        return _response(_get(one, "tool_use_id"), _shown(_get(one, "content")))
    return {"type": kind if isinstance(kind, str) else "unknown"}  # a picture, a sound, a file


def _shown(content: Any) -> Any:
    """Return a tool's result as text where it consists of texts."""
    parts = _list(content)
    texts = [_get(part, "text") for part in parts]
    if parts and all(isinstance(text, str) for text in texts):
        return "\n".join(texts)
    return content if isinstance(content, str) or not parts else [_part(part) for part in parts]


# --- OpenAI's chat completions -------------------------------------------------------------------


def _chat_prompt(content: Content, body: Mapping[str, Any]) -> None:
    content.add_prompt(_list(body.get("messages")), _chat_message)


def _chat_message(message: Any) -> Message:
    role = _role(message)
    if role == "tool":
        response = _shown(_get(message, "content"))
        return role, [_response(_get(message, "tool_call_id"), response)]
    return role, [*_parts(_get(message, "content")), *_chat_calls(message)]


def _chat_calls(message: Any) -> list[Part]:
    calls = []
    for call in _list(_get(message, "tool_calls")):
        function = _get(call, "function") or _get(call, "custom")
        arguments = _get(function, "arguments") or _get(function, "input")
        calls.append(_tool_call(_get(call, "id"), _get(function, "name"), arguments))
    return calls


def _chat_chunk(content: Content, chunk: Any) -> None:
    for choice in _list(chunk.choices):
        number, delta = choice.index or 0, choice.delta
        if delta is None:
            continue
        content.said(_extra(delta, "reasoning_content", "reasoning"), "reasoning", choice=number)
        content.said(delta.content, choice=number)
        content.said(getattr(delta, "refusal", None), choice=number)
        for call in delta.tool_calls or ():
            function = call.function
            content.called(
                call.index,
                name=getattr(function, "name", None),
                call_id=call.id,
                piece=getattr(function, "arguments", None),
                choice=number,
            )


def _chat_answer(content: Content, answer: Any) -> None:
    for choice in _list(answer.choices):
        number, message = choice.index or 0, choice.message
        reasoning = _extra(message, "reasoning_content", "reasoning")
        content.said(reasoning, "reasoning", choice=number)
        content.said(message.content, choice=number)
        content.said(getattr(message, "refusal", None), choice=number)
        for index, call in enumerate(_chat_calls(message)):
            name, call_id, piece = call["name"], call["id"], call["arguments"]
            content.called(index, name=name, call_id=call_id, piece=piece, choice=number)


# --- OpenAI's text completions -------------------------------------------------------------------


def _completion_prompt(content: Content, body: Mapping[str, Any]) -> None:
    prompt = body.get("prompt")
    prompts = _list(prompt) or [prompt]
    content.add_prompt(
        [one for one in prompts if isinstance(one, str)], lambda one: ("user", [_text(one)])
    )


def _completion_chunk(content: Content, chunk: Any) -> None:
    for choice in _list(chunk.choices):
        content.said(choice.text, choice=choice.index or 0)


# --- OpenAI's Responses --------------------------------------------------------------------------


def _responses_prompt(content: Content, body: Mapping[str, Any]) -> None:
    instructions = body.get("instructions")
    if isinstance(instructions, str):
        content.instructed([_text(instructions)])
    given = body.get("input")
    content.add_prompt([given] if isinstance(given, str) else _list(given), _responses_item)


def _responses_item(item: Any) -> Message:
    if isinstance(item, str):
        return "user", [_text(item)]
    kind, call_id = _get(item, "type"), _get(item, "call_id")
    if kind == "function_call":
        return "assistant", [_tool_call(call_id, _get(item, "name"), _get(item, "arguments"))]
    if kind == "function_call_output":
        return "tool", [_response(call_id, _shown(_get(item, "output")))]
    if kind == "reasoning":
        parts = [*_list(_get(item, "content")), *_list(_get(item, "summary"))]
        return "assistant", [
            {"type": "reasoning", "content": _get(part, "text")} for part in parts
        ]
    return _role(item), _parts(_get(item, "content"))


_RESPONSES_TEXTS: Final[Mapping[str, str]] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}


def _responses_chunk(content: Content, event: Any) -> None:
    kind = event.type
    if (said := _RESPONSES_TEXTS.get(kind)) is not None:
        content.said(event.delta, said, key=_get(event, "output_index"))
    elif kind in {
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
    }:
        content.called(_get(event, "output_index"), piece=event.delta)
    elif kind == "response.output_item.added" and _get(event.item, "call_id") is not None:
        item = event.item
        content.called(event.output_index, name=_get(item, "name"), call_id=_get(item, "call_id"))


def _responses_answer(content: Content, answer: Any) -> None:
    for number, item in enumerate(answer.output):
        _, parts = _responses_item(item)
        for part in parts:
            if part["type"] == "tool_call":
                name, call_id, piece = part["name"], part["id"], part["arguments"]
                content.called(number, name=name, call_id=call_id, piece=piece)
            elif part["type"] in {"text", "reasoning"}:
                content.said(part["content"], part["type"], key=number)


# --- Anthropic's Messages ------------------------------------------------------------------------


def _messages_prompt(content: Content, body: Mapping[str, Any]) -> None:
    system = body.get("system")
    if system:
        content.instructed(_parts(system))
    content.add_prompt(_list(body.get("messages")), _messages_message)


def _messages_message(message: Any) -> Message:
    return _role(message), _parts(_get(message, "content"))


def _messages_chunk(content: Content, event: Any) -> None:
    if event.type == "content_block_start":
        _block(content, event.index, event.content_block)
    elif event.type == "content_block_delta":
        delta = event.delta
        content.said(_get(delta, "text"), key=event.index)
        content.said(_get(delta, "thinking"), "reasoning", key=event.index)
        if delta.type == "input_json_delta":
            content.called(event.index, piece=delta.partial_json)


def _block(content: Content, number: int, block: Any, *, whole: bool = False) -> None:
    content.said(_get(block, "text"), key=number)
    content.said(_get(block, "thinking"), "reasoning", key=number)
    if block.type == "tool_use":
        # In a stream its input comes in pieces, after an empty one.
        given = json.dumps(block.input, ensure_ascii=False) if whole else None
        content.called(number, name=block.name, call_id=block.id, piece=given)


def _messages_answer(content: Content, answer: Any) -> None:
    for number, block in enumerate(answer.content):
        _block(content, number, block, whole=True)


# --- anything else -------------------------------------------------------------------------------


def _anything_chunk(content: Content, chunk: Any) -> None:
    content.said(chunk)


def _nothing(_content: Content, _answer: Any) -> None:
    """Read nothing: the protocol is not known."""


_READERS: Final[Mapping[Classify, _Reader]] = {
    chunks.chat: _Reader(_chat_prompt, _chat_chunk, _chat_answer),
    chunks.completions: _Reader(_completion_prompt, _completion_chunk, _completion_chunk),
    chunks.responses: _Reader(_responses_prompt, _responses_chunk, _responses_answer),
    chunks.messages: _Reader(_messages_prompt, _messages_chunk, _messages_answer),
    chunks.anything: _Reader(_nothing, _anything_chunk, _nothing),
}
