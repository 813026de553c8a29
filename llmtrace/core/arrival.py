"""Bound when a response's data was on this machine, from what the kernel says of its socket.

A read that returns late looks like a slow server, although the consumer was late, the event loop
was blocked or the thread was not scheduled. The kernel keeps the time at which the socket last
received data: everything that a read returned had arrived by then, whatever the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# A shorter wait is not looked at: what may be late in it is not worth a system call.
LOOK_NS: Final = 20_000_000
_NEVER: Final = 1 << 62


class ArrivalClock:
    """A clock that, after a read, stands where its data had arrived: nothing is left to bound."""


class Arrival:
    """What is known of the arrival of one response's data.

    Args:
        age: a lower bound, in nanoseconds, of how long the last data has been on this machine;
            negative within the kernel's resolution; `None` = no longer known.
        clock: of the recording, monotonic nanoseconds.
        began: on that clock, when the wait for the response began.
        answered: when the response had begun.
        there: when its beginning was here at the latest.

    Attributes:
        by: on the recording's clock, when the first content was here at the latest; `None` = not
            known to be before it was read.
        lag: of the waits, the nanoseconds for which at least the data had been here.
    """

    __slots__ = ("_age", "_clock", "_look_above", "_looked", "_there", "by", "lag")

    def __init__(
        self,
        age: Callable[[], int | None],
        clock: Callable[[], int],
        *,
        began: int,
        answered: int,
        there: int,
    ) -> None:
        self._age = age
        self._clock = clock
        self._looked = answered
        self._there: int | None = there
        self._look_above = LOOK_NS
        self.by: int | None = None
        self.lag = max(0, answered - max(there, began))

    def read(self, began: int, now: int) -> int:
        """Note a read; return how long the next one must take to be of interest.

        A look that finds nothing late raises that bound, so that there are a few of them in a
        stream, however slow its server is.

        Args:
            began: when it began, on the recording's clock.
            now: when it returned.
        """
        began = max(began, self._looked)
        waited = now - began
        if waited > self._look_above:
            there = self._look(now)
            if there is None:
                self._look_above = _NEVER
            elif there < now:
                self.lag += now - max(there, began)
                self._look_above = LOOK_NS
            else:
                self._look_above = min(2 * self._look_above, waited + waited // 4)
        return self._look_above

    def first_content(self, now: int) -> None:
        """Note that the first content was read, however long it may have been here."""
        there, looked = self._there, self._looked
        if now != looked and there is not None:
            # Read right after what was read on time, it was not late by more than a few ms.
            on_time = there >= looked and now - looked <= LOOK_NS
            there = None if on_time else self._look(now)
        if there is not None and there < now:
            self.by = there

    def _look(self, now: int) -> int | None:
        """Return when the last data was here at the latest."""
        age = self._age()
        # The clock after the age: a thread that is stopped in between makes the bound later.
        self._there = None if age is None else self._clock() - age
        self._looked = now
        return self._there
