"""How often does triage say that something moved in a quiet time?

    python -m tests.bench.bench_halves [--draws N] [--first SEED]

Of the time before each recorded incident, of the quiet recordings, of quiet days in worlds of
their own, and of requests from known distributions: its halves are given as the windows to
compare, and it is searched. What is alike for minutes is not alike for hours: requests that are
close in time share more than their kind. A time that several recordings share counts once. Every
alarm is printed. Exits with 1 where more than the bar are alarms. Three minutes.
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
from tests.bench.bench_worlds import WAYS, Task, play
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
    seen: set[tuple[int, ...]] = set()
    for name, place in SETS.items():
        for folder in sorted(path.parent for path in place.glob("*/truth.json")):
            case = read_case(folder)
            times = list(quiet_times(case))
            for whole in times if folder.name.startswith("quiet") else times[:1]:
                found = halves(case, whole)
                begun = tuple((found.rows.start - int(whole.start * 1e9)).tolist())
                if begun not in seen:
                    seen.add(begun)
                    yield f"recorded {name}: {folder.name}", found


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
    counts: dict[tuple[str, str], list[bool]] = {}
    for name, case in (*recorded(), *simulated(given.draws, given.first)):
        blind = replace(case, before=None, after=None)
        for way, shown in zip(WAYS, (case, blind), strict=True):
            alarm, said = _said(shown)
            counts.setdefault((way, name.partition(":")[0]), []).append(alarm)
            if said:
                print(f"{way}, {name}  {said}", flush=True)
    missed = False
    for way in WAYS:
        mine = {name: found for (mine, name), found in counts.items() if mine == way}
        print(
            way,
            *(f"{name} {sum(found)} of {len(found)}" for name, found in mine.items()),
            sep="  ",
        )
        every = [one for found in mine.values() for one in found]
        share = sum(every) / len(every)
        missed |= share > BAR
        print(f"{way}  all: {sum(every)} of {len(every)}, {share:.1%} (bar: {BAR:.0%})")
    return int(missed)


def _said(case: Case) -> tuple[bool, str]:
    """Return whether something is said to have moved, and what; nothing = nothing."""
    result = triage(case)
    named = [f"{one.id} ({one.status})" for one in result.causes if one.status in NAMED]
    alarm = result.verdict not in NOTHING_FOUND
    counts = f"{result.before.n} and {result.after.n} requests"
    said = f"{counts}  {result.verdict}: {result.reason} {', '.join(named)}"
    return alarm, said if alarm or named else ""


if __name__ == "__main__":
    raise SystemExit(main())
