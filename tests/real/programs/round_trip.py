"""Which round trips does the kernel report on a network whose round trip is known?

A program for netns_run.py: `round_trip.py RTT_S CONNECT_S`. Prints a line of JSON.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import threading
import time

from real.delays import SERVER_ADDRESS, delayed_network, round_trips

_REQUESTS = 8
_THINK_S = 0.06
_CHUNKS = 10
_CHUNK_EVERY_S = 0.005
_QUESTION = b"GET / HTTP/1.1\r\n\r\n"
_CHUNK = b"data: x\n\n"


def answer(listener: socket.socket) -> None:
    """Answer requests as an engine does: think, then send a small chunk now and then."""
    connection, _ = listener.accept()
    with connection:
        while connection.recv(4096):
            time.sleep(_THINK_S)
            for _ in range(_CHUNKS):
                connection.sendall(_CHUNK)
                time.sleep(_CHUNK_EVERY_S)


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
        delayed_network(rtt_s, connect_s) as address,
        socket.create_server((SERVER_ADDRESS, 0)) as listener,
    ):
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        began = time.monotonic()
        with socket.create_connection((address, listener.getsockname()[1])) as connection:
            connected_s = time.monotonic() - began
            waits_s = [ask(connection) for _ in range(_REQUESTS)]
            seen = round_trips(connection)
        figures = {
            "connect_s": connected_s,
            "round_trip_s": statistics.median(waits_s) - _THINK_S,
            "least_s": seen.least_s,
            "smoothed_s": seen.smoothed_s,
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
