"""Check that a latency budget adds up, and compute limits that would fit.

Allocations add up, and are compared with the total here. That each stage keeps its own p95 is
something else, and implies nothing about the p95 of the whole (docs/on-call/budgets.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from llmtrace.budget.model import Budget
from llmtrace.core.stages import StageName

# What passes before the first content.
FRONT: Final[tuple[StageName, ...]] = ("network", "gateway", "queue", "prefill", "first_chunk")
_EQUAL: Final = 1e-9  # of a second: sums of what people write are not off by less


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the sum: its name, seconds, and their origin, if not as given."""

    name: str
    seconds: float
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """A contradiction: its place, the values, and values that would fit."""

    where: str
    what: str
    fits: str = ""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A budget, added up. Durations in seconds.

    Attributes:
        budget: which.
        parts: the durations to compare with the total, in the order of time.
        problems: contradictions; none = it adds up.
        notes: remarks that are no contradictions.
    """

    budget: Budget
    parts: tuple[Part, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    @property
    def sum_s(self) -> float:
        """The sum of the parts, in seconds."""
        return math.fsum(part.seconds for part in self.parts)


def check(budget: Budget) -> Arithmetic:
    """Add a budget up.

    Example:
        >>> from llmtrace.budget import Budget
        >>> check(Budget(total_s=1, tpot_s=0.02, tokens=60)).problems[0].fits
        '50 tokens at 20 ms each, or 60 tokens at 16.6667 ms each, or a total of 1,200 ms'
    """
    problems: list[Problem] = []
    notes: list[str] = []
    parts = [*_front(budget, problems, notes), *_decode(budget, problems, notes)]
    if (render := budget.stages_s.get("render")) is not None:
        parts.append(Part("render", render))
    if budget.buffer_s:
        parts.append(Part("buffer", budget.buffer_s))
    _total(budget, parts, problems, notes)
    return Arithmetic(budget, tuple(parts), tuple(problems), tuple(notes))


def _front(budget: Budget, problems: list[Problem], notes: list[str]) -> Iterator[Part]:
    """Yield what passes before the first content; what `ttft` leaves for stages with no figure."""
    given = {stage: budget.stages_s[stage] for stage in FRONT if stage in budget.stages_s}
    yield from (Part(stage, limit) for stage, limit in given.items())
    if budget.ttft_s is None:
        return
    together = math.fsum(given.values())
    missing = [stage for stage in FRONT if stage not in given]
    left = budget.ttft_s - together
    if left < -_EQUAL:
        names = ", ".join(given)
        problems.append(
            Problem(
                "ttft",
                f"{names} come to {ms(together)} before the first content, and ttft allows "
                f"{ms(budget.ttft_s)}",
                f"{ms(-left)} less in these stages, or a ttft of {ms(together)}",
            )
        )
    elif missing and left > _EQUAL:
        yield Part(
            "+".join(missing), left, f"what ttft, {ms(budget.ttft_s)}, leaves" if given else "ttft"
        )
    elif left > _EQUAL:
        notes.append(
            f"ttft: its stages come to {ms(together)}, so that a request within all of them is "
            f"well within the {ms(budget.ttft_s)}"
        )


def _decode(budget: Budget, problems: list[Problem], notes: list[str]) -> Iterator[Part]:
    given, tpot, tokens = budget.stages_s.get("decode"), budget.tpot_s, budget.tokens
    if tpot is None or tokens is None:
        if given is not None:
            yield Part("decode", given)
        elif tokens is not None:
            notes.append(f"tokens: {tokens} of them mean nothing without a tpot")
        elif tpot is not None:
            notes.append("tpot: how long the decode takes is not known without tokens")
        return
    needed = tpot * tokens
    how = f"{tokens} tokens × {ms(tpot)}"  # noqa: RUF001 - it is a multiplication
    if given is None:
        yield Part("decode", needed, how)
        return
    if needed > given + _EQUAL:
        problems.append(
            Problem(
                "decode",
                f"{tokens} tokens at {ms(tpot)} each take {ms(needed)}, and not {ms(given)}",
                _tokens_that_fit(given, tpot, tokens),
            )
        )
        yield Part("decode", given, f"{how} = {ms(needed)}, not {ms(given)}")
        return
    if needed < given - _EQUAL:
        notes.append(
            f"decode: {how} = {ms(needed)}; {ms(given - needed)} of its {ms(given)} are to spare"
        )
    yield Part("decode", given, how if abs(needed - given) <= _EQUAL else "")


def _total(budget: Budget, parts: list[Part], problems: list[Problem], notes: list[str]) -> None:
    total = budget.total_s
    together = math.fsum(part.seconds for part in parts)
    if total is None:
        notes.append("total: there is none, so nothing to compare the parts with")
        return
    if budget.ttft_s is not None and budget.ttft_s > total + _EQUAL:
        problems.append(
            Problem(
                "ttft",
                f"{ms(budget.ttft_s)} until the first content are more than the whole request "
                f"may take, {ms(total)}",
            )
        )
    over = together - total
    if over > _EQUAL:
        even = "even so the" if any(one.where == "decode" for one in problems) else "the"
        problems.append(
            Problem(
                "total",
                f"{even} parts come to {ms(together)}, {ms(over)} more than the total of "
                f"{ms(total)}",
                _what_fits(budget, parts, together, total),
            )
        )
    elif over < -_EQUAL and parts:
        notes.append(f"total: {ms(-over)} of the {ms(total)} are not allocated; make them buffer")


def _what_fits(budget: Budget, parts: list[Part], together: float, total: float) -> str:
    decode = next((part for part in parts if part.name == "decode"), None)
    tpot, tokens = budget.tpot_s, budget.tokens
    if decode is None or tpot is None or tokens is None:
        return f"a total of {ms(together)}, or {ms(together - total)} less in the parts"
    others = together - decode.seconds
    room = total - others
    needed = others + tpot * tokens
    if room <= _EQUAL:
        return (
            f"nothing, as long as the other parts come to {ms(others)}; with these tokens the "
            f"total is {ms(needed)}"
        )
    left = "" if others <= _EQUAL else f"{ms(room)} are left for decode: "
    return f"{left}{_tokens_that_fit(room, tpot, tokens)}, or a total of {ms(needed)}"


def _tokens_that_fit(seconds: float, tpot: float, tokens: int) -> str:
    fitting = math.floor(seconds / tpot + _EQUAL)
    slower = f"{tokens} tokens at {ms(seconds / tokens)} each"
    return f"{fitting} tokens at {ms(tpot)} each, or {slower}" if fitting else slower


def as_text(arithmetic: Arithmetic) -> str:
    """Lay a sum out as on paper, with the problems below it."""
    budget = arithmetic.budget
    good = not arithmetic.problems
    lines = [f"{budget.name}: {'adds up' if good else 'does not add up'}{_for(budget)}", ""]
    rows = [(part.name, number(part.seconds), part.remark) for part in arithmetic.parts]
    if rows:
        total = "" if budget.total_s is None else f"total {ms(budget.total_s)}"
        rows.append(("sum", number(arithmetic.sum_s), total))
        name = max(len(row[0]) for row in rows)
        figure = max(len(row[1]) for row in rows)
        table = [f"  {row[0]:<{name}}  {row[1]:>{figure}}  {row[2]}".rstrip() for row in rows]
        lines += [*table[:-1], "  " + "─" * (name + figure + 2), table[-1], ""]
    for problem in arithmetic.problems:
        lines.append(f"✗ {problem.where}: {problem.what}.")
        if problem.fits:
            lines.append(f"  What fits: {problem.fits}.")
    lines += [f"• {note}." for note in arithmetic.notes]
    return "\n".join(lines).rstrip()


def _for(budget: Budget) -> str:
    covered = [
        f"{label} {', '.join(patterns)}"
        for label, patterns in (("model", budget.model), ("route", budget.route))
        if patterns
    ]
    return f" ({'; '.join(covered)})" if covered else ""


def number(seconds: float) -> str:
    """Write seconds as milliseconds, to the precision of what people write.

    Example:
        >>> number(2.5), number(0.0125)
        ('2,500', '12.5')
    """
    return f"{seconds * 1000:,.6g}" if seconds < 1 else f"{round(seconds * 1000, 3):,.10g}"


def ms(seconds: float) -> str:
    """Write seconds as milliseconds, with the unit."""
    return f"{number(seconds)} ms"
