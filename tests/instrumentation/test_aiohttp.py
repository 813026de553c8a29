"""Requests of decorated functions over aiohttp are split into their phases."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import llmtrace
from llmtrace.core.row import Row
from llmtrace.testing import capture
from tests.support.sse_server import Server
from tests.support.taking_time import spend

from . import answers
from .reading import near, recorded, settled

aiohttp = pytest.importorskip("aiohttp")

MODULES = ("openai", "aiohttp")
DELAY_S = 0.1


@llmtrace.trace
async def stream(session: Any, url: str) -> AsyncIterator[bytes]:
    """Read a response line by line."""
    async with session.post(url, json={"stream": True}) as response:
        async for line in response.content:
            yield line


def over_one_session(url: str, act: Callable[[Any, str], Any] = stream, times: int = 1) -> None:
    """Send so many requests over one session."""

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            for _ in range(times):
                async for _line in act(session, url):
                    pass

    asyncio.run(main())


def test_name_resolution(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name resolution is counted once, although both aiohttp and the system's are watched."""
    plain = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host in {"slow.test", b"slow.test"}:
            spend(DELAY_S)
            host = "127.0.0.1"
        return plain(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    url = f"http://slow.test:{server.port}/v1/chat/completions"

    def check(row: Row) -> None:
        assert row.timeline.network.dns is not None
        near(row.timeline.network.dns / 1e9, DELAY_S)

    row = settled(lambda: recorded(lambda: over_one_session(url), instrument=MODULES), check)
    assert row.timeline.network.tls is None  # aiohttp does not tell it from connecting


def test_phases(server: Server) -> None:
    """The first request connects, the second finds the connection open; both wait and read."""
    server.play(answers.chat(head_s=DELAY_S))
    with capture(instrument=MODULES) as rows:
        over_one_session(f"{server.url}/chat/completions", times=2)
    first, second = (row.timeline.network for row in rows)
    assert first.connect
    assert (second.dns, second.connect, second.tls) == (0, 0, 0)
    for row in rows:
        assert (row.outcome, row.http_status, row.attempts) == ("success", 200, 1)
        assert row.ttft_s is not None
        assert row.ttft_s >= DELAY_S


def test_undone(server: Server) -> None:
    """What is undone is undone, for the class and for one session."""
    plain = aiohttp.ClientSession.__init__
    with llmtrace.instrument(aiohttp):
        assert aiohttp.ClientSession.__init__ is not plain
        ours = aiohttp.ClientSession.__init__
        llmtrace.instrument(aiohttp).undo()  # a second time undoes nothing
        assert aiohttp.ClientSession.__init__ is ours
    assert aiohttp.ClientSession.__init__ is plain

    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            with llmtrace.instrument(session):
                llmtrace.instrument(session)
                assert len(session.trace_configs) == 1
                async for _line in stream(session, f"{server.url}/chat/completions"):
                    pass
            assert session.trace_configs == []

    row = recorded(lambda: asyncio.run(main()), instrument=())
    assert row.timeline.network.connect
