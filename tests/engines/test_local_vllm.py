"""Where does a local vLLM listen?"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from llmtrace.core.errors import SourceError
from llmtrace.engines import local_vllm


def test_a_port_is_not_taken_while_vllm_loads():
    """It is free, and none that this system gives to a connection or to who asks for any."""
    port = local_vllm._free_port("127.0.0.1")

    with socket.create_server(("127.0.0.1", port)):
        pass
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert port < first


def test_no_port_is_free(monkeypatch: pytest.MonkeyPatch):
    """It says which were tried."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(local_vllm, "_PORTS", range(taken, taken + 1))
        with pytest.raises(SourceError, match=f"no port from {taken} to {taken} of 127"):
            local_vllm._free_port("127.0.0.1")
