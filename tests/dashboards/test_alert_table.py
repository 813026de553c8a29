"""One table: for each outcome, engine, fleet and level of traffic, which alerts fire.

All that is not named in a row stays silent. promtool evaluates the rules over counters as the
exporter shows them: all is well for a while, then half an hour as the row says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from llmtrace.budget import Budget
from llmtrace_dashboards.rules.burn_rate import RuleSettings
from llmtrace_dashboards.rules.recording_rules import rule_files

from .promtool import LABELS, Phase, alerting, outcome_of, requests

CHAT: Final = Budget(name="chat", total_s=20.0, ttft_s=1.0, availability=0.99, route=("chat",))
BEFORE: Final = 25
DURING: Final = 30
# A few of the exporter's bounds, since each costs time here; with the limits; and those above.
BOUNDS: Final = (2.5, 40.96)
EDGES: Final = (*BOUNDS, 1.0, 20.0)
LONG: Final = (*EDGES, 5.12, 10.24, 81.92, 120.0, 300.0, 600.0, 1800.0)
TTFT: Final = "LlmtraceLatencyBudgetBurn ttft"
E2E: Final = "LlmtraceLatencyBudgetBurn e2e"
BROKEN: Final = "LlmtraceAvailabilityBudgetBurn availability"
GIVE_UP: Final = "LlmtraceCallersGiveUp"
IN_STREAM: Final = "LlmtraceErrorsInStream"
PILE: Final = "LlmtraceTruncationPileUp"
UNMEASURED: Final = ("LlmtraceBudgetUnmeasured e2e", "LlmtraceBudgetUnmeasured ttft")
STALLED: Final = "LlmtraceCollectorStalled"
ENGINE: Final = "LlmtraceEngineDown"
TARGET: Final = "LlmtraceTargetDown"
Series = list[dict[str, str]]
COLLECTOR: Final = {"job": "llmtrace-collector", "instance": "collector:9090"}


def some(
    each_minute: float,
    took: float,
    outcome: str = "success",
    *,
    first: bool | float = True,
    before: float = 0.0,
    edges: Sequence[float] = EDGES,
    **labels: str,
) -> Series:
    """Return requests of one kind.

    Args:
        each_minute: how many, once it is different.
        took: seconds, to their end.
        outcome: how they ended.
        first: seconds to the first content; `False`: they showed none.
        before: how many a minute there were before.
        edges: bounds of the histograms, in seconds.
        labels: other than the usual ones.
    """
    phases: list[Phase] = [(BEFORE, before), (DURING, each_minute)]
    own = {"instance": "another:9464", **labels}  # no series twice
    return requests(
        {took: phases}, outcome=outcome, first_content=first, edges=sorted(edges), **own
    )


def fine(each_minute: float = 100.0, before: float = 100.0, **labels: Any) -> Series:
    """Return requests nothing is wrong with."""
    own = {"instance": LABELS["instance"], **labels}
    return some(each_minute, 3.0, first=0.3, before=before, **own)


def cut(*ages: float) -> Series:
    """Return streams that are cut off at these ages, and fine ones."""
    made = [
        requests(
            {float(age): [(BEFORE, 0.0), (DURING, 5.0)] for age in ages},
            outcome="truncated", first_content=0.3, edges=sorted(LONG),
        )
    ]  # fmt: skip
    return [*fine(), *made[0]]


def gauge(name: str, before: float, during: float, **labels: str) -> dict[str, str]:
    """Return a gauge that has one value at first and another afterwards."""
    label_text = ", ".join(f'{key}="{value}"' for key, value in labels.items())
    values = f"{before:g}x{BEFORE - 1} {during:g}x{DURING - 1}"
    return {"series": f"{name}{{{label_text}}}", "values": values}


def collector(up: float = 1.0, lag: float = 0.0, **labels: str) -> Series:
    """Return what a collector says of itself."""
    who = {**COLLECTOR, **labels}
    return [
        gauge("up", 1, up, **who),
        gauge("llmtrace_ingest_lag_seconds", 0, lag, **who),
    ]


def target(before: float, during: float, kind: str) -> Series:
    """Return a target of the collector that is up, or down."""
    who = {**COLLECTOR, "instance": "vllm-1:8000", "kind": kind}
    return [*collector(), gauge("llmtrace_target_up", before, during, **who)]


def restarted(made: Series) -> Series:
    """Return the same counters, from a process that begins anew every eleven minutes."""
    each = (BEFORE + DURING) // 5
    for one in made:
        slope = one["values"].partition("+")[2].partition("x")[0]
        one["values"] = " ".join([f"0+{slope}x{each - 1}"] * 5)
    return made


def replaced(pods: int) -> Series:
    """Return a rolling restart onto a budget with new limits: pods get its bounds one by one."""
    made: Series = []
    minutes = BEFORE + DURING
    for pod in range(pods):
        at = BEFORE + 2 * pod
        for name, edges, values in (
            ("old", BOUNDS, f"0+10x{at - 1} stale"),
            ("new", EDGES, f"_x{at - 1} 0+10x{minutes - at - 1}"),
        ):
            one = fine(10.0, 10.0, edges=edges, instance=f"{name}-{pod}:9464")
            for counted in one:
                if counted["values"].startswith("0+10x"):
                    counted["values"] = values
                else:  # a bucket nothing falls into, or a sum
                    counted["values"] = values.replace("+10x", "+0x")
            made += one
    return made


NONE: Final[tuple[str, ...]] = ()
OLD: Final = {"edges": BOUNDS, "instance": "old:9464"}

OUTCOMES: Final = [
    ("all succeed in time", fine(), NONE),
    ("first content late", [*fine(40), *some(60, 4.0, first=3.0)], (TTFT,)),
    ("whole answer late", [*fine(40), *some(60, 30.0, first=0.3)], (E2E,)),
    ("no content asked for", [*fine(40), *some(60, 4.0, first=False)], NONE),
    ("errors at once", [*fine(), *some(20, 0.05, "error", first=False)], (BROKEN,)),
    ("a few errors", [*fine(), *some(0.5, 0.05, "error", first=False)], NONE),
    ("errors in the stream", [*fine(), *some(20, 3.0, "error", first=0.3)], (BROKEN, IN_STREAM)),
    ("errors after a long stream", [*fine(40), *some(60, 30.0, "error", first=0.3)],
     (BROKEN, IN_STREAM, E2E)),
    ("errors after a long wait", [*fine(40), *some(60, 15.0, "error", first=False)],
     (BROKEN, TTFT)),
    ("errors at once, nothing else", [*fine(0), *some(100, 0.05, "error", first=False)],
     (BROKEN,)),
    ("timeouts without content", [*fine(40), *some(60, 30.0, "timeout", first=False)],
     (BROKEN, TTFT, E2E)),
    ("timeouts in the stream", [*fine(40), *some(60, 30.0, "timeout", first=0.3)],
     (BROKEN, E2E)),
    ("cut off at one age", cut(60.2, 60.4), (BROKEN, PILE)),
    ("cut off at any age", cut(3.0, 9.0, 35.0, 70.0), (BROKEN,)),
    ("cut off at any age above two minutes", cut(130.0, 250.0, 500.0, 1000.0), (BROKEN, E2E)),
    ("cut off at any age above all bounds", cut(1900.0, 3000.0, 9000.0), (BROKEN, E2E)),
    ("callers leave at once", [*fine(), *some(30, 0.1, "cancelled", first=False)], (GIVE_UP,)),
    ("callers leave after a long wait", [*fine(40), *some(60, 15.0, "cancelled", first=False)],
     (GIVE_UP, TTFT)),
    ("callers leave while they read", [*fine(40), *some(60, 15.0, "cancelled", first=0.3)], NONE),
    ("another route's requests", [*fine(), *some(60, 30.0, "error", first=False, route="batch")],
     NONE),
]  # fmt: skip

ENGINES: Final = [
    ("up", [*fine(), *target(1, 1, "engine")], NONE),
    ("down", [*fine(), *target(1, 0, "engine")], (ENGINE,)),
    ("never answered, kind not known", [*fine(), *target(0, 0, "")], (ENGINE,)),
    ("a gateway is down", [*fine(), *target(1, 0, "gateway")], (TARGET,)),
    ("a GPU exporter is down", [*fine(), *target(1, 0, "gpu")], (TARGET,)),
    ("hangs, and callers leave", [*fine(0), *some(100, 15.0, "cancelled", first=False)],
     (GIVE_UP, TTFT)),
    ("hangs, and the gateway answers 503", [*fine(0), *some(100, 15.0, "error", first=False)],
     (BROKEN, TTFT)),
    ("hangs, and callers time out", [*fine(0), *some(100, 30.0, "timeout", first=False)],
     (BROKEN, TTFT, E2E)),
    ("slow for all", [*fine(0), *some(100, 30.0, first=5.0)], (TTFT, E2E)),
]  # fmt: skip

FLEETS: Final = [
    ("some pods have no bound", [*fine(), *fine(**OLD)], UNMEASURED),
    ("no pod has the bound", fine(**OLD), UNMEASURED),
    ("another service has no bound", [*fine(), *fine(edges=BOUNDS, service="other")], UNMEASURED),
    ("a slow pod among some without bound",
     [*fine(40), *fine(40, **OLD), *some(60, 4.0, first=3.0)], (TTFT, *UNMEASURED)),
    ("a rolling restart onto new limits", replaced(8), NONE),
    ("pods restart", restarted(fine()), NONE),
    ("no collector", fine(), NONE),
    ("a collector", [*fine(), *collector()], NONE),
    ("the collector is down", [*fine(), *collector(up=0)], (STALLED,)),
    ("the collector stores nothing", [*fine(), *collector(lag=600)], (STALLED,)),
    ("the collector is scraped as another job", [*fine(), *collector(job="other")], (STALLED,)),
]  # fmt: skip

TRAFFIC: Final = [
    ("none", fine(0, 0), NONE),
    ("it stops", fine(0), NONE),
    ("it begins", fine(100, 0), NONE),
    ("one a minute, half of it late", [*fine(0.5, 1), *some(0.5, 4.0, first=3.0)], NONE),
    ("ten a minute, half of it late", [*fine(5, 10), *some(5, 4.0, first=3.0)], (TTFT,)),
    ("many, half of it late", [*fine(5_000, 10_000), *some(5_000, 4.0, first=3.0)], (TTFT,)),
    ("many, 4 % of it late", [*fine(9_600, 10_000), *some(400, 4.0, first=3.0)], NONE),
    ("many, all at once", fine(100_000), NONE),
]  # fmt: skip


def _rows(kind: str, table: list[tuple[str, Series, tuple[str, ...]]]) -> list[Any]:
    return [pytest.param(inputs, fire, id=f"{kind}: {name}") for name, inputs, fire in table]


@pytest.mark.parametrize(
    ("inputs", "fire"),
    [
        *_rows("outcome", OUTCOMES),
        *_rows("engine", ENGINES),
        *_rows("fleet", FLEETS),
        *_rows("traffic", TRAFFIC),
    ],
)
def test_which_alerts_fire(tmp_path, inputs, fire):
    """Those of the row, and no others."""
    rules = alerting([CHAT], RuleSettings(interval="1m"))
    firing = (
        'sum by (alert) (label_join(count by (alertname, slo) (ALERTS{alertstate="firing"}), '
        '"alert", " ", "alertname", "slo")) > bool 0'
    )
    expected = {f'{{alert="{name if " " in name else f"{name} "}"}}': 1.0 for name in fire}

    outcome_of(
        tmp_path, rules, inputs, f"{BEFORE + DURING - 1}m", every="1m",
        expected=[(firing, expected)],
    )  # fmt: skip


def test_a_burst_of_errors_between_two_scrapes_is_seen(tmp_path):
    """The outcome was exposed at 0 before, as the exporter does: the jump is an increase."""
    values = f"0x{BEFORE - 1} 1200x{DURING - 1}"
    labels = ", ".join(f'{key}="{value}"' for key, value in {**LABELS, "outcome": "error"}.items())
    burst = [
        {"series": f"llmtrace_{name}{{{labels}}}", "values": values}
        for name in ("requests_total", "e2e_seconds_count", "ttft_seconds_count")
    ]
    rules = alerting([CHAT])
    seen = "max_over_time(budget_slo:llmtrace_slo_bad:ratio_rate5m{slo='availability'}[30m]) > 0.5"

    outcome_of(
        tmp_path, rules, [*fine(), *burst], f"{BEFORE + 20}m", every="1m",
        expected=[(f"count({seen})", {"{}": 1.0})],
    )  # fmt: skip


def test_every_alert_is_in_the_table():
    """Each fires in one row at least, and is silent in another."""
    rows = [set(fire) for _, _, fire in (*OUTCOMES, *ENGINES, *FLEETS, *TRAFFIC)]
    label_text = {name.partition(" ")[0] for fire in rows for name in fire}
    rules = rule_files([CHAT])["alerts.yaml"]["groups"][0]["rules"]

    assert label_text == {rule["alert"] for rule in rules}
