"""How long this process waited for a CPU: what a test of time allows beyond its own bounds.

Linux counts, for each thread, the time in which it could have run and another task had its CPU. It
is close to 0 on a quiet machine, so that bounds are as tight as they are written; beside busy
loops they widen by what was taken from this very process in the very measurement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_TASKS: Final = Path("/proc/self/task")
# A client waits for itself, and for a server whose threads may be gone by the time they are read.
_SIDES: Final = 2
_allowed_s = [0.0]


def allowed_s() -> float:
    """Return by how many seconds the measurement under check may be late."""
    return _allowed_s[-1]


class Waits:
    """The seconds that threads of this process have waited for a CPU since this was made."""

    def __init__(self) -> None:
        self._before = _waited_ns()

    def seconds(self) -> float:
        """Return the sum over all threads there are now; 0 where the system does not count it."""
        return sum(ns - self._before.get(task, 0) for task, ns in _waited_ns().items()) / 1e9


@contextmanager
def allowing(waits: Waits) -> Iterator[None]:
    """Allow what the process has waited, on either side, in the checks within."""
    _allowed_s.append(_SIDES * waits.seconds())
    try:
        yield
    finally:
        _allowed_s.pop()


def _waited_ns() -> dict[str, int]:
    found = {}
    for task in _TASKS.glob("*/schedstat"):
        try:
            found[task.parent.name] = int(task.read_text().split()[1])
        except (OSError, IndexError):  # the thread is gone, or the kernel does not count
            continue
    return found
