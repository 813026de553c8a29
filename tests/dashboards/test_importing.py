"""Importing into a fake of Grafana's API: what is there afterwards, and what goes wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmtrace.budget import DEFAULT
from llmtrace.cli import main, make_parser
from llmtrace.triage.command import window
from llmtrace_dashboards.rules.recording_rules import rule_files
from tests.dashboards.grafana import TOKEN, Grafana, serving
from tests.support.certificates import needs_openssl, self_signed

UIDS = {
    "llmtrace-budget", "llmtrace-stages", "llmtrace-engine", "llmtrace-triage",
    "llmtrace-agents", "llmtrace-client", "llmtrace-engine-budget",
}  # fmt: skip


@pytest.fixture
def grafana() -> Iterator[Grafana]:
    """Serve an empty Grafana."""
    with serving(Grafana()) as served:
        yield served


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """Write the token to a file."""
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def run(token: Path, capsys: pytest.CaptureFixture[str]):
    """Return what runs the command: its exit status, and everything it said."""

    def run(url: str, *options: str) -> tuple[int, str]:
        status = main(["dashboards", "import", "--url", url, "--token-file", str(token), *options])
        said = "".join(capsys.readouterr())
        assert TOKEN not in said
        return status, said

    return run


def everything(grafana: Grafana) -> list[str]:
    """Options that ask for all there is."""
    return [
        "--datasource-url", "http://prometheus:9090", "--alerts",
        "--trace-url", "https://traces.example/${__value.raw}",
        "--runbooks", "https://docs.example/runbooks",
    ]  # fmt: skip


def test_a_folder_and_dashboards(grafana: Grafana, run):
    """An empty Grafana has the folder and all dashboards afterwards, in it."""
    status, said = run(grafana.url)

    assert status == 0
    assert set(grafana.dashboards) == UIDS
    assert {one["folder"] for one in grafana.dashboards.values()} == {"llmtrace"}
    assert grafana.folders["llmtrace"]["title"] == "llmtrace"
    assert "8 changes made, 0 as wanted" in said
    assert grafana.sources == grafana.groups == {}


def test_a_second_time_changes_nothing(grafana: Grafana, run):
    """Grafana adds ids, versions and defaults; that is no reason to write anything again."""
    run(grafana.url, *everything(grafana))
    first = list(grafana.changes)
    status, said = run(grafana.url, *everything(grafana))

    assert status == 0, said
    assert len(first) == 11
    assert grafana.changes == first
    assert "0 changes made, 11 as wanted" in said


def test_a_dry_run_changes_nothing_and_shows_what_would(grafana: Grafana, run):
    """It says what would be made, with a diff, and asks only questions."""
    status, said = run(grafana.url, "--dry-run")

    assert status == 0
    assert grafana.changes == []
    assert "would create dashboard 'llmtrace / Latency budget'" in said
    assert "+++ llmtrace-budget (here)" in said
    assert '+  "title": "llmtrace / ' in said or "lines more" in said
    assert "8 changes would be made" in said


def test_a_change_by_hand_is_shown_and_undone(grafana: Grafana, run):
    """The diff names the one line; afterwards the dashboard is as it is here."""
    run(grafana.url)
    panel = grafana.dashboards["llmtrace-engine"]["dashboard"]["panels"][1]
    title, panel["title"] = panel["title"], "My running requests"
    _, said = run(grafana.url, "--dry-run")

    assert '-      "title": "My running requests"' in said
    assert f'+      "title": "{title}"' in said
    assert "1 change would be made" in said

    run(grafana.url)
    saved = grafana.dashboards["llmtrace-engine"]["dashboard"]
    assert saved["panels"][1]["title"] == title
    assert saved["version"] == 2


def test_a_newer_llmtrace_replaces_what_an_older_one_made(grafana: Grafana, run):
    """A dashboard that has less than it had is another one, though it holds all that is wanted."""
    run(grafana.url)
    dashboard = grafana.dashboards["llmtrace-agents"]["dashboard"]
    dashboard["description"] = "of an older version"
    dashboard["panels"][1]["timeShift"] = "1h"
    _, said = run(grafana.url)

    assert "changed  dashboard 'llmtrace / Agents and tools'" in said
    assert "timeShift" not in grafana.dashboards["llmtrace-agents"]["dashboard"]["panels"][1]


def test_a_dashboard_that_was_moved_comes_back(grafana: Grafana, run):
    """Who keeps them elsewhere says so with --folder-uid."""
    run(grafana.url)
    grafana.dashboards["llmtrace-client"]["folder"] = "elsewhere"
    _, said = run(grafana.url, "--dry-run")
    assert "moves to the folder 'llmtrace'" in said

    run(grafana.url)
    assert grafana.dashboards["llmtrace-client"]["folder"] == "llmtrace"


def test_a_data_source_keeps_what_else_it_is_set_to(grafana: Grafana, run):
    """How it logs in does not matter here."""
    run(grafana.url, "--datasource-url", "http://a:9090", "--datasource-uid", "prom")
    source = grafana.sources["prom"]
    source["basicAuth"], source["jsonData"]["timeout"] = True, 30
    _, said = run(grafana.url, "--datasource-url", "http://b:9090", "--datasource-uid", "prom")

    assert "changed  data source" in said
    source = grafana.sources["prom"]
    assert source["url"] == "http://b:9090"
    assert source["basicAuth"] is True
    assert source["jsonData"] == {"timeout": 30, "timeInterval": "15s", "httpMethod": "POST"}


def test_exemplars_lead_to_traces(grafana: Grafana, run):
    """The data source knows where a trace id leads."""
    run(grafana.url, *everything(grafana))

    assert grafana.sources["llmtrace-prometheus"]["jsonData"]["exemplarTraceIdDestinations"] == [
        {"name": "trace_id", "url": "https://traces.example/${__value.raw}"}
    ]


def test_causes_link_to_runbooks(grafana: Grafana, run):
    """Where runbooks are served, the triage page leads to them; else it only names causes."""
    run(grafana.url)
    [plain] = text_panels(grafana)
    run(grafana.url, *everything(grafana))
    [linked] = text_panels(grafana)

    assert "`kv_exhaustion`" in plain
    assert "](" not in plain
    assert "[kv_exhaustion](https://docs.example/runbooks/kv_exhaustion.md)" in linked


def text_panels(grafana: Grafana) -> list[str]:
    """What is written on the triage page."""
    panels = grafana.dashboards["llmtrace-triage"]["dashboard"]["panels"]
    return [panel["options"]["content"] for panel in panels if panel["type"] == "text"]


def test_alerts_ask_the_data_source(grafana: Grafana, run):
    """Every alert of the budget is there once, asks that data source, and says nothing broken."""
    run(grafana.url, *everything(grafana))
    made = rules(grafana)

    assert len(made) > 5
    for rule in made:
        assert {one["datasourceUid"] for one in rule["data"]} == {
            "llmtrace-prometheus",
            "__expr__",
        }
        assert rule["annotations"]["dashboard_url"].startswith(f"{grafana.url}/d/llmtrace-")
    assert any("BudgetBurn" in rule["title"] for rule in made)


def rules(grafana: Grafana) -> list[dict[str, Any]]:
    """Every alert rule there is."""
    return [rule for group in grafana.groups.values() for rule in group["rules"]]


def test_texts_of_alerts_can_be_expanded(grafana: Grafana, run):
    """Grafana's `$value` is a text, which no function that humanizes takes; it has no `query`.

    With its number in place they are those of the Prometheus rules, which promtool expands.
    """
    run(grafana.url, *everything(grafana))
    summaries = {
        rule["annotations"]["summary"]
        for group in rule_files([DEFAULT])["alerts.yaml"]["groups"]
        for rule in group["rules"]
    }
    for rule in rules(grafana):
        for text in rule["annotations"].values():
            assert not re.search(r"\$value\b", text)
            assert 'query "' not in text
        written = rule["annotations"]["summary"]
        assert written.replace("$values.query.Value", "$value") in summaries


def test_an_alerts_command_and_link_keep_their_window(grafana: Grafana, run):
    """From when they are opened, since Grafana's templates know no time; with model and route."""
    run(grafana.url, *everything(grafana))
    for rule in rules(grafana):
        texts = rule["annotations"]
        command = re.sub(r"\{\{ with.*?end \}\}", "", texts["triage"])
        options = make_parser().parse_args(shlex.split(command)[1:])

        assert window(options.after, 0.0).seconds in {600, 1800, 3600, 21_600, 86_400, 259_200}
        assert re.search(r"\?from=now-\d+m&to=now", texts["dashboard_url"])
    [burn] = (one for one in rules(grafana) if one["title"].endswith("dialogue ttft 6h"))
    assert "--after 360m/now --last 24h --metric ttft" in burn["annotations"]["triage"]
    assert "?from=now-1440m&to=now" in burn["annotations"]["dashboard_url"]
    [left] = (one for one in rules(grafana) if "CallersGiveUp" in one["title"])
    assert "--where 'model=" in left["annotations"]["triage"]


def test_another_budgets_alerts_take_nothing_away(grafana: Grafana, run, tmp_path: Path):
    """Two budgets, and two teams with folders of their own, have all their rules."""
    run(grafana.url, *everything(grafana))
    first = {rule["uid"] for rule in rules(grafana)}
    other = tmp_path / "other.yaml"
    other.write_text("{name: Team (B), ttft: 2s, route: batch}")
    assert run(grafana.url, *everything(grafana), "--budget", str(other))[0] == 0

    assert first < {rule["uid"] for rule in rules(grafana)}
    assert {rule["labels"].get("budget") for rule in rules(grafana)} == {
        "dialogue", "Team (B)", None,
    }  # fmt: skip
    before = len(rules(grafana))
    elsewhere = ["--folder-uid", "team-b", "--budget", str(other)]
    assert run(grafana.url, *everything(grafana), *elsewhere)[0] == 0
    assert first < {rule["uid"] for rule in rules(grafana)}
    assert len(rules(grafana)) > before


def test_a_paused_alert_stays_paused(grafana: Grafana, run):
    """Who paused it had a reason; all else of its group is brought up to date."""
    run(grafana.url, *everything(grafana))
    paused, changed = grafana.groups["llmtrace", "llmtrace-dialogue"]["rules"][:2]
    paused["isPaused"], changed["title"] = True, "older"
    status, said = run(grafana.url, *everything(grafana))

    assert (status, "1 change made" in said) == (0, True)
    there = grafana.groups["llmtrace", "llmtrace-dialogue"]["rules"]
    assert [rule["isPaused"] for rule in there[:2]] == [True, False]
    assert there[1]["title"] != "older"


def test_what_is_provisioned_is_skipped_and_said(grafana: Grafana, run):
    """The dry run says what the run does; what comes after it is brought up to date."""
    run(grafana.url, *everything(grafana))
    for dashboard in grafana.dashboards.values():
        dashboard["dashboard"]["description"] = "older"
    grafana.provisioned = {"llmtrace-budget"}
    grafana.sources["llmtrace-prometheus"]["readOnly"] = True
    options = [*everything(grafana), "--datasource-url", "http://another:9090"]
    before = list(grafana.changes)
    status, said = run(grafana.url, *options, "--dry-run")

    assert (status, grafana.changes) == (0, before)
    assert "would skip   dashboard 'llmtrace / Latency budget': it is provisioned" in said
    assert "6 changes would be made, 3 as wanted, 2 skipped" in said
    status, said = run(grafana.url, *options)
    assert status == 0
    assert "skipped  data source 'llmtrace Prometheus': it is provisioned" in said
    assert "6 changes made, 3 as wanted, 2 skipped" in said
    assert len(grafana.changes) == len(before) + 6


def test_alerts_need_a_data_source(grafana: Grafana, run):
    """Which Prometheus is meant is not guessed."""
    status, said = run(grafana.url, "--alerts")

    assert status == 2
    assert "--datasource-uid" in said
    assert grafana.changes == []


def test_below_a_path(token: Path, run):
    """A Grafana behind a proxy has a path of its own."""
    with serving(Grafana(), prefix="/grafana") as grafana:
        assert run(f"{grafana.url}/")[0] == 0
        assert set(grafana.dashboards) == UIDS


def test_those_of_engines_alone(grafana: Grafana, run):
    """They link to each other, and to nothing that is not there."""
    status, said = run(grafana.url, "--engines-only")
    links = {
        link["url"].removeprefix("/d/")
        for one in grafana.dashboards.values()
        for link in one["dashboard"]["links"]
    }

    assert status == 0, said
    assert set(grafana.dashboards) == {"llmtrace-engine", "llmtrace-engine-budget"} == links
    assert "which panels stay empty is not known" in said


def test_a_budget_that_no_alert_can_be_made_of_is_reported(grafana: Grafana, run, tmp_path: Path):
    """As `llmtrace slo rules` reports it: half of the requests may be slow with a p50."""
    budget = tmp_path / "budget.yaml"
    budget.write_text("{name: b, objective: p50, ttft: 1s, availability: 99%}")
    options = ("--alerts", "--datasource-uid", "u", "--budget", str(budget))
    status, said = run(grafana.url, *options)

    assert status == 0, said
    assert "llmtrace: warning: budget b: with an objective of 50 %" in said


# --- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refuse", "said"),
    [
        ({"GET /api/folders": (401, "Invalid API key")}, "does not know the token (401"),
        ({"GET /api/folders": (403, "Access denied")}, "needs the role Editor"),
        (
            {"GET /api/dashboards": (500, "database is locked")},
            "rejected the request (500): database is locked",
        ),
        ({"POST /api/dashboards": (412, "changed by someone else")}, "rejected (412"),
        ({"POST /api/dashboards": (400, "Cannot save provisioned dashboard")}, "provisioned"),
        ({"POST /api/folders": (409, "a folder with the same name exists")}, "rejected (409"),
    ],
)
def test_refusals(grafana: Grafana, run, refuse, said):
    """Each says what Grafana said, and what to do."""
    grafana.refuse = refuse
    status, words = run(grafana.url)

    assert status == 1
    assert said in words
    assert "Traceback" not in words


def test_a_wrong_token(grafana: Grafana, run, token: Path):
    """The token itself is in no message."""
    token.write_text("glsa_wrong_one")
    status, said = run(grafana.url)

    assert status == 1
    assert "401" in said
    assert "glsa_wrong_one" not in said


def test_a_refusal_that_quotes_the_token(grafana: Grafana, run):
    """Whatever a server says, the token is not printed."""
    grafana.refuse = {"GET /api/folders": (403, f"token {TOKEN} may not")}
    status, said = run(grafana.url)  # `run` asserts that it is not there

    assert status == 1
    assert "token *** may not" in said


def test_a_dashboard_changed_meanwhile(grafana: Grafana, run):
    """Between looking and writing: it is refused, and their change is not lost."""
    run(grafana.url)
    there = grafana.dashboards["llmtrace-budget"]["dashboard"]
    there["panels"][1]["title"] = "older"

    def change() -> None:
        there["version"], there["panels"][1]["title"] = 7, "theirs"

    grafana.before_save = change
    status, said = run(grafana.url)

    assert status == 1
    assert "it has been changed meanwhile" in said
    assert grafana.dashboards["llmtrace-budget"]["dashboard"]["panels"][1]["title"] == "theirs"


def test_no_grafana_there(grafana: Grafana, run):
    """Another server's 404 is not taken for a folder that is missing."""
    status, said = run(f"{grafana.url}/somewhere")

    assert status == 1
    assert "no Grafana responds at" in said
    assert grafana.changes == []


def test_nothing_listens(run):
    """A connection refused says where to."""
    with serving(Grafana()) as grafana:
        url = grafana.url
    status, said = run(url)

    assert status == 1
    assert f"cannot reach {url}" in said


@needs_openssl
def test_tls(run, tmp_path: Path):
    """An unknown certificate is rejected with the way out; with --ca-file it is known."""
    certificate, key = self_signed(tmp_path)
    with serving(Grafana(), certificate=(certificate, key)) as grafana:
        status, said = run(grafana.url)
        assert status == 1
        assert "--ca-file" in said
        assert grafana.calls == []

        status, said = run(grafana.url, "--ca-file", str(certificate))
        assert status == 0, said
        assert set(grafana.dashboards) == UIDS


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("grafana:3000", "write it as https://"),
        ("https://user:secret@grafana", "into a file"),
        ("https://grafana/?token=secret", "into a file"),
        ("ftp://grafana", "write it as https://"),
    ],
)
def test_wrong_urls(run, url: str, said: str):
    """A password is not repeated, either."""
    status, words = run(url)

    assert status == 2
    assert said in words
    assert "secret" not in words or url.startswith("ftp")


@pytest.mark.parametrize("content", ["", "two\nlines", "ümlaut", "x" * 5000])
def test_wrong_tokens(grafana: Grafana, run, token: Path, content: str):
    """A file with something else in it is distinguished from a token Grafana refuses."""
    token.write_text(content, encoding="utf-8")
    status, said = run(grafana.url)

    assert status == 2
    assert "--token-file" in said
    assert grafana.calls == []


def test_no_token_file(grafana: Grafana, run, token: Path):
    """A file that is not there is named."""
    token.unlink()

    assert run(grafana.url)[0] == 2


def test_what_answers_with_empty_objects_is_no_grafana(run):
    """A proxy's page for everything, say: nothing was saved, and nothing says that it was."""

    class Anything(Grafana):
        def answer(self, method: str, path: str, body: Any) -> Any:
            return {}

    with serving(Anything()) as served:
        status, said = run(served.url)

    assert status == 1
    assert "does not answer as a Grafana does" in " ".join(said.split())
    assert "created dashboard" not in said
