"""Find the recording of a stream that a given stream is made of, so that it counts once.

A framework's stream refers to the client's: LiteLLM's in an attribute, a generator of lines in a
variable. The search runs none of their code and is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final

from llmtrace.core.recording import Recording

_MAX_LOOKED_AT: Final = 200
_MAX_DEPTH: Final = 4


def nested_recording(stream: Any) -> Recording | None:
    """Return the recording of a stream, or of one it is made of; `None` = it is not recorded."""
    level, seen = [stream], {id(stream)}
    for _ in range(_MAX_DEPTH):
        below: list[Any] = []
        for one in level:
            held = _held(one)
            found = held.get("_llmtrace")
            if isinstance(found, Recording) and not found.ended:
                return found
            below += held.values()
        level = [one for one in _new(below, seen) if len(seen) < _MAX_LOOKED_AT]
    return None


def _held(value: Any) -> dict[str, Any]:
    """Return what an object holds in its attributes, or a generator in its variables."""
    if isinstance(value, GeneratorType | AsyncGeneratorType):
        frame = value.gi_frame if isinstance(value, GeneratorType) else value.ag_frame
        return {} if frame is None else dict(frame.f_locals)
    try:
        held = object.__getattribute__(value, "__dict__")  # past any `__getattr__` of its own
    except AttributeError:
        return {}
    return held if isinstance(held, dict) else {}


def _new(values: list[Any], seen: set[int]) -> Iterator[Any]:
    for value in values:
        plain = value is None or isinstance(value, str | bytes | int | float | list | dict | type)
        if not plain and id(value) not in seen:
            seen.add(id(value))
            yield value
