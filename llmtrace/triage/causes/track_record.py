"""Say how often a cause was right when it had the status that it has now.

The counts are in track_record.json, written by `python -m tests.bench.bench_worlds --store` and
`python -m tests.bench.bench_recordings --store`: simulated worlds that no rule was written on, and
recordings of real engines.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

from llmtrace.triage.result import NAMED, NOT_SIMULATED, Finding, RightWhen, ShownIn

FILE: Final = "track_record.json"
_SHOWN: Final[dict[str, ShownIn]] = {"recordings": "recordings", "worlds": "simulation"}
_ENOUGH: Final = 10  # findings of one cause; with fewer, the record of all causes is used


def with_record(finding: Finding, *, searched: bool) -> Finding:
    """Add to a finding where its rule was shown to work, and how often its status was right.

    Args:
        finding: of a rule, with its final status.
        searched: whether the windows were searched for, which makes every status less certain.
    """
    record, right = track_record(), None
    first = {where: record.get(part, {}).get("named_first", {}) for part, where in _SHOWN.items()}
    shown = tuple(where for where, counts in first.items() if counts.get(finding.id, (0, 0))[0])
    worlds = record.get("worlds")
    if finding.status in NAMED and finding.id not in NOT_SIMULATED and worlds:
        right = _right(worlds, finding, "searched" if searched else "given")
    return replace(finding, shown_in=shown, right_when_so_called=right)


def _right(worlds: dict[str, Any], finding: Finding, way: str) -> RightWhen | None:
    by_cause = worlds["called"][way]
    right, total = by_cause.get(finding.id, {}).get(finding.status, (0, 0))
    counted = finding.id
    if total < _ENOUGH:
        every = [counts.get(finding.status, (0, 0)) for counts in by_cause.values()]
        right, total = (sum(one[k] for one in every) for k in (0, 1))
        counted = "all causes"
    if not total:
        return None
    return RightWhen(right=right, of=total, calls=counted, measured=worlds["date"])


@cache
def track_record() -> dict[str, Any]:
    """Return the measured counts, and how they were measured."""
    text = files(__package__).joinpath(FILE).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
