"""Simulate a scenario, and return its case and the truth about it.

A `Scenario` is data: faults with their severities, a seed, which signals are missing. `simulate`
runs it and returns the case, as it would have been recorded, and the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, Protocol

import numpy as np

from llmtrace.core.errors import ConfigError
from llmtrace.core.stages import Source
from llmtrace.dataset.arrivals import Arrivals
from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns
from llmtrace.simulator.fleet.deployment import Deployment, draw, for_trace
from llmtrace.simulator.fleet.faults import MILD, SEVERE, find
from llmtrace.simulator.fleet.plan import Day
from llmtrace.simulator.fleet.run_fleet import run_day
from llmtrace.simulator.fleet.telemetry import observe
from llmtrace.simulator.fleet.traffic_shifts import SHIFTS
from llmtrace.stats.arrays import Floats

EPOCH_S: Final = 1_790_000_000
_DATES: Final = 1000  # days are on different dates
_LOUDER: Final = 1.15  # a p95 that grew by this much has moved
_OVER: Final = 0.08  # if besides so many requests lie above the p95 before
_WORSE: Final = 0.02  # more requests that did not succeed


class World(Protocol):
    """The conditions of a day, apart from its faults: `tests.bench.worlds` draws them."""

    def settle(self, draft: Deployment, rng: np.random.Generator, *, wide: bool) -> Deployment:
        """Return a deployment with its machines, as large as its traffic needs it."""

    def lengths(self, deployment: Deployment) -> tuple[float, float]:
        """Return how long the windows before and after are, in seconds of the simulator."""

    def prepare(self, day: Day) -> None:
        """Write into a day what it does to it."""

    def seen(self, case: Case) -> Case:
        """Return what is recorded of a case in it, on its time scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One day.

    Attributes:
        seed: of all random numbers, those of the deployment included.
        faults: causes and their severities, from 1 to 3.
        sound: the faults are left out: the same deployment, as it was without them.
        shift: change of the workload, of `SHIFTS`; no fault.
        before_s, after_s: lengths of the two intervals, in seconds.
        drop: signals that were not scraped; `*` = all of them.
        engine_source: source of the engine's times; `engine` = drawn by the seed, `none` = not
            reported, as by a hosted API.
        world: scales, machines and what is recorded; `None` = the simulator's own. A world
            has windows of its own.
        arrivals: a trace whose times and lengths are replayed; `None` = drawn.
    """

    seed: int
    faults: tuple[tuple[str, float], ...] = ()
    sound: bool = False
    shift: str | None = None
    before_s: float = 1800.0
    after_s: float = 600.0
    drop: tuple[str, ...] = ()
    engine_source: Source | Literal["engine", "none"] = "engine"
    world: World | None = None
    arrivals: Arrivals | None = None

    def __post_init__(self) -> None:
        for cause, severity in self.faults:
            find(cause)
            if not MILD <= severity <= SEVERE:
                raise ConfigError(f"{cause}: severity is from 1 to 3, not {severity}")
        if self.shift is not None and self.shift not in SHIFTS:
            raise ConfigError(f"no shift {self.shift!r}; known: {', '.join(SHIFTS)}")
        if min(self.before_s, self.after_s) <= 0 or self.before_s + self.after_s > 86_400:  # noqa: PLR2004
            raise ConfigError("the windows of a scenario are longer than 0 s, and a day together")
        if self.seed < 0:
            raise ConfigError(f"a seed is a whole number from 0, not {self.seed}")

    @property
    def name(self) -> str:
        """A name for people and folders."""
        what = [f"{cause}-{severity:g}" for cause, severity in self.faults]
        return "-and-".join(what or [f"shift-{self.shift}" if self.shift else "quiet"]) + (
            f"-{self.seed}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was done to a day, and whether it shows; no analysis may see this.

    Attributes:
        causes: the ids of what was injected.
        moved: by metric, p95 before and after; `outcomes`: share that did not succeed.
        shown: the metrics that moved visibly, of those the faults are known to move, the
            likeliest first.
    """

    causes: tuple[str, ...]
    shift: str | None
    moved: dict[str, tuple[float, float]]
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The case of a scenario, and the truth about it."""

    scenario: Scenario
    case: Case
    truth: Truth


def simulate(scenario: Scenario) -> Simulated:
    """Play a scenario. The same scenario gives the same case, to the bit.

    Raises:
        ConfigError: a cause or shift that does not exist, or numba is not installed.
    """
    faults = [find(cause) for cause, _ in scenario.faults]
    needs = {need for fault in faults for need in fault.needs}
    rng = np.random.default_rng([scenario.seed, 0])
    deployment = draw(rng, sorted(needs))
    if scenario.engine_source != "engine":
        source = None if scenario.engine_source == "none" else scenario.engine_source
        deployment = replace(deployment, engine_source=source)
    before_s, after_s = scenario.before_s, scenario.after_s
    world = scenario.world
    if world is not None:
        deployment = world.settle(deployment, rng, wide="wide" in needs)
        before_s, after_s = world.lengths(deployment)
    elif scenario.arrivals is not None:
        deployment = for_trace(scenario.arrivals, deployment, rng, wide="wide" in needs)
    day = Day(rng, deployment, before_s, after_s, replay=scenario.arrivals)
    if world is not None:
        world.prepare(day)
    if scenario.shift is not None:
        SHIFTS[scenario.shift](day)
    for fault, (_, severity) in zip(faults, scenario.faults, strict=True):
        if not scenario.sound:
            fault.inject(day, severity)
    ran = run_day(day, scenario.seed)
    case = observe(ran, EPOCH_S + 86_400 * (scenario.seed % _DATES), scenario.drop)
    if world is not None:
        case = world.seen(case)
    moved = measure(case)
    wanted = [metric for fault in faults for metric in fault.shows] or ["ttft", "tpot", "e2e"]
    shown = tuple(dict.fromkeys(m for m in wanted if is_visible(case, moved, m)))
    metric = next((m for m in shown if m != "outcomes"), None)
    truth = Truth(
        causes=tuple(fault.cause for fault in faults),
        shift=scenario.shift,
        moved=moved,
        shown=shown,
    )
    note = f"simulated: no request in here was ever made (llmtrace simulate, seed {scenario.seed})"
    return Simulated(scenario=scenario, case=replace(case, metric=metric, note=note), truth=truth)


def _sides(case: Case) -> tuple[Columns, Columns]:
    def rows(window: Window | None) -> Columns:
        if window is None:
            raise AssertionError("a simulated case has windows")
        return case.rows.within(window.start, window.end)

    return rows(case.before), rows(case.after)


def _values(rows: Columns, metric: str) -> Floats:
    """Return what a metric is made of: turns, where there are any, are what e2e is about."""
    if metric == "outcomes":
        return (~rows.words["outcome"].where("success")).astype(np.float64)
    values = rows.numbers[f"{metric}_s"]
    if metric == "e2e":
        values = values[rows.numbers["nested"] != 1]
    return values[~np.isnan(values)]


def measure(case: Case) -> dict[str, tuple[float, float]]:
    """Return p95 before and after by metric, and the share of requests that did not succeed."""
    moved = {}
    sides = _sides(case)
    for metric in ("ttft", "tpot", "e2e", "outcomes"):
        values = [_values(side, metric) for side in sides]
        if min(len(v) for v in values):
            figure = np.mean if metric == "outcomes" else partial(np.percentile, q=95)
            moved[metric] = (float(figure(values[0])), float(figure(values[1])))
    return moved


def is_visible(case: Case, moved: dict[str, tuple[float, float]], metric: str) -> bool:
    """Return whether a metric is so much worse that an on-call engineer would notice."""
    if metric not in moved:
        return False
    before, after = moved[metric]
    if metric == "outcomes":
        return after - before >= _WORSE
    later = _values(_sides(case)[1], metric)
    return after >= _LOUDER * before and float(np.mean(later > before)) >= _OVER
