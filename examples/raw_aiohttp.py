"""A stream read over aiohttp, without any SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from engine import endpoint

import llmtrace
from llmtrace.exporters.console import waterfall
from llmtrace.testing import capture


@llmtrace.trace(route="raw")
async def lines(session: aiohttp.ClientSession, url: str, model: str) -> AsyncIterator[bytes]:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 10,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with session.post(f"{url}/chat/completions", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: "):
                yield line


async def main(url: str, model: str) -> None:
    with llmtrace.instrument(aiohttp):
        async with aiohttp.ClientSession() as session:
            async for _ in lines(session, url, model):
                pass


with endpoint() as (url, model), capture(service="raw") as rows:
    asyncio.run(main(url, model))

for row in rows:
    print(waterfall(row, width=96))
    for phase in ("connect", "send", "rtt"):
        ns = getattr(row.timeline.network, phase)
        print(f"{phase:12} {'not reported' if ns is None else f'{ns / 1e6:.2f} ms'}")
