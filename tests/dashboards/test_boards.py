"""The dashboards as they are written: whole, linked, and asking only for what exists."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from llmtrace.budget import DEFAULT
from llmtrace.cli import main
from llmtrace.core.stages import PARTITION, STAGES
from llmtrace.display.colours import OUTCOME_COLOURS, STAGE_COLOURS
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_dashboards.boards import dashboards, text
from llmtrace_dashboards.export_files import files, write
from llmtrace_dashboards.lint import lint
from llmtrace_dashboards.lint.queries import chosen, expand, panels, selectors, targets, variables
from llmtrace_dashboards.rules import recording_series
from llmtrace_dashboards.rules.totals import INTERVAL, P95S, TOTALS, p95_of

ROOT = Path(__file__).parents[2]
MADE = dashboards()
DRAWN = {"timeseries", "stat", "bargauge", "table", "heatmap", "text"}
HEALTH = {
    "llmtrace_target_up", "llmtrace_target_scrape_seconds", "llmtrace_target_missing_signals",
    "llmtrace_target_failures_total", "llmtrace_target_late_total",
    "llmtrace_engine_frontend_mean_seconds", "llmtrace_engine_budget_seconds", "ALERTS",
}  # fmt: skip
every = pytest.mark.parametrize("name", MADE)


def exposed() -> set[str]:
    """Every name a metrics page of ours may have, as a query would say it."""
    registry = CollectorRegistry()
    sink = PrometheusSink(registry=registry)
    kinds = {family.name: family.type for family in sink.describe()}
    sink.close()
    kinds |= {signal.metric.removesuffix("_total"): signal.kind for signal in SIGNALS.values()}
    names = set(HEALTH)
    for name, kind in kinds.items():
        endings = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",)}
        names |= {f"{name}{ending}" for ending in endings.get(kind, ("",))}
    return names


def recorded_names() -> set[str]:
    """Every series a dashboard may take from recording rules."""
    ratios = {recording_series.bad_ratio(window) for window in ("5m", "1h", "6h")}
    rates = {recording_series.bad_rate(), recording_series.valid_rate()}
    sums = {total.name(dimension) for total in TOTALS.values() for dimension in ("", *total.by)}
    sums |= set(map(p95_of, P95S))
    others = {recording_series.ALLOWED, recording_series.REMAINING, INTERVAL}
    return {*ratios, *rates, *sums, *others}


@every
def test_the_files_are_as_the_code_has_them(name: str):
    """What is committed is what is made; scripts/dashboards.py writes it anew."""
    path = ROOT / "dashboards" / "json" / name

    assert path.read_text(encoding="utf-8") == text(MADE[name])


def test_the_script_finds_what_is_out_of_date():
    """It compares all, and says what to run."""
    script = [sys.executable, str(ROOT / "scripts" / "dashboards.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


@every
def test_nothing_is_wrong_with_them(name: str):
    """Our own linter, warnings included."""
    assert lint(MADE[name]) == []


@every
def test_every_name_exists(name: str):
    """Each metric a panel asks for is one our exporters or recording rules make."""
    dashboard = MADE[name]
    values, known = chosen(dashboard), exposed() | recorded_names()
    asked = {
        selected.metric
        for panel in panels(dashboard)
        for target in targets(panel)
        for selected in selectors(expand(target["expr"], values))
    }

    assert asked
    assert asked - known == set()


def test_every_sum_that_is_recorded_is_read_by_a_panel():
    """And each label that a panel matches in it, or keeps of it, is one that it has."""
    read = set()
    for made in MADE.values():
        for values in ({**chosen(made), "by": by} for by in recording_series.DIMENSIONS):
            for panel in panels(made):
                for target in targets(panel):
                    for selected in selectors(expand(target["expr"], values)):
                        if any(label == "selection" for label, _, _ in selected.matchers):
                            read.add((selected.metric, selected.matchers))
    names = {name for name, matchers in read if ("selection", "=~") in {m[:2] for m in matchers}}
    sums = {
        total.name(dimension): {*total.own, dimension}
        for total in TOTALS.values()
        for dimension in ("", *total.by)
    } | {p95_of(metric): set() for metric in P95S}

    assert names == set(sums)
    for name, matchers in read:
        if name in sums:
            assert {label for label, _, _ in matchers} - {"selection"} <= sums[name], name


@every
def test_every_panel_explains_itself(name: str):
    """A title, how to read it, a unit, and words for when it is empty."""
    for panel in panels(MADE[name]):
        assert panel["title"]
        assert len(panel["description"].split()) >= 12, panel["title"]
        assert panel["type"] in DRAWN
        if panel["type"] != "text":
            defaults = panel["fieldConfig"]["defaults"]
            assert defaults["unit"]
            assert defaults["noValue"] not in {"", "No data"}


@every
def test_what_is_not_there_looks_like_nothing(name: str):
    """A cell that has no figure is a dash, and a line of zeros lies on the floor of its graph."""
    for panel in panels(MADE[name]):
        defaults = panel.get("fieldConfig", {}).get("defaults", {})
        if panel["type"] == "table":
            (numbers,) = (
                one["properties"]
                for one in panel["fieldConfig"]["overrides"]
                if one["matcher"] == {"id": "byType", "options": "number"}
            )
            texts = {one["id"]: one["value"] for one in numbers}
            assert texts["noValue"] == "-"
            (mapped,) = texts["mappings"]
            assert (mapped["options"]["match"], mapped["options"]["result"]["text"]) == (
                "nan",
                "-",
            )
        if panel["type"] == "timeseries" and defaults.get("min") == 0 and "max" not in defaults:
            stacking = defaults["custom"].get("stacking", {}).get("mode")
            assert stacking == "percent" or 0 < defaults["custom"]["axisSoftMax"] <= 1


@every
def test_no_data_source_is_named(name: str):
    """Whatever its uid is somewhere, they work: nothing asks but the variable."""
    found = json.dumps(MADE[name])

    assert '"uid": "${datasource}"' in found
    for panel in panels(MADE[name]):
        sources = [panel.get("datasource"), *(t.get("datasource") for t in targets(panel))]
        assert {one["uid"] for one in sources if one} <= {"${datasource}"}
    assert "__inputs" not in MADE[name]


@every
def test_links_carry_time_and_choices(name: str):
    """Every page leads to every other one, as one is looking now."""
    links = MADE[name]["links"]

    assert {link["url"].removeprefix("/d/") for link in links} == {
        other.removesuffix(".json") for other in MADE if other != name
    }
    assert all(link["keepTime"] and link["includeVars"] for link in links)


def test_there_is_a_choice_for_everything():
    """Data source, model, route, service, region, instance: each where it makes sense."""
    names = {name: {one["name"] for one in variables(made)} for name, made in MADE.items()}

    assert all("datasource" in chosen_ for chosen_ in names.values())
    for page in ("budget", "stages", "triage", "client"):
        assert {"service", "model", "route", "region"} <= names[f"llmtrace-{page}.json"]
    for page in ("engine", "engine-budget"):
        assert {"model", "instance"} <= names[f"llmtrace-{page}.json"]
    assert all({"cluster", "namespace", "job"} <= chosen_ for chosen_ in names.values())


def test_a_stage_has_one_colour_everywhere():
    """Where a panel gives a stage a colour, it is the stage's own."""
    given = [
        (override["matcher"]["options"], override["properties"][0]["value"]["fixedColor"])
        for made in MADE.values()
        for panel in panels(made)
        for override in panel.get("fieldConfig", {}).get("overrides", ())
        if override["properties"][0]["id"] == "color"
    ]
    colours = {(name, colour) for name, colour in given if name in STAGE_COLOURS}

    assert {name for name, _ in colours} == set(PARTITION)
    assert dict(colours) == STAGE_COLOURS
    assert len(colours) == len(STAGE_COLOURS)


def test_percentiles_that_must_not_be_added_say_so():
    """Wherever percentiles of single stages stand beside each other."""
    for made in MADE.values():
        for panel in panels(made):
            queries = " ".join(target["expr"] for target in targets(panel))
            per_stage = "histogram_quantile" in queries and "sum by (le, stage)" in queries
            if per_stage:
                words = f"{panel['title']} {panel['description']}"
                assert "not add" in words or "must not be added" in words, panel["title"]


# --- files --------------------------------------------------------------------------------------


def test_files_for_provisioning(tmp_path: Path):
    """A provider that looks where the dashboards are put."""
    made = files(MADE, "provisioning")
    provider = yaml.safe_load(made["dashboards/llmtrace.yaml"])["providers"][0]

    assert provider["options"]["path"].endswith("/provisioning/dashboards/llmtrace")
    assert {name for name in made if name.endswith(".json")} == {
        f"dashboards/llmtrace/{name}" for name in MADE
    }


def test_config_maps():
    """One a dashboard, with the label the sidecar looks for, and the dashboard unharmed."""
    [content] = files(MADE, "configmap", "observability").values()
    maps: list[dict[str, Any]] = list(yaml.safe_load_all(content))

    assert len(maps) == len(MADE)
    for one in maps:
        assert one["kind"] == "ConfigMap"
        assert one["metadata"]["namespace"] == "observability"
        assert one["metadata"]["labels"] == {"grafana_dashboard": "1"}
        [(name, inside)] = one["data"].items()
        assert json.loads(inside) == MADE[name]
        assert len(inside.encode()) < 1 << 20


def test_exporting_twice_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Only what differs is written."""
    assert main(["dashboards", "export", "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["dashboards", "export", "--out", str(tmp_path / "out")]) == 0

    assert capsys.readouterr().out.startswith("7 files in ")
    assert write(tmp_path / "out", files(MADE, "files")) == []


def test_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A file in the way is named."""
    (tmp_path / "out").write_text("")

    assert main(["dashboards", "export", "--out", str(tmp_path / "out")]) == 2
    assert "--out" in capsys.readouterr().err


def test_the_default_budget_has_every_limit():
    """What the budget page holds figures against is exposed by the exporter."""
    limits = DEFAULT.allocations_s()[DEFAULT.name]

    assert {*STAGES, "total", "ttft", "tpot"} == set(limits)


def test_links_of_values_lead_to_what_there_is():
    """To a board of ours, and a variable that it has; with the time and the data source."""
    found = [
        link
        for made in MADE.values()
        for panel in panels(made)
        for place in (
            panel.get("fieldConfig", {}).get("defaults", {}).get("links", ()),
            *(
                one["value"]
                for override in panel.get("fieldConfig", {}).get("overrides", ())
                for one in override["properties"]
                if one["id"] == "links"
            ),
        )
        for link in place
    ]
    names = {made["uid"]: {one["name"] for one in variables(made)} for made in MADE.values()}

    assert {link["title"] for link in found} == {"Its breakdown", "Only these", "This engine"}
    for link in found:
        path, _, query = link["url"].partition("?")
        assert query.startswith("${__url_time_range}&${datasource:queryparam}&")
        assert query.rpartition("var-")[2].partition("=")[0] in names[path.removeprefix("/d/")]


def test_outcomes_and_stages_do_not_share_a_colour():
    """A colour is of one of the two, on whichever board."""
    assert {*OUTCOME_COLOURS.values()}.isdisjoint(STAGE_COLOURS.values())


def test_the_form_for_sharing_prompts_for_a_data_source():
    """As Grafana itself exports a dashboard to be shared: inputs, and what it needs."""
    made = files(MADE, "sharing")

    assert set(made) == set(MADE)
    for name, content in made.items():
        shared = json.loads(content)
        (asked,) = shared["__inputs"]
        (source,) = (one for one in variables(shared) if one["type"] == "datasource")
        needed = {one["id"] for one in shared["__requires"] if one["type"] == "panel"}
        assert (asked["type"], asked["pluginId"]) == ("datasource", "prometheus")
        assert source["current"]["value"] == f"${{{asked['name']}}}"
        assert needed == {panel["type"] for panel in panels(MADE[name])}
        assert shared["panels"] == MADE[name]["panels"]
