"""When data was here is bounded by what the kernel says, looked at where something may be late."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.arrival import LOOK_NS, Arrival
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import TEXT
from llmtrace.core.row import Row
from llmtrace.instrumentation.streams.chunk_timing import timed_reads

MS = 1_000_000


@dataclass
class Kernel:
    """A clock, and a socket on which data arrived at a known time, `coarse` ns too young."""

    now: int = 1_000 * MS
    arrived: int = 0
    coarse: int = 0
    known: bool = True
    looks: int = 0

    def clock(self) -> int:
        """Return the time."""
        return self.now

    def age(self) -> int | None:
        """Return the least age of the last data that came."""
        self.looks += 1
        return self.now - self.arrived - self.coarse if self.known else None

    def arrival(self, began: int = 0) -> Arrival:
        """Begin a response that has just been noticed on time."""
        return Arrival(self.age, self.clock, began=began, answered=self.now, there=self.now)


def test_data_that_lay_here_is_lag():
    """Of a read of 400 ms whose data came after 50, 350 were the client's."""
    kernel = Kernel()
    arrival = kernel.arrival()
    began, kernel.arrived = kernel.now, kernel.now + 50 * MS
    kernel.now += 400 * MS

    arrival.read(began, kernel.now)

    assert arrival.lag == 350 * MS


def test_data_that_was_here_before_the_read_makes_all_of_it_lag_and_no_more():
    """What lay here while the consumer was busy is the consumer's time, and not lag."""
    kernel = Kernel()
    arrival = kernel.arrival()
    kernel.arrived = kernel.now + 10 * MS
    began = kernel.now + 500 * MS
    kernel.now = began + 30 * MS

    arrival.read(began, kernel.now)

    assert arrival.lag == 30 * MS


def test_the_resolution_of_the_kernel_makes_a_bound_later():
    """An age that is only known to a tick says less, never more."""
    kernel = Kernel(coarse=5 * MS)
    arrival = kernel.arrival()
    began, kernel.arrived = kernel.now, kernel.now + 50 * MS
    kernel.now += 400 * MS

    arrival.read(began, kernel.now)
    arrival.first_content(kernel.now)

    assert arrival.lag == 345 * MS
    assert arrival.by == began + 55 * MS


def test_a_short_read_is_not_looked_at():
    """The kernel is called only where something worth it can be late."""
    kernel = Kernel()
    arrival = kernel.arrival()
    for _ in range(100):
        began = kernel.now
        kernel.now += LOOK_NS
        arrival.read(began, kernel.now)

    assert (kernel.looks, arrival.lag) == (0, 0)


@given(gaps=st.lists(st.integers(1, 10_000), min_size=1, max_size=500))
def test_a_slow_server_is_looked_at_a_few_times_a_stream(gaps):
    """However long its gaps are, what finds nothing late makes looks rarer: a dozen or so."""
    kernel = Kernel()
    arrival = kernel.arrival()
    for gap_ms in gaps:
        began = kernel.now
        kernel.now += gap_ms * MS
        kernel.arrived = kernel.now
        arrival.read(began, kernel.now)

    assert arrival.lag == 0
    assert kernel.looks <= 16


def test_something_late_is_looked_at_closely_again():
    """After a slow server, a late read counts again from the shortest that is of interest."""
    kernel = Kernel()
    arrival = kernel.arrival()
    for wait_ms, late_ms in ((200, 0), (300, 0), (500, 400), (40, 30)):
        began = kernel.now
        kernel.now += wait_ms * MS
        kernel.arrived = kernel.now - late_ms * MS
        arrival.read(began, kernel.now)

    assert arrival.lag == 430 * MS


def test_a_socket_that_is_closed_says_nothing_more():
    """Where the kernel cannot be read any more, it is not tried again."""
    kernel = Kernel(known=False)
    arrival = kernel.arrival()
    for _ in range(3):
        began = kernel.now
        kernel.now += 400 * MS
        arrival.read(began, kernel.now)
    arrival.first_content(kernel.now)

    assert (kernel.looks, arrival.lag, arrival.by) == (1, 0, None)


def test_a_late_consumer_s_content_has_a_bound():
    """The consumer came 400 ms late; its content was here after 100."""
    kernel = Kernel()
    arrival = kernel.arrival()
    kernel.arrived = kernel.now + 100 * MS
    by = kernel.arrived
    kernel.now += 400 * MS

    arrival.read(kernel.now, kernel.now)
    arrival.first_content(kernel.now)

    assert (arrival.by, arrival.lag) == (by, 0)


def test_content_right_after_headers_that_were_late_has_a_bound():
    """Both were here 300 ms before the loop ran: the content too, although it came at once."""
    kernel = Kernel()
    there = kernel.now
    kernel.arrived = there
    kernel.now += 300 * MS
    arrival = Arrival(
        kernel.age, kernel.clock, began=there - 50 * MS, answered=kernel.now, there=there
    )
    kernel.now += MS

    arrival.first_content(kernel.now)

    assert (arrival.by, arrival.lag) == (there, 300 * MS)


def test_content_that_was_read_on_time_has_none():
    """An eager consumer's figure is its own; nothing is known to be earlier."""
    kernel = Kernel()
    arrival = kernel.arrival()
    kernel.now += 400 * MS
    kernel.arrived = kernel.now

    arrival.first_content(kernel.now)

    assert (arrival.by, arrival.lag) == (None, 0)


# --- in a recording ------------------------------------------------------------------------------


def _row(kernel: Kernel, reads: list[tuple[int, int]], *, known: bool = True) -> Row:
    """Read texts, each so many ms after the one before and so late; return the row."""
    rows: list[Row] = []
    info = {"service": "s", "trace_id": "t", "span_id": "p"}
    recording = Recording(lambda _, row: rows.append(row), info, clock=kernel.clock)
    if known:
        recording.arrival = kernel.arrival(recording.start)
    recording.opened()
    left = iter(reads)

    def read() -> str:
        wait_ms, late_ms = next(left)
        kernel.now += wait_ms * MS
        kernel.arrived = kernel.now - late_ms * MS
        return "text"

    list(timed_reads(recording, read, lambda _recording, _chunk: TEXT))
    [row] = rows
    return row


def test_a_row_has_both_figures():
    """A first content 200 ms late, and a later chunk 100 ms."""
    row = _row(Kernel(), [(300, 200), (20, 0), (20, 0), (150, 100), (20, 0)])

    assert (row.ttft_ns, row.arrived_by_ns, row.client_lag_ns) == (300 * MS, 100 * MS, 300 * MS)
    assert row.as_dict()["client_lag_s"] == 0.3


def test_late_chunks_in_one_bucket_all_count():
    """Gaps that are alike are not looked up in the histogram again, but in the kernel."""
    row = _row(Kernel(), [(1, 0), *[(90, 60)] * 10])

    assert row.client_lag_ns == 600 * MS


def test_nothing_late_is_known_to_be_nothing():
    """0 where the kernel was read, and unknown where it was not."""
    reads = [(300, 0), (50, 0), (50, 0)]

    assert _row(Kernel(), reads).client_lag_ns == 0
    assert _row(Kernel(), reads).arrived_by_ns is None
    assert _row(Kernel(), reads, known=False).client_lag_ns is None


def test_fast_chunks_make_no_system_call():
    """A stream whose chunks come within 20 ms is looked at for its first content alone."""
    kernel = Kernel()
    _row(kernel, [(300, 0), *[(15, 0)] * 200])

    assert kernel.looks == 1
