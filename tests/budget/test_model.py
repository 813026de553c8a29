"""What does a budget limit, for whom, and do its limits become exact bounds?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from llmtrace.budget import DEFAULT, Budget, read_budget, read_budgets
from llmtrace.core.stages import STAGES
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.testing import make_row

limits = st.floats(1e-6, 1e6)


@given(st.dictionaries(st.sampled_from(STAGES), limits))
def test_every_limit_becomes_a_threshold(stages):
    """The bucket bounds are exactly the limits that were set."""
    budget = read_budget({"total": 3, "ttft": 1, "stages": stages})

    assert budget.thresholds_s() == {"e2e": 3.0, "ttft": 1.0, **stages}


def test_a_limit_for_each_token_is_a_threshold_too():
    """Time per output token has its own bound."""
    assert Budget(tpot_s=0.03).thresholds_s() == {"tpot": 0.03}
    assert Budget(turn_ttft_s=0.8).thresholds_s() == {"turn_ttft": 0.8}


def test_what_a_budget_allows_goes_by_its_name():
    """Allocations are shown by the budget's name, the total among them where there is one."""
    budget = Budget(name="chat", total_s=2.5, tpot_s=0.03, stages_s={"queue": 0.15})

    assert budget.allocations_s() == {"chat": {"queue": 0.15, "total": 2.5, "tpot": 0.03}}
    assert Budget(name="b").allocations_s() == {"b": {}}


def test_the_default_budget_spends_its_total():
    """The stages of the default budget and its buffer make up its total."""
    assert set(DEFAULT.stages_s) == set(STAGES)
    assert sum(DEFAULT.stages_s.values()) + DEFAULT.buffer_s == pytest.approx(DEFAULT.total_s)
    assert DEFAULT.stages_s["decode"] == pytest.approx(
        (DEFAULT.tpot_s or 0) * (DEFAULT.tokens or 0)
    )


def test_whom_a_budget_covers():
    """Names and patterns, for both labels; without any it is for all requests."""
    budget = read_budget({"model": ["llama-*", "gpt-4o"], "route": "chat"})

    assert budget.covers("llama-3", "chat")
    assert budget.covers("gpt-4o", "chat")
    assert not budget.covers("gpt-4o-mini", "chat")
    assert not budget.covers("llama-3", "batch")
    assert not budget.covers(None, "chat")
    assert Budget().covers(None, None)


def test_every_limit_of_several_is_a_bucket():
    """The metrics page counts exactly by each of them."""
    budgets = read_budgets({"budgets": [{"name": "a", "ttft": "333ms"}, {"name": "b", "ttft": 7}]})
    registry = CollectorRegistry()
    sink = PrometheusSink(registry=registry, thresholds_s=budgets.thresholds_s())
    sink.write(make_row())
    page = generate_latest(registry).decode()
    sink.close()

    for le in ("0.333", "7.0"):
        assert f'llmtrace_ttft_seconds_bucket{{le="{le}",' in page
