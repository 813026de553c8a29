"""The code by which a server says why it rejected a request, or gave up on it.

Providers put a code into the body of an error: `context_length_exceeded`, `overloaded_error`. It
says more than the status and is the same from every client. As codes become labels, only what
looks like a code is taken, and only so many different ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

CONTEXT_OVERFLOW: Final = "context_length_exceeded"

_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{2,63}", re.ASCII)
_MAX_CODES: Final = 64
_MAX_MESSAGE: Final = 2_000
_MAX_BODY: Final = 1 << 16
_seen: set[str] = set()

# How servers that have no code for it say that prompt and answer do not fit: vLLM, Anthropic,
# llama.cpp.
_OVERFLOW: Final = re.compile(
    r"maximum context length|maximum model length|prompt is too long|available context size"
)


def code_in(body: Any) -> str | None:
    """Return the provider's code for an error, from the answer's body as parsed from JSON.

    Of OpenAI's and vLLM's `{"error": {…}}` or what is inside it, or of Anthropic's.
    """
    if not isinstance(body, Mapping):
        return None
    inside = body.get("error", body)
    if not isinstance(inside, Mapping):
        return None
    message = inside.get("message")
    if isinstance(message, str) and _OVERFLOW.search(message[:_MAX_MESSAGE]):
        return CONTEXT_OVERFLOW
    # Anthropic's `type` is its code; OpenAI has both, and its `type` is a family.
    anthropic = body.get("type") == "error" and inside is not body
    code = inside.get("type" if anthropic else "code")
    return _known(code) if isinstance(code, str) and _CODE.fullmatch(code) else None


def family_in(body: Any) -> str | None:
    """Return what family an error is of, for want of a code: `server_error`, `BadRequestError`."""
    inside = body.get("error", body) if isinstance(body, Mapping) else None
    family = inside.get("type") if isinstance(inside, Mapping) else None
    return _known(family) if isinstance(family, str) and _CODE.fullmatch(family) else None


def code_of(error: BaseException) -> str | None:
    """Return the provider's code for an error, from what an SDK raised; `None` if it has none.

    An error inside a stream has no status, so that its family has to do where it has no code.
    """
    try:
        body = getattr(error, "body", None) or _answered_to(error)
        inside = type(error).__name__ == "APIError"
        return code_in(body) or (family_in(body) if inside else None)
    except Exception:  # noqa: BLE001 - a foreign error may be odd in any way
        return None


def _answered_to(error: BaseException) -> Any:
    """Return the body of the answer that an HTTP library's error is about, if it was read."""
    body = getattr(getattr(error, "response", None), "_content", None)
    return json.loads(body) if isinstance(body, bytes) and len(body) <= _MAX_BODY else None


def _known(code: str) -> str | None:
    if code not in _seen:
        if len(_seen) >= _MAX_CODES:
            return None
        _seen.add(code)
    return code
