"""Does a rule hold where a cause shows in another way than in its textbook incident?

Each was wrong, or unnamed, on incidents that others made.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmtrace.dataset.case import Event
from llmtrace.triage.result import NAMED, SURE

from .incidents import AFTER, Incident, quiet


def _cut_where_long(made: Incident, limit_s: float, **ending: object) -> Incident:
    """End what would have taken longer than this."""
    for row in made.after():
        if row["decode_s"] > limit_s:
            row |= {"unattributed_s": limit_s, "never_answered": True, **ending}
            row.pop("finish_reason", None)
    return made


def test_a_deadline_that_about_as_many_exceeded_before_is_the_client_s_own() -> None:
    """Nothing hangs: those that time out are those that always took longer."""
    made = quiet()
    usual = float(np.percentile([row["decode_s"] for row in made.rows], 96))

    found = _cut_where_long(made, usual, outcome="timeout").findings()

    assert next(iter(found)) == "client_give_ups"
    assert found["provider_errors"].status not in SURE


def test_a_hop_that_allows_less_than_answers_always_took_is_an_idle_time_out() -> None:
    """Its 504 looks like one of the server's."""
    made = quiet()
    for row in made.rows:
        row["first_chunk_s"] += 4.0 if row["start"] % 7 == 0 else 0.0
    for row in made.after():
        if row["first_chunk_s"] > 3:
            row |= {"outcome": "error", "http_status": 504, "never_answered": True,
                    "first_chunk_s": 2.9, "decode_s": 0.0, "queue_s": 0.01,
                    "prefill_s": 0.1}  # fmt: skip
            row.pop("finish_reason", None)

    found = made.findings()

    assert next(iter(found)) == "idle_timeout"
    assert "waited longer before" in found["idle_timeout"].evidence[1].text


def test_what_is_left_when_an_engine_is_taken_away_gets_no_more_than_its_share() -> None:
    """There are fewer seats: that is no routing."""
    made = quiet()
    made.events.append(Event(AFTER.start - 1, "scale", "3 to 2 replicas"))
    for row in made.after():
        row["replica"] = "vllm-0" if row["replica"] == "vllm-2" else row["replica"]
        row["queue_s"] += 1.0

    assert made.findings()["replica_imbalance"].status not in NAMED


def test_an_engine_that_keeps_its_requests_longer_at_the_clock_it_had_stands_out() -> None:
    """It gets its share, and no GPU is slower: something else on its host is."""
    made = quiet()
    made.gauge("running", 30.0, 1.0, "vllm-1")
    for row in made.after():
        if row["replica"] == "vllm-1":
            row["prefill_s"] *= 3
            row["decode_s"] *= 3

    found = made.findings()

    assert next(iter(found)) == "replica_imbalance"


def test_a_loop_that_is_late_reads_the_first_chunk_late_too() -> None:
    """Where no socket's time is known, that and what is sent late tell it from a full pool."""
    made = quiet()
    made.forget_rows("client_lag_s")
    for row in made.after():
        late = 0.3 + 0.1 * (row["start"] % 5)
        row |= {"client_s": late, "network_client_wait_s": 0.0}
        row["first_chunk_s"] += late
        row["burst_chunks"] = int(0.6 * row["chunks"])

    found = made.findings()

    assert found["busy_client"].status in SURE
    assert found["client_gate"].status not in SURE


def test_an_engine_that_hardly_gets_requests_while_some_fail_is_down_without_signals() -> None:
    """The router has left it out."""
    made = quiet()
    made.gauges.clear()
    made.counters.clear()
    for i, row in enumerate(made.after()):
        if row["replica"] == "vllm-2":
            row["replica"] = "vllm-1"
        if i % 25 == 0:
            row |= {"outcome": "error", "http_status": 503, "never_answered": True,
                    "replica": "vllm-2", "decode_s": 0.0}  # fmt: skip
            row.pop("finish_reason", None)

    assert made.findings()["engine_down"].status in SURE


def test_a_route_that_stops_is_lost_however_its_requests_came() -> None:
    """They came in bursts, but always, and made a third of all: the number of all tells little."""
    made = quiet()
    _to_a_route(made, "/report", lambda t: 0.6 if int(t / 40) % 2 else 0.1)
    made.rows = [row for row in made.rows
                 if row["start"] < AFTER.start * 1e9 or row["route"] != "/report"]  # fmt: skip

    found = made.findings()

    assert next(iter(found)) == "traffic_lost"
    assert found["traffic_lost"].status in SURE
    assert found["traffic_lost"].group == {"route": "/report"}


def test_a_route_whose_own_requests_take_longer_is_not_lost() -> None:
    """Who waits sends fewer."""
    made = quiet()
    _to_a_route(made, "/report", lambda _t: 0.4)
    kept = []
    for number, row in enumerate(made.rows):
        if row["start"] >= AFTER.start * 1e9 and row["route"] == "/report":
            row["queue_s"] += 5.0
            if number % 4:
                continue
        kept.append(row)
    made.rows = kept

    found = made.findings(metric="ttft")

    assert found["traffic_lost"].status not in SURE


def test_one_tenant_that_asks_four_times_as_much_is_a_surge_of_its_own() -> None:
    """All together are half as many again, for which the others wait."""
    made = quiet(after_rate=3.0)
    _to_a_route(made, "/batch", lambda t: 0.5 if t >= AFTER.start else 0.17)

    found = made.findings()

    assert next(iter(found)) == "traffic_surge"
    assert found["traffic_surge"].status == "confirmed"


def _to_a_route(made: Incident, route: str, share: Callable[[float], float]) -> None:
    """Give a route this share of the requests at a time, and another one the rest."""
    dice = np.random.default_rng(3)
    for row in made.rows:
        mine = dice.random() < share(row["start"] / 1e9)
        row["route"] = route if mine else "/chat"
