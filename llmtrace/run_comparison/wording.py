"""Put a comparison into the words and figures that the terminal, the page and JSON share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from llmtrace.dataset.columns import Doubt
from llmtrace.display.summary_tables import JOINED, ms
from llmtrace.run_comparison.effects import QUANTILES, Effect, Sample
from llmtrace.run_comparison.run_totals import Totals
from llmtrace.run_comparison.runs import Comparison, share_interval

# What a duration is called where its key alone does not say it.
LABELS: Final = {"first_content": "first content", "itl": "ITL", "ttft": "TTFT", "tpot": "TPOT"}
SIGNALS: Final = (
    "Means over each run, in seconds, bytes and shares of 1; of what counts, the growth a second."
)
_TINY_S: Final = 1e-4
_FAR: Final = 10.0  # ten times more: how much more tells nothing
_NEXT_TO_NOTHING: Final = 0.0005  # of a duration: 0 % when rounded
_NONE_SHOWN: Final = "no difference shown"
_WHOLE: Final = 100  # from which on figures of signals have no decimals
QUANTILE_NAMES: Final = {q: f"p{100 * q:g}" for q in QUANTILES}


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
    return f"{sign}{f'{abs(rounded):,.1f}'.removesuffix('.0')}{JOINED}%"


def by_how_much(effect: Effect, q: float, *, in_ms: bool = False) -> str:
    """Write by what share, or how many ms, a quantile moved, and its interval; `-` = not known."""
    change, before = effect.changes.get(q), effect.before.quantile(q)
    if change is None or before is None:
        return "-"
    if in_ms or before < _TINY_S:  # shares of a tiny value say nothing
        figures = (round(1000 * of, 2) + 0.0 for of in (change.by, change.low, change.high))
        by, low, high = (f"{of:+,.2f}".replace("-", "\N{MINUS SIGN}") for of in figures)
        return f"{by} ms [{low}, {high}]"
    low, high = (percent(bound / before) for bound in (change.low, change.high))
    return f"{percent(change.by / before)} [{low}, {high}]"


def short_verdict(effect: Effect) -> str:
    """Return in a word or three what is shown of one duration."""
    return "too few requests" if effect.p_value is None else effect.direction or _NONE_SHOWN


def verdict(effect: Effect) -> str:
    """Return what is shown of one duration, and what could have been if nothing is."""
    text = short_verdict(effect)
    if text != _NONE_SHOWN:
        return text
    names = " and ".join(QUANTILE_NAMES[q] for q in effect.alone)
    alone = f" across all figures; taken alone, {names} moved" if names else ""
    text += alone
    if effect.smallest is None or effect.smallest < _NEXT_TO_NOTHING:
        return text
    far = "far " if effect.smallest > _FAR else ""
    above = percent(min(effect.smallest, _FAR))[1:]
    return f"{text}; at p50 only one {far}above {above} would have been visible"


def doubts(comparison: Comparison) -> list[str]:
    """Return what puts every figure in doubt, a sentence each: before the headline."""
    return [f"In doubt: {one}" for one in comparison.warnings if isinstance(one, Doubt)]


def headline(comparison: Comparison) -> str:
    """Return what the comparison shows, in a sentence or two."""
    if not comparison.failures_differ:
        return _of_durations(comparison)
    return f"{_of_failures(comparison)} {_of_durations(comparison)}"


def _of_failures(comparison: Comparison) -> str:
    first, second = (side.failed for side in comparison.totals)
    return f"{'More' if second > first else 'Fewer'} requests fail: {first:.1%} → {second:.1%}."


def _of_durations(comparison: Comparison) -> str:
    moved = comparison.moved
    if all(effect.p_value is None for effect in comparison.effects) and comparison.effects:
        return "Too few requests to show a difference."
    if not moved:
        alone = [f"{label(one)} {_moved_by(one, q)}" for one in comparison.effects
                 for q in one.alone]  # fmt: skip
        text = " across all figures; taken alone, as 1 in 20 would by chance, these moved: "
        return f"No difference shown{text if alone else ''}{', '.join(alone)}."
    parts = []
    for effect in moved:
        slower = effect.direction == "slower"
        q = next((q for q in effect.alone if (effect.changes[q].by > 0) is slower), QUANTILES[0])
        by = f" at {_moved_by(effect, q, ' by')}" if q in effect.changes else ""
        parts.append(f"{label(effect)} is {effect.direction}{by}")
    text = f"{'; '.join(parts)}."
    if comparison.other_answers and any(effect.direction == "faster" for effect in moved):
        text += f" But {'; '.join(comparison.other_answers)}: this may be other work."
    return text


def _moved_by(effect: Effect, q: float, by: str = "") -> str:
    return f"{QUANTILE_NAMES[q]}{by} {by_how_much(effect, q).partition(' [')[0]}"


def sentences(comparison: Comparison) -> Iterator[str]:
    """Yield what a reader must know beside the durations, a sentence each."""
    workload = comparison.workload
    if workload.same:
        yield "Workload: the same in both runs, by its hash."
    elif workload.reweighted:
        on = ", ".join(workload.matched_on) or "what is known of it"
        yield f"Workload: not the same by its hash; requests are weighted to be alike in {on}."
        if any(workload.left_out):
            before, after = workload.left_out
            yield (
                f"Left out, of a kind that the other run lacks: {before:,} requests before, "
                f"{after:,} after."
            )
    else:
        yield "Workload: not known to be the same, but alike by what the requests report."
    if workload.reported_by_one:
        yield f"Not held equal, as only one run reports it: {', '.join(workload.reported_by_one)}."
    if comparison.failures_differ:
        yield "Failures: their share differs by more than chance."
    if comparison.answers is not None:
        share, count = comparison.answers
        low, high = share_interval(comparison.answers)
        yield (
            f"Responses: {share:.1%} of {count:,} are identical (95% CI {low:.1%} to {high:.1%})."
        )
    for difference in comparison.other_answers:
        yield f"Other responses: {difference}."
    if comparison.changed:
        parts = [f"{name}: {first} → {second}" for name, first, second in comparison.changed]
        yield f"Not the same in both runs: {'; '.join(parts)}."
    for warning in comparison.warnings:
        if not isinstance(warning, Doubt):
            yield f"Note: {warning}."


def totals_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return the runs' totals, side by side: what, before, after."""
    first, second = comparison.totals

    def counts(prefix: str, of: str) -> list[tuple[str, str, str]]:
        before, after = getattr(first, of), getattr(second, of)
        return [_pair(f"{prefix}{name}", (before.get(name, 0) if before else None,
                                          after.get(name, 0) if after else None), 0)
                for name in {**before, **after}]  # fmt: skip

    rows = [
        _pair("requests", (first.requests, second.requests), 0),
        *counts("", "outcomes"),
        _pair("requests that succeeded/s", (first.requests_per_s, second.requests_per_s)),
        _pair("output tokens/s", (first.tokens_per_s, second.tokens_per_s)),
        _pair("output tokens/s of one request (median)", (first.speed, second.speed)),
    ]
    if (each := per_gpu(comparison)) is not None:
        gpus = " and ".join(str(count) for count in comparison.gpus)
        rows.append(_pair(f"output tokens/s a GPU ({gpus})", each))
    if first.goodput is not None:
        rows.append(_pair("requests inside the budget/s", (first.goodput, second.goodput)))
    tokens = first.mean_output_tokens, second.mean_output_tokens
    rows += [_pair("output tokens a request", tokens), *counts("finish reason ", "finish_reasons")]
    rows += [_pair(f"price of {what}", prices) for what, prices in comparison.costs.items()]
    return rows


def signal_rows(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return what engines and GPUs reported, side by side: what, before, after."""
    return [
        _pair(name.replace("_", " "), figures, None)
        for name, figures in comparison.signals.items()
    ]


def _pair(
    name: str, values: tuple[float | None, float | None], places: int | None = 2
) -> tuple[str, str, str]:
    """Write two figures, to so many decimals; `None` = to three digits at least."""

    def text(value: float | None) -> str:
        if value is None:
            return "not reported"
        if places is not None:
            return f"{value:,.{places}f}"
        return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:.3g}"

    return name, text(values[0]), text(values[1])


def per_gpu(comparison: Comparison) -> tuple[float | None, float | None] | None:
    """Return output tokens a second and GPU, before and after; `None` = GPUs are not known."""
    first, second = comparison.totals
    gpus_before, gpus_after = comparison.gpus
    if gpus_before is None or gpus_after is None:
        return None
    before, after = first.tokens_per_s, second.tokens_per_s
    return (
        None if before is None else before / gpus_before,
        None if after is None else after / gpus_after,
    )


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
        "other_answers": list(comparison.other_answers),
        "changed": {name: list(pair) for name, *pair in comparison.changed},
        "gpus": list(comparison.gpus),
        "tokens_per_s_per_gpu": per_gpu(comparison),
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
        "before": _quantiles(effect.before),
        "after": _quantiles(effect.after),
        "changes": {
            f"{QUANTILE_NAMES[q]}_s": asdict(change) for q, change in effect.changes.items()
        },
    }


def _quantiles(sample: Sample) -> dict[str, Any]:
    return {
        "count": len(sample.values),
        "mean_s": sample.mean,
        **{f"{QUANTILE_NAMES[q]}_s": sample.quantile(q) for q in QUANTILES},
    }


def quantile_cell(effect: Effect, q: float) -> str:
    """Write a quantile before and after, in milliseconds."""
    sides = effect.before.quantile(q), effect.after.quantile(q)
    return "-" if sides == (None, None) else " → ".join(map(ms, sides))
