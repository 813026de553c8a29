"""Does a suggested budget add up, is it true to the rows, and is what is said of it so?"""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmtrace.budget import read_budget
from llmtrace.budget.file import as_yaml
from llmtrace.budget_analysis.check import check
from llmtrace.budget_analysis.suggest import as_text, suggest
from llmtrace.core.errors import DataError
from llmtrace.core.stages import STAGES
from llmtrace.dataset.columns import from_dicts


def made(n=1200, seed=1, **changes):
    """Make rows: log-normal stages, decode by tokens.

    `name=None` = that stage is not reported; `name=seconds` = it always takes so long.
    """
    chance = np.random.default_rng(seed)

    def spread(median, sigma):
        return median * np.exp(chance.normal(0, sigma, n))

    tokens = np.maximum(2, spread(60, 0.5).astype(int))
    parts = {
        "network": spread(0.05, 0.4), "gateway": spread(0.012, 0.3), "queue": spread(0.06, 1.2),
        "prefill": spread(0.22, 0.5), "first_chunk": spread(0.02, 0.5),
        "decode": tokens * spread(0.02, 0.15), "render": spread(0.01, 0.6),
    }  # fmt: skip
    unsplit = np.zeros(n)
    for name, value in changes.items():
        if value is None:
            unsplit += parts.pop(name)
        else:
            parts[name] = np.full(n, value)
    whole = sum(parts.values()) + unsplit
    after = parts["decode"] + parts.get("render", 0)
    return from_dicts(
        {
            "start": 1_700_000_000 * 10**9 + i, "outcome": "success", "operation": "chat",
            "e2e_s": float(whole[i]), "ttft_s": float((whole - after)[i]),
            "unattributed_s": float(unsplit[i]), "output_tokens": int(tokens[i]),
            **{f"{name}_s": float(values[i]) for name, values in parts.items()},
        }
        for i in range(n)
    )  # fmt: skip


def test_what_is_dealt_out_adds_up():
    """Allocations and buffer are the total, to the microsecond, and pass the check."""
    found = suggest(made(), total_s=2.5, buffer=0.1)
    budget = found.budget

    assert sum(budget.stages_s.values()) + budget.buffer_s == pytest.approx(2.5, abs=1e-6)
    assert budget.buffer_s == pytest.approx(0.25, abs=1e-6)
    assert check(budget).problems == ()
    assert set(budget.stages_s) == set(STAGES)


def test_the_anatomy_is_that_of_the_request_at_the_quantile():
    """What is spent adds up to the p95, and is that of the requests near it."""
    rows = made(4000)
    found = suggest(rows)
    whole = rows.numbers["e2e_s"]
    near = np.abs(whole - np.quantile(whole, 0.95)) < 0.1

    assert sum(share.spent_s for share in found.shares) == pytest.approx(found.measured_s)
    assert found.measured_s == pytest.approx(np.quantile(whole, 0.95), rel=0.01)
    for share in found.shares:
        around = float(rows.numbers[f"{share.name}_s"][near].mean())
        assert share.spent_s == pytest.approx(around, rel=0.15, abs=0.005)


def test_the_stages_own_p95s_come_to_too_much():
    """Which is what the text says, with the figures of these very rows."""
    rows = made()
    found = suggest(rows)
    highs = [np.quantile(rows.numbers[f"{stage}_s"], 0.95) for stage in STAGES]

    assert found.sum_of_highs_s == pytest.approx(sum(highs))
    assert found.sum_of_highs_s > 1.1 * found.measured_s
    assert found.all_within < 0.8
    assert f"they come to {1000 * sum(highs):,.0f} ms, " in as_text(found)


def test_the_common_quantile_comes_to_the_same_total():
    """Every stage's quantile at that p; together they are what is dealt out."""
    rows = made()
    found = suggest(rows, total_s=2.5)
    at = [np.quantile(rows.numbers[f"{one}_s"], found.common_p) for one in STAGES]

    assert sum(share.common_s for share in found.shares) == pytest.approx(2.5, rel=1e-6)
    assert [share.common_s for share in found.shares] == pytest.approx(at, rel=1e-6)


def test_as_many_requests_are_within_the_total_as_promised():
    """With each stage scaled to its allocation the share of whole requests in time is the p."""
    kept, low, top = suggest(made(3000), total_s=2.0).kept

    assert kept == pytest.approx(0.95, abs=0.005)
    assert low < kept < top
    assert top - low < 0.03


def test_the_draws_hold_the_allocation_another_sample_gives():
    """The interval of each stage covers, nearly always, the result of far more requests."""
    truth = {share.name: share.euler_s for share in suggest(made(12_000, 9), total_s=2.5).shares}
    held = [
        share.low_s - 1e-3 <= truth[share.name] <= share.top_s + 1e-3
        for seed in range(8)
        for share in suggest(made(800, seed), total_s=2.5).shares
    ]

    assert sum(held) / len(held) > 0.85


def test_what_is_not_reported_gets_nothing_and_is_not_lost():
    """A hosted API reports no queue and no prefill: what cannot be split is in ttft."""
    found = suggest(made(queue=None, prefill=None, first_chunk=None), total_s=2.5, buffer=0.1)
    budget = found.budget

    assert set(budget.stages_s) == {"network", "gateway", "decode", "render"}
    assert any("not reported: queue, prefill, first_chunk" in note for note in found.notes)
    assert check(budget).problems == ()
    assert check(budget).sum_s == pytest.approx(2.5, abs=1e-4)


def test_tokens_and_their_time_come_to_the_decode():
    """The tokens are those of a slow request, and what each may take fits into its decode."""
    budget = suggest(made(), total_s=2.5).budget

    assert budget.tokens > 90  # the median is 60: slow requests are the long ones
    assert budget.tokens * budget.tpot_s <= budget.stages_s["decode"]
    assert budget.tokens * budget.tpot_s == pytest.approx(budget.stages_s["decode"], rel=0.01)


@settings(max_examples=25)
@given(
    st.integers(72, 300), st.integers(0, 99), st.floats(0.02, 30), st.sampled_from([0, 0.1, 0.5]),
    st.sampled_from(["queue", "gateway", "render", "prefill"]),
)  # fmt: skip
@example(72, 1, 0.25, 0.5, "render")  # half a millisecond in the gateway
def test_any_suggestion_passes_the_check(n, seed, total, buffer, missing):
    """Whatever the rows and the total."""
    budget = suggest(
        made(n, seed, **{missing: None}), total_s=round(total, 3), buffer=buffer
    ).budget

    assert check(budget).problems == ()
    assert all(limit > 0 for limit in budget.stages_s.values())


@pytest.mark.parametrize("total", [0.25, 0.02, 2.5])
def test_a_stage_that_takes_next_to_nothing_has_a_limit_too(total):
    """Without one it would be free to take all that the first content leaves."""
    budget = suggest(made(gateway=0.0), total_s=total, buffer=0.5).budget

    assert budget.stages_s["gateway"] == (0.001 if total > 0.2 else 0.00001)
    assert check(budget).problems == ()
    assert sum(budget.stages_s.values()) + budget.buffer_s == pytest.approx(total, abs=1e-9)


def test_only_requests_that_succeeded_count():
    """Errors and turns of agents say nothing of how long a request takes."""
    good = list(made(100).to_dicts())
    bad = [{**row, "outcome": "error", "e2e_s": 90.0} for row in good]
    turns = [{**row, "operation": "invoke_agent", "e2e_s": 90.0} for row in good]

    assert suggest(from_dicts([*good, *bad, *turns])) == suggest(from_dicts(good))


def test_too_few_requests():
    """Below 72 a p95 has no upper bound, and nothing is suggested."""
    with pytest.raises(DataError, match="71 requests succeeded; a p95 has no upper bound"):
        suggest(made(71))


# --- what is written ----------------------------------------------------------------------------


def quick(seed, shortest_ms, longest_ms, tokens):
    """Make a hundred requests as quick as these, of a stage before and one after the content."""
    chance = np.random.default_rng(seed)
    whole = chance.uniform(shortest_ms, longest_ms, 100) / 1000
    first = whole * chance.uniform(0.1, 0.5, 100)
    return from_dicts(
        {
            "start": 1_700_000_000 * 10**9 + i, "outcome": "success", "operation": "chat",
            "e2e_s": float(whole[i]), "ttft_s": float(first[i]), "network_s": float(first[i]),
            "decode_s": float(whole[i] - first[i]),
            "output_tokens": int(chance.integers(*tokens)),
        }
        for i in range(100)
    )  # fmt: skip


def back(budget):
    """Read what is written of a budget."""
    return read_budget(yaml.safe_load(as_yaml(budget)))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_of_quick_requests_passes_the_check(seed):
    """Totals of 5 to 80 ms are no whole number of any unit."""
    assert check(back(suggest(quick(seed, 5, 80, (5, 60))).budget)).problems == ()


@given(
    st.integers(0, 1000),
    st.one_of(st.none(), st.floats(1e-6, 5.0)),
    st.sampled_from([0.0, 0.07, 0.333, 0.9, 0.999]),
    st.sampled_from([(1, 4), (5, 80), (200, 9000)]),
    st.sampled_from([(1, 2), (5, 60), (300, 9000)]),
)
@example(3, 0.033337, 0.07, (5, 80), (5, 60))
@example(4, None, 0.0, (1, 4), (300, 900))
@example(4, 2.0, 0.999, (1, 4), (300, 900))
@settings(max_examples=25, deadline=None)
def test_what_is_written_is_read_back_and_adds_up(seed, total, buffer, took, tokens):
    """Whatever total was requested, and however fast tokens come."""
    found = suggest(quick(seed, *took, tokens), total_s=total, buffer=buffer).budget

    assert check(back(found)).problems == ()
    assert total is None or found.total_s == pytest.approx(total, abs=1e-9)
