"""Words for verdicts, metrics and parts, and the format of a report's figures."""

from __future__ import annotations

import time
from typing import Final

from llmtrace.display.summary_tables import ms
from llmtrace.triage.result import NAMED, NOTHING_FOUND, Bounds, Change, Result

METRIC_NAMES: Final = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "e2e": "end-to-end time",
    "render": "render time",
    "errors": "failures",
    "cancelled": "cancellations",
    "traffic": "traffic",
}
PART_NAMES: Final = {"mix": "workload mix", "co_occurrence": "interaction"}
VERDICTS: Final = {
    "no_change": ("nothing moved", "green"),
    "workload": ("the workload changed", "cyan"),
    "regression": ("a regression", "red"),
    "mixed": ("a regression, and the workload changed", "red"),
    "improvement": ("faster than before", "green"),
    "drift": ("a gradual regression", "red"),
    "traffic": ("the number of requests changed", "red"),
    "new_workload": ("a new kind of workload", "yellow"),
    "not_enough_data": ("cannot tell", "yellow"),
}
# Without token counts in rows, more work looks like slower work.
_UNSIZED: Final = {"regression": "slower than before", "drift": "gradually slower"}
_DOUBLED: Final = 1.0  # relative rise; "no rise of this much" would say too little
_LONG_S: Final = 10.0
_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0


def verdict_words(result: Result) -> tuple[str, str]:
    """Return the verdict in words, and a colour for it."""
    words, colour = VERDICTS[result.verdict]
    before, after = (result.load.get(name) for name in ("before", "after"))
    named, seen = any(one.status in NAMED for one in result.causes), result.smallest_visible
    little = result.verdict == "not_enough_data" and not named
    if little and seen is not None and 0 < seen < _DOUBLED:
        words = f"no rise of {1 + seen:.3g} times or more"
    if "mix" in result.quality.unreported:
        words = _UNSIZED.get(result.verdict, words)
    if result.verdict == "traffic" and before and after:
        fewer = (after.requests_per_s or 0.0) < (before.requests_per_s or 0.0)
        words = "fewer requests than before" if fewer else "more requests than before"
    if is_over(result):
        words += ", no longer" if result.verdict == "improvement" else "; it is over"
    elif result.state == "ongoing" and result.verdict != "improvement":
        words += ", ongoing"
    return words, colour


def headline(result: Result) -> str:
    """Say what users lose: requests that stopped coming, fail or are cancelled; then latency.

    If requests are lost, latency is added only if it rose beyond chance, or more than doubled.
    """
    lost = losses(result)
    before, after = result.before.p95, result.after.p95
    doubled = before is not None and (result.delta_s or 0.0) > before
    if not of_latency(result) and not doubled:
        return " · ".join(lost)
    if before is None or after is None or result.delta_s is None:
        return " · ".join((*lost, title_of(result)))
    in_ = unit(result)
    change = f"{figure(before, in_)} → {figure(after, in_)} {in_}"
    if result.significant:
        change += f" ({signed(result.delta_s, in_)} {in_.partition(' ')[0]})"
    else:
        all_ = "" if result.verdict in NOTHING_FOUND else "of all requests "
        change = f"{all_}{change}, not beyond chance"
    typical = [one for one in result.changes if one.metric == result.metric]
    if result.significant and typical and typical[0].grew[1] == "p50":
        low, high = (figure(side.p50, in_) for side in (result.before, result.after))
        change += f", p50 {low} → {high} {in_}"
    text = f"{title_of(result)} {change}"
    if result.verdict == "regression" and result.delta_s < 0 and not lost:  # faster, with a fault
        return " · ".join((*(f"{one.id} {one.status}" for one in result.causes[:1]), text))
    return " · ".join((*lost, text))


def title_of(result: Result) -> str:
    """Return what a triage is about, such as `time to first token p95`."""
    metric = METRIC_NAMES.get(result.metric or "", "latency")
    return f"{metric} p{100 * result.quantile:g}"


def of_latency(result: Result) -> bool:
    """Return whether a report is about latency, not only about lost requests."""
    rose = result.significant and (result.delta_s or 0.0) > 0
    return rose or not losses(result)


def losses(result: Result) -> list[str]:
    """Say how many requests are lost, failed or cancelled, if the number moved beyond chance."""
    texts = []
    before, after = (result.load.get(name) for name in ("before", "after"))
    if result.verdict == "traffic" and before and after:
        low, high = before.requests_per_s or 0.0, after.requests_per_s or 0.0
        texts.append(f"requests a second {low:.3g} → {high:.3g}")
    outcomes = result.outcomes
    if outcomes is not None and outcomes.significant:
        texts.append(share("failed requests", outcomes.failed_before, outcomes.failed_after))
    if outcomes is not None and outcomes.gave_up:
        pair = outcomes.cancelled_before, outcomes.cancelled_after
        texts.append(share("cancelled requests", *pair))
    return texts


def share(name: str, before: float | None, after: float | None) -> str:
    """Say how a share of all requests moved."""
    if before is None and after is None:
        return f"{name}: not reported"
    return f"{name} " + " → ".join(
        "-" if one is None else percent(one, 1) for one in (before, after)
    )


def number_of(number: int | None, word: str = "request") -> str:
    """Format a number of things.

    Example:
        >>> number_of(1), number_of(5601), number_of(0, "tenant")
        ('1 request', '5,601 requests', '0 tenants')
    """
    return f"{number or 0:,} {word}{'' if number == 1 else 's'}"


def percent(part: float, decimals: int = 0) -> str:
    """Format a share.

    Example:
        >>> percent(0.4213), percent(0.0689, 1), percent(5.4)
        ('42 %', '6.9 %', '540 %')
    """
    return f"{100 * part:,.{decimals}f} %"


def is_over(result: Result) -> bool:
    """Return whether the incident ended within the data."""
    return result.state is not None and result.recovered_at is not None


def latest(result: Result) -> str:
    """Return the name of the window after: `now`, or `then` if the incident is over."""
    return "then" if is_over(result) else "now"


def unit(one: Result | Change) -> str:
    """Return the unit for a metric and the parts of its change in a report."""
    return unit_of(one.metric, one.before.p95, one.after.p95)


def unit_of(metric: str | None, *p95s: float | None) -> str:
    """Return the unit for a metric: seconds for long times, otherwise milliseconds."""
    if metric == "tpot":
        return "ms per token"
    return "s" if max((one or 0.0 for one in p95s), default=0.0) >= _LONG_S else "ms"


def figure(seconds: float | None, in_: str = "ms") -> str:
    """Format a duration in a unit, without the unit; `-` if unknown.

    Example:
        >>> figure(0.0274), figure(51.4221, "s"), figure(None)
        ('27.4', '51.42', '-')
    """
    return ms(seconds) if in_ != "s" or seconds is None else f"{seconds:,.2f}"


def utc(at: float) -> str:
    """Format a time as the command's options take it.

    Example:
        >>> utc(1790000000.5)
        '2026-09-21T14:13:20Z'
    """
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def duration(seconds: float) -> str:
    """Format a length of time.

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


def signed(seconds: float, in_: str = "ms") -> str:
    """Format a change in a unit, with its sign; `≈0` if it rounds to 0.

    Example:
        >>> signed(0.2), signed(-0.0015), signed(-0.00004), signed(0.0), signed(50.5, "s")
        ('+200', '-1.5', '≈0', '0', '+50.50')
    """
    if seconds == 0:
        return "0"
    text = figure(abs(seconds), in_)
    if text.startswith("<") or not text.strip("0."):
        return "≈0"
    return ("+" if seconds > 0 else "-") + text


def between(bounds: Bounds, in_: str = "ms") -> str:
    """Format an interval in a unit; empty if there is none."""
    low, high = bounds
    return "" if low is None or high is None else f"{signed(low, in_)} … {signed(high, in_)}"
