"""Take time as work does, or never end: tests compare what is measured with what it took.

This is no way to wait for something: that is `tests.support.waiting`.
"""

from __future__ import annotations

import asyncio
import time


def spend(seconds: float) -> None:
    """Be busy in this thread for so long, as an application, a server or a reader is."""
    time.sleep(seconds)


async def aspend(seconds: float) -> None:
    """Be busy in this task for so long; others run meanwhile."""
    await asyncio.sleep(seconds)


async def forever() -> None:
    """Never return; a cancellation ends it."""
    await asyncio.Event().wait()
