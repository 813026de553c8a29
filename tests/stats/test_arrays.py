"""Are our medians and percentiles numpy's?"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from llmtrace.stats.arrays import median, percentiles

_VALUES = st.floats(-1e9, 1e9) | st.integers(-3, 3).map(float)


@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 30)),
                     elements=_VALUES | st.just(float("nan"))))  # fmt: skip
def test_a_median_is_numpy_s_along_the_last_axis(values):
    """Unknown values included."""
    assert np.allclose(median(values), np.median(values, axis=-1), equal_nan=True)
    assert np.allclose(median(values[0]), np.median(values[0]), equal_nan=True)


@given(arrays.arrays(np.float64, st.integers(1, 60), elements=_VALUES), st.floats(0, 100))
def test_a_percentile_is_numpy_s(values, level):
    """Between two values it is interpolated."""
    found = percentiles(np.sort(values), 0, level, 100)

    assert np.allclose(found, np.percentile(values, [0, level, 100]), rtol=1e-9, atol=1e-6)
