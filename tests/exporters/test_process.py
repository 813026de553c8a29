"""Exports when the process ends or forks. Each test runs a process of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

import llmtrace
from tests.exporters.receivers import grpc_receiver, http_receiver, silent_server
from tests.exporters.samples import typical
from tests.exporters.test_wire import attributes_of
from tests.support.free_ports import free_port
from tests.support.waiting import until


def run(program, *args, timeout=30):
    """Run a program to its end, which must be a good one."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran


EXIT = """
import atexit, sys, time
started = None
atexit.register(lambda: print(time.monotonic() - started))  # the first registered runs last

from llmtrace.exporters import worker
from llmtrace.exporters.otlp.sink import otlp_sink
from tests.exporters.samples import typical

worker.EXIT_LIMIT_S = 1.0
environ = {"OTEL_EXPORTER_OTLP_TIMEOUT": "60"}
for protocol in ("http/protobuf", "http/protobuf", "grpc"):
    sink = otlp_sink(
        endpoint=sys.argv[1], protocol=protocol, interval_s=0.001, environ=environ
    )
    sink.write(typical())
    sink.flush(0.05)
started = time.monotonic()
"""


def test_hanging_backends_do_not_hold_up_the_exit():
    """Three exporters that hang delay the exit by one limit, not by three or more."""
    with silent_server() as url:
        took = float(run(EXIT, url).stdout)

    assert 0.9 < took < 2.5


BLOCKED_STDERR = """
import os, sys
from llmtrace.exporters import worker
from llmtrace.exporters.console.sink import console_sink
from tests.exporters.samples import typical

worker.EXIT_LIMIT_S = 0.2
reading, writing = os.pipe()
sink = console_sink(os.fdopen(writing, "w"), interval_s=0.001)
for number in range(2_000):
    sink.write(typical(number))
print("done", flush=True)
"""


def test_a_blocked_terminal_does_not_hold_up_the_exit():
    """With no process reading the terminal the process still ends, without an abort."""
    assert run(BLOCKED_STDERR).stdout == "done\n"


LAST_ROWS = """
import os, sys
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"], os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = sys.argv[1:]
from llmtrace.exporters import ExportSettings, build_all
from tests.exporters.samples import typical

sinks = build_all(["otlp"], ExportSettings(service="shop"))
for sink in sinks:
    for number in range(3):
        sink.write(typical(number))
"""


@pytest.mark.parametrize(
    ("receiver", "protocol"),
    [(http_receiver, "http/protobuf"), (grpc_receiver, "grpc")],
    ids=["http", "grpc"],
)
def test_the_last_rows_are_sent_at_exit(receiver, protocol):
    """A script that simply ends loses no row, and no count."""
    with receiver() as received:
        run(LAST_ROWS, received.url, protocol)
    received.requests.sort(key=lambda request: request.path)
    *_, traces = received.requests

    assert len(received.requests) == 2
    assert "traces" in traces.path
    metrics = received.requests[0].message.resource_metrics[0].scope_metrics[0].metrics
    assert {3} == {
        point.count
        for metric in metrics
        if metric.name == "gen_ai.client.operation.duration"
        for point in metric.histogram.data_points
    }
    spans = traces.message.resource_spans[0].scope_spans[0].spans
    assert len(spans) == 21


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")  # Python 3.12 and later warn of forking with threads at all
from llmtrace.exporters.prometheus.aggregate import Aggregate
from llmtrace.exporters.otlp.sink import otlp_sink
from tests.exporters.samples import typical

aggregate = Aggregate()
sink = otlp_sink(endpoint=sys.argv[1], interval_s=60)
sink.write(typical(1))
assert sink.flush(10)
sink.write(typical(2))  # still queued when forking: the parent's to send
aggregate.add(typical(2))
child = os.fork()
if child == 0:
    sink.write(typical(3))
    aggregate.add(typical(3))
    counted = [cell.requests for cell in aggregate.by(lambda _: ()).values()]
    os._exit(0 if sink.flush(10) and counted == [1] else 1)
assert os.waitpid(child, 0)[1] == 0
sink.write(typical(4))
assert sink.flush(10)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_forking():
    """A forked child sends its own rows, by its own connection and name; none goes twice."""
    with http_receiver() as received:
        run(FORK, received.url)

    sent = {
        request.message.resource_spans[0].scope_spans[0].spans[0].span_id.hex(): request
        for request in received.requests
    }
    ids = {number: typical(number).span_id for number in (1, 2, 3, 4)}
    parents = [span.span_id.hex() for span in received.spans() if span.name == "chat llama-3.1-8b"]
    instances = {
        key: attributes_of(request.message.resource_spans[0].resource)["service.instance.id"]
        for key, request in sent.items()
    }

    assert sorted(ids.values()) == sorted(parents)
    assert sent[ids[1]].peer == sent[ids[2]].peer
    assert sent[ids[1]].peer != sent[ids[3]].peer
    assert instances[ids[1]] == instances[ids[2]] != instances[ids[3]]


OPEN = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", ResourceWarning)  # a connection that is still open at exit
os.environ["OTEL_METRICS_EXPORTER"] = "none"
os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = sys.argv[1]
import llmtrace
llmtrace.init("open", exporters=["otlp"])

def words():
    while True:
        yield "word"
        time.sleep(0.01)

def read(how):
    for _ in llmtrace.wrap(words(), route=how):
        if how == "exit":
            time.sleep(0.2)
            sys.exit(0)

threading.Thread(target=read, args=("thread",), daemon=True).start()
time.sleep(0.1)
if (child := os.fork()) == 0:
    sys.exit(0)  # what is open here is the parent's
os.waitpid(child, 0)
with llmtrace.turn("agent"):
    read("exit")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_what_is_open_at_exit_is_sent_as_cancelled():
    """Streams that are read, by a daemon thread too, and the turn around one end with it."""
    with http_receiver() as received:
        assert run(OPEN, received.url).stderr == ""

    found = [attributes_of(span) for span in received.spans()]
    ended = sorted(
        (one["gen_ai.operation.name"], one.get("llmtrace.route", ""), one["llmtrace.outcome"])
        for one in found
        if "llmtrace.outcome" in one
    )
    assert ended == [
        ("chat", "exit", "cancelled"),
        ("chat", "thread", "cancelled"),
        ("invoke_agent", "", "cancelled"),
    ]


INHERITED = """
import gc, os, sys, warnings
warnings.simplefilter("ignore")  # Python 3.12 and later warn of forking with threads at all
import llmtrace
llmtrace.init("forks", exporters=["jsonl:" + sys.argv[1]])

@llmtrace.tool
def look(how):
    stream = llmtrace.wrap(iter("ab"), route="stream")
    next(stream)
    if (child := os.fork()) == 0:
        if how == "drop":
            del stream
            gc.collect()
        elif how == "read":
            list(stream)
        "".join(llmtrace.wrap(iter("ab"), route="child"))
        if how == "return":
            return
        llmtrace.flush()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    list(stream)

with llmtrace.turn("agent"):
    look(sys.argv[2])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize("how", ["drop", "read", "exit", "return"])
def test_what_was_open_at_a_fork_is_the_parents_alone(tmp_path, how):
    """A child that drops, reads or inherits an open stream and turn writes neither."""
    path = tmp_path / "rows.jsonl"
    assert run(INHERITED, str(path), how).stderr == ""

    rows = list(llmtrace.read_rows(path))
    ended = sorted((row.operation, row.route or "", row.outcome) for row in rows)
    assert ended == [
        ("chat", "child", "success"),
        ("chat", "stream", "success"),
        ("invoke_agent", "", "success"),
    ]
    assert len({row.trace_id for row in rows}) == 1


CHILD_OF_MULTIPROCESSING = """
import multiprocessing, sys, warnings
warnings.simplefilter("ignore")  # Python 3.12 and later warn of forking with threads at all
import llmtrace
llmtrace.init("workers", exporters=["jsonl:" + sys.argv[1]])

def words(route):
    return "".join(llmtrace.wrap(iter(["a ", "word"]), route=route))

def work():
    words("child")
    left = llmtrace.wrap(iter("ab"), route="open")
    next(left)
    multiprocessing.current_process().left = left
    inner = multiprocessing.get_context("fork").Process(target=words, args=("grandchild",))
    inner.start()

words("parent")
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
assert child.exitcode == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_child_of_multiprocessing_loses_no_row(tmp_path):
    """It ends without `atexit`, and its rows go all the same: each once, and what is open."""
    path = tmp_path / "rows.jsonl"
    run(CHILD_OF_MULTIPROCESSING, str(path))

    ended = sorted((row.route, row.outcome) for row in llmtrace.read_rows(path))

    assert ended == [
        ("child", "success"),
        ("grandchild", "success"),
        ("open", "cancelled"),
        ("parent", "success"),
    ]


BEGUN_IN_A_CHILD = """
import multiprocessing, sys

def work():
    import llmtrace
    llmtrace.init("workers", exporters=["jsonl:" + sys.argv[1]])
    "".join(llmtrace.wrap(iter(["a ", "word"]), route="child"))

child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
assert child.exitcode == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_child_that_is_the_first_to_import_it_loses_no_row(tmp_path):
    """As workers that call `init` themselves, of a parent that does not use it."""
    path = tmp_path / "rows.jsonl"
    run(BEGUN_IN_A_CHILD, str(path))

    assert [row.route for row in llmtrace.read_rows(path)] == ["child"]


SERVED = """
import asyncio, sys, uvicorn
import llmtrace
llmtrace.init("app", exporters=["jsonl:" + sys.argv[1]])

async def words():
    yield "a word "
    await asyncio.Event().wait()

async def app(scope, receive, send):
    if scope["type"] == "http":
        "".join(llmtrace.wrap(iter(["a ", "word"]), route="before"))
        async for _ in llmtrace.wrap(words(), route="open"):
            print("under way", flush=True)

uvicorn.run(app, port=int(sys.argv[2]), lifespan="off", timeout_graceful_shutdown=1,
            log_level="critical")
"""


def listens(port):
    """Return whether a server does."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_a_server_that_is_terminated_loses_no_row(tmp_path):
    """Uvicorn has SIGTERM kill its process once it has shut down, so that `atexit` never runs."""
    path, port = tmp_path / "rows.jsonl", free_port()
    server = subprocess.Popen(
        [sys.executable, "-c", SERVED, str(path), str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        until(lambda: listens(port), "the server did not start")
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert server.stdout.readline() == "under way\n"
            server.terminate()
            server.communicate(timeout=30)
    finally:
        server.kill()
        server.wait()

    assert server.returncode == -signal.SIGTERM
    ended = sorted((row.route, row.outcome) for row in llmtrace.read_rows(path))
    assert ended == [("before", "success"), ("open", "cancelled")]
