"""Send the requests of a plan from one process, and keep what each waited for."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import llmtrace
from llmtrace.budget import Budget
from llmtrace.configure import use_clock
from llmtrace.core.row import Row
from llmtrace.load_test.arrival_transport import clock
from llmtrace.load_test.drive import Answered, drive
from llmtrace.load_test.endpoint_apis import Sending, client_of
from llmtrace.load_test.requests import Request

Done = Callable[[Answered], None]

_LATE_SHARE: Final = 0.1  # of the median wait that the median request started late
_LATE_S: Final = 0.005
_BUSY: Final = 0.9  # of a core, above which a process of the client is late itself
_BEAT_S: Final = 0.02
_USUAL: Final = 0.9  # quantile of how late the client's own loop is


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A load test.

    Attributes:
        sending: the endpoint, and how requests are sent.
        requests: the workload.
        warm_up: requests sent first, one after the other, which are not counted.
        concurrency: clients of a closed loop; `None` = an open loop by the requests' times.
        seconds: no request starts later; `None` = all start.
        processes: that send the requests, each its share.
        settings: what the workload was made of, for the record.
    """

    sending: Sending
    requests: Sequence[Request]
    warm_up: Sequence[Request] = ()
    concurrency: int | None = None
    seconds: float | None = None
    processes: int = 1
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a load test measured.

    Attributes:
        rows: of the requests that count.
        answered: beside each row, in the order they ended.
        interrupted: whether it was ended by Ctrl-C.
        cpu: share of a core that each process of the client used meanwhile.
        active_s: seconds in which requests were sent and read.
        behind_s: how late the client's own loop was, at each check.
    """

    rows: list[Row]
    answered: list[Answered]
    interrupted: bool
    cpu: Sequence[float] = ()
    active_s: float = 0.0
    behind_s: Sequence[float] = ()

    @property
    def late_s(self) -> list[float]:
        """How late each request of an open loop started, in seconds, the earliest first."""
        return sorted(one.late_s for one in self.answered if one.late_s is not None)

    @property
    def often_behind_s(self) -> float | None:
        """How late the client's own loop was in a tenth of the checks; `None` = there was none."""
        ordered = sorted(self.behind_s)
        return ordered[int(_USUAL * len(ordered))] if ordered else None


class _Rows:
    """A sink that keeps the rows."""

    every_row = True

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)

    def flush(self, timeout_s: float) -> bool:
        """Return at once: no row waits to be sent."""
        del timeout_s
        return True

    def close(self) -> None:
        """Return at once: there is nothing to close."""


def joined(parts: Sequence[Measured]) -> Measured:
    """Return what several runs of one endpoint measured, as if it were one."""
    return Measured(
        rows=sorted((row for one in parts for row in one.rows), key=lambda row: row.start),
        answered=[answer for one in parts for answer in one.answered],
        interrupted=any(one.interrupted for one in parts),
        cpu=[share for one in parts for share in one.cpu],
        active_s=sum(one.active_s for one in parts),
        behind_s=[late for one in parts for late in one.behind_s],
    )


def send(
    plan: Plan,
    budget: Budget,
    done: Done = lambda _answered: None,
    start_at: Callable[[], float] = time.monotonic,
) -> Measured:
    """Send the requests of a plan from this process; neither checks nor warms up.

    Limits of the budget are exact in the rows' histograms; `done` gets each request's `Answered`
    as it is over. `start_at` is called when all is set up, and returns when to begin, in monotonic
    seconds.
    """
    sink, answered, behind = _Rows(), list[Answered](), list[float]()

    def over(one: Answered) -> None:
        answered.append(one)
        done(one)

    spent = [0.0, 0.0]  # seconds of the clock and of the CPU, while requests are sent

    async def run() -> None:
        async with client_of(plan.sending) as client:
            began = start_at()
            clocks = [time.monotonic(), time.process_time()]
            beats = asyncio.create_task(_beat(behind))
            try:
                await drive(
                    client, plan.sending, plan.requests, began=began,
                    concurrency=plan.concurrency, seconds=plan.seconds, done=over,
                )  # fmt: skip
            finally:
                beats.cancel()
                spent[:] = time.monotonic() - clocks[0], time.process_time() - clocks[1]

    llmtrace.init("llmtrace-bench", exporters=[sink], budget=budget, sample=1.0)
    use_clock(clock)
    interrupted = False
    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        interrupted = True
    finally:
        llmtrace.shutdown()
    active_s, cpu_s = spent
    return Measured(
        rows=sink.rows, answered=answered, interrupted=interrupted,
        cpu=(cpu_s / active_s,) if active_s > 0 else (), active_s=active_s, behind_s=behind,
    )  # fmt: skip


async def _beat(behind: list[float]) -> None:
    """Note again and again how late the loop is: what arrives is then read as late."""
    while True:
        due = time.monotonic() + _BEAT_S
        await asyncio.sleep(_BEAT_S)
        behind.append(max(0.0, time.monotonic() - due))


def bottleneck(measured: Measured) -> str | None:
    """Return in a sentence how the client itself distorts what was measured, if it does."""
    late, behind = measured.late_s, measured.often_behind_s or 0.0
    most = max(measured.cpu, default=0.0)
    waits = sorted(row.e2e_s if row.ttft_s is None else row.ttft_s for row in measured.rows)
    much = max(_LATE_S, _LATE_SHARE * waits[len(waits) // 2]) if waits else math.inf
    if late and (middle := late[len(late) // 2]) > much:
        return (
            f"The client is the bottleneck: half of the requests started over "
            f"{1000 * middle:.0f} ms late. Lower the rate, or use more --processes."
        )
    if behind > much:
        return (
            f"The client is the bottleneck: it was over {1000 * behind:.0f} ms behind for a tenth "
            f"of the time, at {most:.0%} of a core. Use more --processes or fewer clients, or a "
            "machine that does nothing else."
        )
    if most > _BUSY:
        return (
            f"The client is the bottleneck: a process of it used {most:.0%} of a core, so that "
            "some of what was measured is its own. Use more --processes, or fewer clients."
        )
    return None
