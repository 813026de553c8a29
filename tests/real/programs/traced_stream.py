"""Which stages does a traced stream show on a network whose round trip is known?

A program for netns_run.py: `traced_stream.py RTT_S REQUESTS`. Prints a row a line, as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from typing import Any

import openai

from llmtrace.testing import capture
from tests.bench.client_cost import events
from tests.real.delays import SERVER_ADDRESS, delayed_network

_THINK_S = 0.05
_HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"


def answer(listener: socket.socket) -> None:
    """Answer chat requests: think, then send everything."""
    body = b"".join(events(3))
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while connection.recv(65536):
                time.sleep(_THINK_S)
                connection.sendall(_HEADERS % len(body) + body)


def main(rtt_s: float, requests: int) -> None:
    """Stream over the delayed network and print the rows."""
    messages: Any = [{"role": "user", "content": "Hello"}]
    with (
        delayed_network(rtt_s) as host,
        socket.create_server((SERVER_ADDRESS, 0)) as listener,
    ):
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        url = f"http://{host}:{listener.getsockname()[1]}/v1"
        with capture() as rows, openai.OpenAI(base_url=url, api_key="none") as client:
            for _ in range(requests):
                list(client.chat.completions.create(model="m", messages=messages, stream=True))
        for row in rows:
            print(json.dumps({**row.as_dict(), "exact": row.stages.total == row.e2e_ns}))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
