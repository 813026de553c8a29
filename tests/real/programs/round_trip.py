"""Which round trips does the kernel report on a network whose round trip is known?

A program for netns_run.py: `round_trip.py RTT_S CONNECT_S`. Prints a line of JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

from tests.real.delays import SERVER_ADDRESS, delayed_network, round_trips

# Acknowledgements wait up to 40 ms for an answer to ride on: thinking for less shows it.
_REQUESTS = 20
_CONNECTS = 2
_THINK_S = 0.02
_CHUNKS = 10
_CHUNK_EVERY_S = 0.005
_QUESTION = b"GET / HTTP/1.1\r\n\r\n"
_CHUNK = b"data: x\n\n"


def answer(listener: socket.socket) -> None:
    """Answer requests as an engine does: think, then send a small chunk now and then."""
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while connection.recv(4096):
                time.sleep(_THINK_S)
                connection.sendall(_CHUNK)
                for _ in range(_CHUNKS - 1):
                    time.sleep(_CHUNK_EVERY_S)
                    connection.sendall(_CHUNK)


def time_connect(connection: socket.socket, address: tuple[str, int]) -> float:
    """Connect and return the seconds it took."""
    began = time.monotonic()
    connection.connect(address)
    return time.monotonic() - began


def ask(connection: socket.socket) -> float:
    """Make one request, read the whole answer, return the seconds to its first byte."""
    began = time.monotonic()
    connection.sendall(_QUESTION)
    missing = _CHUNKS * len(_CHUNK) - len(connection.recv(1))
    waited_s = time.monotonic() - began
    while missing:
        missing -= len(connection.recv(4096))
    return waited_s


def main(rtt_s: float, connect_s: float) -> None:
    """Make streamed requests over the delayed network and print what was seen."""
    with (
        delayed_network(rtt_s, connect_s) as host,
        socket.create_server((SERVER_ADDRESS, 0)) as listener,
    ):
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        address = (host, listener.getsockname()[1])
        connects_s = []
        for _ in range(_CONNECTS):
            with socket.socket() as connection:
                connects_s.append(time_connect(connection, address))
        with socket.socket() as connection:
            connects_s.append(time_connect(connection, address))
            waits_s = [ask(connection) for _ in range(_REQUESTS)]
            seen = round_trips(connection)
        # The least of each: whatever else runs on the machine only adds.
        figures = {
            "connect_s": min(connects_s),
            "round_trip_s": min(waits_s) - _THINK_S,
            "least_s": seen.least_s,
            "smoothed_s": seen.smoothed_s,
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
