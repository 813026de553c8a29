"""What does a message of the application's own protocol carry? A function of the application says.

For protocols llmtrace does not know: what a `classify` of the user's returns for one message,
checked and noted on the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from llmtrace.core.recording import NOTHING, OTHER, REASONING, TEXT, TOOL_CALL, Recording
from llmtrace.core.stages import EngineFigures, reported
from llmtrace.errors import DataError
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.llm_sdks import chunks
from llmtrace.instrumentation.streams.timed_reads import Classify

Kind = Literal["text", "reasoning", "tool_call", "other"]
# What a user's function says of a message: nothing, its kind, or that and what else it tells.
Classification = Kind | Mapping[str, Any] | None

_KINDS: Final[Mapping[Any, int]] = {
    None: NOTHING, "text": TEXT, "reasoning": REASONING, "tool_call": TOOL_CALL, "other": OTHER,
}  # fmt: skip
_TEXTS: Final = ("finish_reason", "response_id", "model")
_COUNTS: Final = ("prompt_tokens", "cached_tokens", "output_tokens")
_ENGINE: Final = ("queue_s", "prefill_s")
_TIMING: Final = "server_timing"
_KNOWN: Final = ("kind", *_TEXTS, *_COUNTS, *_ENGINE, _TIMING)
_NS: Final = 1_000_000_000


def reader(classify: Callable[[Any], Classification] | None) -> Classify:
    """Make what reads the messages of a protocol from a user's function; `None` = not empty."""
    if classify is None:
        return chunks.anything

    def read(recording: Recording, message: Any) -> int:
        told = classify(message)
        if told.__class__ is str or told is None:
            return _kind(told)
        return _noted(recording, told)

    return read


def _kind(told: Any) -> int:
    try:
        return _KINDS[told]
    except (KeyError, TypeError):
        wanted = ", ".join(repr(kind) for kind in _KINDS)
        raise DataError(f"classify returned {told!r}, not one of {wanted} or a mapping") from None


def _noted(recording: Recording, told: Any) -> int:
    if not isinstance(told, Mapping):
        return _kind(told)
    if unknown := told.keys() - set(_KNOWN):
        msg = f"classify told of {', '.join(map(repr, unknown))}; known are {', '.join(_KNOWN)}"
        raise DataError(msg)
    info = recording.info
    for name in _TEXTS:
        if (text := chunks.string(told.get(name))) is not None:
            info[name] = text
    for name in _COUNTS:
        if (count := chunks.count(told.get(name))) is not None:
            info[name] = count
    if isinstance(timing := told.get(_TIMING), str):
        propagation.incoming(recording, {"server-timing": timing})
    if any(name in told for name in _ENGINE):
        queue, prefill = (reported(told.get(name), _NS, "engine_inband") for name in _ENGINE)
        recording.add_engine_figures(EngineFigures(queue=queue, prefill=prefill))
    return _kind(told.get("kind"))
