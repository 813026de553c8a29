"""Are requests that ask for the same work put together, and what is new distinguished?"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from llmtrace.dataset.columns import Columns, concatenate, from_dicts
from llmtrace.triage.attribution.workload_mix import cells


def rows(n, seed=1, **fixed) -> Columns:
    """Make rows with prompts of all lengths."""
    r = np.random.default_rng(seed)
    return from_dicts(
        {"start": 10**18 + i, "prompt_tokens": int(2 ** r.uniform(5, 12)), "model": "a", **fixed}
        for i in range(n)
    )


def put(before: Columns, after: Columns, **given):
    """Put all rows of two windows into cells."""
    both = concatenate([before, after])
    sides = both.take(slice(0, before.n)), both.take(slice(before.n, both.n))
    index = np.arange(before.n), np.arange(after.n)
    return sides, cells(sides, index, "ttft", **given)


def test_lengths_are_told_apart_as_finely_as_both_windows_fill():
    """No cell lacks rows of either, and lengths of a cell are next to each other."""
    sides, found = put(rows(3000), rows(600, 2))

    assert found.matched_on == ("prompt_tokens",)
    assert found.count >= 16
    for codes in (found.before, found.after):
        assert np.bincount(codes, minlength=found.count).min() >= 8
    spans = []
    for cell in range(found.count):
        tokens = sides[0].numbers["prompt_tokens"][found.before == cell]
        spans.append((tokens.min(), tokens.max()))
    spans.sort()
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_exchanging_the_windows_gives_the_same_cells():
    """Requests that were together stay together."""
    _, there = put(rows(900), rows(300, 2))
    _, back = put(rows(300, 2), rows(900))

    pairs = {*zip(there.before.tolist(), back.after.tolist(), strict=True)}
    assert len(pairs) == there.count == back.count


def test_a_new_model_has_nothing_to_be_compared_with():
    """Its requests are of no cell, and said to be new."""
    new = rows(300, 3, model="b")
    _, found = put(rows(2000), concatenate([rows(300, 2), new]))

    assert found.new == (("model=b", 0.5),)
    assert (found.after[300:] == -1).all()
    assert (found.after[:300] >= 0).all()
    assert found.unmatched_share == 0.5


def test_prompts_longer_than_any_before_are_new():
    """What was never asked has no time to be compared with."""
    long = rows(60, 3, prompt_tokens=100_000)
    _, found = put(rows(2000), concatenate([rows(540, 2), long]))

    assert found.new == (("prompt_tokens 100,000 to 100,000", 0.1),)


def test_a_tenant_that_asks_as_often_as_before_is_not_told_apart():
    """That would cost finer lengths, and explain nothing."""
    before, after = rows(2000, tenant="a"), rows(400, 2, tenant="a")

    assert put(before, after)[1].matched_on == ("prompt_tokens",)


def test_tenants_that_ask_more_often_are_told_apart():
    """Their share is part of the mix."""
    before = concatenate([rows(1800, 1, tenant="a"), rows(200, 2, tenant="b")])
    after = concatenate([rows(200, 3, tenant="a"), rows(200, 4, tenant="b")])

    assert "tenant" in put(before, after)[1].matched_on


def test_rows_that_tell_nothing_are_all_of_one_kind():
    """Nothing known, nothing to tell apart."""
    plain = from_dicts({"start": 10**18 + i} for i in range(100))
    _, found = put(plain, plain)

    assert found.count == 1
    assert found.matched_on == ()


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_handful_of_rows_fills_no_cell(n):
    """And breaks nothing."""
    _, found = put(rows(n), rows(n, 2))

    assert found.count == 0
