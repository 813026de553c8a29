"""Define the variables that are chosen at the top of the dashboards.

The values of each are queried from the metrics, narrowed by the choices before it.
"""

from __future__ import annotations

from typing import Final

from llmtrace.display.colours import NEAR, NEUTRAL, OVER, WITHIN
from llmtrace_dashboards.panels import Annotation, Step, Variable
from llmtrace_dashboards.rules.totals import INTERVAL

_REQUESTS: Final = "llmtrace_requests_total"

SERVICE: Final = Variable(
    name="service",
    label="Service",
    description="The application that sends the requests, as named in `init`.",
    query=f"label_values({_REQUESTS}, service)",
)
MODEL: Final = Variable(
    name="model",
    label="Model",
    description="The requested model.",
    query=f'label_values({_REQUESTS}{{service=~"$service"}}, model)',
)
ROUTE: Final = Variable(
    name="route",
    label="Route",
    description="Which feature of the application sends the requests.",
    query=f'label_values({_REQUESTS}{{service=~"$service"}}, route)',
)
REGION: Final = Variable(
    name="region",
    label="Region",
    description="Where the application runs.",
    query=f'label_values({_REQUESTS}{{service=~"$service"}}, region)',
)
REQUESTS: Final = (SERVICE, MODEL, ROUTE, REGION)

BUDGET: Final = Variable(
    name="budget",
    label="Budget",
    description="Which latency budget requests are compared with.",
    query="label_values(llmtrace_budget_seconds, budget)",
    several=False,
)
COMPARED: Final = Variable(
    name="by",
    label="Compare by",
    description="What the last panels compare.",
    choices=("model", "route", "service", "region"),
)
BEFORE: Final = Variable(
    name="before",
    label="Before",
    description="How far back the time lies that the time shown is compared with.",
    choices=("1d", "1h", "3h", "6h", "2d", "1w"),
)


def _recorded(then: str) -> Variable:
    there = f'label_replace({then}, "recorded", "*", "", "")'
    return Variable(
        name="recorded",
        label="Recorded",
        description="Whether the recording rules were loaded when the time shown began: then "
        "panels read recorded sums as long as nothing is chosen.",
        query=f"query_result({there})",
        regex='/recorded="(.*?)"/',
        several=False,
        hidden=True,
    )


RECORDED: Final = _recorded(f"{INTERVAL} offset $__range")
RECORDED_BEFORE: Final = _recorded(
    f"max_over_time(({INTERVAL} offset $before)[2m:1m] offset $__range)"
)
ENGINE_MODEL: Final = Variable(
    name="model",
    label="Model",
    description="The model engines serve.",
    query="label_values(llmtrace_engine_requests_running, model)",
)
INSTANCE: Final = Variable(
    name="instance",
    label="Instance",
    description="Engines, gateways and GPU exporters the collector reads.",
    query="label_values(llmtrace_target_up, instance)",
)
AGENT: Final = Variable(
    name="agent",
    label="Agent",
    description="The agent whose turns are shown.",
    query='label_values(llmtrace_turn_duration_seconds_count{service=~"$service"}, agent)',
)
TOOL: Final = Variable(
    name="tool",
    label="Tool",
    description="The tool whose calls are shown.",
    query='label_values(llmtrace_tool_duration_seconds_count{service=~"$service"}, tool)',
)

# A share of what is allowed; below nothing is said by colour.
USED: Final[tuple[Step, ...]] = ((None, WITHIN), (0.8, NEAR), (1.0, OVER))
# A share of requests that are good, for an objective of 95 %.
GOOD: Final[tuple[Step, ...]] = ((None, OVER), (0.95, NEAR), (0.97, WITHIN))
# A share of requests that went wrong.
BAD: Final[tuple[Step, ...]] = ((None, NEUTRAL), (0.01, NEAR), (0.05, OVER))

# A cache or a queue of limited size.
FULL: Final[tuple[Step, ...]] = ((None, NEUTRAL), (0.9, NEAR), (0.97, OVER))
# What is left of something.
LEFT: Final[tuple[Step, ...]] = ((None, OVER), (0.0, NEAR), (0.25, WITHIN))

# What `llmtrace triage serve` writes into Grafana, and alerts that fire.
TRIAGED: Final = Annotation(name="Triage", colour="#5794F2", tags=("llmtrace",))
FIRING: Final = Annotation(
    name="Alerts",
    colour=OVER,
    expr='max by (alertname, severity) (ALERTS{alertname=~"Llmtrace.*", alertstate="firing"})',
    title="{{alertname}}",
    text="{{severity}}",
)
MARKS: Final = (TRIAGED, FIRING)
