"""Where do the examples stream from? Your endpoint, or the embedded simulated engine.

And where a server of one's own runs that stands before it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def endpoint() -> Iterator[tuple[str, str]]:
    """Yield a base URL and a model: from OPENAI_BASE_URL and MODEL, or simulated ones."""
    url = os.environ.get("OPENAI_BASE_URL")
    if url is not None:
        yield url, os.environ.get("MODEL", "tiny")
        return
    from llmtrace.simulator import serve

    print("(no OPENAI_BASE_URL: streaming from the embedded simulated engine)")
    with serve() as engine:
        yield engine.url, "llmtrace-sim"


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an ASGI application on loopback, in a thread; yield its host and port."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="websockets-sansio"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
