"""How often does triage say that something moved between two halves of a quiet time?

    python -m tests.bench.bench_halves [--draws N] [--first SEED]

Windows are given: the halves of the time before each recorded incident and of the quiet
recordings, of quiet days in worlds of their own, and of requests from known distributions. What is
alike for minutes is not alike for hours: requests that are close in time share more than their
kind. Every alarm is printed. Exits with 1 where more than the bar are alarms. Two minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from llmtrace.dataset.case import Case, Window, read_case
from llmtrace.triage.pipeline import triage
from llmtrace.triage.result import NAMED, NOTHING_FOUND
from tests.bench.bench_recordings import SETS
from tests.bench.bench_worlds import Task, play
from tests.triage.days import day

BAR: Final = 0.03
_FIRST: Final = 74_000  # of the seeds of worlds
_SIZES: Final = (60, 200, 800, 3000)  # requests of a day


def halves(case: Case, whole: Window) -> Case:
    """Return what is known of a quiet time, with its halves as the windows to compare."""
    middle = (whole.start + whole.end) / 2
    signals = case.signals
    return replace(
        case,
        rows=case.rows.within(whole.start, whole.end),
        signals=signals.take((signals.t >= whole.start) & (signals.t < whole.end)),
        before=Window(whole.start, middle),
        after=Window(middle, whole.end),
        metric=None,
    )


def quiet_times(case: Case) -> Iterator[Window]:
    """Yield the windows before and after of a case in which nothing happened."""
    yield from (one for one in (case.before, case.after) if one is not None)


def recorded() -> Iterator[tuple[str, Case]]:
    """Yield the halves of what was recorded before each incident, and where none was."""
    for name, place in SETS.items():
        for folder in sorted(path.parent for path in place.glob("*/truth.json")):
            case = read_case(folder)
            times = list(quiet_times(case))
            for whole in times if folder.name.startswith("quiet") else times[:1]:
                yield f"recorded {name}: {folder.name}", halves(case, whole)


def simulated(draws: int, first: int) -> Iterator[tuple[str, Case]]:
    """Yield the halves of quiet days: of worlds of their own, of the fleet, of distributions."""
    for n in range(draws):
        for kind, case in (
            ("world", play(Task("quiet", first + 6_000_000 + n)).case),
            ("distributions", day(n=(_SIZES[n % len(_SIZES)],) * 2, seed=first + n)),
        ):
            for whole in quiet_times(case):
                yield f"{kind}: {first + n}", halves(case, whole)


def main() -> int:
    """Print every alarm and their share, and compare it with the bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draws", type=int, default=40, help="quiet days of a kind (default: 40)")
    parser.add_argument("--first", type=int, default=_FIRST, help="first seed of these")
    given = parser.parse_args()
    counts: dict[str, list[bool]] = {}
    for name, case in (*recorded(), *simulated(given.draws, given.first)):
        result = triage(case)
        alarm = result.verdict not in NOTHING_FOUND
        counts.setdefault(name.partition(":")[0], []).append(alarm)
        named = [f"{one.id} ({one.status})" for one in result.causes if one.status in NAMED]
        if alarm or named:
            said = f"{result.verdict}: {result.reason} {', '.join(named)}"
            print(f"{name}  {result.before.n} and {result.after.n} requests  {said}", flush=True)
    for name, found in counts.items():
        print(f"{name:20}{sum(found)} of {len(found)}")
    every = [one for found in counts.values() for one in found]
    share = sum(every) / len(every)
    print(f"all: {sum(every)} of {len(every)}, {100 * share:.1f} % (bar: {100 * BAR:.0f} %)")
    return int(share > BAR)


if __name__ == "__main__":
    raise SystemExit(main())
