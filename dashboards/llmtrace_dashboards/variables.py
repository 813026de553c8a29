"""Define the variables that are chosen at the top of the dashboards.

The values of each are queried from the metrics, narrowed by the choices before it.
"""

from __future__ import annotations

from typing import Final

from llmtrace.display.colours import NEAR, NEUTRAL, OVER, WITHIN
from llmtrace_dashboards.panels import Annotation, Step, Variable
from llmtrace_dashboards.rules.engine_limits import METRIC as ENGINE_LIMITS
from llmtrace_dashboards.rules.totals import INTERVAL

_REQUESTS: Final = "llmtrace_requests_total"
_PLACES: Final = {
    "cluster": "The cluster, where Prometheus labels its series with it.",
    "namespace": "The Kubernetes namespace of what is scraped, where there is one.",
    "job": "Prometheus's name for a group of targets that it scrapes.",
}


def _label(name: str, series: str, description: str, *, several: bool = True) -> Variable:
    """Return the variable of a label's values, called like the label."""
    return Variable(
        name=name,
        label=name.capitalize(),
        description=description,
        query=f"label_values({series}, {name})",
        several=several,
    )


def _places(metric: str) -> tuple[Variable, ...]:
    """Return the variables of where something runs, each narrowed by those before it."""
    made: list[Variable] = []
    for name, description in _PLACES.items():
        narrowed = ", ".join(f'{one.name}=~"${one.name}"' for one in made)
        chosen = f"{{{narrowed}}}" if narrowed else ""
        made.append(_label(name, f"{metric}{chosen}", description))
    return tuple(made)


REQUEST_PLACES: Final = _places(_REQUESTS)
_CHOSEN: Final = ", ".join(f'{one.name}=~"${one.name}"' for one in REQUEST_PLACES)
_OF_SERVICE: Final = f'{_REQUESTS}{{{_CHOSEN}, service=~"$service"}}'
ENGINE_PLACES: Final = _places("llmtrace_target_up")

SERVICE: Final = _label(
    "service",
    f"{_REQUESTS}{{{_CHOSEN}}}",
    "The application that sends the requests, as named in `init`.",
)
MODEL: Final = _label("model", _OF_SERVICE, "The requested model.")
ROUTE: Final = _label("route", _OF_SERVICE, "Which feature of the application sends the requests.")
REGION: Final = _label("region", _OF_SERVICE, "Where the application runs.")
REQUESTS: Final = (*REQUEST_PLACES, SERVICE, MODEL, ROUTE, REGION)

BUDGET: Final = _label(
    "budget",
    "llmtrace_budget_seconds",
    "Which latency budget requests are compared with.",
    several=False,
)
ENGINE_BUDGET_NAME: Final = _label(
    "budget", ENGINE_LIMITS, "Which latency budget's part of the engine is shown.", several=False
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
ENGINE_KIND: Final = _label(
    "engine",
    "llmtrace_engine_requests_running",
    "The kind of engine: vLLM, SGLang and so on, whose buckets differ.",
    several=False,
)
ENGINE_MODEL: Final = _label(
    "model", "llmtrace_engine_requests_running", "The model engines serve."
)
INSTANCE: Final = _label(
    "instance", "llmtrace_target_up", "Engines, gateways and GPU exporters the collector reads."
)
AGENT: Final = _label(
    "agent",
    'llmtrace_turn_duration_seconds_count{service=~"$service"}',
    "The agent whose turns are shown.",
)
TOOL: Final = _label(
    "tool",
    'llmtrace_tool_duration_seconds_count{service=~"$service"}',
    "The tool whose calls are shown.",
)

# A share of what is allowed.
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
