"""Show the progress of the demo while it runs.

One line that keeps up on a terminal; an occasional plain line where there is none. On stderr, so
that the report alone can go to a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.live import Live
from rich.spinner import Spinner

from llmtrace.stats.quantiles import quantile

if TYPE_CHECKING:
    from rich.console import Console

    from llmtrace.core.row import Row
    from llmtrace.demo.options import Phase

_PLAIN_EVERY_S: Final = 5.0
_SHOWN_QUANTILE: Final = 0.95


class Progress:
    """How far the run is: the sink that keeps its rows.

    Attributes:
        rows: of every request that is over.
    """

    every_row = True

    def __init__(
        self,
        console: Console,
        name: str,
        seconds: float | None,
        requests: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows: list[Row] = []
        self._console = console
        self._name = name
        self._seconds = seconds
        self._requests = requests
        self._clock = clock
        self._began = self._printed_s = clock()
        self._live = console.is_terminal and not console.is_dumb_terminal
        self._phase = ""
        self._rows_before = 0

    def started(self, phase: Phase) -> None:
        """Note which phase runs from now on: the TTFT shown is that of its requests."""
        self._phase = f"{phase.name}, {phase.users} at once"
        self._rows_before = len(self.rows)

    def write(self, row: Row) -> None:
        """Keep the row of a finished request."""
        self.rows.append(row)
        if not self._live and self._clock() - self._printed_s >= _PLAIN_EVERY_S:
            self._printed_s = self._clock()
            self._console.print(self.line())

    def flush(self, timeout_s: float) -> bool:
        """Do nothing: no row is buffered."""
        del timeout_s
        return True

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def line(self) -> str:
        """Return the progress of the run as one line."""
        passed = self._clock() - self._began
        of_requests = "" if self._requests is None else f" of {self._requests}"
        time_passed = f"{passed:.0f} s"
        if self._seconds is not None:
            over = passed > self._seconds
            time_passed = "last answers" if over else f"{passed:.0f} of {self._seconds:.0f} s"
        waits = sorted(
            row.ttft_s for row in self.rows[self._rows_before :] if row.ttft_s is not None
        )
        ttft = f"{quantile(waits, _SHOWN_QUANTILE) * 1000:,.0f}" if waits else "-"
        parts = (
            self._name,
            self._phase,
            f"{len(self.rows)}{of_requests} done",
            f"p95 ttft {ttft} ms",
            time_passed,
        )
        return "  ".join(filter(None, parts))

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the line up to date on a terminal while the block runs."""
        if not self._live:
            yield
            return
        spinner = Spinner("line")

        def now() -> Spinner:
            spinner.update(text=self.line())
            return spinner

        with Live(get_renderable=now, console=self._console, refresh_per_second=5, transient=True):
            yield
