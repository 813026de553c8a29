"""Restart exporters in a forked child, and end them with any process.

A fork copies locks that another thread may hold and queues whose rows the parent sends, and no
threads.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakSet


class Restarts(Protocol):
    """Anything with state that a forked child must not share."""

    def restart_in_child(self) -> None:
        """Drop what belongs to the parent."""


_alive: WeakSet[Restarts] = WeakSet()
_at_exit: list[Callable[[], object]] = []
# `multiprocessing` runs what is below 0 once it has waited for the child's children.
_LAST: Final = -100


def restart_after_fork(thing: Restarts) -> None:
    """Have `thing` restarted in every child forked while it lives."""
    _alive.add(thing)


def at_exit(function: Callable[[], object]) -> None:
    """Have `function` run when the process ends, before those that were given earlier."""
    if function in _at_exit:
        atexit.unregister(function)
        _at_exit.remove(function)
    atexit.register(function)
    _at_exit.append(function)
    process = sys.modules.get("multiprocessing.process")
    if "multiprocessing.util" in sys.modules and process and process.parent_process():
        _finalize(function)


def _restart_all() -> None:
    for thing in list(_alive):
        thing.restart_in_child()
    # A child of `multiprocessing` has exits of its own, which it forgets as it starts, and then
    # calls what is registered here; other children never do.
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        for function in _at_exit:
            util.register_after_fork(function, _finalize)


def _finalize(function: Callable[[], object]) -> None:
    """Have a child of `multiprocessing` run `function` as it ends, which is without `atexit`."""
    sys.modules["multiprocessing.util"].Finalize(None, function, exitpriority=_LAST)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_all)
