"""How often is triage right in worlds that no rule was written on?

    python -m tests.bench.bench_worlds [--seeds N] [--quiet N] [--jobs N] [--written-on] [--store]

Each incident has a world of its own (`tests.bench.worlds`). Worlds of two families
exist: those that rules may be written on, and the unseen ones, which have other seeds, replayed
traces and an engine that counts its queue in another way, and are only for reports. Every figure
is printed with the windows given and with windows and metric taken away. Evidence is grounded if
the lines that carry the right cause do not hold of the same day without the fault. `--store` keeps
what share of each status was right, which reports quote. Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from llmtrace.dataset.arrivals import read_arrivals
from llmtrace.dataset.case import Case
from llmtrace.simulator.fleet.scenario import Scenario, Simulated, simulate
from llmtrace.stats.significance import more_than
from llmtrace.triage.causes.scoring import WEIGHTS
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import CAUSES, NAMED, OF_THE_WORK, OF_TRAFFIC, Finding, Result
from tests.bench import worlds_beyond
from tests.bench.bench_triage import (
    PAIRS,
    SEVERITIES,
    SHIFTS,
    SIMULATED,
    SURE,
    TOP,
    WORKLOAD,
    dropped,
)
from tests.bench.kept_answers import keep, read_kept
from tests.bench.track_record import counted, store
from tests.bench.worlds import World, draw_world, traits

WAYS: Final = ("given", "searched")
BY_CHANCE: Final = 1e-4  # of as many slow requests, in incidents that count
SURELY: Final = 6.0  # standard errors of a number of requests
UNSEEN: Final = 50_000_000  # the first seed of worlds for reports
TRACES: Final = Path(__file__).parents[2] / "traces"
# Bars: with windows given and searched; `<` = at most.
BARS: Final = {
    "top-1": (0.95, 0.90),
    "top-3": (0.99, 0.95),
    "workload shifts recognised": (0.95, None),
    "two faults, both in the top three": (0.80, None),
    "< quiet days with a likely or confirmed cause": (0.01, 0.01),
    "confirmed causes that are true": (0.95, 0.95),
    "likely causes that are true": (0.75, 0.75),
    "onset intervals that hold the fault's begin": (0.90, 0.90),
}


@dataclass(frozen=True, slots=True)
class Task:
    """One incident to play: its kind and its seed, from which everything follows."""

    kind: str
    seed: int
    faults: tuple[tuple[str, float], ...] = ()
    shift: str | None = None
    trace: str | None = None

    @property
    def beyond(self) -> tuple[str, float] | None:
        """The one cause, where the simulator itself has none of it."""
        own = len(self.faults) == 1 and self.faults[0][0] in worlds_beyond.KNOWN_BY
        return self.faults[0] if own else None


@dataclass(frozen=True, slots=True)
class Said:
    """What triage said, one way of being given the windows.

    Attributes:
        named: causes with status and points, best first.
        grounded: whether what the first of them rests on is gone without the fault; `None` = the
            first is not the fault.
        dated: whether the interval of the onset holds the fault's begin; `None` = no onset.
    """

    verdict: str
    named: tuple[tuple[str, str, int], ...]
    grounded: bool | None = None
    dated: bool | None = None

    @property
    def top(self) -> tuple[str, ...]:
        """The causes named, best first."""
        return tuple(cause for cause, _, _ in self.named)


@dataclass(frozen=True, slots=True)
class Answer:
    """One incident and what was said of it; `dropped` = why it does not count."""

    kind: str
    seed: int
    truth: tuple[str, ...]
    severity: float
    traits: tuple[str, ...]
    dropped: str | None = None
    said: tuple[Said, ...] = ()
    rows: int = 0


def tasks(first: int, seeds: int, quiet: int, traces: Sequence[str]) -> Iterator[Task]:
    """Yield the incidents to play: so many worlds a cause, severities in turn, and quiet days."""
    for n in range(seeds):
        for k, cause in enumerate(SIMULATED):
            seed = first + 100_000 * (k + 1) + n
            severity = SEVERITIES[(n + k) % len(SEVERITIES)]
            replays = traces and (n + k) % 3 == 0 and cause not in ("serial_tools", "idle_timeout")
            trace = traces[(n + k) // 3 % len(traces)] if replays else None
            yield Task("fault", seed, ((cause, severity),), trace=trace)
        for k, cause in enumerate(worlds_beyond.KNOWN_BY):
            severity = SEVERITIES[(n + k) % len(SEVERITIES)]
            yield Task("fault", first + 7_000_000 + 100_000 * k + n, ((cause, severity),))
        for k, shift in enumerate(SHIFTS):
            yield Task("shift", first + 4_000_000 + 10 * n + k, shift=shift)
        pair = PAIRS[n % len(PAIRS)]
        yield Task("pair", first + 5_000_000 + n, tuple((cause, 2.5) for cause in pair))
    for n in range(quiet):
        trace = traces[n // 4 % len(traces)] if traces and n % 4 == 0 else None
        yield Task("quiet", first + 6_000_000 + n, trace=trace)


def play(task: Task, *, sound: bool = False) -> Simulated:
    """Simulate an incident in a world of its own; `sound` = without its fault."""
    arrivals = None if task.trace is None else read_arrivals(Path(task.trace))
    world = draw_world(task.seed, [cause for cause, _ in task.faults], arrivals)
    if task.seed < UNSEEN and world.queue == "sglang":
        world = replace(world, queue="vllm")
    beyond = task.beyond
    if beyond is not None and not sound:
        world = replace(world, beyond=beyond)
    scenario = Scenario(
        seed=task.seed,
        faults=() if beyond is not None else task.faults,
        sound=sound,
        shift=task.shift,
        world=world,
        arrivals=arrivals,
    )
    return simulate(scenario)


def answer(task: Task) -> Answer:
    """Play one incident and triage it both ways."""
    played = play(task)
    world = played.scenario.world
    assert isinstance(world, World)
    head = Answer(
        kind=task.kind,
        seed=task.seed,
        truth=tuple(cause for cause, _ in task.faults),
        severity=task.faults[0][1] if task.faults else 0.0,
        traits=tuple(traits(world)),
        dropped=_not_counted(task, played),
        rows=played.case.rows.n,
    )
    if head.dropped:
        return head
    blind = replace(played.case, before=None, after=None, metric=None)
    given, found = _triaged(played.case), _triaged(blind)
    first = next((one for one in given.causes if one.status in NAMED), None)
    grounded = None
    if task.kind == "fault" and first is not None and first.id in head.truth:
        sound = replace(play(task, sound=True).case, metric=played.case.metric)
        same = next(one for one in _triaged(sound).causes if one.id == first.id)
        grounded = _carries(first) > _carries(same)
    began = played.case.after.start if played.case.after else 0.0
    return replace(
        head, said=(replace(_said(given, began), grounded=grounded), _said(found, began))
    )


def _not_counted(task: Task, played: Simulated) -> str | None:
    """Return why an incident says nothing of triage; `None` = it counts."""
    if task.beyond is None or task.beyond[0] not in OF_TRAFFIC:
        return dropped(task.kind, played) or hardly_seen(task.kind, played)
    if played.truth.shown:
        return "requests take longer as well: then it is a queue or a batch"
    before, after = played.case.before, played.case.after
    assert before is not None
    assert after is not None
    counts = [played.case.rows.within(one.start, one.end).n for one in (before, after)]
    expected = counts[0] * after.seconds / before.seconds
    far = abs(counts[1] - expected) >= SURELY * np.sqrt(expected + counts[1])
    return None if far else "changed the number of requests no more than chance would"


def hardly_seen(kind: str, played: Simulated) -> str | None:
    """Return why an incident is none that anybody could tell from chance; `None` = it counts."""
    if kind == "quiet":
        return None
    metrics = played.truth.shown or ("ttft", "tpot", "e2e")
    chances = [_chance(played.case, metric) for metric in metrics]
    return None if min(chances) < BY_CHANCE else "moved no more than chance would"


def _chance(case: Case, metric: str) -> float:
    """Return how likely as many slow (or failed) requests after are, if nothing had changed."""
    assert case.before is not None
    assert case.after is not None
    slow = []
    limit = np.inf
    for window in (case.before, case.after):
        rows = case.rows.within(window.start, window.end)
        if metric == "outcomes":
            slow.append(~rows.words["outcome"].where("success"))
            continue
        value = rows.numbers[f"{metric}_s"]
        value = value[np.isfinite(value)]
        if not len(value):
            return 1.0
        limit = np.percentile(value, 95) if window is case.before else limit
        slow.append(value > limit)
    before, after = slow
    return more_than(int(after.sum()), len(after), int(before.sum()), len(before))


def _triaged(case: Case) -> Result:
    return triage(case, Settings(bootstrap=0))


def _carries(found: Finding) -> int:
    """Return the points of the lines that a cause rests on: required ones and proofs."""
    return sum(one.points for one in found.evidence if one.points >= WEIGHTS["required"][0])


def _said(result: Result, began: float) -> Said:
    """Return what a result says; an onset between two requests may be anywhere there."""
    named = tuple((one.id, one.status, one.score) for one in result.causes if one.status in NAMED)
    onset = result.onset
    if onset is None:
        return Said(result.verdict, named)
    held = onset.earliest - onset.gap_s <= began <= onset.latest + onset.gap_s
    return Said(result.verdict, named, dated=bool(held))


def report(answers: Sequence[Answer], *, details: bool) -> dict[str, tuple[float, ...]]:
    """Print the tables; return the figures that have bars, one for each of `WAYS`."""
    kept = [one for one in answers if one.dropped is None]
    faults = [one for one in kept if one.kind == "fault"]
    figures: dict[str, tuple[float, ...]] = {}

    def both(name: str, days: Sequence[Answer], of: Callable[[Answer, Said], bool]) -> None:
        if days:
            figures[name] = tuple(
                float(np.mean([of(day, day.said[way]) for day in days])) for way in range(2)
            )

    both("top-1", faults, lambda day, said: day.truth[0] in said.top[:1])
    both("top-3", faults, lambda day, said: day.truth[0] in said.top[:TOP])
    grounds = [one.said[0].grounded for one in faults if one.said[0].grounded is not None]
    if grounds:
        print(f"evidence of the right cause is the fault's: {sum(grounds)} of {len(grounds)}")
    dated = [[one.said[way].dated for one in faults] for way in range(2)]
    held = [[one for one in way if one is not None] for way in dated]
    if all(held):
        name = "onset intervals that hold the fault's begin"
        figures[name] = tuple(float(np.mean(way)) for way in held)
    shifts = [one for one in kept if one.kind == "shift"]
    pairs = [one for one in kept if one.kind == "pair"]
    quiet = [one for one in kept if one.kind == "quiet"]
    both("workload shifts recognised", shifts, lambda _, said: said.verdict in WORKLOAD)
    both("two faults, both in the top three", pairs,
         lambda day, said: {*day.truth} <= {*said.top[:TOP]})  # fmt: skip
    both("< quiet days with a likely or confirmed cause", quiet,
         lambda _, said: any(status in SURE for _, status, _ in said.named))  # fmt: skip
    for status in SURE:
        right = [[_is_true(day, named) for day in kept for named, called, _ in day.said[way].named
                  if called == status] for way in range(2)]  # fmt: skip
        if all(right):
            figures[f"{status} causes that are true"] = tuple(float(np.mean(r)) for r in right)
    counts = Counter(one.kind for one in kept)
    print(f"{len(answers)} incidents, {len(answers) - len(kept)} of them moved nothing visibly; "
          + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))  # fmt: skip
    if details and faults:
        _by_cause(faults)
        _by_trait(faults)
        _confusions(faults)
        _odd(shifts, quiet, pairs)
    return figures


def _is_true(day: Answer, cause: str) -> bool:
    """Return whether a cause is true of a day: injected, or what its shift of the work is."""
    return cause in day.truth or (day.kind == "shift" and cause in OF_THE_WORK)


def _share(days: Sequence[Answer], way: int, top: int = 1) -> float:
    return float(np.mean([day.truth[0] in day.said[way].top[:top] for day in days]))


def _by_cause(faults: Sequence[Answer]) -> None:
    print(f"\n  {'cause':24}{'n':>5}{'given':>8}{'top-3':>8}{'searched':>10}{'top-3':>8}")
    for cause in CAUSES:
        days = [one for one in faults if one.truth == (cause,)]
        if days:
            print(f"  {cause:24}{len(days):5}{_share(days, 0):8.0%}{_share(days, 0, TOP):8.0%}"
                  f"{_share(days, 1):10.0%}{_share(days, 1, TOP):8.0%}")  # fmt: skip


def _by_trait(faults: Sequence[Answer]) -> None:
    print(f"\n  {'world':24}{'n':>5}{'given':>8}{'searched':>10}")
    kinds = sorted({trait for one in faults for trait in one.traits})
    for kind in [*kinds, *(f"severity {s:g}" for s in SEVERITIES)]:
        days = [
            one for one in faults if kind in one.traits or kind == f"severity {one.severity:g}"
        ]
        if days:
            print(f"  {kind:24}{len(days):5}{_share(days, 0):8.0%}{_share(days, 1):10.0%}")


def _confusions(faults: Sequence[Answer]) -> None:
    for way, name in enumerate(WAYS):
        taken: dict[str, Counter[str]] = defaultdict(Counter)
        for one in faults:
            said = one.said[way]
            if one.truth[0] not in said.top[:1]:
                taken[one.truth[0]][said.top[0] if said.top else f"nothing ({said.verdict})"] += 1
        print(f"\n  windows {name}, taken for something else:")
        for cause, instead in taken.items():
            print(
                f"  {cause:24}" + ", ".join(f"{named} {n}" for named, n in instead.most_common())
            )


def _odd(*groups: Sequence[Answer]) -> None:
    for days in groups:
        for one in days:
            for way, name in enumerate(WAYS):
                said = one.said[way]
                sure = [f"{c} {s}" for c, s, _ in said.named if s in SURE]
                bad = {
                    "quiet": bool(sure),
                    "shift": said.verdict not in WORKLOAD,
                    "pair": not {*one.truth} <= {*said.top[:TOP]},
                }
                if bad[one.kind]:
                    head = f"{one.kind} {one.seed} {'+'.join(one.truth)}, {name}"
                    print(f"  {head}: {said.verdict}; {', '.join(sure) or 'nothing sure'}")


def record(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return how often each cause was named first, and each status of it was right."""
    kept = [one for one in answers if one.dropped is None]
    called: dict[str, dict[str, dict[str, list[int]]]] = {}
    for way, name in enumerate(WAYS):
        said = [(cause, status, _is_true(day, cause)) for day in kept
                for cause, status, _ in day.said[way].named]  # fmt: skip
        called[name] = {
            cause: counted((status, right) for one, status, right in said if one == cause)
            for cause in sorted({one for one, _, _ in said})
        }
    return {
        "incidents": dict(Counter(one.kind for one in kept)),
        "named_first": counted(
            (day.truth[0], day.truth[0] in day.said[0].top[:1])
            for day in kept
            if day.kind == "fault"
        ),
        "called": called,
    }


def _answer(flat: dict[str, Any]) -> Answer:
    """Read an answer that an earlier run kept."""
    said = tuple(
        Said(**{**one, "named": tuple(map(tuple, one["named"]))}) for one in flat.pop("said")
    )
    truth, kinds = tuple(flat.pop("truth")), tuple(flat.pop("traits"))
    return Answer(**flat, truth=truth, traits=kinds, said=said)


def main() -> int:
    """Play, print, and compare with the bars."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=12, help="worlds for each cause")
    parser.add_argument("--quiet", type=int, default=300, help="days on which nothing happens")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--written-on", action="store_true", help="worlds that rules may know")
    parser.add_argument("--first", type=int, default=0, help="of the seeds, to begin elsewhere")
    parser.add_argument("--only", nargs="*", default=[], choices=CAUSES, metavar="CAUSE")
    parser.add_argument("--json", type=Path, help="append every answer here, and go on from those")
    parser.add_argument("--store", action="store_true", help="keep what reports quote")
    given = parser.parse_args()
    if given.store and (given.written_on or given.only):
        parser.error("--store: of unseen worlds and all causes")
    traces = sorted(map(str, TRACES.glob("*.gz"))) if not given.written_on else []
    first = given.first + (0 if given.written_on else UNSEEN)
    todo = [task for task in tasks(first, given.seeds, given.quiet, traces)
            if not given.only or any(cause in given.only for cause, _ in task.faults)]  # fmt: skip
    answers = read_kept(given.json, _answer)
    played = {(one.kind, one.seed) for one in answers}
    todo = [task for task in todo if (task.kind, task.seed) not in played]
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for done, one in enumerate(pool.imap_unordered(answer, todo, chunksize=2), 1):
            answers.append(one)
            keep(given.json, one)
            passed = time.monotonic() - began
            left = passed / done * (len(todo) - done)
            print(f"\r{done} of {len(todo)}, {left:4.0f} s left", end="", file=sys.stderr,
                  flush=True)  # fmt: skip
    print(file=sys.stderr)
    answers.sort(key=lambda one: (one.kind, one.seed))
    family = "worlds that rules were written on" if given.written_on else "unseen worlds"
    print(f"{family}, traces replayed: {', '.join(Path(t).name for t in traces) or 'none'}")
    figures = report(answers, details=True)
    if given.store:
        command = f"python -m tests.bench.bench_worlds --seeds {given.seeds} --quiet {given.quiet}"
        store("worlds", command, {"first_seed": first, **record(answers)})
    return _against_bars(figures)


def _against_bars(figures: dict[str, tuple[float, ...]]) -> int:
    missed = 0
    print(f"\n{'':8}{'':48}{'given':>8}{'bar':>6}{'searched':>10}{'bar':>6}")
    for name, values in figures.items():
        bars = BARS.get(name, (None, None))
        text = ""
        for value, bar, wide in zip(values, bars, (8, 10), strict=True):
            if bar is not None:
                missed += value > bar if name.startswith("<") else value < bar
            text += f"{value:{wide}.1%}{'' if bar is None else format(bar, '.0%'):>6}"
        print(f"{'':8}{name:48}{text}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
