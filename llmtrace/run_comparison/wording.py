"""Say what a comparison shows, in the words and figures that every form of it uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from llmtrace.display.summary_tables import JOINED, ms
from llmtrace.run_comparison.effects import QUANTILES, Effect
from llmtrace.run_comparison.run_totals import Totals
from llmtrace.run_comparison.runs import Comparison, share_interval

# What a duration is called where its key alone does not say it.
LABELS: Final = {"first_content": "first content", "itl": "ITL", "ttft": "TTFT", "tpot": "TPOT"}
QUANTILE_NAMES: Final = {q: f"p{100 * q:g}" for q in QUANTILES}
_MIN_ANSWER: Final = 1.0


def label(effect: Effect) -> str:
    """Return what a duration is called."""
    return LABELS.get(effect.name, effect.name)


def percent(share: float) -> str:
    r"""Write a relative change with its sign.

    Example:
        >>> percent(0.124), percent(0.0004)
        ('+12\xa0%', '0\xa0%')
    """
    rounded = round(100 * share, 1 if abs(share) < 0.0995 else 0)  # noqa: PLR2004
    sign = "+" if rounded > 0 else "−" if rounded < 0 else ""  # noqa: RUF001
    return f"{sign}{abs(rounded):g}{JOINED}%"


def relative(effect: Effect, q: float) -> str:
    """Write by how much a quantile moved, with its interval; `-` where it is not known."""
    change, before = effect.changes.get(q), effect.before.quantile(q)
    if change is None or not before:
        return "-"
    low, high = (percent(bound / before) for bound in (change.low, change.high))
    return f"{percent(change.by / before)} [{low}, {high}]"


def verdict(effect: Effect) -> str:
    """Return what is shown of one duration."""
    if effect.p_value is None:
        return "too few requests"
    if effect.direction is not None:
        return effect.direction
    if effect.smallest is None:
        return "no difference shown"
    return f"no difference shown; {percent(effect.smallest)[1:]} would have been"


def headline(comparison: Comparison) -> str:
    """Return what the comparison shows, in a sentence."""
    moved = comparison.moved
    if not moved:
        return "No difference shown."
    parts = []
    for effect in moved:
        change, before = effect.changes.get(QUANTILES[0]), effect.before.quantile(QUANTILES[0])
        by = f" at p50 by {percent(change.by / before)}" if change and before else ""
        parts.append(f"{label(effect)} is {effect.direction}{by}")
    return f"{'; '.join(parts)}."


def sentences(comparison: Comparison) -> Iterator[str]:
    """Yield what a reader must know beside the durations, a sentence each."""
    workload = comparison.workload
    if workload.same:
        yield "Workload: the same in both runs, by its hash."
    elif workload.reweighted:
        on = ", ".join(workload.matched_on) or "what is known of it"
        yield f"Workload: not the same; requests are weighted to be alike in {on}."
    else:
        yield "Workload: alike in both runs, by what the requests report."
    if comparison.failures_differ:
        yield "Failures: their share differs by more than chance."
    if comparison.answers is not None:
        share, count = comparison.answers
        low, high = share_interval(comparison.answers)
        said = (
            f"Answers: {share:.1%} of {count:,} are identical (95 % interval {low:.1%} to "
            f"{high:.1%})."
        )
        if share < _MIN_ANSWER:
            said += " Where answers differ, a change of speed may be one of the work done."
        yield said
    for warning in comparison.warnings:
        yield f"Note: {warning[0].upper()}{warning[1:]}."


def totals_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return the runs' totals, side by side: what, before, after."""

    def pair(name: str, *values: float | None, places: int = 2) -> tuple[str, str, str]:
        first, second = (
            "not reported" if value is None else f"{value:,.{places}f}" for value in values
        )
        return name, first, second

    first, second = comparison.totals
    rows = [
        pair("requests", first.requests, second.requests, places=0),
        *(
            pair(outcome, *(side.outcomes.get(outcome, 0) for side in (first, second)), places=0)
            for outcome in {**first.outcomes, **second.outcomes}
        ),
        pair("requests/s", first.requests_per_s, second.requests_per_s),
        pair("output tokens/s", first.tokens_per_s, second.tokens_per_s),
        pair("output tokens a request", first.mean_output_tokens, second.mean_output_tokens),
        *(
            pair(f"finish reason {reason}", *counts, places=0)
            for reason in {**first.finish_reasons, **second.finish_reasons}
            for counts in [[side.finish_reasons.get(reason, 0) for side in (first, second)]]
        ),
    ]
    if first.goodput is not None:
        rows.append(pair("requests inside the budget/s", first.goodput, second.goodput))
    for gpus, name, one, other in _per_gpu(comparison):
        rows.append(pair(f"{name} a GPU ({gpus})", one, other))
    rows += [pair(f"price of {what}", *prices) for what, prices in comparison.costs.items()]
    rows += [pair(name, *means, places=3) for name, means in comparison.signals.items()]
    return rows


def _per_gpu(comparison: Comparison) -> Iterator[tuple[str, str, float | None, float | None]]:
    gpus = comparison.gpus
    if gpus[0] is None or gpus[1] is None:
        return
    rates = [
        None if side.tokens_per_s is None else side.tokens_per_s / count
        for side, count in zip(comparison.totals, gpus, strict=True)
        if count
    ]
    yield f"{gpus[0]} and {gpus[1]}", "output tokens/s", rates[0], rates[1]


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain JSON; durations in seconds, `null` = not known."""
    first, second = comparison.totals
    return {
        "before": comparison.before,
        "after": comparison.after,
        "workload": asdict(comparison.workload),
        "effects": [_effect(effect) for effect in comparison.effects],
        "totals": {"before": _total(first), "after": _total(second)},
        "failures_p_value": comparison.failures_p,
        "identical_answers": (
            None
            if comparison.answers is None
            else {"share": comparison.answers[0], "compared": comparison.answers[1]}
        ),
        "costs": {name: list(pair) for name, pair in comparison.costs.items()},
        "signals": {name: list(pair) for name, pair in comparison.signals.items()},
        "warnings": list(comparison.warnings),
    }


def _total(side: Totals) -> dict[str, Any]:
    return {
        **asdict(side),
        "requests_per_s": side.requests_per_s,
        "tokens_per_s": side.tokens_per_s,
        "goodput_per_s": side.goodput,
    }


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "name": effect.name,
        "direction": effect.direction,
        "p_value": effect.p_value,
        "smallest_relative_change": effect.smallest,
        "before": _quantiles(effect, "before"),
        "after": _quantiles(effect, "after"),
        "changes": {
            f"{QUANTILE_NAMES[q]}_s": asdict(change) for q, change in effect.changes.items()
        },
    }


def _quantiles(effect: Effect, side: str) -> dict[str, Any]:
    sample = effect.before if side == "before" else effect.after
    return {
        "count": len(sample.values),
        "mean_s": sample.mean,
        **{f"{QUANTILE_NAMES[q]}_s": sample.quantile(q) for q in QUANTILES},
    }


def quantile_cell(effect: Effect, q: float) -> str:
    """Write a quantile before and after, in milliseconds."""
    first, second = effect.before.quantile(q), effect.after.quantile(q)
    return f"{ms(first)} → {ms(second)}"
