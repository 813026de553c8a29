"""Are the recorded spans of other instrumentations read, to the last screen that shows them?

Each of data/senders holds what one sent of a streamed call and a failed one to the simulated
engine, recorded by `python -m tests.contact.record_senders`. `openllmetry-old` is a copy with the
name that older versions, and the one for JavaScript, give the event of a chunk.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from llmtrace import cli
from llmtrace_collector.receive.otlp_json import from_json

from .collecting import collecting, post, wait_for

RECORDED = sorted((Path(__file__).parent / "data" / "senders").glob("*.jsonl"))
_MOMENT = "langfuse.observation.completion_start_time"

# Of the streamed call: what it had, by the sender. TTFT in seconds, `None` = it reports none.
TTFT = {
    "langfuse": 0.021, "litellm": None, "logfire": None, "openinference": 0.048,
    "openllmetry": 0.134, "openllmetry-old": 0.134, "opentelemetry": 0.026,
    "pydantic-ai": 0.0326, "strands": 0.866, "strands-openllmetry": 0.376, "vercel-ai": 0.283,
}  # fmt: skip
FAILURE = {
    "langfuse": None, "litellm": "RateLimitError", "logfire": "openai.RateLimitError",
    "openinference": "openai.RateLimitError", "openllmetry": "RateLimitError",
    "openllmetry-old": "RateLimitError", "opentelemetry": "openai.RateLimitError",
    "pydantic-ai": "pydantic_ai.exceptions.ModelHTTPError",
    "strands": "strands.types.exceptions.ModelThrottledException",
    "strands-openllmetry": "RateLimitError", "vercel-ai": "AI_APICallError",
}  # fmt: skip
PROVIDER = {"langfuse": None, "strands": "strands-agents", "vercel-ai": "openai.chat"}


def spans_of(request):
    """Yield the spans of a request in JSON."""
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def recorded_as_now(path, now_ns):
    """Read a sender's requests, moved so that the last span ended at this time."""
    requests = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    spans = [span for one in requests for span in spans_of(one)]
    later_ns = now_ns - max(int(span["endTimeUnixNano"]) for span in spans)
    for span in spans:
        for name in ("startTimeUnixNano", "endTimeUnixNano"):
            span[name] = str(int(span[name]) + later_ns)
        for event in span.get("events", ()):
            event["timeUnixNano"] = str(int(event["timeUnixNano"]) + later_ns)
        for one in span["attributes"]:
            if one["key"] == _MOMENT:
                was = datetime.fromisoformat(json.loads(one["value"]["stringValue"]))
                at = datetime.fromtimestamp(was.timestamp() + later_ns / 1e9, UTC)
                one["value"]["stringValue"] = json.dumps(at.isoformat())
    return [json.dumps(one).encode() for one in requests]


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """A collector that got all: its rows, samples, live page, and a file of the rows."""
    folder = tmp_path_factory.mktemp("senders")
    with collecting(folder / "data", metrics_settle="0.2") as one:
        for path in RECORDED:
            for body in recorded_as_now(path, time.time_ns() - 10**9):
                if path.stem == "opentelemetry":  # OpenTelemetry's own exporter of JSON
                    post(one.otlp, body, kind="application/json")
                else:
                    post(one.otlp, from_json(body, 100).SerializeToString())
        wanted = 2 * len(RECORDED)
        rows = wait_for(lambda: (got := one.rows()) and len(got) >= wanted and got, "the rows")
        counted = wait_for(
            lambda: (
                (samples := one.metrics())
                and sum(v for k, v in samples.items() if k[0] == "llmtrace_requests_total")
                == wanted
                and samples
            ),
            "the rows counted",
        )
        file = folder / "rows.jsonl"
        file.write_bytes(one.get("/api/v1/rows?start=-1h"))
        live = one.json("/api/v1/live")
    return rows, counted, live, file


@pytest.mark.parametrize("sender", [path.stem for path in RECORDED])
def test_each_call_is_one_row_with_all_that_its_sender_reports(sent, sender):
    """A streamed one and a failed one; the application's, agents' and outer spans make none."""
    streamed, failed = sorted(
        (row for row in sent[0] if row["service"] == sender),
        key=lambda row: row["outcome"] == "error",
    )
    assert (streamed["outcome"], streamed["stream"], streamed["model"]) == ("success", True, "sim")
    assert (streamed["prompt_tokens"], streamed["output_tokens"]) == (10, 16)
    assert 0.12 < streamed["e2e_s"] < 1.2
    assert streamed.get("ttft_s") == (TTFT[sender] and pytest.approx(TTFT[sender], abs=1e-3))
    assert streamed.get("provider") == PROVIDER.get(sender, "openai")
    assert streamed.get("max_tokens") == (None if sender == "strands" else 16)
    assert (failed["outcome"], failed["model"]) == ("error", "sim")
    assert failed.get("error_type") == FAILURE[sender]
    assert failed.get("ttft_s") is None
    assert failed.get("output_tokens") is None
    # What was said, and what an instrumentation notes for itself, is not copied onto rows.
    kept = json.dumps([streamed.get("attributes", {}), failed.get("attributes", {})])
    assert "made up by" not in kept
    assert '"hi"' not in kept


def test_metrics_the_live_page_and_the_commands_show_them(sent, capsys):
    """Counted by outcome, tokens and TTFT; a waterfall, a report and a triage read the rows."""
    rows, samples, live, file = sent
    failed = sum(
        v for k, v in samples.items() if k[0] == "llmtrace_requests_total" and "outcome=error" in k
    )
    assert failed == len(RECORDED)
    with_ttft = sum(v for k, v in samples.items() if k[0] == "llmtrace_ttft_seconds_count")
    assert with_ttft == sum(ttft is not None for ttft in TTFT.values())
    assert live["window"]["requests"] == len(rows)
    assert live["collector"]["problems"] == []
    for row in rows:
        assert cli.main(["waterfall", str(file), "--request", row["trace_id"]]) == 0
    assert "429" not in capsys.readouterr().out
    assert cli.main(["budget", "report", str(file)]) == 0
    assert cli.main(["triage", "--rows", str(file)]) in {0, 10, 11}
