"""Do the tools that delay connections delay them by what they say?"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .best_of import settles
from .delays import DelayProxy, round_trips, self_signed

_ROUND_TRIP = Path(__file__).with_name("programs") / "round_trip.py"
_HEADERS = b"HTTP/1.1 200 OK\r\n\r\n"
_EVENTS = 5
_TRIES = 15


@dataclass(frozen=True, slots=True)
class Walk:
    """How long the parts of one request took, in seconds."""

    connect_s: float
    tls_s: float
    headers_s: float
    whole_s: float  # from the sent request to the last byte


@pytest.fixture(scope="module", autouse=True)
def _first_in_line() -> Iterator[None]:
    """Run before whatever else the machine does, where that is allowed, since time is measured."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    yield
    os.setpriority(os.PRIO_PROCESS, 0, usual)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """Serve headers, then five events in one piece, to every request on a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    # As real servers do: a small piece must not wait until the one before is acknowledged.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        while request := connection.recv(4096):
            connection.sendall(_HEADERS)
            # Late enough to arrive apart from the headers.
            time.sleep(0.01 if b"slow body" in request else 0.0)
            connection.sendall(b"data: x\n\n" * _EVENTS)


def walk(url: str, trust: Path | None = None) -> Walk:
    """Make one request with a plain socket and time its parts."""
    port = int(url.rsplit(":", 1)[1])
    connection = socket.socket()
    began = time.monotonic()
    connection.connect(("127.0.0.1", port))
    connected = time.monotonic()
    if trust is not None:
        context = ssl.create_default_context(cafile=str(trust))
        connected = time.monotonic()
        connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
    shaken = time.monotonic()
    with connection:
        connection.sendall(b"GET /slow body HTTP/1.1\r\n\r\n")
        missing = _EVENTS * len(b"data: x\n\n")
        assert connection.recv(len(_HEADERS)) == _HEADERS
        headers = time.monotonic()
        while missing:
            missing -= len(connection.recv(missing))
    return Walk(connected - began, shaken - connected, headers - shaken, time.monotonic() - shaken)


def least(url: str, part: str, trust: Path | None = None) -> float:
    """Return one part of the fastest of a few requests, in seconds.

    Whatever else runs on the machine only adds.
    """
    return min(float(getattr(walk(url, trust), part)) for _ in range(_TRIES))


def within_promise(true_s: float) -> object:
    """Return what equals a duration within 5 % or 2 ms."""
    return pytest.approx(true_s, rel=0.05, abs=0.002)


def adds(plain: DelayProxy, slow: DelayProxy, part: str, true_s: float, *trust: Path) -> None:
    """Check by how much longer a part takes; measured again while the machine is too busy.

    A promise that is broken is broken each time.
    """
    added_s: list[float] = []

    def more() -> None:
        added_s.append(least(slow.url, part, *trust) - least(plain.url, part, *trust))

    def check() -> None:
        assert added_s[-1] == within_promise(true_s), part

    settles(more, check)


@pytest.mark.parametrize("delay_s", [0.01, 0.1])
def test_a_request_is_held_for_its_time(target: str, delay_s: float) -> None:
    """The headers come later by the request's delay, and the rest of the answer by no more."""
    with DelayProxy(target) as plain, DelayProxy(target, request_s=delay_s) as slow:
        adds(plain, slow, "headers_s", delay_s)
        adds(plain, slow, "whole_s", delay_s)


@pytest.mark.parametrize("delay_s", [0.01, 0.1])
def test_an_answer_is_held_for_its_time(target: str, delay_s: float) -> None:
    """The headers come later by the answer's delay."""
    with DelayProxy(target) as plain, DelayProxy(target, response_s=delay_s) as slow:
        adds(plain, slow, "headers_s", delay_s)


def test_events_that_arrive_together_are_held_one_by_one(target: str) -> None:
    """Five events in one piece take five times the delay of a chunk."""
    with DelayProxy(target) as plain, DelayProxy(target, chunk_s=0.03) as slow:
        adds(plain, slow, "whole_s", _EVENTS * 0.03)


def test_every_request_on_a_connection_is_held(target: str) -> None:
    """Keep-alive: not one request on the same connection comes through early."""
    answer_length = len(_HEADERS) + _EVENTS * len(b"data: x\n\n")
    with DelayProxy(target, request_s=0.1) as slow, socket.socket() as connection:
        connection.connect(("127.0.0.1", slow.port))
        waited_s = []
        for _ in range(_TRIES):
            began = time.monotonic()
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            missing = answer_length
            while missing:
                missing -= len(connection.recv(missing))
            waited_s.append(time.monotonic() - began)

    assert min(waited_s) == within_promise(0.1)


def test_a_tls_handshake_is_held_for_its_time(target: str, tmp_path: Path) -> None:
    """The handshake comes later, the connect before it does not."""
    context, trust = self_signed(tmp_path)
    with (
        DelayProxy(target, tls=context) as plain,
        DelayProxy(target, tls=context, tls_s=0.1) as slow,
    ):
        adds(plain, slow, "tls_s", 0.1, trust)
        connect_s = least(slow.url, "connect_s", trust)

    assert connect_s < 0.01


def test_a_dropped_syn_makes_the_connect_take_a_second(target: str) -> None:
    """The kernel sends a SYN again after 1 s; each connection is delayed, not just the first."""
    walks: list[Walk] = []
    with DelayProxy(target, drop_syns=1) as slow:

        def more() -> None:
            walks[:] = [walk(slow.url) for _ in range(2)]

        def check() -> None:
            assert [each.connect_s for each in walks] == [within_promise(1.0)] * 2
            assert all(each.headers_s < 0.05 for each in walks)

        settles(more, check)


def test_a_proxy_does_not_change_the_round_trip_of_the_kernel(target: str) -> None:
    """A delay in userspace is invisible to TCP_INFO, which is why delayed_network exists."""
    with DelayProxy(target, request_s=0.1, response_s=0.1) as slow, socket.socket() as connection:
        connection.connect(("127.0.0.1", slow.port))
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        connection.recv(1)
        seen = round_trips(connection)

    assert seen.least_s < 0.01


@pytest.mark.parametrize("rtt_s", [0.004, 0.04, 0.09])
def test_the_kernel_sees_the_round_trip_of_a_delayed_network(
    own_network: Callable[..., str],
    record_property: Callable[[str, object], None],
    rtt_s: float,
) -> None:
    """`tcpi_min_rtt` is the true round trip; `tcpi_rtt` is more, by about the server's thinking.

    The server thinks for 20 ms. Once its kernel waits with acknowledgements for an answer to send
    them along with, that wait counts as a round trip.
    """
    seen: dict[str, float] = {}

    def check() -> None:
        overstated_s = seen["smoothed_s"] - rtt_s
        record_property("tcpi_rtt_overstates_by_s", overstated_s)
        print(f"true {rtt_s} s, tcpi_min_rtt {seen['least_s']} s, tcpi_rtt {seen['smoothed_s']} s")
        assert seen["connect_s"] == within_promise(rtt_s)
        assert seen["round_trip_s"] == within_promise(rtt_s)
        assert seen["least_s"] == within_promise(rtt_s)
        assert overstated_s > 0.005

    settles(lambda: seen.update(json.loads(own_network(_ROUND_TRIP, rtt_s, 0.0))), check)


@pytest.mark.parametrize("connect_s", [0.2, 1.5])
def test_a_held_syn_delays_the_connect_alone(
    own_network: Callable[..., str], connect_s: float
) -> None:
    """The connect takes its delay longer; the least round trip forgets it."""
    seen: dict[str, float] = {}

    def check() -> None:
        assert seen["connect_s"] == within_promise(0.01 + connect_s)
        assert seen["round_trip_s"] == within_promise(0.01)
        assert seen["least_s"] == within_promise(0.01)

    settles(lambda: seen.update(json.loads(own_network(_ROUND_TRIP, 0.01, connect_s))), check)
