"""How are rules tried on made-up traffic, by promtool itself?

Traffic is counters as our exporter would show them, minute by minute, in phases; promtool
evaluates the rules over them and compares what fires at the end.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from llmtrace.budget import Budget
from llmtrace_dashboards.rules.burn_rate import RuleSettings
from llmtrace_dashboards.rules.recording_rules import as_yaml, rule_files
from llmtrace_dashboards.rules.slo import bound
from tests.real.conftest import do_without
from tests.real.prometheus import PROMTOOL, missing

LABELS: Final = {
    "model": "tiny", "route": "chat", "service": "shop", "region": "eu",
    "job": "app", "instance": "app:9464",
}  # fmt: skip
Phase = tuple[int, float]  # minutes, and how many a minute


def run(*arguments: str | Path) -> str:
    """Run promtool; return what it says, or fail with it."""
    if reason := missing(PROMTOOL):
        do_without(reason)
    done = subprocess.run(
        [PROMTOOL, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        pytest.fail(f"{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout


def alerting(budgets: Iterable[Budget], settings: RuleSettings | None = None) -> dict[str, str]:
    """Return the text of the rule files, without the sums that panels alone read."""
    files = rule_files(budgets, settings)
    recording = files["recording.yaml"]["groups"]
    sums = {"llmtrace-totals", "llmtrace-totals-by"}
    recording[:] = [group for group in recording if group["name"] not in sums]
    return {name: as_yaml(content) for name, content in files.items()}


def counter(phases: Iterable[Phase]) -> str:
    """Write a counter sampled each minute that grows as phases say, in promtool's notation."""
    parts, value = [], 0.0
    for minutes, rate in phases:
        parts.append(f"{value:.10g}+{rate:.10g}x{minutes - 1}")
        value += rate * minutes
    return " ".join(parts)


def series(name: str, phases: Iterable[Phase], **labels: str) -> dict[str, str]:
    """Return one input series."""
    label_text = ", ".join(f'{k}="{v}"' for k, v in {**LABELS, **labels}.items())
    return {"series": f"{name}{{{label_text}}}", "values": counter(phases)}


def histogram(
    name: str, phases: Mapping[float, Sequence[Phase]], edges: Iterable[float], **labels: str
) -> list[dict[str, str]]:
    """Return a histogram's buckets, sum and count.

    Args:
        name: of the metric, without a suffix.
        phases: by a request's duration in seconds, how many there were when.
        edges: upper bounds, in seconds.
        labels: of the series.
    """

    def together(which: list[Sequence[Phase]]) -> list[Phase]:
        return [
            (minutes[0][0], sum(rate for _, rate in minutes))
            for minutes in zip(*which, strict=True)
        ]

    none = [[(minutes, 0.0) for minutes, _ in next(iter(phases.values()))]]
    made = [
        series(
            f"{name}_bucket",
            together([*none, *(many for took, many in phases.items() if took <= edge)]),
            le=bound(edge),
            **labels,
        )
        for edge in sorted(edges)
    ]
    everyone = together([*none, *phases.values()])
    seconds = [[(n, rate * took) for n, rate in many] for took, many in phases.items()]
    return [
        *made,
        series(f"{name}_sum", together([*none, *seconds]), **labels),
        series(f"{name}_bucket", everyone, le="+Inf", **labels),
        series(f"{name}_count", everyone, **labels),
    ]


def requests(
    phases: Sequence[Phase] | Mapping[float, Sequence[Phase]],
    *,
    outcome: str = "success",
    first_content: bool | float = True,
    edges: Iterable[float] = (0.5, 1.0, 2.5, 5.0),
    **labels: str,
) -> list[dict[str, str]]:
    """Return the series of some requests.

    Args:
        phases: how many a minute, when; by how long they took, where that matters (their time
            to first content is the same, their time per token a hundredth).
        outcome: how they ended.
        first_content: whether they showed any; or after how many seconds all of them did.
        edges: bucket bounds, in seconds; few, because every one of them costs time here.
        labels: other than `LABELS`.
    """
    by_time = phases if isinstance(phases, Mapping) else {0.3: phases}
    named = {"outcome": outcome, **labels}
    counted = [
        (minutes[0][0], sum(rate for _, rate in minutes))
        for minutes in zip(*by_time.values(), strict=True)
    ]
    per_token = {took / 100: many for took, many in by_time.items()}
    if first_content is False:
        shown = {0.0: [(minutes, 0.0) for minutes, _ in counted]}
    else:
        shown = dict(by_time) if first_content is True else {first_content: counted}
    return [
        series("llmtrace_requests_total", counted, **named),
        *histogram("llmtrace_e2e_seconds", by_time, edges, **named),
        *histogram("llmtrace_ttft_seconds", shown, edges, **named),
        *histogram("llmtrace_tpot_seconds", per_token, edges, **named),
    ]


def outcome_of(
    folder: Path,
    rules: Mapping[str, str],
    inputs: Iterable[Mapping[str, str]],
    at: str,
    *,
    every: str = "5m",
    expected: Sequence[tuple[str, Mapping[Any, float]]] = (),
    alerts: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Let promtool evaluate rules over input series, and compare.

    Args:
        folder: to write in.
        rules: text of rule files, by name.
        inputs: series.
        at: when to look, in Prometheus's notation, from the start.
        every: between two evaluations.
        expected: expressions with their values, by the labels (as in `{a="b"}`) of each.
        alerts: promtool's own alert tests.
    """
    for name, text in rules.items():
        (folder / name).write_text(text, encoding="utf-8")
    test = {
        "rule_files": list(rules),
        "evaluation_interval": every,
        "group_eval_order": [
            group["name"] for text in rules.values() for group in yaml.safe_load(text)["groups"]
        ],
        "tests": [
            {
                "interval": "1m",
                "input_series": list(inputs),
                "promql_expr_test": [
                    {
                        "expr": expression,
                        "eval_time": at,
                        "exp_samples": [
                            {"labels": labels, "value": value} for labels, value in values.items()
                        ],
                    }
                    for expression, values in expected
                ],
                "alert_rule_test": list(alerts),
            }
        ],
    }
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(test, width=10_000), encoding="utf-8")
    run("test", "rules", file)
