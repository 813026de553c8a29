"""Is a client that stands still distinguished from one that only makes its requests wait?"""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.triage.evidence.client_stalls import stands_still
from llmtrace.triage.result import NAMED, SURE

from . import hand_made
from .incidents import TTFT, Incident, quiet

BLOCKED_S = 0.15


def blocked(seconds: float = BLOCKED_S) -> Incident:
    """Have each client do so much work on its event loop before it sends a request.

    What happens elsewhere in that client meanwhile happens once the work is done.
    """
    made = quiet()
    for client in ("web", "ios"):
        mine = [row for row in made.after() if row["client"] == client]
        begun = np.array([row["start"] / 1e9 for row in mine])
        for i in range(1, len(begun)):
            begun[i] = max(begun[i], begun[i - 1] + seconds)

        def until_free(t: float, begun: np.ndarray = begun) -> float:
            for start in begun:
                if start - 1e-6 < t < start + seconds + 1e-6:
                    t = start + seconds + 2e-6
            return t

        for row, work in zip(mine, begun, strict=True):
            row["start"] = int(work * 1e9)
            row["client_s"] = seconds
            row["unattributed_s"] += seconds
            first = work + seconds + sum(row[name] for name in TTFT)
            end = first + row["decode_s"] + row["render_s"]
            row["first_chunk_s"] += until_free(first) - first
            row["decode_s"] += until_free(end) - end - (until_free(first) - first)
    return made


def test_work_on_the_loop_before_a_request_is_a_busy_client() -> None:
    """Its requests wait for it, and so does all that is received meanwhile."""
    made = blocked()

    found = made.findings(metric="ttft_s")

    assert stands_still(made.evidence())
    assert next(iter(found)) == "busy_client"
    assert found["client_gate"].status not in NAMED
    assert found["client_cold"].status not in NAMED


@pytest.mark.parametrize("make", [hand_made.client_gate, hand_made.client_cold])
def test_where_responses_go_on_meanwhile_it_is_not_the_loop(make) -> None:
    """A limit lets the next request go when a response ends; a process that starts is alone."""
    made = make()

    assert not stands_still(made.evidence())
    assert made.findings()["busy_client"].status not in SURE


def test_a_client_with_one_request_at_a_time_does_not_show_what_holds_it() -> None:
    """Nothing else could have happened meanwhile."""
    made = blocked()
    rows = sorted(made.after(), key=lambda row: row["start"])
    for i, row in enumerate(rows):
        row |= {"client": "batch", "decode_s": 0.02, "start": rows[0]["start"] + i * 10**9}

    assert not stands_still(made.evidence())


def test_two_waits_are_too_few_to_tell() -> None:
    """That nothing happens in a third of a second is chance."""
    made = blocked()
    for row in list(made.after())[4:]:
        row["unattributed_s"] -= row.pop("client_s")

    assert not stands_still(made.evidence())
