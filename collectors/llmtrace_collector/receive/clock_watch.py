"""Detect that the machine's clock was set by more than a minute, ahead or back.

Rows stay in order: their versions are a sequence. But requests are shown at the time by the clock,
so people must know of the jump. A slow correction of the clock does not count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("llmtrace.collector")

_NS: Final = 1_000_000_000
_JUMP_S: Final = 60.0
# How long a jump is reported.
_SAID_S: Final = 3_600.0


def _since_boot_s() -> float:
    """Return the seconds of a clock that cannot be set, and that continues while suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class ClockWatch:
    """Compares the clock with one that cannot be set, at each `look`.

    Args:
        stored_until_ns: up to when parts were joined before this process began, in unix
            nanoseconds by the clock at that time; 0 = never.
        wall: unix nanoseconds.
        steady: seconds of a clock that cannot be set.

    Attributes:
        jumps: number so far.
    """

    def __init__(
        self,
        stored_until_ns: int = 0,
        *,
        wall: Callable[[], int] = time.time_ns,
        steady: Callable[[], float] = _since_boot_s,
    ) -> None:
        self.jumps = 0
        self._wall = wall
        self._steady = steady
        self._seen = wall(), steady()
        self._last: tuple[float, float] | None = None  # how far, in seconds, and when
        ahead_s = (stored_until_ns - self._seen[0]) / _NS
        if ahead_s > _JUMP_S:
            self._jumped(-ahead_s)

    def look(self) -> str | None:
        """Describe the last jump, for an hour after it; `None` = there was none.

        Call it every few seconds, so that two jumps are not taken for one.
        """
        wall, steady = self._wall(), self._steady()
        jump_s = (wall - self._seen[0]) / _NS - (steady - self._seen[1])
        self._seen = wall, steady
        if abs(jump_s) > _JUMP_S:
            self._jumped(jump_s)
        if self._last is None or steady - self._last[1] > _SAID_S:
            return None
        return _words(self._last[0], steady - self._last[1])

    def _jumped(self, jump_s: float) -> None:
        self.jumps += 1
        self._last = jump_s, self._seen[1]
        logger.warning("%s", _words(jump_s, 0.0))


def _words(jump_s: float, ago_s: float) -> str:
    where = "ahead" if jump_s > 0 else "back"
    return f"the clock was set {abs(jump_s):,.0f} s {where}, {ago_s:,.0f} s ago or less"
