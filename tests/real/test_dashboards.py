"""Do the dashboards show what happened: real requests, a real collector, a real Prometheus?

Drawn by Grafana's own packages, in Chromium. What runs, and what is slow when: shop.py.
"""

from __future__ import annotations

import copy
import json
import math
import os
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from llmtrace.core.stages import PARTITION, STAGES
from llmtrace.engines.local_vllm import Server
from llmtrace_dashboards.lint.queries import chosen, expand, panels, targets, variables

from . import drawing
from .conftest import do_without
from .people import ROUTES
from .prometheus import get, missing
from .shop import EVERY_S, SLOW_S, Phase, Shop, open_shop

# Who leaves in the middle of a stream leaves httpx's own generators to the garbage collector,
# which closes them while the loop does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*(BoundAsyncStream|aiter_raw).*:pytest.PytestUnraisableExceptionWarning"
)

FOLDER: Final = Path(__file__).parents[2] / "dashboards" / "json"
FILES: Final = tuple(sorted(FOLDER.glob("*.json")))
# Four scrapes, as Grafana makes of a scrape interval.
_RATE: Final = f"{4 * EVERY_S}s"
# What the engine and its gateway tell: on a busy machine the reader is slow, too.
_REPORTED: Final = ("gateway", "queue", "prefill")
_MOVED: Final = "Which stage moved? Change of the p95's anatomy"


@pytest.fixture(scope="module")
def shop(vllm: Server) -> Iterator[Shop]:
    """Let people ask a real vLLM."""
    if reason := missing("prometheus"):
        do_without(reason)
    with open_shop(vllm) as opened:
        yield opened


def before(shop: Shop, phase: Phase) -> str:
    """Return how far back the calm lies, as `$before` takes it."""
    return f"{phase.end - shop.calm.end:.0f}s"


def read(path: Path) -> dict[str, Any]:
    """Read a dashboard."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def choices(dashboard: dict[str, Any], ago: str) -> Iterator[dict[str, str]]:
    """Yield what the variables may stand at: everything, and each choice of the custom ones."""
    values = {
        **chosen(dashboard),
        "budget": "dialogue",
        "before": ago,
        "datasource": "x",
        "engine": "vllm",
    }
    yield values
    yield {**values, "recorded": "*"}
    for variable in variables(dashboard):
        if variable["type"] == "custom" and variable["name"] != "before":
            for choice in variable["query"].split(",")[1:]:
                yield {**values, variable["name"]: choice}


def asked_at(shop: Shop, expression: str, phase: Phase) -> list[tuple[dict[str, str], float]]:
    """Return the labels and value of each series at the end of a phase."""
    found = get(shop.prometheus, "/api/v1/query", query=expression, time=str(phase.end))
    return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]


def spans(phase: Phase) -> dict[str, str]:
    """Return what Grafana would put in for its own variables."""
    return {
        "__rate_interval": _RATE,
        "__range": f"{phase.seconds}s",
        "__range_s": str(phase.seconds),
    }


def answers(shop: Shop, expression: str, *, instant: bool) -> bool:
    """Whether a query has a finite value, at the end of the rush or at any time."""
    if instant:
        return any(math.isfinite(value) for _, value in asked_at(shop, expression, shop.rush))
    series = get(
        shop.prometheus, "/api/v1/query_range", query=expression,
        start=str(shop.calm.start), end=str(shop.rush.end), step="1",
    )["data"]["result"]  # fmt: skip
    return any(math.isfinite(float(value)) for one in series for _, value in one["values"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_query_of_every_panel_has_data(shop: Shop, path: Path):
    """Whatever is chosen at the top, no panel asks for what is not there."""
    dashboard = read(path)
    asked, silent = 0, []
    done = set()
    for values in choices(dashboard, before(shop, shop.rush)):
        for panel in panels(dashboard):
            for target in targets(panel):
                expression = expand(target["expr"], {**values, **spans(shop.rush)})
                if expression in done:
                    continue
                done.add(expression)
                asked += 1
                if not answers(shop, expression, instant=target.get("instant", False)):
                    silent.append(f"{panel['title']}, {target['refId']}: {expression}")

    assert asked > 10
    assert silent == [], "\n".join(silent)


def p95s(shop: Shop, phase: Phase) -> dict[str, float]:
    """Return each stage's p95 in a phase, as the page on stages asks for the shop's routes."""
    (panel,) = (
        one
        for one in panels(read(FOLDER / "llmtrace-stages.json"))
        if one["title"] == "Percentiles of each stage (do not add)"
    )
    (asked,) = (one["expr"] for one in targets(panel) if "quantile(0.95" in one["expr"])
    anywhere = dict.fromkeys(("cluster", "namespace", "job", "model", "region"), ".*")
    those = {**anywhere, "service": "shop", "route": ROUTES}
    found = asked_at(shop, expand(asked, {**those, **spans(phase)}), phase)
    return {labels["stage"]: value for labels, value in found if math.isfinite(value)}


def engine_queue_s(shop: Shop, phase: Phase) -> float:
    """Return the mean time in the queue in a phase, by the engine's own histogram."""
    total, requests = (
        f'sum(increase(llmtrace_engine_queue_seconds_{what}{{instance="{shop.engine}"}}'
        f"[{phase.seconds}s]))"
        for what in ("sum", "count")
    )
    ((_, value),) = asked_at(shop, f"{total} / {requests}", phase)
    return value


def test_every_request_is_counted_once(shop: Shop):
    """Those of the shop by the collector; the planner's by its own page alone."""
    counted = asked_at(shop, "sum by (job, service) (llmtrace_requests_total)", shop.rush)
    found = {(one["job"], one["service"]): requests for one, requests in counted}

    assert found.keys() == {("llmtrace-collector", "shop"), ("planner", "planner")}
    assert found["llmtrace-collector", "shop"] == len(shop.rows)
    # Its rows are at the collector, too, which was configured not to count them.
    known = f"{shop.collector}/api/v1/rows?start=-1h&service=planner"
    with urllib.request.urlopen(known, timeout=60) as rows:
        assert len(rows.read().splitlines()) > 10


def test_a_slow_gateway_is_in_the_gateway(shop: Shop):
    """Where the delay was put is where the dashboard's own query shows it, and how long it is."""
    calm, slow = p95s(shop, shop.calm), p95s(shop, shop.slow)
    moved = {stage: slow[stage] - calm[stage] for stage in _REPORTED}

    assert max(moved, key=lambda stage: moved[stage]) == "gateway"
    # Each request was held 0.7 to 1.4 times as long, and on a busy machine longer.
    assert slow["gateway"] > SLOW_S
    assert moved["gateway"] > SLOW_S / 2


def test_a_rush_is_in_the_queue(shop: Shop):
    """More than a real engine can do at once: requests wait in its scheduler, and it says so."""
    calm, rush = p95s(shop, shop.calm), p95s(shop, shop.rush)
    moved = {stage: rush[stage] - calm[stage] for stage in _REPORTED}

    assert set(STAGES) <= set(rush)
    assert max(moved, key=lambda stage: moved[stage]) == "queue"
    assert rush["queue"] > 3 * calm["queue"]
    # The engine's page, which the collector reads, agrees with what it reported to its clients.
    assert engine_queue_s(shop, shop.rush) > 3 * engine_queue_s(shop, shop.calm)


def test_exemplars_lead_to_traces_of_requests(shop: Shop):
    """The dots on the triage page carry trace ids, and those are of requests that were made."""
    found = get(
        shop.prometheus, "/api/v1/query_exemplars",
        query='llmtrace_e2e_seconds_bucket{service="shop"}',
        start=str(shop.calm.start), end=str(shop.rush.end),
    )["data"]  # fmt: skip
    traces = {dot["labels"]["trace_id"] for series in found for dot in series["exemplars"]}

    assert traces
    assert traces <= {row.trace_id for row in shop.rows}


@pytest.fixture(scope="module")
def drawn(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> dict[str, drawing.Report]:
    """Draw every dashboard over the rush, one over the slow gateway, and one with faults."""
    if reason := drawing.why_not():
        do_without(reason)
    folder = Path(os.environ.get("LLMTRACE_PICTURES") or tmp_path_factory.mktemp("pictures"))

    def job(dashboard: Any, phase: Phase, name: str, **choose: str) -> drawing.Job:
        return drawing.Job(
            dashboard=dashboard,
            start=iso(phase.start),
            end=iso(phase.end),
            scrape=f"{EVERY_S}s",
            choose={"before": before(shop, phase), **choose},
            png=folder / f"{name}.png",
        )

    jobs = {path.stem: job(path, shop.rush, path.stem) for path in FILES}
    # Not of the planner, whose turns may be as long, and which asks the engine itself.
    jobs["slow"] = job(
        FOLDER / "llmtrace-triage.json", shop.slow, "slow", service="shop", route=ROUTES
    )
    jobs["faulty"] = job(faulty(), shop.rush, "faulty")
    return dict(zip(jobs, drawing.draw(shop.prometheus, [*jobs.values()]), strict=True))


def iso(seconds: float) -> str:
    """Write a moment as Grafana takes it."""
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


def test_panels_read_recorded_sums_where_there_are_any(drawn: dict[str, drawing.Report]):
    """A variable that is not shown says so: the rules had been loaded when the rush began.

    Not of the triage board, which is drawn as "slow" too: it compares with what was before, and
    looks further back than the rules are old.
    """
    recorded = {
        name: {one["name"]: one["value"] for one in report.found["variables"]}["recorded"]
        for name, report in drawn.items()
        if name not in {"llmtrace-triage", "slow"}
    }

    assert len(recorded) == len(FILES)  # and the one with faults
    assert recorded == dict.fromkeys(recorded, "*")


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

    assert set(bars) == set(PARTITION)
    assert sum(bars.values()) == pytest.approx(p95, rel=1e-6)


@pytest.mark.parametrize(("name", "stage"), [("slow", "gateway"), ("llmtrace-triage", "queue")])
def test_the_page_for_who_is_on_call_shows_what_moved(
    drawn: dict[str, drawing.Report], name: str, stage: str
):
    """Of what the engine and its gateway tell, the longest bar is where the trouble was put."""
    bars = {value["name"]: value["last"] for value in drawn[name].panel(_MOVED)["values"]}
    now = drawn[name].panel("p95, whole request")["values"]

    assert max(_REPORTED, key=lambda one: bars[one]) == stage
    assert bars[stage] > 0.1
    # The bars are what the p95 changed by.
    change = {value["name"]: value["last"] for value in now}
    assert sum(bars.values()) == pytest.approx(change["now"] - change["before"], rel=1e-6)


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
    some[6]["datasource"] = {"type": "prometheus", "uid": "another-one"}
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
        (6, "another-one"),
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
