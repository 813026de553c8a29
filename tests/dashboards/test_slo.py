"""Do SLOs select the requests their budget is for, and do Sloth and OpenSLO get what they read?"""

from __future__ import annotations

import io
import re
from fnmatch import fnmatchcase
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.utils import floatToGoString

from llmtrace.budget import DEFAULT, Budget, Budgets
from llmtrace.cli import main
from llmtrace.core.errors import ConfigError
from llmtrace_dashboards.rules.burn_rate import LADDER, RuleSettings, Window, seconds
from llmtrace_dashboards.rules.command import files_from
from llmtrace_dashboards.rules.recording_rules import as_yaml
from llmtrace_dashboards.rules.recording_series import ALLOWED
from llmtrace_dashboards.rules.slo import bound, matcher, plain, slos
from llmtrace_dashboards.rules.sloth import dns_name, openslo, sloth

SETTINGS = RuleSettings()
GENERATED = Path(__file__).parents[2] / "dashboards" / "rules"
TWO = Budgets(
    (
        Budget(name="Chat (EU)", ttft_s=0.7, availability=0.995, route=("chat",)),
        Budget(name="batch", objective=0.99, total_s=60, model=("llama-*",)),
    )
)


# --- which requests -----------------------------------------------------------------------------


@given(
    st.lists(st.text("ab.*?-/\\\"'[]$", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text("ab.-/\\\"'$", max_size=4),
)
def test_a_matcher_selects_whom_the_budget_covers(patterns, value):
    """PromQL's anchored regex and `Budget.covers` agree on every value."""
    if any(re.search(r"\[", pattern) for pattern in patterns):
        return  # sets of characters are covered below: their corner cases differ by library
    text = matcher("model", patterns)
    written = text.partition('"')[2][:-1].replace('\\"', '"').replace("\\\\", "\\")
    selected = re.fullmatch(written, value) is not None if "=~" in text else written == value

    assert selected == any(fnmatchcase(value, pattern) for pattern in patterns)


def test_sets_of_characters():
    """As a shell has them."""
    assert matcher("model", ["v[12]", "x[!a]y"]) == 'model=~"v[12]|x[^a]y"'
    assert plain(["v[12]"]) is None
    assert plain(["chat"]) == "chat"
    assert plain(["a", "b"]) is None


@given(st.integers(1, 10**12))
def test_a_bound_is_written_as_the_exporter_writes_it(ns):
    """Whatever the threshold, to the nanosecond."""
    assert bound(ns / 1e9) == str(floatToGoString(ns / 1e9))


def test_slos_of_a_budget():
    """One for each limit and one for the availability, each with its own objective."""
    found = {slo.name: (slo.objective, slo.allowed, slo.threshold_s) for slo in slos([DEFAULT])}

    assert found == {
        "e2e": (0.95, 0.05, 2.5),
        "ttft": (0.95, 0.05, 1.0),
        "tpot": (0.95, 0.05, 0.03),
        "availability": (0.99, 0.01, None),
    }


def test_a_turns_first_content_is_of_its_routes_and_of_all_models():
    """A turn may call several models, and its histogram has no such label."""
    [slo] = slos([Budget(turn_ttft_s=0.8, model=("tiny",), route=("voice",))])

    assert (slo.name, slo.selector) == ("turn_ttft", ('route="voice"',))
    assert 'llmtrace_turn_ttft_seconds_bucket{route="voice"' in slo.fast("5m")
    assert "% of the turns show their user something within 800 ms" in slo.promise


# --- windows ------------------------------------------------------------------------------------


@given(st.floats(0.0001, 0.1))
def test_the_ladder_falls_and_never_asks_for_the_impossible(allowed):
    """Each rung needs less than the one above it, none less than is allowed, none a quarter."""
    thresholds = [window.threshold(allowed) for window in LADDER]

    assert thresholds == sorted(thresholds, reverse=True)
    assert all(allowed - 1e-9 <= threshold <= 0.25 for threshold in thresholds)


def test_the_workbooks_own_figures_stand_for_strict_objectives():
    """With 99.9 % the factors are 14.4, 6, 3 and 1, and what is spent 2, 5, 10 and 10 %."""
    assert [window.threshold(0.001) for window in LADDER] == [0.0144, 0.006, 0.003, 0.001]
    assert [round(w.spent(0.001), 6) for w in LADDER] == [0.02, 0.05, 0.1, 0.1]
    assert [window.threshold(0.05) for window in LADDER] == [0.25, 0.15, 0.1, 0.05]


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "5m!", "-5m", "1.5h"])
def test_what_is_no_duration(text):
    """It is reported as an error."""
    with pytest.raises(ConfigError, match="is not a duration such as 5m"):
        seconds(text)


# --- Sloth --------------------------------------------------------------------------------------

TEXT = {"type": "string", "minLength": 1}
NAME = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}


def record(required, optional=None):
    """Return the JSON Schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


# The fields of Sloth's `prometheus/v1` and `AlertWindows`, as its documentation lists them.
QUERY = {"type": "string", "pattern": r"\[\{\{\.window\}\}\]"}
ALERT = record({}, {"labels": LABELS, "annotations": LABELS, "disable": {"type": "boolean"}})
SLOTH = record(
    {
        "version": {"const": "prometheus/v1"},
        "service": NAME,
        "slos": {
            "type": "array",
            "minItems": 1,
            "items": record(
                {
                    "name": NAME,
                    "objective": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
                    "sli": record(
                        {"events": record({"error_query": QUERY, "total_query": QUERY})}
                    ),
                    "alerting": record(
                        {"name": TEXT, "page_alert": ALERT, "ticket_alert": ALERT},
                        {"labels": LABELS, "annotations": LABELS},
                    ),
                },
                {"labels": LABELS, "description": TEXT},
            ),
        },
    },
    {"labels": LABELS},
)
RUNG = record(
    {
        "errorBudgetPercent": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
        "shortWindow": {"type": "string", "pattern": "^[0-9]+[smhdw]$"},
        "longWindow": {"type": "string", "pattern": "^[0-9]+[smhdw]$"},
    }
)
RUNGS = record({"quick": RUNG, "slow": RUNG})
WINDOWS = record(
    {
        "apiVersion": {"const": "sloth.slok.dev/v1"},
        "kind": {"const": "AlertWindows"},
        "spec": record({"sloPeriod": {"const": "30d"}, "page": RUNGS, "ticket": RUNGS}),
    }
)


def test_sloth_gets_a_spec_and_windows_for_each_objective():
    """With its fields and no others; every SLO is in the file of its objective."""
    files = sloth(slos(TWO), SETTINGS)

    assert set(files) == {
        f"sloth-{objective}{kind}.yaml" for objective in ("95", "99", "99.5")
        for kind in ("", "-windows")
    }  # fmt: skip
    for name, content in files.items():
        jsonschema.validate(content, WINDOWS if "windows" in name else SLOTH)
    (chat,) = files["sloth-95.yaml"]["slos"]
    assert chat["name"] == dns_name("Chat (EU)-ttft")
    assert chat["objective"] == 95
    assert 'route="chat"' in chat["sli"]["events"]["error_query"]


def test_sloths_windows_are_the_ladder():
    """What Sloth makes of them is the share of requests our own rules fire at."""
    spec = sloth(slos([DEFAULT]), SETTINGS)["sloth-95-windows.yaml"]["spec"]
    rungs = [spec[kind][name] for kind in ("page", "ticket") for name in ("quick", "slow")]
    # Sloth: factor = budget spent x period / long window; it fires at factor x what is allowed.
    shares = [
        one["errorBudgetPercent"] / 100 * seconds("30d") / seconds(one["longWindow"]) * 0.05
        for one in rungs
    ]

    assert shares == pytest.approx([0.25, 0.15, 0.10, 0.05], rel=1e-3)


# --- OpenSLO ------------------------------------------------------------------------------------

METADATA = record({"name": NAME}, {"displayName": TEXT})
SOURCE = record(
    {"metricSource": record({"spec": {"type": "object"}}, {"type": TEXT, "metricSourceRef": NAME})}
)
# The fields of OpenSLO v1, as its specification lists them.
OPENSLO = {
    "Service": record(
        {"apiVersion": {"const": "openslo/v1"}, "kind": TEXT, "metadata": METADATA,
         "spec": record({}, {"description": {"type": "string", "maxLength": 1050}})},
    ),
    "SLO": record(
        {
            "apiVersion": {"const": "openslo/v1"},
            "kind": TEXT,
            "metadata": METADATA,
            "spec": record(
                {
                    "service": NAME,
                    "indicator": record(
                        {
                            "metadata": METADATA,
                            "spec": record(
                                {
                                    "ratioMetric": record(
                                        {"counter": {"type": "boolean"}, "bad": SOURCE,
                                         "total": SOURCE}
                                    )
                                }
                            ),
                        }
                    ),
                    "timeWindow": {
                        "type": "array", "minItems": 1, "maxItems": 1,
                        "items": record(
                            {"duration": {"type": "string", "pattern": "^[1-9][0-9]*[smhdwMQY]$"},
                             "isRolling": {"type": "boolean"}}
                        ),
                    },
                    "budgetingMethod": {"enum": ["Occurrences", "Timeslices", "RatioTimeslices"]},
                    "objectives": {
                        "type": "array", "minItems": 1,
                        "items": record(
                            {"target": {"type": "number", "minimum": 0, "exclusiveMaximum": 1}},
                            {"displayName": TEXT},
                        ),
                    },
                },
                {"description": {"type": "string", "maxLength": 1050}},
            ),
        }
    ),
}  # fmt: skip


def test_openslo_gets_services_and_slos():
    """With its fields and no others; every SLO is of a service that is there."""
    objects = openslo(slos(TWO), SETTINGS)

    for one in objects:
        jsonschema.validate(one, OPENSLO[one["kind"]])
    services = {one["metadata"]["name"] for one in objects if one["kind"] == "Service"}
    message = [one["spec"] for one in objects if one["kind"] == "SLO"]
    assert services == {dns_name("Chat (EU)"), "batch"}
    assert {one["service"] for one in message} == services
    assert [one["objectives"][0]["target"] for one in message] == [0.95, 0.995, 0.99]


@given(st.text(max_size=90))
def test_any_name_becomes_one_both_take(text):
    """Lower case, digits and dashes, 63 at most, neither empty nor ending in a dash."""
    jsonschema.validate(dns_name(text), NAME)


@given(st.lists(st.text(max_size=80), min_size=2, max_size=2, unique=True))
def test_no_two_names_become_one(names):
    """Whatever a name has that does not go in, or however long it is."""
    first, second = map(dns_name, names)

    assert first != second


@pytest.mark.parametrize(
    "names", [("Chat (EU)", "chat-eu"), ("a" * 80, "a" * 81), ("CHAT", "chat"), ("!", "?")]
)
def test_budgets_of_much_the_same_name(names):
    """Each has SLOs of its own, in all files."""
    promised = slos(Budget(name=name, total_s=1.0) for name in names)
    (spec,) = (file for name, file in sloth(promised, SETTINGS).items() if "windows" not in name)
    found = [one["metadata"]["name"] for one in openslo(promised, SETTINGS)]

    assert len({one["name"] for one in spec["slos"]}) == 2
    assert len(set(found)) == len(found) == 4


# --- the command --------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["sloth", "openslo"])
def test_the_committed_files_are_those_of_the_default_budget(what):
    """`llmtrace slo ... --out dashboards/rules` would change nothing."""
    for name, content in files_from(what, Budgets((DEFAULT,)), SETTINGS).items():
        text = as_yaml(content, "")
        written = (GENERATED / name).read_text(encoding="utf-8")

        assert list(yaml.safe_load_all(written)) == list(yaml.safe_load_all(text)), name


def test_rules_as_manifests_of_the_operator_with_severities_of_ones_own(tmp_path, capsys):
    """Each file is one PrometheusRule; a word that is no severity is rejected."""
    words = ["--severity", "page=critical", "--severity", "ticket=warning"]
    assert main(["slo", "rules", "--format", "prometheusrule", *words]) == 0
    recording, alerts = yaml.safe_load_all(capsys.readouterr().out)
    rules = [rule for group in alerts["spec"]["groups"] for rule in group["rules"]]

    assert {recording["kind"], alerts["kind"]} == {"PrometheusRule"}
    assert alerts["metadata"]["name"] == "llmtrace-alerts"
    assert {rule["labels"]["severity"] for rule in rules} == {"critical", "warning"}
    assert main(["slo", "rules", "--severity", "urgent=critical"]) != 0
    assert "'urgent=critical': expected page=WORD or ticket=WORD" in capsys.readouterr().err
    assert main(["slo", "sloth", "--format", "prometheusrule"]) != 0


def test_files_are_written_or_printed(tmp_path, capsys):
    """Into a folder, or to be piped on; links go where one says."""
    budget = tmp_path / "chat.yaml"
    budget.write_text("{name: chat, ttft: 1s}")
    arguments = ["slo", "rules", "--budget", str(budget), "--collector-job", "collect"]
    links = ["--grafana", "https://g.example.org/", "--runbooks", "https://wiki.example.org/a"]

    assert main([*arguments, *links, "--out", str(tmp_path / "made")]) == 0
    written = (tmp_path / "made" / "alerts.yaml").read_text()
    assert "https://g.example.org/d/llmtrace-budget?from=" in written
    assert "https://wiki.example.org/a#llmtraceenginedown" in written
    assert 'up{job="collect"} == 0' in written
    assert "# Made by `llmtrace slo rules --budget chat.yaml`." in written
    capsys.readouterr()
    assert main([*arguments, *links]) == 0
    printed = list(yaml.safe_load_all(io.StringIO(capsys.readouterr().out)))
    assert printed[1] == yaml.safe_load(written)


def test_a_median_is_counted_and_does_not_keep_the_others_from_alerts(tmp_path, capsys):
    """The rest of its file has its rules; what has no alert is named."""
    file = tmp_path / "budgets.yaml"
    file.write_text(
        "budgets:\n"
        "- {name: chat, ttft: 1s, availability: 99%, route: chat}\n"
        "- {name: half, total: 2s, ttft: 1s, objective: p50, availability: 99%, route: batch}\n"
        "- {name: quick, total: 1s, route: quick}\n"
    )

    assert main(["slo", "rules", "--budget", str(file), "--out", str(tmp_path)]) == 0
    warnings = capsys.readouterr().err.splitlines()
    rules = {
        name: [
            rule
            for group in yaml.safe_load((tmp_path / f"{name}.yaml").read_text())["groups"]
            for rule in group["rules"]
        ]
        for name in ("recording", "alerts")
    }
    burning = {
        (rule["labels"]["budget"], rule["labels"]["slo"])
        for rule in rules["alerts"]
        if rule["alert"].endswith("BudgetBurn")
    }
    promised = {
        (rule["labels"]["budget"], rule["labels"]["slo"]): float(rule["expr"][7:-1])
        for rule in rules["recording"]
        if rule["record"] == ALLOWED
    }

    assert burning == {
        ("chat", "ttft"), ("chat", "availability"), ("half", "availability"), ("quick", "e2e"),
    }  # fmt: skip
    assert promised == {
        ("chat", "ttft"): 0.05, ("chat", "availability"): 0.01, ("half", "e2e"): 0.5,
        ("half", "ttft"): 0.5, ("half", "availability"): 0.01, ("quick", "e2e"): 0.05,
    }  # fmt: skip
    assert len(warnings) == 2
    assert "warning: budget half: with an objective of 50 % for e2e, ttft" in warnings[0]
    assert "warning: budget quick: sets no availability" in warnings[1]
    assert main(["slo", "sloth", "--budget", str(file)]) == 0
    assert "objective: 50" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--grafana", "grafana:3000"], 2, "--grafana: 'grafana:3000' is not a URL such as"),
        (["--budget", "/none.yaml"], 2, "/none.yaml: cannot read this budget"),
        (["--out", "/dev/null/x"], 1, "/dev/null/x: cannot be written"),
    ],
)
def test_a_slip_is_reported(capsys, arguments, status, message):
    """With what is wrong and what would do."""
    assert main(["slo", "rules", *arguments]) == status
    assert message in capsys.readouterr().err


def test_windows_of_ones_own():
    """The ladder is a setting of the rules: every window of it is recorded."""
    own = RuleSettings(ladder=(Window("page", "10s", "1m", 3),), base="20s")

    assert own.windows == ("10s", "20s", "1m")
    assert own.short_windows == ("10s",)


def test_a_budget_that_contradicts_itself_is_said(tmp_path, capsys):
    """With what `budget check` says; the rules of its totals are written all the same."""
    path = tmp_path / "sla.yaml"
    path.write_text("{name: sla, total: 1s, stages: {prefill: 800ms, decode: 700ms}}\n")

    assert main(["slo", "rules", "--budget", str(path)]) == 0
    said = capsys.readouterr()
    assert f"warning: {path}: sla does not add up: " in said.err
    assert "groups:" in said.out
