"""Parallelism of the tool calls of a turn, and the cost of running them one by one.

Pure functions over intervals and dependencies, in whole nanoseconds.
See docs/instrument/agents.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from llmtrace.core.json_values import read_duration
from llmtrace.core.overlap import covered

PartKind = Literal["request", "tool", "turn"]
PART_KINDS: Final[tuple[PartKind, ...]] = get_args(PartKind)

_NS: Final = 1_000_000_000
# Between the starts of calls that run together there is always a little time: no loss worth words.
_WORTH_SAYING_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that ran inside a turn.

    Attributes:
        kind: a request to a model, a tool call, or a turn inside the turn.
        name: the model's, the tool's or the turn's.
        number: its place in the order in which the parts began, so that every part has its own.
        start: nanoseconds from the turn's start to this one's.
        duration: nanoseconds; to the turn's end if it was still running then.
        outcome: how it ended; `None` = it was still running when the turn ended.
        depth: 1 in the turn itself, 2 in a tool or turn inside it, and so on.
        round: of a tool call: how many requests of the turn had begun before it.
        needs: of a tool call: the numbers of earlier ones whose results its arguments contain.
    """

    kind: PartKind
    name: str
    number: int
    start: int
    duration: int
    outcome: str | None = None
    depth: int = 1
    round: int = 0
    needs: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Nanoseconds from the turn's start to this one's end."""
        return self.start + self.duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFigures:
    """What the tool calls of a turn come to, in nanoseconds.

    `critical_path` ≤ `wall` ≤ `serial`, and 0 ≤ `serial_loss` ≤ `wall - critical_path`.

    Attributes:
        calls: tool calls the turn made itself; those made by a tool are part of its time.
        wall: time during which any of them ran.
        serial: their durations added up: what they would take one after the other.
        critical_path: the longest chain of calls each of which had to wait for the one before.
        serial_loss: what independent calls would have saved by running together.
    """

    calls: int = 0
    wall: int = 0
    serial: int = 0
    critical_path: int = 0
    serial_loss: int = 0


@dataclass(frozen=True, slots=True)
class Together:
    """Calls that needed nothing of each other, and what running them together would have saved."""

    names: tuple[str, ...]
    loss: int


def tool_figures(parts: Iterable[Part]) -> ToolFigures:
    """Work out the figures of a turn's tool calls; the order of the parts does not matter.

    A call needs those whose results its arguments contain, and all that had ended in an earlier
    round: between two rounds the model saw the results before it requested more. Only calls of one
    round can have lost time to each other.
    """
    calls = _own_calls(parts)
    wall, path = _covered(calls), _longest_chain(calls, across_rounds=True)
    lost = sum(_covered(one) - _longest_chain(one) for one in _by_round(calls))
    return ToolFigures(
        calls=len(calls),
        wall=wall,
        serial=sum(call.duration for call in calls),
        critical_path=path,
        serial_loss=min(lost, wall - path),
    )


def could_run_together(
    parts: Iterable[Part], least_ns: int = _WORTH_SAYING_NS
) -> tuple[Together, ...]:
    """Name the groups of calls that took turns and need not have, the costliest first.

    A group holds calls of one round that are equally far down their chains, so that none of them
    can need another. A loss below `least_ns` is not worth naming.
    """
    found = []
    for calls in _by_round(_own_calls(parts)):
        levels: dict[int, int] = {}
        groups: dict[int, list[Part]] = {}
        for call in calls:
            level = 1 + max((levels[one.number] for one in _needed(call, calls)), default=-1)
            levels[call.number] = level
            groups.setdefault(level, []).append(call)
        for group in groups.values():
            loss = _covered(group) - max(call.duration for call in group)
            if len(group) > 1 and loss >= least_ns:
                found.append(Together(tuple(call.name for call in group), loss))
    return tuple(sorted(found, key=lambda one: -one.loss))


def _covered(parts: Iterable[Part]) -> int:
    """Return during how many nanoseconds any of the parts ran."""
    return covered((part.start, part.end) for part in parts)


def _own_calls(parts: Iterable[Part]) -> list[Part]:
    """Return the tool calls the turn made itself, in the order they began."""
    calls = [part for part in parts if part.kind == "tool" and part.depth == 1]
    return sorted(calls, key=lambda call: call.number)


def _by_round(calls: Iterable[Part]) -> Collection[list[Part]]:
    rounds: dict[int, list[Part]] = {}
    for call in calls:
        rounds.setdefault(call.round, []).append(call)
    return rounds.values()


def _longest_chain(calls: Sequence[Part], *, across_rounds: bool = False) -> int:
    """Return the longest sum of durations down a chain of calls each of which needs the last."""
    longest: dict[int, int] = {}
    for call in calls:
        before = _needed(call, calls, across_rounds=across_rounds)
        chain = max((longest[one.number] for one in before), default=0)
        longest[call.number] = chain + call.duration
    return max(longest.values(), default=0)


def _needed(call: Part, calls: Sequence[Part], *, across_rounds: bool = False) -> Iterable[Part]:
    """Yield the calls that one had to wait for: what it needs must have ended before it began."""
    for one in calls:
        if one.number >= call.number:
            return
        if one.end <= call.start and (
            one.number in call.needs or (across_rounds and one.round < call.round)
        ):
            yield one


# --- to plain JSON and back ----------------------------------------------------------------------


def flat_part(part: Part) -> dict[str, Any]:
    """Flatten a part to plain JSON: durations in seconds, what does not apply left out."""
    flat: dict[str, Any] = {
        "kind": part.kind,
        "name": part.name,
        "number": part.number,
        "start_s": part.start / _NS,
        "duration_s": part.duration / _NS,
        "depth": part.depth,
    }
    if part.outcome is not None:
        flat["outcome"] = part.outcome
    if part.kind == "tool":
        flat["round"] = part.round
        if part.needs:
            flat["needs"] = list(part.needs)
    return flat


def read_part(flat: Mapping[str, Any]) -> Part:
    """Read what `flat_part` wrote.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    if flat["kind"] not in PART_KINDS:
        raise ValueError(f"a part's kind is {flat['kind']!r}, not one of {', '.join(PART_KINDS)}")
    outcome = flat.get("outcome")
    if not isinstance(flat["name"], str) or not isinstance(outcome, str | None):
        raise TypeError("a part's name or outcome is not text")
    return Part(
        kind=flat["kind"],
        name=flat["name"],
        number=_whole(flat["number"]),
        start=read_duration(flat, "start_s"),
        duration=read_duration(flat, "duration_s"),
        outcome=outcome,
        depth=_whole(flat["depth"]),
        round=_whole(flat.get("round", 0)),
        needs=tuple(_whole(number) for number in flat.get("needs", ())),
    )


_MAX: Final = 1 << 53


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX:
        raise TypeError(f"a part holds {value!r} where a whole number belongs")
    return value
