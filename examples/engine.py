"""Where do the examples stream from? Your endpoint, or the embedded simulated engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


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
