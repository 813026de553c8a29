"""Find the stretch in which failures begin more often than in the rest.

A share is not a level with noise around it: where nothing fails there is no noise, and where a
quarter fails there is much. So shares are compared by the likelihood of their counts. Consecutive
failures count once: a burst is one event, however many requests it hits.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.windows.bins import bins_for
from llmtrace.triage.windows.changepoint import log_likelihood
from llmtrace.triage.windows.highest_stretch import MIN_REQUESTS, Spike, autocorrelation_time

_MIN_EVENTS: Final = 5  # in the stretch
# Threshold of the log likelihood ratio, after division by the overdispersion and autocorrelation
# of the counts. Measured on 100 series each of 160 to 4,000 requests of which 0.3 to 20 % fail:
# independent failures never reach it, autocorrelated ones in 3 % (AR(0.9)) and 10 % (AR(0.98)).
_THRESHOLD: Final = 13.0


def stretch_of_failures(t: Floats, failed: Mask) -> Spike | None:
    """Return the stretch in which failures begin more often, most clearly; `None` = none."""
    counted = ~np.append(False, failed[:-1])  # a request after a failure is not independent of it
    t, failed = t[counted], failed[counted]
    bins = bins_for(t) if len(t) else None
    if bins is None:
        return None
    place = np.searchsorted(t, bins.edges)
    n = np.diff(place).astype(np.float64)
    k = np.diff(np.append(0.0, np.cumsum(failed))[place])
    ratio, i, j = _likeliest(k, n)
    if k[i:j].sum() < _MIN_EVENTS:
        return None
    share = np.full(len(n), (k.sum() - k[i:j].sum()) / (n.sum() - n[i:j].sum()))
    share[i:j] = k[i:j].sum() / n[i:j].sum()
    residuals = k - n * share
    expected = float((n * share * (1 - share)).sum())
    if expected <= 0:
        overdispersion = autocorrelation = 1.0  # all fail inside, and none outside
    else:
        free = max(len(n) - 3, 1)
        overdispersion = max(float((residuals**2).sum()) / expected * len(n) / free, 1.0)
        autocorrelation = autocorrelation_time(residuals / np.sqrt(np.maximum(n, 1.0)))
    end = None if j == len(n) else float(bins.edges[j])
    score = ratio / overdispersion / autocorrelation / _THRESHOLD
    return Spike(float(bins.edges[i]), end, bins.width, score)


def _likeliest(k: Floats, n: Floats) -> tuple[float, int, int]:
    """Return the log likelihood ratio and the edges of the stretch with the clearest excess.

    `k` of the `n` requests of each bin failed.
    """
    cumulative_k, cumulative_n = np.append(0.0, np.cumsum(k)), np.append(0.0, np.cumsum(n))
    low, high = np.triu_indices(len(cumulative_k), 1)
    k_inside = cumulative_k[high] - cumulative_k[low]
    n_inside = cumulative_n[high] - cumulative_n[low]
    k_total, n_total = float(k.sum()), float(n.sum())
    fits = (n_inside >= MIN_REQUESTS) & (n_total - n_inside >= MIN_REQUESTS)
    if not fits.any():
        return 0.0, 0, 0  # nearly all requests started at the same moment
    low, high, k_inside, n_inside = low[fits], high[fits], k_inside[fits], n_inside[fits]
    k_outside, n_outside = k_total - k_inside, n_total - n_inside
    likelihood = log_likelihood(k_inside, n_inside) + log_likelihood(k_outside, n_outside)
    likelihood = np.where(k_inside / n_inside > k_outside / n_outside, likelihood, -np.inf)
    best = int(np.argmax(likelihood))
    no_change = float(log_likelihood(np.array([k_total]), np.array([n_total]))[0])
    return max(float(likelihood[best]) - no_change, 0.0), int(low[best]), int(high[best])
