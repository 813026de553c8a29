"""Decide whether the workload changed, the system, both or nothing, or whether that is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from llmtrace.dataset.case import Window
from llmtrace.stats.quantiles import least_values
from llmtrace.triage.attribution.attribute import Attribution, Spread
from llmtrace.triage.attribution.divide_change import Divided
from llmtrace.triage.comparison.p95_change import Compared
from llmtrace.triage.detectable_change import TOO_COARSE
from llmtrace.triage.over_time import Incident
from llmtrace.triage.report.naming import duration, figure, number_of, unit
from llmtrace.triage.result import (
    OF_THE_WORK,
    OF_TRAFFIC,
    SURE,
    Change,
    Cohort,
    Finding,
    Load,
    Outcomes,
    Q,
    Verdict,
)
from llmtrace.triage.windows.spike import TRAFFIC_RATIO

NEW_SHARE: Final = 0.3  # share of requests of new kinds, from which there is no comparison
COUNTS: Final = 1 / 3  # share of the change from which the workload, or the system, counts
MIN_TRAFFIC_S: Final = 30.0
_DOUBLED: Final = 1.0  # relative rise that even a search of all data would have to show
BURSTS: Final = 3.0  # design effect from which clustering is mentioned
_KINDS: Final = 3  # kinds of failures that are named
_CANCELS: Final = 0.1  # share of the p95 that each of two opposite changes must reach


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and its reason in words."""

    verdict: Verdict
    reason: str


def judge(
    compared: Compared,
    mine: Divided,
    spread: Spread | None,
    outcomes: Outcomes,
    *,
    thorough: bool,
    sized: bool,
    usual: Callable[[], tuple[float, float]],
) -> Judged:
    """Give the verdict on one metric.

    Args:
        compared: the metric in both windows.
        mine: its change by parts.
        spread: their intervals; `None` = not computed.
        outcomes: how requests ended.
        thorough: whether these windows are only part of much data that was searched.
        sized: whether rows have token counts; without, more work looks like slower work.
        usual: returns by how many seconds the mix and the same work move at most between stretches
            of one window, in which nothing happened.
    """
    change, found = compared.change, mine.found
    failures, fewest = _failures_text(outcomes), least_values(Q)
    if failures and not change.significant:
        return Judged("regression", failures)
    if min(change.before.n, change.after.n) < fewest and not change.significant:
        return Judged(
            "not_enough_data",
            f"{number_of(change.before.n)} before and {change.after.n:,} after report "
            f"{change.metric}; a p95 needs {fewest} in each to have an interval.",
        )
    if not change.significant:
        return _cancelled_out(change, found, spread, usual) or _not_beyond_chance(
            compared, thorough=thorough
        )
    unmatched = mine.cells.unmatched_share
    if unmatched > NEW_SHARE or found is None:
        return Judged(
            "new_workload",
            f"{_change_text(change)}, and {100 * unmatched:.0f} % of the requests are of a kind "
            "never seen before: there is nothing to compare them with.",
        )
    if failures and found.delta < 0:
        return Judged("regression", failures)  # requests that fail early make others faster
    judged = _judge_moved(change, found, spread, failing=bool(failures))
    if not sized and judged.verdict in ("regression", "improvement"):
        more = "more" if judged.verdict == "regression" else "less"
        unknown = f"Whether requests ask for {more} work is not known: rows have no token counts."
        judged = replace(judged, reason=f"{_change_text(change)}. {unknown}")
    return replace(judged, reason=f"{failures} {judged.reason}") if failures else judged


def _not_beyond_chance(compared: Compared, *, thorough: bool) -> Judged:
    """Give the verdict on a metric that did not move: no change, or too little data to see one."""
    visible, clustered = compared.visible, max(compared.design)
    coarse = visible is None or visible > (TOO_COARSE if not thorough else _DOUBLED)
    bursts = " (slow requests come in bursts: wide intervals)" if clustered > BURSTS else ""
    seen = "not even ten times" if visible is None else f"{1 + visible:.3g} times"
    return Judged(
        "not_enough_data" if coarse else "no_change",
        f"{_change_text(compared.change)}: not beyond chance; all requests {seen} as slow would "
        f"have been seen{bursts if coarse else ''}.",
    )


def of_a_kind(judged: Judged, cohort: Cohort, change: Change) -> Judged:
    """Return the verdict if one kind of request got slower, though all together did not."""
    kind = ", ".join(f"{name}={value}" for name, value in cohort.attributes.items())
    return Judged(
        "regression",
        f"{kind} alone, {cohort.n:,} requests: {_change_text(change)}. All requests together: "
        f"{judged.reason}",
    )


def beside_a_fault(judged: Judged, causes: Sequence[Finding]) -> Judged:
    """Turn an improvement into a regression if a fault is likely: fewer requests may be left."""
    fault = next((one for one in causes if one.status in SURE
                  and one.id not in OF_THE_WORK | OF_TRAFFIC), None)  # fmt: skip
    if judged.verdict != "improvement" or fault is None:
        return judged
    return Judged("regression", f"{fault.id} is {fault.status}, though faster: {judged.reason}")


def of_the_work(judged: Judged, change: Change, explained: str) -> Judged:
    """Return the verdict if longer requests are all that is known to be behind a change."""
    return replace(judged, verdict="workload", reason=f"{_change_text(change)}: {explained}.")


def _judge_moved(
    change: Change,
    found: Attribution,
    spread: Spread | None,
    *,
    failing: bool,
) -> Judged:
    """Give the verdict on a metric that moved: the workload, the same work, or both."""
    verdict = _kind(found, spread)
    mix, same = float(found.seconds[0]), found.same_work
    if verdict == "workload" and failing:
        verdict = "mixed"
    if verdict in ("regression", "mixed") and found.delta < 0 and same < 0 > change.grew[0]:
        verdict = "improvement"
    by_mix, by_same = _part_text(mix, change), _part_text(same, change)
    reasons = {
        "workload": f"; the workload accounts for {by_mix} of it.",
        "regression": f"; the same work takes {by_same} longer.",
        "improvement": f"; the same work takes {_part_text(-same, change)} less.",
        "mixed": f": {by_mix} from the workload, {by_same} for the same work.",
    }
    return Judged(verdict, f"{_change_text(change)}{reasons[verdict]}")


def in_time(
    judged: Judged,
    stretches: Sequence[Incident],
    load: Mapping[str, Load],
    *,
    after: Window,
    span_s: float,
    alike_days: int | None,
    rose: str | None,
) -> Judged:
    """Adjust the verdict to the course over time, which two windows do not show.

    Requests that stopped or came in crowds are a finding even if no metric moved. A level that
    rose gradually for most of the time has drifted. What was alike at the same hours of an earlier
    day is no change.

    Args:
        judged: by the windows.
        stretches: incidents in the window after, the most certain first.
        load: of both windows.
        after: the window after.
        span_s: length of the time searched, seconds.
        alike_days: how many days ago it was alike; `None` = it was not.
        rose: the metric in question, if it rose; failures alone do not drift.
    """
    if alike_days is not None:
        day = "a day ago" if alike_days == 1 else f"{alike_days} days ago"
        verdict = judged.verdict if judged.verdict != "not_enough_data" else "no_change"
        return Judged(verdict, f"Alike in the same hours {day}, with which this is compared: "
                      f"{judged.reason}")  # fmt: skip
    mostly = [one for one in stretches if one.metric == "traffic"
              and one.seconds_in(after) >= after.seconds / 2]  # fmt: skip
    traffic = mostly[0] if mostly else None
    if traffic is not None and (
        judged.verdict in ("no_change", "not_enough_data")
        # Faster because fewer came is no good news.
        or (judged.verdict == "improvement" and (traffic.direction, traffic.end) == ("down", None))
    ):
        low, high = (load[name].requests_per_s or 0.0 for name in ("before", "after"))
        ratio = high / low if traffic.direction == "up" and low else low / max(high, 1e-9)
        # Shorter crowds and gaps come by chance. If requests stopped, the window after is short
        # by nature, so the time searched counts.
        seen_s = after.seconds if high else span_s
        if ratio >= TRAFFIC_RATIO and seen_s >= MIN_TRAFFIC_S:
            words = "More requests" if traffic.direction == "up" else "Fewer requests"
            words = words if high else "Requests stopped"
            return Judged("traffic", f"{words}: {low:.3g} → {high:.3g} a second.")
    rise_s = max(
        (one.rise_s for one in stretches if (one.metric, one.shape) == (rose, "ramp")),
        default=0.0,
    )
    if judged.verdict == "regression" and rise_s >= span_s / 2 > 0:
        return Judged("drift", f"{judged.reason} It rose gradually, over {duration(rise_s)}.")
    return judged


def _kind(found: Attribution, spread: Spread | None) -> Verdict:
    """Return which part of a real change is large and certain enough to count."""
    parts, whole = (abs(float(found.seconds[0])), abs(found.same_work)), abs(found.delta)
    sure = (True, True) if spread is None else _sure_parts(spread)
    mix, same = (part >= COUNTS * whole and one for part, one in zip(parts, sure, strict=True))
    if not (mix or same):
        mix, same = (part >= whole * 2 / 3 for part in parts)
    if mix == same:
        return "mixed"
    return "workload" if mix else "regression"


def _cancelled_out(
    change: Change,
    found: Attribution | None,
    spread: Spread | None,
    usual: Callable[[], tuple[float, float]],
) -> Judged | None:
    """Return a verdict if workload and system moved in opposite directions, unseen in the sum.

    Such parts are also found in windows without an incident, since requests close in time are
    alike for longer than the blocks that intervals are made from. So each part must exceed what it
    comes to within the windows themselves (`usual`).
    """
    if found is None or spread is None:
        return None
    mix, same = float(found.seconds[0]), found.same_work
    less, more = sorted((abs(mix), abs(same)))
    opposite = mix * same < 0 and less >= max(_CANCELS * found.before, COUNTS * more)
    if not opposite or not all(_sure_parts(spread)):
        return None
    usual_mix, usual_same = usual()
    if abs(mix) <= usual_mix or abs(same) <= usual_same:
        return None
    return Judged(
        "mixed",
        f"{_change_text(change)}, but {_part_text(mix, change)} from the workload and "
        f"{_part_text(same, change)} for the same work cancel out.",
    )


def _failures_text(outcomes: Outcomes) -> str | None:
    """Say that more requests fail or are cancelled; `None` = neither."""
    if outcomes.significant:
        low, high = outcomes.failed_before or 0.0, outcomes.failed_after or 0.0
        kinds = ", ".join(f"{kind}: {n:,}" for kind, n in [*outcomes.failures.items()][:_KINDS])
        return f"{100 * high:.1f} % of requests fail ({kinds}), and {100 * low:.1f} % did before."
    if outcomes.gave_up:
        low, high = outcomes.cancelled_before or 0.0, outcomes.cancelled_after or 0.0
        return f"{100 * high:.1f} % of requests are cancelled, and {100 * low:.1f} % were before."
    return None


def _sure_parts(spread: Spread) -> tuple[bool, ...]:
    """Return whether the intervals of the mix and of the same work exclude 0."""
    mix = (float(spread.low[0]), float(spread.high[0]))
    return tuple(low > 0 or high < 0 for low, high in (mix, spread.same_work))


def _change_text(change: Change) -> str:
    """Say how the quantile that grew most moved, and in brackets the p95 if it is another."""
    in_ = unit(change)
    texts = []
    for name in dict.fromkeys((change.grew[1], "p95")):
        low, high = (
            figure(getattr(side, name) or 0.0, in_) for side in (change.before, change.after)
        )
        texts.append(f"{name} {low} → {high} {in_}")
    return f"{change.metric} {' ('.join(texts)}" + ")" * (len(texts) - 1)


def _part_text(seconds: float, change: Change) -> str:
    """Format a part of a change in the unit of the whole."""
    in_ = unit(change)
    return f"{'-' if seconds < 0 else ''}{figure(abs(seconds), in_)} {in_}"
