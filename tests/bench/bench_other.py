"""How often is triage right on incidents that another hand simulated?

    python -m tests.bench.bench_other [--first SEED] [--cases N] [--jobs N] [--json FILE]

The cases are those of `tests.bench.other_cases`: engines, clients, networks and faults written
without a look at the rules or at the project's own simulator. Faults that do not act are left out
before triage is asked. Windows given and windows taken away stand side by side; then every miss,
with what was said instead. Rules may be written on seeds below 5,000; reports are of those above.
Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from llmtrace.dataset.case import Case
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import NAMED, OF_THE_WORK
from tests.bench.bench_triage import SURE, TOP, WORKLOAD
from tests.bench.bench_worlds import WAYS
from tests.bench.kept_answers import keep, read_kept
from tests.bench.other_cases import SEVERITIES, OtherCase, Truth, make

# Bars, windows given and searched; `<` = at most.
BARS: Final = {
    "top-1 on faults": (0.95, 0.90),
    "< quiet days with a likely or confirmed cause": (0.01, 0.01),
}


@dataclass(frozen=True, slots=True)
class Said:
    """What triage said: its verdict, and the causes it named, best first, with their status."""

    verdict: str
    named: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A case and what was said of it, windows given and searched; nothing if it does not act."""

    seed: int
    style: str
    truth: Truth
    said: tuple[Said, ...] = ()

    def right(self, cause: str) -> bool:
        """Return whether a cause may be named: it is true, or as good a name for what is."""
        allowed = {*self.truth.causes, *self.truth.accept}
        return cause in allowed or (self.truth.shift and cause in OF_THE_WORK)

    def found(self, way: int, top: int) -> bool:
        """Return whether one that is right is among the first so many."""
        return any(self.right(cause) for cause, _ in self.said[way].named[:top])


def answer(seed: int) -> Answer:
    """Make a case and triage it both ways."""
    made: OtherCase = make(seed)
    head = Answer(seed, made.style, made.truth)
    if not made.acts:
        return head
    blind = replace(made.case, before=None, after=None)
    return replace(head, said=(_said(made.case), _said(blind)))


def _said(case: Case) -> Said:
    result = triage(case, Settings(bootstrap=0))
    named = ((one.id, one.status) for one in result.causes if one.status in NAMED)
    return Said(result.verdict, tuple(named))


def missed(one: Answer, way: int) -> bool:
    """Return whether what was said of a case is not what should have been."""
    said = one.said[way]
    if one.truth.kind == "quiet":
        return any(status in SURE for _, status in said.named)
    if one.truth.kind == "shift":
        return said.verdict not in WORKLOAD
    if one.truth.kind == "pair":
        return not {*one.truth.causes} <= {cause for cause, _ in said.named[:TOP]}
    return not one.found(way, 1)


def report(answers: Sequence[Answer]) -> dict[str, tuple[float, ...]]:
    """Print the tables; return the figures, one for each of `WAYS`."""
    kept = [one for one in answers if one.said]
    print(f"{len(answers)} cases, {len(answers) - len(kept)} of them moved nothing by a fifth")
    print(f"  {'':50}{'n':>6}{WAYS[0]:>10}{WAYS[1]:>10}")
    figures: dict[str, tuple[float, ...]] = {}

    def line(name: str, days: Sequence[Answer], of: Callable[[Answer, int], bool]) -> None:
        if days:
            figures[name] = tuple(sum(of(one, way) for one in days) / len(days) for way in (0, 1))
            print(f"  {name:50}{len(days):6}" + "".join(f"{x:10.1%}" for x in figures[name]))

    by_kind = {kind: [one for one in kept if one.truth.kind == kind]
               for kind in ("fault", "shift", "pair", "quiet")}  # fmt: skip
    faults = by_kind["fault"]
    line("top-1 on faults", faults, lambda one, way: one.found(way, 1))
    line("top-3 on faults", faults, lambda one, way: one.found(way, TOP))
    for severity in SEVERITIES:
        days = [one for one in faults if one.truth.severity == severity]
        line(f"top-1, {severity}", days, lambda one, way: one.found(way, 1))
    line("workload shifts called so", by_kind["shift"], lambda one, way: not missed(one, way))
    line("pairs with both in the top three", by_kind["pair"], lambda o, way: not missed(o, way))
    line("< quiet days with a likely or confirmed cause", by_kind["quiet"], missed)
    for status in SURE:
        called = [[one.right(cause) for one in kept for cause, was in one.said[way].named
                   if was == status] for way in (0, 1)]  # fmt: skip
        shares = [f"{sum(right)}/{len(right)}" for right in called]
        print(f"  {status + ' causes that are true':56}" + "".join(f"{x:>10}" for x in shares))
    for way, name in enumerate(WAYS):
        print(f"\n  windows {name}, missed:")
        for one in kept:
            if missed(one, way):
                _print_miss(one, one.said[way])
    return figures


def _print_miss(one: Answer, said: Said) -> None:
    named = ", ".join(f"{cause} {status}" for cause, status in said.named[:TOP])
    truth = f"{'+'.join(one.truth.causes) or one.truth.kind} {one.truth.severity}"
    print(f"  {one.seed:6} {one.style:8}{truth:36}{said.verdict:16}{named or 'nothing'}"
          f"  | {one.truth.what}")  # fmt: skip


def _answer(flat: dict[str, Any]) -> Answer:
    """Read an answer that an earlier run kept."""
    said = tuple(
        Said(one["verdict"], tuple((cause, status) for cause, status in one["named"]))
        for one in flat.pop("said")
    )
    truth = flat.pop("truth")
    truth |= {name: tuple(truth[name]) for name in ("causes", "accept")}
    return Answer(**flat, truth=Truth(**truth), said=said)


def main() -> int:
    """Make, ask, print, and compare with the bars."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=5000, help="the first seed")
    parser.add_argument("--cases", type=int, default=400, help="how many seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", type=Path, help="append every answer here, and go on from those")
    given = parser.parse_args()
    answers = read_kept(given.json, _answer)
    known = {one.seed for one in answers}
    seeds = [n for n in range(given.first, given.first + given.cases) if n not in known]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for done, one in enumerate(pool.imap(answer, seeds), 1):
            answers.append(one)
            keep(given.json, one)
            print(f"\r{done} of {len(seeds)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    figures = report(answers)
    short = [
        name
        for name, bars in BARS.items()
        for figure, bar in zip(figures.get(name, ()), bars, strict=False)
        if (figure > bar if name.startswith("<") else figure < bar)
    ]
    return int(bool(short))


if __name__ == "__main__":
    raise SystemExit(main())
