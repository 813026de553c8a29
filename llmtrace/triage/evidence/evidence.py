"""Collect the facts for and against causes: changes of rows, signals and facts between windows.

`Evidence` has what rules of causes need: whether a stage, a gauge or a counter's rate moved,
where, and among which requests. Every value is measured or `None`: a signal that was not reported
is not a signal that stayed at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

import numpy as np

from llmtrace.core.row import TURN
from llmtrace.dataset.case import Event, Facts, Signals, Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.evidence import changes
from llmtrace.triage.evidence.changes import MIN_COUNT, Share, Shift, foreseen, share
from llmtrace.triage.evidence.kinds import at_mix
from llmtrace.triage.evidence.other_clients import ENDED, Beside, more_beside
from llmtrace.triage.evidence.request_rates import Arrivals, Counted, stretches_of
from llmtrace.triage.evidence.signals import Moved, Series, gauges, means, moved, rates
from llmtrace.triage.evidence.window_rows import Side

METRICS: Final = ("ttft_s", "tpot_s", "e2e_s")
TTFT_STAGES: Final = ("network", "gateway", "queue", "prefill", "first_chunk", "unattributed")
PACE_STAGES: Final = ("decode", "render")
ENGINE_STAGES: Final = ("queue", "prefill", "first_chunk", "decode", "unattributed")

_MORE: Final = 1.15  # times as many requests a second are more load
# The smallest change that matters, of the wait that it is part of: there is no other yardstick
# that fits a model on a laptop and one on eight GPUs alike.
_FLOOR: Final = 0.04
_TINY: Final = 1e-12  # of the largest value: a smaller step is what rounding leaves
_SURELY_MORE: Final = 3.0  # standard errors
_FAR_MORE: Final = 1.8  # times as many requests a second: far more than it varies
_PART: Final = 0.1  # of what the metric grew by: less is not its cause
_ALONE: Final = 0.5  # of a typical wait before: felt by itself, whatever else happened
_PER_TOKEN: Final = frozenset({"tpot_s", "wait_per_token_s"})
_AS_LONG: Final = 1.3
_COUNTED: Final = {"queue_s": "queue", "prefill_s": "prefill"}
# What stands for a ratio where an engine reports only that, by the counter below it.
_RATIOS: Final = {
    "spec_drafted": ("spec_accept_ratio", "spec_accept_length"),
    "prefix_queries": ("prefix_hit_ratio",),
}
_OF_ENGINES: Final = ("queue_s", "prefill_s", "spec_drafted", "first_chunk_kv_transfer_s")
_AFTER_FIRST: Final = ("decode", "render", "tool", "max_gap", "e2e", "held")

_FEW_STRETCHES: Final = 3  # that say how far one more may be
_SMALL: Final = 0.01
_TOGETHER: Final = 4.0  # requests of one batch that end together say as much as one
_SAME_BATCH: Final = 0.01
_MAX_VALUES: Final = 24  # of a column, when looking where something is
_WORTH_A_WORD: Final = 0.1  # of the requests
_FEW_COUNTED: Final = 20.0  # of which no ratio is known
_ELSEWHERE: Final = 0.35  # the rest moves by less than this share, or it is not local
_T = TypeVar("_T")
_Of = TypeVar("_Of", bound=Callable[..., Any])  # a function of `Evidence`, or a method


@dataclass(frozen=True, slots=True)
class Ratio:
    """One counter over another, before and after: hits over queries, accepted over drafted."""

    before: float
    after: float
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """One value of a column whose rows rose by more than all the others'."""

    column: str
    value: str
    traffic: float

    def __str__(self) -> str:
        return f"{self.column}={self.value} ({100 * self.traffic:.0f} % of requests)"


def kept(make: _Of) -> _Of:
    """Return a function of evidence that works out what it returns once for the same arguments."""

    @wraps(make)
    def once(e: Evidence, *args: Any, **given: Any) -> Any:
        return e.once((make, *args, *sorted(given.items())), lambda: make(e, *args, **given))

    return cast("_Of", once)


@dataclass(frozen=True)
class Evidence:
    """Both windows of an incident, with its signals and facts.

    Attributes:
        metric: the row's field the triage is about (`ttft_s`, ...); `None` = whichever moved.
        contributions: signed seconds by stage, where they were worked out.
        ongoing: whether the data end with the window after.
        of_means: whether a row is no request, but the means of as many as its weight says.
        coarse: whether there are too few requests to see that nothing moved.
        risen: the metrics that rose by the verdict: no rule sees that they did not.
        searched: whether a search took this time, for it is the most unusual there is.
        sure: from how many standard errors on a change is beyond chance.
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
    coarse: bool = False
    risen: frozenset[str] = frozenset()
    searched: bool = False
    sure: float = changes.SURE
    _kept: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, key: Any, make: Callable[[], _T]) -> _T:
        """Return what `make` makes, made once for each key."""
        if key not in self._kept:
            self._kept[key] = make()
        return cast("_T", self._kept[key])

    def _at_bar(self, found: Shift | None) -> Shift | None:
        return found and replace(found, sure=self.sure)

    # --- rows -------------------------------------------------------------------------------

    @kept
    def row(self, name: str) -> Shift | None:
        """Compare a field of the requests; `None` where too few rows know it.

        Where engines keep their queue and prefill to themselves but for sums and counts, these
        speak for the requests.
        """
        return self._row(name, None) or self._of_engines(name)

    def _of_engines(self, name: str) -> Shift | None:
        return None if self.of_means or name not in _COUNTED else self.engines_mean(_COUNTED[name])

    @kept
    def engines_mean(self, name: str) -> Shift | None:
        """Compare the means, between scrapes, of a duration that engines count themselves."""
        found = means(self.signals, name).values()
        sides = [[one.within(window) for one in found]
                 for window in (self.before.window, self.served)]  # fmt: skip
        if not all(sides):
            return None
        b, b_t, a, a_t = (np.concatenate([getattr(one, part) for one in side])
                          for side in sides for part in ("value", "t"))  # fmt: skip
        moved = changes.shift(b, b_t, a, a_t, of_means=True) or changes.shift_of_samples(b, a)
        return moved and replace(moved, source="engines' means", sure=self.sure)

    def part_of_engines(self) -> float | None:
        """Return how much of what a response takes longer engines see themselves, by means.

        Of the time to the first token, or else of the whole response; `None` = not counted.
        """
        for name in ("ttft", "e2e"):
            mine, theirs = self._row(f"{name}_s", None), self.engines_mean(name)
            if mine is not None and theirs is not None and mine.mean_change > 0:
                return theirs.mean_change / mine.mean_change
        return None

    def row_among(self, name: str, key: Any, mask: Callable[[Side], Mask]) -> Shift | None:
        """Compare a field among the requests of a mask; `key` identifies the mask."""
        return self.once(
            ("among", name, key), lambda: self._row(name, (mask(self.before), mask(self.after)))
        )

    def computed(self, name: str) -> Shift | None:
        """Compare a field among the requests that no response cache has answered."""
        return self.row_among(name, "computed", lambda side: ~(side.number("cache_hit") > 0))

    def _row(self, name: str, masks: tuple[Mask, Mask] | None) -> Shift | None:
        sides = []
        for i, side in enumerate((self.before, self.after)):
            values, t = side.some(side.number(name)), side.some(side.t)
            if masks is not None:
                inside = side.some(masks[i])
                values, t = values[inside], t[inside]
            sides += [values, t]
        # Tokens are counted when they are made, and not with the requests that ended meanwhile.
        return self._at_bar(changes.shift(*sides, of_means=self.of_means and name.endswith("_s")))

    @kept
    def turn(self, name: str) -> Shift | None:
        """Compare a field of the turns, or of requests where these have the tool times."""
        before, after = self.turns
        return self._at_bar(
            changes.shift(before.number(name), before.t, after.number(name), after.t)
        )

    @cached_property
    def prefill_at_same(self) -> float | None:
        """How many times as long a prefill takes for as many computed tokens; `None` = unknown.

        Between requests alike in them, or else a token by engines' means.
        """
        b, b_by, a, a_by = (side.some(side.number(one)) for side in (self.before, self.after)
                            for one in ("prefill_s", "computed_tokens"))  # fmt: skip
        found, mean = changes.matched(b, b_by, a, a_by), self.engines_mean("prefill")
        tokens = self.row("computed_tokens")
        if found is not None or not mean or not tokens or min(
                mean.before_mean, tokens.before_mean, tokens.after_mean) <= 0:  # fmt: skip
            return found
        longer = tokens.after_mean / tokens.before_mean
        alike = 1 / _AS_LONG <= longer <= _AS_LONG  # no prefill is as long as its prompt
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
        """Return how many requests the rows after of a mask stand for."""
        return float(self.after.rows.weights[mask].sum() if self.of_means else mask.sum())

    @property
    def times_the_tokens(self) -> float | None:
        """How many times as many tokens are computed a second; `None` = not reported."""
        known = [one for one in map(self.row, ("computed_tokens", "output_tokens")) if one]
        before, after = self.request_rate
        before *= sum(one.before_mean for one in known)
        return after * sum(one.after_mean for one in known) / before if before > 0 else None

    @property
    def request_rate(self) -> tuple[float, float]:
        """Requests a second, before and after."""
        return self.arrivals().before.rate, self.arrivals().after.rate

    @kept
    def arrivals(self, **group: str) -> Arrivals:
        """Return when requests came: all, or those of which a column has this value."""
        found = []
        for side in (self.before, self.after):
            mine = np.ones(len(side), bool)
            for column, value in group.items():
                mine &= side.where(column, value)
            found.append(Counted(side.window, side.t[mine], side.rows.weights[mine]))
        return Arrivals(*found)

    @cached_property
    def more_requests(self) -> bool:
        """Whether clearly more requests come than before, beyond their usual unrest."""
        before, after = self.request_rate
        return after * self._arriving >= _MORE * before and self.arrivals().z >= _SURELY_MORE

    @property
    def _arriving(self) -> float:
        """Share of the time of service in which requests came: a crowd served late is no load."""
        return self.after.window.seconds / max(self.served.seconds, 1e-9)

    @cached_property
    def load_per_engine(self) -> tuple[float, float] | None:
        """Requests a second to a typical engine, before and after; `None` = no row names one."""
        return None if self._loads is None else (self._loads[0][0], self._loads[1][0])

    @cached_property
    def _loads(self) -> list[tuple[float, float]] | None:
        """Of both windows: requests a second to a typical engine, and the rows that say so."""
        found = []
        for side in (self.before, self.after):
            codes = side.rows.words["replica"].codes
            named = codes >= 0
            counts = np.bincount(codes[named])
            if counts.max(initial=0) < MIN_COUNT:
                return None
            # One that gets little is there all the same, and one that gets nothing more is not.
            late = named & (side.t >= side.window.start + side.window.seconds / 2)
            there = np.bincount(codes[late], minlength=len(counts)) > 0
            there = there if there.any() else counts > 0
            requests = np.bincount(codes[named], side.rows.weights[named])
            rate = float(np.median(requests[there])) / max(side.window.seconds, 1e-9)
            each = requests / _TOGETHER if self.of_means else counts
            found.append((rate, max(float(np.median(each[there])), 1.0)))
        return found

    @cached_property
    def more_load(self) -> bool:
        """Whether a typical engine gets clearly more load: more requests, or fewer engines.

        Or others have it make more tokens than rows tell of.
        """
        if self.beside("tokens_out") is not None:
            return True
        if self._loads is None:
            return self.more_requests
        (before, before_n), (after, after_n) = self._loads
        error = math.sqrt(1 / before_n + 1 / after_n)
        after *= self._arriving
        return after >= _MORE * before and math.log(after / before) >= 3 * error

    @cached_property
    def rather_longer(self) -> bool:
        """Whether responses got longer by more than requests got more."""
        before, after = self.load_per_engine or self.request_rate
        tokens = self.computed("output_tokens")
        return tokens is not None and tokens.after_mean * before > after * tokens.before_mean

    @cached_property
    def is_burst(self) -> bool:
        """Whether far more requests come, but no more than in stretches of the time before."""
        low, high = self.request_rate
        return high >= _FAR_MORE * low and self.arrivals().stretches_z < changes.STANDS_OUT

    # --- what moved -------------------------------------------------------------------------

    def floor(self, name: str) -> float:
        """Return the smallest change of a duration that matters: of the wait it is part of."""
        whole = "ttft_s"
        if name in _PER_TOKEN:
            whole = "tpot_s"
        elif name.startswith(_AFTER_FIRST):
            whole = "e2e_s"
        found = self.row(whole) or self.row("e2e_s")
        least = 0.0 if found is None else _FLOOR * found.before_p50
        return max(least, self._step(name))

    @kept
    def _step(self, name: str) -> float:
        """Return more than one step of what comes in whole milliseconds, or the like.

        A median that moves by one step may have moved by nothing.
        """
        both = np.concatenate([side.number(name) for side in (self.before, self.after)])
        values = np.unique(both[np.isfinite(both)])
        step = float(np.diff(values).min()) if len(values) > 2 else 0.0
        if step <= _TINY * np.abs(values).max(initial=0.0):
            return 0.0
        on_steps = np.allclose(values / step, np.rint(values / step), atol=0.01)
        return 1.5 * step if on_steps else 0.0

    def up(self, name: str, relative: float = 0.1) -> bool | None:
        """Return whether a field of the requests rose; `None` = not known."""
        found, floor = self.row(name), self.floor(name)
        if found is None:
            return None
        known = name in self.risen and found.leans(floor, relative)
        return known or found.rose(floor, relative)

    def rising(self, *names: str) -> bool | None:
        """Return whether one of these fields rose; `None` where too little is known to see it."""
        if any(self.up(name) for name in names):
            return True
        known = [(name, one) for name in names if (one := self.row(name)) is not None]
        leans = any(one.leans(self.floor(name)) for name, one in known)
        return None if (leans and self.coarse) or not known else False

    def gate(self, *stages: str) -> bool | None:
        """Return whether one of these stages rose and carries part of the change.

        `None` where none of them is reported.
        """
        known = [stage for stage in stages if self.row(f"{stage}_s") is not None]
        felt = [self._felt(stage) for stage in known]
        # The time of a stage that is not reported is in what is not attributed.
        if any(felt) or (len(known) < len(stages) and self._felt("unattributed")):
            return True
        return None if None in felt or not known else False

    def _felt(self, stage: str) -> bool | None:
        """Return whether a stage rose for many, or by so much for some that the mean shows it.

        And holds a part of the time added, or would be felt if nothing else had happened. `None`
        where it rose by what matters, and there are too few requests to see that it did.
        """
        found = self.row(f"{stage}_s")
        if found is None:
            return False
        if stage == "decode" and self.up("wait_per_token_s"):
            return True  # responses are of all lengths, and hide it
        if stage in TTFT_STAGES or self.metric == "e2e_s":
            part = self.part_of_metric(f"{stage}_s")
            if part is not None and part < _PART and self._alone(stage) < _ALONE:
                return False
        carried, alone = self.carried(stage), self._alone(stage)
        floor = self.floor(f"{stage}_s")
        if (found.rose(floor) and (carried >= 0.1 or alone >= 0.1)) or (
            found.grew(floor) and (carried >= 0.3 or alone >= 0.3)
        ):
            return True
        if not found.leans(floor) or max(carried, alone) < 0.1:
            return False
        # That its whole rose is sure, and that most of it is in this stage is arithmetic.
        whole = self.up("ttft_s" if stage in TTFT_STAGES else "tpot_s")
        if whole and carried >= _ALONE:
            return True
        return None if self.coarse else False

    def _alone(self, stage: str) -> float:
        """Return what a stage grew by, on average, as a share of a typical wait before."""
        usual, added = (
            self.row("decode_s" if stage in PACE_STAGES else "ttft_s"),
            self._added(stage),
        )
        if usual is None:
            return 0.0
        return added / max(usual.before_p50, 1e-9)

    def felt_alone(self, name: str) -> bool:
        """Return whether a wait grew by so much that it is felt, whatever else happened."""
        return self._alone(name.removesuffix("_s")) >= _ALONE

    def carried(self, stage: str) -> float:
        """Return a stage's share of all added time, by means; 0 to 1.

        Means add up, percentiles do not. Stages that got shorter count as nothing. Time to the
        first chunk and time after it are weighed apart: outputs are long, and would drown it.
        """
        first = stage in TTFT_STAGES
        group = TTFT_STAGES if first else PACE_STAGES
        shares = [_share_of(stage, {one: self._added(one) for one in group})]
        if first and stage in self.contributions:
            # Of the p95 itself, where an attribution was made; what is per token is no share.
            shares.append(_share_of(stage, {one: self.contributions.get(one, 0) for one in group}))
        return max(shares)

    def part_of_metric(self, name: str) -> float | None:
        """Return a duration's share of what the metric in question grew by, by means.

        `None` where one is not known, or the metric did not grow, or is a time per token.
        """
        metric = self.metric if self.metric != "tpot_s" else None
        whole, part = self.row(metric or "ttft_s"), self.row(name)
        if whole is None or part is None or whole.after_mean <= whole.before_mean:
            return None
        return part.mean_change / whole.mean_change

    def _added(self, stage: str) -> float:
        found = self.row(f"{stage}_s")
        if found is None or stage != "unattributed":
            return 0.0 if found is None else found.mean_change
        # What only engines know is in there as well.
        theirs = (self.row(name) for name in _COUNTED)
        known = sum(max(one.mean_change, 0.0) for one in theirs if one is not None and one.source)
        return found.mean_change - known

    @kept
    def beyond_kind(self, name: str, *, by_length: bool = False) -> Shift | None:
        """Compare a field, as if the kinds of requests of after had been there before.

        `None` where too few know it, or their kind; with `by_length`, that is of a length, too.
        """
        both = at_mix(self.before, self.after, name, by_length=by_length)
        if both is None:
            return None
        return self._at_bar(changes.shift(both[0], self.before.t, both[1], self.after.t))

    @cached_property
    def moved(self) -> tuple[str, ...]:
        """The names of the metrics that rose beyond chance."""
        found = [name for name in METRICS if self.up(name)]
        whole = self.turn("e2e_s")
        if "e2e_s" not in found and whole is not None and whole.rose(_FLOOR * whole.before_p50):
            found.append("e2e_s")  # tools are in no request, but in the turn
        return tuple(found)

    @kept
    def mix_share(self, name: str, by: str) -> float | None:
        """Return how much of a field's rise is that requests differ in another field.

        Of its p95 or median, whichever rose more; `None` where neither did.
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
        expected = foreseen(percent, *(side.some(side.number(one)) for side, one in fields))
        return None if expected is None else (expected - low) / (high - low)

    def on_curve(self) -> float | None:
        """Return time per token after over what the batch size explains by itself.

        A line of time per token over `running` is fitted before; 1 = as fast as ever for a batch
        of this size. `None` where nothing is known of either, batches never differed, or the batch
        is far beyond any that was seen.
        """
        return self._curve[0]

    def slow_on_curve(self) -> float | None:
        """Return the same of what is slower than nearly all before, over that of such before.

        What makes some of them slow hides in a median. `None` also where hardly any is slow.
        """
        return self._curve[1]

    @cached_property
    def _curve(self) -> tuple[float | None, float | None]:
        both = (self.before, self.after)
        batches = [side.some(self._batch(side)) for side in both]
        times = [side.some(side.number("tpot_s")) for side in both]
        known = [np.isfinite(b) & np.isfinite(t) for b, t in zip(batches, times, strict=True)]
        if min(mask.sum() for mask in known) < 3 * MIN_COUNT:
            return None, None
        batch, time = batches[0][known[0]], times[0][known[0]]
        if batch.std() < 0.08 * max(float(batch.mean()), 1.0):
            return None, None
        cells = [np.median(np.c_[batch, time][part], axis=0)
                 for part in np.array_split(np.argsort(batch, kind="stable"), 8)]  # fmt: skip
        now, taken = batches[1][known[1]], times[1][known[1]]
        if float(np.median(now)) > 2.5 * max(float(batch.max()), 1.0):
            return None, None  # a line that far out is a guess
        x, y = np.array(cells).T
        if np.ptp(x) <= _SAME_BATCH * float(x.max()):
            return None, None  # a typical batch never differed
        slope, base = np.polyfit(x, y, 1)
        line = np.poly1d((max(slope, 0.0), base))
        expected = float(line(np.median(now)))
        middle = float(np.median(taken)) / expected if expected > 0 else None
        limit = np.quantile(time, 1 - changes.TAIL)
        slow = [(t / line(b))[t > limit] for b, t in ((batch, time), (now, taken))]
        if min(map(len, slow)) < MIN_COUNT or float(np.median(slow[0])) <= 0:
            return middle, None
        return middle, float(np.median(slow[1]) / np.median(slow[0]))

    def _batch(self, side: Side) -> Floats:
        """Requests running on each row's engine during it, from the gauge."""
        words = side.rows.words["replica"]
        middle = side.t + side.number("ttft_s") + side.number("decode_s") / 2
        found = np.full(len(side), np.nan)
        for name, series in self.series("running").items():
            here = words.where(name) if name in words.names else words.codes < 0
            inside = series.within(side.window)
            if len(inside.t) >= 2 and here.any():
                found[here] = np.interp(middle[here], inside.t, inside.value)
        return found

    # --- where ------------------------------------------------------------------------------

    @kept
    def local(self, column: str, name: str) -> Local | None:
        """Return the one value of a column whose requests rose while the others' did not."""
        values = self._values(column)
        if len(values) < 2:  # with one value there is no elsewhere
            return None
        found = None
        for value in values:
            inside = self._with(name, column, value)
            if inside is None or not inside.rose(self.floor(name)):
                continue
            if found is None or inside.change > found[1].change:
                found = (value, inside)
        if found is None:
            return None
        value, inside = found
        masks = ~self.before.where(column, value), ~self.after.where(column, value)
        outside = self._row(name, masks)
        if outside is None or max(outside.change, 0.0) > _ELSEWHERE * inside.change:
            return None
        traffic = float(self.after.where(column, value).mean())
        return Local(column, value, traffic)

    def _with(self, name: str, column: str, value: str) -> Shift | None:
        return self.row_among(name, (column, value), lambda side: side.where(column, value))

    @kept
    def uneven(self, column: str, name: str) -> tuple[list[str], list[str]] | None:
        """Return the values of a column whose requests rose in this field, and those that did not.

        `None` where fewer than two values have requests enough.
        """
        found = {value: self._with(name, column, value) for value in self._values(column)}
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

    def new_words(self, column: str) -> list[str]:
        """Return a column's words of a tenth of the requests after or more, and of none before."""
        before, after = (side.rows.words[column] for side in (self.before, self.after))
        known = after.codes[after.codes >= 0]
        if not len(known) or not (before.codes >= 0).any():
            return []
        old = {before.names[code] for code in np.unique(before.codes) if code >= 0}
        counts = np.bincount(known, minlength=len(after.names))
        found = [n for i, n in enumerate(after.names) if counts[i] >= _WORTH_A_WORD * len(known)]
        return [name for name in found if name not in old]

    # --- signals ----------------------------------------------------------------------------

    @cached_property
    def served(self) -> Window:
        """The window after, for signals: until the last of its requests was answered.

        Only where no request came later: then what engines report is about these.
        """
        window = self.after.window
        ends = self.after.t + self.after.number("e2e_s")
        known = ends[np.isfinite(ends)]
        if not self.ongoing or not len(known):
            return window
        return Window(window.start, max(window.end, float(known.max())))

    def has(self, signal: str) -> bool:
        """Return whether any instance reported this signal in the window after."""
        return any(len(one.within(self.served).t) for one in self.series(signal).values())

    @kept
    def gauge(self, signal: str) -> Moved | None:
        """Compare a gauge; `None` where it is not reported."""
        return self._both(self.series(signal))

    @kept
    def rate(self, signal: str, **labels: str) -> Moved | None:
        """Compare a counter's rate a second; `None` where it is not reported."""
        return self._both(self.rates(signal, **labels))

    def counted(self, signal: str, **labels: str) -> tuple[float, float] | None:
        """Return how often a counter counted before and after, all instances together."""
        found = self.counted_by(signal, **labels).values()
        return (sum(n for n, _ in found), sum(n for _, n in found)) if found else None

    def counted_in_as_long(self, signal: str, **labels: str) -> tuple[float, float] | None:
        """Return how often a counter counts in the time of the window after, before and after."""
        found = self.counted(signal, **labels)
        longer = self.after.window.seconds / max(self.before.window.seconds, 1e-9)
        return found and (found[0] * longer, found[1])

    @property
    def ended(self) -> tuple[float, float] | None:
        """How many requests engines ended before and after; `None` = they do not count them."""
        return next((n for name in ENDED if (n := self.counted(name)) is not None), None)

    def counted_by(self, signal: str, **labels: str) -> Mapping[str, tuple[float, float]]:
        """Return how often a counter counted before and after, by instance."""
        windows = (self.before.window, self.after.window)
        return {
            name: (_grown([one], windows[0]), _grown([one], windows[1]))
            for name, one in self.rates(signal, **labels).items()
        }

    @kept
    def beside(self, signal: str) -> Beside | None:
        """Return how many more of these tokens engines count than rows do; `None` = no more."""
        if self.of_means:
            return None  # these rows are made of what engines count
        moved, counted = self.rate(signal), self.counted(signal)
        fleet = None if moved is None else moved.fleet
        return more_beside(signal, (self.before, self.after), self.rates(signal), counted, fleet)

    @kept
    def ratio(self, above: str, below: str) -> Ratio | None:
        """Return one counter's growth over another's, of the fleet; `None` = not reported."""
        return self._ratio(above, below, _FEW_COUNTED, None)

    def worst_ratio(self, above: str, below: str) -> Ratio | None:
        """Return the ratio of the instance where it fell most."""
        high, low = self._counters(above, below)
        names = high.keys() & low.keys()
        found = [self._ratio(above, below, _FEW_COUNTED, name) for name in sorted(names)]
        known = [one for one in found if one is not None]
        return min(known, key=lambda one: one.after - one.before, default=None)

    def _counters(self, above: str, below: str) -> tuple[Mapping[str, Series], ...]:
        """Return the rates of two counters; of a ratio that is reported as such, it and 1."""
        high, low = self.rates(above), self.rates(below)
        gauge = next(filter(None, map(self.series, _RATIOS.get(below, ()))), {})
        if (high and low) or not gauge:
            return high, low
        return gauge, {name: Series(one.t, np.ones(len(one.t))) for name, one in gauge.items()}

    def _ratio(self, above: str, below: str, least: float, instance: str | None) -> Ratio | None:
        both = []
        for window in (self.before.window, self.after.window):
            sums = []
            for counted in self._counters(above, below):
                chosen = [one for origin, one in counted.items() if instance in (None, origin)]
                if not chosen:
                    return None  # what is not counted has not stayed at 0
                sums.append(_grown(chosen, window))
            if sums[1] < least:
                return None
            both.append(sums[0] / sums[1])
        return Ratio(both[0], both[1], instance)

    def ratio_z(self, above: str, below: str, instance: str | None) -> float | None:
        """Return how far a ratio after is from those of stretches before, as a z.

        `None` = not counted, or scraped too seldom to know any stretches.
        """
        window, now = self.before.window, self._ratio(above, below, 0.0, instance)
        count, longer = stretches_of(window, self.after.window)
        edges = np.linspace(window.start, window.end, count + 1).tolist()
        both = [
            [_grown([one for name, one in counted.items() if instance in (None, name)],
                    Window(*part)) for part in pairwise(edges)]
            for counted in self._counters(above, below)
        ]  # fmt: skip
        stretches = np.array([high / low for high, low in zip(*both, strict=True) if low > 0])
        if now is None or len(stretches) < _FEW_STRETCHES:
            return None
        return changes.one_more_z(stretches, now.after, _SMALL * abs(now.before), longer)

    @kept
    def series(self, signal: str) -> Mapping[str, Series]:
        """Return a gauge's samples by instance."""
        return gauges(self.signals, signal)

    @kept
    def rates(self, signal: str, **labels: str) -> Mapping[str, Series]:
        """Return a counter's rates by instance; a counter that falls was reset to 0."""
        return rates(self.signals, signal, labels)

    def _both(self, series: Mapping[str, Series]) -> Moved | None:
        found = moved(series, self.before.window, self.served)
        if found is None or self.sure == changes.SURE:
            return found
        each = {name: replace(one, sure=self.sure) for name, one in found.instances.items()}
        return replace(found, fleet=replace(found.fleet, sure=self.sure), instances=each)

    # --- facts ------------------------------------------------------------------------------

    @cached_property
    def instances(self) -> tuple[str, ...]:
        """Every engine that a row, a signal of engines or the facts name."""
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
        signals = not all(name.startswith(("gateway", "gpu")) for name in sampled)
        rows = any((self.after.number(name) > 0).any() for name in _OF_ENGINES)
        return bool(self.instances) or signals or rows

    def fact(self, name: str, instance: str | None = None) -> Any:
        """Return a fact of one instance, or the one that all instances share; `None` = unknown."""
        if instance is not None:
            return self.facts.instances.get(instance, {}).get(name)
        values = [facts.get(name) for facts in self.facts.instances.values()]
        known = [value for value in values if value is not None]
        return known[0] if known and all(value == known[0] for value in known) else None

    @property
    def kv_connector(self) -> bool:
        """Whether a fact or a row names what loads KV blocks of other engines or tiers."""
        named = self.after.rows.words["kv_connector"].codes
        return self.fact("kv_connector") is not None or bool((named >= 0).any())

    def number_fact(self, name: str, instance: str | None = None) -> float | None:
        """Return a fact that must be a number."""
        value = self.fact(name, instance)
        return float(value) if isinstance(value, int | float) and value is not True else None

    def events(self, *kinds: str) -> Sequence[Event]:
        """Return what was done from shortly before the window after, on."""
        since = max(self.before.window.end - 60, self.after.window.start - 900)
        return [
            event
            for event in self.facts.events
            if since <= event.t < self.after.window.end and (not kinds or event.kind in kinds)
        ]


def _share_of(stage: str, added: Mapping[str, float]) -> float:
    total = sum(max(one, 0.0) for one in added.values())
    return max(added.get(stage, 0.0), 0.0) / total if total > 0 else 0.0


def _grown(every: Sequence[Series], window: Window) -> float:
    """Mean rate times the window's length: samples at its edges do not count twice."""
    inside = (one.within(window).value for one in every)
    return sum((float(one.mean()) * window.seconds for one in inside if len(one)), 0.0)


def gather(
    rows: Columns, signals: Signals, facts: Facts, before: Window, after: Window
) -> Evidence:
    """Lay out a case for the rules; nothing is computed before a rule needs it.

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
