"""How often does triage name the right cause of what really went wrong on a real vLLM?

    python -m tests.bench.bench_recordings [--searched] [--set NAME] [--json FILE] [--store]

The incidents of `tests/triage/recorded`, each with its true cause in a file of its own, beside the
same simpler ways to guess as in `bench_triage`. With `--searched` the windows and the metric are
taken away first. `--set` asks it of others instead, and prints each truth: no rule was made on
them when they were recorded, and all have been seen since. `--store` keeps which causes were named
first, which reports quote. Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from llmtrace.dataset.case import read_case
from tests.bench import track_record
from tests.bench.bench_triage import TOP, Answer, report, said_of

RECORDED: Final = Path(__file__).parents[1] / "triage" / "recorded"
SETS: Final = {"older": RECORDED} | {
    path.name.removeprefix("recorded_"): path
    for path in sorted(RECORDED.parent.glob("recorded_*"))
}
SEVERITY: Final = {"mild": 1.0, "severe": 3.0}
BARS: Final = {"top-1 on faults": 0.9, "top-3 on faults": 0.95}


def answer(folder: Path, seed: int, *, searched: bool = False) -> Answer:
    """Triage one recording, and ask everybody else.

    Args:
        folder: of the case, with its `truth.json`.
        seed: of the ways that guess.
        searched: whether triage has to find the windows, and the metric.
    """
    causes, _ = _truth(folder)
    kind = "quiet" if not causes else "pair" if len(causes) > 1 else "fault"
    case = read_case(folder)
    said = said_of(case, seed, searched=searched)
    severity = SEVERITY.get(folder.name.rpartition("-")[2], 2.0)
    return Answer(kind=kind, name=folder.name, truth=causes, severity=severity, **said)


def counted(found: Answer, accepted: tuple[str, ...]) -> Answer:
    """Return an answer in which what the load itself brings about stands for the cause.

    Args:
        found: what was said.
        accepted: causes that the true one makes true as well.
    """
    named: dict[str, str] = {}
    for cause, status in found.named:
        named.setdefault(found.truth[0] if cause in accepted else cause, status)
    return replace(found, named=tuple(named.items()))


def _truth(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the true causes, and those accepted beside them."""
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    return tuple(truth["causes"]), tuple(truth["accept"])


def main() -> int:
    """Print what was named for each, the tables, and compare with the bars."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--searched", action="store_true", help="take the windows away")
    parser.add_argument("--set", choices=SETS, default="older", help="which recordings")
    parser.add_argument("--json", type=Path, help="write every answer here")
    parser.add_argument("--store", action="store_true", help="keep what reports quote")
    given = parser.parse_args()
    if given.store and (given.searched or given.set != "older"):
        parser.error("--store: of the older recordings with their windows")
    place = SETS[given.set]
    folders = sorted(path.parent for path in place.glob("*/truth.json"))
    answers = [
        answer(folder, seed, searched=given.searched) for seed, folder in enumerate(folders)
    ]
    for one in answers:
        named = ", ".join(f"{cause} ({status})" for cause, status in one.named[:TOP])
        truth = f" (truth: {', '.join(one.truth) or 'none'})" if given.set != "older" else ""
        print(f"{one.name:30}{one.verdict:16}{named or 'nothing named'}{truth}")
    accepted = {folder.name: _truth(folder)[1] for folder in folders}
    figures = report([counted(one, accepted[one.name]) for one in answers])
    if given.store:
        first = [(one.truth[0], one.truth[0] in one.top[:1]) for one in answers if one.truth]
        named = track_record.counted(first)
        command = "python -m tests.bench.bench_recordings"
        track_record.store("recordings", command, {"named_first": named})
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in answers], indent=1))
    return int(any(figures[name] < bar for name, bar in BARS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
