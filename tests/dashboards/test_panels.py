"""Do the panels on budgets say what the alerts count? promtool evaluates the same expressions."""

from __future__ import annotations

from llmtrace.budget import Budget
from llmtrace_dashboards import promql
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


def asked(expression: str) -> str:
    """Put in what Grafana would: everything chosen, half an hour shown."""
    for name, value in (("$budget", BUDGET.name), ("$__range", "30m"), ("$__rate_interval", "4m")):
        expression = expression.replace(name, value)
    for name in ("service", "model", "route", "region"):
        expression = expression.replace(f"${name}", ".*")
    return expression


def test_shares_within_budget_are_those_of_the_alerts(tmp_path):
    """A request without a figure is in no share of it; another route's in none of this budget.

    Where everything fails the share is 0, and not missing.
    """
    rules = as_yaml(rule_files([BUDGET], RuleSettings(interval="1m"))["recording.yaml"])
    by_model = {f'{{model="{name}"}}': 1.0 for name in ("chat", "nousage", "embed")}

    outcome_of(
        tmp_path, {"recording.yaml": rules}, traffic(), "59m", every="1m",
        expected=[
            (asked(promql.within("tpot", "model", window=promql.RANGE)), {'{model="chat"}': 1.0}),
            (
                asked(promql.within("ttft", "model", window=promql.RANGE)),
                {'{model="chat"}': 1.0, '{model="nousage"}': 1.0},
            ),
            (asked(promql.within("total", window=promql.RANGE)), {"{}": 1.0}),
            (asked(promql.within("total")), {"{}": 1.0}),
            (asked(f'{promql.within("availability", window=promql.RANGE)} < 0.8'), {"{}": 0.75}),
            (
                asked(promql.least_within("model", window=promql.RANGE)),
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
        expected=[(asked(promql.stage_within(promql.RANGE)), {'{stage="render"}': 0.8})],
    )  # fmt: skip
