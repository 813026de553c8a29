"""An application that uses Langfuse's own SDK and llmtrace at once; run by test_langfuse_beside.

In a process of its own: Langfuse's SDK sets the process's TracerProvider, and `langfuse.openai`
patches the OpenAI SDK for good. Prints each scenario's trace id as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import anthropic

import llmtrace
from llmtrace.simulator.server import serve

# Before Langfuse's SDK is imported, as `init` in an application's first lines would be.
llmtrace.init("shop", exporters=["langfuse"])

from langfuse import get_client, observe, propagate_attributes  # noqa: E402
from langfuse.openai import openai  # noqa: E402

MESSAGES: Any = [{"role": "user", "content": "Hello"}]
langfuse = get_client()


def ask(client: Any, **more: Any) -> Any:
    """Ask for a short streamed answer."""
    return client.chat.completions.create(
        **{"model": "llmtrace-sim", "messages": MESSAGES, "max_tokens": 4, "stream": True, **more}
    )


def faulty(faults: str) -> dict[str, Any]:
    """Return what makes the simulated engine misbehave."""
    return {"extra_headers": {"x-llmtrace-sim": faults}}


class Scenarios:
    """Each method is a scenario, under a span of Langfuse's of its name."""

    def __init__(self, url: str) -> None:
        self.openai = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        self.aopenai = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none")

    def message(self) -> None:
        """Ask through an SDK that Langfuse does not know."""
        with self.anthropic.messages.stream(
            model="llmtrace-sim", messages=MESSAGES, max_tokens=4
        ) as stream:
            for _ in stream:
                pass

    def stream(self) -> None:
        """Read a stream of `langfuse.openai` to its end."""
        with propagate_attributes(user_id="ada", session_id="s-1", tags=["beta"]):
            for _ in ask(self.openai):
                pass

    def whole(self) -> None:
        """Ask for an answer in one piece."""
        ask(self.openai, stream=False)

    def astream(self) -> None:
        """Read an async stream, inside an async generator that Langfuse observes."""

        @observe()
        async def words() -> Any:
            async for chunk in await ask(self.aopenai):
                yield chunk.id

        async def read() -> None:
            async for _ in words():
                pass

        asyncio.run(read())

    def other_sdk(self) -> None:
        """Ask through an SDK that Langfuse does not record."""
        self.message()

    def inside_a_generation(self) -> None:
        """Call a model in what the application itself records as a generation."""

        @observe(as_type="generation")
        def generate() -> None:
            self.message()

        generate()

    def decorated(self) -> None:
        """Read a stream of `langfuse.openai` in a function that llmtrace records."""

        @llmtrace.trace(route="chat")
        def chat() -> None:
            llmtrace.annotate(user="ada", session="s-1", tags=["beta"])
            for _ in ask(self.openai):
                pass

        chat()

    def decorated_with_a_step(self) -> None:
        """Make a second call in a decorated function, in a step that Langfuse observes."""

        @observe()
        def step() -> None:
            self.message()

        @llmtrace.trace
        def chat() -> None:
            self.message()
            step()

        chat()

    def agent(self) -> None:
        """Take a turn with tools, one of which calls a model itself."""

        @llmtrace.tool
        def weather(city: str) -> str:
            self.message()
            return city

        with llmtrace.turn("helper", user="ada", session="s-1", tags=["beta"]):
            for _ in ask(self.openai):
                pass
            weather("Berlin")

    def failing(self) -> None:
        """Read a stream in which the engine fails."""
        with suppress(openai.APIError):
            for _ in ask(self.openai, **faulty("error_after=2")):
                pass

    def refused(self) -> None:
        """Be refused before the answer begins."""
        with suppress(openai.RateLimitError):
            ask(self.openai, **faulty("reject_first=9999"))

    def left_early(self) -> None:
        """Stop reading in the middle."""
        stream = ask(self.openai)
        next(iter(stream))
        stream.close()

    def cancelled(self) -> None:
        """Cancel a task that reads."""

        async def read(began: asyncio.Event) -> None:
            async for _ in await ask(self.aopenai, max_tokens=1000):
                began.set()

        async def main() -> None:
            began = asyncio.Event()
            task = asyncio.create_task(read(began))
            await began.wait()
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(main())

    def at_once(self) -> None:
        """Read several streams at the same time."""

        async def read(number: int) -> None:
            async for _ in await ask(self.aopenai, max_tokens=3 + number):
                pass

        async def main() -> None:
            await asyncio.gather(*map(read, range(4)))

        asyncio.run(main())

    def in_threads(self) -> None:
        """Read streams in threads that were handed the context."""

        def read() -> None:
            for _ in ask(self.openai):
                pass

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(copy_context().run, read) for _ in range(2)]
        for future in futures:
            future.result()


def main() -> None:
    """Run every scenario, and say which trace each made."""
    traces = {}
    with serve() as engine:
        for name, run in vars(Scenarios).items():
            if name.startswith("_") or name == "message":
                continue
            traces[name] = under(name, run, Scenarios(engine.url))
    done = llmtrace.flush(30)
    langfuse.flush()
    print(json.dumps({"traces": traces, "flushed": done, "lost": llmtrace.internal_errors()}))
    sys.stdout.flush()
    llmtrace.shutdown()
    langfuse.shutdown()
    os._exit(0)  # the SDK's own threads need not be waited for


def under(name: str, run: Callable[..., None], scenarios: Scenarios) -> str:
    """Run one scenario under a span of Langfuse's, and return its trace's id."""
    with langfuse.start_as_current_observation(name=name) as span:
        run(scenarios)
    return span.trace_id


if __name__ == "__main__":
    main()
