"""Does each kind of run write, print and draw what it says?

Servers are scripted, or the simulated engine.
"""

from __future__ import annotations

import json
import math
import sys

import pytest

from llmtrace import Timeline
from llmtrace.budget import DEFAULT
from llmtrace.cli import main
from llmtrace.core.errors import ConfigError
from llmtrace.demo.target import Target
from llmtrace.display.summary_tables import console_for
from llmtrace.exporters.row_files.read_back import read_rows
from llmtrace.load_test import bench_runs
from llmtrace.load_test.bench_workload import Workload, at_setting, read_sweep
from llmtrace.load_test.client_processes import shares
from llmtrace.load_test.curve_page import page
from llmtrace.load_test.drive import Answered
from llmtrace.load_test.endpoint_apis import Sending
from llmtrace.load_test.interleave import blocks_of, run_interleaved
from llmtrace.load_test.load_curve import Curve, point
from llmtrace.load_test.measure import measure
from llmtrace.load_test.measured_tables import print_summary
from llmtrace.load_test.requests import Request
from llmtrace.load_test.send_plan import Measured, Plan, bottleneck
from llmtrace.simulator.server import serve as simulate
from llmtrace.testing import make_row
from tests.load_test.test_measure import chunk
from tests.support.sse_server import serve


def spent(name, seconds, prompt_tokens=5):
    """Return a script that answers one token after so long, and says which server it is."""

    def script(request, answer):
        tokens = len(json.dumps(request.body["messages"]).split())
        answer.head()
        answer.wait(seconds(tokens) if callable(seconds) else seconds)
        answer.event(chunk(name, "stop"))
        usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
        answer.event(chunk(usage=usage))
        answer.event("[DONE]")
        answer.end()

    return script


def sending(server, **more):
    """Return how a scripted server is sent requests."""
    return Sending(target=Target(url=server.url, model="m", name="scripted", ours=True), **more)


@pytest.mark.timing
@pytest.mark.timing
def test_a_quadratic_prefill_is_fitted():
    """The exponent 2 is in the interval, which is narrow enough to exclude 1 and 3."""
    points = []
    with serve(spent("x", lambda tokens: 0.02 + 2e-7 * tokens**2)) as server:
        for value in (200, 400, 600, 800, 1000):
            workload = Workload(requests=8, concurrency=2, warm_up=0)
            made = at_setting(workload, "prompt_tokens", value).plan(sending(server))
            points.append(point(value, measure(made, DEFAULT), DEFAULT))
    curve = Curve(what="prompt_tokens", points=points)
    growth = curve.growth()["ttft"]
    assert growth.low <= 2 <= growth.high
    assert growth.low > 1
    assert growth.high < 3
    assert "to the power" in page(curve, "<m>")
    assert "<m>" not in page(curve, "<m>")


def test_endpoints_are_measured_in_turn_and_the_first_again():
    """Each is sent the same requests, in an order that changes from block to block."""
    seen = []

    def noted(name):
        def script(request, answer):
            seen.append((name, request.body["messages"][0]["content"]))
            spent(name, 0.0)(request, answer)

        return script

    with serve(noted("a")) as a, serve(noted("b")) as b:
        workload = Workload(requests=6, prompt_tokens="5", concurrency=1, warm_up=0)
        plans = [workload.plan(sending(one)) for one in (a, b)]
        again = workload.again(sending(a), 2)
        measured = run_interleaved([*plans, again], DEFAULT, 3, lambda _: None)
    sent = [name for name, text in seen if text != "Say hello."]
    assert "".join(sent) == "aabb" + "bbaa" + "aabb" + "aa"
    assert [len(one.rows) for one in measured] == [6, 6, 2]
    first, second = ({one.number for one in side.answered} for side in measured[:2])
    assert first == second
    texts = [text for name, text in seen if text != "Say hello."]
    assert not set(texts[-2:]) & set(texts[:-2])
    assert measured[0].active_s < 1.0


def test_blocks_have_times_of_their_own():
    """A block of an open loop begins at 0, and keeps its gaps."""
    requests = [Request(i, (), 1, i * 0.5) for i in range(7)]
    assert [[one.at_s for one in block] for block in blocks_of(requests, 3)] == [
        [0.0, 0.5], [0.0, 0.5, 1.0], [0.0, 0.5],
    ]  # fmt: skip
    assert len(blocks_of(requests[:2], 5)) == 2


def test_several_processes_send_what_one_would(tmp_path):
    """Each request once, all of them begun together, and the CPU of each accounted for."""
    with simulate() as engine:
        target = Target(url=engine.url, model="llmtrace-sim", name="s", ours=True)
        workload = Workload(requests=10, prompt_tokens="5", output_tokens="2", concurrency=4,
                            warm_up=0, processes=2)  # fmt: skip
        measured = measure(workload.plan(Sending(target=target)), DEFAULT)
    assert sorted(one.number for one in measured.answered) == list(range(10))
    assert len(measured.rows) == 10
    assert len(measured.cpu) == 2
    assert all(share < 1.5 for share in measured.cpu)


def test_clients_and_requests_are_shared_among_processes():
    """None is lost; a process without a client is not started."""
    requests = [Request(i, (), 1) for i in range(7)]
    made = Plan(sending=None, requests=requests, concurrency=5, processes=3)
    parts = shares(made)
    assert sum(part.concurrency for part in parts) == 5
    assert sorted(one.number for part in parts for one in part.requests) == list(range(7))
    assert len(shares(Plan(sending=None, requests=requests, concurrency=2, processes=8))) == 2


def test_a_client_that_uses_a_whole_core_says_so():
    """In a closed loop, too, where no request is late."""
    busy = Measured(rows=[], answered=[], interrupted=False, cpu=[0.4, 0.97])
    assert "97% of a core" in bottleneck(busy)


def test_a_client_that_starts_late_says_so_of_whole_responses_too():
    """What is not streamed has no TTFT: its whole wait is what lateness is held against."""
    rows = [make_row(timeline=Timeline(e2e=200_000_000, stream=False))] * 3
    late = [Answered(i, 0.05, None) for i in range(3)]
    assert "50 ms late" in bottleneck(Measured(rows=rows, answered=late, interrupted=False))
    on_time = [Answered(i, 0.004, None) for i in range(3)]
    assert bottleneck(Measured(rows=rows, answered=on_time, interrupted=False)) is None


def test_an_endpoint_measured_in_blocks_has_the_rate_of_its_own_time(capsys):
    """Other endpoints' blocks between its own are no time of its own."""
    rows = [make_row(start=i * 10**9, timeline=Timeline(e2e=10**9)) for i in (1, 100)]
    measured = Measured(rows=rows, answered=[], interrupted=False, active_s=2.0)
    print_summary(console_for(sys.stdout), measured, DEFAULT, simulated=False)
    assert "In 2.0 s: 1.00 requests/s" in capsys.readouterr().out


@pytest.mark.parametrize(("api", "stream"), [("openai", True), ("anthropic", True),
                                              ("anthropic", False)])  # fmt: skip
def test_a_conversation_is_sent_turn_by_turn(api, stream):
    """A later turn has the response before it, on either API, streamed or not."""
    with simulate() as engine:
        target = Target(url=engine.url, model="llmtrace-sim", name="s", ours=True)
        workload = Workload(requests=2, turns=3, prompt_tokens="10", output_tokens="4",
                            concurrency=2, warm_up=1)  # fmt: skip
        made = workload.plan(Sending(target=target, api=api, stream=stream))
        measured = measure(made, DEFAULT)
    rows = sorted(measured.rows, key=lambda row: row.prompt_tokens)
    assert len(rows) == 6
    assert {row.outcome for row in rows} == {"success"}
    assert {row.provider == "anthropic" for row in rows} == {api == "anthropic"}
    assert sorted(one.number for one in measured.answered) == list(range(6))
    assert all(one.sha256 is not None for one in measured.answered)
    # 10 words a turn, and 4 tokens of each response before.
    assert rows[-1].prompt_tokens >= rows[0].prompt_tokens + 2 * (10 + 3)


def test_a_dataset_has_turns_tools_and_images(tmp_path):
    """The bytes of an image are sent in the form of the API."""
    from llmtrace.load_test.dataset_requests import from_dataset

    (tmp_path / "cat.png").write_bytes(b"\x89PNG")
    image = [{"type": "text", "text": "What?"}, {"type": "image", "path": "cat.png"}]
    lines = [
        {"turns": ["a", "b"], "max_tokens": 3},
        {"prompt": "c", "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"messages": [{"role": "user", "content": image}]},
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    talk, tooled, seen = from_dataset(path, None, None, 0)
    assert [turn.number for turn in talk.turns()] == [0, 1]
    assert (tooled.number, seen.number) == (2, 3)
    assert tooled.options["tools"][0]["function"]["name"] == "f"
    url = seen.messages[0]["content"][1]["image_url"]["url"]
    assert url == "data:image/png;base64,iVBORw=="
    other = from_dataset(path, None, None, 0, api="anthropic")[2].messages[0]["content"][1]
    assert other["source"] == {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}


def test_a_sweep_writes_a_folder_for_each_setting(tmp_path, capsys):
    """And the curves, as text, JSON and a page."""
    html = tmp_path / "curves.html"
    options = ["--sweep", "concurrency=2,1", "--requests", "6", "--output-tokens", "2",
               "--out", str(tmp_path / "s"), "--html", str(html), "--gpus", "2"]  # fmt: skip
    assert main(["bench", *options]) == 0
    printed = capsys.readouterr().out
    assert "SIMULATED" in printed
    assert "prefill" in printed
    curve = json.loads((tmp_path / "s" / "curve.json").read_text())
    assert [one["value"] for one in curve["points"]] == [1, 2]
    assert curve["points"][0]["durations"]["prefill"]["p50_s"] > 0
    assert len(read_rows(tmp_path / "s" / "concurrency-2" / "rows.jsonl")) == 6
    assert html.read_text().count("<figure>") >= 8
    # What a run was served by is in what `compare` reads.
    folder = str(tmp_path / "s" / "concurrency-1")
    assert main(["compare", folder, folder]) == 0
    assert "output tokens/s a GPU (2 and 2)" in capsys.readouterr().out


def test_signals_of_a_target_are_in_the_folder(tmp_path, capsys):
    """Those from the first request to the last, and what the engine is."""
    with simulate() as engine:
        options = ["--endpoint", engine.url, "--model", "llmtrace-sim", "--rate", "10",
                   "--requests", "25", "--output-tokens", "2", "--prompt-tokens", "5",
                   "--target", engine.root, "--out", str(tmp_path / "a")]  # fmt: skip
        assert main(["bench", *options]) == 0
    capsys.readouterr()
    lines = (tmp_path / "a" / "signals.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    assert {"running", "waiting", "kv_usage"} <= {one["signal"] for one in samples}
    rows = read_rows(tmp_path / "a" / "rows.jsonl")
    assert min(one["t"] for one in samples) >= min(row.start for row in rows) / 1e9
    facts = json.loads((tmp_path / "a" / "facts.json").read_text())
    assert next(iter(facts.values()))["engine"] == "vLLM"
    about = json.loads((tmp_path / "a" / "bench.json").read_text())
    assert about["targets"][0]["signals"]


def test_a_search_prints_a_rate_and_goodput(tmp_path, capsys):
    """On the simulated engine, with a folder for each rate."""
    budget = tmp_path / "b.yaml"
    budget.write_text("name: quick\nobjective: 0.9\ntotal: 0.5\n")
    options = ["--find-rate", "--requests", "12", "--output-tokens", "2", "--prompt-tokens", "20",
               "--budget", str(budget), "--out", str(tmp_path / "s")]  # fmt: skip
    status = main(["bench", *options])
    printed = capsys.readouterr().out
    assert ("hold the budget 'quick'" in printed) == (status == 0)
    assert "goodput/s" in printed
    assert len([*(tmp_path / "s").glob("rate-*")]) >= 3


@pytest.mark.parametrize("after", [0, 2])
def test_an_interrupted_search_shows_what_it_has_seen(capsys, monkeypatch, after):
    """Ctrl-C ends it at once, in the run before the search too."""
    runs = []

    def measured(plan, _budget, _done):
        runs.append(plan)
        rows = [make_row(start=i * 10**8, timeline=Timeline(e2e=10**8)) for i in range(40)]
        stopped = len(runs) == after + 1
        return Measured(rows=rows, answered=[], interrupted=stopped, active_s=4.0)

    monkeypatch.setattr(bench_runs, "prepare", lambda plan, _budget: plan)
    monkeypatch.setattr(bench_runs, "measure_prepared", measured)
    assert main(["bench", "--find-rate"]) == 130
    assert len(runs) == after + 1
    assert ("Interrupted: these are" in capsys.readouterr().out) == (after > 0)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--sweep", "colour=1"], "what is varied is one of"),
        (["--sweep", "concurrency=1.5"], "what is varied is one of"),
        (["--find-rate", "--rate", "3"], "chooses the rate"),
        (["--html", "x.html"], "is for --sweep"),
        (["--endpoint", "http://a", "--endpoint", "http://b", "--model", "m", "--find-rate"],
         "measure one --endpoint"),
        (["--endpoint", "http://a", "--model", "m", "--model", "n"], "one for each"),
        (["--model", "m"], "--endpoint and --model go"),
        (["--endpoint", "http://a", "--model", "m", "--blocks", "3"], "of several endpoints"),
        (["--shared-prefix", "256"], "have no room for it"),
        (["--sweep", "shared_prefix=8,300"], "--shared-prefix 300: "),
        (["--sweep", "rate=1,2", "--concurrency", "4"], "--sweep rate chooses the load"),
        (["--arrivals", "x", "--sweep", "output_tokens=1,2"], "those of --arrivals are not"),
        (["--dataset", "x", "--turns", "3"], "--turns is of requests that are drawn"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_said(capsys, options, problem):
    """Before anything is sent."""
    assert main(["bench", *options]) == 2
    assert problem in capsys.readouterr().err


def test_a_sweep_is_read():
    """In rising order, each setting once."""
    assert read_sweep("prompt-tokens=400,100,400") == ("prompt_tokens", [100.0, 400.0])
    assert math.isclose(read_sweep("rate=0.5,2")[1][0], 0.5)
    made = at_setting(Workload(rate=3.0), "concurrency", 4.0)
    assert (made.concurrency, made.rate) == (4, None)


@pytest.mark.parametrize("text", ["rate=1,inf", "rate=nan", "rate=0", "turns=1.5", "rate=", "x=1"])
def test_a_sweep_without_settings_to_measure_is_refused(text):
    """The message shows what a sweep looks like."""
    with pytest.raises(ConfigError, match="concurrency=1,2,4"):
        read_sweep(text)
