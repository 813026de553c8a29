"""Add up the points of the lines of evidence for one cause.

Each line holds, does not hold, or is unknown. A fact counts once, in however many lines it stands.
Every weight is in one table, and every line keeps its points, so that an engineer can check them;
how often a status is right is measured (docs/reference/benchmarks.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, NamedTuple

from llmtrace.triage.evidence.evidence import Local
from llmtrace.triage.result import NAMED, Finding, Point, Status

Kind = Literal["gate", "required", "proof", "support", "note", "against", "strongly_against"]

# Points if a line holds, and if it is known not to hold.
WEIGHTS: Final[dict[Kind, tuple[int, int]]] = {
    "gate": (0, -10),  # the latency rose where this cause would raise it
    "required": (6, -10),  # without it the cause is impossible
    "proof": (10, 0),  # a counter or mark that is the cause
    "support": (3, 0),
    "note": (0, 0),  # what a reader needs to see how the other lines come about
    "against": (-6, 0),
    "strongly_against": (-10, 0),
}
CONFIRMED: Final = 13
LIKELY: Final = 7
POSSIBLE: Final = 3
RULED_OUT: Final = -6

_NUMBER: Final = r"(\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?)(?: (ms|s|%))?"
_PAIR: Final = re.compile(f"{_NUMBER} → {_NUMBER}")
_COUNTS: Final = re.compile(r"\([^()]*→[^()]*\)")  # "0 of 90 → 0 of 80" says what the shares do


class Group(NamedTuple):
    """Requests that have a value of a column of rows in common."""

    column: str
    value: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line of evidence.

    Attributes:
        holds: `None` = unknown, which is never a no.
        text: the measured values, true whether it holds or not.
        settle: the data that would decide it, where it is unknown.
    """

    kind: Kind
    holds: bool | None
    text: str
    settle: str = ""


gate = partial(Line, "gate")  # whether the latency rose where this cause would raise it
required = partial(Line, "required")  # a condition without which the cause is impossible
proof = partial(Line, "proof")  # whether a counter or a mark that is the cause itself was seen
support = partial(Line, "support")  # a condition that this cause would make likely


def note(text: str | None) -> Line:
    """Make a line that counts nothing; `None` = there is none."""
    return Line("note", None if text is None else True, text or "")


def against(holds: bool | None, text: str, *, strongly: bool = False) -> Line:
    """Make a line: a condition that is unlikely under this cause."""
    return Line("strongly_against" if strongly else "against", holds, text)


def steady(line: Line) -> Line:
    """Say of a line that it is about what did not move: `2 ms as before` for `2 ms → 2 ms`."""

    def said(pair: re.Match[str]) -> str:
        return f"{pair[0].split(' → ')[1]} as before" if _alike(pair) else pair[0]

    return replace(line, text=_PAIR.sub(said, line.text))


def moves(text: str) -> bool:
    """Return whether a text shows no before and after, or some that differ as printed.

    Example:
        >>> moves("waiting p50 0 → 0, p95 0 → 2"), moves("clock 1,410 → 1,410"), moves("an XID")
        (True, False, True)
    """
    pairs = list(_PAIR.finditer(_COUNTS.sub("", text)))
    return not pairs or not all(_alike(pair) for pair in pairs)


def _alike(pair: re.Match[str]) -> bool:
    _, unit_before, _, unit_after = pair.groups()
    return pair[1] == pair[3] and unit_before in (None, unit_after)


def judge(
    cause: str, lines: Sequence[Line], action: str = "", *, group: Group | Local | None = None
) -> Finding:
    """Add up the lines for one cause; `group` = the requests that it is about, if not all.

    A gate or a requirement that fails rules the cause out. A requirement that is unknown leaves
    the cause `unknown`, whatever else supports it, unless a proof replaces it; where a gate is,
    the cause is possible at most. What reads the same before
    and after counts nothing, except where that is what a line is about (`steady`).
    """
    said = [*_once(lines)]
    known = [(line, 0 if line.holds and not moves(line.text) else _counts(line))
             for line in said if line.holds is not None]  # fmt: skip
    unknown = {line.kind for line in said if line.holds is None}
    score = sum(counts for _, counts in known)
    proved = any(line.kind == "proof" and counts > 0 for line, counts in known)
    points = [Point(line.text, counts) for line, counts in known
              if counts or (line.holds and line.kind in ("gate", "note"))]  # fmt: skip
    return Finding(
        id=cause,
        status=_status(
            min(score, LIKELY - 1) if "gate" in unknown and not proved else score,
            failed=any(line.kind in ("gate", "required") and not line.holds for line, _ in known),
            unknown="required" in unknown and not proved,
            proved=proved,
        ),
        score=score,
        evidence=tuple(p for p in points if p.points >= 0),
        against=tuple(p for p in points if p.points < 0),
        missing=tuple(
            dict.fromkeys(line.settle for line in said if line.holds is None and line.settle)
        ),
        action=action,
        runbook=f"docs/on-call/runbooks/{cause}.md",
        group={} if group is None else {group.column: group.value},
    )


def _once(lines: Sequence[Line]) -> Iterable[Line]:
    """Return the lines, of those that say the same fact the one that counts most."""
    best: dict[str, Line] = {}
    for line in lines:
        known = best.get(line.text)
        if line.holds and (known is None or _counts(line) > _counts(known)):
            best[line.text] = line
    return [line for line in lines if not (line.holds and line.text) or best[line.text] is line]


def _counts(line: Line) -> int:
    return 0 if line.holds is None else WEIGHTS[line.kind][0 if line.holds else 1]


def with_points(finding: Finding, extra: Iterable[Point]) -> Finding:
    """Return a finding with further points, and the status that goes with them now."""
    extra = tuple(extra)
    score = finding.score + sum(point.points for point in extra)
    status: Status = finding.status
    if status in ("confirmed", "likely", "possible") or score <= RULED_OUT:
        proved = any(point.points >= WEIGHTS["proof"][0] for point in finding.evidence)
        status = _status(score, failed=False, unknown=False, proved=proved)
    return replace(
        finding,
        status=status,
        score=score,
        evidence=finding.evidence + tuple(p for p in extra if p.points >= 0),
        against=finding.against + tuple(p for p in extra if p.points < 0),
    )


def at_most_possible(found: Finding, text: str) -> Finding:
    """Take so many points off a cause with those of a likely one that it is possible."""
    if found.status not in NAMED or found.score < LIKELY:
        return found
    return with_points(found, [Point(text, LIKELY - 1 - found.score)])


def _status(score: int, *, failed: bool, unknown: bool, proved: bool) -> Status:
    if failed or score <= RULED_OUT:
        return "ruled_out"
    if unknown:
        return "unknown"
    if score >= CONFIRMED and proved:  # lines that only fit, however many, prove nothing
        return "confirmed"
    if score >= LIKELY:
        return "likely"
    return "possible" if score >= POSSIBLE else "unknown"
