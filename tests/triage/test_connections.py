"""Is it clear why connections are opened: new processes, no keep-alive, or broken streams?"""

from __future__ import annotations

import heapq
from dataclasses import replace

import pytest

from llmtrace.dataset.case import Event
from llmtrace.triage.causes import causes
from llmtrace.triage.evidence import gone_engines

from . import hand_made
from .incidents import AFTER, quiet

SURE = ("confirmed", "likely")


def opened(seconds: float, *, own: float = 0.0, share: float = 1.0):
    """Return an incident in which a share of the requests opens a connection, after work first."""
    made = quiet()
    dice = hand_made.rng()
    for row in made.rows:
        row |= {"client_s": 0.002, "network_connect_s": 0.0, "network_client_wait_s": 0.0}
    for row in made.after():
        if dice.random() < share:
            took = seconds * float(dice.uniform(0.8, 1.2))
            before = own * float(dice.uniform(0.8, 1.2))
            row["network_connect_s"] = took
            row["network_s"] += took
            row["client_s"] += before
            row["unattributed_s"] = row.get("unattributed_s", 0.0) + before
    made.events.append(Event(AFTER.start - 10, "deploy", "chat 4.0.1"))
    return made


def test_a_process_for_each_request_is_a_cold_client():
    """Most of the time is before the connection, whatever it is that starts."""
    found = opened(0.004, own=0.4).findings(metric="ttft_s")

    assert next(iter(found)) == "client_cold"
    assert found["client_gate"].status not in ("confirmed", "likely")


def test_a_pool_that_nearly_all_wait_for_is_a_limit():
    """Who does not wait comes while as many are there: of those served, there are fewer then."""
    made = quiet()
    for row in made.rows:
        row |= {"client_s": 0.0, "network_client_wait_s": 0.0, "client": "web"}
    rows = sorted(made.after(), key=lambda row: row["start"])
    slots = [0.0] * 6
    for row in rows:
        start, takes = row["start"] / 1e9, row["decode_s"] + row["prefill_s"]
        free = heapq.heappop(slots)
        wait = max(free - start, 0.0)
        heapq.heappush(slots, start + wait + takes)
        row["network_client_wait_s"] = wait
        row["network_s"] += wait
    waited = [row["network_client_wait_s"] > 0.1 for row in rows]

    found = made.findings(metric="ttft_s")

    assert 0.7 < sum(waited) / len(waited) < 0.98
    assert next(iter(found)) == "client_gate"
    assert found["client_gate"].status == "confirmed"


def test_connections_that_are_not_kept_alive_are_the_path():
    """Nothing else is set up, though something was deployed just before."""
    found = opened(0.025).findings(metric="ttft_s")

    assert next(iter(found)) == "network_path"


def test_connections_that_broke_are_opened_anew():
    """Streams that fail are the cause, and not that the next request needs a connection."""
    made = hand_made.midstream_errors()
    dice = hand_made.rng()
    for row in made.rows:
        row["network_connect_s"] = 0.0
    for row in made.after():
        if dice.random() < 0.4:
            row["network_connect_s"] = 0.08
            row["network_s"] += 0.08

    assert next(iter(made.findings())) == "midstream_errors"


@pytest.mark.parametrize("down", [False, True])
def test_a_target_that_is_down_is_an_engine_that_is(down):
    """Its page is not there, and a few requests failed or were sent again."""
    made = quiet()
    for replica in ("vllm-0", "vllm-1", "vllm-2"):
        made.gauges["up", replica] = lambda t, _u, replica=replica: float(
            not (down and replica == "vllm-1" and t >= AFTER.start)
        )
    for i, row in enumerate(made.after()):
        if i % 20 == 0:
            row |= {"outcome": "error", "http_status": 502, "ttft_s": None}
    found = made.findings()

    assert (next(iter(found)) == "engine_down") is down


def test_a_target_that_is_new_and_not_up_yet_did_not_go_down():
    """It was added while its engine loads: nothing is known of it before."""
    made = quiet()
    made.gauges["up", "vllm-9"] = lambda _t, _u: 0.0
    evidence = made.evidence()
    later = evidence.signals.take(
        ~evidence.signals.instance.where("vllm-9") | (evidence.signals.t >= AFTER.start)
    )

    assert gone_engines.vanished(evidence) == {}
    assert gone_engines.vanished(replace(evidence, signals=later)) == {}


@pytest.mark.parametrize("answers", [True, False])
def test_an_engine_that_is_added_and_does_not_answer_yet_is_loading(answers):
    """A router sends it requests already. One that answers has loaded."""
    made = quiet()
    made.events.append(Event(AFTER.start, "scale", "engines: 3 to 4"))
    for number, row in enumerate(made.after()):
        if number % 3 == 0:
            row["network_s"] += 20.0
            row["attempts"] = 2
    made.gauges["up", "vllm-9"] = lambda t, _u: float(answers and t > AFTER.start + 10)
    evidence = made.evidence(metric="ttft_s")

    cold = next(one for one in causes(evidence) if one.id == "cold_start")

    assert (cold.status == "likely") is not answers


def test_a_request_that_is_alone_in_its_client_waits_for_no_limit():
    """Connections were opened all along; each request makes a client of its own now."""
    made = quiet(rate=0.2)
    dice = hand_made.rng()
    for row in made.rows:
        opens = float(dice.exponential(0.1))
        row |= {"client_s": 0.003, "network_connect_s": opens, "network_client_wait_s": 0.0}
        row["network_s"] += opens
    for row in made.after():
        own = 0.9 * float(dice.uniform(0.7, 1.3))
        row["client_s"] += own
        row["unattributed_s"] += own
    made.events.append(Event(AFTER.start - 10, "deploy", "chat 4.0.1"))
    found = made.findings(metric="ttft_s", ongoing=True)

    assert next(iter(found)) == "client_cold"
    assert found["client_gate"].status not in SURE
