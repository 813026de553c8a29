"""Do the dashboards show what happened: real requests, a real Prometheus, Grafana's own panels?"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from llmtrace import local_vllm
from llmtrace.stages import STAGES
from llmtrace_dashboards.lint.expressions import chosen, expand, panels, targets, variables

from . import drawing
from .conftest import do_without
from .prometheus import get, missing
from .shop import EVERY_S, RUSH_S, Shop, open_shop

# Who leaves in the middle of a stream leaves httpx's own generators to the garbage collector,
# which closes them while the loop does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(BoundAsyncStream|aiter_raw).*:pytest.PytestUnraisableExceptionWarning"
)

FOLDER: Final = Path(__file__).parents[2] / "dashboards" / "json"
FILES: Final = tuple(sorted(FOLDER.glob("*.json")))
# Four scrapes, as Grafana makes of a scrape interval.
_RATE: Final = f"{4 * EVERY_S}s"
# How long before the rush `before` lies: the calm.
_BEFORE: Final = f"{RUSH_S:g}s"
_TOLD: Final = ("gateway", "queue", "prefill")


@pytest.fixture(scope="module")
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """Let people ask a simulated engine, and a real vLLM where there is one."""
    if reason := missing("prometheus"):
        do_without(reason)
    vllm = None
    if local_vllm.find_python() is not None or os.environ.get("CI") == "true":
        server = request.getfixturevalue("vllm")
        vllm = (server.url, server.model)
    with open_shop(vllm) as opened:
        yield opened


def read(path: Path) -> dict[str, Any]:
    """Read a dashboard."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def choices(dashboard: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield what the variables may stand at: everything, and each choice of the custom ones."""
    values = {**chosen(dashboard), "budget": "dialogue", "before": _BEFORE, "datasource": "x"}
    yield values
    for variable in variables(dashboard):
        if variable["type"] == "custom" and variable["name"] != "before":
            for choice in variable["query"].split(",")[1:]:
                yield {**values, variable["name"]: choice}


def answers(shop: Shop, expression: str, *, instant: bool) -> bool:
    """Whether a query has a finite value, at the end of the rush or at any time in it."""
    if instant:
        found = get(shop.prometheus, "/api/v1/query", query=expression, time=str(shop.end))
        return any(math.isfinite(float(one["value"][1])) for one in found["data"]["result"])
    series = get(
        shop.prometheus, "/api/v1/query_range", query=expression,
        start=str(shop.start), end=str(shop.end), step="1",
    )["data"]["result"]  # fmt: skip
    return any(math.isfinite(float(value)) for one in series for _, value in one["values"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_query_of_every_panel_has_data(shop: Shop, path: Path):
    """Whatever is chosen at the top, no panel asks for what is not there."""
    dashboard = read(path)
    asked, silent = 0, []
    done = set()
    for values in choices(dashboard):
        spans = {
            "__rate_interval": _RATE,
            "__range": f"{math.ceil(shop.end - shop.rush)}s",
            "__range_s": str(math.ceil(shop.end - shop.rush)),
        }
        for panel in panels(dashboard):
            for target in targets(panel):
                expression = expand(target["expr"], {**values, **spans})
                if expression in done:
                    continue
                done.add(expression)
                asked += 1
                if not answers(shop, expression, instant=target.get("instant", False)):
                    silent.append(f"{panel['title']}, {target['refId']}: {expression}")

    assert asked > 10
    assert silent == [], "\n".join(silent)


def test_the_rush_is_in_the_queue(shop: Shop):
    """Where the slow phase was put is where the dashboard's own query shows it."""
    panel = next(
        one for one in panels(read(FOLDER / "llmtrace-stages.json")) if "mean" in one["title"]
    )
    expression = expand(
        next(targets(panel))["expr"],
        {**dict.fromkeys(("service", "route", "region"), ".*"), "model": "llmtrace-sim",
         "__rate_interval": _RATE},
    )  # fmt: skip

    def at(moment: float) -> dict[str, float]:
        found = get(shop.prometheus, "/api/v1/query", query=expression, time=str(moment))
        return {one["metric"]["stage"]: float(one["value"][1]) for one in found["data"]["result"]}

    calm, rush = at(shop.rush - 1), at(shop.rush + RUSH_S - 1)
    # Of what the engine and its gateway tell: on a busy machine the reader is slow, too.
    moved = {stage: rush[stage] - calm.get(stage, 0.0) for stage in _TOLD}

    assert set(STAGES) <= set(rush)
    assert max(moved, key=lambda stage: moved[stage]) == "queue"
    assert rush["queue"] > 3 * calm["queue"]


def test_exemplars_lead_to_traces_of_requests(shop: Shop):
    """The dots on the triage page carry trace ids, and those are of requests that were made."""
    found = get(
        shop.prometheus, "/api/v1/query_exemplars", query="llmtrace_e2e_seconds_bucket",
        start=str(shop.start), end=str(shop.end),
    )["data"]  # fmt: skip
    traces = {dot["labels"]["trace_id"] for series in found for dot in series["exemplars"]}

    assert traces
    assert traces <= shop.traces


@pytest.fixture(scope="module")
def drawn(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> dict[str, drawing.Report]:
    """Draw every dashboard, and one with faults."""
    if reason := drawing.why_not():
        do_without(reason)
    folder = Path(os.environ.get("LLMTRACE_PICTURES") or tmp_path_factory.mktemp("pictures"))
    times = {"start": iso(shop.rush), "end": iso(shop.end), "scrape": f"{EVERY_S}s"}
    jobs = [
        drawing.Job(
            dashboard=path, **times, choose={"before": _BEFORE}, png=folder / f"{path.stem}.png"
        )
        for path in FILES
    ]
    jobs.append(drawing.Job(dashboard=faulty(), **times))
    names = (*(path.stem for path in FILES), "faulty")
    return dict(zip(names, drawing.draw(shop.prometheus, jobs), strict=True))


def iso(seconds: float) -> str:
    """Write a moment as Grafana takes it."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_dashboard_is_drawn_without_a_problem(drawn: dict[str, drawing.Report], path: Path):
    """In Chromium, with Grafana's packages: every panel shows data, nothing is ignored."""
    report, dashboard = drawn[path.stem], read(path)

    assert report.problems == []
    assert report.empty == []
    assert {panel["id"] for panel in report.panels} == {panel["id"] for panel in panels(dashboard)}
    assert {panel["drawnBy"] for panel in report.panels} <= {
        "grafana-ui component", "cells drawn by this harness",
    }  # fmt: skip


def test_what_grafana_would_draw_and_the_harness_does_not(drawn: dict[str, drawing.Report]):
    """Only exemplars and annotations are left out, and that is said."""
    left_out = {note for report in drawn.values() for note in report.found["notes"]}

    assert {note.partition(" ")[0] for note in left_out} == {"annotation", "panel"}
    assert all("annotation" in note or "exemplars" in note for note in left_out)


def test_the_anatomy_adds_up_to_the_p95(drawn: dict[str, drawing.Report]):
    """Bars of the budget page are seconds of stages, and their sum is the p95 beside them."""
    report = drawn["llmtrace-budget"]
    bars = {
        value["name"]: value["last"]
        for value in report.panel("Anatomy of the p95 request (adds up to p95)")["values"]
    }
    p95 = next(
        value["last"]
        for value in report.panel("p95")["values"]
        if value["name"] == "whole request"
    )

    assert set(bars) == {*STAGES, "unattributed"}
    assert sum(bars.values()) == pytest.approx(p95, rel=1e-6)


def test_figures_have_units_and_words(drawn: dict[str, drawing.Report]):
    """What a reader sees are shares, seconds and tokens, not bare numbers."""
    budget, engine = drawn["llmtrace-budget"], drawn["llmtrace-engine"]

    assert all(text.endswith("%") for text in budget.shown("Requests within budget").values())
    assert all(text.endswith("s") for text in budget.shown("p95").values())
    assert any(text.endswith("tok/s") for text in engine.shown("Tokens generated").values())


# --- faults -------------------------------------------------------------------------------------


def faulty() -> dict[str, Any]:
    """Return the stage breakdown with a fault in each of eight panels."""
    dashboard = copy.deepcopy(read(FOLDER / "llmtrace-stages.json"))
    some = list(panels(dashboard))
    some[0]["targets"][0]["expr"] = "sum by (stage) (rate("
    some[1]["targets"][0]["expr"] = "llmtrace_no_such_metric"
    some[2]["fieldConfig"]["defaults"]["unit"] = "percent_unit"
    some[3]["options"]["showHeaders"] = True
    some[4]["fieldConfig"]["defaults"]["custom"]["lineWidht"] = 2
    some[5]["type"] = "piechart"
    some[6]["datasource"] = {"type": "prometheus", "uid": "somebody-elses"}
    some[6]["targets"][0]["datasource"] = some[6]["datasource"]
    some[7]["transformations"] = [{"id": "reorganise", "options": {}}]
    for place, panel in enumerate(some[:8]):
        panel["title"] = f"fault {place}"
    return dashboard


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (0, "parse error"),
        (2, "percent_unit"),
        (3, "showHeaders"),
        (4, "lineWidht"),
        (5, "piechart"),
        (6, "somebody-elses"),
        (7, "reorganise"),
    ],
)
def test_a_planted_fault_is_caught(drawn: dict[str, drawing.Report], place: int, said: str):
    """A bad query, unit, option, panel, data source or transformation does not go unseen."""
    assert any(said in problem for problem in drawn["faulty"].problems)
    if place == 6:
        return  # the harness names the data source and not the panel
    assert any(
        f"fault {place}" in problem and said in problem for problem in drawn["faulty"].problems
    )


def test_a_metric_that_is_not_there_leaves_its_panel_empty(drawn: dict[str, drawing.Report]):
    """And the panel says so in the words it was given."""
    assert "fault 1" in drawn["faulty"].empty
    assert "No requests in this time range" in drawn["faulty"].panel("fault 1")["text"]
