"""Do the panels on budgets say what the alerts count? promtool evaluates the same expressions."""

from __future__ import annotations

import pytest

from llmtrace.budget import Budget
from llmtrace.exporters.prometheus.buckets import LATENCY_S
from llmtrace_dashboards import promql
from llmtrace_dashboards.lint.queries import expand
from llmtrace_dashboards.rules.burn_rate import RuleSettings
from llmtrace_dashboards.rules.recording_rules import as_yaml, rule_files

from .promtool import LABELS, outcome_of, requests, series

BUDGET = Budget(name="dialogue", total_s=2.5, ttft_s=1.0, tpot_s=0.05, route=("chat",))
EDGES = (0.05, 1.0, 2.5)
HOUR = [(60, 60.0)]


def traffic() -> list[dict[str, str]]:
    """Return models that have no TPOT, no first content, no success; and another route's."""

    def fine(model: str, *, first: bool = True) -> list[dict[str, str]]:
        return requests(HOUR, model=model, edges=EDGES, first_content=first)

    def with_budget(made: list[dict[str, str]]) -> list[dict[str, str]]:
        return [one for one in made if "tpot" not in one["series"]]

    return [
        *fine("chat"),
        *with_budget(fine("nousage")),
        *with_budget(fine("embed", first=False)),
        *with_budget(
            requests(HOUR, outcome="error", model="dead", first_content=False, edges=EDGES)
        ),
        *requests({300.0: HOUR}, model="agent", route="agent", edges=EDGES),
    ]


def asked(expression: str, **chosen: str) -> str:
    """Put in what Grafana would: half an hour shown, and nothing chosen but what is given."""
    values = {
        "budget": BUDGET.name, "__range": "30m", "__rate_interval": "4m", "recorded": "*",
        **dict.fromkeys(
            ("cluster", "namespace", "job", "service", "model", "route", "region", "agent",
             "tool"), ".*",
        ),
        **chosen,
    }  # fmt: skip
    return expand(expression, values)


@pytest.mark.parametrize("recorded", ["*", ""])
def test_shares_within_budget_are_those_of_the_alerts(tmp_path, recorded):
    """A request without a figure is in no share of it; another route's in none of this budget.

    Where everything fails the share is 0, and not missing.
    """

    def share(expression: str) -> str:
        return asked(expression, recorded=recorded)

    rules = as_yaml(rule_files([BUDGET], RuleSettings(interval="1m"))["recording.yaml"])
    by_model = {f'{{model="{name}"}}': 1.0 for name in ("chat", "nousage", "embed")}

    outcome_of(
        tmp_path, {"recording.yaml": rules}, traffic(), "59m", every="1m",
        expected=[
            (share(promql.within("tpot", "model", window=promql.RANGE)), {'{model="chat"}': 1.0}),
            (
                share(promql.within("ttft", "model", window=promql.RANGE)),
                {'{model="chat"}': 1.0, '{model="nousage"}': 1.0},
            ),
            (share(promql.within("total", window=promql.RANGE)), {"{}": 1.0}),
            (share(promql.within("total")), {"{}": 1.0}),
            (share(f'{promql.within("availability", window=promql.RANGE)} < 0.8'), {"{}": 0.75}),
            (
                share(promql.least_within("model", window=promql.RANGE)),
                {**by_model, '{model="dead"}': 0.0},
            ),
        ],
    )  # fmt: skip


def test_a_stage_is_held_against_the_bound_its_limit_became(tmp_path):
    """Also where the limit is written with an exponent; and while two limits are exposed."""
    stage = {"outcome": "success", "stage": "render"}
    name = "llmtrace_stage_duration_seconds"
    labels = ", ".join(f'{key}="{value}"' for key, value in LABELS.items())
    limits = [
        {
            "series": f'llmtrace_budget_seconds{{{labels}, budget="dialogue", stage="render", '
            f'bound="{bound}"}}',
            "values": f"{value}x59",
        }
        for bound, value in (("5e-05", "0.00005"), ("1e-05", "0.00001"))
    ]
    counted = [
        series(f"{name}_bucket", [(60, 10.0)], le="1e-05", **stage),
        series(f"{name}_bucket", [(60, 40.0)], le="5e-05", **stage),
        series(f"{name}_bucket", [(60, 50.0)], le="+Inf", **stage),
        series(f"{name}_count", [(60, 50.0)], **stage),
    ]

    outcome_of(
        tmp_path, {}, [*limits, *counted], "59m", every="1m",
        expected=[
            (asked(promql.stage_within(), recorded=""), {'{stage="render"}': 0.8}),
        ],
    )  # fmt: skip


def test_sums_that_are_recorded_come_to_what_is_added_up(tmp_path):
    """A percentile, a count, a mean and a rate: over a window, now and before, and by label."""
    made = [
        *requests({0.3: HOUR, 1.7: [(60, 20.0)]}, model="one", edges=(0.5, 1.0, 2.5)),
        *requests({0.3: HOUR}, model="two", edges=(0.5, 1.0, 2.5)),
        *requests([(60, 6.0)], outcome="error", first_content=False, edges=(0.5,)),
    ]
    rules = as_yaml(rule_files([BUDGET], RuleSettings(interval="1m"))["recording.yaml"])
    counted = f"llmtrace_requests_total{{{promql.REQUESTS}}}"
    window = promql.RANGE
    e2e = "llmtrace_e2e_seconds"

    def both(expression: str, value: float, labels: str = "{}") -> tuple[str, dict[str, float]]:
        """Round, and hold what was recorded against what is added up."""
        recorded, live = (asked(expression, recorded=one) for one in ("*", ""))
        assert recorded != live
        either = f"round({recorded}, 0.001) == round({live}, 0.001)"
        return either, {labels: value}

    outcome_of(
        tmp_path, {"recording.yaml": rules}, made, "59m", every="1m",
        expected=[
            both(promql.quantile(0.95, e2e, window=window), 1.975),
            both(promql.quantile(0.95, e2e, window=window, before="10m"), 1.975),
            both(promql.quantile(0.5, e2e), 0.292),
            # A window holds one sample more than its length, where it begins with one.
            (
                " / ".join(
                    asked(promql.total(counted, window=window), recorded=one) for one in ("*", "")
                ),
                {"{}": 31 / 30},
            ),
            both(promql.total(counted), 2.433),
            both(promql.mean(e2e), 0.5),
            both(
                f'{promql.quantile(0.95, e2e, "model", window=window)} > 1', 2.2, '{model="one"}'
            ),
        ],
    )  # fmt: skip


def test_what_is_chosen_is_added_up_from_its_own_series(tmp_path):
    """A sum over all models says nothing of one of them."""
    made = [
        *requests(HOUR, model="one", edges=(0.5, 1.0)),
        *requests({0.9: HOUR}, model="two", edges=(0.5, 1.0)),
    ]
    rules = as_yaml(rule_files([BUDGET], RuleSettings(interval="1m"))["recording.yaml"])
    p95 = promql.quantile(0.95, "llmtrace_e2e_seconds", window=promql.RANGE)

    outcome_of(
        tmp_path, {"recording.yaml": rules}, made, "59m", every="1m",
        expected=[
            (asked(p95, model="one"), {"{}": 0.475}),
            (asked(p95, model="(one|three)"), {"{}": 0.475}),
            (asked(f"{p95} < 1 > 0.9"), {"{}": 0.95}),
        ],
    )  # fmt: skip


@pytest.mark.parametrize("recorded", ["*", ""])
def test_requests_of_minutes_have_a_percentile_and_an_anatomy(tmp_path, recorded):
    """Of 300 s each: neither is frozen at the two minutes where the bounds once ended."""
    stages = [
        series("llmtrace_anatomy_seconds_total", [(60, 60 * took)], outcome="success",
               stage=stage, over="20.48", le="+Inf")
        for stage, took in (("queue", 60.0), ("decode", 240.0))
    ]  # fmt: skip
    rules = as_yaml(rule_files([BUDGET], RuleSettings(interval="1m"))["recording.yaml"])
    p95, anatomy, mean = (
        asked(expression, recorded=recorded)
        for expression in (
            promql.quantile(0.95, "llmtrace_e2e_seconds", window=promql.RANGE),
            promql.anatomy(),
            promql.mean("llmtrace_e2e_seconds", window=promql.RANGE),
        )
    )

    outcome_of(
        tmp_path, {"recording.yaml": rules},
        [*requests({300.0: HOUR}, edges=LATENCY_S), *stages], "59m", every="1m",
        expected=[
            (f"round({p95}, 0.001)", {"{}": 291.0}),
            (f"round({mean}, 0.001)", {"{}": 300.0}),
            (
                f"round({anatomy}, 0.001)",
                {'{stage="queue"}': 58.2, '{stage="decode"}': 232.8},
            ),
        ],
    )  # fmt: skip
