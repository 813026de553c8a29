"""Bound the store's queries for one web request in time, and end them when its client disconnects.

They run in one thread. Each gets the time that is left, and all have one name, by which a running
query is found and ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from secrets import token_hex
from typing import Final

from llmtrace_collector.store.records import StoreError

# ClickHouse's error codes for a timeout, and for a query ended by `KILL QUERY`.
ENDED: Final = frozenset({159, 394})


class QueryEndedError(StoreError):
    """The query took too long, or its client disconnected."""


class QueryDeadline:
    """The deadline of all queries made inside `within`.

    Args:
        seconds: from now until it has passed.

    Attributes:
        name: of all these queries.
    """

    def __init__(self, seconds: float) -> None:
        self.name = f"llmtrace-{token_hex(8)}"
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._over = threading.Event()

    def end(self) -> None:
        """Prevent further queries; the running one continues."""
        self._over.set()

    def settings(self) -> dict[str, str | float]:
        """Return the ClickHouse settings of the next query.

        Raises:
            QueryEndedError: the deadline has passed, or `end` was called.
        """
        left = self._until - time.monotonic()
        if self._over.is_set():
            raise QueryEndedError("the query was cancelled")
        if left <= 0:
            raise QueryEndedError(
                f"the query took longer than {self._seconds:g} s: narrow its time range or filters"
            )
        return {"max_execution_time": max(0.001, round(left, 3)), "log_comment": self.name}


_DEADLINE: ContextVar[QueryDeadline | None] = ContextVar("llmtrace_query_deadline", default=None)


@contextmanager
def within(deadline: QueryDeadline) -> Iterator[None]:
    """Bound all queries of this thread by a deadline while the block runs."""
    token = _DEADLINE.set(deadline)
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def settings() -> dict[str, str | float]:
    """Return the settings of the next query of this thread; none without a deadline.

    Raises:
        QueryEndedError: the deadline has passed.
    """
    deadline = _DEADLINE.get()
    return {} if deadline is None else deadline.settings()


def kill(name: str) -> str:
    """Return the statement that ends the running queries of a deadline, by its name."""
    return f"KILL QUERY WHERE Settings['log_comment'] = '{name}' ASYNC"
