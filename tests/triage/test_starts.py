"""Is a start of an engine seen, and what it costs, where no gauge or no request says it?

Each incident is made by hand.
"""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.dataset.case import Facts, signals_from
from llmtrace.dataset.columns import from_dicts
from llmtrace.triage.evidence.engine_starts import restarted, starts
from llmtrace.triage.evidence.evidence import Evidence, gather

from .incidents import AFTER, BEFORE, EVERY_S, Incident, quiet
from .test_evidence import samples

START = AFTER.start + 10
STANDS_S = 60.0


def slow_start(*, tokens: float = 0.0, waiting: float = 5.0) -> Incident:
    """One of three engines starts, and for a minute makes this many tokens a second."""
    made = quiet()
    until = START + STANDS_S
    made.gauges["started", "vllm-2"] = lambda t, _: START if t >= START else 1.6e9
    made.gauges["waiting", "vllm-2"] = lambda t, _: waiting * (START <= t < until)
    made.counters["tokens_out", "vllm-2"] = lambda t: tokens if START <= t < until else 500.0
    for row in made.after():
        if START <= row["start"] / 1e9 < until:
            row["first_chunk_s"] += until - row["start"] / 1e9
    made.forget_rows("replica")
    return made


def test_an_engine_that_makes_no_token_after_its_start_is_cold():
    """Requests wait for it, by its own count; which they are, none of them says."""
    found = slow_start().findings(metric="ttft_s", risen=frozenset({"ttft_s"}))

    assert next(iter(found)) == "cold_start"
    assert found["cold_start"].status == "confirmed"


@pytest.mark.parametrize("seen", [{"tokens": 500.0}, {"waiting": 0.0}])
def test_an_engine_that_works_or_for_which_nothing_waits_is_not_cold(seen):
    """It may start as slowly as it likes."""
    found = slow_start(**seen).findings(metric="ttft_s", risen=frozenset({"ttft_s"}))

    assert found["cold_start"].status == "unknown"


def counted(*, anew: bool, more: bool = False) -> Evidence:
    """Make the evidence of one engine whose counter grows, or falls to 0 in the window after."""
    times = np.arange(BEFORE.start, AFTER.end, EVERY_S)
    total = 500.0 * (times - BEFORE.start)
    total[(times >= START) & anew] -= total[times >= START][0]
    found = samples("tokens_out", total, instance="vllm-0")
    if more:
        found += samples("started", np.full(len(times), 1.6e9), instance="vllm-0")
    rows = [{"start": int((window.start + 5 * i) * 1e9), "ttft_s": 0.1, "replica": "vllm-0"}
            for window in (BEFORE, AFTER) for i in range(40)]  # fmt: skip
    return gather(from_dicts(rows), signals_from(found)[0], Facts(), BEFORE, AFTER)


def test_counters_that_begin_anew_are_a_restart():
    """No process counts on from what another one counted."""
    assert restarted(counted(anew=True)) == {"vllm-0": pytest.approx(START, abs=EVERY_S)}
    assert restarted(counted(anew=False)) == {}


def test_where_starts_are_reported_no_counter_says_more():
    """It may have been reset without one."""
    assert starts(counted(anew=True, more=True)) == {}
