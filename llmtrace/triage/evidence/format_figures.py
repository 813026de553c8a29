"""Format the values in a line of evidence, so that an engineer can check them."""

from __future__ import annotations

import math
from typing import Final

from llmtrace.triage.evidence.changes import Shift
from llmtrace.triage.evidence.counter_ratios import Ratio
from llmtrace.triage.evidence.other_clients import OtherClients
from llmtrace.triage.evidence.signals import Moved

_MS: Final = 1e-3


def seconds(value: float) -> str:
    """Say a duration: `0.4 ms`, `120 ms`, `2.41 s`.

    Example:
        >>> seconds(0.0123), seconds(2.414), seconds(61.2)
        ('12 ms', '2.41 s', '61 s')
    """
    [text] = in_one_unit(value)
    return text


def in_one_unit(*values: float) -> list[str]:
    """Say durations in one unit: seconds if one has a second and none is under 0.1 s.

    Example:
        >>> in_one_unit(0.82, 1.234), in_one_unit(0.0069, 1.39)
        (['0.82 s', '1.23 s'], ['6.9 ms', '1,390 ms'])
    """
    known = [abs(value) for value in values if math.isfinite(value) and value]
    in_seconds = max(known, default=0.0) >= 1 and min(known) >= 0.1
    return [_duration(value, in_seconds=in_seconds) for value in values]


def _duration(value: float, *, in_seconds: bool) -> str:
    if not math.isfinite(value):
        return "?"
    number, unit = (value, "s") if in_seconds else (value / _MS, "ms")
    if abs(number) >= 10:
        return f"{number:,.0f} {unit}"
    return f"{number:.2f} s" if in_seconds and abs(number) >= 0.1 else f"{number:.2g} {unit}"


def amount(value: float) -> str:
    """Say a number without a unit, three digits of it.

    Example:
        >>> amount(12345.6), amount(3.14159), amount(0.0)
        ('12,346', '3.14', '0')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(value: float) -> str:
    """Say a share.

    Example:
        >>> percent(0.4213)
        '42 %'
    """
    return f"{100 * value:.0f} %"


def durations(label: str, shift: Shift | None) -> str:
    """Say how a duration's median and p95 moved."""
    if shift is None:
        return f"{label}: not reported"
    p50, p50_after, p95, p95_after = in_one_unit(
        shift.before_p50, shift.after_p50, shift.before_p95, shift.after_p95
    )
    by = f" ({shift.source})" if shift.source else ""
    return f"{label} p50 {p50} → {p50_after}, p95 {p95} → {p95_after}{by}"


def amounts(label: str, shift: Shift | None) -> str:
    """Say how a number's median and p95 moved."""
    if shift is None:
        return f"{label}: not reported"
    return (
        f"{label} p50 {amount(shift.before_p50)} → {amount(shift.after_p50)}, "
        f"p95 {amount(shift.before_p95)} → {amount(shift.after_p95)}"
    )


def gauge(label: str, moved: Moved | None, *, down: bool = False) -> str:
    """Say how a signal moved: of all instances, or of one that rose (`down`: fell) far more."""
    if moved is None:
        return f"{label}: not reported"
    name, shift = moved.most(down=down)
    text = amounts(f"{label} on {name}" if name else label, shift)
    if not shift.change:
        text += f", mean {amount(shift.before_mean)} → {amount(shift.after_mean)}"
    return text


def ratio(label: str, found: Ratio | None) -> str:
    """Say how a ratio of counters moved; as a percentage unless it exceeds 1."""
    if found is None:
        return f"{label}: not reported"
    where = f" on {found.instance}" if found.instance else ""
    said = amount if max(found.before, found.after) > 1 else percent
    return f"{label} {said(found.before)} → {said(found.after)}{where}"


def counted(label: str, found: tuple[float, float] | None) -> str:
    """Say how often a counter counted in equal time, before and after."""
    if found is None:
        return f"{label}: not reported"
    return f"{label}: {amount(found[0])} → {amount(found[1])} in equal time"


def rates(label: str, before: float, after: float) -> str:
    """Say how a rate per second moved."""
    return f"{label} {amount(before)} → {amount(after)} a second"


def other_clients(label: str, found: OtherClients) -> str:
    """Say how many tokens engines count, and the share of them in rows."""
    shares = " → ".join(percent(min(one, 1.0)) for one in found.shares)
    return f"{rates(label, *found.counted)}, {shares} of them by these requests"
