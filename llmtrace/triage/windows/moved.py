"""Say of each request whether it shows what moved: it is slow, it failed, or it is one more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.attribution.components import METRICS
from llmtrace.triage.comparison.outcomes import ENDINGS
from llmtrace.triage.comparison.p95_change import Compared
from llmtrace.triage.result import Metric, Result
from llmtrace.triage.windows.changepoint import log_likelihood
from llmtrace.triage.windows.search_rows import Look

_SHARES: Final = (0.5, 0.8, 0.95)  # of the requests before, that are below a bound
_TICKS: Final = 4  # of a clock for each request, among which requests are counted
_AS_CLEAR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Moved:
    """A metric, `errors`, `cancelled` or `traffic`, and which requests show that it moved.

    Attributes:
        t: when requests began, unix seconds, ascending.
        known: when each had shown it or not: its first token came, or it ended.
        clear: how much likelier both windows are if the share that shows it changed, a logarithm.
        sooner: the same of lower bounds, which a gradual rise crosses first.
    """

    metric: str
    up: bool
    t: Floats
    known: Floats
    shows: Mask
    clear: float = 0.0
    sooner: tuple[Mask, ...] = ()

    def of(self, window: Window) -> tuple[float, float]:
        """Return how many requests of a window show it, and how many there are."""
        first, last = np.searchsorted(self.t, (window.start, window.end))
        return float(np.count_nonzero(self.shows[first:last])), float(last - first)


def what_moved(look: Look, result: Result, compared: Mapping[Metric, Compared]) -> list[Moved]:
    """Return what moved beyond chance, the clearest first.

    Of two that are nearly as clear it is the first token: what takes until the end of a response
    is slow for requests, too, that began before.
    """
    t = look.rows.start / 1e9
    ended = t + np.nan_to_num(look.rows.numbers["e2e_s"])
    broken = [name for name in ENDINGS if name in result.moved]
    about = next((name for name in METRICS if name == result.metric), METRICS[0])
    down = result.significant and compared[about].change.grew[0] < 0 and not broken
    outcome = look.rows.words["outcome"]
    found = [Moved(name, up=True, t=t, known=ended, shows=outcome.where(*ENDINGS[name]))
             for name in broken]  # fmt: skip
    if result.verdict == "traffic":
        end = max(look.span.end, look.chosen.after.end)  # no request need be in the window after
        both = np.append(t, np.linspace(look.span.start, end, _TICKS * len(t) + 2))
        order = np.argsort(both, kind="stable")
        t = both[order]
        requests = Moved("traffic", up=True, t=t, known=t, shows=order < len(look.rows))
        found = [requests, replace(requests, up=False, shows=~requests.shows)]
    for name in METRICS:
        rose = compared[name].change.grew[0] > 0
        alone = name == result.metric and look.chosen.found is not None and not found
        if alone or (name in result.moved and rose is not down):
            found += _of_metric(look, name, up=not down)
    found = [_with_clear(one, look.chosen.before, look.chosen.after) for one in found]
    most = max((one.clear for one in found), default=0.0)
    return sorted(
        (one for one in found if one.clear > 0),
        key=lambda one: (one.metric == "ttft" and one.clear >= _AS_CLEAR * most, one.clear),
        reverse=True,
    )


def _of_metric(look: Look, name: Metric, *, up: bool) -> list[Moved]:
    """Return which requests are beyond the bound that tells both windows apart best."""
    one, chosen = look.of(name), look.chosen
    before, after = (
        one.value[(one.t >= window.start) & (one.t < window.end)]
        for window in (chosen.before, chosen.after)
    )
    if not before.size or not after.size:
        return []
    shares = np.array(_SHARES) if up else 1 - np.array(_SHARES)
    both = (np.quantile(np.maximum(side, 1e-9), _SHARES) for side in (before, after))
    bounds = (*np.quantile(before, shares), *np.sqrt(np.multiply(*both)))
    masks = [one.value > bound if up else one.value < bound for bound in sorted(bounds)]
    waited = one.value if name == "ttft" else look.rows.numbers["e2e_s"][one.index]
    known = one.t + np.nan_to_num(waited)
    found = [
        _with_clear(Moved(name, up, one.t, known, mask), chosen.before, chosen.after)
        for mask in masks
    ]
    best = max(range(len(found)), key=lambda k: found[k].clear)
    return [replace(found[best], sooner=tuple(masks[:best] if up else ()))]


def _with_clear(one: Moved, before: Window, after: Window) -> Moved:
    k, n = np.array([one.of(before), one.of(after)]).T
    if not n.all() or k[1] / n[1] <= k[0] / n[0]:
        return one
    apart = log_likelihood(k, n).sum() - log_likelihood(k.sum(), n.sum())
    return replace(one, clear=float(apart))
