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
        ([gate(None, "", "x"), required(True, "")], "unknown"),
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
