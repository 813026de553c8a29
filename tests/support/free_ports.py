"""Ports of loopback for a program to listen on, which no other process takes until it does.

A port that the system picks (`("127.0.0.1", 0)`) is picked again once it is let go: for another
listener, for a connection, or for a client that calls it while nothing listens, and then has
itself on the line for as long as it likes. These ports are below those the system picks from, and
below those of `llmtrace.engines.local_vllm`; each belongs to this process until it ends, since it
keeps UDP's port of that number, which the tests of other processes then find taken.
"""

from __future__ import annotations

import atexit
import random
import socket
from contextlib import suppress
from typing import Final

_PORTS: Final = range(10_000, 20_000)


def free_port() -> int:
    """Return a port that nothing listens on; no other call gets it."""
    for port in random.sample(_PORTS, len(_PORTS)):
        claim = socket.socket(type=socket.SOCK_DGRAM)
        with suppress(OSError):
            claim.bind(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                atexit.register(claim.close)
                return port
        claim.close()
    raise AssertionError(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free")
