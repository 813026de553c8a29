"""Bound one query of the store in time, and end it when its client has disconnected.

A question is one or more queries of one thread. Each query gets what is left of the question's time
and carries its name, by which a running one is found and ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from secrets import token_hex
from typing import Final

from llmtrace_collector.store.protocol import StoreError

# Codes of ClickHouse's errors: out of time, and ended by `KILL QUERY`.
ENDED: Final = frozenset({159, 394})


class QuestionEndedError(StoreError):
    """The query took too long, or its client disconnected."""


class Question:
    """One question, from `asking` to the end of that block.

    Args:
        seconds: it may take.

    Attributes:
        name: of all its queries.
    """

    def __init__(self, seconds: float) -> None:
        self.name = f"llmtrace-{token_hex(8)}"
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._over = threading.Event()

    def end(self) -> None:
        """Let no further query of it begin."""
        self._over.set()

    def settings(self) -> dict[str, str | float]:
        """Return the settings of its next query.

        Raises:
            QuestionEndedError: there is to be none.
        """
        left = self._until - time.monotonic()
        if self._over.is_set():
            raise QuestionEndedError("the question was given up")
        if left <= 0:
            raise QuestionEndedError(
                f"the question took longer than {self._seconds:g} s: ask for less time, or less of it"
            )
        return {"max_execution_time": max(0.001, round(left, 3)), "log_comment": self.name}


_ASKED: ContextVar[Question | None] = ContextVar("llmtrace_question", default=None)


@contextmanager
def asking(question: Question) -> Iterator[None]:
    """Make all queries of this thread a part of a question while the block runs."""
    token = _ASKED.set(question)
    try:
        yield
    finally:
        _ASKED.reset(token)


def settings() -> dict[str, str | float]:
    """Return the settings of the next query of this thread; none outside of a question.

    Raises:
        QuestionEndedError: the question is over.
    """
    question = _ASKED.get()
    return {} if question is None else question.settings()


def kill(name: str) -> str:
    """Return the statement that ends the running queries of a question."""
    return f"KILL QUERY WHERE Settings['log_comment'] = '{name}' ASYNC"
