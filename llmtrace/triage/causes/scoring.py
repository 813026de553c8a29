"""Add up the points of the lines of evidence for one cause.

Each line holds, does not hold, or is unknown. A fact counts once, even if several lines state it.
All weights are in one table, and every line keeps its points, so that an engineer can check them;
how often a status is right is measured (docs/reference/benchmarks.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, NamedTuple

from llmtrace.triage.evidence.evidence import Evidence, Local
from llmtrace.triage.result import NAMED, Finding, Point, Status

Kind = Literal["gate", "required", "proof", "support", "note", "against", "strongly_against"]

# Points if a line holds, and if it is known not to hold.
WEIGHTS: Final[dict[Kind, tuple[int, int]]] = {
    "gate": (0, -10),  # the latency rose where this cause would raise it
    "required": (6, -10),  # without it the cause is impossible
    "proof": (10, 0),  # a counter or mark that is the cause
    "support": (3, 0),
    "note": (0, 0),  # background that a reader needs to understand the other lines
    "against": (-6, 0),
    "strongly_against": (-10, 0),
}
CONFIRMED: Final = 13
LIKELY: Final = 7
POSSIBLE: Final = 3
RULED_OUT: Final = -6

_NUMBER: Final = r"(\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?)(?: (ms|s|%))?"
_PAIR: Final = re.compile(f"{_NUMBER} → {_NUMBER}")
# "(0 of 90 → 0 of 80)" repeats what the shares before it say.
_COUNTS: Final = re.compile(r"\([^()]*→[^()]*\)")


class Group(NamedTuple):
    """The requests that share one value of a column of rows."""

    column: str
    value: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line of evidence.

    Attributes:
        holds: whether the statement is true; `None` = unknown, which never counts as false.
        text: the measured values, worded so that they are true whether the line holds or not.
        settle: the data that would decide it, if it is unknown.
    """

    kind: Kind
    holds: bool | None
    text: str
    settle: str = ""


gate = partial(Line, "gate")  # the latency rose where this cause would raise it
required = partial(Line, "required")  # without this the cause is impossible
proof = partial(Line, "proof")  # a counter or mark that is the cause itself was seen
support = partial(Line, "support")  # this cause would make it likely


def note(text: str | None) -> Line:
    """Make a line without points; `None` = no line."""
    return Line("note", None if text is None else True, text or "")


def against(holds: bool | None, text: str, *, strongly: bool = False) -> Line:
    """Make a line that this cause would make unlikely; it takes points off."""
    return Line("strongly_against" if strongly else "against", holds, text)


def steady(line: Line) -> Line:
    """Reword a line about something that did not move: `2 ms as before` for `2 ms → 2 ms`."""

    def reword(pair: re.Match[str]) -> str:
        return f"{pair[0].split(' → ')[1]} as before" if _prints_alike(pair) else pair[0]

    return replace(line, text=_PAIR.sub(reword, line.text))


def moves(text: str) -> bool:
    """Return whether a before and after in a text differ as printed, or it has none.

    Example:
        >>> moves("waiting p50 0 → 0, p95 0 → 2"), moves("clock 1,410 → 1,410"), moves("an XID")
        (True, False, True)
    """
    pairs = list(_PAIR.finditer(_COUNTS.sub("", text)))
    return not pairs or not all(_prints_alike(pair) for pair in pairs)


def _prints_alike(pair: re.Match[str]) -> bool:
    _, unit_before, _, unit_after = pair.groups()
    return pair[1] == pair[3] and unit_before in (None, unit_after)


def judge(
    cause: str, lines: Sequence[Line], action: str = "", *, group: Group | Local | None = None
) -> Finding:
    """Add up the lines for one cause; `group` = the requests that it affects, if not all.

    A gate or requirement that fails rules the cause out. With an unknown requirement the cause is
    `unknown`, unless there is a proof; with an unknown gate it is at most possible. A line that
    prints the same before and after counts nothing, except `steady` lines.
    """
    lines = _without_repeats(lines)
    known = [(line, 0 if line.holds and not moves(line.text) else _points(line))
             for line in lines if line.holds is not None]  # fmt: skip
    unknown = {line.kind for line in lines if line.holds is None}
    score = sum(number for _, number in known)
    proved = any(line.kind == "proof" and number > 0 for line, number in known)
    points = [Point(line.text, number) for line, number in known
              if number or (line.holds and line.kind in ("gate", "note"))]  # fmt: skip
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
            dict.fromkeys(line.settle for line in lines if line.holds is None and line.settle)
        ),
        action=action,
        runbook=f"docs/on-call/runbooks/{cause}.md",
        group={} if group is None else {group.column: group.value},
    )


def only(e: Evidence, *instances: str | None) -> Group | None:
    """Return the requests of one engine of several as a group; `None` if it is not exactly one."""
    name = instances[0] if len(instances) == 1 < len(e.instances) else None
    return None if name is None else Group("replica", name)


def _without_repeats(lines: Sequence[Line]) -> list[Line]:
    """Keep, of lines that hold and have the same text, the one with the most points."""
    best: dict[str, Line] = {}
    for line in lines:
        known = best.get(line.text)
        if line.holds and (known is None or _points(line) > _points(known)):
            best[line.text] = line
    return [line for line in lines if not (line.holds and line.text) or best[line.text] is line]


def _points(line: Line) -> int:
    return 0 if line.holds is None else WEIGHTS[line.kind][0 if line.holds else 1]


def with_points(finding: Finding, extra: Sequence[Point]) -> Finding:
    """Add points to a finding, and update its status."""
    score = finding.score + sum(point.points for point in extra)
    status: Status = finding.status
    if status in NAMED or score <= RULED_OUT:
        proved = any(point.points >= WEIGHTS["proof"][0] for point in finding.evidence)
        status = _status(score, failed=False, unknown=False, proved=proved)
    return replace(
        finding,
        status=status,
        score=score,
        evidence=finding.evidence + tuple(p for p in extra if p.points >= 0),
        against=finding.against + tuple(p for p in extra if p.points < 0),
    )


def at_most_possible(finding: Finding, text: str, *, points: int = 0) -> Finding:
    """Lower a named cause to below likely, for the reason in `text`.

    `points` (0 or less) is the least that is taken off, even if the cause is below likely already.
    """
    taken = min(points, LIKELY - 1 - finding.score)
    if finding.status not in NAMED or taken >= 0:
        return finding
    return with_points(finding, [Point(text, taken)])


def _status(score: int, *, failed: bool, unknown: bool, proved: bool) -> Status:
    if failed or score <= RULED_OUT:
        return "ruled_out"
    if unknown:
        return "unknown"
    if score >= CONFIRMED and proved:  # supporting lines alone prove nothing, however many
        return "confirmed"
    if score >= LIKELY:
        return "likely"
    return "possible" if score >= POSSIBLE else "unknown"
