"""Contain failures of llmtrace itself: log once a kind, count, and carry on.

Nothing here raises: the application's stream goes on as if llmtrace were not there.
"""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

logger = logging.getLogger("llmtrace")

_lock = threading.RLock()  # a __del__ may count an error during the counting of another
_counts: Counter[str] = Counter()
_misused: set[tuple[str, str]] = set()
_MAX_MISUSED = 100


def _unlock() -> None:
    global _lock
    _lock = threading.RLock()


# Another thread may hold the lock at the moment of a fork; in the child it is never released.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)

P = ParamSpec("P")
T = TypeVar("T")


def internal_error(kind: str, error: BaseException | str) -> None:
    """Count an internal error; log it the first time its kind is seen.

    Args:
        kind: what was being done, in few words and low cardinality (`record`, `export.otlp`).
        error: what went wrong.
    """
    count_internal(kind)
    if _counts[kind] == 1:
        with suppress(Exception):  # neither an error without a text nor a broken logging handler
            logger.warning(
                "%s failed; the application is not affected. Further failures of this kind are "
                "counted in llmtrace_internal_errors_total, not logged. %s",
                kind,
                error if isinstance(error, str) else _shown(error),
            )


def rows_dropped(kind: str, rows: int, why: str) -> None:
    """Count rows dropped when an exporter closed, and log how many and why, without secrets."""
    count_internal(kind, rows)
    with suppress(Exception):  # a broken logging handler
        logger.warning("llmtrace: %s: %d row%s at exit: %s", kind, rows, "s" * (rows != 1), why)


def wrong_use(kind: str, name: str, message: str) -> None:
    """Count a mistake in the application's own marks; log once a name what to write instead."""
    count_internal(kind)
    with _lock:
        if (kind, name) in _misused or len(_misused) >= _MAX_MISUSED:
            return
        _misused.add((kind, name))
    with suppress(Exception):  # a broken logging handler
        logger.warning("%s", message)


def _shown(error: BaseException) -> str:
    """Describe an error by its text, if that is ours or the system's; else by where it was raised.

    Any other may quote a prompt or a response, and that must not get into a log.
    """
    kind = type(error)
    if isinstance(error, OSError) or kind.__module__.startswith(logger.name):
        return f"{kind.__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    if logger.isEnabledFor(logging.DEBUG):
        where += "\n" + "".join(traceback.format_list(frames))
    return f"{kind.__qualname__}{where}"


def count_internal(kind: str, n: int = 1) -> None:
    """Count something lost or broken inside llmtrace without logging it."""
    with _lock:
        _counts[kind] += n


def internal_errors() -> dict[str, int]:
    """Return the number of internal errors by kind; docs/operate/reliability.md lists them."""
    with _lock:
        return dict(_counts)


def fails_open(kind: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Make a procedure swallow, log and count its own errors."""

    def decorate(function: Callable[P, None]) -> Callable[P, None]:
        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the point of this decorator
                internal_error(kind, error)

        return guarded

    return decorate
