"""Run the engine model in real time, and deliver its tokens to their consumers.

One task takes steps on the running event loop; every time it reports is read from the clock when
the thing happened, never from the model's plan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llmtrace.simulator.engine import scheduler

# What a reader waits on: its tokens, and `None` when there will be no more of them.
Inbox = asyncio.Queue[scheduler.Token | None]
Watch = Callable[[scheduler.Step, Sequence[scheduler.Token]], None]


class LiveEngine:
    """One engine that takes steps while `run` runs. Everything happens on one event loop."""

    def __init__(
        self,
        config: scheduler.EngineConfig,
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep the parts; `watch` is called with every step that ended."""
        self.config = config
        self.state = scheduler.EngineState()
        self._watch = watch
        self._clock = clock
        self._arrived: list[scheduler.Request] = []
        self._inboxes: dict[str, Inbox] = {}
        self._wake = asyncio.Event()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Take steps until cancelled; then end every open answer."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                await self._take_step()
        finally:
            self.close()

    @contextmanager
    def answering(self, request: scheduler.Request) -> Iterator[Inbox]:
        """Queue a request and yield the inbox of its tokens; leaving aborts what is unfinished."""
        inbox: Inbox = asyncio.Queue()
        if self._closed:
            inbox.put_nowait(None)
        self._inboxes[request.request_id] = inbox
        self._arrived.append(request)
        self._wake.set()
        try:
            yield inbox
        finally:
            del self._inboxes[request.request_id]
            self._arrived = [r for r in self._arrived if r is not request]
            self.state = scheduler.abort(self.state, request.request_id)

    def close(self) -> None:
        """End every open answer where it is, as an engine that goes away does."""
        self._closed = True
        for inbox in self._inboxes.values():
            inbox.put_nowait(None)

    def close_soon(self) -> None:
        """Close from another thread; before `run` has started there is nothing to close."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    async def _take_step(self) -> None:
        # A real engine core takes newcomers in between two steps only: who arrives during a long
        # step waits for its end unseen by the queue time.
        arrived, self._arrived = self._arrived, []
        for request in arrived:
            self.state = scheduler.submit(self.config, self.state, request, self._clock())
        self.state, step = scheduler.schedule(self.config, self.state, self._clock())
        if step is None:
            self._wake.clear()
            await self._wake.wait()
            return
        await asyncio.sleep(max(0.0, step.started_s + step.duration_s - self._clock()))
        self.state, tokens = scheduler.complete(self.state, step, self._clock())
        self._watch(step, tokens)
        for token in tokens:
            self._inboxes[token.request.request_id].put_nowait(token)
