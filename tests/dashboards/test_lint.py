"""What the linter finds in anybody's dashboard, and what it says."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.cli import main
from llmtrace_dashboards.lint import lint
from llmtrace_dashboards.lint.queries import expand, selectors
from llmtrace_dashboards.lint.rules import OPTIONAL, RULES

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


NOTHING = {"type": "text", "gridPos": {"x": 0, "y": 0, "w": 1, "h": 1}}


def panel(**changes: Any) -> dict[str, Any]:
    """Make a panel nothing is wrong with, but for the changes."""
    made = {
        "id": 1,
        "type": "timeseries",
        "title": "Requests",
        "description": "Requests a second.",
        "datasource": SOURCE,
        "gridPos": {"x": 0, "y": 0, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": "reqps", "custom": {}}, "overrides": []},
        "options": {"legend": {"showLegend": True}},
        "targets": [{"refId": "A", "expr": "sum (rate(a_total[$__rate_interval]))"}],
    }
    return {**made, **changes}


def board(*panels: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Make a dashboard nothing is wrong with, but for the changes."""
    made: dict[str, Any] = {
        "title": "One",
        "editable": False,
        "schemaVersion": 42,
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus",
                 "label": "Data source"},
                {"name": "model", "type": "query", "datasource": SOURCE, "refresh": 2,
                 "query": {"query": "label_values(a_total, model)"}},
            ]
        },
        "panels": list(panels) or [panel()],
    }  # fmt: skip
    return {**made, **changes}


def asking(expression: str, **changes: Any) -> dict[str, Any]:
    """Make a dashboard with one query."""
    return board(panel(targets=[{"refId": "A", "expr": expression}], **changes))


def override(matcher: str, name: str) -> dict[str, Any]:
    """Make a panel with one override."""
    properties = [{"id": name, "value": 1}]
    overrides = [{"matcher": {"id": matcher, "options": "a"}, "properties": properties}]
    return panel(fieldConfig={"defaults": {"unit": "s"}, "overrides": overrides})


def with_variable(**changes: Any) -> dict[str, Any]:
    """Make a dashboard whose second variable is changed."""
    made = copy.deepcopy(board())
    made["templating"]["list"][1] |= changes
    return made


def test_nothing_is_wrong_with_the_one_the_others_are_made_of():
    """Else the cases below would prove nothing."""
    assert lint(board()) == []


CASES = [
    (
        "template-datasource-rule",
        board(templating={"list": []}, panels=[NOTHING]),
        "no variable for the data",
    ),
    (
        "template-datasource-rule",
        board(panels=[NOTHING], templating={"list": [
            {"name": "ds", "type": "datasource", "query": "prometheus", "label": "Data source"},
        ]}),
        "call it `datasource`",
    ),
    ("template-label-promql-rule",
     with_variable(query="label_values(a_total{, model)"), "no PromQL"),
    ("template-on-time-change-reload-rule", with_variable(refresh=1), "refresh: 2"),
    ("panel-datasource-rule", board(panel(datasource={"uid": "ddyfngn31dg5cf"})), "ddyfngn"),
    ("panel-datasource-rule", board(panel(datasource=None)), "None"),
    ("panel-title-description-rule", board(panel(title=" ")), "no title"),
    ("panel-title-description-rule", board(panel(description="")), "no description"),
    ("panel-units-rule", board(panel(fieldConfig={"defaults": {}})), "no unit"),
    ("panel-units-rule", board(panel(fieldConfig={"defaults": {"unit": "percent_unit"}})),
     "'percent_unit' is none of Grafana's"),
    ("panel-no-targets-rule", board(panel(targets=[])), "no query"),
    ("target-promql-rule", asking("sum(rate("), "no PromQL"),
    ("target-promql-rule", asking("rate(a_total)"), "no PromQL"),
    ("target-rate-interval-rule", asking("rate(a_total[5m])"), "use [$__rate_interval]"),
    ("target-rate-interval-rule", asking('irate(a_total{b="c"}[$__interval])'), "irate"),
    ("target-counter-agg-rule", asking("sum (a_total)"), "put rate() or increase()"),
    ("target-counter-agg-rule", asking("max_over_time(a_total[$__range])"), "is a counter"),
    ("uneditable-dashboard", board(editable=True), "by hand"),
    ("panel-type", board(panel(type="graph")), "use 'timeseries'"),
    ("panel-ignored", board(override("byName", "custom.linestyle")), "custom.linestyle"),
    ("panel-ignored", board(override("byRegex", "decimals")), "'byRegex'"),
    ("panel-ignored", board(panel(transformations=[{"id": "reorganise"}])), "'reorganise'"),
    ("panel-ignored",
     board(panel(fieldConfig={"defaults": {"unit": "s", "custom": {"lineWidht": 2}}})),
     "lineWidht"),
    ("panel-id", board(panel(), panel(gridPos={"x": 12, "y": 0, "w": 12, "h": 8})), "id 1"),
    ("panel-grid", board(panel(), panel(id=2)), "on top of panel 1"),
    ("panel-grid", board(panel(gridPos={"x": 20, "y": 0, "w": 12, "h": 8})), "24 columns"),
    ("panel-grid", board(panel(gridPos=None)), "no place"),
    ("panel-bargauge-order",
     board(panel(type="bargauge", targets=[{"refId": "A", "expr": "a", "instant": True}])),
     "sort_desc()"),
    ("panel-legend",
     board(panel(options={"legend": {"showLegend": False}},
                 targets=[{"refId": "A", "expr": "a"}, {"refId": "B", "expr": "b"}])),
     "hides the legend"),
    ("panel-no-data-green",
     board(panel(type="stat", options={"colorMode": "background"}, fieldConfig={"defaults": {
         "unit": "s", "thresholds": {"steps": [{"value": None, "color": "green"}]}}})),
     "green without data"),
    ("target-le", asking('sum (rate(a_bucket{le="1"}[$__rate_interval]))'), '"1.0"'),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "dashboard", "said"), CASES)
def test_a_fault_is_found_by_its_rule_alone(rule: str, dashboard: dict[str, Any], said: str):
    """One fault, one rule, and words that say what to do; excluded, it is not found."""
    found = lint(dashboard)

    assert {finding.rule for finding in found} == {rule}
    assert any(said in str(finding) for finding in found)
    assert lint(dashboard, exclude=[rule]) == []


def test_every_rule_has_a_case():
    """No rule that is never seen to find anything."""
    assert {rule for rule, *_ in CASES} == set(RULES) - OPTIONAL


def test_job_and_instance_are_asked_for_on_request():
    """Dashboards of services with jobs want them; ours tell models and routes apart."""
    found = {finding.rule for finding in lint(board(), optional=True)}
    assert found == {"template-job-rule", "template-instance-rule"}

    made = board(panel(targets=[{"refId": "A", "expr": 'up{job=~"$job"} + up{job="$job"}'}]))
    made["templating"]["list"].append(
        {"name": "job", "label": "Job", "type": "query", "datasource": SOURCE, "refresh": 2,
         "query": "label_values(up, job)", "multi": True, "allValue": ".+"}
    )  # fmt: skip
    [missing] = [one for one in lint(made, optional=True) if one.rule == "target-job-rule"]
    assert 'lacks job=~"$job"' in missing.message


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("rate(a[$__rate_interval])", "rate(a[1m])"),
        ('a{b=~"${model:regex}"}', 'a{b=~"llama"}'),
        ('a{b=~"[[model]]"}', 'a{b=~"llama"}'),
        ("a offset $past", "a offset 1h"),
        ("increase(a[$window:$step])", "increase(a[1h:1h])"),
        ('label_replace(a, "b", "$1", "c", "(.*)")', 'label_replace(a, "b", "$1", "c", "(.*)")'),
    ],
)
def test_variables_are_given_values_of_their_kind(expression: str, expected: str):
    """Durations where PromQL wants durations, words elsewhere."""
    assert expand(expression, {"model": "llama"}) == expected
    selectors(expected)


def test_selectors_are_found_wherever_they_are():
    """In both sides of a division, in functions, in subqueries."""
    expression = 'sum(rate(a_total{x="y"}[5m])) / (max_over_time(rate(b_total[1m])[1h:]) or -c)'
    found = {one.metric: (one.ranged, one.functions) for one in selectors(expression)}

    assert found == {
        "a_total": (True, ("rate",)),
        "b_total": (True, ("max_over_time", "subquery", "rate")),
        "c": (False, ()),
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["panels", "type", "targets", "expr", "gridPos", "fieldConfig", "defaults",
                         "overrides", "properties", "templating", "list", "datasource", "uid",
                         "id", "matcher", "transformations", "options", "current", "value"]),
        inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["panels", "templating", "rows"]), json_values))
def test_whatever_is_in_a_file_nothing_breaks(dashboard: dict[str, Any]):
    """A dashboard of strange shape has findings, and no exception."""
    lint(dashboard, optional=True)


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a dashboard with an error and a warning to a file."""
    path = tmp_path / "one.json"
    path.write_text(json.dumps(board(panel(title=""), editable=True)))
    return path


def test_the_command_fails_on_errors(file: Path, capsys: pytest.CaptureFixture[str]):
    """It says which panel, what is wrong and which rule says so."""
    assert main(["dashboards", "lint", str(file)]) == 1
    out, err = capsys.readouterr()

    assert f"{file}: 1 error and 1 warning" in out
    assert "error: panel 1 '(untitled)': has no title" in out
    assert "[panel-title-description-rule]" in out
    assert "1 error and 1 warning in 1 dashboard" in err


def test_warnings_fail_it_only_if_asked(file: Path):
    """--exclude leaves a rule out, --strict makes warnings errors."""
    rest = ["dashboards", "lint", str(file), "--exclude", "panel-title-description-rule"]

    assert main(rest) == 0
    assert main([*rest, "--strict"]) == 1


def test_the_command_prints_json(file: Path, capsys: pytest.CaptureFixture[str]):
    """For programs: every finding with its file."""
    main(["dashboards", "lint", str(file), "--json"])
    found = json.loads(capsys.readouterr().out)

    assert {one["rule"] for one in found} == {
        "panel-title-description-rule", "uneditable-dashboard",
    }  # fmt: skip
    assert all(one["file"] == str(file) for one in found)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ("{}", "no panels"),
        ('{"spec": {}}', "v2"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_files_that_are_no_dashboards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
):
    """They are named, with why."""
    path = tmp_path / "it.json"
    path.write_text(content)

    assert main(["dashboards", "lint", str(path)]) == 1
    assert said in capsys.readouterr().err


def test_a_rule_that_is_none(file: Path, capsys: pytest.CaptureFixture[str]):
    """A misspelt --exclude does not go unseen."""
    assert main(["dashboards", "lint", str(file), "--exclude", "panel-unit"]) == 2
    assert "panel-units-rule" in capsys.readouterr().err


def test_an_answer_of_the_api_is_read_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """GET /api/dashboards/uid/... has the dashboard inside."""
    path = tmp_path / "api.json"
    path.write_text(json.dumps({"meta": {}, "dashboard": board()}))

    assert main(["dashboards", "lint", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: no problems found\n"
