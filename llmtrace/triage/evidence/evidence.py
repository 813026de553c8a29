"""Compare an incident's two windows: what moved in rows and signals, where, and by how much.

`Evidence` answers what the rules of causes ask: whether a stage, a gauge or a counter's rate rose,
where, and among which requests. Every value is measured or `None`: a signal that was not reported
is not a signal that stayed at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, Final, TypeVar, cast

import numpy as np

from llmtrace.core.row import TURN
from llmtrace.core.stages import BEFORE_CONTENT
from llmtrace.dataset.case import Event, Facts, Signals, Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Mask, finite
from llmtrace.triage.evidence import changes
from llmtrace.triage.evidence.changes import MIN_COUNT, Share, Shift, expected_percentile, share
from llmtrace.triage.evidence.kinds import ALL_KINDS, values_at_same_mix
from llmtrace.triage.evidence.other_clients import ENDED, OtherClients, other_clients_work
from llmtrace.triage.evidence.request_rates import Arrivals, Counted, recorded_s
from llmtrace.triage.evidence.signals import Moved, Series, gauges, means, moved, rates
from llmtrace.triage.evidence.window_rows import Side

METRICS: Final = ("ttft_s", "tpot_s", "e2e_s")
TTFT_STAGES: Final = (*BEFORE_CONTENT, "unattributed")
PACE_STAGES: Final = ("decode", "render")
ENGINE_STAGES: Final = ("queue", "prefill", "first_chunk", "decode", "unattributed")

_MORE: Final = 1.15  # ratio of request rates that counts as more load
# The smallest change that matters, relative to the wait that the duration is part of: an absolute
# bar would not fit both a model on a laptop and one on eight GPUs.
_FLOOR: Final = 0.04
_FEW_TURNS: Final = 4
_ROUNDING: Final = 1e-12  # of the largest value; smaller steps are rounding errors
_SURELY_MORE: Final = 3.0  # standard errors
_FAR_MORE: Final = 1.8  # ratio of request rates beyond their usual variation
_PART: Final = 0.1  # of the metric's growth; less is not its cause
_ALONE: Final = 0.5  # growth of a stage, relative to a typical wait, that is felt by itself
_PER_TOKEN: Final = frozenset({"tpot_s", "wait_per_token_s"})
_AS_LONG: Final = 1.3  # ratio of prompt lengths up to which a prefill's time is proportional
_ENGINE_DURATIONS: Final = {"queue_s": "queue", "prefill_s": "prefill"}  # row field: signal
_ENGINE_FIELDS: Final = ("queue_s", "prefill_s", "spec_drafted", "first_chunk_kv_transfer_s")
_AFTER_FIRST: Final = ("decode", "render", "tool", "max_gap", "e2e", "held")

_TOGETHER: Final = 4.0  # requests of one batch that count as one independent request
_MAX_VALUES: Final = 24  # values of a column that are compared
_NEW_SHARE: Final = 0.1  # of the requests, for a new value to count
_ELSEWHERE: Final = 0.35  # the others' change over the local one, at most
_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])  # a function of `Evidence`, or a method


@dataclass(frozen=True, slots=True)
class Local:
    """The one value of a column whose requests rose; `traffic` = their share of all after."""

    column: str
    value: str
    traffic: float

    def __str__(self) -> str:
        return f"{self.column}={self.value} ({100 * self.traffic:.0f} % of requests)"


def memoized(make: _F) -> _F:
    """Compute a function of evidence once for each evidence and arguments."""

    @wraps(make)
    def once(e: Evidence, *args: Any, **kwargs: Any) -> Any:
        return e.once((make, *args, *sorted(kwargs.items())), lambda: make(e, *args, **kwargs))

    return cast("_F", once)


@dataclass(frozen=True)
class Evidence:
    """Both windows of an incident, with its signals and facts.

    Attributes:
        metric: the row field that the triage is about (`ttft_s`, ...); `None` = whichever moved.
        contributions: signed seconds by stage from the attribution, if there is one.
        ongoing: whether the data end with the window after.
        of_means: whether each row holds the means of several requests; its weight is their number.
        unrecorded: times from which there are neither rows nor signals.
        coarse: whether there are too few requests to see that nothing moved.
        risen: the metrics that rose by the verdict; rules must not find that they did not.
        searched: whether a search chose the windows as the most unusual ones.
        sure: standard errors from which a change is beyond chance.
    """

    before: Side
    after: Side
    signals: Signals
    facts: Facts
    turns: tuple[Side, Side]
    metric: str | None = None
    contributions: Mapping[str, float] = field(default_factory=dict)
    ongoing: bool = False
    of_means: bool = False
    unrecorded: tuple[Window, ...] = ()
    coarse: bool = False
    risen: frozenset[str] = frozenset()
    searched: bool = False
    sure: float = changes.SURE
    _memo: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    # As measured in the same windows, so that `replace` keeps them whatever is sure enough.
    _shifts: dict[Any, Shift | None] = field(default_factory=dict, compare=False, repr=False)

    def once(self, key: Any, make: Callable[[], _T]) -> _T:
        """Return `make()`, computed once for each key."""
        if key not in self._memo:
            self._memo[key] = make()
        return cast("_T", self._memo[key])

    def _sure(self, found: Shift | None) -> Shift | None:
        return found and (found if found.sure == self.sure else replace(found, sure=self.sure))

    @memoized
    def row(self, name: str) -> Shift | None:
        """Compare a field of the requests, or of engines' sums; `None` = too few values."""
        found = self._row(name)
        if found is None and not self.of_means and name in _ENGINE_DURATIONS:
            return self.engine_mean(_ENGINE_DURATIONS[name])
        return found

    @memoized
    def engine_mean(self, name: str) -> Shift | None:
        """Compare the mean of a duration between scrapes, from engines' own sums and counts."""
        found = means(self.signals, name).values()
        sides = [[one.within(window) for one in found]
                 for window in (self.before.window, self.served)]  # fmt: skip
        if not all(sides):
            return None
        b, b_t, a, a_t = (np.concatenate([getattr(one, part) for one in side])
                          for side in sides for part in ("value", "t"))  # fmt: skip
        moved = changes.shift(b, b_t, a, a_t, of_means=True) or changes.shift_of_samples(b, a)
        return moved and replace(moved, source="engines' means", sure=self.sure)

    def engine_share(self) -> float | None:
        """Return the share of the added time (to first token, or all) that engines count."""
        for name in ("ttft", "e2e"):
            mine, theirs = self._row(f"{name}_s"), self.engine_mean(name)
            if mine is not None and theirs is not None and mine.mean_change > 0:
                return theirs.mean_change / mine.mean_change
        return None

    def row_among(self, name: str, key: Any, mask: Callable[[Side], Mask]) -> Shift | None:
        """Compare a field of the requests in a mask; `key` identifies the mask."""
        return self._row(name, key, mask)

    def computed_row(self, name: str) -> Shift | None:
        """Compare a field of the requests that were not answered from a response cache."""
        return self.row_among(name, "computed", lambda side: ~(side.number("cache_hit") > 0))

    def _row(
        self, name: str, key: Any = None, mask: Callable[[Side], Mask] | None = None
    ) -> Shift | None:
        measured = (name, key, self.of_means)
        if measured not in self._shifts:
            sides = []
            for side in (self.before, self.after):
                values, t = side.sampled(side.number(name)), side.sampled(side.t)
                if mask is not None:
                    inside = side.sampled(mask(side))
                    values, t = values[inside], t[inside]
                if self.of_means:
                    weight = side.sampled(side.rows.weights)
                    weight = weight if mask is None else weight[inside]
                    values, t = changes.of_as_many(values, t, weight, self._most_of_a_mean)
                sides += [values, t]
            # Tokens are counted as they are made, so theirs are no means over ended requests.
            means = self.of_means and name.endswith("_s")
            waits = not means and name.endswith("_s") and name != "tpot_s"
            self._shifts[measured] = changes.shift(*sides, of_means=means, waits=waits)
        return self._sure(self._shifts[measured])

    @cached_property
    def _most_of_a_mean(self) -> float:
        """How many requests a mean is of, in the window whose means are of more."""
        weights = [side.rows.weights for side in (self.before, self.after) if len(side)]
        return max((float(np.median(one)) for one in weights), default=1.0)

    @memoized
    def turn(self, name: str) -> Shift | None:
        """Compare a field of turns, or of requests if these have the tool times."""
        before, after = self.turns
        values = [side.number(name) for side in self.turns]
        found = changes.shift(values[0], before.t, values[1], after.t)
        if found is None and min(len(finite(one)) for one in values) >= _FEW_TURNS:
            found = changes.shift_of_samples(*map(finite, values))
        return self._sure(found)

    @cached_property
    def prefill_ratio(self) -> float | None:
        """Prefill time for as many computed tokens, after over before; `None` = unknown."""
        b, b_by, a, a_by = (side.sampled(side.number(one)) for side in (self.before, self.after)
                            for one in ("prefill_s", "computed_tokens"))  # fmt: skip
        found, mean = changes.ratio_at_same(b, b_by, a, a_by), self.engine_mean("prefill")
        tokens = self.row("computed_tokens")
        if found is not None or not mean or not tokens or min(
                mean.before_mean, tokens.before_mean, tokens.after_mean) <= 0:  # fmt: skip
            return found
        longer = tokens.after_mean / tokens.before_mean
        alike = 1 / _AS_LONG <= longer <= _AS_LONG  # prefill time is not proportional to length
        return mean.after_mean / mean.before_mean / longer if alike else None

    def share(self, name: str, mask: Callable[[Side], Mask]) -> Share:
        """Count the requests of a mask in both windows; `name` identifies the mask."""
        return self.once(
            ("share", name),
            lambda: replace(share(mask(self.before), mask(self.after)), sure=self.sure),
        )

    def outcome(self, *outcomes: str) -> Share:
        """Count the requests with one of these outcomes in both windows."""
        return self.share(" ".join(outcomes), lambda side: side.where("outcome", *outcomes))

    def requests_after(self, mask: Mask) -> float:
        """Return how many requests the rows in a mask of the window after stand for."""
        return float(self.after.rows.weights[mask].sum() if self.of_means else mask.sum())

    @property
    def token_rate_ratio(self) -> float | None:
        """Tokens computed per second, after over before; `None` = not reported."""
        known = [one for one in map(self.row, ("computed_tokens", "output_tokens")) if one]
        before, after = self.request_rate
        before *= sum(one.before_mean for one in known)
        return after * sum(one.after_mean for one in known) / before if before > 0 else None

    @property
    def request_rate(self) -> tuple[float, float]:
        """Requests a second, before and after."""
        return self.arrivals().before.rate, self.arrivals().after.rate

    @memoized
    def arrivals(self, **group: str) -> Arrivals:
        """Return the arrival times of all requests, or of those with these column values."""
        sides = []
        for side in (self.before, self.after):
            inside = np.ones(len(side), bool)
            for column, value in group.items():
                inside &= side.where(column, value)
            t, weights = side.t[inside], side.rows.weights[inside]
            sides.append(Counted(side.window, t, weights, self.unrecorded))
        return Arrivals(*sides)

    @cached_property
    def more_requests(self) -> bool:
        """Whether clearly more requests come than before, beyond their usual variation."""
        before, after = self.request_rate
        return after * self._arrival_share >= _MORE * before and self.arrivals().z >= _SURELY_MORE

    @property
    def _arrival_share(self) -> float:
        """Arrival time over service time, after: requests that are served late are no load."""
        return self.after.window.seconds / max(self.served.seconds, 1e-9)

    @cached_property
    def load_per_engine(self) -> tuple[float, float] | None:
        """Requests per second to a typical engine, before and after; `None` if not known."""
        return None if self._loads is None else (self._loads[0][0], self._loads[1][0])

    @cached_property
    def _loads(self) -> list[tuple[float, float]] | None:
        """For both windows: requests per second to a typical engine, and the rows that show it."""
        found = []
        for side in (self.before, self.after):
            codes = side.rows.words["replica"].codes
            named = codes >= 0
            counts = np.bincount(codes[named])
            if counts.max(initial=0) < MIN_COUNT:
                return None
            # Engines in use: those that get any requests in the second half of the window.
            late = named & (side.t >= side.window.start + side.window.seconds / 2)
            in_use = np.bincount(codes[late], minlength=len(counts)) > 0
            in_use = in_use if in_use.any() else counts > 0
            requests = np.bincount(codes[named], side.rows.weights[named])
            recorded = recorded_s([side.window.start, side.window.end], self.unrecorded)
            rate = float(np.median(requests[in_use])) / max(float(recorded[0]), 1e-9)
            independent = requests / _TOGETHER if self.of_means else counts
            found.append((rate, max(float(np.median(independent[in_use])), 1.0)))
        return found

    @cached_property
    def more_load(self) -> bool:
        """Whether a typical engine gets clearly more load: more requests, or fewer engines.

        Or other clients, which have no rows, make it generate more tokens.
        """
        if self.other_clients("tokens_out") is not None:
            return True
        if self._loads is None:
            return self.more_requests
        (before, before_n), (after, after_n) = self._loads
        error = math.sqrt(1 / before_n + 1 / after_n)
        after *= self._arrival_share
        return after >= _MORE * before and math.log(after / before) >= 3 * error

    @cached_property
    def length_outgrew_rate(self) -> bool:
        """Whether the mean response length grew by a larger factor than the request rate."""
        before, after = self.load_per_engine or self.request_rate
        tokens = self.computed_row("output_tokens")
        return tokens is not None and tokens.after_mean * before > after * tokens.before_mean

    @cached_property
    def is_burst(self) -> bool:
        """Whether far more requests come, but no more than in some stretches of before."""
        low, high = self.request_rate
        return high >= _FAR_MORE * low and self.arrivals().stretches_z < changes.STANDS_OUT

    def floor(self, name: str) -> float:
        """Return the smallest change of a duration that matters: 4 % of the wait it is part of."""
        whole = "ttft_s"
        if name in _PER_TOKEN:
            whole = "tpot_s"
        elif name.startswith(_AFTER_FIRST):
            whole = "e2e_s"
        found = self.row(whole) or self.row("e2e_s")
        least = 0.0 if found is None else _FLOOR * found.before_p50
        return max(least, self._resolution(name))

    @memoized
    def _resolution(self, name: str) -> float:
        """Return 1.5 steps of a field that is rounded, such as to milliseconds; else 0."""
        both = np.concatenate([side.number(name) for side in (self.before, self.after)])
        values = np.unique(finite(both))
        step = float(np.diff(values).min()) if len(values) > 2 else 0.0
        if step <= _ROUNDING * np.abs(values).max(initial=0.0):
            return 0.0
        on_steps = np.allclose(values / step, np.rint(values / step), atol=0.01)
        return 1.5 * step if on_steps else 0.0

    def up(self, name: str, relative: float = 0.1) -> bool | None:
        """Return whether a field of the requests rose; `None` = not known.

        Engines that make tokens for other clients are slower: less certainty will do for that.
        """
        found, floor = self.row(name), self.floor(name)
        if found is None:
            return None
        if name == "tpot_s" and self.other_clients("tokens_out") is not None:
            found = replace(found, sure=min(found.sure, changes.RATHER_SURE))
        known = name in self.risen and found.is_higher(floor, relative)
        return known or found.rose(floor, relative)

    def rising(self, *names: str) -> bool | None:
        """Return whether one of these fields rose; `None` = too little is known to see it."""
        if any(self.up(name) for name in names):
            return True
        known = [(name, one) for name in names if (one := self.row(name)) is not None]
        higher = any(one.is_higher(self.floor(name)) for name, one in known)
        return None if (higher and self.coarse) or not known else False

    def stage_rose(self, *stages: str) -> bool | None:
        """Return whether one of these stages rose and carries part of the change.

        `None` = none of them is reported, or there are too few requests to see it.
        """
        known = [stage for stage in stages if self.row(f"{stage}_s") is not None]
        felt = [self._stage_felt(stage) for stage in known]
        # The time of a stage that is not reported is part of `unattributed`.
        if any(felt) or (len(known) < len(stages) and self._stage_felt("unattributed")):
            return True
        return None if None in felt or not known else False

    def _stage_felt(self, stage: str) -> bool | None:
        """Return whether a stage rose beyond chance, and enough of the added time is in it.

        Growth that would be felt by itself will do as well. `None` = it is higher, but there are
        too few requests to see whether that is chance.
        """
        found = self.row(f"{stage}_s")
        if found is None:
            return False
        if stage == "decode" and self.up("wait_per_token_s"):
            return True  # response lengths vary, which hides it in the stage's total
        if stage in TTFT_STAGES or self.metric == "e2e_s":
            part = self.part_of_metric(f"{stage}_s")
            if part is not None and part < _PART and self._relative_growth(stage) < _ALONE:
                return False
        carried, alone = self.stage_share(stage), self._relative_growth(stage)
        floor = self.floor(f"{stage}_s")
        if (found.rose(floor) and (carried >= 0.1 or alone >= 0.1)) or (
            found.mean_rose(floor) and (carried >= 0.3 or alone >= 0.3)
        ):
            return True
        if not found.is_higher(floor) or max(carried, alone) < 0.1:
            return False
        # If the whole rose beyond chance and most of that is in this stage, the stage rose too.
        whole = self.up("ttft_s" if stage in TTFT_STAGES else "tpot_s")
        if whole and carried >= _ALONE:
            return True
        return None if self.coarse else False

    def _relative_growth(self, stage: str) -> float:
        """Return a stage's mean growth relative to a typical wait before."""
        whole = self.row("decode_s" if stage in PACE_STAGES else "ttft_s")
        return 0.0 if whole is None else self._added_s(stage) / max(whole.before_p50, 1e-9)

    def felt_alone(self, name: str) -> bool:
        """Return whether a wait grew by so much that it is felt, whatever else happened."""
        return self._relative_growth(name.removesuffix("_s")) >= _ALONE

    def stage_share(self, stage: str) -> float:
        """Return a stage's share of the added time by means, which add up; 0 to 1.

        Stages that got shorter count as 0. Time to the first chunk and time after it are kept
        apart, since long responses would hide the former.
        """
        first = stage in TTFT_STAGES
        group = TTFT_STAGES if first else PACE_STAGES
        shares = [_share_of(stage, {one: self._added_s(one) for one in group})]
        if first and stage in self.contributions:
            # Its share of the p95's change, if that was attributed (not for times per token).
            shares.append(_share_of(stage, {one: self.contributions.get(one, 0) for one in group}))
        return max(shares)

    def part_of_metric(self, name: str) -> float | None:
        """Return a duration's share of the metric's growth, by means; `None` = not known."""
        metric = self.metric if self.metric != "tpot_s" else None
        whole, part = self.row(metric or "ttft_s"), self.row(name)
        if whole is None or part is None or whole.after_mean <= whole.before_mean:
            return None
        return part.mean_change / whole.mean_change

    def _added_s(self, stage: str) -> float:
        found = self.row(f"{stage}_s")
        if found is None or stage != "unattributed":
            return 0.0 if found is None else found.mean_change
        # `unattributed` includes durations that only engines count.
        theirs = (self.row(name) for name in _ENGINE_DURATIONS)
        known = sum(max(one.mean_change, 0.0) for one in theirs if one is not None and one.source)
        return found.mean_change - known

    @memoized
    def at_same_mix(
        self, name: str, *, by_length: bool = False, by: tuple[str, ...] = ALL_KINDS
    ) -> Shift | None:
        """Compare a field as if the mix of requests after had been there before; `None` = unknown.

        `by`: the columns that tell kinds of requests apart; `by_length`: so does their length.
        """
        both = values_at_same_mix(self.before, self.after, name, by_length=by_length, by=by)
        if both is None:
            return None
        return self._sure(changes.shift(both[0], self.before.t, both[1], self.after.t))

    @cached_property
    def moved(self) -> tuple[str, ...]:
        """The names of the metrics that rose beyond chance."""
        found = [name for name in METRICS if self.up(name)]
        whole = self.turn("e2e_s")
        if "e2e_s" not in found and whole is not None and whole.rose(_FLOOR * whole.before_p50):
            found.append("e2e_s")  # tool time is part of turns, not of requests
        return tuple(found)

    @memoized
    def explained_by(self, name: str, by: str) -> float | None:
        """Return the share of a field's rise that a change of another field accounts for.

        Of its p95 or median, whichever rose more; `None` = neither rose, or too little is known.
        """
        found = self.row(name)
        if found is None:
            return None
        tail = found.after_p95 * found.before_p50 >= found.after_p50 * found.before_p95
        percent = 95 if tail else 50
        low, high = (getattr(found, f"{side}_p{percent}") for side in ("before", "after"))
        if high <= low:
            return None
        fields = ((self.before, name), (self.before, by), (self.after, by))
        samples = (side.sampled(side.number(one)) for side, one in fields)
        expected = expected_percentile(percent, *samples)
        return None if expected is None else (expected - low) / (high - low)

    @memoized
    def local(self, column: str, name: str) -> Local | None:
        """Return the one value of a column whose requests rose in a field; others' did not."""
        values = self._values(column)
        if len(values) < 2:  # with one value there is no elsewhere
            return None
        found = None
        for value in values:
            inside = self._row_with(name, column, value)
            if inside is None or not inside.rose(self.floor(name)):
                continue
            if found is None or inside.change > found[1].change:
                found = (value, inside)
        if found is None:
            return None
        value, inside = found
        outside = self._row(name, ("but", column, value), lambda side: ~side.where(column, value))
        if outside is None or max(outside.change, 0.0) > _ELSEWHERE * inside.change:
            return None
        traffic = float(self.after.where(column, value).mean())
        return Local(column, value, traffic)

    @memoized
    def of_replica(self, name: str) -> Evidence:
        """Return the evidence of one engine: of its own requests and signals."""
        before, after = (replace(side, rows=side.rows.take(side.where("replica", name)), _memo={})
                         for side in (self.before, self.after))  # fmt: skip
        signals = self.signals.take(self.signals.instance.where(name))
        return replace(self, before=before, after=after, signals=signals, _shifts={})

    def _row_with(self, name: str, column: str, value: str) -> Shift | None:
        return self.row_among(name, (column, value), lambda side: side.where(column, value))

    @memoized
    def rising_values(self, column: str, name: str) -> tuple[list[str], list[str]] | None:
        """Return the values of a column that rose in a field, and those that did not."""
        found = {value: self._row_with(name, column, value) for value in self._values(column)}
        known = {value: one for value, one in found.items() if one is not None}
        if len(known) < 2:
            return None
        most = max(one.change for one in known.values())
        floor = self.floor(name)
        rose = [v for v, one in known.items() if one.rose(floor)]
        calm = [v for v, one in known.items() if one.change <= max(floor, 0.2 * most)]
        return rose, calm

    def _values(self, column: str) -> list[str]:
        words = self.after.rows.words[column]
        counts = np.bincount(words.codes[words.codes >= 0], minlength=len(words.names))
        order = np.argsort(-counts, kind="stable")[:_MAX_VALUES]
        return [words.names[i] for i in order if counts[i] >= MIN_COUNT]

    def new_values(self, column: str) -> list[str]:
        """Return the values of a column that a tenth of the requests have now, none before."""
        before, after = (side.rows.words[column] for side in (self.before, self.after))
        known = after.codes[after.codes >= 0]
        if not len(known) or not (before.codes >= 0).any():
            return []
        old = {before.names[code] for code in np.unique(before.codes) if code >= 0}
        counts = np.bincount(known, minlength=len(after.names))
        found = [n for i, n in enumerate(after.names) if counts[i] >= _NEW_SHARE * len(known)]
        return [name for name in found if name not in old]

    @cached_property
    def served(self) -> Window:
        """The window after, extended for signals until its last request was answered.

        Only if no requests came later (`ongoing`), so that the signals are about these requests.
        """
        window = self.after.window
        known = finite(self.after.ends)
        if not self.ongoing or not len(known):
            return window
        return Window(window.start, max(window.end, float(known.max())))

    def has(self, signal: str) -> bool:
        """Return whether any instance reported this signal in the window after."""
        return any(len(one.within(self.served).t) for one in self.series(signal).values())

    @memoized
    def gauge(self, signal: str) -> Moved | None:
        """Compare a gauge; `None` = not reported."""
        return self._compare_series(self.series(signal))

    @memoized
    def rate(self, signal: str, **labels: str) -> Moved | None:
        """Compare a counter's rate per second; `None` = not reported."""
        return self._compare_series(self.rates(signal, **labels))

    def counted(self, signal: str, **labels: str) -> tuple[float, float] | None:
        """Return a counter's increase before and after, over all instances."""
        found = self.counted_by(signal, **labels).values()
        return (sum(n for n, _ in found), sum(n for _, n in found)) if found else None

    def counted_in_equal_time(self, signal: str, **labels: str) -> tuple[float, float] | None:
        """Return a counter's increase before, scaled to the length of after, and after."""
        found = self.counted(signal, **labels)
        scale = self.after.window.seconds / max(self.before.window.seconds, 1e-9)
        return found and (found[0] * scale, found[1])

    @property
    def ended(self) -> tuple[float, float] | None:
        """Requests that engines ended before and after, by their count; `None` = not counted."""
        return next((n for name in ENDED if (n := self.counted(name)) is not None), None)

    def counted_by(self, signal: str, **labels: str) -> Mapping[str, tuple[float, float]]:
        """Return a counter's increase before and after, by instance."""
        windows = (self.before.window, self.after.window)
        return {
            name: (count_in([one], windows[0]), count_in([one], windows[1]))
            for name, one in self.rates(signal, **labels).items()
        }

    @memoized
    def other_clients(self, signal: str) -> OtherClients | None:
        """Return the tokens that engines make for clients without rows, if more than before."""
        if self.of_means:
            return None  # these rows are made from engines' counts
        moved, sides = self.rate(signal), (self.before, self.after)
        fleet = None if moved is None else moved.fleet
        return other_clients_work(signal, sides, self.rates(signal), self.counted(signal), fleet)

    @memoized
    def series(self, signal: str) -> Mapping[str, Series]:
        """Return a gauge's samples by instance."""
        return gauges(self.signals, signal)

    @memoized
    def rates(self, signal: str, **labels: str) -> Mapping[str, Series]:
        """Return a counter's rates by instance; a counter that falls was reset to 0."""
        return rates(self.signals, signal, labels)

    def _compare_series(self, series: Mapping[str, Series]) -> Moved | None:
        found = moved(series, self.before.window, self.served)
        if found is None or self.sure == changes.SURE:
            return found
        each = {name: replace(one, sure=self.sure) for name, one in found.instances.items()}
        return replace(found, fleet=replace(found.fleet, sure=self.sure), instances=each)

    @cached_property
    def instances(self) -> tuple[str, ...]:
        """Every engine that a row, an engine's signal or the facts name."""
        names = set(self.facts.instances)
        for side in (self.before, self.after):
            words = side.rows.words["replica"]
            names.update(words.names[i] for i in np.unique(words.codes[words.codes >= 0]))
        names.update(self.series("running"))
        return tuple(sorted(names))

    @property
    def sees_engines(self) -> bool:
        """Whether anything is known of engines: which there are, or what a request did in one."""
        names = self.signals.signal.names
        sampled = {names[code] for code in np.unique(self.signals.signal.codes)}
        signals = not all(name.startswith(("gateway", "gpu")) for name in sampled - {"up"})
        rows = any((self.after.number(name) > 0).any() for name in _ENGINE_FIELDS)
        return bool(self.instances) or signals or rows

    def fact(self, name: str, instance: str | None = None) -> Any:
        """Return a fact of one instance, or the value that all share; `None` = unknown."""
        if instance is not None:
            return self.facts.instances.get(instance, {}).get(name)
        values = [facts.get(name) for facts in self.facts.instances.values()]
        known = [value for value in values if value is not None]
        return known[0] if known and all(value == known[0] for value in known) else None

    @property
    def kv_connector(self) -> bool:
        """Whether facts or rows name a connector that loads KV blocks from elsewhere."""
        named = self.after.rows.words["kv_connector"].codes
        return self.fact("kv_connector") is not None or bool((named >= 0).any())

    def number_fact(self, name: str, instance: str | None = None) -> float | None:
        """Return a fact that is a number."""
        value = self.fact(name, instance)
        return float(value) if isinstance(value, int | float) and value is not True else None

    def events(self, *kinds: str) -> Sequence[Event]:
        """Return the events from shortly before the window after until its end."""
        since = max(self.before.window.end - 60, self.after.window.start - 900)
        return [
            event
            for event in self.facts.events
            if since <= event.t < self.after.window.end and (not kinds or event.kind in kinds)
        ]


def _share_of(stage: str, added: Mapping[str, float]) -> float:
    total = sum(max(one, 0.0) for one in added.values())
    return max(added.get(stage, 0.0), 0.0) / total if total > 0 else 0.0


def count_in(every: Sequence[Series], window: Window) -> float:
    """Return a counter's increase in a window, as far as it was recorded there."""
    return sum((_increase(one, window) for one in every), 0.0)


def _increase(one: Series, window: Window) -> float:
    """Add up the rates, each over the part of its interval between two scrapes in the window."""
    if len(one.t) < 2:  # an interval of unknown length
        return float(one.within(window).value.sum()) * window.seconds
    width = np.diff(one.t)
    since = np.maximum(one.t - np.concatenate([[np.median(width)], width]), window.start)
    inside = np.minimum(one.t, window.end) - since
    return float(one.value @ np.maximum(inside, 0.0))


def gather(
    rows: Columns, signals: Signals, facts: Facts, before: Window, after: Window
) -> Evidence:
    """Make the evidence of a case; each comparison is computed when a rule first needs it.

    Args:
        rows: all of the case; those in neither window are left out.
        signals: of the same time.
        facts: of the engines.
        before: the window to compare with.
        after: the window in question.
    """
    sides, turns = [], []
    for window in (before, after):
        inside = rows.within(window.start, window.end)
        turn = inside.words["operation"].where(TURN)
        with_tools = np.isfinite(inside.numbers["tool_wall_s"])
        sides.append(Side(inside.take(~turn) if not turn.all() else inside, window))
        turns.append(Side(inside.take(turn | with_tools), window))
    return Evidence(sides[0], sides[1], signals, facts, (turns[0], turns[1]))
