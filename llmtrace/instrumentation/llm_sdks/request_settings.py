"""Read from a request's body the settings that explain its latency and are no content.

`max_tokens` becomes a row field; the rest go on the span by OpenTelemetry's GenAI names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from llmtrace.core.recording import Recording
from llmtrace.instrumentation.llm_sdks.usage import is_mapping

# One setting has several names: of chat, of newer chat, and of the Responses API.
_MAX_TOKENS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_NUMBERS: Final[Mapping[str, tuple[str, type]]] = {
    "temperature": ("gen_ai.request.temperature", float),
    "top_p": ("gen_ai.request.top_p", float),
    "top_k": ("gen_ai.request.top_k", float),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", float),
    "presence_penalty": ("gen_ai.request.presence_penalty", float),
    "seed": ("gen_ai.request.seed", int),
    "n": ("gen_ai.request.choice.count", int),
}
_OUTPUTS: Final[Mapping[str, str]] = {
    "json_object": "json",
    "json_schema": "json",
    "json": "json",
    "text": "text",
}
_MAX: Final = 1 << 53
_LOOKED_AT: Final = 65_536
# A quote inside of a string is escaped, so this matches keys alone.
_IN_BYTES: Final = re.compile(
    rb'"(' + "|".join((*_MAX_TOKENS, *_NUMBERS)).encode() + rb')"\s*:\s*(-?[0-9.eE+-]{1,24})[,}\s]'
)


def note(recording: Recording, body: Mapping[str, Any] | bytes | None) -> None:
    """Note the settings of a request's JSON or its text; what cannot be one is left out.

    Of a long text the beginning and the end are looked at, and numbers alone are read.
    """
    fields = _numbers_in(body) if isinstance(body, bytes) else body
    if not is_mapping(fields):
        return
    for name in _MAX_TOKENS:
        if type(number := fields.get(name)) is int and 0 <= number < _MAX:
            recording.info["max_tokens"] = number
            break
    for name in _NUMBERS.keys() & fields.keys():
        attribute, kind = _NUMBERS[name]
        number = fields[name]
        wanted = (int, float) if kind is float else int
        if isinstance(number, wanted) and not isinstance(number, bool) and abs(number) < _MAX:
            recording.attributes[attribute] = kind(number)
    output = _output(fields)
    if output is not None:
        recording.attributes["gen_ai.output.type"] = output


def _output(fields: Mapping[str, Any]) -> str | None:
    """Return the kind of output that was requested, by OpenTelemetry's words."""
    wanted = fields.get("response_format")
    if wanted is None and is_mapping(text := fields.get("text")):  # as the Responses API has it
        wanted = text.get("format")
    kind = wanted.get("type") if is_mapping(wanted) else None
    return _OUTPUTS.get(kind) if isinstance(kind, str) else None


def _numbers_in(body: bytes) -> dict[str, int | float]:
    parts = body if len(body) <= 2 * _LOOKED_AT else body[:_LOOKED_AT] + body[-_LOOKED_AT:]
    found: dict[str, int | float] = {}
    for name, text in _IN_BYTES.findall(parts):
        try:
            number: int | float = int(text) if text.lstrip(b"-").isdigit() else float(text)
        except ValueError:
            continue
        found[name.decode()] = number
    return found
