"""Classify OpenAI's events over a WebSocket, of its Realtime and Responses APIs.

Most events are deltas, and are known by their type alone; only events that begin or end a response
are parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import NOTHING, OTHER, TEXT
from llmtrace.instrumentation.llm_sdks import chunks

# Realtime's types next to those of Responses; its older names, which other servers still use, too.
_DELTAS: Final[Mapping[str, int]] = {
    **chunks.RESPONSE_DELTAS,
    "response.text.delta": TEXT,
    "response.output_audio_transcript.delta": TEXT,
    "response.audio_transcript.delta": TEXT,
    "response.output_audio.delta": OTHER,
}
_BEGINS: Final = "response.created"
_ENDS: Final = frozenset(
    {"response.done", "response.completed", "response.incomplete", "response.failed"}
)
_ERROR: Final = "error"
_PARSED: Final = _ENDS | {_BEGINS, _ERROR}

# The type comes first, or right after an id or a number; else the whole event is parsed for it.
_BEFORE: Final = r'\s*\{\s*(?:"(?:event_id|sequence_number)"\s*:\s*(?:"[^"\\]*"|\d+)\s*,\s*)?'
_TYPE: Final = re.compile(_BEFORE + r'"type"\s*:\s*"([^"\\]*)"')
_TYPE_BYTES: Final = re.compile(_TYPE.pattern.encode())
_EMPTY: Final = ('"delta":""', '"delta": ""')
_EMPTY_BYTES: Final = (b'"delta":""', b'"delta": ""')

# How the latest delta began, and its kind: the next one usually begins the same.
_latest: dict[type[Any], tuple[Any, int]] = {}

# A larger event is taken for what its type says, and not parsed.
_MAX_BYTES: Final = 16 << 20


def asks(message: Any) -> bool:
    """Return whether a sent message requests a response."""
    return _type(message) == "response.create"


def begins(message: Any) -> bool:
    """Return whether a message is the first of a response, or rejects one."""
    return _type(message) in {_BEGINS, _ERROR}


def read(recording: Recording, message: Any) -> int:
    """Classify an event; the one that ends a response reports its finish reason and its tokens."""
    known = _latest.get(message.__class__)
    if known is not None and message.startswith(known[0]):
        return NOTHING if _is_empty(message) else known[1]
    kind = _type(message)
    delta = _DELTAS.get(kind)
    if delta is not None:
        return NOTHING if _is_empty(message) else delta
    if kind in _PARSED:
        event = _parsed(message) or {}
        if kind == _ERROR:
            _rejected(recording, event)
        else:
            _answer(recording, event.get("response"), over=kind in _ENDS)
    return NOTHING


def _is_empty(message: Any) -> bool:
    one, other = _EMPTY if message.__class__ is str else _EMPTY_BYTES
    return one in message or other in message


def _type(message: Any) -> str:
    if not isinstance(message, str | bytes):
        return ""
    pattern: Any = _TYPE if isinstance(message, str) else _TYPE_BYTES
    found = pattern.match(message)
    if found is None:
        kind = (_parsed(message) or {}).get("type")
        return kind if isinstance(kind, str) else ""
    text: str = found[1] if isinstance(message, str) else found[1].decode(errors="replace")
    if text in _DELTAS:
        _latest[type(message)] = (found[0], _DELTAS[text])
    return text


def _parsed(message: Any) -> Mapping[str, Any] | None:
    """Parse an event; `None` if it is none, or too large or deep to be parsed."""
    if len(message) > _MAX_BYTES or not message:
        return None
    try:
        event = json.loads(message)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, Mapping) else None


def _answer(recording: Recording, response: Any, *, over: bool) -> None:
    """Note what the response inside an event reports."""
    fields: Mapping[str, Any] = response if isinstance(response, Mapping) else {}
    info = recording.info
    for name, key in (("response_id", "id"), ("model", "model")):
        if (text := _string(fields.get(key))) is not None:
            info[name] = text
    if not over:
        return
    status = _string(fields.get("status")) or "completed"
    why = [_mapping(fields.get(key)) for key in ("incomplete_details", "status_details")]
    reason = next((text for one in why if (text := _string(one.get("reason")))), None)
    info["finish_reason"] = reason or status
    if status == "failed":
        errors = [_mapping(fields.get("error")), *(_mapping(one.get("error")) for one in why)]
        codes = (_string(one.get("code")) or _string(one.get("type")) for one in errors)
        recording.failure = ("error", next(filter(None, codes), "response.failed"))
    elif status == "cancelled":
        recording.failure = ("cancelled", None)
    _usage(info, _mapping(fields.get("usage")))


def _usage(info: dict[str, Any], usage: Mapping[str, Any]) -> None:
    # Realtime's name, and that of Responses.
    details = (_mapping(usage.get(f"input_{name}_details")) for name in ("token", "tokens"))
    counts = {
        "prompt_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cached_tokens": next((one.get("cached_tokens") for one in details if one), None),
    }
    info.update(
        {name: known for name, n in counts.items() if (known := chunks.count(n)) is not None}
    )


def _rejected(recording: Recording, event: Mapping[str, Any]) -> None:
    """Note an error, if no response has begun: then it is the response.

    Later errors concern other things; a response that fails reports that in its last event.
    """
    if recording.info.get("response_id") is not None:
        return
    error = _mapping(event.get("error"))
    code = _string(error.get("code")) or _string(error.get("type"))
    recording.failure = ("error", code or "error")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _string(value: Any) -> str | None:
    return chunks.string(value) or None
