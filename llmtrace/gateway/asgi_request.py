"""Measure one HTTP request that passes a gateway, and add the timing to its response.

Messages pass unchanged, apart from what is added for the client: headers, and comments between two
events of a stream whose consumer is llmtrace.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Final

from llmtrace.core.error_outcomes import outcome_of
from llmtrace.core.failopen import fails_open, internal_error
from llmtrace.gateway.first_content import FirstContent, at_end_of_event, before_the_last
from llmtrace.gateway.message_request import CARRIED, MessageRequest
from llmtrace.gateway.timing_header import complete, more
from llmtrace.instrumentation.headers import gateway_time, propagation
from llmtrace.instrumentation.headers.server_timing import Entry, entries, write
from llmtrace.instrumentation.headers.sse_comments import line
from llmtrace.runtime.runtime import Runtime

_logger = logging.getLogger("llmtrace")

Message = MutableMapping[str, Any]

_TRACEPARENT: Final = "traceparent"  # an entry by which browsers' agents find the trace
_ACCEPT: Final = propagation.ACCEPT.lower()
_READ: Final = frozenset(name.encode() for name in (*CARRIED, _ACCEPT))
_MAX_LENGTH: Final = 8192
_NO_BODY: Final = frozenset({204, 304})
_ERROR: Final = 400
_SERVER_ERROR: Final = 500
_TAIL: Final = 4


class PassingRequest:
    """One request in the middleware, from its receipt to the last byte of its response.

    Attributes:
        has_request: whether all of the request has been received.
        last: whether the last message of the response has been passed.
    """

    def __init__(
        self, runtime: Runtime, scope: MutableMapping[str, Any], name: str, *, tell: bool
    ) -> None:
        given = _read(scope["headers"])
        self._served = MessageRequest(
            runtime,
            given,
            name=name,
            span=scope["method"],
            attributes={"http.request.method": scope["method"], "url.path": scope["path"]},
        )
        self._relay = self._served.relay
        self._scope = scope
        self._tell = tell
        self._listening = tell and propagation.COMMENTS in given.get(_ACCEPT, "")
        self.has_request = self.last = False
        # Whether the client has disconnected: at all, and before the last message.
        self._left = self._left_early = False
        self._status = 0
        self._content: FirstContent | None = None  # looks for it in an event stream
        self._comments = False  # the response may have them
        self._last_comment: str | None = None  # in the last comment
        self._tail = b"\n\n"  # the last bytes passed; an event may begin with the first byte
        self._passed_on: Collection[str | None] = ()  # exposed by the application itself
        self._quiet = False  # nothing is left to add to the response

    def inside(self) -> AbstractContextManager[None]:
        """Make the request current, and hide a client's recording in the same process."""
        return self._served.inside()

    # --- the request ----------------------------------------------------------------------------

    def receives(self) -> None:
        """Note that the application waits for more of the request from its client."""
        self._relay.receiving.begin(self._relay.clock())

    def received(self) -> None:
        """Note that the application's wait for the request is over."""
        self._relay.receiving.end(self._relay.clock())

    def got(self, message: Message) -> None:
        """Note a message that came: the request's end, or a disconnect."""
        if message["type"] == "http.disconnect":
            self._left = True
            # Some frameworks' middleware ends the body properly all the same.
            self._left_early = self._left_early or not self.last
        elif not message.get("more_body", False):
            self.has_request = True

    # --- the response ---------------------------------------------------------------------------

    def passes(self, message: Message) -> Message:
        """Return a message of the response as it is to be sent. Never raises."""
        try:
            kind = message["type"]
            if kind == "http.response.body":
                self.last = not message.get("more_body", False)
                message = message if self._quiet else self._body(message)
            elif kind == "http.response.start":
                message = self._begins(message)
            elif kind == "http.response.pathsend":  # the server sends a file
                self.last = True
            if self.last and self._served.shared:
                self.ends()  # the code that opened the span ends it with the last message
        except Exception as error:  # noqa: BLE001 - the response goes out as it is
            self._quiet = True
            internal_error("gateway", error)
        return message

    def _begins(self, message: Message) -> Message:
        now = self._relay.clock()
        given = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        found = {name.lower(): value for name, value in given}
        self._status = status = message["status"]
        whole = b"content-length" in found or status in _NO_BODY or self._scope["method"] == "HEAD"
        if whole:
            self._relay.finalize(now)
        elif found.get(b"content-type", b"").lower().startswith(b"text/event-stream"):
            readable = found.get(b"content-encoding", b"identity").lower() == b"identity"
            self._content = FirstContent() if readable else None
            self._comments = readable and self._listening and status < _ERROR
        timing = b", ".join(value for name, value in given if name.lower() == b"server-timing")
        ours = [(b"server-timing", self._header(timing.decode("latin-1"), whole=whole))]
        if b"x-request-id" not in found:
            ours.append((b"x-request-id", self._relay.request_id.encode("latin-1")))
        # Ours first: of a value that is sent twice, the gateway in front has the best.
        return {**message, "headers": [*ours, *given]}

    def _header(self, timing: str, *, whole: bool) -> bytes:
        passed_on = {entry.hop for entry in entries(timing) if entry.name in gateway_time.OWN_TIME}
        self._passed_on = passed_on & {None}
        # Before any upstream call of a stream, it is not known whether one will be seen.
        sure = self._rejected or not whole
        timing_entries = [*self._served.entries(passed_on, sure=sure)] if self._tell else []
        timing_entries.append(Entry(_TRACEPARENT, None, self._served.identity.traceparent))
        return write(timing_entries).encode("latin-1", "replace")

    def _body(self, message: Message) -> Message:
        body = message.get("body", b"")
        if self._relay.spent is None:
            begun = bool(body) if self._content is None else self._content.in_these(body)
            if begun or self.last:
                self._relay.finalize(self._relay.clock())
                if self._content is not None and not self._served.own_time_known:
                    _hint_once()
        if self._relay.spent is None:
            self._tail = (self._tail + body)[-_TAIL:]
            return message
        if not self._comments:
            self._quiet = True
            return message
        return self._commented(message, body)

    def _commented(self, message: Message, body: bytes) -> Message:
        """Put a comment into what is sent, if one is due and an event ends here."""
        before, self._tail = self._tail, (self._tail + body[-_TAIL:])[-_TAIL:]
        at = before_the_last(body, boundary=at_end_of_event(before))
        final = self.last or at is not None
        if self._last_comment is not None and not final:
            return message
        if at is None and at_end_of_event(self._tail):
            at = len(body)
        if at is None:
            return message
        comment = write(self._served.entries(self._passed_on, sure=self._rejected))
        if comment == self._last_comment:
            return message
        first, self._last_comment = self._last_comment is None, comment
        if final or complete(self._relay):
            self._quiet = True
        elif first:
            comment = f"{comment}, {write([more()])}"
        return {**message, "body": body[:at] + line(comment) + body[at:]}

    @property
    def _rejected(self) -> bool:
        """Whether the request was rejected: then all of its time was the gateway's."""
        return self._status >= _ERROR

    # --- the end --------------------------------------------------------------------------------

    @fails_open("gateway")
    def ends(self, error: BaseException | None = None) -> None:
        """Write the gateway's span; only the first call does."""
        outcome, error_type = self._outcome(error)
        method, route = self._scope["method"], _route(self._scope)
        attributes: dict[str, Any] = {}
        if self._status:
            attributes["http.response.status_code"] = self._status
        if route is not None:
            attributes["http.route"] = route
        self._served.writes(
            outcome,
            error_type,
            attributes,
            span=None if route is None else f"{method} {route}",
            sure=self._rejected,
        )

    def _outcome(self, error: BaseException | None) -> tuple[str, str | None]:
        """Return the outcome, and the type of the error or the failing status, if any."""
        left = self._left or type(error).__name__ == "ClientDisconnect"  # Starlette's name for it
        if error is not None and not left:
            return outcome_of(error)
        if not self.last or self._left_early:
            return ("cancelled" if left else "truncated"), None
        if self._status >= _SERVER_ERROR:
            return "error", str(self._status)
        return "success", None


def _route(scope: Mapping[str, Any]) -> str | None:
    """Return the template of the path that the framework noted in the scope, mounts included."""
    route = getattr(scope.get("route"), "path", None)
    if not isinstance(route, str):
        return None
    # Starlette adds the path of each mount to `root_path`, and keeps the server's own apart.
    root = scope.get("root_path", "")
    mounts: str = root.removeprefix(scope.get("app_root_path", root))
    for name, value in scope.get("path_params", {}).items():
        if f"{{{name}" not in route:  # the mount's: as a template, or each value would be a route
            mounts = f"{mounts}/".replace(f"/{value}/", f"/{{{name}}}/", 1)[:-1]
    return mounts + route


def _read(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a request that are of interest, by lower-case name."""
    found: dict[str, str] = {}
    for name, value in raw:
        if name in _READ:
            text = value[:_MAX_LENGTH].decode("latin-1")
            key = name.decode()
            found[key] = f"{found[key]},{text}" if key in found else text
    return found


_hinted = False


def _hint_once() -> None:
    """Log what is missing to separate a gateway's self time from its waiting."""
    global _hinted  # the process has one log
    if not _hinted:
        _hinted = True
        _logger.warning(
            "A stream went through llmtrace.gateway.Middleware without an upstream call that "
            "llmtrace could see, so the gateway's self time is unknown. Instrument the client "
            "that makes it, or put `with llmtrace.gateway.upstream():` around the waiting."
        )
