"""The two kinds of numpy arrays that statistics are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def finite(values: Floats) -> Floats:
    """Return the values that are known: neither NaN nor infinite."""
    known: Floats = values[np.isfinite(values)]
    return known
