"""Add `include_usage` to streamed requests, and undo it for servers that reject it.

A server that rejects an altered request gets the unaltered one, once. If that works, no request to
it is altered again. A server that has taken an altered request for a model is trusted to take the
next one: what it then rejects for a passing reason is not repeated.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from llmtrace.core.error_codes import code_of
from llmtrace.core.failopen import internal_error

# Hosts known to reject `stream_options.include_usage`; they report usage without it
# (openai/openai-agents-python#442).
_KNOWN_TO_REJECT: Final = frozenset({"api.mistral.ai"})
# Statuses that are about a temporary state and not about the request.
_PASSING: Final = frozenset({408, 409, 425, 429})
_HTTP_ERROR: Final = 400
_SERVER_ERROR: Final = 500
_MAX_KNOWN: Final = 4096

_rejects: set[str] = set()  # servers, for the life of the process
_takes: set[tuple[str, str | None]] = set()  # server and model
# What else a server that takes the option rejected requests for: server, status, code.
_unrelated: set[tuple[str, int, str]] = set()


class Altered:
    """A streamed request with a usage chunk that the application did not request.

    Attributes:
        options: as it is to be sent.
    """

    __slots__ = ("_model", "_repeated", "_server", "_unaltered", "options")

    def __init__(self, unaltered: Any, server: str, model: str | None, wanted: Any) -> None:
        self._server = server
        self._model = model
        self._repeated: tuple[int, str | None] | None = None
        self._unaltered = unaltered
        self.options = copy.copy(unaltered)
        self.options.json_data = {**unaltered.json_data, "stream_options": wanted}

    def unaltered_after(self, error: Exception) -> Any:
        """Return the unaltered request, if it is to be sent after this error. Never raises."""
        try:
            status = getattr(error, "status_code", None)
            if not isinstance(status, int) or status < _HTTP_ERROR:
                return None  # no response: the request was not rejected
            code = code_of(error)
            passing = status in _PASSING or status >= _SERVER_ERROR
            if (self._server, self._model) in _takes and (
                passing or (code is not None and (self._server, status, code) in _unrelated)
            ):
                return None
            self._repeated = status, code
            if not passing:
                return self._unaltered
            # The SDK has used up its attempts on the altered one.
            once = copy.copy(self._unaltered)
            once.max_retries = 0
        except Exception as broken:  # noqa: BLE001 - the server's error is raised, not ours
            internal_error("sdk.request", broken)
            return None
        return once

    def taken(self) -> None:
        """Note that the server accepted the altered request."""
        if len(_takes) < _MAX_KNOWN:
            _takes.add((self._server, self._model))

    def works_without(self) -> None:
        """Note that the server took the unaltered request in its place."""
        _rejects.add(self._server)

    def fails_without(self, error: Exception) -> None:
        """Note the unaltered request's error: the same one shows `include_usage` not at fault."""
        status, code = self._repeated or (None, None)
        same = getattr(error, "status_code", None) == status and code_of(error) == code
        if status is not None and code is not None and same and len(_unrelated) < _MAX_KNOWN:
            _unrelated.add((self._server, status, code))


def alter(options: Any, host: str, server: str) -> Altered | None:
    """Return the request with usage requested; `None` where it is to stay as it is.

    Args:
        options: of a streamed request whose endpoint knows `stream_options`.
        host: the server's.
        server: the same with its port, if the URL names one.
    """
    body = options.json_data
    if server in _rejects or host in _KNOWN_TO_REJECT or not isinstance(body, dict):
        return None
    extra = options.extra_json if is_mapping(options.extra_json) else {}
    if "stream_options" in extra:  # it would win over ours
        return None
    options_sent = body.get("stream_options")
    given: Mapping[str, Any] = options_sent if is_mapping(options_sent) else {}
    if "include_usage" in given:
        return None
    model = body.get("model")
    wanted = {**given, "include_usage": True}
    return Altered(options, server, model if isinstance(model, str) else None, wanted)


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a value is a mapping, and not the SDKs' marker for an omitted one."""
    # An omitted one is false, and most mappings are dictionaries: the last check is slow.
    return isinstance(value, dict) or (bool(value) and isinstance(value, Mapping))
