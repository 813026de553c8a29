"""The two kinds of numpy arrays that statistics are made of, and what is often asked of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def finite(values: Floats) -> Floats:
    """Return the values that are known: neither NaN nor infinite."""
    known: Floats = values[np.isfinite(values)]
    return known


# numpy's own take several times as long for the few hundred values that a window has.


def median(values: Floats) -> Floats:
    """Return numpy's median along the last axis, which is not empty; NaN if a value is."""
    ordered = np.sort(values)  # NaN last
    size = ordered.shape[-1]
    middle = (ordered[..., (size - 1) // 2] + ordered[..., size // 2]) / 2
    return np.where(np.isnan(ordered[..., -1]), np.nan, middle)


def percentiles(ordered: Floats, *levels: float) -> list[float]:
    """Return numpy's percentiles of known values in ascending order."""
    found = []
    for level in levels:
        part, low = math.modf((len(ordered) - 1) * level / 100)
        value, above = ordered[int(low)], ordered[min(int(low) + 1, len(ordered) - 1)]
        found.append(float(value + (above - value) * part))
    return found
