"""The plan of a simulated day: the deployment, and what changes in it and when.

A `Day` is the deployment, what will change in it and when, and how the workload will differ from
then on. Faults write into it (`faults`); `traffic` and `run_fleet` read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmtrace.dataset.arrivals import Arrivals
from llmtrace.simulator.fleet.array_layout import Engine, Gateway, Pool, Quota, Table
from llmtrace.simulator.fleet.deployment import Deployment

WARM_UP_S = 240.0  # simulated before the first row that is kept: queues and caches fill
TICK_S = 15.0  # between two samples of the signals, unless a day says otherwise

Arrays = dict[str, NDArray[Any]]
Records = Any  # a numpy.recarray: its fields are attributes, which no type checker knows
# Takes the requests, which of them start after the onset, and a generator of its own.
Edit = Callable[[Arrays, NDArray[np.bool_], np.random.Generator], None]

_TABLES = {Engine: Table.ENGINE, Gateway: Table.GATEWAY, Quota: Table.QUOTA, Pool: Table.POOL}


@dataclass(frozen=True, slots=True)
class Change:
    """From `at` on, a figure of the fleet is `value`; row -1 = of each replica, gateway, ..."""

    at: float
    what: Engine | Gateway | Quota | Pool
    value: float
    row: int = -1

    @property
    def table(self) -> Table:
        """The table of the changed value."""
        return _TABLES[type(self.what)]


@dataclass(frozen=True, slots=True)
class DayEvent:
    """What a deploy log would say: deploy, scale or config."""

    at: float
    kind: str
    text: str


@dataclass(slots=True)
class Day:
    """A day being planned. Times are seconds of the simulation; the incident begins at `onset`.

    Attributes:
        rng: random numbers of the plan.
        deployment: what stands at the beginning; faults may replace it before anything runs.
        before_s, after_s: how long the two windows are.
        changes: of figures of the fleet.
        happenings: what people would have written down.
        edits: of the requests.
        volume: traffic after the onset, as a multiple.
        mix: new shares after the onset, by dimension: route, tenant, region, app.
        known: facts of every engine that differ at the end from what the deployment says.
        serial_tools: whether tools take turns after the onset.
        tick_s: between two samples of the signals.
        swing: how far the load goes up and down over the day, as a share.
        steadiness: shape of the gamma that its level is drawn from: 40 = stirs by 16 %.
        replay: a trace whose times and lengths are replayed; `None` = drawn.
    """

    rng: np.random.Generator
    deployment: Deployment
    before_s: float
    after_s: float
    changes: list[Change] = field(default_factory=list)
    happenings: list[DayEvent] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    volume: float = 1.0
    mix: dict[str, tuple[float, ...]] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    serial_tools: bool = False
    tick_s: float = TICK_S
    swing: float = 0.04
    steadiness: float = 40.0
    replay: Arrivals | None = None

    @property
    def onset(self) -> float:
        """The simulated second at which the incident begins."""
        return WARM_UP_S + self.before_s

    @property
    def end(self) -> float:
        """The simulated second at which the triage is run."""
        return self.onset + self.after_s

    def change(
        self, what: Engine | Gateway | Quota | Pool, value: float, *, row: int = -1,
        at: float | None = None,
    ) -> None:  # fmt: skip
        """Plan a change, at the onset unless said otherwise."""
        self.changes.append(Change(self.onset if at is None else at, what, float(value), row))

    def happen(self, kind: str, text: str, at: float | None = None) -> None:
        """Plan a line in the deploy log."""
        self.happenings.append(DayEvent(self.onset if at is None else at, kind, text))
