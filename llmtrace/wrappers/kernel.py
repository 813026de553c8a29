"""How long is one round trip to the server, as the kernel of this machine sees it?

Linux keeps it in `TCP_INFO` of the live socket. The minimum is read, not the smoothed estimate,
which counts delayed acknowledgements in. Elsewhere the TCP handshake stands in: it is one trip.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any, Final

from llmtrace.stages import Reported

# Offset of `tcpi_min_rtt` (u32, microseconds) in Linux's struct tcp_info, since 4.9.
_MIN_RTT_OFFSET: Final = 148
_TCP_INFO_SIZE: Final = 160
_NS_PER_US: Final = 1000
# What the kernel says before it has a sample.
_NO_SAMPLE: Final = 0xFFFFFFFF

_has_tcp_info: Final = sys.platform == "linux" and hasattr(socket, "TCP_INFO")


def round_trip(sock: Any, handshake_ns: int | None) -> Reported | None:
    """Return one network round trip of a connected TCP socket, or `None` if nobody can tell.

    Args:
        sock: a socket or asyncio's transport socket; anything else counts as "cannot tell".
        handshake_ns: how long this connection's TCP handshake took, if it was seen just now.
    """
    if _has_tcp_info and sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
        if len(info) >= _MIN_RTT_OFFSET + 4:
            (microseconds,) = struct.unpack_from("=I", info, _MIN_RTT_OFFSET)
            if 0 < microseconds != _NO_SAMPLE:
                return Reported(microseconds * _NS_PER_US, "kernel")
    if handshake_ns:
        return Reported(handshake_ns, "client")
    return None
