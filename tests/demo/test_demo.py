"""`llmtrace demo`, run for real: on the embedded engine, or a server of the test's own."""

from __future__ import annotations

import io
import itertools
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from rich.console import Console

import llmtrace
from llmtrace.cli import main
from llmtrace.core.errors import ConfigError
from llmtrace.core.stages import STAGES
from llmtrace.dataset.arrivals import read_arrivals
from llmtrace.dataset.case import read_case
from llmtrace.demo.incident import linger, room_for_page
from llmtrace.demo.injected_faults import FAULTS, named
from llmtrace.demo.options import DemoOptions, Phase, plan
from llmtrace.demo.progress import Progress
from llmtrace.demo.sample_app import due, share
from llmtrace.demo.simulated_users import MAX_PROMPT, jobs, replayed
from llmtrace.demo.target import Target
from llmtrace.engines import local_vllm
from llmtrace.exporters.row_files.read_back import read_rows
from llmtrace.runtime import runtime
from llmtrace.simulator.api.fault_header import Faults
from llmtrace.simulator.engine.incidents import healthy
from llmtrace.simulator.engine.scheduler import EngineConfig
from llmtrace.simulator.server import ServerConfig, serve
from llmtrace.testing import FakeClock, make_row
from llmtrace.triage.result import CAUSES
from tests.support.free_ports import free_port
from tests.support.sse_server import serve as serve_script

FAST = EngineConfig(base_s=0.001, sequence_s=0.0, prefill_token_s=1e-5, jitter=0.0)
FEW = ("--requests", "8", "--concurrency", "4")


def demo(*options):
    """Run the demo in this process and return its exit status."""
    return main(["demo", *options])


@contextmanager
def fast_engine(**settings):
    """Serve a fast engine as a server of the user's own."""
    with serve(ServerConfig(engine=FAST, answer_tokens=10, **settings)) as engine:
        yield engine


def test_the_simulated_engine_is_shown_as_what_it_is(capsys, tmp_path):
    """The whole demo: report, rows, labels; and nothing is left behind."""
    path = tmp_path / "rows.jsonl"

    failures = llmtrace.internal_errors()

    assert demo(*FEW, "--rows-out", str(path)) == 0
    printed = capsys.readouterr()
    rows = read_rows(path)
    assert len(rows) == 8
    assert all(row.stages.total == row.e2e_ns for row in rows)
    assert all(ns is not None for row in rows for _, ns in row.stages)
    assert all(row.attributes["simulated"] is True for row in rows)
    assert {row.attributes["phase"] for row in rows} == {"calm", "rush"}
    # No terminal: no column is left out, and nothing is padded.
    assert all(re.search(rf"^{name} .* 8/8  \w+$", printed.out, re.MULTILINE) for name in STAGES)
    assert not re.search(r" $", printed.out, re.MULTILINE)
    assert "checked for each of the 8" in printed.out
    slowest = max(rows, key=lambda row: row.e2e_ns)
    assert f"trace {slowest.trace_id}" in printed.out
    named = [text for text in printed.out.splitlines() if "engine" in text and "_" not in text]
    assert all("simulated" in text.lower() for text in named)
    assert runtime.active() is None
    assert llmtrace.internal_errors() == failures
    port = int(re.search(r"127\.0\.0\.1:(\d+)", printed.out)[1])
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


def test_a_server_of_ones_own_is_not_called_simulated(capsys, tmp_path):
    """`--endpoint` shows the server's name, and its rows carry no mark."""
    path = tmp_path / "rows.jsonl"
    with fast_engine() as engine:
        status = demo(
            "--endpoint", engine.url, "--model", "llmtrace-sim", *FEW, "--rows-out", str(path)
        )

    assert status == 0
    printed = capsys.readouterr().out
    assert f"Stages of 8 requests to 127.0.0.1:{engine.port}" in printed
    assert "SIMULATED" not in printed
    assert re.search(r"^gateway .* not reported +0/8 *$", printed, re.MULTILINE)
    assert not any(row.attributes["simulated"] for row in read_rows(path))


def test_a_budget_is_the_users(capsys, tmp_path, monkeypatch):
    """`--budget` names the limits the stages are held against; so does `LLMTRACE_BUDGET`."""
    path = tmp_path / "budget.json"
    path.write_text(json.dumps({"name": "mine", "stages": {"decode": "1ms"}}), encoding="utf-8")
    with fast_engine() as engine:
        ask = ("--endpoint", engine.url, "--model", "llmtrace-sim", "--requests", "8")
        assert demo(*ask, "--concurrency", "1", "--budget", str(path)) == 0
        first = capsys.readouterr().out
        monkeypatch.setenv("LLMTRACE_BUDGET", str(path))
        assert demo(*ask, "--concurrency", "1") == 0

    for printed in (first, capsys.readouterr().out):
        assert 'the budget "mine"' in printed
        assert re.search(r"^decode .* (over|unclear) 1 ", printed, re.MULTILINE)


def test_a_real_vllm_is_started_and_stopped(capsys, monkeypatch):
    """`--vllm` asks the server it started, by its name, and stops it."""
    stopped = []

    @contextmanager
    def start(flags, log):
        log(f"starting with {' '.join(flags)}")
        with fast_engine() as engine:
            yield SimpleNamespace(url=engine.root, model="llmtrace-sim")
        stopped.append(True)

    monkeypatch.setattr(local_vllm, "start", start)

    assert demo("--vllm", *FEW) == 0
    printed = capsys.readouterr()
    assert "Stages of 8 requests to a real vLLM" in printed.out
    assert "SIMULATED" not in printed.out
    assert "starting with --max-num-seqs 6" in printed.err
    assert stopped == [True]


def test_without_vllm_it_says_how_to_get_it(capsys, monkeypatch):
    """`--vllm` where there is none names `make vllm`."""
    monkeypatch.setattr(local_vllm, "find_python", lambda: None)

    assert demo("--vllm") == 1
    assert "make vllm" in capsys.readouterr().err


def test_errors_of_the_endpoint_are_counted(capsys):
    """Requests that fail after the first are counted by type, besides those that succeeded."""
    faults = Faults(drop_after=9)
    with fast_engine(faults=faults) as engine:
        status = demo("--endpoint", engine.url, "--model", "llmtrace-sim", *FEW)

    ended = re.search(
        r"8 requests: (\d) success, (\d) error \(\2 [\w.]+Error\)", capsys.readouterr().out
    )
    assert int(ended[1]) + int(ended[2]) == 8
    assert status == 0


def say(_request, answer):
    """Answer with one chunk of content and an end."""
    for delta, finish in (({"content": "hi"}, None), ({}, "stop")):
        answer.event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    answer.event("[DONE]")


def refuse(_request, answer):
    """Reject the request with an error of the client."""
    answer.whole({"error": {"message": "no"}}, 400)


def test_a_run_without_any_success_is_a_failure(capsys):
    """An endpoint that only answers the first request leaves counts, a sentence and status 1."""
    with serve_script(say, refuse) as server:
        status = demo("--endpoint", server.url, "--model", "m", "--requests", "2")

    printed = capsys.readouterr()
    assert status == 1
    assert "2 requests: 2 error (2 openai.BadRequestError)" in printed.out
    assert f"no request to {server.url} succeeded" in printed.err


def test_a_fault_of_llmtrace_is_reported(capsys, monkeypatch):
    """When recording fails the requests go on, and the demo says whose fault it is."""

    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr(Progress, "write", fail)
    with fast_engine() as engine:
        ask = ("--endpoint", engine.url, "--model", "llmtrace-sim", "--requests", "1")
        assert demo(*ask, "--concurrency", "1") == 1

    printed = capsys.readouterr().err
    assert "llmtrace itself failed" in printed
    assert "export.Progress" in printed
    assert f"no request to {engine.url} was recorded" in printed


def one_line_error(capsys):
    """Return what the demo said was wrong, which is one line."""
    error = capsys.readouterr().err
    assert error.startswith("llmtrace: error: ")
    assert error.count("\n") == 1
    return error


def test_a_refused_connection_is_one_clear_line(capsys):
    """A missing listener is reported as that."""
    address = f"http://127.0.0.1:{free_port()}/v1"

    assert demo("--endpoint", address, "--model", "m") == 1
    assert f"{address} cannot be reached: connection refused" in one_line_error(capsys)


def test_an_unknown_model_names_those_there_are(capsys):
    """A 404 for the model lists what the server has."""
    with fast_engine() as engine:
        assert demo("--endpoint", engine.url, "--model", "gpt-9") == 1
    assert "does not serve 'gpt-9'; it serves llmtrace-sim" in one_line_error(capsys)


def test_an_address_without_v1_is_guessed_at(capsys):
    """A 404 for the path asks about /v1."""
    with fast_engine() as engine:
        assert demo("--endpoint", engine.root, "--model", "llmtrace-sim") == 1
    assert "does the address end in /v1" in one_line_error(capsys)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
def test_a_key_is_never_shown(capsys, monkeypatch, status):
    """The key goes to the server, which quotes it back, and no further."""
    monkeypatch.setenv("LLMTRACE_TEST_KEY", "sk-secret-1")

    def quote(request, answer):
        answer.whole({"error": {"message": f"bad {request.headers['authorization']}"}}, status)

    def nothing(_request, answer):
        answer.whole({}, 404)

    with serve_script(quote, nothing) as server:
        options = ("--model", "m", "--api-key-env", "LLMTRACE_TEST_KEY")
        assert demo("--endpoint", server.url, *options) == 1
        assert server.requests[0].headers["authorization"] == "Bearer sk-secret-1"

    printed = capsys.readouterr()
    assert "sk-secret" not in printed.out + printed.err
    assert f"HTTP {status}" in printed.err


def test_no_key_is_sent_without_its_name(capsys, monkeypatch):
    """A key in the environment for another program does not reach the endpoint."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-2")

    def forbid(_request, answer):
        answer.whole({"error": {"message": "no"}}, 401)

    with serve_script(forbid) as server:
        assert demo("--endpoint", server.url, "--model", "m") == 1
        assert "sk-secret-2" not in str(server.requests)
    assert "--api-key-env" in one_line_error(capsys)


@pytest.mark.parametrize("given", ["sk-proj-abc", "sk_abc", "MISSING_KEY"])
def test_a_variable_that_is_not_set_is_refused(capsys, given):
    """A key given in place of the variable's name is not repeated; a name is."""
    assert demo("--endpoint", "http://h/v1", "--model", "m", "--api-key-env", given) == 2
    error = one_line_error(capsys)
    assert "is not set" in error
    assert (given in error) == given.isupper()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--endpoint", "http://h/v1"], "needs --model"),
        (["--endpoint", "localhost:8000", "--model", "m"], "is no address"),
        (["--endpoint", "http://user:pass@h/v1", "--model", "m"], "out of the address"),
        (["--rows-out", "/nowhere/rows.jsonl"], "cannot be written"),
        (["--budget", "/nowhere/budget.yml"], "cannot read this budget"),
        (["--html", "/dev/null/page.html"], "--html names the file"),
        (["--html", "/"], "Is a directory"),
        (["--html", "page.html", "--requests", "8"], "with --fault"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(capsys, options, words):
    """Wrong settings are status 2 and one line."""
    assert demo(*options) == 2
    assert words in one_line_error(capsys)


def test_looking_for_room_leaves_nothing_and_spoils_nothing(tmp_path, monkeypatch):
    """A page of an earlier run stays until there is a new one; a folder is made for a new one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old = tmp_path / "old.html"
    old.write_text("old")

    assert room_for_page(old) == old
    assert old.read_text() == "old"
    assert room_for_page(None) == tmp_path / "llmtrace" / "demo" / "triage.html"
    assert not room_for_page(tmp_path / "new" / "page.html").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        room_for_page(old)


def test_a_disabled_llmtrace_is_reported(capsys, monkeypatch):
    """With telemetry switched off there would be nothing to show."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")

    assert demo() == 2
    assert "OTEL_SDK_DISABLED" in one_line_error(capsys)


def test_a_server_that_is_no_model_server_is_reported(capsys):
    """An answer without any chunk is not taken for a stream."""
    with serve_script(lambda _request, answer: answer.whole("<html>")) as server:
        assert demo("--endpoint", server.url, "--model", "m") == 1
    assert "no stream of chat completion chunks" in one_line_error(capsys)


def test_an_error_inside_the_stream_is_reported(capsys):
    """An `error` event in a 200 is the server's word, not a lost connection."""
    with fast_engine(faults=Faults(error_after=2)) as engine:
        assert demo("--endpoint", engine.url, "--model", "llmtrace-sim") == 1
    assert "answered with an error: simulated fault" in one_line_error(capsys)


def test_rows_of_an_earlier_run_survive_a_failure(capsys, tmp_path):
    """A file is emptied only when there are rows to write."""
    path = tmp_path / "rows.jsonl"
    path.write_text("earlier", encoding="utf-8")
    address = f"http://127.0.0.1:{free_port()}/v1"

    assert demo("--endpoint", address, "--model", "m", "--rows-out", str(path)) == 1
    assert path.read_text(encoding="utf-8") == "earlier"
    del capsys


def test_a_model_that_wants_the_other_limit_gets_it(capsys):
    """Where `max_tokens` is refused in favour of `max_completion_tokens`, that is sent."""

    def advise(_request, answer):
        message = "Unsupported parameter: use 'max_completion_tokens' instead."
        answer.whole({"error": {"message": message}}, 400)

    with serve_script(advise, say) as server:
        assert demo("--endpoint", server.url, "--model", "m", "--requests", "2") == 0
        limits = [set(request.body) & {"max_tokens", "max_completion_tokens"}
                  for request in server.requests]  # fmt: skip

    assert limits == [{"max_tokens"}] + 3 * [{"max_completion_tokens"}]
    assert re.search(r"^queue .* not reported +0/2 *$", capsys.readouterr().out, re.MULTILINE)


# A test run in the background ignores the signal, and hands that on.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from llmtrace.cli import main
sys.exit(main())
"""


def interrupted(*options, until):
    """Run the demo on a terminal of 80 columns, press Ctrl-C once `until` is seen."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "demo", *options],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm"},
        text=True,
    )
    os.close(theirs)
    seen = ""
    with process:
        while not re.search(until, seen):
            seen += os.read(ours, 4096).decode()
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=30)
    os.close(ours)
    return process.returncode, printed, seen


def test_an_incident_is_triaged_by_what_the_collector_has(capsys, tmp_path, monkeypatch):
    """The whole chain: what goes wrong half-way is named, and written as a page and a case."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    page, rows = tmp_path / "page.html", tmp_path / "rows.jsonl"
    options = ("--concurrency", "6", "--html", str(page), "--rows-out", str(rows))

    assert demo("--fault", "gateway_overhead", *options) == 0
    printed = capsys.readouterr().out
    done = read_rows(rows)
    assert len(done) == 350
    assert printed.rstrip().endswith("Triage, which did not know, names it first.")
    assert "What was done" in printed
    assert "names it first" in printed
    assert re.search(r"^1  gateway_overhead  (confirmed|likely)", printed, re.MULTILINE)
    assert {row.attributes["phase"] for row in done} == {"quiet", "gateway_overhead"}
    assert "gateway_overhead" in page.read_text()
    case = read_case(tmp_path / "llmtrace" / "demo" / "case")
    assert case.rows.n == len(done)
    assert case.note is not None
    assert case.note.startswith("simulated engine")
    assert f"! {case.note}" in " ".join(printed.split())
    assert case.note in page.read_text()
    assert {"running", "kv_usage", "gpu_sm_clock"} <= {*case.signals.signal.names}
    [facts] = case.facts.instances.values()
    assert (facts["max_num_seqs"], facts["prefix_caching"]) == (6, True)
    live = re.search(r"Collector: http://127\.0\.0\.1:(\d+)", printed)
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", int(live[1]))) != 0


def test_the_faults_are_listed_and_checked(capsys):
    """By the names triage has for causes; none of them for another server."""
    assert demo("--list") == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == {*FAULTS}
    assert listed < {*CAUSES}
    assert demo("--fault", "bad_luck") == 2
    assert "--list" in capsys.readouterr().err
    assert demo("--fault", "gpu_throttle", "--severity", "9") == 2
    assert "from 1 to 3" in capsys.readouterr().err
    assert demo("--fault", "gpu_throttle", "--endpoint", "http://h/v1", "--model", "m") == 2
    assert "no other server" in capsys.readouterr().err


@pytest.mark.parametrize("cause", sorted(FAULTS))
@pytest.mark.parametrize("severity", [1.0, 2.0, 3.0])
def test_a_fault_changes_what_happens(cause, severity):
    """The engine, or its workload; and at no severity is that impossible."""
    trouble, config = named(cause, severity), healthy(ServerConfig())
    usual = list(itertools.islice(jobs(), 20))
    drawn = list(itertools.islice(trouble.jobs(jobs()), 20))

    assert (trouble.change(config) != config) != (drawn != usual)


def test_ctrl_c_shows_what_was_measured(tmp_path):
    """An interrupt ends the requests, prints and writes what there is, and is status 130."""
    path = tmp_path / "rows.jsonl"
    # Twelve users from the start are more than the engine has slots: some are always waiting.
    crowd = ("--concurrency", "48")
    done = r"  ([3-9]|\d\d) of \d+ done"
    status, printed, seen = interrupted(*crowd, "--rows-out", str(path), until=done)

    assert status == 130
    assert "Interrupted" in printed
    assert "SIMULATED" in seen
    rows = read_rows(path)
    assert f"checked for each of the {len(rows)}" in printed
    assert {"success", "cancelled"} <= {row.outcome for row in rows}
    assert re.search(rf"^{len(rows)} requests: .* cancelled", printed, re.MULTILINE)
    assert "Error" not in printed
    port = int(re.search(r"127\.0\.0\.1:(\d+)", printed)[1])
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


def test_ctrl_c_before_anything_was_measured_is_quiet():
    """With nothing to show there is no report and no traceback."""
    status, printed, _ = interrupted(until="Asking")

    assert status == 130
    assert "Traceback" not in printed


def test_progress_says_how_far_it_is():
    """Name, phase, requests, the phase's p95 TTFT, time."""
    clock = FakeClock()
    progress = Progress(Console(file=io.StringIO()), "X", 24.0, None, lambda: clock() / 1e9)
    progress.started(Phase("calm", 3, None, None))
    progress.write(make_row())
    clock.advance(5)
    calm = progress.line()
    progress.started(Phase("rush", 12, None, None))
    clock.advance(20)

    assert calm == "X  calm, 3 at once  1 done  p95 ttft 200 ms  5 of 24 s"
    assert progress.line() == "X  rush, 12 at once  1 done  p95 ttft - ms  last answers"


def test_progress_without_a_terminal_is_an_occasional_line():
    """A line every five seconds at most, when a request is over."""
    clock, out = FakeClock(), io.StringIO()
    progress = Progress(Console(file=out), "X", None, 10, lambda: clock() / 1e9)
    for _ in range(9):
        clock.advance(1)
        progress.write(make_row())

    assert out.getvalue() == "X  5 of 10 done  p95 ttft 200 ms  5 s\n"


def test_two_runs_ask_the_same():
    """The jobs are drawn by seed."""

    def first(seed):
        return list(itertools.islice(jobs(seed), 50))

    assert first(0) == first(0)
    assert first(0) != first(1)


def test_the_work_is_the_same_all_along():
    """What goes wrong half-way is not that there are more documents by chance."""
    routes = [job.route for job in itertools.islice(jobs(), 350)]

    assert [routes[:200].count("document"), routes[200:].count("document")] == [40, 30]


@pytest.mark.parametrize("longest", [MAX_PROMPT, 3_200])
def test_prompts_fit_the_endpoint(longest):
    """Short ones and long ones, none longer than the endpoint takes, each with an answer limit."""
    some = list(itertools.islice(jobs(longest_prompt=longest), 300))
    lengths = {job.route: sum(len(message["content"]) for message in job.messages) for job in some}

    assert lengths["question"] < lengths["conversation"] < lengths["document"] < longest + 400
    assert any(job.render_s for job in some)
    assert any(job.leaves_after for job in some)


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        (
            DemoOptions(),
            [("calm", 3, pytest.approx(9.6), None), ("rush", 12, pytest.approx(14.4), None)],
        ),
        (DemoOptions(requests=10, users=8), [("calm", 2, None, 4), ("rush", 8, None, 6)]),
        (DemoOptions(requests=9, seconds=5, users=3), [("steady", 3, 5, 9)]),
        (
            DemoOptions(fault="gpu_throttle"),
            [("quiet", 5, None, 200), ("gpu_throttle", 5, None, 150)],
        ),
        (
            DemoOptions(fault="gpu_throttle", seconds=60),
            [("quiet", 5, 30, 200), ("gpu_throttle", 5, 30, 150)],
        ),
        (
            DemoOptions(fault="gpu_throttle", requests=9),
            [("quiet", 5, None, 5), ("gpu_throttle", 5, None, 4)],
        ),
    ],
)
def test_the_run_is_split_into_phases(options, phases):
    """Time and requests are shared out whole; few users make one phase."""
    made = [(one.name, one.users, one.seconds, one.requests) for one in plan(options)]

    assert made == phases


@pytest.mark.parametrize(
    ("phase", "made"),
    [
        (Phase("p", 1, None, 5), 5),
        (Phase("p", 1, 3.5, None), 3),
        (Phase("p", 1, 3.5, 5), 3),
        (Phase("p", 1, 3.5, 2), 2),
        (Phase("p", 1, 3.5, 5, both=True), 5),  # the clock alone ends nothing
        (Phase("p", 1, 3.5, 2, both=True), 3),
    ],
)
def test_a_phase_ends_when_it_has_what_it_needs(phase, made):
    """By the clock or by requests, or only once it has both."""
    now = itertools.count()  # a second passes with each job

    assert len(list(share(jobs(), phase, lambda: next(now)))) == made


def test_the_live_page_stays_up_until_enter(monkeypatch):
    """On a terminal; where no key can be pressed the demo ends by itself."""
    prompts = []
    monkeypatch.setattr("builtins.input", lambda text: prompts.append(text) or "")
    for terminal in (True, False):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda here=terminal: here))
        out = Console(file=io.StringIO(), force_terminal=True, width=200, highlight=False)
        linger("http://127.0.0.1:1", out)
        assert ("stays up: http://127.0.0.1:1" in out.file.getvalue()) == terminal

    assert prompts == ["Press Enter to end. "]


def test_a_key_is_not_in_what_is_printed_of_a_target():
    """The key stays out of tracebacks and logs."""
    target = Target(url="http://h/v1", model="m", name="h", api_key="sk-secret-3")

    assert "sk-secret" not in repr(target)
    assert target.hide_key("bad key sk-secret-3") == "bad key ***"


def test_a_trace_is_replayed(tmp_path):
    """Its pattern and proportions, at three requests a second, as long as the engine can take."""
    trace = tmp_path / "trace.jsonl"
    lines = [(0, 400, 20), (1000, 800, 40), (9000, 16_000, 60)]
    trace.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": put, "output_length": out}) + "\n"
            for at, put, out in lines
        )
    )
    again = list(itertools.islice(replayed(read_arrivals(trace)), 6))
    lengths = [sum(len(m["content"]) for m in job.messages[1:]) for job in again]
    waits = [wait for wait, _ in due(iter(again), lambda: 5.0)]

    assert [job.after_s for job in again[:3]] == pytest.approx([0.0, 2 / 27, 16 / 27])
    assert [job.max_tokens for job in again[:3]] == [30, 60, 90]
    assert lengths[2] > 0.9 * MAX_PROMPT > 10 * lengths[1]
    assert [job.max_tokens for job in again[3:]] == [30, 60, 90]
    assert waits == pytest.approx(list(itertools.accumulate(job.after_s for job in again)))


def test_a_trace_that_cannot_be_read_fails_before_anything_starts(tmp_path, capsys):
    """With the path and the reason."""
    assert demo("--arrivals", str(tmp_path / "none.csv")) == 2
    assert f"{tmp_path / 'none.csv'}: no such file" in capsys.readouterr().err
