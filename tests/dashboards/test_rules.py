"""Do the rules say of made-up traffic what they should, does promtool accept them, is it all real?

What fires and what does not is promtool's word, over counters as our exporter shows them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from llmtrace.budget import DEFAULT, Budget
from llmtrace.cli import make_parser
from llmtrace.core.errors import ConfigError
from llmtrace.exporters.prometheus.buckets import LATENCY_S
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.testing import make_row
from llmtrace.triage.command import window
from llmtrace_collector.metrics.endpoint import OwnMetrics
from llmtrace_collector.metrics.target_metrics import TargetMetrics
from llmtrace_collector.receive import Admission, Ingest, Spool, own_metrics
from llmtrace_collector.signals.engine_rules import rule_groups
from llmtrace_collector.signals.profile import builtin_profiles
from llmtrace_dashboards.rules.burn_rate import RuleSettings
from llmtrace_dashboards.rules.recording_rules import as_yaml, engine_file, rule_files
from llmtrace_dashboards.rules.recording_series import ALLOWED, REMAINING, bad_ratio, valid_count
from tests.collector import pages
from tests.collector.receive.parts import MemoryStore
from tests.collector.test_expose import state
from tests.real import history

from .promtool import alerting, counter, outcome_of, requests, run

CHAT: Final = Budget(name="chat", ttft_s=1.0, availability=0.99, route=("chat",))
# Evaluated every five minutes, so that three days are a thousand evaluations and not ten thousand.
SETTINGS: Final = RuleSettings(interval="5m")
HEALTHY: Final = 100.0  # requests a minute
FIRING: Final = (
    'count by (alertname, severity, window, slo) (ALERTS{alertstate="firing", '
    'alertname!="LlmtraceCollectorStalled"})'
)
HOUR: Final = 60
HALF: Final = 720
DAY: Final = 1440


def written(*budgets: Budget, settings: RuleSettings = SETTINGS) -> dict[str, str]:
    """Return the rule files of some budgets, as text."""
    return alerting(budgets, settings)


def fires(
    folder: Path, inputs: list[dict[str, str]], minutes: int, *expected: dict[str, str]
) -> None:
    """Assert that after so many minutes exactly these alerts fire, given by their labels."""
    every = "5m" if minutes < DAY else "10m" if minutes < 2 * DAY else "20m"  # they cost time
    values = {
        "{" + ", ".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}": 1.0
        for labels in expected
    }
    rules = written(CHAT, settings=RuleSettings(interval=every))
    outcome_of(folder, rules, inputs, f"{minutes}m", every=every, expected=[(FIRING, values)])


def burn(window: str, severity: str, slo: str = "ttft") -> dict[str, str]:
    """Return the labels of a burn-rate alert."""
    kind = "Availability" if slo == "availability" else "Latency"
    name = f"Llmtrace{kind}BudgetBurn"
    return {"alertname": name, "severity": severity, "window": window, "slo": slo}


def slow(*phases: tuple[int, float], each_minute: float = HEALTHY) -> list[dict[str, str]]:
    """Return traffic of which a share takes 3 s, in phases of minutes."""
    return requests(
        {
            0.3: [(minutes, each_minute * (1 - share)) for minutes, share in phases],
            3.0: [(minutes, each_minute * share) for minutes, share in phases],
        }
    )


# --- budgets that burn --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        pytest.param([(HALF, 0.0), (40, 0.45)], [burn("1h", "page")], id="an hour"),
        pytest.param([(DAY, 0.01), (5 * HOUR + 30, 0.2)], [burn("6h", "page")], id="six hours"),
        pytest.param([(3 * DAY, 0.01), (22 * HOUR, 0.12)], [burn("1d", "ticket")], id="a day"),
        pytest.param([(3 * DAY, 0.065)], [burn("3d", "ticket")], id="three days"),
        pytest.param([(6 * HOUR, 0.02), (HOUR, 0.045)], [], id="within the budget"),
        pytest.param([(HALF, 0.0), (40, 0.45), (10, 0.0)], [], id="over again"),
        pytest.param([(HALF, 0.0), (10, 0.9)], [], id="ten minutes are too short to matter"),
    ],
)
def test_a_slow_share_calls_by_how_long_it_lasts(tmp_path, phases, expected):
    """Each rung of the ladder fires for its own window, and none without need."""
    fires(tmp_path, slow(*phases), sum(minutes for minutes, _ in phases), *expected)


def test_a_few_requests_fire_no_alert(tmp_path):
    """Five minutes of ten a minute hold fewer requests than a p95 needs: the hour is silent."""
    phases = [(HALF, 0.0), (40, 0.45)]

    fires(tmp_path, slow(*phases, each_minute=10), HALF + 40)


def test_a_few_requests_still_call_by_the_longer_window(tmp_path):
    """A small service that is slow for hours is found by the window that holds enough of it."""
    phases = [(DAY, 0.01), (5 * HOUR + 30, 0.2)]

    fires(tmp_path, slow(*phases, each_minute=10), DAY + 5 * HOUR + 30, burn("6h", "page"))


def slow_at(each_minute: float, share: float, **site: str) -> list[dict[str, str]]:
    """Return twelve hours of healthy traffic in one place, then forty minutes of slow."""
    slow_ones, fine = each_minute * share, each_minute * (1 - share)
    return requests(
        {0.3: [(HALF, each_minute), (40, fine)], 3.0: [(HALF, 0.0), (40, slow_ones)]}, **site
    )


@pytest.mark.parametrize(
    ("inputs", "places"),
    [
        pytest.param(
            [*slow_at(200, 0.0, cluster="eu", namespace="shop"),
             *slow_at(20, 0.45, cluster="us", namespace="shop")],
            ['cluster="us", namespace="shop"'],
            id="in one of two, which hardly shows in both together",
        ),
        pytest.param(
            [one for n in range(5) for one in slow_at(10, 0.45, namespace=f"team-{n}")],
            [""],
            id="in all of them, each with too few requests to say so",
        ),
        pytest.param(
            [*slow_at(20, 0.9, cluster="eu"), *slow_at(20, 0.9, cluster="us")],
            ['cluster="eu"', 'cluster="us"'],
            id="in both, and no third time for both together",
        ),
    ],
)  # fmt: skip
def test_a_budget_burns_where_prometheus_says_its_requests_are(tmp_path, inputs, places):
    """By cluster and namespace; over all of them where none burns by itself."""
    firing = (
        'count by (window, cluster, namespace) (ALERTS{alertstate="firing", window="1h",'
        ' alertname="LlmtraceLatencyBudgetBurn"})'
    )
    values = {f'{{{one}{", " * bool(one)}window="1h"}}': 1.0 for one in places}

    outcome_of(
        tmp_path, written(CHAT), inputs, f"{HALF + 40}m", every="5m", expected=[(firing, values)]
    )


def test_a_route_the_budget_is_not_for_does_not_burn_it(tmp_path):
    """Another budget's slow requests are none of this budget's."""
    others = requests({3.0: [(8 * HOUR, HEALTHY)]}, route="batch")

    fires(tmp_path, [*others, *slow((8 * HOUR, 0.0))], 8 * HOUR)


def test_who_times_out_before_the_first_content_was_slow(tmp_path):
    """Those requests are in no histogram of TTFT, and burn its budget all the same."""
    phases = [(DAY, 0.0), (40, 60.0)]
    never = requests({30.0: phases}, outcome="timeout", first_content=False)

    fires(
        tmp_path, [*never, *slow((DAY + 40, 0.0))], DAY + 40,
        burn("1h", "page"), burn("1h", "page", "availability"),
        burn("6h", "page", "availability"), burn("3d", "ticket", "availability"),
    )  # fmt: skip


def test_quick_errors_make_no_budget_of_latency_burn(tmp_path):
    """An error after 2 ms is no slow answer, and no fast one either."""
    phases = [(6 * HOUR, 0.0), (40, 300.0)]
    errors = requests({0.002: phases}, outcome="error", first_content=False)
    healthy = slow((6 * HOUR + 40, 0.02))

    outcome_of(
        tmp_path, written(Budget(name="chat", total_s=2.5)), [*errors, *healthy], "400m",
        expected=[
            (FIRING, {}),
            (f'round({bad_ratio("5m")}, 1e-6)', {
                '{budget="chat", slo="e2e"}': 0.02, '{budget="chat", slo="availability"}': 0.75,
            }),
        ],
    )  # fmt: skip


def test_errors_burn_the_availability(tmp_path):
    """A fifth of the requests fails for 50 minutes: the hour pages, and nothing else does yet."""
    phases = [(DAY, 0.0), (50, 25.0)]
    errors = requests({0.1: phases}, outcome="error", first_content=False)

    fires(
        tmp_path, [*errors, *slow((DAY + 50, 0.0))], DAY + 50,
        burn("1h", "page", "availability"),
    )  # fmt: skip


def test_callers_who_leave_are_not_unavailability(tmp_path):
    """A client that cancels early burns no budget; that is reported by an alert of its own."""
    left = requests({0.1: [(2 * HOUR, 100.0)]}, outcome="cancelled")

    fires(tmp_path, [*left, *slow((2 * HOUR, 0.0))], 2 * HOUR)


def test_what_is_recorded_is_what_was_served(tmp_path):
    """Shares and counts of every window equal those of the traffic, and so does what is left."""
    several = Budget(name="all", total_s=2.5, tpot_s=0.029, objective=0.9)
    inputs = [
        *requests({0.3: [(600, 60.0)], 3.0: [(600, 15.0)]}, edges=[2.5, 0.029]),
        *requests({9.0: [(600, 5.0)]}, outcome="cancelled", edges=[2.5, 0.029]),
    ]

    def labelled(name: str, slo: str) -> str:
        return f'{name}{{budget="all", slo="{slo}"}}'

    outcome_of(
        tmp_path, written(several), inputs, "600m",
        expected=[
            *(
                (f"round({bad_ratio(w)}, 1e-6)", {
                    '{budget="all", slo="e2e"}': 0.25, '{budget="all", slo="tpot"}': 0.25,
                    # Nothing is promised of it, and dashboards show it all the same.
                    '{budget="all", slo="availability"}': 0.0,
                })
                for w in ("5m", "30m", "6h", "30d")
            ),
            # 80 a minute that count, and one evaluation of 24 more: a window has two ends.
            (f"round({valid_count('2h')})", {
                '{budget="all", slo="e2e"}': 10_000, '{budget="all", slo="tpot"}': 10_000,
                '{budget="all", slo="availability"}': 9_375,
            }),
            (ALLOWED, {labelled(ALLOWED, s): 0.1 for s in ("e2e", "tpot")}),
            (f"round({REMAINING}, 1e-6)", {f'{{budget="all", slo="{s}"}}': -1.5
                                           for s in ("e2e", "tpot")}),
        ],
    )  # fmt: skip


@pytest.mark.parametrize(("edges", "known"), [([1.0], True), ([], False)])
def test_a_threshold_without_a_bucket_bound(tmp_path, edges, known):
    """An application that was not given the budget burns nothing, and that is reported."""
    shown = (
        '{alertname="LlmtraceBudgetUnmeasured", instance="app:9464", service="shop", slo="ttft"}'
    )
    alert = 'ALERTS{alertname="LlmtraceBudgetUnmeasured"}'
    others = requests([(HOUR, 100.0)], edges=[1.0], instance="another:9464")

    outcome_of(
        tmp_path, written(CHAT), [*others, *requests([(HOUR, 100.0)], edges=edges)], "59m",
        every="1m",
        expected=[
            (f"count by (alertname, service, instance, slo) ({alert})",
             {} if known else {shown: 1.0}),
        ],
    )  # fmt: skip


# --- what no budget tells -----------------------------------------------------------------------

UP: Final = {"job": "llmtrace-collector", "instance": "collector:9090"}
LAG: Final = "llmtrace_ingest_lag_seconds"
STALLED: Final = {"alertname": "LlmtraceCollectorStalled", "severity": "page"}
ANY_ALERT: Final = 'count by (alertname, severity) (ALERTS{alertstate="firing"})'


def gauge(name: str, values: str, **labels: str) -> dict[str, str]:
    """Return an input series with these values, one a minute."""
    shown = ", ".join(f'{k}="{v}"' for k, v in labels.items())
    return {"series": f"{name}{{{shown}}}", "values": values}


def late(instance: str, each_minute: float) -> dict[str, str]:
    """Return how often the readings of one target were left out."""
    counted = counter([(20, each_minute)])
    return gauge(
        "llmtrace_target_late_total", counted, job="llmtrace-collector", instance=instance
    )


@pytest.mark.parametrize(
    ("inputs", "stalled"),
    [
        pytest.param([gauge("up", "1x9 0x10", **UP)], True, id="down"),
        pytest.param([gauge("up", "1x20", job="app", instance="a")], False, id="never there"),
        pytest.param(
            [gauge("up", "1x9 stale", **UP), gauge(LAG, "0x9 stale", **UP)], True, id="gone"
        ),
        pytest.param([gauge(LAG, "0x20", job="other")], True, id="scraped as another job"),
        pytest.param(
            [gauge("up", "1x20", **UP), late("a:1", 2), late("b:1", 2)], True, id="all are late"
        ),
        pytest.param(
            [gauge("up", "1x20", **UP), gauge(LAG, "0+20x20", **UP)], True, id="stores nothing"
        ),
        pytest.param(
            [gauge("up", "1x20", **UP), gauge(LAG, "90x20", **UP)], False, id="behind a little"
        ),
        pytest.param([gauge("up", "1x20", **UP)], False, id="up"),
        pytest.param([gauge("up", "1x18 0x1", **UP)], False, id="restarting"),
        pytest.param(
            [gauge("up", "1x20", **UP), late("a:1", 2), late("b:1", 0)], False, id="one is late"
        ),
    ],
)
def test_a_stalled_collector(tmp_path, inputs, stalled):
    """It pages when it is gone, or reads nothing in time; not for one slow target."""
    labels = ", ".join(f'{k}="{v}"' for k, v in STALLED.items())

    outcome_of(
        tmp_path, written(CHAT), inputs, "19m", every="1m",
        expected=[(ANY_ALERT, {f"{{{labels}}}": 1.0} if stalled else {})],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "down"), [("1x9 0x10", True), ("1x18 0x1", False), ("1x20", False)]
)
def test_an_engine_that_is_down(tmp_path, values, down):
    """An engine that does not answer for a minute pages, by its name; one missed reading not."""
    shown = '{alertname="LlmtraceEngineDown", instance="vllm-1:8000"}'

    targets_tell(tmp_path, {shown: 1.0} if down else {}, values, kind="engine")
    targets_tell(tmp_path, {shown: 1.0} if down else {}, values)  # not known: it may be one


@pytest.mark.parametrize("kind", ["gateway", "gpu"])
@pytest.mark.parametrize(("values", "down"), [("1x8 0x11", True), ("1x12 0x7", False)])
def test_a_target_that_is_no_engine_is_down(tmp_path, kind, values, down):
    """It wakes no person; a ticket is written once it lasts ten minutes."""
    shown = '{alertname="LlmtraceTargetDown", instance="vllm-1:8000"}'

    targets_tell(tmp_path, {shown: 1.0} if down else {}, values, kind=kind)


def targets_tell(folder: Path, expected: dict[str, float], values: str, **labels: str) -> None:
    """Assert which alerts fire after 19 minutes in which a target was up or down."""
    whose = {"job": "llmtrace-collector", "instance": "vllm-1:8000", **labels}
    target = gauge("llmtrace_target_up", values, **whose)
    outcome_of(
        folder, written(CHAT), [target, gauge("up", "1x20", **UP)], "19m", every="1m",
        expected=[('count by (alertname, instance) (ALERTS{alertstate="firing"})', expected)],
    )  # fmt: skip


def breaks(folder: Path, inputs: list[dict[str, str]], *names: str) -> None:
    """Assert which alerts fire, leaving aside the budget that burns with them."""
    shown = (
        'count by (alertname, severity) (ALERTS{alertstate="firing", '
        'alertname!~"LlmtraceCollectorStalled|Llmtrace.*Burn"})'
    )
    values = {f'{{alertname="{name}", severity="ticket"}}': 1.0 for name in names}
    outcome_of(
        folder, written(CHAT), [*inputs, *slow((60, 0.0))], "59m", every="1m",
        expected=[(shown, values)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("each_minute", "began", "expected"),
    [
        pytest.param(4.0, True, ["LlmtraceErrorsInStream"], id="in the stream"),
        pytest.param(4.0, False, [], id="before it began"),
        pytest.param(0.5, True, [], id="one in two hundred"),
    ],
)
def test_errors_in_the_stream(tmp_path, each_minute, began, expected):
    """Errors after the first content are distinguished from those with a status."""
    errors = requests([(60, each_minute)], outcome="error", first_content=began)

    breaks(tmp_path, errors, *expected)


@pytest.mark.parametrize(
    ("ages", "expected"),
    [
        pytest.param({60.2: 4.0}, ["LlmtraceTruncationPileUp"], id="at sixty seconds"),
        pytest.param(
            {29.0: 0.1, 60.2: 4.0}, ["LlmtraceTruncationPileUp"], id="nearly all at sixty"
        ),
        pytest.param({2.0: 1.0, 9.0: 1.0, 30.0: 1.0, 70.0: 1.0}, [], id="at any age"),
        pytest.param({60.2: 0.5}, [], id="one in two hundred"),
    ],
)
def test_streams_cut_off_at_an_age(tmp_path, ages, expected):
    """Ends at one age mean a proxy's timeout; ends at any age mean something else."""
    cut = requests(
        {age: [(60, many)] for age, many in ages.items()},
        outcome="truncated",
        edges=(*LATENCY_S, 1.0),
    )

    breaks(tmp_path, cut, *expected)


@pytest.mark.parametrize(
    ("each_minute", "waited", "expected"),
    [
        pytest.param(10.0, False, ["LlmtraceCallersGiveUp"], id="before the first content"),
        pytest.param(10.0, True, [], id="while reading"),
        pytest.param(2.0, False, [], id="one in fifty"),
    ],
)
def test_callers_who_give_up(tmp_path, each_minute, waited, expected):
    """A client that leaves before the first content makes a p95 look better; it is reported."""
    left = requests({8.0: [(60, each_minute)]}, outcome="cancelled", first_content=waited)

    breaks(tmp_path, left, *expected)


# --- what an alert carries ----------------------------------------------------------------------


def annotations(name: str, content: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the annotations of the first rule of this name."""
    files = content or rule_files([CHAT], SETTINGS)
    rules = files["alerts.yaml"]["groups"][0]["rules"]
    found: dict[str, str] = next(rule["annotations"] for rule in rules if rule["alert"] == name)
    return found


def test_what_the_person_on_call_reads(tmp_path):
    """Links and command name the window the alert is about, as it stands when it fires."""
    at = HALF + 40
    shown = annotations("LlmtraceLatencyBudgetBurn")
    expected = {
        "summary": "chat: 27.69% of the requests of the last 1h are too slow (ttft)",
        "description": shown["description"],
        "dashboard_url": (
            "http://localhost:3000/d/llmtrace-budget?from=31200000&to=45600000&var-route=chat"
        ),
        "runbook_url": "docs/on-call/alerts.md#llmtracelatencybudgetburn",
        "triage": (
            "llmtrace triage --after 1970-01-01T11:40:00Z/1970-01-01T12:40:00Z --metric ttft "
            "--where route=chat"
        ),
    }
    labels = {
        "severity": "page", "budget": "chat", "slo": "ttft", "window": "1h", "route": "chat",
    }  # fmt: skip

    outcome_of(
        tmp_path, written(CHAT), slow((HALF, 0.0), (40, 0.45)), f"{at}m",
        alerts=[
            {
                "eval_time": f"{at}m",
                "alertname": "LlmtraceLatencyBudgetBurn",
                "exp_alerts": [{"exp_labels": labels, "exp_annotations": expected}],
            }
        ],
    )  # fmt: skip
    assert "95 % of the requests show their first content within 1 s" in shown["description"]
    assert "25 % over 1h" in shown["description"]


def test_every_alert_says_what_where_and_how():
    """Each has a summary, a description, a dashboard, a heading in the document and a command."""
    page = (Path(__file__).parents[2] / "docs" / "on-call" / "alerts.md").read_text(
        encoding="utf-8"
    )
    headings = {line[4:].strip("` ").lower() for line in page.splitlines() if line[:4] == "### "}
    for rule in rule_files([CHAT])["alerts.yaml"]["groups"][0]["rules"]:
        shown = rule["annotations"]
        assert set(shown) == {"summary", "description", "dashboard_url", "runbook_url", "triage"}
        assert shown["runbook_url"] == f"docs/on-call/alerts.md#{rule['alert'].lower()}"
        assert rule["alert"].lower() in headings
        assert shown["triage"].startswith("llmtrace triage --after ")


def test_a_name_cannot_change_the_command():
    """What a budget is for is quoted for the shell, and for PromQL."""
    odd = Budget(name='a"b', ttft_s=1.0, route=("it's; rm -rf $HOME",), model=('x"y\\z',))
    content = rule_files([odd])
    shown = annotations("LlmtraceLatencyBudgetBurn", content)["triage"]
    plain = re.sub(r"\{\{.*?\}\}", "", shown)

    assert shlex.split(plain)[-3::2] == ['model=x"y\\z', "route=it's; rm -rf $HOME"]


def test_what_a_request_called_its_model_cannot_change_the_command(tmp_path):
    """Model and route come from requests: in the command they are one word each."""
    odd = {"model": "x'; rm -rf $HOME; 'y", "route": "a b&c"}
    shown = annotations("LlmtraceCallersGiveUp")
    url = shown["dashboard_url"].partition("?")[0]
    expected = {
        "summary": "shop, x'; rm -rf $HOME; 'y, route a b&c: 33.33% of the callers leave before "
        "the first content",
        "description": shown["description"],
        "dashboard_url": f"{url}?from=1140000&to=3540000&var-model=x%27%3B+rm+-rf+%24HOME%3B+%27y"
        "&var-route=a+b%26c&var-service=shop",
        "runbook_url": shown["runbook_url"],
        "triage": "llmtrace triage --after 1970-01-01T00:49:00Z/1970-01-01T00:59:00Z "
        r"--where 'model=x'\''; rm -rf $HOME; '\''y' --where 'route=a b&c' --where 'service=shop'",
    }
    given_up = requests({8.0: [(60, 50.0)]}, outcome="cancelled", first_content=False, **odd)
    stayed = requests([(60, 100.0)], **odd)

    outcome_of(
        tmp_path, written(CHAT), [*given_up, *stayed], "59m", every="1m",
        alerts=[
            {
                "eval_time": "59m",
                "alertname": "LlmtraceCallersGiveUp",
                "exp_alerts": [
                    {"exp_labels": {"severity": "ticket", "service": "shop", **odd},
                     "exp_annotations": expected}
                ],
            }
        ],
    )  # fmt: skip
    assert shlex.split(expected["triage"])[5::2] == [
        "model=x'; rm -rf $HOME; 'y", "route=a b&c", "service=shop",
    ]  # fmt: skip


def test_rules_of_odd_names_are_still_rules(tmp_path):
    """Promtool reads them."""
    odd = Budget(name='a"b', ttft_s=1.0, route=("it's; rm -rf $HOME",), model=('x"y\\z', "l-*"))
    for name, text in written(odd).items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    assert "SUCCESS" in run("check", "rules", *sorted(tmp_path.iterdir()))


# --- is it real? --------------------------------------------------------------------------------

_ASKED: Final = re.compile(r"(?<![\w:])(llmtrace_\w+)(?![\w:])(\{[^}]*\})?")


def exposed(folder: Path) -> dict[str, set[str]]:
    """Return what our exporter and the collector expose: labels by metric."""
    registry = CollectorRegistry()
    spool = Spool(folder)
    admission, ingest = Admission(spool), Ingest(spool, MemoryStore())
    registry.register(OwnMetrics(lambda: own_metrics(admission, spool, ingest)))
    sink = PrometheusSink(
        registry=registry, thresholds_s=DEFAULT.thresholds_s(),
        budget_seconds=DEFAULT.allocations_s(), tenants=True,
    )  # fmt: skip
    sink.write(make_row(model="tiny", route="chat", region="eu", outcome="success"))
    engine = state("http://a:8000/metrics", pages.scrape("vllm-0.32-metrics.txt"))
    registry.register(TargetMetrics(lambda: [engine]))
    found: dict[str, set[str]] = {}
    for family in parse(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    sink.close()
    spool.close()
    # A minute of requests that know each of their parts, of turns and of tool calls.
    for _, name, labels, _ in history.pages(60):
        found.setdefault(name, set()).update(labels)
    return found


def test_every_metric_and_label_that_is_asked_for_exists(tmp_path):
    """Rules ask for what is exposed, under the names and labels it is exposed with."""
    metrics = exposed(tmp_path)
    asked = 0
    for content in rule_files([DEFAULT, CHAT]).values():
        for group in content["groups"]:
            for rule in group["rules"]:
                for name, where in _ASKED.findall(rule["expr"]):
                    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", where)) - {"job"}
                    assert name in metrics, f"{name} is not exposed"
                    assert labels <= metrics[name], f"{name} has no {labels - metrics[name]}"
                    asked += 1
    assert asked > 50


def test_the_thresholds_are_bounds_of_the_exposed_histograms():
    """Each `le` the rules ask for is a bucket of the exporter that has the same budget."""
    registry = CollectorRegistry()
    sink = PrometheusSink(registry=registry, thresholds_s=DEFAULT.thresholds_s())
    sink.write(make_row(output_tokens=10, last_content_ns=900_000_000))
    page = generate_latest(registry).decode()
    sink.close()
    rules = as_yaml(rule_files([DEFAULT])["recording.yaml"])
    asked = re.findall(r'(llmtrace_\w+_bucket)\{[^}]*le="([^"]+)"', rules)

    assert len(asked) >= 6
    for metric, le in asked:
        assert re.search(rf'{metric}{{[^}}]*le="{re.escape(le)}"', page), (metric, le)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budgets", "shown"),
    [
        ([Budget(stages_s={"queue": 0.1})], "no budget sets total, ttft, tpot or availability"),
        ([Budget(name="b", ttft_s=1, objective=0.5)], "budget b: with an objective of 50 %"),
        ([Budget(name="b", ttft_s=1, route=("{{ x }}",))], "budget b: '{{ x }}' holds {{, which"),
    ],
)
def test_a_budget_no_alert_can_be_made_of(budgets, shown):
    """Nothing to alert on, and objectives that leave no room, are reported."""
    with pytest.raises(ConfigError, match=re.escape(shown)):
        rule_files(budgets)


GENERATED: Final = Path(__file__).parents[2] / "dashboards" / "rules"


@pytest.mark.parametrize("name", ["recording.yaml", "alerts.yaml"])
def test_the_committed_rules_are_those_of_the_default_budget(name):
    """`llmtrace slo rules --out dashboards/rules` would change nothing."""
    text = (GENERATED / name).read_text(encoding="utf-8")

    assert yaml.safe_load(text) == rule_files([DEFAULT])[name]
    assert "SUCCESS" in run("check", "rules", GENERATED / name)


def test_the_committed_rules_of_engines_are_those_of_the_profiles():
    """`llmtrace slo engines --out dashboards/rules` would change nothing."""
    made = engine_file([DEFAULT], rule_groups(builtin_profiles()), RuleSettings())["engines.yaml"]

    assert yaml.safe_load((GENERATED / "engines.yaml").read_text(encoding="utf-8")) == made


def test_the_command_of_an_alert_is_one_llmtrace_has():
    """What is printed at night can be pasted: the command's parser takes it."""
    settings = RuleSettings(collector="http://collect:4319")
    moments = iter(("2026-11-21T14:00:00Z", "2026-11-21T15:00:00Z") * 100)
    for rule in rule_files([CHAT], settings)["alerts.yaml"]["groups"][0]["rules"]:
        shown = re.sub(r"\{\{ with \$.*?end \}\}", "", rule["annotations"]["triage"])
        filled = re.sub(r"\{\{ with query.*?end \}\}", lambda _: next(moments), shown)
        options = make_parser().parse_args(shlex.split(filled)[1:])

        assert options.url == "http://collect:4319"
        assert window(options.after, 0.0).seconds == 3600
