"""Serve an application of the collector from a thread, for a browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from llmtrace_collector.receive import HttpServer, ReceiveLimits
from llmtrace_collector.receive.counters import Received


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve an application; yield its address."""
    loop = asyncio.new_event_loop()
    server = HttpServer(app, "127.0.0.1", 0, ReceiveLimits(), Received())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield f"http://127.0.0.1:{server.port}/"
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
