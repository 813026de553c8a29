"""Random budgets, most of which do not add up."""

from __future__ import annotations

from hypothesis import strategies as st

from llmtrace.budget import Budget
from llmtrace.core.stages import STAGES

ms = st.integers(1, 5_000).map(lambda n: n / 1000)
budgets = st.builds(
    Budget,
    total_s=st.none() | ms,
    ttft_s=st.none() | ms,
    tpot_s=st.none() | st.integers(1, 200).map(lambda n: n / 1000),
    turn_ttft_s=st.none() | st.integers(1, 5000).map(lambda n: n / 1000),
    tokens=st.none() | st.integers(1, 500),
    stages_s=st.dictionaries(st.sampled_from(STAGES), ms),
    buffer_s=st.just(0.0) | ms,
)
