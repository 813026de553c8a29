"""Each alert is triaged once, its report stored and people notified, whatever the sender."""

from __future__ import annotations

import json
import logging
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from llmtrace.core.errors import ConfigError, DataError, LlmtraceError, SourceError
from llmtrace.dataset.case import Case, Window
from llmtrace.display.summary_tables import date_and_zone
from llmtrace.triage.oncall.alert import MAX_BYTES, Alert, read_alerts
from llmtrace.triage.oncall.alert_queue import AlertQueue, Full, QueueSettings, triage_alert
from llmtrace.triage.oncall.command import serve
from llmtrace.triage.oncall.notify import Annotated, Webhook, as_report, summary
from llmtrace.triage.oncall.report_store import Reports
from llmtrace.triage.oncall.similar import similar_reports
from llmtrace.triage.oncall.web import make_app
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.html import page
from llmtrace.triage.result import Finding
from llmtrace.triage.sources import reader
from tests.support.certificates import needs_openssl, self_signed
from tests.support.waiting import until
from tests.triage.days import Kind, day

SECRET = "T0K3N-of-a-person"
AT_ONCE = QueueSettings(settle_s=0.0, retry_s=0.0)
PATIENCE_S = 60.0


def notification(*alerts: dict[str, Any]) -> bytes:
    """Write what an Alertmanager sends."""
    return json.dumps({"version": "4", "status": "firing", "alerts": list(alerts)}).encode()


def firing(at: float, **labels: str) -> dict[str, Any]:
    """Write one alert."""
    return {
        "status": "firing",
        "labels": {"alertname": "LlmtraceTtftBurn", **labels},
        "annotations": {"summary": "slow"},
        "startsAt": datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z"),
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": "any",
    }


@pytest.fixture(scope="module")
def slow() -> Case:
    """Return a day on which one replica became slow."""
    return day(after=Kind(slow_replica=6.0), n=(2000, 600))


@pytest.fixture(scope="module")
def at(slow: Case) -> float:
    """Return when its alert fired."""
    assert slow.after is not None
    return slow.after.start + 60


# --- what comes in -------------------------------------------------------------------------------


def test_a_notification_is_read():
    """Name, times and labels; the zero time of an alert that fires is no end."""
    [alert] = read_alerts(notification(firing(1_700_000_000.5, model="m")))

    assert (alert.name, alert.started, alert.ended) == ("LlmtraceTtftBurn", 1_700_000_000.5, None)
    assert alert.labels["model"] == "m"


def test_the_same_firing_has_the_same_id():
    """Whatever else changes between two notifications; another firing has another."""
    first, again = firing(1e9), {**firing(1e9), "fingerprint": "other", "annotations": {}}
    [one], [two], [other] = (
        read_alerts(notification(alert)) for alert in (first, again, firing(1e9 + 1))
    )

    assert one.id == two.id != other.id


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"[]", "no notification"),
        (b'{"alerts": 3}', "no notification"),
        (b'{"alerts": [3]}', "no object"),
        (b'{"alerts": [{}]}', "startsAt"),
        (b'{"alerts": [{"startsAt": "soon"}]}', "startsAt"),
        (b"[" * 100_000, "no JSON"),
        (b" " * (MAX_BYTES + 1), "more than"),
    ],
)
def test_what_is_no_notification_is_refused(body, words):
    """With the reason."""
    with pytest.raises(DataError, match=words):
        read_alerts(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=12,
)
KEYS = ("status", "labels", "annotations", "startsAt", "endsAt")


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), JSON), max_size=4), st.binary(max_size=64))
def test_nothing_a_sender_sends_raises_anything_else(alerts, noise):
    """A clear error, or alerts within bounds."""
    for body in (json.dumps({"alerts": alerts}).encode(), noise):
        try:
            found = read_alerts(body)
        except DataError:
            continue
        assert all(isinstance(one, Alert) and one.started > 0 for one in found)


# --- the desk ------------------------------------------------------------------------------------


class Notifier:
    """Keeps what it is to say, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.sent: list[tuple[str, str | None]] = []
        self._fails = fails

    def notify(self, alert: Alert, result: Any, link: str | None) -> None:
        """Keep it."""
        self.sent.append((summary(alert, result, link), link))
        if self._fails:
            raise SourceError("no server there")


@contextmanager
def working(load: Any, folder: Path, *tell: Notifier, **settings: Any) -> Iterator[AlertQueue]:
    """Run a desk; end it afterwards."""
    reports = Reports(folder)
    reports.ready()
    desk = AlertQueue(
        load,
        reports,
        tell,
        QueueSettings(**{"settle_s": 0.0, "retry_s": 0.0, **settings}),
        link=lambda name: f"https://triage/reports/{name}",
    )
    try:
        yield desk
    finally:
        desk.close(PATIENCE_S)


def test_an_alert_becomes_a_report_and_is_told(slow, at, tmp_path):
    """Once, however often it is sent; with the right cohort, a page, and JSON."""
    asked: list[Window] = []

    def load(window: Window, _progress: Any) -> Case:
        asked.append(window)
        return Case(rows=slow.rows, signals=slow.signals)

    broken, chat = Notifier(fails=True), Notifier()
    alerts = read_alerts(notification(firing(at, model="m", severity="page")))
    with working(load, tmp_path, broken, chat) as desk:
        assert desk.take(alerts) == 1
        assert desk.take(alerts) == 0
        until(lambda: chat.sent)

        assert desk.take(alerts) == 0
        assert desk.counts["repeated"] == 2
        assert desk.counts["not_delivered"] == 1
    reports = Reports(tmp_path)
    [name] = reports.names()
    text, link = chat.sent[0]
    report = reports.content(name)

    assert link == f"https://triage/reports/{name}"
    assert "replica=vllm-0" in text
    assert report is not None
    assert report["result"]["verdict"] == "regression"
    assert report["alert"]["labels"]["severity"] == "page"
    assert "vllm-0" in (reports.page(name) or "")
    assert asked[0].start < at - 3600
    assert len(asked) == 1


def test_a_restarted_desk_knows_what_is_there(slow, at, tmp_path):
    """The report is in the folder: the alert is not triaged again."""

    def load(_window: Window, _progress: Any) -> Case:
        return Case(rows=slow.rows, signals=slow.signals)

    alerts = read_alerts(notification(firing(at)))
    with working(load, tmp_path) as desk:
        desk.take(alerts)
        until(lambda: desk.counts["triaged"])
    with working(load, tmp_path) as desk:
        assert desk.take(alerts) == 0


def test_an_alert_whose_data_are_invalid_is_tried_again(slow, at, tmp_path, caplog):
    """And given up after so many times, which is logged; the desk goes on with the next."""
    tries: list[int] = []

    def load(_window: Window, _progress: Any) -> Case:
        tries.append(1)
        if len(tries) < 8:  # three of the first alert, in turn with the others'
            raise DataError("the collector has no rows")
        return Case(rows=slow.rows, signals=slow.signals)

    with working(load, tmp_path, attempts=3) as desk:
        desk.take(read_alerts(notification(firing(at), firing(at + 1), firing(at + 2))))
        until(lambda: desk.counts["triaged"] + desk.counts["failed"] == 3)

        assert (desk.counts["failed"], desk.counts["triaged"]) == (1, 2)
    assert caplog.text.count("is given up: the collector has no rows") == 1


def test_an_alert_waits_for_its_source(slow, at, tmp_path, caplog):
    """As long as it is away, /healthz says why; the report comes when it is back."""
    tries: list[int] = []
    first: list[LlmtraceError] = [DataError("the collector has no rows")]
    back = threading.Event()

    def load(_window: Window, _progress: Any) -> Case:
        tries.append(1)
        if not back.is_set():
            raise SourceError("the collector is away")
        if first:
            raise first.pop()
        return Case(rows=slow.rows, signals=slow.signals)

    with (
        working(load, tmp_path, attempts=2, retry_s=0.01) as desk,
        TestClient(make_app(desk, Reports(tmp_path), None), base_url="http://127.0.0.1") as web,
    ):
        desk.take(read_alerts(notification(firing(at))))
        until(lambda: len(tries) > 3)
        assert "the collector is away" in web.get("/healthz").json()["error"]
        assert "Not yet: alerts cannot be triaged: the collector is away" in web.get("/").text
        assert len(list(tmp_path.glob("*.queued"))) == 1
        back.set()
        until(lambda: desk.counts["triaged"] and not desk.unfinished())
        assert web.get("/healthz").json() == {"ok": True, "queued": 0, "taken": 1, "triaged": 1}
    assert "given up" not in caplog.text


def test_too_few_requests_are_looked_at_again(slow, at, tmp_path):
    """An incident that has only begun soon tells more; the report is of the last look."""
    assert slow.after is not None
    few = slow.rows.within(slow.after.start - 1200, slow.after.start + 5)
    looks = [few, slow.rows]

    def load(_window: Window, _progress: Any) -> Case:
        return Case(rows=looks.pop(0), signals=slow.signals)

    with working(load, tmp_path) as desk:
        desk.take(read_alerts(notification(firing(at, slo="ttft"))))
        until(lambda: desk.counts["triaged"])
    reports = Reports(tmp_path)
    report = reports.content(reports.names()[0])

    assert looks == []
    assert report is not None
    assert (report["result"]["verdict"], report["result"]["metric"]) == ("regression", "ttft")


def test_what_failed_is_taken_on_again(slow, at, tmp_path):
    """When its sender repeats itself: what was wrong with the data may be right by then."""
    away = [True]

    def load(_window: Window, _progress: Any) -> Case:
        if away[0]:
            raise DataError("away")
        return Case(rows=slow.rows, signals=slow.signals)

    alerts = read_alerts(notification(firing(at)))
    with working(load, tmp_path, attempts=2) as desk:
        desk.take(alerts)
        until(lambda: desk.counts["failed"])
        away[0] = False
        until(lambda: desk.take(alerts) == 1)
        until(lambda: desk.counts["triaged"])


def test_what_was_queued_is_triaged_after_a_restart(slow, at, tmp_path, caplog):
    """An alert that was accepted is not sent again; one that cannot be kept is not accepted."""

    def load(_window: Window, _progress: Any) -> Case:
        return Case(rows=slow.rows, signals=slow.signals)

    alerts = read_alerts(notification(firing(at), firing(at + 1)))
    with working(load, tmp_path, settle_s=60.0) as desk:
        assert desk.take(alerts) == 2
    assert "2 alerts are still queued" in caplog.text
    (tmp_path / "20010909T014640Z-Half-0123456789abcdef.queued").write_text("")
    with working(load, tmp_path) as desk:
        assert desk.take(alerts) == 0
        until(lambda: desk.counts["triaged"] == 2)
    assert sorted(Reports(tmp_path).names()) == sorted(map(Reports(tmp_path).named, alerts))
    assert "Half-0123456789abcdef.queued is no queued alert" in caplog.text
    assert len(list(tmp_path.glob("*.queued"))) == 1


def test_a_folder_that_cannot_be_written_is_said(slow, at, tmp_path):
    """Of /healthz, until it can be; what was accepted is kept, other alerts are not accepted."""

    def load(_window: Window, _progress: Any) -> Case:
        return Case(rows=slow.rows, signals=slow.signals)

    folder, aside = tmp_path / "reports", tmp_path / "aside"
    with (
        working(load, folder, settle_s=0.2, retry_s=0.1, attempts=1) as desk,
        TestClient(make_app(desk, Reports(folder), None), base_url="http://127.0.0.1") as web,
    ):
        desk.take(read_alerts(notification(firing(at))))
        assert web.get("/healthz").json() == {"ok": True, "queued": 1, "taken": 1}
        folder.rename(aside)
        until(lambda: desk.problem)
        answer = web.get("/healthz")
        assert answer.status_code == 200  # a restart would not help
        assert answer.json()["ok"] is False
        assert "reports cannot be written" in answer.json()["error"]
        refused = web.post("/alerts", json=json.loads(notification(firing(at + 1))))
        assert refused.status_code == 503
        assert "reports cannot be written" in refused.json()["error"]
        aside.rename(folder)
        until(lambda: desk.counts["triaged"])
        assert web.get("/healthz").json()["ok"] is True


@pytest.mark.parametrize(
    "content",
    ["", "[" * 9_000, '{"alerts": []}', '{"alerts": [{"labels": [], "startsAt": 1e300}]}', None],
)
def test_a_file_that_is_no_queued_alert_is_left_out(at, tmp_path, content):
    """Whatever lies in the folder, others are triaged; one with a report is not triaged again."""
    reports = Reports(tmp_path)
    [alert, done] = read_alerts(notification(firing(at), firing(at + 1)))
    for one in (alert, done):
        reports.enqueue(reports.named(one), one)
    (tmp_path / f"{reports.named(done)}.json").write_text("{}")
    odd = tmp_path / "odd.queued"
    odd.mkdir() if content is None else odd.write_text(content)

    assert list(reports.queued()) == [alert]
    assert not (tmp_path / f"{reports.named(done)}.queued").exists()


def test_an_alert_that_is_too_early_does_not_hold_up_the_next(slow, at, tmp_path):
    """It is tried again when it is due; the others are triaged meanwhile."""
    looks = [slow.rows.take(slow.rows.start < 0)]

    def load(_window: Window, _progress: Any) -> Case:
        return Case(rows=looks.pop() if looks else slow.rows, signals=slow.signals)

    with working(load, tmp_path, retry_s=60.0) as desk:
        desk.take(read_alerts(notification(firing(at), firing(at + 1))))
        until(lambda: desk.counts["triaged"])
        assert [alert.started for alert in desk.unfinished()] == [at]


def test_odd_alerts_do_not_hide_the_others(slow, at):
    """What can be read of a notification is; of a large one the first."""
    assert len(read_alerts(notification({"startsAt": "soon"}, firing(at), {}))) == 1
    assert len(read_alerts(notification(*[firing(at)] * 500))) == 200


def test_what_breaks_one_report_does_not_end_the_desk(slow, at, tmp_path, caplog):
    """Whatever is raised."""
    calls: list[int] = []

    def load(_window: Window, _progress: Any) -> Case:
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError
        return Case(rows=slow.rows, signals=slow.signals)

    with working(load, tmp_path) as desk:
        desk.take(read_alerts(notification(firing(at), firing(at + 1))))
        until(lambda: desk.counts["triaged"])

        assert desk.counts["failed"] == 1
    assert "could not be triaged" in caplog.text


def test_pages_are_triaged_before_tickets(at, tmp_path):
    """The person who is woken reads the first report; tickets can wait."""
    begun: list[float] = []

    def load(window: Window, _progress: Any) -> Case:
        begun.append(window.start)
        raise DataError("away")

    alerts = [firing(at + n, severity=severity) for n, severity in
              enumerate(("ticket", "ticket", "page"))]  # fmt: skip
    with working(load, tmp_path, attempts=1) as desk:
        desk.take(read_alerts(notification(*alerts)))
        until(lambda: desk.counts["failed"] == 3)
    assert [start - begun[0] for start in begun] == pytest.approx([0.0, -2.0, -1.0])


def test_there_is_room_for_so_many(tmp_path):
    """They are taken on; the sender hears that there are more, and comes again."""
    with working(
        lambda *_: threading.Event().wait(), tmp_path, settle_s=60.0, max_waiting=3
    ) as desk:
        many = read_alerts(notification(*(firing(1e9 + n) for n in range(5))))
        with pytest.raises(Full):
            desk.take(many)
        assert (desk.counts["taken"], desk.counts["rejected"]) == (3, 2)


def test_what_has_ended_is_not_triaged(tmp_path):
    """A resolved alert needs no person."""
    over = firing(1e9) | {"status": "resolved", "endsAt": "2001-09-09T02:00:00Z"}
    with working(lambda *_: None, tmp_path) as desk:
        assert desk.take(read_alerts(notification(over))) == 0


def test_the_labels_say_whose_requests(slow, at):
    """Rows are filtered by the alert's labels, if any row has them."""
    [alert] = read_alerts(notification(firing(at, replica="vllm-1", model="unknown", job="app")))
    result = triage_alert(slow, alert, at + 600)

    assert result.verdict in ("no_change", "not_enough_data")  # by what so few would have shown
    assert not result.significant
    assert 0 < result.quality.n[1] < slow.rows.n / 3
    assert result.about == (
        f"alert LlmtraceTtftBurn of {date_and_zone(at)}", "only replica=vllm-1",
        "not filtered by model=unknown, which no request has",
    )  # fmt: skip
    assert "only replica=vllm-1" in summary(alert, result, None)


def test_an_alert_without_labels_of_requests_says_so(slow, at):
    """In the report and in the chat: it may be about something else."""
    said = "all requests are searched: llmtrace knows none of the alert's labels"
    [odd, of_one] = read_alerts(notification(firing(at, pod="vllm-0"), firing(at, slo="ttft")))
    result = triage_alert(slow, odd, at)

    assert said in result.about
    assert said in summary(odd, result, None)
    assert said not in triage_alert(slow, of_one, at).about


def test_an_alert_of_another_day_is_said_to_be_of_none(slow, at):
    """What is found is then not what the alert was about; so it is said of a calm time."""
    times = {"no request began within a minute of it": at + 40 * 86_400,
             "what stands out is at another time": slow.rows.start[9] / 1e9}  # fmt: skip
    for said, started in times.items():
        [alert] = read_alerts(notification(firing(started)))
        assert said in triage_alert(slow, alert, at).about


@pytest.mark.parametrize("away_s", [-40_000, -2_400, 100_000])
def test_an_alert_outside_the_data_is_triaged(slow, away_s):
    """Of a few requests, which all began long after it, or before."""
    few = slow.rows.take(slow.rows.start < slow.rows.start[101])
    case = Case(rows=few, signals=slow.signals)
    [alert] = read_alerts(notification(firing(few.start[0] / 1e9 + away_s, slo="ttft")))
    result = triage_alert(case, alert, alert.started + 86_400)
    assert (result.verdict, result.about[1]) == (
        "not_enough_data", "no request began within a minute of it",
    )  # fmt: skip


def test_an_alert_of_an_instance_names_it(slow, at):
    """Of two engines that are down there are two alerts, which nothing else tells apart."""
    down = firing(at, alertname="LlmtraceEngineDown", instance="gpu-7:8000")
    [alert] = read_alerts(notification(down))
    result = triage_alert(slow, alert, at)
    assert result.about[0].startswith("alert LlmtraceEngineDown gpu-7:8000 of ")
    assert summary(alert, result, None).startswith("LlmtraceEngineDown gpu-7:8000: ")


def test_only_so_many_reports_are_kept(tmp_path):
    """The oldest go."""
    reports = Reports(tmp_path, most=3)
    for number in range(5):
        alert = Alert(id=f"{number:016x}", name="A/../b", started=1e9 + number)
        reports.keep(reports.named(alert), {"number": number}, "page")

    assert [reports.content(name) for name in reports.names()] == [
        {"number": 4}, {"number": 3}, {"number": 2},
    ]  # fmt: skip
    assert len(list(tmp_path.iterdir())) == 6


# --- who is notified -----------------------------------------------------------------------------


class Heard(BaseHTTPRequestHandler):
    """Keeps what is posted."""

    seen: list[tuple[str, str | None, Any]]
    status = 200

    def do_POST(self) -> None:
        """Keep one."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, self.headers.get("Authorization"), body))
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def hearing(
    status: int = 200, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[Any]]]:
    """Serve; yield the address and what was posted."""
    seen: list[Any] = []
    handler = type("Handler", (Heard,), {"seen": seen, "status": status})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def result(slow: Case) -> Any:
    """Triage the slow day."""
    return triage(slow, Settings(bootstrap=40))


def test_what_was_seen_before_is_found(result, slow, tmp_path):
    """The same alert of last week, then another alert of the same cause; no other cause."""
    reports = Reports(tmp_path)
    result = replace(result, causes=(Finding(id="cold_start", status="likely"),))
    past = {
        "week": ("LlmtraceTtftBurn", result),
        "other": ("Another", result),
        "fails": ("LlmtraceTtftBurn", replace(result, causes=())),
    }
    for number, (name, (alert, flat)) in enumerate(past.items()):
        [one] = read_alerts(notification(firing(1e9 + number, alertname=alert)))
        reports.keep(reports.named(one), as_report(name, one, flat, 1e9), "")
    (tmp_path / "20010909T014643Z-Half-0123456789abcdef.json").write_text("{}")
    [now] = read_alerts(notification(firing(2e9)))
    found = similar_reports(reports, result, now, reports.named(now))
    again = replace(result, similar=found)

    assert [one.alert for one in found] == ["LlmtraceTtftBurn", "Another"]
    assert found[0].cause == "cold_start"
    assert "seen before: 2001-09-09" in summary(now, again, None)
    assert f'<a href="{found[0].report}">' in page(again, slow)


def test_a_chat_is_told_without_markup(result):
    """As `{"text": …}`; no person is mentioned by what comes from outside."""
    alert = Alert(id="1" * 16, name="<!channel> & <@U1>", started=1e9)
    with hearing() as (url, seen):
        Webhook(f"{url}/services/{SECRET}").notify(alert, result, "https://triage/1")
    [(_, _, body)] = seen

    assert set(body) == {"text"}
    assert "&lt;!channel&gt; &amp; &lt;@U1&gt;" in body["text"]
    assert "a regression" in body["text"]
    assert "https://triage/1" in body["text"]


def test_grafana_is_annotated(result):
    """From the onset on, with tags, by a bearer token."""
    alert = Alert(id="1" * 16, name="LlmtraceTtftBurn", started=1e9)
    with hearing() as (url, seen):
        Annotated(url, SECRET).notify(alert, result, None)
    [(path, authorization, body)] = seen

    assert path == "/api/annotations"
    assert authorization == f"Bearer {SECRET}"
    assert body["tags"] == ["llmtrace", "LlmtraceTtftBurn", "regression"]
    assert body["time"] == round(result.onset.best * 1000)
    assert body["timeEnd"] >= body["time"]


@needs_openssl
def test_a_grafana_with_a_certificate_of_ones_own(result, tmp_path):
    """It is refused with a way out, and notified once its certificate is named."""
    certificate, key = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    alert = Alert(id="1" * 16, name="A", started=1e9)
    with hearing(tls=tls) as (url, seen):
        with pytest.raises(SourceError, match="--grafana-ca-file"):
            Annotated(url, SECRET).notify(alert, result, None)
        assert seen == []
        Annotated(url, SECRET, certificate).notify(alert, result, None)

    assert [path for path, _, _ in seen] == ["/api/annotations"]


@pytest.mark.parametrize("status", [401, 500])
def test_who_refuses_is_named_without_secrets(result, status):
    """Host and status, but no token and no path."""
    alert = Alert(id="1" * 16, name="A", started=1e9)
    with hearing(status) as (url, _):
        for one in (Webhook(f"{url}/services/{SECRET}"), Annotated(url, SECRET)):
            with pytest.raises(SourceError) as raised:
                one.notify(alert, result, None)
            assert str(status) in str(raised.value)
            assert SECRET not in str(raised.value) + repr(one)


def test_who_is_away_is_an_error_of_ours(result):
    """No server listens there."""
    alert = Alert(id="1" * 16, name="A", started=1e9)
    with hearing() as (url, _):
        pass
    for one in (Webhook(f"{url}/{SECRET}"), Annotated(url, SECRET)):
        with pytest.raises(SourceError, match=r"does not respond|cannot reach") as raised:
            one.notify(alert, result, None)
        assert SECRET not in str(raised.value)


# --- the server ----------------------------------------------------------------------------------


def test_over_http(slow, at, tmp_path):
    """An alert posted is a page to read; odd requests get an answer that says what is wrong."""

    def load(_window: Window, _progress: Any) -> Case:
        return Case(rows=slow.rows, signals=slow.signals)

    with (
        working(load, tmp_path) as desk,
        TestClient(make_app(desk, Reports(tmp_path), SECRET)) as bare,
    ):
        asked = bare.get("/", auth=("anyone", SECRET))
        assert asked.status_code == 200
        assert bare.get("/", auth=("anyone", "wrong")).status_code == 401
        assert "Basic" in bare.get("/").headers["WWW-Authenticate"]
        assert bare.post("/alerts", content=notification(firing(at))).status_code == 401
        assert bare.get("/").status_code == 401
        assert bare.get("/healthz").status_code == 200
        bare.headers["Authorization"] = f"Bearer {SECRET}"
        wrong = bare.post("/alerts", content=b"{}", headers={"Content-Type": "text/plain"})
        assert wrong.status_code == 415
        bare.headers["Content-Type"] = "application/json"
        assert bare.post("/alerts", content=b"{}").status_code == 400
        assert bare.post("/alerts", content=b" " * (MAX_BYTES + 1)).status_code == 413
        answer = bare.post("/alerts", content=notification(firing(at))).json()
        assert answer["taken"] == 1
        until(lambda: desk.counts["triaged"])
        index = bare.get("/").text
        [link] = re.findall(r'href="(reports/[^"]+)"', index)
        page = bare.get(f"/{link}")

        assert answer["reports"] == [link]
        assert "Refresh" not in page.headers
        assert "LlmtraceTtftBurn" in index
        assert f">{bare.get(f'/{link}.json').json()['title']}</a>" in index
        assert re.search(r"a regression.*: time to first token p95 .*<td>began \d{4}-", index)
        assert f"alert LlmtraceTtftBurn of {date_and_zone(at)}" in page.text
        assert "vllm-0" in page.text
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert bare.get(f"/{link}.json").json()["result"]["verdict"] == "regression"
        assert bare.get("/reports/..%2f..%2fetc%2fpasswd").status_code == 404
        assert bare.get("/reports/none").status_code == 404


def test_an_alert_that_is_being_triaged_is_listed(slow, at, tmp_path):
    """With its time, on a page that renews itself; so is its report until it is there."""
    looked, go_on = threading.Event(), threading.Event()

    def load(_window: Window, _progress: Any) -> Case:
        looked.set()
        assert go_on.wait(30)
        return Case(rows=slow.rows, signals=slow.signals)

    with (
        working(load, tmp_path) as desk,
        TestClient(make_app(desk, Reports(tmp_path), None), base_url="http://127.0.0.1") as web,
    ):
        assert "None yet" in web.get("/").text
        sent = web.post("/alerts", json=json.loads(notification(firing(at)))).json()
        assert looked.wait(30)
        for page in (web.get("/"), web.get(f"/{sent['reports'][0]}")):
            assert page.headers["Refresh"] == "5"
            assert "LlmtraceTtftBurn" in page.text
            assert "being triaged" in page.text
        go_on.set()
        until(lambda: desk.counts["triaged"] and not desk.unfinished())
        assert "being triaged" not in web.get("/").text


def test_an_alert_that_could_not_be_triaged_is_counted_on_the_page(at, tmp_path):
    """Else the page would be as if none had come."""

    def load(_window: Window, _progress: Any) -> Case:
        raise DataError("away")

    with (
        working(load, tmp_path) as desk,
        TestClient(make_app(desk, Reports(tmp_path), None), base_url="http://127.0.0.1") as web,
    ):
        desk.take(read_alerts(notification(firing(at))))
        until(lambda: desk.counts["failed"])
        assert "Could not be triaged: 1." in web.get("/").text


def test_another_name_is_no_name_of_ours(tmp_path):
    """Without a token, a page whose name was made to mean this machine is turned away."""
    with working(lambda *_: None, tmp_path) as desk:
        app = make_app(desk, Reports(tmp_path), None, ["triage.example"])
        for host, status in (
            ("127.0.0.1:4321", 200), ("triage.example", 200), ("evil.example:1", 421), ("", 421),
        ):  # fmt: skip
            with TestClient(app) as client:
                assert client.get("/", headers={"Host": host}).status_code == status


def options(tmp_path: Path, **changes: Any) -> Any:
    """Return what the command's parser gives."""
    from llmtrace.cli import make_parser
    from llmtrace.cli.arguments import COLLECTOR_URL

    parsed = make_parser().parse_args(["triage", "serve", "--reports", str(tmp_path)])
    parsed.url = COLLECTOR_URL  # as the command sets it where no source is given
    for name, value in changes.items():
        setattr(parsed, name, value)
    return parsed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"listen": "0.0.0.0:4321"}, "--listen-token-file"),
        ({"listen": "nowhere"}, "host:port"),
        ({"listen": "127.0.0.1:99999"}, "host:port"),
        ({"url": "x"}, "not an address of a collector"),
        ({"listen": "127.0.0.1:0", "grafana": "https://g"}, "--grafana-token-file"),
        ({"listen": "127.0.0.1:0", "webhook_file": Path("/nowhere")}, "cannot read the address"),
        ({"reports": Path("/dev/null/x")}, "--reports"),
        ({"rows": Path("old")}, "alerts are of now"),
    ],
)
def test_wrong_settings_fail_at_once(tmp_path, changes, words):
    """Before anything listens, with what to write."""
    logging.getLogger().handlers.clear()
    given = options(tmp_path, **changes)
    with pytest.raises(ConfigError, match=re.escape(words)):
        serve(given, reader(given, pytest.fail))


def test_what_has_the_rows_is_tried_before_the_first_alert(tmp_path, monkeypatch, caplog):
    """One that does not respond is named, and served all the same; a case that is none is not."""

    def served(*_args, **_kwargs):
        raise ConfigError("it serves")

    monkeypatch.setattr("llmtrace.triage.oncall.command.listen", served)
    given = options(tmp_path, listen="127.0.0.1:0", url="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="it serves"):
        serve(given, reader(given, pytest.fail))
    assert "alerts cannot be triaged yet: no collector responds at http" in caplog.text
    given = options(tmp_path, listen="127.0.0.1:0", case=tmp_path / "gone")
    with pytest.raises(SourceError, match="gone"):
        serve(given, reader(given, pytest.fail))


@pytest.mark.parametrize(
    ("url", "certificate", "words"),
    [
        ("https://g", "gone.pem", "--grafana-ca-file"),
        ("g:3000", None, "--grafana 'g:3000': write it as https://"),
        ("https://me:secret@g", None, "--grafana-token-file"),
    ],
)
def test_a_grafana_that_cannot_be(tmp_path, url, certificate, words):
    """Its address and certificates are looked at before anything listens."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    given = options(
        tmp_path,
        listen="127.0.0.1:0",
        grafana=url,
        grafana_token_file=token,
        grafana_ca_file=None if certificate is None else tmp_path / certificate,
    )
    with pytest.raises(ConfigError, match=words) as raised:
        serve(given, reader(given, pytest.fail))
    assert "secret" not in str(raised.value)
