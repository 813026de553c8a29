"""Does the whole collector do what it says: take, join, keep, count, serve, and end in order?"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace

import grpc
import pyarrow as pa
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open

from llmtrace.api_clients.collector_client import Collector
from llmtrace.cli import main
from llmtrace.core.row import TURN, from_dict
from llmtrace.core.stages import PARTITION
from llmtrace_collector.commands import collect
from llmtrace_collector.commands.collect import State
from llmtrace_collector.commands.top import ask
from llmtrace_collector.receive import Spool, SpoolLimits
from llmtrace_collector.receive.clock_watch import ClockWatch
from llmtrace_collector.receive.rejections import RejectedError

from . import pages
from .collecting import (
    Collecting,
    as_otlp,
    collecting,
    engine_span,
    post,
    process,
    some_rows,
    wait_for,
)
from .web import serving

# What is sent before anything is asked, by its service: joining takes its time, and once will do.
SENT = {
    "paged": some_rows(7, service="paged"),
    "joined": some_rows(1, service="joined"),
    "figures": some_rows(20, service="figures", route="a"),
    "counted": some_rows(2, service="counted", model="tiny"),
    "sampled": some_rows(3, service="sampled", weight=10.0),
    "quiet": some_rows(3, service="quiet"),
    "seen": some_rows(5, service="seen", model="seen"),
    "agents": some_rows(
        4, service="agents", operation=TURN, agent="planner", tool_calls=2, tool_serial_loss_s=0.5
    ),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """Serve an engine's page."""
    with serving({"/metrics": (200, pages.scrape("vllm-0.32-metrics.txt"))}) as url:
        yield url


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Collecting]:
    """Run one collector for all tests of this module that ask nothing special of it."""
    with collecting(
        tmp_path_factory.mktemp("collector"),
        metrics_settle="0.5",
        store_wait="1",  # rows that are not asked for are counted soon, too
        metrics_without="[quiet]",
        scrape_targets=f"['{engine}/metrics', 'http://127.0.0.1:9/metrics']",
        scrape_interval="1",
        scrape_timeout="1",
    ) as one:
        for rows in SENT.values():
            assert one.send(as_otlp(rows)) == 200
        yield one


def stored(collector: Collecting, service: str, count: int) -> list[dict]:
    """Return the rows of a service, once there are so many."""
    query = f"start=-1h&service={service}"
    return wait_for(
        lambda: rows if len(rows := collector.rows(query)) == count else None,
        f"{count} rows of {service}",
    )


def refused(collector: Collecting, path: str, **post: object) -> tuple[int, str]:
    """Ask something that is refused; return the status and the words."""
    asked = urllib.request.Request(collector.web + path, **post)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(asked, timeout=60)
    with raised.value as error:
        return error.code, json.loads(error.read())["error"]


# --- rows ---------------------------------------------------------------------------------------


def test_rows_come_back_as_they_were_sent(collector):
    """By both ways in, and in both forms out: every field, in the order of their start."""
    sent = some_rows(6, service="there-and-back", model="tiny", route="chat", output_tokens=7)
    assert collector.send(as_otlp(sent[:3])) == 200
    assert collector.places.otlp_grpc is not None
    with grpc.insecure_channel(str(collector.places.otlp_grpc)) as channel:
        service = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        assert channel.unary_unary(service)(as_otlp(sent[3:]), timeout=60) == b""

    found = stored(collector, "there-and-back", 6)
    for row, actual in zip(sent, found, strict=True):
        assert actual.pop("reported_by") == ["row"]
        assert actual == row.as_dict()
        assert from_dict(actual) == row
    raw = collector.get(
        "/api/v1/rows?start=-1h&service=there-and-back",
        Accept="application/vnd.apache.arrow.stream",
    )
    table = pa.ipc.open_stream(io.BytesIO(raw)).read_all()
    assert table.column("trace_id").to_pylist() == [row.trace_id for row in sent]
    assert table.column("start").to_pylist() == [row.start for row in sent]
    assert table.column("decode_s").to_pylist() == [0.8] * 6
    assert table.column("queue_s").to_pylist() == [None] * 6


def test_pages_of_rows(collector):
    """Each begins where the one before ended, and together they are all."""
    stored(collector, "paged", 7)
    found, after = [], ""
    while page := collector.rows(f"start=-1h&service=paged&limit=3{after}"):
        found += page
        last = page[-1]
        after = f"&after={last['start']}:{last['trace_id']}:{last['span_id']}"

    assert [row["trace_id"] for row in found] == [row.trace_id for row in SENT["paged"]]


def test_what_an_engine_tells_is_joined(collector):
    """Its span comes later, and the stages of the row still add up to the nanosecond."""
    [row] = SENT["joined"]
    stored(collector, "joined", 1)
    collector.send(engine_span(row, 0.05, 0.1, 0.7))
    actual = wait_for(
        lambda: next(
            (row for row in collector.rows("start=-1h&service=joined") if "queue_s" in row), None
        ),
        "the engine's figures in the row",
    )

    assert (actual["queue_s"], actual["prefill_s"]) == (0.05, 0.1)
    assert actual["queue_source"] == "engine_span"
    parts = sum(round(actual.get(f"{name}_s", 0) * 1e9) for name in PARTITION)
    assert parts == row.e2e_ns
    trace = collector.json(f"/api/v1/traces/{row.trace_id}")
    assert [one["trace_id"] for one in trace["rows"]] == [row.trace_id]
    assert {span["service"] for span in trace["spans"]} == {"joined", "vllm"}


def test_a_request_by_any_of_its_ids(collector):
    """The request's, the response's and the trace's id all find it; `explain` reads it there."""
    row = next(row for row in SENT["figures"] if row.request_id)
    stored(collector, "figures", 20)

    for name in filter(None, (row.request_id, row.response_id, row.trace_id)):
        found = collector.json(f"/api/v1/requests/{name}")["rows"]
        assert row.span_id in [one["span_id"] for one in found]
    assert main(["explain", str(row.request_id), "--url", collector.web]) == 0


def test_figures_of_many(collector):
    """Percentiles a minute, the slowest, and the sources."""
    stored(collector, "figures", 20)
    points = collector.json("/api/v1/stages?start=-1h&service=figures&step=60")["points"]

    assert sum(point["requests"]["success"] for point in points) == 20
    assert {point["stages"]["decode"]["p95_s"] for point in points} == {0.8}
    assert {point["stages"]["queue"]["p95_s"] for point in points} == {None}
    slowest = collector.json("/api/v1/slowest?service=figures&limit=3&by=decode")["rows"]
    assert [row["decode_s"] for row in slowest] == [0.8] * 3
    coverage = collector.json("/api/v1/coverage")
    assert coverage["reported_by"]["row"] >= 20
    assert coverage["stages"]["decode"]["sources"]["client"] >= 20


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/v1/rows?modle=x", 400, "no such parameter: modle"),
        ("/api/v1/rows?limit=0", 400, "limit: '0' is not a whole number"),
        ("/api/v1/rows?after=1", 400, "after: write start:trace_id:span_id"),
        ("/api/v1/stages?step=1&start=-365d", 400, "step: more than"),
        ("/api/v1/stages?of=queue,luck", 400, "of: 'luck' is not one of network, gateway"),
        ("/api/v1/slowest?by=luck", 400, "by: 'luck' is not one of e2e"),
        ("/api/v1/traces/xyz", 400, "a trace id is 32 hexadecimal digits"),
        (f"/api/v1/traces/{'f' * 32}", 404, "no trace"),
        ("/api/v1/requests/nothing", 404, "no request nothing is stored"),
        (f"/api/v1/requests/{'x' * 600}", 400, "an id has 512 characters at most"),
        ("/api/v1/live?budget=none", 400, "no budget has that name; there are dialogue"),
        ("/api/v1/nothing", 404, "no such path"),
    ],
)
def test_questions_that_make_no_sense(collector, path, status, words):
    """Refused in words."""
    code, actual = refused(collector, path)

    assert code == status
    assert actual.startswith(words)


def test_what_there_is(collector):
    """The API lists its addresses, and each of them answers."""
    listed = collector.json("/api/v1/")["addresses"]

    for path in listed:
        if "{" not in path:
            collector.get(path)
    assert "/api/v1/rows" in listed


# --- events, signals, facts ---------------------------------------------------------------------


def test_events(collector):
    """Sent once, kept once; and only as JSON, which no web page can send unasked."""
    event = json.dumps({"kind": "deploy", "text": "v2.3", "labels": {"service": "shop"}})
    post = {"data": event.encode(), "headers": {"Content-Type": "application/json"}}
    with urllib.request.urlopen(
        urllib.request.Request(f"{collector.web}/api/v1/events", **post), timeout=60
    ) as answer:
        assert (answer.status, json.load(answer)) == (201, {"stored": 1})

    [found] = collector.json("/api/v1/events")["events"]
    assert abs(found.pop("t") - time.time()) < 60
    assert found == {"kind": "deploy", "text": "v2.3", "labels": {"service": "shop"}}
    plain = {"data": event.encode(), "headers": {"Content-Type": "text/plain"}}
    assert refused(collector, "/api/v1/events", **plain)[0] == 415
    huge = {**post, "data": b"[" + b" " * (1 << 20) + b"]"}
    assert refused(collector, "/api/v1/events", **huge)[0] == 413
    assert refused(collector, "/api/v1/events", **{**post, "data": b"{}"})[0] == 400


def test_what_engines_say_is_kept(collector, engine):
    """Signals and facts of the one that answers; of the one that does not, that it does not."""
    instance = engine.removeprefix("http://")
    found = wait_for(
        lambda: [json.loads(line) for line in collector.get(
            f"/api/v1/signals?instance={instance}&signal=queue_count").splitlines()],
        "signals",
    )  # fmt: skip
    down = wait_for(
        lambda: collector.get("/api/v1/signals?instance=127.0.0.1:9&signal=up").splitlines(),
        "a target that is down",
    )

    assert found[0]["value"] == 62
    assert found[0]["labels"]["model"] == "tiny"
    assert json.loads(down[0])["value"] == 0
    assert collector.json("/api/v1/facts")[instance]["engine"] == "vllm"


# --- metrics ------------------------------------------------------------------------------------


def counted(collector: Collecting, service: str) -> dict[str, float]:
    """Return what /metrics counts of a service: requests and known queues."""
    found = collector.metrics()
    label = f"service={service}"
    return {
        name: sum(value for key, value in found.items() if key[0] == name and label in key
                  and (stage is None or stage in key))
        for name, stage in (
            ("llmtrace_requests_total", None),
            ("llmtrace_stage_duration_seconds_count", "stage=queue"),
            ("llmtrace_stage_unknown_total", "stage=queue"),
        )
    }  # fmt: skip


def test_rows_are_counted_once(collector):
    """Whatever comes later: a counter never falls, and no request counts twice."""
    [row, _] = SENT["counted"]
    wait_for(lambda: counted(collector, "counted")["llmtrace_requests_total"] == 2, "two requests")
    before = counted(collector, "counted")
    collector.send(as_otlp([row]))
    collector.send(engine_span(row, 0.05, 0.1, 0.7))
    late = ("llmtrace_collector_rows_late_total",)
    wait_for(lambda: collector.metrics()[late] >= 1, "a row that changed late")

    assert counted(collector, "counted") == before
    assert before["llmtrace_stage_unknown_total"] == 2


def test_turns_are_counted_by_themselves(collector):
    """How long they took and what their tools lost; they are no requests."""

    def turns() -> dict[tuple[str, ...], float]:
        found = collector.metrics()
        return {k: value for k, value in found.items() if "service=agents" in k}

    lost = ("llmtrace_turn_tool_serial_loss_seconds_sum", "agent=planner", "outcome=success",
            "service=agents")  # fmt: skip
    wait_for(lambda: turns().get(lost), "turns")

    assert turns()[lost] == 2.0
    assert turns()["llmtrace_turn_duration_seconds_count", *lost[1:]] == 4
    assert counted(collector, "agents")["llmtrace_requests_total"] == 0


def test_a_row_that_is_sampled_stands_for_others(collector):
    """One in ten counts as ten."""
    wait_for(lambda: counted(collector, "sampled")["llmtrace_requests_total"] == 30, "thirty")


def test_services_with_metrics_of_their_own_are_left_out(collector):
    """Or Prometheus would count them twice."""
    stored(collector, "quiet", 3)
    wait_for(lambda: counted(collector, "seen")["llmtrace_requests_total"] == 5, "the others")

    assert counted(collector, "quiet")["llmtrace_requests_total"] == 0


def test_one_page_of_all(collector):
    """Engines, requests with exemplars and exact bounds, the budget, the collector itself."""
    wait_for(lambda: counted(collector, "seen")["llmtrace_requests_total"], "a request")
    text = collector.get("/metrics", Accept="application/openmetrics-text; version=1.0.0").decode()
    samples = [one for family in parse_open(text) for one in family.samples]
    names = {one.name for one in samples}

    assert {
        "llmtrace_engine_requests_running", "llmtrace_target_up", "llmtrace_budget_seconds",
        "llmtrace_receive_spans_total", "llmtrace_spool_bytes", "llmtrace_ingest_rows_total",
        "llmtrace_collector_info", "llmtrace_collector_signals_total",
    } <= names  # fmt: skip
    e2e = [one for one in samples if one.name == "llmtrace_e2e_seconds_bucket"
           and one.labels["service"] == "seen"]  # fmt: skip
    assert {"2.5"} <= {one.labels["le"] for one in e2e}
    assert {row.trace_id for row in SENT["seen"]} & {
        one.exemplar.labels["trace_id"] for one in e2e if one.exemplar
    }


# --- looking on ---------------------------------------------------------------------------------


def test_what_people_see(collector, capsys):
    """The page's figures, and the terminal's, are those of the rows."""
    stored(collector, "seen", 5)
    live = wait_for(
        lambda: found if (found := ask(Collector(collector.web)))["window"]["requests"] else None,
        "requests in the live view",
    )

    decode = next(line for line in live["stages"] if line["name"] == "decode")
    assert decode["p50_s"] == 0.8
    assert {one["up"] for one in live["engines"]} == {True, False}
    assert live["collector"]["how"] == f"export OTEL_EXPORTER_OTLP_ENDPOINT={collector.otlp}"
    assert main(["top", "--url", collector.web, "--once"]) == 0
    assert "decode" in capsys.readouterr().out
    assert collector.json("/readyz") == {"status": "ready"}


def test_metrics_and_logs_are_no_trouble(collector):
    """What an exporter sends beside spans is taken."""
    for kind in ("metrics", "logs"):
        post = urllib.request.Request(f"{collector.otlp}/v1/{kind}", data=b"x", headers={
            "Content-Type": "application/x-protobuf"})  # fmt: skip
        with urllib.request.urlopen(post, timeout=60) as answer:
            assert answer.status == 200

    assert collector.metrics()["llmtrace_collector_unwanted_requests_total", "kind=logs"] == 1


# --- the process --------------------------------------------------------------------------------


def test_what_was_acknowledged_is_there_after_any_end(tmp_path):
    """Killed outright, then ended in order: each row once, and an orderly end says so."""
    killed, ended = some_rows(5, service="killed"), some_rows(5, service="ended")
    with process(tmp_path) as (running, otlp, _):
        post(otlp, as_otlp(killed))
        running.send_signal(signal.SIGKILL)
        running.wait(60)
    with process(tmp_path) as (running, otlp, _):
        post(otlp, as_otlp(ended))
        running.send_signal(signal.SIGTERM)
        assert running.stderr is not None
        said = running.stderr.read()
        assert running.wait(60) == 0, said
    assert "press Ctrl-C again to end at once" in said
    assert "stopped" in said
    with process(tmp_path) as (_, _, web):

        def stored_ids() -> list[str] | None:
            with urllib.request.urlopen(f"{web}/api/v1/rows?start=-1h", timeout=60) as answer:
                found = [json.loads(line)["trace_id"] for line in answer]
            return found if len(found) >= 10 else None

        ids = wait_for(stored_ids, "ten rows")
    assert sorted(ids) == sorted(row.trace_id for row in (*killed, *ended))


def test_a_port_that_is_taken(tmp_path):
    """The error says what to do, and nothing is left running."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "llmtrace", "collect", "--data-dir", str(tmp_path),
             "--web", port],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_a_collector_without_room_is_not_ready(tmp_path):
    """Neither on a full disk nor with a full spool: it answers all senders with 503."""
    state = State(ClockWatch(0), ready=True)
    with closing(Spool(tmp_path, SpoolLimits(free_bytes=0))) as spool:
        assert state.why_not(spool) is None
        spool.limits = SpoolLimits(free_bytes=1 << 60)
        assert state.why_not(spool) == "this collector's disk is nearly full"


def test_settings_without_running(tmp_path, capsys):
    """Checked and printed; what is printed can be given again."""
    file = tmp_path / "collect.yaml"
    file.write_text("listen: {web: 4444}\n")
    assert main(["collect", "--config", str(file), "--check"]) == 0
    assert (
        main(["collect", "--config", str(file), "--print-config", "--target", "http://a:1"]) == 0
    )
    printed = capsys.readouterr().out
    assert f"{file}: no problems found" in printed
    assert "127.0.0.1:4444" in printed
    assert main(["collect", "--target", "http://a:1", "--check"]) == 0
    assert capsys.readouterr().out == "the options: no problems found\n"
    assert main(["collect", "--check"]) == 0
    assert capsys.readouterr().out == "the defaults: no problems found\n"
    file.write_text("listen: {wep: 4444}\n")
    assert main(["collect", "--config", str(file), "--check"]) == 2
    assert "collect.yaml:1: listen.wep: no such setting" in capsys.readouterr().err


def test_the_log_says_when_it_is_ready_and_when_not(monkeypatch, caplog):
    """With the reason: senders are rejected from then on, and until the next line."""
    caplog.set_level("INFO", "llmtrace.collector")
    monkeypatch.setattr(collect, "_CLOCK_EVERY_S", 0.001)
    reasons = iter([None, RejectedError("disk_full", "the disk is nearly full"), None, None])
    spool = SimpleNamespace(why_full=lambda: next(reasons))
    with pytest.raises(RuntimeError):  # there are no more reasons
        asyncio.run(collect._watch(State(ClockWatch(0), ready=True), spool))
    assert caplog.messages == [
        "ready", "not ready: the disk is nearly full; senders have to retry later", "ready",
    ]  # fmt: skip
