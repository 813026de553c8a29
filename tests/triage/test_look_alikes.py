"""Are causes that the same evidence fits named together, with what tells them apart?"""

from __future__ import annotations

import pytest

from llmtrace.triage.causes import RULES
from llmtrace.triage.causes.look_alikes import LOOK, look_alikes
from llmtrace.triage.result import Finding, OrElse, Point

FOR = (Point("it fits", 6),)
AGAINST = (Point("it does not fit", -6),)


def weighed(*findings: Finding) -> dict[str, Finding]:
    """Return findings by cause, as the rules give them."""
    return {one.id: one for one in findings}


@pytest.mark.parametrize("pair", LOOK, ids=lambda pair: "-".join(sorted(pair)))
def test_every_pair_is_of_two_causes_that_have_a_rule(pair):
    """A pair that no rule names is never printed."""
    assert len(pair & RULES.keys()) == 2


@pytest.mark.parametrize(
    ("first", "other", "printed"),
    [
        pytest.param(("likely", 9, FOR), ("likely", 8, FOR), True, id="points as good as equal"),
        pytest.param(("confirmed", 22, FOR), ("possible", 4, FOR), False, id="far apart"),
        pytest.param(("likely", 9, FOR), ("unknown", 0, ()), True, id="the other was not seen"),
        pytest.param(("likely", 9, FOR), ("unknown", -6, AGAINST), False, id="it does not fit"),
        pytest.param(("confirmed", 16, FOR), ("unknown", 0, ()), False, id="the first has proof"),
        pytest.param(("likely", 9, FOR), ("ruled_out", 8, FOR), False, id="it is ruled out"),
    ],
)
def test_the_other_cause_is_named_where_the_evidence_cannot_separate_them(first, other, printed):
    """What the evidence does separate is not called into question."""
    mine = Finding(id="engine_paused", status=first[0], score=first[1], evidence=first[2])
    its = Finding(
        id="frontend_cpu", status=other[0], score=other[1],
        evidence=tuple(one for one in other[2] if one.points > 0),
        against=tuple(one for one in other[2] if one.points < 0),
        missing=("what would decide it",),
    )  # fmt: skip

    found = look_alikes(mine, weighed(mine, its))

    assert [one.id for one in found] == (["frontend_cpu"] if printed else [])


def test_causes_that_are_no_pair_are_not_mixed_up():
    """Points alone make nothing alike."""
    mine = Finding(id="engine_paused", status="likely", score=9)
    its = Finding(id="slow_renderer", status="likely", score=9)

    assert not look_alikes(mine, weighed(mine, its))


def test_the_sentence_names_the_cause_and_what_to_look_at():
    """A reader needs no other page to go on."""
    said = OrElse("frontend_cpu", LOOK[frozenset(("engine_paused", "frontend_cpu"))]).text

    assert said.startswith("frontend_cpu, which fits as well")
    assert "counter of output tokens" in said
