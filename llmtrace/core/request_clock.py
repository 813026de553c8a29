"""The clock of one request: how long it waited, and when its content came.

Every nanosecond since `start` is a wait (blocked in the call or in a read) or consumer time (the
consumer has the stream and is busy with something else). Only the waits are added up; the rest is
consumer time, so that the two make the whole however the request ends. Each chunk is timed in
`llmtrace/instrumentation/streams/chunk_timing.py`, which keeps this clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from llmtrace.core.arrival import LOOK_NS, Arrival
from llmtrace.core.gap_slots import FIRST_SLOT_NS, MAX_SLOTS, halved
from llmtrace.core.stages import StageName

Clock = Callable[[], int]

# What a chunk carries. Only the kinds above NOTHING are content.
PIECE: Final = -2  # no event yet: a part of one, or a comment
HIDDEN: Final = -1  # requested by llmtrace, not by the client: must not reach it
NOTHING: Final = 0
TEXT: Final = 1
REASONING: Final = 2
TOOL_CALL: Final = 3
OTHER: Final = 4

# Upper bounds of the inter-chunk gap histogram, in nanoseconds. The OpenTelemetry GenAI bounds
# (10 ms doubling to 82 s) are all among them; below 10 ms and around 30-50 ms they are finer,
# because that is where decode steps are.
GAP_BOUNDS_NS: Final = tuple(
    ms * 1_000_000
    for ms in (
        1, 2, 5, 8, 10, 15, 20, 25, 30, 40, 50, 80, 100, 160, 250, 320, 500, 640, 1_000, 1_280,
        2_560, 5_120, 10_240, 20_480, 40_960, 81_920,
    )
)  # fmt: skip


class RequestClock:
    """Waits, gaps and first times of one request. Its size does not grow with the stream.

    Args:
        clock: monotonic nanoseconds.
        wall: unix nanoseconds, read once.
    """

    __slots__ = (
        "arrival", "clock", "first_byte", "first_event", "firsts", "gap_counts", "gap_slots",
        "held_before", "last_content", "mark", "marked_after", "marked_before", "read_began",
        "slot_end", "slot_ns", "start", "started_unix_ns", "ttft", "wait_started", "waited",
        "waited_at_content",
    )  # fmt: skip

    def __init__(self, clock: Clock, wall: Clock) -> None:
        self.clock = clock
        self.started_unix_ns = wall()
        self.start = self.mark = clock()
        # 0 means that no wait is open, so a clock that starts there reads 1 more.
        if self.start == 0:
            self.clock = lambda: clock() + 1
            self.start = self.mark = 1
        self.wait_started = self.start  # 0: no wait is open
        self.waited = 0
        self.read_began = self.start  # of the last read, where it is not one of many alike
        self.arrival: Arrival | None = None  # where the kernel says when the data came
        self.ttft: int | None = None
        self.held_before = 0
        self.waited_at_content = 0
        self.last_content = 0
        self.gap_counts = [0] * (len(GAP_BOUNDS_NS) + 1)
        self.gap_slots: list[int] = []  # the longest gap of each; -1: none ended in it
        self.slot_ns = FIRST_SLOT_NS
        self.slot_end = 0  # of the last one
        self.first_byte: int | None = None
        self.first_event: int | None = None
        self.firsts: list[int | None] = [None] * 5
        self.marked_before: dict[StageName, int] = {}
        self.marked_after: dict[StageName, int] = {}

    @property
    def reading(self) -> bool:
        """Whether a call or read blocks right now."""
        return self.wait_started != 0

    def switch_interval(self, *, reading: bool) -> int:
        """Close the running interval and begin the next, wait or consumer time; return now."""
        now = self.clock()
        if self.wait_started:
            self.waited += now - self.wait_started
            self.read_began = self.wait_started
        self.mark = now
        self.wait_started = now if reading else 0
        return now

    @property
    def consumer_time(self) -> int:
        """Consumer time so far, in nanoseconds; a wait that goes on began at `wait_started`."""
        return (self.wait_started or self.mark) - self.start - self.waited

    @property
    def max_gap(self) -> int:
        """The longest gap so far; -1 before there is one."""
        return max(self.gap_slots, default=-1)

    def event(self, kind: int) -> None:
        """Note what arrived at the last boundary."""
        arrival = self.arrival
        if arrival is not None and self.mark - self.read_began > LOOK_NS:
            arrival.read(self.read_began, self.mark)
        if kind > NOTHING and self.ttft is not None and self.firsts[kind] is not None:
            self.add_content_chunk()
            return
        if kind == PIECE:
            return
        now = self.mark
        if self.first_event is None:
            self.first_event = now
        if kind <= NOTHING:
            return
        self.firsts[kind] = now
        if self.ttft is not None:
            self.add_content_chunk()
            return
        self.ttft = since(self.start, now)
        self.held_before = self.consumer_time
        self.last_content = now
        self.waited_at_content = self.waited
        if arrival is not None:
            arrival.first_content(now)

    def take_back_unknown(self) -> None:
        """Take back content of no known kind, as what a gateway sends ahead of a response."""
        if self.ttft is None or any(self.firsts[:OTHER]):
            return
        self.ttft = self.firsts[OTHER] = None
        self.held_before = self.waited_at_content = self.last_content = self.slot_end = 0
        self.gap_counts[:] = [0] * len(self.gap_counts)  # `timed_reads` holds the same list
        self.gap_slots.clear()
        self.slot_ns = FIRST_SLOT_NS
        if self.arrival is not None:
            self.arrival.by = None

    def add_content_chunk(self) -> None:
        """Note one more chunk with content. `timed_reads` alone has this inline."""
        gap = self.waited - self.waited_at_content
        self.gap_counts[bisect_left(GAP_BOUNDS_NS, gap)] += 1
        self.add_gap(gap)
        self.waited_at_content = self.waited
        self.last_content = self.mark

    def add_gap(self, gap: int) -> None:
        """Note how long the wait was that ended at the mark, in the slot of that time."""
        if self.mark >= self.slot_end:
            self.next_slot(self.mark)
        self.gap_slots[-1] = max(self.gap_slots[-1], gap)

    def next_slot(self, now: int) -> int:
        """Begin the slot of gaps that `now` lies in; return when it ends."""
        began, slots = self.start + (self.ttft or 0), self.gap_slots
        number = max(0, (now - began) // self.slot_ns)
        while number >= MAX_SLOTS:
            slots[:] = halved(slots)
            self.slot_ns, number = 2 * self.slot_ns, number // 2
        slots += [-1] * (number + 1 - len(slots))
        self.slot_end = began + len(slots) * self.slot_ns
        return self.slot_end

    def add_mark(self, stage: StageName, ns: int) -> None:
        """Note an explicit mark. Inside the consumer's own time it is render already."""
        marks = self.marked_before if self.ttft is None else self.marked_after
        marks[stage] = marks.get(stage, 0) + max(0, ns)


def since(start: int, at: int) -> int:
    """Return how long after the start something happened."""
    return at - start if at > start else 0  # a clock may go backwards
