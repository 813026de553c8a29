"""Does a load test measure what the server did, and hide no stall?

The server notes by its own clock what it took, so that the truth is known. A busy machine only
adds to what a client waits: the best of many requests is held to the truth.
"""

from __future__ import annotations

import json
import threading

import pytest

from llmtrace.budget import DEFAULT
from llmtrace.cli import main
from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.dataset.columns import from_rows
from llmtrace.demo.target import Target
from llmtrace.exporters.row_files.read_back import read_rows
from llmtrace.load_test.endpoint_apis import Sending
from llmtrace.load_test.lengths import read_lengths
from llmtrace.load_test.measure import measure, measure_prepared, prepare
from llmtrace.load_test.requests import Request, at_rate, drawn
from llmtrace.load_test.result_folder import write_folder
from llmtrace.load_test.send_plan import Measured, Plan, bottleneck
from llmtrace.run_comparison.read_run import read_run
from llmtrace.run_comparison.run_totals import sum_up
from tests.bench.paced_server import MODEL, paced, stats
from tests.bench.paced_server import TOKENS as PACED_TOKENS
from tests.support.machine_noise import Waits, allowed_s, allowing
from tests.support.sse_server import serve

TTFT_S = 0.2
GAP_S = 0.03
TOKENS = 8


def chunk(text=None, finish=None, **more):
    """Return one chunk of a chat completion."""
    delta = {} if text is None else {"content": text}
    choices = [] if "usage" in more else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": choices, **more,
    }  # fmt: skip


def scripted(request, answer):
    """Answer after `TTFT_S`, a token every `GAP_S`."""
    if not request.body.get("stream"):
        answer.wait(TTFT_S)
        message = {"role": "assistant", "content": "x"}
        answer.whole({
            "id": "1", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        })  # fmt: skip
        return
    answer.head()
    answer.wait(TTFT_S)
    for i in range(TOKENS):
        if i:
            answer.wait(GAP_S)
        answer.event(chunk("x", "stop" if i == TOKENS - 1 else None))
    usage = {"prompt_tokens": 5, "completion_tokens": TOKENS, "total_tokens": 5 + TOKENS}
    answer.event(chunk(usage=usage))
    answer.event("[DONE]")
    answer.end()


def plan(server, count=20, **more):
    """Return a load test of a scripted server."""
    stream = more.pop("stream", True)
    requests = more.pop("requests", None) or drawn(count, read_lengths("5"), read_lengths("9"))
    target = Target(url=server.url, model="m", name="scripted", ours=True)
    return Plan(sending=Sending(target=target, stream=stream), requests=requests, **more)


def middle(values):
    """Return the lower quartile of what a request was off: a busy machine only adds to it."""
    return sorted(values)[len(values) // 4]


@pytest.mark.timing
@pytest.mark.parametrize(
    ("count", "concurrency", "rate"), [(8, 1, None), (64, 8, None), (60, None, 30.0)],
    ids=["one", "eight", "open"],
)  # fmt: skip
def test_every_figure_is_the_servers(count, concurrency, rate):
    """Within 1 % or 1 ms of what was on the wire in this very run, by the server's own clock.

    The server is another process, which notes when the kernel received a request and when it wrote
    each token. What the client waited for a CPU is not charged.
    """
    requests = drawn(count, read_lengths("5"), read_lengths("16"))
    if rate is not None:
        requests = at_rate(requests, rate)
    with paced("--first", TTFT_S, "--gap", 0.01) as url:
        target = Target(url=f"{url}/v1", model=MODEL, name="paced", ours=True)
        made = prepare(Plan(sending=Sending(target=target), requests=requests,
                            concurrency=concurrency, warm_up=requests[:1]), DEFAULT)  # fmt: skip
        stats(url)
        waits = Waits()
        measured = measure_prepared(made, DEFAULT)
        with allowing(waits):
            more_s = allowed_s() / count
        wire = stats(url)["wire"]
    rows = measured.rows
    assert [row.outcome for row in rows] == ["success"] * count
    of = [wire[row.request_id] for row in rows]
    truth = {
        "ttft_s": [first - arrived for arrived, first, *_ in of],
        "tpot_s": [(last - first) / (PACED_TOKENS - 1) for _, first, *_, last in of],
        "e2e_s": [last - arrived for arrived, *_, last in of],
    }
    for name, known in truth.items():
        off = [getattr(row, name) - value for row, value in zip(rows, known, strict=True)]
        assert abs(middle(off)) <= max(0.01 * middle(known), 0.001) + more_s, name
    seconds = max(last for *_, last in of) - min(arrived for arrived, *_ in of)
    ours = sum_up(from_rows(rows), DEFAULT, measured.active_s).requests_per_s
    assert abs(ours * seconds / count - 1) <= 0.01 + count * more_s / seconds


@pytest.mark.timing
def test_an_open_loop_shows_the_stall_that_a_closed_one_hides():
    """The server does nothing for a second: one client waits, or all that came meanwhile."""
    slow = {}
    for concurrency in (1, None):
        free = threading.Lock()
        stalled = threading.Event()

        def one_at_a_time(request, answer, free=free, stalled=stalled):
            with free:
                if not stalled.is_set() and "stall" in json.dumps(request.body):
                    stalled.set()
                    answer.wait(1.0)
            answer.head()
            answer.event(chunk("x", "stop"))
            answer.event("[DONE]")
            answer.end()

        requests = [
            Request(i, ({"role": "user", "content": "stall" if i == 5 else "go"},), 1, i * 0.05)
            for i in range(20)
        ]
        with serve(*[one_at_a_time] * 40) as server:
            measured = measure(plan(server, requests=requests, concurrency=concurrency), DEFAULT)
        slow[concurrency] = sum(row.e2e_s > 0.2 for row in measured.rows)
    assert slow[1] == 1
    assert slow[None] >= 8


def test_whole_responses_are_measured_to_their_end():
    """There is no TTFT without a stream."""
    with serve(*[scripted] * 20) as server:
        rows = measure(plan(server, 4, stream=False, concurrency=2), DEFAULT).rows
    assert {row.stream for row in rows} == {False}
    assert min(row.e2e_s for row in rows) >= TTFT_S * 0.99


def test_warm_up_does_not_count():
    """It is sent, and is in no row."""
    with serve(*[scripted] * 20) as server:
        made = plan(server, 4, concurrency=2, warm_up=[Request(-1, ({"role": "user",
                    "content": "w"},), 1)])  # fmt: skip
        measured = measure(made, DEFAULT)
    assert len(measured.rows) == len(measured.answered) == 4


def test_a_duration_ends_an_open_and_a_closed_loop():
    """No request starts after it."""
    for concurrency in (1, None):
        with serve(*[scripted] * 60) as server:
            made = plan(server, 50, concurrency=concurrency, seconds=0.6)
            if concurrency is None:
                requests = [Request(i, r.messages, 1, i * 0.2)
                            for i, r in enumerate(made.requests)]  # fmt: skip
                made = plan(server, requests=requests, seconds=0.6)
            assert 1 <= len(measure(made, DEFAULT).rows) <= 4


def test_an_endpoint_that_is_not_there_is_an_error():
    """Said before anything is sent."""
    with serve(scripted) as server:
        made = plan(server, 2, concurrency=1)
    with pytest.raises(SourceError, match="cannot be reached"):
        measure(made, DEFAULT)


def test_a_folder_is_what_compare_reads(tmp_path):
    """With the workload's hash, and the answers' hashes."""
    with serve(*[scripted] * 20) as server:
        made = plan(server, 12, concurrency=4)
        measured = measure(made, DEFAULT)
    write_folder(tmp_path / "a", made, measured)
    run = read_run(tmp_path / "a")
    assert len(run.workload) == 64
    assert len(run.answers) == 12
    assert len(set(run.answers.values())) == 1
    assert len(read_rows(tmp_path / "a" / "rows.jsonl")) == 12


def test_a_client_that_is_late_says_so():
    """Where half of the requests start late by much of what they wait."""
    with serve(*[scripted] * 20) as server:
        made = plan(server, 4, concurrency=2)
        rows = measure(made, DEFAULT).rows
    late = [type("Late", (), {"late_s": 0.5})() for _ in rows]
    assert "bottleneck" in bottleneck(Measured(rows=rows, answered=late, interrupted=False))
    assert bottleneck(Measured(rows=rows, answered=[], interrupted=False)) is None


def test_the_command_measures_the_simulated_engine(tmp_path, capsys):
    """And writes what `compare` takes, marked as simulated."""
    options = ["bench", "--requests", "12", "--output-tokens", "5", "--out", str(tmp_path / "a")]
    assert main(options) == 0
    printed = capsys.readouterr().out
    assert "SIMULATED" in printed
    assert "TTFT" in printed
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert "No difference shown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--endpoint", "http://127.0.0.1:1/v1"], "--endpoint and --model go together"),
        (["--prompt-tokens", "many"], "is no length"),
        (["--dataset", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(capsys, options, problem):
    """With what to do about it."""
    assert main(["bench", *options]) in {1, 2}
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--warm-up", "--shared-prefix"])
def test_a_negative_count_is_none(capsys, option):
    """None is written as 0."""
    with pytest.raises(SystemExit):
        main(["bench", option, "-1"])
    assert f"{option}: '-1' is not a whole number, 0 or more" in capsys.readouterr().err


def test_recording_that_is_switched_off_is_an_error(monkeypatch):
    """By the words that `init` understands: "0" and "false" switch nothing off."""
    with serve(*[scripted] * 20) as server:
        made = plan(server, 2, concurrency=1)
        monkeypatch.setenv("OTEL_SDK_DISABLED", "TRUE")
        with pytest.raises(ConfigError, match="nothing is measured"):
            measure(made, DEFAULT)
        monkeypatch.setenv("OTEL_SDK_DISABLED", "false")
        monkeypatch.setenv("LLMTRACE_DISABLED", "0")
        assert len(measure(made, DEFAULT).rows) == 2
