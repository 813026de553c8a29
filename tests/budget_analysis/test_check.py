"""Is a budget that does not add up found, explained, and is what is said to fit what fits?"""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given

from llmtrace.budget import DEFAULT, Budget, read_budget
from llmtrace.budget_analysis.check import FRONT, as_text, check
from tests.budget.strategies import budgets


def problems(**keys: object) -> dict[str, str]:
    """Return what is wrong with a budget, by where."""
    return {one.where: one.what for one in check(read_budget(keys)).problems}


PUBLISHED = {
    "name": "sla",
    "total": "2s",
    "tpot": "25ms",
    "tokens": 100,
    "stages": {"network": "100ms", "gateway": "50ms", "prefill": "600ms", "decode": "1250ms"},
    "buffer": "250ms",
}


def test_the_budget_people_publish_is_wrong_twice():
    """100 tokens of 25 ms are 2,500 ms, and with 1,250 ms the parts still come to 2,250 ms."""
    decode, total = check(read_budget(PUBLISHED)).problems

    assert decode.what == "100 tokens at 25 ms each take 2,500 ms, and not 1,250 ms"
    assert decode.fits == "50 tokens at 25 ms each, or 100 tokens at 12.5 ms each"
    assert total.what == (
        "even so the parts come to 2,250 ms, 250 ms more than the total of 2,000 ms"
    )
    assert total.fits == (
        "1,000 ms are left for decode: 40 tokens at 25 ms each, or 100 tokens at 10 ms each, or a "
        "total of 3,500 ms"
    )


def test_the_same_with_a_limit_for_ttft():
    """What no stage is given is what the limit on TTFT leaves."""
    keys = {
        **PUBLISHED, "ttft": "750ms",
        "stages": {"network": "100ms", "gateway": "50ms", "decode": "1250ms"},
    }  # fmt: skip
    found = check(read_budget(keys))
    left = next(part for part in found.parts if "+" in part.name)

    assert (left.name, round(left.seconds, 9)) == ("queue+prefill+first_chunk", 0.6)
    assert [one.where for one in found.problems] == ["decode", "total"]
    assert "40 tokens at 25 ms" in found.problems[1].fits


def test_the_default_budget_adds_up():
    """What is shipped has no contradiction."""
    found = check(DEFAULT)

    assert found.problems == ()
    assert found.sum_s == pytest.approx(DEFAULT.total_s)
    assert as_text(found).startswith("dialogue: adds up\n")


@pytest.mark.parametrize(
    ("keys", "where", "expected"),
    [
        ({"ttft": "1s", "stages": {"queue": "700ms", "prefill": "400ms"}}, "ttft",
         "queue, prefill come to 1,100 ms before the first content, and ttft allows 1,000 ms"),
        ({"total": "1s", "ttft": "2s"}, "ttft",
         "2,000 ms until the first content are more than the whole request may take, 1,000 ms"),
        ({"total": "1s", "stages": {"queue": "600ms", "render": "600ms"}}, "total",
         "the parts come to 1,200 ms, 200 ms more than the total of 1,000 ms"),
        ({"total": "1s", "tpot": "20ms", "tokens": 100}, "total",
         "the parts come to 2,000 ms, 1,000 ms more than the total of 1,000 ms"),
    ],
)  # fmt: skip
def test_a_contradiction_is_reported(keys, where, expected):
    """Each with where it is and by how much."""
    assert problems(**keys)[where] == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "total: there is none, so nothing to compare the parts with"),
        ({"tokens": 5}, "tokens: 5 of them mean nothing without a tpot"),
        ({"tpot": "5ms"}, "tpot: how long the decode takes is not known without tokens"),
        ({"total": "2s", "stages": {"queue": "1s"}}, "total: 1,000 ms of the 2,000 ms are not"),
        ({"tpot": "5ms", "tokens": 10, "stages": {"decode": "80ms"}},
         "decode: 10 tokens × 5 ms = 50 ms; 30 ms of its 80 ms are to spare"),  # noqa: RUF001
        ({"ttft": "1s", "stages": dict.fromkeys(FRONT, "100ms")}, "ttft: its stages come to 500"),
    ],
)  # fmt: skip
def test_what_is_no_contradiction_is_a_note(keys, expected):
    """It is said, and the budget still adds up."""
    found = check(read_budget(keys))

    assert found.problems == ()
    assert any(note.startswith(expected) for note in found.notes), found.notes


def test_a_budget_no_tokens_fit_into():
    """Where the other parts take everything, that is said."""
    found = check(read_budget({"total": "1s", "tpot": "10ms", "tokens": 10, "buffer": "1200ms"}))

    assert found.problems[0].fits.startswith("nothing, as long as the other parts come to 1,200")


@given(budgets)
def test_what_is_said_to_fit_fits(budget):
    """Taking the total that is offered, or the tokens, leaves no such contradiction."""
    found = check(budget)
    offered = [one.fits for one in found.problems if one.where == "total"]
    assume(offered)
    total = re.search(r"total (?:of|is) ([\d,.]+) ms", offered[0])
    assert total is not None
    room = float(total[1].replace(",", "")) / 1000
    decode = None
    if budget.tpot_s and budget.tokens:
        decode = max(budget.tpot_s * budget.tokens, 0)
    stages = {
        **budget.stages_s,
        **({"decode": decode} if decode and "decode" in budget.stages_s else {}),
    }
    fixed = Budget(
        total_s=room + 1e-6, ttft_s=budget.ttft_s, tpot_s=budget.tpot_s, tokens=budget.tokens,
        stages_s=stages, buffer_s=budget.buffer_s,
    )  # fmt: skip

    assert not [one for one in check(fixed).problems if "parts come to" in one.what]


@given(budgets)
def test_any_budget_is_laid_out(budget):
    """The text names every part and every problem, and sums to what it says."""
    found = check(budget)
    text = as_text(found)

    assert all(part.name in text for part in found.parts)
    assert text.count("✗") == len(found.problems)
    assert found.sum_s == pytest.approx(sum(part.seconds for part in found.parts))
