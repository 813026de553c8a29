"""Is the cause of cut streams found by what they share: a silence, an age, or nothing?

Each incident is made by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from . import hand_made
from .incidents import TTFT, Incident, quiet

SURE = ("confirmed", "likely")
LIMIT_S = 30.0
Cut = Callable[[dict[str, Any], float, np.random.Generator], None]


def cut(how: Cut) -> Incident:
    """One request in eight ends early; `how` gets its row, its time to first chunk and dice."""
    made, dice = quiet(), hand_made.rng()
    for number, row in enumerate(made.after()):
        if number % 8 == 0:
            row["outcome"] = "truncated"
            row.pop("finish_reason")
            how(row, sum(row.get(stage, 0.0) for stage in TTFT), dice)
    return made


def at_an_age(row: dict[str, Any], ttft: float, dice: np.random.Generator) -> None:
    """Each is 30 s old, and sent something at any time before that."""
    row["decode_s"] = LIMIT_S - ttft - row["render_s"]
    row["max_gap_s"] = float(dice.uniform(0.1, 25))


def at_the_clients_deadline(row: dict[str, Any], ttft: float, dice: np.random.Generator) -> None:
    """Each is 30 s old, and its client had said that it would wait no longer."""
    at_an_age(row, ttft, dice)
    row["outcome"] = "timeout"


def after_a_silence(row: dict[str, Any], _: float, dice: np.random.Generator) -> None:
    """Each had been silent for 30 s, and the time before that is short for all of them."""
    row["max_gap_s"] = LIMIT_S + 0.05 * dice.random()
    row["decode_s"] = row["max_gap_s"] + float(dice.uniform(0, 3))


def unsaid(row: dict[str, Any], ttft: float, _: np.random.Generator) -> None:
    """Each failed after 30 s, before anything came, for no reason that is known."""
    row |= {"outcome": "error", "never_answered": True, "unattributed_s": LIMIT_S - ttft}
    row.pop("http_status")


def test_streams_that_end_at_one_age_are_a_time_out_of_a_hop():
    """However long they had been silent: some limit the whole of a response."""
    found = cut(at_an_age).findings()

    assert next(iter(found)) == "idle_timeout"
    assert found["idle_timeout"].status == "confirmed"
    assert any(
        "were 30 s old, silent or not" in one.text for one in found["idle_timeout"].evidence
    )
    assert "a time-out of 30 s" in found["idle_timeout"].action
    assert found["midstream_errors"].status not in SURE


def test_a_clients_own_deadline_is_no_hops():
    """They end at one age as well."""
    assert cut(at_the_clients_deadline).findings()["idle_timeout"].status not in SURE


def test_gaps_that_differ_less_than_ages_are_the_timers():
    """Short responses are nearly of an age when they fall silent: the silence is what is exact."""
    found = cut(after_a_silence).findings()

    assert next(iter(found)) == "idle_timeout"
    assert any("had sent nothing for 30 s" in one.text for one in found["idle_timeout"].evidence)
    assert found["midstream_errors"].status not in SURE


@pytest.mark.parametrize(("error_type", "named"), [(None, False), ("ReadTimeout", True)])
def test_errors_that_say_nothing_of_themselves_are_no_idle_time_out(error_type, named):
    """They may be anything, whenever they come; a connection that was closed says so."""
    made = cut(unsaid)
    for row in made.after():
        if row["outcome"] == "error":
            row["error_type"] = error_type

    assert (made.findings()["idle_timeout"].status in SURE) is named


def test_what_many_outlive_is_no_limit():
    """Of the responses that did not break, many ran on for twice as long as those that did."""
    made = cut(at_an_age)
    for number, row in enumerate(made.after()):
        if number % 8 and number % 3 == 0:
            row["decode_s"] = 2 * LIMIT_S

    assert made.findings()["idle_timeout"].status not in SURE
