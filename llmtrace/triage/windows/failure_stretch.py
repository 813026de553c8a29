"""Find the stretch in which failures begin more often than otherwise.

A share is no level with noise around it: where nothing fails there is no noise, and where a
quarter fails there is much. So shares are compared by the likelihood of their counts. Failures
that follow one another count once: a burst is one event, however many requests it hit.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.windows.bins import bins_for
from llmtrace.triage.windows.changepoint import log_likelihood
from llmtrace.triage.windows.highest_stretch import MIN_INSIDE, Spike, memory_of

_FEWEST: Final = 5  # events in the stretch
# Of the log ratio of likelihoods, over the unrest and memory of the counts. Measured on 100 series
# each of 160 to 4,000 requests of which 0.3 to 20 % fail: independent failures never reach it,
# those that remember each other (AR(0.9)) in 3 % of series, and strongly (AR(0.98)) in 10 %.
_BAR: Final = 13.0


def stretch_of_failures(t: Floats, failed: Mask) -> Spike | None:
    """Return the stretch in which failures begin most clearly more often; `None` = nowhere."""
    first = ~np.append(False, failed[:-1])  # a request after a failure tells nothing of its own
    t, failed = t[first], failed[first]
    bins = bins_for(t) if len(t) else None
    if bins is None:
        return None
    place = np.searchsorted(t, bins.edges)
    n = np.diff(place).astype(np.float64)
    k = np.diff(np.append(0.0, np.cumsum(failed))[place])
    ratio, i, j = _likeliest(k, n)
    if k[i:j].sum() < _FEWEST:
        return None
    usual = np.full(len(n), (k.sum() - k[i:j].sum()) / (n.sum() - n[i:j].sum()))
    usual[i:j] = k[i:j].sum() / n[i:j].sum()
    off = k - n * usual
    expected = float((n * usual * (1 - usual)).sum())
    if expected <= 0:
        unrest = memory = 1.0  # all of them inside, none of them outside
    else:
        free = max(len(n) - 3, 1)
        unrest = max(float((off**2).sum()) / expected * len(n) / free, 1.0)
        memory = memory_of(off / np.sqrt(np.maximum(n, 1.0)))
    end = None if j == len(n) else float(bins.edges[j])
    return Spike(float(bins.edges[i]), end, bins.width, ratio / unrest / memory / _BAR)


def _likeliest(k: Floats, n: Floats) -> tuple[float, int, int]:
    """Return the stretch that makes the counts likeliest, and the log ratio of likelihoods."""
    reached_k, reached_n = np.append(0.0, np.cumsum(k)), np.append(0.0, np.cumsum(n))
    low, high = np.triu_indices(len(reached_k), 1)
    inside, of = reached_k[high] - reached_k[low], reached_n[high] - reached_n[low]
    total, every = float(k.sum()), float(n.sum())
    fits = (of >= MIN_INSIDE) & (every - of >= MIN_INSIDE)
    if not fits.any():
        return 0.0, 0, 0  # nearly all requests are of one moment
    low, high, inside, of = low[fits], high[fits], inside[fits], of[fits]
    rest, others = total - inside, every - of
    ratio = log_likelihood(inside, of) + log_likelihood(rest, others)
    ratio = np.where(inside / of > rest / others, ratio, -np.inf)
    best = int(np.argmax(ratio))
    whole = float(log_likelihood(np.array([total]), np.array([every]))[0])
    return max(float(ratio[best]) - whole, 0.0), int(low[best]), int(high[best])
