"""Wait for what another thread, process or task is about to do, and has no event for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
PATIENCE_S: Final = 30.0
_STEP_S: Final = 0.005


def until(look: Callable[[], T], what: object = "", within_s: float = PATIENCE_S) -> T:
    """Look until there is something, and return it.

    Raises:
        AssertionError: there is nothing within that time; it says what.
    """
    give_up = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < give_up, what
        time.sleep(_STEP_S)
    return found


async def auntil(look: Callable[[], T], what: object = "", within_s: float = PATIENCE_S) -> T:
    """Do as `until`, and let the loop's other tasks run meanwhile."""
    give_up = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < give_up, what
        await asyncio.sleep(_STEP_S)
    return found
