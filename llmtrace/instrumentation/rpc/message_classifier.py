"""Classify messages of the application's own protocol by a function of the application.

For protocols llmtrace does not know: the result of the user's `classify` for one message is
checked and noted on the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from llmtrace.core.errors import DataError
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import NOTHING, OTHER, REASONING, TEXT, TOOL_CALL
from llmtrace.core.stages import EngineFigures, reported
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.llm_sdks import chunks
from llmtrace.instrumentation.streams.chunk_timing import Classify

Kind = Literal["text", "reasoning", "tool_call", "other"]
# A user function's result for a message: nothing, its kind, or its kind and what it reports.
Classification = Kind | Mapping[str, Any] | None

_KINDS: Final[Mapping[Any, int]] = {
    None: NOTHING, "text": TEXT, "reasoning": REASONING, "tool_call": TOOL_CALL, "other": OTHER,
}  # fmt: skip
_TEXTS: Final = ("finish_reason", "response_id", "model")
_COUNTS: Final = ("prompt_tokens", "cached_tokens", "output_tokens")
_ENGINE: Final = ("queue_s", "prefill_s")
_TIMING: Final = "server_timing"
_ERROR: Final = "error_type"
_KNOWN: Final = ("kind", *_TEXTS, *_COUNTS, *_ENGINE, _TIMING, _ERROR)
_NS: Final = 1_000_000_000


def reader(classify: Callable[[Any], Classification] | None) -> Classify:
    """Make the classifier of a protocol from a user's function; `None` = not empty is text."""
    if classify is None:
        return chunks.anything

    def read(recording: Recording, message: Any) -> int:
        result = classify(message)
        if result.__class__ is str or result is None:
            return _kind(result)
        return _noted(recording, result)

    return read


def _kind(kind: Any) -> int:
    try:
        return _KINDS[kind]
    except (KeyError, TypeError):
        wanted = ", ".join(repr(name) for name in _KINDS)
        raise DataError(f"classify returned {kind!r}, not one of {wanted} or a mapping") from None


def _noted(recording: Recording, fields: Any) -> int:
    if not isinstance(fields, Mapping):
        return _kind(fields)
    if unknown := fields.keys() - set(_KNOWN):
        msg = f"classify reported {', '.join(map(repr, unknown))}; known are {', '.join(_KNOWN)}"
        raise DataError(msg)
    info = recording.info
    for name in _TEXTS:
        if (text := chunks.string(fields.get(name))) is not None:
            info[name] = text
    for name in _COUNTS:
        if (count := chunks.count(fields.get(name))) is not None:
            info[name] = count
    if (error := chunks.string(fields.get(_ERROR))) is not None:
        recording.failure = ("error", error)
    if isinstance(timing := fields.get(_TIMING), str):
        propagation.incoming(recording, {"server-timing": timing})
    if any(name in fields for name in _ENGINE):
        queue, prefill = (reported(fields.get(name), _NS, "engine_inband") for name in _ENGINE)
        recording.add_engine_figures(EngineFigures(queue=queue, prefill=prefill))
    return _kind(fields.get("kind"))
