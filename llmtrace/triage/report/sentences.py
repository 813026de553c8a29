"""The sentences of a report, shared by the terminal, the page and messages.

Every time has its date and zone. What is over is never called "now".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, get_args

from llmtrace.display.summary_tables import date_and_zone, time_span
from llmtrace.triage.near_events import EVENTS_BACK_S
from llmtrace.triage.over_time import Growth, Incident, NearEvent, Onset, Similar
from llmtrace.triage.report.naming import (
    METRIC_NAMES,
    PART_NAMES,
    duration,
    figure,
    latest,
    number_of,
    of_latency,
    percent,
    share,
    signed,
    unit,
    unit_of,
)
from llmtrace.triage.result import (
    NAMED,
    NOTHING_FOUND,
    SURE,
    Cohort,
    Finding,
    Load,
    Metric,
    Outcomes,
    Result,
    Side,
)

_MAX_COHORTS: Final = 3
_MAX_TENANTS: Final = 3
_MAX_OTHERS: Final = 4
_MAX_EVENTS: Final = 4
_NEARLY_ALL: Final = 0.95  # of requests
_LONG_GAP_S: Final = 10.0


def when(result: Result) -> list[str]:
    """Say when it began, whether it is over, and which windows are compared.

    Times are in this machine's zone.
    """
    texts = [*_course(result)]
    in_ = unit(result)
    outcomes = result.outcomes
    counts = (outcomes.after, outcomes.before) if outcomes is not None else ({}, {})
    sides = ((latest(result), result.after), ("before", result.before))
    texts += [_side(name, side, in_, sum(by_outcome.values()), result.metric or "")
              for (name, side), by_outcome in zip(sides, counts, strict=True)]  # fmt: skip
    return texts


def only(filters: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Say how rows were filtered, for the top of a report; empty if they were not."""
    named = [f"{name}={' or '.join(words)}" for name, words in filters.items()]
    return (f"only {', '.join(named)}",) if named else ()


def first_cause(result: Result) -> Iterator[str]:
    """Yield a line on the cause named first; nothing if there are no causes."""
    named = [one for one in result.causes if one.status in NAMED]
    if named:
        first, *more = named
        only_possible = first.status in SURE and not any(one.status in SURE for one in more)
        others = f", and {len(more)} {'possible' if only_possible else 'more'}" if more else ""
        where = f" on {group_text(first)}" if first.group else ""
        # A cause does not explain an improvement: there is no rule for getting faster.
        beside = "beside it, " if result.verdict == "improvement" else ""
        yield f"{beside}{first.status} cause: {first.id}{where}{others}"
    elif result.causes and result.verdict not in NOTHING_FOUND | {"improvement"}:
        yield "no cause is supported by the evidence"


def _course(result: Result) -> Iterator[str]:
    onset, window = result.onset, result.after.window
    if result.state == "began_before_the_data":
        back = result.recovered_at
        yield "began before the data" + ("" if back is None else f"; over {date_and_zone(back)}")
    elif onset is not None:
        off = ""
        if onset.latest - onset.earliest >= 1:
            off = f"; 95 % interval {time_span(onset.earliest, onset.latest)}"
            if onset.gap_s > max(_LONG_GAP_S, (onset.latest - onset.earliest) / 2):
                off += f", of which {duration(onset.gap_s)} have no requests"
        yield f"began {date_and_zone(onset.best)}{off}"
        if result.recovered_at is not None:
            lasted = duration(result.recovered_at - onset.best)
            yield f"over since {date_and_zone(result.recovered_at)}, after {lasted}"
        elif result.quiet_since is not None:
            since = f"{date_and_zone(result.quiet_since)}, for {number_of(result.requests_since)}"
            yield f"not seen since {since}: not known yet whether it is over"
        elif result.state == "ongoing" and window is not None:
            end = window.end if result.impact is None else result.impact.until
            lasts = duration(max(end - onset.best, 0.0))
            word = "faster until" if result.verdict == "improvement" else "ongoing at"
            yield f"{word} {date_and_zone(end)}, the end of the data, for {lasts}"
    elif result.verdict not in NOTHING_FOUND:
        yield "when it began is not known, nor whether it is over"
    impact = result.impact if result.metric in result.moved and of_latency(result) else None
    if impact is not None and impact.worst_s is not None and impact.worst_at is not None:
        in_ = unit(result)
        last = f"p95 of the last requests {figure(impact.now_s, in_)} {in_}"
        peak = f"{figure(impact.worst_s, in_)} {in_}, {date_and_zone(impact.worst_at)}"
        metric = METRIC_NAMES.get(onset.metric if onset is not None else "", "")
        other = result.state == "ongoing" and onset is not None and onset.metric != result.metric
        as_before = impact.now_s is not None and impact.now_s <= (result.before.p95 or 0.0)
        last += f", as before, but {metric} is not as before" if other and as_before else ""
        yield f"{last}; it peaked at {peak}"


def _side(name: str, side: Side, in_: str, all_: int, metric: str) -> str:
    window = side.window
    span = "no rows" if window is None else time_span(window.start, window.end)
    low, high = side.p95_ci
    interval = (
        ""
        if low is None or high is None
        else f", p95 95% CI {figure(low, in_)} to {figure(high, in_)} {in_}"
    )
    of = number_of(side.requests)
    if side.requests < _NEARLY_ALL * all_:
        with_it = f"{side.requests:,} of them with {METRIC_NAMES.get(metric, 'latency')}"
        of = f"{number_of(all_)}, {with_it}"
    if side.n < _NEARLY_ALL * side.requests:
        of += f" (a sample: {side.n:,} rows)"
    return f"{name} {span}: {of}{interval}"


def has_split(result: Result) -> bool:
    """Return whether the parts of the change should be shown.

    With too few requests they would be a guess; if no part moved beyond chance, they are noise.
    """
    if not result.contributions or result.verdict in NOTHING_FOUND or not of_latency(result):
        return False
    known = any(None not in one.ci for one in result.contributions)
    moved = any(one.significant for one in result.contributions)
    return moved if known else result.significant


def parts_without(result: Result) -> tuple[list[str], list[str]]:
    """Return the names of the parts that did not change, and of those that are not reported."""
    unknown = result.quality.unreported
    named = [(one.name in unknown, PART_NAMES.get(one.name, one.name))
             for one in result.contributions if not one.seconds]  # fmt: skip
    none, missing = ([name for unsaid, name in named if unsaid is side] for side in (False, True))
    return none, missing


def facts(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the facts beside the stages, each with a heading."""
    for text in impact_text(result):
        yield "impact", text
    if result.verdict not in NOTHING_FOUND | {"improvement"}:
        yield "affected", affected(result)
    for number, event in enumerate(result.events[:_MAX_EVENTS]):
        yield ("" if number else "changes"), event_text(event, result.onset)
    if result.state is not None and not result.events:
        since, onset, data = "30 min before the onset", result.onset, result.data
        if onset is not None and data is not None and onset.best - data.start < EVENTS_BACK_S:
            since = f"the start of the data, {date_and_zone(data.start)},"
        yield "changes", f"none reported or seen from {since} to 2 min after the onset"
    before, after = result.load.get("before"), result.load.get("after")
    if before is not None and after is not None:
        yield "workload", load_text(before, after)
    grew = () if result.verdict == "traffic" else result.grew  # what is lost makes the rest more
    for number, one in enumerate(grew):
        yield ("" if number else "grew"), growth_text(one, result)
    if result.outcomes is not None:
        yield "outcomes", endings(result.outcomes, [*_without_requests(result)])
    fell = {one.metric for one in result.changes if one.grew[0] < 0}
    others = [
        METRIC_NAMES[name] + (" (faster)" if name in fell else "")
        for name in get_args(Metric)
        if name in result.moved and name != result.metric
    ]
    if others:
        yield "also moved", ", ".join(others)
    for number, text in enumerate(other_stretches(result)):
        yield ("" if number else "other times"), text
    if result.verdict in NOTHING_FOUND:
        yield from power(result)


def for_experts(result: Result) -> Iterator[tuple[str, str]]:
    """Yield facts for experts: the smallest visible change, censored requests, estimates."""
    if result.verdict not in NOTHING_FOUND:
        yield from power(result)
    if any(result.quality.censored):
        before, after = result.quality.censored
        name = METRIC_NAMES.get(result.metric or "", "it")
        counts = f"{before:,} before, {after:,} {latest(result)}"
        yield "not counted", f"ended before {name} was known: {counts}"
    made = result.estimates
    both = (("before", made.before), (latest(result), made.after)) if made is not None else ()
    for when_, estimate in both:
        if estimate is not None:
            text = f"prefill {figure(estimate.prefill_p50_s)} ms at the median, by a fit of"
            sure = f"{estimate.n:,} requests (R² {estimate.fit:.2f}); part of no sum"
            yield "estimated", f"{when_}: {text} {sure}"


def power(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the smallest change that would have been seen, if known."""
    if result.smallest_visible is not None:
        seen = f"all requests {1 + result.smallest_visible:.3g} times as slow"
        slow = result.smallest_visible_share
        if slow is not None:
            usual = percent(1 - result.quantile)
            seen += f", or {percent(slow)} of them over the p95 before ({usual} expected),"
        yield "sensitivity", f"{seen} would have been seen"


def impact_text(result: Result) -> Iterator[str]:
    """Yield a sentence on lost or affected requests, their tenants and the error budget."""
    impact = result.impact
    if impact is None:
        return
    lost = f"about {impact.lost:,} requests fewer than at the rate before"
    if result.verdict == "traffic":  # those that came are as fast as before, or faster
        yield from [lost] if impact.lost else []
        return
    ways = ["failed", f"were cancelled ({impact.cancelled:,})"][: 1 + (impact.cancelled > 0)]
    if impact.limit_s is not None:
        in_, source = unit(result), "the budget" if impact.from_budget else "the p95 before"
        name = METRIC_NAMES.get(result.metric or "", "latency")
        article = "an" if name[0] in "aeiou" else "a"
        ways = [
            f"exceeded {article} {name} of {figure(impact.limit_s, in_)} {in_} ({source})",
            *ways,
        ]
    how = " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))
    parts = [lost] if impact.lost else []
    span = time_span(impact.since, impact.until)
    parts.append(f"{impact.requests:,} of {number_of(impact.of)} {how}, {span}")
    if impact.tenants_hit:
        named = list(impact.tenants.items())[:_MAX_TENANTS]
        listed = ", ".join(f"{name} {count:,}" for name, count in named)
        more = impact.tenants_hit - len(named)
        rest = f", {more} more" if more > 0 else ""
        parts.append(f"{number_of(impact.tenants_hit, 'tenant')}: {listed}{rest}")
    if impact.budget_used is not None:
        used = percent(impact.budget_used)
        parts.append(f"used {used} of the error budget (of the time searched)")
    yield " · ".join(parts)


def event_text(event: NearEvent, onset: Onset | None) -> str:
    """Say what happened, and how long before or after the onset."""
    side = "before" if event.distance_s < 0 else "after"
    apart = f"{duration(abs(event.distance_s))} {side} it began"
    if onset is not None and onset.earliest <= event.t <= onset.latest:
        apart = "about when it began"
    return f"{event.kind}: {event.text}, {apart} ({date_and_zone(event.t)})"


def similar_text(one: Similar) -> str:
    """Say when a similar incident was reported, and its first cause."""
    named = one.cause or "no cause was named"
    return f"{date_and_zone(one.started)}, {one.alert}: {named}"


def growth_text(one: Growth, result: Result) -> str:
    """Say which kind of request grew, and what that adds to the mean."""
    names = ", ".join(
        value if name.endswith("_tokens") else f"{name}={value}"
        for name, value in one.attributes.items()
    )
    return (
        f"{names}: {percent(one.share_before)} → {percent(one.share_after)} of requests, "
        f"{signed(one.seconds, unit(result))} {unit(result)} on the mean"
    )


def other_stretches(result: Result) -> Iterator[str]:
    """Yield a sentence for each other time when a metric stood out."""
    window, earlier = result.after.window, result.before.window
    apart = [
        one
        for one in result.incidents
        if (one.metric, one.direction) != ("render", "down")
        and (window is None or one.start >= window.end or (one.end or window.end) <= window.start)
        and (earlier is None or one.seconds_in(earlier) <= earlier.seconds / 2)
    ]
    for one in apart[:_MAX_OTHERS]:
        yield stretch_text(one)
    if len(apart) > _MAX_OTHERS:
        yield f"{len(apart) - _MAX_OTHERS} more"
    if apart:
        yield "not explained here; `--at TIME` triages one"


def stretch_text(one: Incident) -> str:
    """Say which metric stood out, when and by how much."""
    if one.end is None:
        span = f"since {date_and_zone(one.start)}"
    else:
        span = time_span(one.start, one.end)
    if one.metric in ("errors", "cancelled"):
        how = "failed" if one.metric == "errors" else "cancelled"
        size = share(f"{how} requests", one.usual or 0.0, one.level or 0.0)
    elif one.metric == "traffic":
        size = f"{one.usual or 0:.3g} → {one.level or 0:.3g} requests a second"
    else:
        in_ = unit_of(one.metric, one.usual, one.level)
        pair = f"{figure(one.usual, in_)} → {figure(one.level, in_)} {in_}"
        size = f"{METRIC_NAMES[one.metric]} p50 {pair}"
    return f"{span}: {size}" + (", gradually" if one.shape == "ramp" else "")


def load_text(before: Load, after: Load) -> str:
    """Return a sentence on the load, before and in the incident."""
    pairs = (
        ("requests/s", before.requests_per_s, after.requests_per_s, ".2f"),
        ("prompt tokens p95", before.prompt_tokens_p95, after.prompt_tokens_p95, ",.0f"),
        ("output tokens p95", before.output_tokens_p95, after.output_tokens_p95, ",.0f"),
    )
    pieces = [
        f"{name} {format(low, form)} → {format(high, form)}"
        for name, low, high, form in pairs
        if low is not None and high is not None
    ]
    return " · ".join(pieces) or "not reported"


def affected(result: Result) -> str:
    """Return a sentence that names the affected cohorts."""
    in_ = unit(result)
    # The clearest is first: what contains it says it again, less clearly.
    clear = [
        one for number, one in enumerate(result.cohorts)
        if not any(one.fails is other.fails and one.attributes.items() <= other.attributes.items()
                   for other in result.cohorts[:number])
    ]  # fmt: skip
    texts = [cohort_text(one, in_) for one in clear[:_MAX_COHORTS]]
    everyone = _scope(result.quality.values)
    failing = result.outcomes is not None and result.outcomes.significant
    if texts and failing and not any(one.fails for one in result.cohorts):
        texts.insert(0, f"failures: {everyone}")
    known = [pair for one in result.cohorts for pair in one.attributes.items()]
    for one in result.causes:
        named = one.status in SURE and not set(one.group.items()) <= set(known)
        texts += [f"{group_text(one)}, by the evidence for {one.id}"] if named else []
        known += one.group.items()
    gone = latest(result) in _without_requests(result)
    return "; ".join(texts) or (f"no requests {latest(result)}" if gone else everyone)


def group_text(one: Finding) -> str:
    """Return what the requests that a cause is about have in common, as `replica=vllm-0`."""
    return ", ".join(f"{name}={value}" for name, value in one.group.items())


def _scope(values: Mapping[str, int]) -> str:
    """Say which fields tell no affected requests from others: only those that rows have can."""
    kinds: list[list[str]] = [[], [], []]
    for name, count in values.items():
        kinds[min(count, 2)].append(f"{count} {name}s" if count > 1 else name)
    unknown, single, several = (", ".join(names) for names in kinds)
    parts = [f"none stands out of {several}" if several else ""]
    parts += [f"one {single}" if single else "", f"not reported: {unknown}" if unknown else ""]
    return "; ".join(filter(None, parts))


def cohort_text(cohort: Cohort, in_: str) -> str:
    """Say which share of what is slow or fails one cohort has, and what is left without it."""
    names = ", ".join(f"{name}={value}" for name, value in cohort.attributes.items())
    what = "fails" if cohort.fails else "is slow"
    without = ""
    if cohort.p95_without is not None:
        without = f"; p95 without it: {figure(cohort.p95_without, in_)} {in_}"
    return (
        f"{names}: {percent(min(cohort.excess_share, 1.0))} of what {what} beyond expectation, "
        f"{percent(cohort.traffic_share)} of traffic{without}"
    )


def _without_requests(result: Result) -> Iterator[str]:
    """Yield the windows in which no request began."""
    for name, word in (("before", "before"), ("after", latest(result))):
        load = result.load.get(name)
        if load is not None and not load.requests_per_s:
            yield word


def endings(outcomes: Outcomes, empty: Sequence[str] = ()) -> str:
    """Say how requests ended, before and in the incident; `empty` are windows without any."""
    if empty and (outcomes.failed_before, outcomes.failed_after) == (None, None):
        return f"no requests {' and '.join(empty)}"
    failed = share("failed", outcomes.failed_before, outcomes.failed_after)
    cancelled = share("cancelled", outcomes.cancelled_before, outcomes.cancelled_after)
    lack = [by.get("unknown", 0) / (sum(by.values()) or 1)
            for by in (outcomes.before, outcomes.after)]  # fmt: skip
    unknown = [share("not known", *lack)] if 0 < sum(lack) < len(lack) else []
    return " · ".join((failed, cancelled, *unknown, *(f"no requests {word}" for word in empty)))


def rest_text(result: Result, shown: int) -> str:
    """Say how many causes are not shown: named beyond `shown`, ruled out, or not decided."""
    counts = Counter(one.status for one in result.causes)
    texts = {
        "more possible": max(sum(counts[status] for status in NAMED) - shown, 0),
        "ruled out": counts["ruled_out"],
        "cannot be judged for lack of data": counts["unknown"],
    }
    return ", ".join(f"{count} {words}" for words, count in texts.items() if count)


def why_not(one: Finding) -> str:
    """Say what speaks against a cause, and the data without which it cannot be judged."""
    return "; ".join([*(point.text for point in one.against), *one.missing]) or "no evidence"


def short_record(one: Finding) -> str:
    """Say briefly how often the status was right; empty if that was not measured."""
    right = one.right_when_so_called
    if right is None:
        return ""
    whose = "" if right.calls == one.id else f" (any {one.status} cause)"
    return f", right in {right.right} of {right.of} simulated incidents{whose}"


def record_text(one: Finding) -> str:
    """Say how often the status was right in simulated worlds that no rule was written on."""
    right = one.right_when_so_called
    if right is None:
        return f"how often {one.status} is right: not measured"
    calls = "of this cause" if right.calls == one.id else "of all causes"
    return (
        f"{one.status} was right in {right.right} of {right.of} calls {calls}, "
        f"in simulated worlds ({right.measured})"
    )


def shown_text(one: Finding) -> str:
    """Say where a rule was shown to work."""
    places = {"recordings": "recordings of real engines", "simulation": "simulated incidents"}
    shown = " and ".join(places[name] for name in one.shown_in) or "rows made by hand alone"
    return f"the rule was shown on {shown}"


def quality_text(result: Result) -> str:
    """Return a sentence on how well the data support the verdict."""
    quality = result.quality
    parts = []
    if quality.coverage is not None:
        parts.append(f"stages known for {percent(quality.coverage)} of the time")
    if quality.matched_on:
        parts.append(f"same work = same {', '.join(quality.matched_on)}")
    if quality.sampled < 1:
        parts.append(f"{percent(quality.sampled)} of rows looked at")
    return f"data: {' · '.join(parts) or 'no stage is reported'}"
