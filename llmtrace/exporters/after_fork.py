"""Restart exporters in a forked child.

Locks another thread may have held, queues whose content is the parent's, threads that are gone.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Restarts(Protocol):
    """Anything with state that a forked child must not share."""

    def restart_in_child(self) -> None:
        """Drop what belongs to the parent."""


_alive: WeakSet[Restarts] = WeakSet()


def restart_after_fork(thing: Restarts) -> None:
    """Have `thing` restarted in every child forked while it lives."""
    _alive.add(thing)


def _restart_all() -> None:
    for thing in list(_alive):
        thing.restart_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart_all)
