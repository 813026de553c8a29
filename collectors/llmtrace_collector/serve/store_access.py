"""Run queries of the store for web requests: a few at a time, for a bounded time each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.requests import Request

from llmtrace.core.errors import DataError, LlmtraceError
from llmtrace_collector.store import Store, StoreError
from llmtrace_collector.store.query_deadline import QueryDeadline, QueryEndedError, within

logger = logging.getLogger("llmtrace.collector")

T = TypeVar("T")

QUERIES: Final = 4
PATIENCE_S: Final = 10.0
# The deadline of one query, or of a piece of a long answer; and how often to check for its client.
_MAX_S: Final = 30.0
_LOOK_S: Final = 0.5


class StoreAccess:
    """Runs queries, `QUERIES` at a time; one that waits too long raises `TimeoutError`.

    Args:
        store: that is read.
        catch_up: called before each query, to store what waits until someone reads.
    """

    def __init__(self, store: Store, catch_up: Callable[[], None] = lambda: None) -> None:
        self.store = store
        self._catch_up = catch_up
        self._room = asyncio.Semaphore(QUERIES)
        self._ending: set[asyncio.Future[None]] = set()

    async def ask(self, ask: Callable[[], T], request: Request | None = None) -> T:
        """Query the store in a thread, until the result is there or the client has disconnected.

        Args:
            ask: returns the answer.
            request: whose client may disconnect; `None` = the caller checks for that itself.

        Raises:
            StoreError: it took too long, or the client has disconnected.
            TimeoutError: too many queries are waiting.
        """
        # Only while it runs: a slow client blocks no other query.
        async with asyncio.timeout(PATIENCE_S):
            await self._room.acquire()
        deadline = QueryDeadline(_MAX_S)

        def bounded() -> T:
            self._catch_up()
            with within(deadline):
                return ask()

        running = asyncio.ensure_future(asyncio.to_thread(bounded))
        running.add_done_callback(self._asked)
        try:
            while not running.done():
                await asyncio.wait({running}, timeout=_LOOK_S)
                if not running.done() and request is not None and await request.is_disconnected():
                    raise QueryEndedError("the client has disconnected")
            return running.result()
        finally:
            if not running.done():
                deadline.end()
                # Not waited for: this task may be cancelled. It keeps its room until it has ended.
                ending = asyncio.ensure_future(asyncio.to_thread(self._end, deadline.name))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)

    def _asked(self, running: asyncio.Future[Any]) -> None:
        self._room.release()
        if not running.cancelled():
            running.exception()  # retrieved, even if nothing waits for it any more

    def _end(self, name: str) -> None:
        try:
            self.store.end(name)
        except LlmtraceError as error:
            logger.debug("a cancelled query could not be ended: %s", error)


def failure(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and message for a query that failed.

    Raises:
        Exception: the error itself, if it is not one of the store or of llmtrace.
    """
    if isinstance(error, DataError):
        return 400, str(error)
    if isinstance(error, TimeoutError):
        return 503, "too many queries at once"
    if isinstance(error, QueryEndedError):
        return 503, str(error)
    if isinstance(error, StoreError):
        logger.warning("a query failed: %s", error)
        damaged = error.reason == "damaged"
        return 503, str(error) if damaged else "the store does not answer"
    if isinstance(error, LlmtraceError):
        return 500, str(error)
    raise error
