"""Time the opening of a WebSocket, phase by phase, and set its handshake's headers.

The phases follow each other without a gap: name, TCP, TLS, handshake. The handshake carries the
headers that join the server's side to the request the connection is opened for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from llmtrace.core.failopen import internal_error
from llmtrace.instrumentation import join_call
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.http import dns
from llmtrace.instrumentation.rpc.websocket_session import Conversation, Opened
from llmtrace.runtime.runtime import active, current

Phase = Literal["connect", "tls", "handshake"]


class Opening:
    """One connection as it is being opened.

    Raises:
        RuntimeError: llmtrace is not set up.
    """

    def __init__(self, conversation: Conversation) -> None:
        runtime = active()
        if runtime is None:
            raise RuntimeError("llmtrace is not set up")
        self._conversation = conversation
        outer = join_call.enclosing_recording()
        if outer is None:
            self._recording, self._filled = conversation.start(runtime)
            self._recording.stream = True
        else:  # joined once a request is sent; until then the function may do other things
            self._recording, self._filled = outer, set()
        self._own = outer is None
        self._attempt = self._recording.attempt()
        self._attempt.first_wire = self._attempt.phase_started = self._attempt.started
        self._dns_before = 0
        self._calling = self._recording.calling
        self._recording.calling = True  # names resolved from here on belong to it
        self._token = current.set(self._recording)
        self._unwatch = dns.install()

    def ends(self, phase: Phase) -> None:
        """Note that a phase is over, and the next begins."""
        attempt = self._attempt
        now = self._recording.clock()
        took = now - attempt.phase_started
        if phase == "connect":
            if attempt.dns is None and dns.standard_loop():
                attempt.dns = 0  # an address, not a name: there was nothing to resolve
            resolved = (attempt.dns or 0) - self._dns_before
            self._dns_before += resolved
            took = max(0, took - resolved)
        setattr(attempt, phase, (getattr(attempt, phase) or 0) + took)
        attempt.phase_started = now

    def handshake_headers(self, given: Any) -> Any:
        """Return the headers of the handshake, with ours added where possible."""
        from websockets.datastructures import Headers

        self._attempt.sent = True  # time from here on is the server's
        merged = Headers(() if given is None else given)
        present: Mapping[str, object] = dict(merged.raw_items())
        server = str(self._recording.info.get("server") or "")
        host = server.rpartition(":")[0].strip("[]")
        for name, value in propagation.outgoing(self._recording, present, host).items():
            if name in merged:
                del merged[name]
            merged[name] = value
        return merged

    def opened(self, connection: Any) -> None:
        """Note that the connection is open, and keep its phases for its first request."""
        self._restore()
        recording, attempt = self._recording, self._attempt
        self._answered(connection.response)
        if attempt.tls is None and not connection.protocol.uri.secure:
            attempt.tls = 0
        at = recording.clock()
        marked = sum(recording.marked_before.values())
        self._conversation.opened = Opened(recording, self._filled, attempt, at, marked)

    def failed(self, error: BaseException) -> None:
        """Note that the connection could not be opened; its own request has failed with it."""
        self._restore()
        self._answered(getattr(error, "response", None))
        if self._own:
            join_call.failed(self._recording, self._filled, error)

    def _answered(self, response: Any) -> None:
        """Note the response to the handshake. Its times are the handshake's, not the request's."""
        status = getattr(response, "status_code", None)
        if not isinstance(status, int):
            return
        self._attempt.status = status
        self._attempt.answered = self._recording.clock()
        pairs: Iterable[tuple[str, str]] = response.headers.raw_items()
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
        propagation.answered(self._recording, raw, ok=False)

    def _restore(self) -> None:
        self._recording.calling = self._calling
        self._unwatch()
        try:
            current.reset(self._token)
        except ValueError:  # torn down by the garbage collector, in another context
            return


def guarded(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a step of an opening and return its result; an error in it is logged, never raised."""
    try:
        return step(*args, **kwargs)
    except Exception as error:  # noqa: BLE001
        internal_error("websocket", error)
        return None
