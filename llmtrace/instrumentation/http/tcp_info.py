"""Read from the kernel network times that no clock in this process can measure.

Linux keeps them in `TCP_INFO` of the live socket: the shortest round trip it has seen, and how
long ago it last sent anything. Elsewhere the TCP handshake replaces the round trip: it is one.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any, Final

from llmtrace.core.recording import LiveAttempt
from llmtrace.core.stages import Reported

# Two u32 of Linux's struct tcp_info: `tcpi_last_data_sent` (ms) exists in every version,
# `tcpi_min_rtt` (us) since 4.9. The minimum and not `tcpi_rtt`: that one is smoothed, and counts
# delayed acknowledgements in.
_TCP_INFO: Final = struct.Struct("=44x I 100x I")
_TCP_INFO_SIZE: Final = 160
_NS_PER_US: Final = 1_000
_NS_PER_MS: Final = 1_000_000
# The kernel's value before it has a sample.
_NO_SAMPLE: Final = 0xFFFFFFFF
# The kernel counts the age of a send in ticks, 4 ms long at the usual 250 Hz.
_TICK_NS: Final = 4 * _NS_PER_MS

_has_tcp_info: Final = sys.platform == "linux" and hasattr(socket, "TCP_INFO")
_QUESTION: Final = (socket.IPPROTO_TCP, getattr(socket, "TCP_INFO", 0), _TCP_INFO_SIZE)
_NOTHING: Final = (None, None)


def tcp_info(sock: Any) -> tuple[int | None, int | None]:
    """Read the kernel's times of a socket or asyncio's transport socket; others have none.

    Returns:
        The shortest round trip and the age of the last send, in nanoseconds; `None` = not
        known.
    """
    if not _has_tcp_info:
        return _NOTHING
    try:
        info = sock.getsockopt(*_QUESTION)
    except (OSError, AttributeError):  # closed meanwhile, or not TCP, or no socket
        return _NOTHING
    if len(info) < _TCP_INFO.size:
        return _NOTHING
    milliseconds, microseconds = _TCP_INFO.unpack_from(info)
    min_rtt = microseconds * _NS_PER_US if 0 < microseconds != _NO_SAMPLE else None
    return min_rtt, milliseconds * _NS_PER_MS


def look(attempt: LiveAttempt, sock: Any) -> None:
    """Note the kernel's times on an attempt whose response has just begun."""
    min_rtt, sent_ago = tcp_info(sock)
    if min_rtt is not None:
        attempt.rtt = Reported(min_rtt, "kernel")
    elif attempt.connect:
        attempt.rtt = Reported(attempt.connect, "client")
    if sent_ago is None or attempt.send is None or attempt.send_started is None:
        return
    # A thread that is not scheduled right after its send would count the server's work as sending.
    answered = attempt.answered or 0
    most = answered - sent_ago + _TICK_NS - attempt.send_started
    if not 0 <= attempt.send <= most:
        attempt.send = max(0, min(attempt.send, most))
