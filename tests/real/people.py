"""What do the users of shop.py ask, calmly and in a rush, and who of them has bad luck?"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final

import openai

import llmtrace
from llmtrace.demo.simulated_users import jobs

# Prompts of a rush: a byte is a token, and no two of them begin alike, so that none is cached.
LONG: Final = 3_000
# What people ask for who are not unlucky.
ROUTES: Final = "question|conversation|document"
UNLUCKY: Final = "import"
ANSWER: Final = 24
SHORT_ANSWER: Final = 4
_LEAVES_AFTER: Final = 3


@dataclass(frozen=True, kw_only=True)
class Doors:
    """Where one can ask: base URLs, and the model there.

    Attributes:
        gateway: before the engine; tells its own time.
        rough: another one, which refuses and breaks off.
        engine: itself, where no gateway is reported.
    """

    gateway: str
    rough: str
    engine: str
    model: str


def ask_once(doors: Doors) -> None:
    """Ask for everything once: what a counter begins with is in no figure, only what is added."""

    async def business() -> None:
        async with _client(doors.gateway) as client:
            for route in (*ROUTES.split("|"), UNLUCKY):
                question = [{"role": "user", "content": "Good morning."}]
                await _read(_stream(client, doors.model, question, route))

    asyncio.run(business())


def ask_for(seconds: float, doors: Doors, users: int) -> None:
    """Let users ask through the gateway for so long, each with pauses, and read every answer.

    One more asks the engine itself, and one has bad luck.
    """
    over = time.monotonic() + seconds

    async def business() -> None:
        async with (
            _client(doors.gateway) as client,
            _client(doors.rough) as rough,
            _client(doors.engine) as direct,
        ):
            async with asyncio.TaskGroup() as group:
                for number in range(users):
                    group.create_task(_user(client, doors.model, number, over))
                group.create_task(_user(direct, doors.model, users, over))
                group.create_task(_unlucky(rough, doors.model, over))
            # What streams left behind is closed while there is a loop to close it on.
            gc.collect()
            await asyncio.sleep(0.2)

    asyncio.run(business())


def rush_in(doors: Doors, users: int) -> None:
    """Let users ask a long question each through the gateway, all at once."""

    async def business() -> None:
        async with _client(doors.gateway) as client, asyncio.TaskGroup() as group:
            for _ in range(users):
                group.create_task(_hurried(client, doors.model))

    asyncio.run(business())


def _client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=url,
        api_key="none",
        timeout=120,
        # No certificate is checked here: that takes longer than all the rest.
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False, verify=False),
    )


async def _user(client: openai.AsyncOpenAI, model: str, number: int, over: float) -> None:
    """Ask as a help desk is asked; every third user never reads an answer to its end."""
    for job in jobs(seed=number, longest_prompt=2_000):
        if time.monotonic() > over:
            return
        leaves = _LEAVES_AFTER if number % 3 == 2 else None
        await _read(_stream(client, model, job.messages, job.route), leaves=leaves)
        await asyncio.sleep(0.1)


async def _hurried(client: openai.AsyncOpenAI, model: str) -> None:
    """Ask a long question."""
    text = "".join(random.choices("abcdefghijklmnopqrstuvwxyz ", k=LONG))
    question = [{"role": "user", "content": text}]
    await _read(_stream(client, model, question, "document", tokens=SHORT_ANSWER))


async def _unlucky(client: openai.AsyncOpenAI, model: str, over: float) -> None:
    """Ask where one is refused at first, and where answers break off."""
    number = 0
    while time.monotonic() < over:
        number += 1
        question = [{"role": "user", "content": f"Still there? {number}"}]
        await _read(_stream(client, model, question, UNLUCKY))
        await asyncio.sleep(0.4)


@llmtrace.trace
async def _stream(
    client: openai.AsyncOpenAI, model: str, messages: Any, route: str, *, tokens: int = ANSWER
) -> Any:
    llmtrace.annotate(route=route)
    return await client.chat.completions.create(
        model=model, messages=messages, stream=True, max_tokens=tokens
    )


async def _read(asked: Awaitable[Any], *, leaves: int | None = None) -> None:
    # On a busy machine a connection may be kept just longer than the engine keeps it.
    with contextlib.suppress(openai.OpenAIError):
        async with await asked as stream:
            read = 0
            async for _ in stream:
                await asyncio.sleep(0.002)  # drawing it
                read += 1
                if read == leaves:
                    return
