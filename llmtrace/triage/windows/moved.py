"""Find which requests show that something moved: slow ones, failed ones, or additional ones."""

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
from llmtrace.triage.windows.search_rows import Search

_SHARES: Final = (0.5, 0.8, 0.95)  # quantiles of the window before that are tried as bounds
_TICKS: Final = 4  # of a regular clock, for each request, to count requests against
_ALMOST_AS_CLEAR: Final = 0.5  # of the highest log likelihood ratio


@dataclass(frozen=True, slots=True)
class Moved:
    """A metric, `errors`, `cancelled` or `traffic`, and which requests show that it moved.

    Attributes:
        up: whether it rose.
        t: when requests started, unix seconds, ascending.
        known: when it was known of each request whether it shows the change: when its first token
            came, or when it ended.
        shows: whether each request shows the change.
        log_ratio: log likelihood ratio of both windows, if the share of requests that show it
            changed, against no change.
        lower: `shows` for lower bounds, which a gradual rise crosses first.
    """

    metric: str
    up: bool
    t: Floats
    known: Floats
    shows: Mask
    log_ratio: float = 0.0
    lower: tuple[Mask, ...] = ()

    def count_in(self, window: Window) -> tuple[float, float]:
        """Return how many requests of a window show it, and how many there are."""
        first, last = np.searchsorted(self.t, (window.start, window.end))
        return float(np.count_nonzero(self.shows[first:last])), float(last - first)


def what_moved(search: Search, result: Result, compared: Mapping[Metric, Compared]) -> list[Moved]:
    """Return everything that moved beyond chance, the clearest first.

    TTFT goes first if it is almost as clear as the clearest: a metric that takes until the end of
    the response is slow also for requests that started before the incident.
    """
    t = search.rows.start / 1e9
    ended = t + np.nan_to_num(search.rows.numbers["e2e_s"])
    broken = [name for name in ENDINGS if name in result.moved]
    metric = next((name for name in METRICS if name == result.metric), METRICS[0])
    down = result.significant and compared[metric].change.grew[0] < 0 and not broken
    outcome = search.rows.words["outcome"]
    found = [Moved(name, up=True, t=t, known=ended, shows=outcome.where(*ENDINGS[name]))
             for name in broken]  # fmt: skip
    if result.verdict == "traffic":
        found = _of_traffic(search, t)
    for name in METRICS:
        rose = compared[name].change.grew[0] > 0
        alone = name == result.metric and search.chosen.spike is not None and not found
        if alone or (name in result.moved and rose is not down):
            found += _of_metric(search, name, up=not down)
    found = [_with_log_ratio(one, search.chosen.before, search.chosen.after) for one in found]
    highest = max((one.log_ratio for one in found), default=0.0)
    return sorted(
        (one for one in found if one.log_ratio > 0),
        key=lambda one: (
            one.metric == "ttft" and one.log_ratio >= _ALMOST_AS_CLEAR * highest,
            one.log_ratio,
        ),
        reverse=True,
    )


def _of_traffic(search: Search, t: Floats) -> list[Moved]:
    """Return traffic that rose and traffic that fell.

    The share of requests among requests and ticks of a regular clock is their rate.
    """
    end = max(search.span.end, search.chosen.after.end)  # the window after may have no request
    both = np.append(t, np.linspace(search.span.start, end, _TICKS * len(t) + 2))
    order = np.argsort(both, kind="stable")
    both, is_request = both[order], order < len(t)
    more = Moved("traffic", up=True, t=both, known=both, shows=is_request)
    return [more, replace(more, up=False, shows=~is_request)]


def _of_metric(search: Search, name: Metric, *, up: bool) -> list[Moved]:
    """Return which requests are beyond the bound that separates both windows best."""
    metric, chosen = search.values_of(name), search.chosen
    before, after = (
        metric.value[(metric.t >= window.start) & (metric.t < window.end)]
        for window in (chosen.before, chosen.after)
    )
    if not before.size or not after.size:
        return []
    shares = np.array(_SHARES) if up else 1 - np.array(_SHARES)
    quantiles = (np.quantile(np.maximum(side, 1e-9), _SHARES) for side in (before, after))
    bounds = (*np.quantile(before, shares), *np.sqrt(np.multiply(*quantiles)))
    masks = [metric.value > bound if up else metric.value < bound for bound in sorted(bounds)]
    waited = metric.value if name == "ttft" else search.rows.numbers["e2e_s"][metric.index]
    known = metric.t + np.nan_to_num(waited)
    found = [
        _with_log_ratio(Moved(name, up, metric.t, known, mask), chosen.before, chosen.after)
        for mask in masks
    ]
    best = max(range(len(found)), key=lambda i: found[i].log_ratio)
    return [replace(found[best], lower=tuple(masks[:best] if up else ()))]


def _with_log_ratio(one: Moved, before: Window, after: Window) -> Moved:
    k, n = np.array([one.count_in(before), one.count_in(after)]).T
    if not n.all() or k[1] / n[1] <= k[0] / n[0]:
        return one
    ratio = log_likelihood(k, n).sum() - log_likelihood(k.sum(), n.sum())
    return replace(one, log_ratio=float(ratio))
