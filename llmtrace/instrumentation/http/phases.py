"""Split one HTTP attempt into network phases by httpcore's events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from llmtrace.core.attempt_clock import LiveAttempt
from llmtrace.core.failopen import internal_error
from llmtrace.core.request_clock import Clock
from llmtrace.instrumentation.http import dns

# What to note of an attempt when something happened at that time.
_Note = Callable[[LiveAttempt, int], None]


def _connecting(attempt: LiveAttempt, now: int) -> None:
    attempt.phase_started = now
    if attempt.first_wire is None:
        attempt.first_wire = now


def _connected(attempt: LiveAttempt, now: int) -> None:
    if attempt.dns is None and dns.standard_loop():
        attempt.dns = 0  # an address, not a name: there was nothing to resolve
    took = now - attempt.phase_started - (attempt.dns or 0)
    attempt.connect = (attempt.connect or 0) + max(0, took)
    attempt.phase_started = now


def _tunnelled(attempt: LiveAttempt, now: int) -> None:
    attempt.tunnel += now - attempt.phase_started
    attempt.phase_started = now


def _shaking_hands(attempt: LiveAttempt, now: int) -> None:
    if attempt.connect is not None:  # an HTTP proxy was sent CONNECT, or nothing took place
        _tunnelled(attempt, now)
    attempt.phase_started = now


def _shook_hands(attempt: LiveAttempt, now: int) -> None:
    attempt.tls = (attempt.tls or 0) + now - attempt.phase_started
    attempt.phase_started = now  # TLS to the HTTP proxy: CONNECT comes next


def _sending(attempt: LiveAttempt, now: int) -> None:
    attempt.send_started = now
    if attempt.first_wire is None:
        # A pooled connection: nothing was resolved or connected, and that was seen.
        attempt.first_wire = now
        attempt.dns = attempt.connect = attempt.tls = 0
    elif attempt.tls is None:
        attempt.tls = 0


def _sent(attempt: LiveAttempt, now: int) -> None:
    if attempt.send_started is not None:
        attempt.send = now - attempt.send_started
        attempt.sent = True


_NOTES: Final[Mapping[str, _Note]] = {
    "connect_tcp.started": _connecting,
    "connect_tcp.complete": _connected,
    "connect_unix_socket.started": _connecting,
    "connect_unix_socket.complete": _connected,
    "setup_socks5_connection.complete": _tunnelled,
    "start_tls.started": _shaking_hands,
    "start_tls.complete": _shook_hands,
    "send_request_headers.started": _sending,
    "send_request_body.complete": _sent,
}

# By an event's full name (`connection.connect_tcp.started`, `http11.…`): how it is noted; `None` =
# it is of no interest, as most are. Filled as names are seen, so that each takes one look-up.
_by_name: dict[str, _Note | None] = {}
_MAX_NAMES: Final = 256


def noting(
    attempt: LiveAttempt, clock: Clock, sent: Callable[[], object]
) -> Callable[[str, Any], None]:
    """Return the function that notes an attempt's events. It never raises.

    Args:
        attempt: the attempt.
        clock: monotonic nanoseconds.
        sent: called when the request is sent: nothing that follows is of interest.
    """

    def note(name: str, info: Any) -> None:
        try:
            try:
                known = _by_name[name]
            except KeyError:
                known = _look_at(name)
            if known is None or (known is _sending and _opens_tunnel(info)):
                return
            known(attempt, clock())
            if attempt.sent:
                sent()
        except Exception as error:  # noqa: BLE001 - the request goes on
            internal_error("http.trace", error)

    return note


def _opens_tunnel(info: Any) -> bool:
    """Return whether the request sent is an HTTP proxy's CONNECT: the request itself follows."""
    return getattr((info or {}).get("request"), "method", None) == b"CONNECT"


def _look_at(name: str) -> _Note | None:
    known = _NOTES.get(name.partition(".")[2])
    if len(_by_name) < _MAX_NAMES:
        _by_name[name] = known
    return known
