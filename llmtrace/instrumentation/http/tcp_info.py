"""Read from the kernel network times that no clock in this process can measure.

Linux keeps them in `TCP_INFO` of the live socket: the shortest round trip so far, and how long ago
it last sent and received anything. Elsewhere the time of the TCP handshake is used, which is one
round trip.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from functools import partial
from typing import Any, Final, NamedTuple

from llmtrace.core.arrival import Arrival, ArrivalClock
from llmtrace.core.attempt_clock import LiveAttempt
from llmtrace.core.recording import Recording
from llmtrace.core.stages import Reported

# Three u32 of Linux's struct tcp_info: `tcpi_last_data_sent` and `tcpi_last_data_recv` (ms) exist
# in every version, `tcpi_min_rtt` (us) since 4.9. The minimum and not `tcpi_rtt`: that one is
# smoothed, and counts delayed acknowledgements in.
_TCP_INFO: Final = struct.Struct("=44x I 4x I 92x I")
_TCP_INFO_SIZE: Final = 160
_NS_PER_US: Final = 1_000
_NS_PER_MS: Final = 1_000_000
# The kernel's value before it has a sample.
_NO_SAMPLE: Final = 0xFFFFFFFF
# The kernel counts the age of a send and of a receipt in ticks, 4 ms long at the usual 250 Hz. Its
# coarse clock moves once a tick, and shows when the present one began.
_COARSE: Final = getattr(time, "CLOCK_MONOTONIC_COARSE", 6)

_has_tcp_info: Final = sys.platform == "linux" and hasattr(socket, "TCP_INFO")
_TICK_NS: Final = (
    round(time.clock_getres(_COARSE) * 1_000_000_000) if _has_tcp_info else 4 * _NS_PER_MS
)
# A tick, and by how much later than the next one's beginning its interrupt may be handled.
_RESOLUTION_NS: Final = _TICK_NS + _NS_PER_MS
_QUESTION: Final = (socket.IPPROTO_TCP, getattr(socket, "TCP_INFO", 0), _TCP_INFO_SIZE)


class Times(NamedTuple):
    """What the kernel says of a socket, in nanoseconds; `None` = not known.

    Attributes:
        min_rtt: the shortest round trip.
        sent_ago: since the last send, to a tick.
        received_ago: since the last receipt, to a tick.
    """

    min_rtt: int | None
    sent_ago: int | None
    received_ago: int | None


_NOTHING: Final = Times(None, None, None)


def tcp_info(sock: Any) -> Times:
    """Read the kernel's times of a socket or asyncio's transport socket; others have none."""
    if not _has_tcp_info:
        return _NOTHING
    try:
        info = sock.getsockopt(*_QUESTION)
    except (OSError, AttributeError):  # closed meanwhile, or not TCP, or no socket
        return _NOTHING
    if len(info) < _TCP_INFO.size:
        return _NOTHING
    sent_ms, received_ms, microseconds = _TCP_INFO.unpack_from(info)
    min_rtt = microseconds * _NS_PER_US if 0 < microseconds != _NO_SAMPLE else None
    return Times(min_rtt, sent_ms * _NS_PER_MS, received_ms * _NS_PER_MS)


def data_age(sock: Any) -> int | None:
    """Return a lower bound of how long ago a socket last received data, in nanoseconds.

    At most a tick and a millisecond too low, so that it may be negative. `None` = not known. Where
    the system keeps no round trip either (gVisor), its time of the last receipt is always 0, and
    is not believed.
    """
    times = tcp_info(sock)
    if times.received_ago is None or times.min_rtt is None:
        return None
    return _at_least(times.received_ago)


def _at_least(received_ago: int) -> int:
    """Return the least that an age read right now can be, with where in its tick it was read."""
    tick_began = time.clock_gettime_ns(_COARSE)
    return time.monotonic_ns() - tick_began + received_ago - _RESOLUTION_NS


def answered(recording: Recording, attempt: LiveAttempt, sock: Any) -> None:
    """Note the kernel's times on an attempt whose response has just begun, and on its request."""
    received_ago = look(attempt, sock)
    at_arrivals = isinstance(recording.clock, ArrivalClock)
    if received_ago is None or attempt.answered is None or at_arrivals:
        return
    # A consumer that came late to a message of a WebSocket did not wait for it from the start.
    began = max(attempt.started, recording.read_began)
    if attempt.send is not None and attempt.send_started is not None:
        began = max(began, attempt.send_started + attempt.send)
    age = _at_least(received_ago)
    recording.arrival = Arrival(
        partial(data_age, sock),
        recording.clock,
        began=began,
        answered=attempt.answered,
        there=recording.clock() - age,
    )


def look(attempt: LiveAttempt, sock: Any) -> int | None:
    """Note the kernel's times on an attempt that was just answered; return `received_ago`."""
    min_rtt, sent_ago, received_ago = tcp_info(sock)
    sent, answered = attempt.send_started, attempt.answered
    took = sys.maxsize if sent is None or answered is None else answered - sent
    if min_rtt is not None:
        attempt.rtt = Reported(min_rtt, "kernel")
    elif attempt.connect:  # the client's wait for a CPU included, but the response took one, too
        attempt.rtt = Reported(min(attempt.connect, took), "client")
    # A thread that is not scheduled right after its send would count the server's work as sending.
    if sent_ago is not None and attempt.send is not None:
        most = took - sent_ago + _TICK_NS
        if not 0 <= attempt.send <= most:
            attempt.send = max(0, min(attempt.send, most))
    return None if min_rtt is None else received_ago
