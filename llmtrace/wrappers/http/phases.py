"""Into which network phases does one HTTP attempt fall, by the events httpcore tells of it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from llmtrace.record import Attempt, Clock
from llmtrace.wrappers.http import dns

# What to note of an attempt when something happened at that time.
_Note = Callable[[Attempt, int], None]


def _connecting(attempt: Attempt, now: int) -> None:
    attempt.phase_started = now
    if attempt.first_wire is None:
        attempt.first_wire = now


def _connected(attempt: Attempt, now: int) -> None:
    if attempt.dns is None and dns.watching():
        attempt.dns = 0  # an address, not a name: there was nothing to resolve
    took = now - attempt.phase_started - (attempt.dns or 0)
    attempt.connect = (attempt.connect or 0) + max(0, took)


def _shaking_hands(attempt: Attempt, now: int) -> None:
    attempt.phase_started = now


def _shook_hands(attempt: Attempt, now: int) -> None:
    attempt.tls = (attempt.tls or 0) + now - attempt.phase_started


def _sending(attempt: Attempt, now: int) -> None:
    attempt.send_started = now
    if attempt.first_wire is None:
        # A pooled connection: nothing was resolved or connected, and that was seen.
        attempt.first_wire = now
        attempt.dns = attempt.connect = attempt.tls = 0
    elif attempt.tls is None:
        attempt.tls = 0


def _sent(attempt: Attempt, now: int) -> None:
    if attempt.send_started is not None:
        attempt.send = now - attempt.send_started
        attempt.sent = True


_NOTES: Final[Mapping[str, _Note]] = {
    "connect_tcp.started": _connecting,
    "connect_tcp.complete": _connected,
    "connect_unix_socket.started": _connecting,
    "connect_unix_socket.complete": _connected,
    "start_tls.started": _shaking_hands,
    "start_tls.complete": _shook_hands,
    "send_request_headers.started": _sending,
    "send_request_body.complete": _sent,
}

# The same by full name (`connection.connect_tcp.started`, `http11.…`), filled as names are seen.
_by_name: dict[str, _Note] = {}
# Most events of a request: to be passed over by one look-up. Filled as they are seen, too.
of_no_interest: set[str] = set()
_MOST_NAMES: Final = 256


def note(attempt: Attempt, clock: Clock, name: str, info: Any = None) -> None:
    """Note an event of an attempt, if it is of interest."""
    known = _by_name.get(name) or _look_at(name)
    if known is None:
        return
    if known is _sending and getattr((info or {}).get("request"), "method", None) == b"CONNECT":
        return  # a proxy is asked for a tunnel: the request itself follows after TLS
    known(attempt, clock())


def _look_at(name: str) -> _Note | None:
    known = _NOTES.get(name.partition(".")[2])
    if known is not None:
        _by_name[name] = known
    elif len(of_no_interest) < _MOST_NAMES:
        of_no_interest.add(name)
    return known
