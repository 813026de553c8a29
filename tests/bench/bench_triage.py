"""How often does triage name the right cause, beside three simpler ways to guess?

    python -m tests.bench.bench_triage [--seeds 20] [--jobs 2] [--only CAUSE ...]

Days of the fleet simulator, whose truth is known: every cause at three severities, quiet days,
days on which only the work differs, days with two faults, and days on which a signal is missing.
Injections that moved nothing visibly are dropped. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from llmtrace.core.stages import STAGES
from llmtrace.dataset.case import Case
from llmtrace.simulator.fleet.scenario import Scenario, Simulated, simulate
from llmtrace.stats.arrays import Floats
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import CAUSES, NAMED, NOT_SIMULATED, OF_THE_WORK

SEVERITIES: Final = (1.0, 2.0, 3.0)
SURE: Final = ("confirmed", "likely")
WORKLOAD: Final = ("workload", "new_workload")
TOP: Final = 3
KINDS: Final = ("fault", "quiet", "shift", "pair", "missing")

# What each stage is most often blamed for: how a person reads a dashboard of stages.
USUAL: Final[dict[str, tuple[str, ...]]] = {
    "network": ("network_path", "client_gate", "rate_limit_retries"),
    "gateway": ("gateway_overhead", "rate_limit_retries", "network_path"),
    "queue": ("queue_saturation", "kv_exhaustion", "lora_slots"),
    "prefill": ("long_prompts", "prefix_cache_collapse", "gpu_throttle"),
    "first_chunk": ("frontend_cpu", "proxy_buffering", "cold_start"),
    "decode": ("batch_size", "kv_exhaustion", "gpu_throttle"),
    "render": ("slow_renderer", "serial_tools", "proxy_buffering"),
}
# Two faults at once, that do not hide each other.
PAIRS: Final = (
    ("queue_saturation", "network_path"),
    ("kv_exhaustion", "slow_renderer"),
    ("gpu_throttle", "client_gate"),
    ("prefix_cache_collapse", "gateway_overhead"),
    ("midstream_errors", "gateway_overhead"),
    ("engine_paused", "network_path"),
    ("replica_imbalance", "slow_renderer"),
    ("client_give_ups", "gateway_overhead"),
    ("rate_limit_retries", "slow_renderer"),
    ("network_path", "gpu_throttle"),
)
SIMULATED: Final = tuple(cause for cause in CAUSES if cause not in NOT_SIMULATED)
SHIFTS: Final = ("routes", "tenants", "prompts", "outputs")
# A signal that helps a cause without being what it rests on.
DROPPED: Final = (
    ("queue_saturation", ("kv_usage", "tokens_in")),
    ("kv_exhaustion", ("prefix_hits", "prefix_queries")),
    ("gpu_throttle", ("gpu_temp_c", "gpu_power_w")),
    ("network_path", ("*",)),
    ("slow_renderer", ("*",)),
    ("gateway_overhead", ("*",)),
    ("proxy_buffering", ("*",)),
    ("engine_paused", ("sleep",)),
    ("prefix_cache_collapse", ("kv_usage",)),
    ("low_spec_acceptance", ("running",)),
)
BARS: Final = {
    "top-1 on faults": ("at least", 0.95),
    "top-3 on faults": ("at least", 0.99),
    "false causes on quiet days": ("at most", 0.02),
    "workload shifts recognised": ("at least", 0.95),
    "two faults, both in the top three": ("at least", 0.80),
}


@dataclass(frozen=True, slots=True)
class Task:
    """One day to play."""

    kind: str
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class Answer:
    """What triage, and the simpler ways, said of one day.

    Attributes:
        dropped: why the day says nothing of triage; `None` = it counts.
        named: causes with their status, best first.
        sum_error: seconds by which the contributions miss the change.
    """

    kind: str
    name: str
    truth: tuple[str, ...]
    severity: float
    dropped: str | None = None
    verdict: str = ""
    named: tuple[tuple[str, str], ...] = ()
    by_p95: tuple[str, ...] = ()
    by_mean: tuple[str, ...] = ()
    by_chance: tuple[str, ...] = ()
    sum_error: float = 0.0
    rows: int = 0
    seconds: float = 0.0

    @property
    def top(self) -> tuple[str, ...]:
        """The causes triage names, best first."""
        return tuple(cause for cause, _ in self.named)


def tasks(seeds: range, only: Sequence[str], kinds: Sequence[str]) -> Iterator[Task]:
    """Yield the days to play: `seeds` for each cause and severity, and in proportion the rest."""
    for task in _every_task(seeds, only):
        if task.kind in kinds:
            yield task


def _every_task(seeds: range, only: Sequence[str]) -> Iterator[Task]:
    for seed in seeds:
        for cause in only or SIMULATED:
            for severity in SEVERITIES:
                # A deployment of its own for every day.
                at = 10_000 * (1 + CAUSES.index(cause)) + 10 * seed + int(severity)
                yield Task("fault", Scenario(seed=at, faults=((cause, severity),)))
        if only:
            continue
        for n in range(5):
            yield Task("quiet", Scenario(seed=1_000_000 + 5 * seed + n))
        for n in range(5):
            at = 2_000_000 + 5 * seed + n
            yield Task("shift", Scenario(seed=at, shift=SHIFTS[at % len(SHIFTS)]))
        for n, pair in enumerate(PAIRS):
            at = 3_000_000 + 100 * seed + n
            yield Task("pair", Scenario(seed=at, faults=tuple((c, 2.5) for c in pair)))
        for n, (cause, drop) in enumerate(DROPPED):
            at = 4_000_000 + 100 * seed + n
            yield Task("missing", Scenario(seed=at, faults=((cause, 2.0),), drop=drop))


def answer(task: Task) -> Answer:
    """Play one day and ask everybody."""
    played = simulate(task.scenario)
    truth = played.truth
    head = {
        "kind": task.kind,
        "name": task.scenario.name,
        "truth": truth.causes,
        "severity": task.scenario.faults[0][1] if task.scenario.faults else 0.0,
    }
    if why := dropped(task.kind, played):
        return Answer(**head, dropped=why)
    return Answer(**head, **said_of(played.case, task.scenario.seed))


def said_of(case: Case, seed: int, *, searched: bool = False) -> dict[str, Any]:
    """Return the fields of an `Answer` that do not depend on the truth.

    Args:
        case: with both windows.
        seed: of the ways that guess.
        searched: whether triage has to find windows and metric; the others are given them.
    """
    shown = replace(case, before=None, after=None, metric=None) if searched else case
    began = time.perf_counter()
    result = triage(shown, Settings(bootstrap=0))
    took = time.perf_counter() - began
    summed = sum(round(one.seconds * 1e9) for one in result.contributions)
    rng = np.random.default_rng(seed)
    return {
        "verdict": result.verdict,
        "named": tuple((one.id, one.status) for one in result.causes if one.status in NAMED),
        "by_p95": _largest(case, lambda values: float(np.percentile(values, 95))),
        "by_mean": _largest(case, lambda values: float(values.mean())),
        "by_chance": tuple(rng.permutation(CAUSES)[:TOP].tolist()),
        "sum_error": abs(summed / 1e9 - (result.delta_s or 0.0)) if result.contributions else 0.0,
        "rows": case.rows.n,
        "seconds": took,
    }


def dropped(kind: str, played: Simulated) -> str | None:
    """Return why a day says nothing of triage; `None` = it counts."""
    truth = played.truth
    if kind in ("fault", "pair", "missing") and not truth.shown:
        return "moved nothing visibly"
    if kind == "pair":
        moved = truth.moved
        if len(truth.shown) == 1 and truth.shown[0] not in moved:
            return "moved nothing visibly"
    if truth.causes == ("batch_size",):
        before, after = truth.moved["ttft"]
        if after > 1.15 * before:  # triage.md 4.4: then it is a queue
            return "the time to first chunk moved too"
    if kind == "shift":
        moved = [after > 1.1 * before for before, after in truth.moved.values()]
        if not any(moved):
            return "moved nothing visibly"
    return None


def _largest(case: Case, of: Callable[[Floats], float]) -> tuple[str, ...]:
    """Return the usual causes of the stage of which a figure grew most."""
    assert case.before is not None
    assert case.after is not None
    sides = [case.rows.within(w.start, w.end) for w in (case.before, case.after)]
    grown = {}
    for stage in STAGES:
        values = [side.numbers[f"{stage}_s"] for side in sides]
        known = [v[np.isfinite(v)] for v in values]
        if all(len(v) for v in known):
            grown[stage] = of(known[1]) - of(known[0])
    return USUAL[max(grown, key=lambda stage: grown[stage])] if grown else ()


def report(answers: Sequence[Answer]) -> dict[str, float]:
    """Print the tables and return the figures that have bars."""
    kept = [one for one in answers if one.dropped is None]
    faults = [one for one in kept if one.kind == "fault"]
    figures: dict[str, float] = {}
    if faults:
        print(f"\nfaults: {len(faults)} days counted, "
              f"{sum(a.kind == 'fault' for a in answers) - len(faults)} dropped")  # fmt: skip
        print(f"  {'':34}{'top-1':>8}{'top-3':>8}")
        for name, pick in (
            ("llmtrace triage", lambda a: a.top),
            ("largest stage-p95 difference", lambda a: a.by_p95),
            ("largest mean difference", lambda a: a.by_mean),
            ("random", lambda a: a.by_chance),
        ):
            first = np.mean([a.truth[0] in pick(a)[:1] for a in faults])
            three = np.mean([a.truth[0] in pick(a)[:TOP] for a in faults])
            print(f"  {name:34}{first:8.1%}{three:8.1%}")
            if name == "llmtrace triage":
                figures["top-1 on faults"] = float(first)
                figures["top-3 on faults"] = float(three)
        _by_cause(faults)
        _confusion(faults)
        system = [one for one in faults if not {*one.truth} & OF_THE_WORK]
        workload = sum(one.verdict in WORKLOAD for one in system)
        print(f"\n  {workload} of {len(system)} faults of the system were taken for a workload")
    for kind, name, counts in (
        ("quiet", "false causes on quiet days", lambda a: any(s in SURE for _, s in a.named)),
        ("shift", "workload shifts recognised", lambda a: a.verdict in WORKLOAD),
        ("pair", "two faults, both in the top three", lambda a: set(a.truth) <= set(a.top[:TOP])),
        ("missing", "top-1 with signals missing", lambda a: a.truth[0] in a.top[:1]),
    ):  # fmt: skip
        days = [one for one in kept if one.kind == kind]
        if days:
            figures[name] = float(np.mean([counts(one) for one in days]))
            odd = Counter(
                f"{one.name}: {one.verdict}; {', '.join(one.top[:TOP]) or 'nothing named'}"
                for one in days
                if counts(one) == (kind == "quiet")
            )
            print(f"\n{name}: {figures[name]:.1%} of {len(days)} days")
            for line in list(odd)[:8]:
                print(f"  {line}")
    errors = [one.sum_error for one in kept]
    print(f"\nlargest error of the sum: {max(errors, default=0.0):.9f} s")
    if kept:
        rows, took = (
            np.median([getattr(one, name) for one in kept]) for name in ("rows", "seconds")
        )
        print(f"a day: {rows:,.0f} rows, {took:.2f} s (medians of {len(kept)} days)")
    return figures


def _by_cause(faults: Sequence[Answer]) -> None:
    print(f"\n  {'cause':24}{'days':>6}{'top-1':>8}{'top-3':>8}   by severity 1, 2, 3")
    for cause in CAUSES:
        if cause in NOT_SIMULATED:
            continue
        days = [one for one in faults if one.truth == (cause,)]
        if not days:
            continue
        parts = []
        for severity in SEVERITIES:
            those = [one.truth[0] in one.top[:1] for one in days if one.severity == severity]
            parts.append(f"{np.mean(those):.0%}" if those else "-")
        first = np.mean([cause in one.top[:1] for one in days])
        three = np.mean([cause in one.top[:TOP] for one in days])
        print(f"  {cause:24}{len(days):6}{first:8.0%}{three:8.0%}   {' '.join(parts)}")


def _confusion(faults: Sequence[Answer]) -> None:
    """Print what was named first instead, for each cause."""
    taken: dict[str, Counter[str]] = defaultdict(Counter)
    for one in faults:
        first = one.top[0] if one.top else "nothing"
        if first != one.truth[0]:
            taken[one.truth[0]][first] += 1
    print("\n  taken for something else:" if taken else "\n  nothing was taken for anything else")
    for cause, instead in taken.items():
        print(f"  {cause:24}" + ", ".join(f"{name} {n}" for name, n in instead.most_common()))


def main() -> int:
    """Play, print, and compare with the bars."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="days for each cause and severity")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", nargs="*", default=[], choices=CAUSES, metavar="CAUSE")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS, metavar="KIND")
    parser.add_argument("--json", type=Path, help="write every day's answer here")
    given = parser.parse_args()
    todo = list(tasks(range(given.first, given.first + given.seeds), given.only, given.kinds))
    answers: list[Answer] = []
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for done in pool.imap_unordered(answer, todo, chunksize=2):
            answers.append(done)
            passed = time.monotonic() - began
            left = passed / len(answers) * (len(todo) - len(answers))
            line = f"{len(answers)} of {len(todo)} days, {left:4.0f} s left"
            print(f"\r{line}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    answers.sort(key=lambda one: (one.kind, one.name))
    figures = report(answers)
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in answers], indent=1))
    print()
    missed = 0
    for name, (way, bar) in BARS.items():
        if name in figures:
            fine = figures[name] >= bar if way == "at least" else figures[name] <= bar
            missed += not fine
            print(f"{'met   ' if fine else 'MISSED'} {name}: {figures[name]:.1%}, {way} {bar:.0%}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
