"""Does a port stay with whom it was given to?"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import free_ports

_ASK = """
import sys
from tests.support import free_ports
free_ports._PORTS = range(int(sys.argv[1]), int(sys.argv[1]) + 1)
free_ports.free_port()
"""


def test_a_port_is_nobody_elses(monkeypatch: pytest.MonkeyPatch):
    """Who asks next does not get it, in this process or in another."""
    port = free_ports.free_port()
    monkeypatch.setattr(free_ports, "_PORTS", range(port, port + 1))
    said = f"no port from {port} to {port} is free"

    with pytest.raises(AssertionError, match=said):
        free_ports.free_port()
    other = subprocess.run(
        [sys.executable, "-c", _ASK, str(port)], capture_output=True, text=True, check=False
    )
    assert said in other.stderr


def test_it_is_free_and_the_system_gives_it_to_nobody():
    """A server listens there; and a connection has its own from further up."""
    port = free_ports.free_port()

    with socket.create_server(("127.0.0.1", port)):
        pass
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert port < first
