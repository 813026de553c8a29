"""The words for verdicts, metrics and parts, and how figures of a triage are written."""

from __future__ import annotations

from typing import Final

from llmtrace.display.summary_tables import ms
from llmtrace.triage.result import Bounds, Result

METRIC_NAMES: Final = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "end-to-end time",
    "render": "render time",
    "errors": "failures",
    "traffic": "traffic",
}
PART_NAMES: Final = {"mix": "workload mix", "co_occurrence": "interaction"}
VERDICTS: Final = {
    "no_change": ("nothing moved", "green"),
    "workload": ("the workload changed", "cyan"),
    "regression": ("a regression", "red"),
    "mixed": ("a regression, and other work", "red"),
    "improvement": ("quicker than it was", "green"),
    "drift": ("slower and slower", "red"),
    "traffic": ("requests came in other numbers", "red"),
    "new_workload": ("work never seen before", "yellow"),
    "not_enough_data": ("cannot tell", "yellow"),
}
_NEXT_TO_NOTHING_S: Final = 0.00005  # 0.0 ms when rounded
_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0


def verdict_words(result: Result) -> tuple[str, str]:
    """Return the verdict in words, and a colour for it."""
    words, colour = VERDICTS[result.verdict]
    if is_over(result):
        words = f"{words}; it is over"
    elif result.state == "ongoing" and colour == "red":
        words = f"{words}, ongoing"
    return words, colour


def failures(result: Result) -> str:
    """Say which share of requests failed before and now; empty = it did not rise beyond chance."""
    outcomes = result.outcomes
    if outcomes is None or not outcomes.significant:
        return ""
    return f"failed requests: {outcomes.failed_before:.1%} → {outcomes.failed_after:.1%}"


def is_over(result: Result) -> bool:
    """Return whether the incident ended within the data."""
    return result.state is not None and result.recovered_at is not None


def latest(result: Result) -> str:
    """Return what the window of the incident is called: `now`, or `then` once it is over."""
    return "then" if is_over(result) else "now"


def unit(result: Result) -> str:
    """Return the unit that the parts of a change are shown in."""
    return "ms per token" if result.metric == "tpot" else "ms"


def duration(seconds: float) -> str:
    """Write how long something took.

    Example:
        >>> duration(42), duration(600), duration(9000)
        ('42 s', '10 min', '2 h 30 min')
    """
    if seconds < 2 * _MINUTE_S:
        return f"{seconds:.0f} s"
    minutes = round(seconds / _MINUTE_S)
    if seconds < 2 * _HOUR_S:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def signed(seconds: float) -> str:
    """Write a change in milliseconds, with its sign if it is large enough for one to matter.

    Example:
        >>> signed(0.2), signed(-0.0015), signed(-0.00004), signed(0.0)
        ('+200', '-1.5', '≈0', '0')
    """
    if seconds == 0:
        return "0"
    if abs(seconds) < _NEXT_TO_NOTHING_S:
        return "≈0"
    return ("+" if seconds > 0 else "-") + ms(abs(seconds))


def between(bounds: Bounds) -> str:
    """Write an interval in milliseconds; nothing if there is none."""
    low, high = bounds
    return "" if low is None or high is None else f"{signed(low)} … {signed(high)}"
