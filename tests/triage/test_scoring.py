"""Do lines of evidence add up as the table says, and is the unknown kept apart from the untrue?"""

# ruff: noqa: FBT003 - whether a line holds is what is given

from __future__ import annotations

import pytest

from llmtrace.triage.causes.scoring import (
    WEIGHTS,
    against,
    gate,
    judge,
    proof,
    required,
    steady,
    support,
    with_points,
)
from llmtrace.triage.result import Point


def test_points_are_those_of_the_table():
    """Every line keeps its points, and they sum to the score."""
    found = judge("x", [gate(True, "g"), required(True, "r"), proof(True, "p"), support(True, "s"),
                        against(True, "a"), against(True, "b", strongly=True)])  # fmt: skip

    assert found.evidence == (Point("g", 0), Point("r", 6), Point("p", 10), Point("s", 3))
    assert found.against == (Point("a", -6), Point("b", -10))
    assert found.score == 3


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([required(True, ""), proof(True, "")], "confirmed"),
        ([required(True, ""), support(True, "")], "likely"),
        ([required(True, ""), *(support(True, f"{n}") for n in range(5))], "likely"),
        ([required(True, "")], "possible"),
        ([support(True, "")], "possible"),
        ([required(True, ""), against(True, "")], "unknown"),
        ([required(False, ""), proof(True, "")], "ruled_out"),
        ([gate(False, ""), required(True, ""), proof(True, "")], "ruled_out"),
        ([required(None, "", "x"), support(True, ""), support(True, "")], "unknown"),
        ([required(None, "", "x"), proof(True, "")], "likely"),
        ([gate(None, "", "x"), required(True, "")], "possible"),
        ([gate(None, "", "x"), required(True, "1"), support(True, "2")], "possible"),
        ([gate(None, "", "x"), required(True, "1"), proof(True, "2")], "confirmed"),
        ([against(True, "")], "ruled_out"),
        ([], "unknown"),
    ],
)
def test_a_status_follows_from_the_points_and_from_what_is_open(lines, status):
    """What is not known is never a no, and never a yes."""
    assert judge("x", lines).status == status


def test_what_cannot_be_told_counts_nothing_and_says_what_would_settle_it():
    """Each missing piece is named once; a line that asks for nothing names none."""
    found = judge("x", [support(None, "", "a"), proof(None, "", "a"), support(None, "")])

    assert (found.score, found.missing, found.evidence) == (0, ("a",), ())


def test_what_does_not_hold_and_costs_nothing_is_not_listed():
    """A support that is not there is no evidence of anything."""
    found = judge("x", [support(False, "s"), proof(False, "p"), against(False, "a")])

    assert found.evidence == found.against == ()


def test_further_points_change_the_status():
    """A cause that another brings about is no longer confirmed."""
    found = judge("x", [required(True, ""), proof(True, "")])
    less = with_points(found, [Point("would follow from y by itself", -6)])

    assert (found.status, less.status, less.score) == ("confirmed", "likely", 10)


def test_no_weight_makes_a_single_support_likely():
    """The table keeps its order: support < requirement < proof."""
    assert WEIGHTS["support"][0] < WEIGHTS["required"][0] < WEIGHTS["proof"][0]
    assert WEIGHTS["required"][1] <= -WEIGHTS["proof"][0]


@pytest.mark.parametrize(
    "text",
    [
        "waiting p50 0 → 0, p95 0 → 0, mean 0 → 0",
        "SM clock, MHz p50 1,410 → 1,410",
        "more than one attempt: 0.0 → 0.0 % (0 of 90 → 1 of 9,000)",
    ],
)
def test_what_reads_the_same_before_and_after_counts_nothing(text):
    """It is no evidence of a change, and proves none."""
    found = judge("x", [required(True, text), proof(True, f"{text}!")])

    assert (found.status, found.score) == ("unknown", 0)


@pytest.mark.parametrize(
    "text", ["waiting p50 0 → 0, p95 0 → 2", "an XID error", "wait 9 ms → 9 s", "5xx: 1.0 → 1.2 %"]
)
def test_what_moved_or_shows_no_figures_counts(text):
    """One figure that moved is enough."""
    assert judge("x", [required(True, text)]).score == WEIGHTS["required"][0]


def test_that_something_did_not_move_is_said_so():
    """Then that is what the line is about, and it counts."""
    found = judge("x", [steady(support(True, "decode p50 2 ms → 2 ms, p95 3 → 4 ms"))])

    assert found.evidence == (Point("decode p50 2 ms as before, p95 3 → 4 ms", 3),)
