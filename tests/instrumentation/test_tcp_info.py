"""The kernel's times of a socket are read where possible, and unknown elsewhere."""

from __future__ import annotations

import socket
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.attempt_clock import LiveAttempt
from llmtrace.core.stages import Reported
from llmtrace.instrumentation.http import tcp_info

MS = 1_000_000
linux = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is read on Linux only")


class Socket:
    """A socket whose kernel says what a test wants."""

    family = socket.AF_INET

    def __init__(
        self, min_rtt_us: int, sent_ms_ago: int = 0, size: int = 160, received_ms_ago: int = 0
    ) -> None:
        tcp_info_bytes = bytearray(160)
        struct.pack_into("=I", tcp_info_bytes, 52, received_ms_ago)
        struct.pack_into("=I", tcp_info_bytes, 148, min_rtt_us)
        struct.pack_into("=I", tcp_info_bytes, 44, sent_ms_ago)
        self._reported = bytes(tcp_info_bytes[:size])

    def getsockopt(self, *_: int) -> bytes:
        """Return the bytes of TCP_INFO."""
        return self._reported


@pytest.fixture
def connected():
    """Two ends of a loopback connection over which something was sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            near.sendall(b"hello")
            far.recv(5)
            far.sendall(b"hello")
            near.recv(5)
            yield near


@linux
def test_a_live_socket_has_a_round_trip(connected):
    """The kernel has timed a loopback connection: above nothing, below a second."""
    min_rtt, sent_ago, received_ago = tcp_info.tcp_info(connected)

    assert min_rtt is not None
    assert 0 < min_rtt < 1_000 * MS
    assert sent_ago is not None
    assert received_ago is not None


@linux
def test_a_closed_socket_tells_nothing(connected):
    """A read after the close is no error: the times are unknown."""
    connected.close()

    assert tcp_info.tcp_info(connected) == (None, None, None)


@pytest.mark.parametrize("thing", [None, object(), "socket", 7])
def test_what_is_no_socket_tells_nothing(thing):
    """Anything may stand where a socket is looked for."""
    assert tcp_info.tcp_info(thing) == (None, None, None)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
def test_a_unix_socket_has_no_network():
    """A socket that is not TCP is not read."""
    near, far = socket.socketpair()
    with near, far:
        assert tcp_info.tcp_info(near) == (None, None, None)


def test_another_system_tells_nothing(monkeypatch):
    """Where the kernel has no such data, it is not read."""
    monkeypatch.setattr(tcp_info, "_has_tcp_info", False)

    assert tcp_info.tcp_info(Socket(50)) == (None, None, None)


@linux
@pytest.mark.parametrize(
    ("sock", "expected"),
    [
        (Socket(250, 3), (250_000, 3 * MS, 0)),
        (Socket(0, 3), (None, 3 * MS, 0)),
        (Socket(250, 0, received_ms_ago=7), (250_000, 0, 7 * MS)),
        (Socket(0xFFFFFFFF), (None, 0, 0)),
        (Socket(250, size=148), (None, None, None)),
    ],
)
def test_what_the_kernel_says(sock, expected):
    """Its units become nanoseconds; "no sample" and what an old kernel lacks are unknown."""
    assert tcp_info.tcp_info(sock) == expected


# --- what an attempt makes of it ----------------------------------------------------------------


@linux
def test_the_kernels_round_trip_wins():
    """The kernel's shortest round trip is better than the one handshake that was seen."""
    attempt = LiveAttempt(started=0, connect=9 * MS)
    tcp_info.look(attempt, Socket(250))

    assert attempt.rtt == Reported(250_000, "kernel")


def test_a_handshake_stands_in():
    """Where the kernel cannot report, a TCP handshake is one round trip."""
    attempt = LiveAttempt(started=0, connect=9 * MS)
    tcp_info.look(attempt, None)

    assert attempt.rtt == Reported(9 * MS, "client")


def test_a_round_trip_is_no_longer_than_the_response_took():
    """A handshake takes a client that is not scheduled longer than the network."""
    attempt = LiveAttempt(started=0, connect=90 * MS, send_started=90 * MS, answered=120 * MS)
    tcp_info.look(attempt, None)

    assert attempt.rtt == Reported(30 * MS, "client")


@pytest.mark.parametrize("connect", [None, 0])
def test_a_pooled_connection_has_no_handshake(connect):
    """No handshake was made, or none was seen: the round trip is unknown, and not 0."""
    attempt = LiveAttempt(started=0, connect=connect)
    tcp_info.look(attempt, None)

    assert attempt.rtt is None


@linux
def test_a_send_that_returned_late():
    """Sending ended when the kernel last sent, give or take a tick, not when the thread ran."""
    attempt = LiveAttempt(started=0, send_started=10 * MS, send=80 * MS, answered=100 * MS)
    tcp_info.look(attempt, Socket(250, sent_ms_ago=85))

    assert attempt.send == 9 * MS


@linux
@given(
    send=st.integers(0, 10**10),
    started=st.integers(0, 10**10),
    answered=st.none() | st.integers(0, 10**11),
    ago=st.integers(0, 2**32 - 1),
)
def test_a_send_only_ever_gets_shorter(send, started, answered, ago):
    """Whatever the kernel says, sending took no more than was seen, and not less than nothing."""
    attempt = LiveAttempt(started=0, send_started=started, send=send, answered=answered)
    tcp_info.look(attempt, Socket(250, sent_ms_ago=ago))

    assert attempt.send is not None
    assert 0 <= attempt.send <= send


@linux
@pytest.mark.parametrize("given_", [{"send": 5 * MS}, {"send_started": 5 * MS}, {}])
def test_an_unobserved_send_stays_unknown(given_):
    """Without both its start and its length, a send is left as it is."""
    attempt = LiveAttempt(started=0, answered=100 * MS, **given_)
    tcp_info.look(attempt, Socket(250, sent_ms_ago=90))

    assert attempt.send == given_.get("send")
