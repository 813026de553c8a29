"""Add `include_usage` to streamed requests, and undo it for servers that reject it.

A server that rejects an altered request gets the unaltered one, once. If that works, no request to
it is altered again. If not, further requests for the model are left as they are until one is
accepted, so that a server that fails for long is not called twice each time. Requests are not
repeated after errors that pass by themselves, nor after server errors once the server has accepted
an altered request for the model.
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
# Statuses that may be about the option, and do not pass by themselves.
_MAY_REJECT: Final = frozenset(range(400, 502)) - {408, 409, 425, 429}
_SERVER_ERROR: Final = 500
_MAX_KNOWN: Final = 4096

_rejects: set[str] = set()  # servers, for the life of the process
_takes: set[tuple[str, str | None]] = set()  # server and model
_doubted: set[tuple[str, str | None]] = set()  # the same: failed altered and unaltered
# What else a server that takes the option rejected requests for: server, status, code.
_unrelated: set[tuple[str, int, str]] = set()


class Altered:
    """A streamed request with a usage chunk that the application did not request.

    Attributes:
        options: as it is to be sent; unaltered where the last one failed either way.
    """

    __slots__ = ("_repeated", "_to", "_unaltered", "options")

    def __init__(self, unaltered: Any, server: str, model: str | None, wanted: Any) -> None:
        self._to = server, model
        self._repeated: tuple[int, str | None] | None = None
        self._unaltered = self.options = unaltered
        if self._to not in _doubted:
            self.options = copy.copy(unaltered)
            self.options.json_data = {**unaltered.json_data, "stream_options": wanted}

    def unaltered_after(self, error: Exception) -> Any:
        """Return the unaltered request, if it is to be sent after this error. Never raises."""
        try:
            status: Any = getattr(error, "status_code", None)
            if self.options is self._unaltered or status not in _MAY_REJECT:
                return None  # without a response there is no status
            code = code_of(error)
            if self._to in _takes and (
                status >= _SERVER_ERROR
                or (code is not None and (self._to[0], status, code) in _unrelated)
            ):
                return None
            self._repeated = status, code
            if status < _SERVER_ERROR:
                return self._unaltered
            # The SDK has used up its attempts on the altered one.
            once = copy.copy(self._unaltered)
            once.max_retries = 0
        except Exception as broken:  # noqa: BLE001 - the server's error is raised, not ours
            internal_error("sdk.request", broken)
            return None
        return once

    def taken(self) -> None:
        """Note that the server accepted the request, altered or because it works again."""
        if self.options is self._unaltered:
            _doubted.discard(self._to)
        elif len(_takes) < _MAX_KNOWN:
            _takes.add(self._to)

    def works_without(self) -> None:
        """Note that the server took the unaltered request in its place."""
        _rejects.add(self._to[0])

    def fails_without(self, error: Exception) -> None:
        """Note the unaltered request's error: the same one shows `include_usage` not at fault."""
        status, code = self._repeated or (None, None)
        same = getattr(error, "status_code", None) == status and code_of(error) == code
        if status is not None and code is not None and same and len(_unrelated) < _MAX_KNOWN:
            _unrelated.add((self._to[0], status, code))
            if self._to in _takes:
                return
        if len(_doubted) < _MAX_KNOWN:
            _doubted.add(self._to)


def alter(options: Any, host: str, server: str) -> Altered | None:
    """Return a streamed request with usage requested; `None` where it is to stay as it is.

    Its endpoint knows `stream_options`; `server` is the host with its port, if the URL names one.
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
