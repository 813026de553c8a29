"""Is what other instrumentations send read to the last screen that shows it?"""

from __future__ import annotations

import os
import time

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from llmtrace import cli
from llmtrace.core.errors import DataError
from llmtrace_collector.commands import collect
from llmtrace_collector.metrics import request_metrics
from tests.support.internal_errors import reset_internal_errors

from .collecting import collecting, post, wait_for


def plain_span(number, more=()):
    """Make a span as OpenTelemetry's own GenAI instrumentations do: no id of ours."""
    now = time.time_ns()
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": f"chatcmpl-{number}",
        **dict(more),
    }
    return Span(
        trace_id=os.urandom(16),
        span_id=os.urandom(8),
        name="chat m",
        kind=3,
        start_time_unix_nano=now - 10**9 - number,
        end_time_unix_nano=now,
        attributes=[
            *(KeyValue(key=k, value=AnyValue(string_value=v)) for k, v in attributes.items()),
            KeyValue(key="gen_ai.usage.output_tokens", value=AnyValue(int_value=7)),
        ],
    )


def body_of(*spans):
    """Make a request of an application without llmtrace."""
    name = KeyValue(key="service.name", value=AnyValue(string_value="plain-otel"))
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=Resource(attributes=[name]), scope_spans=[ScopeSpans(spans=spans)]
            )
        ]
    ).SerializeToString()


def test_plain_genai_spans_are_counted_and_every_command_reads_their_rows(tmp_path, capsys):
    """And a row of llmtrace's own without a request id."""
    ours = {"llmtrace.e2e": "1.0", "llmtrace.outcome": "success"}
    with collecting(tmp_path / "data", metrics_settle="0.2") as one:
        post(one.otlp, body_of(*(plain_span(n) for n in range(5)), plain_span(5, ours.items())))
        rows = wait_for(lambda: (found := one.rows()) and len(found) == 6 and found, "rows")
        wait_for(
            lambda: sum(
                float(line.rpartition(" ")[2])
                for line in one.get("/metrics").decode().splitlines()
                if line.startswith("llmtrace_requests_total{")
            ) == 6,
            "counted rows",
        )  # fmt: skip
        missed = [
            value
            for (name, *_), value in one.metrics().items()
            if name == "llmtrace_collector_rows_missed_total"
        ]
        assert missed == [0, 0, 0]
        file = tmp_path / "rows.jsonl"
        file.write_bytes(one.get("/api/v1/rows?start=-1h"))
    assert all("request_id" not in row for row in rows)

    assert cli.main(["waterfall", str(file)]) == 0
    assert cli.main(["waterfall", str(file), "--request", "chatcmpl-3"]) == 0
    assert "chatcmpl-3" in capsys.readouterr().out
    assert cli.main(["budget", "report", str(file)]) == 0
    assert cli.main(["triage", "--rows", str(file)]) in {0, 10, 11}


def test_rows_that_cannot_be_read_are_a_problem_on_the_live_page(tmp_path, monkeypatch):
    """What is counted nowhere is at least said."""

    def broken(flat):
        raise DataError("not a row")

    monkeypatch.setattr(request_metrics, "from_dict", broken)
    with collecting(tmp_path / "data", metrics_settle="0.2") as one:
        post(one.otlp, body_of(plain_span(0)))
        problems = wait_for(lambda: one.json("/api/v1/live")["collector"]["problems"], "a problem")
    assert problems == ["1 stored row cannot be read, and is in no metric"]


def test_too_many_label_sets_are_a_problem_on_the_live_page(tmp_path, monkeypatch):
    """Else a new model would be missing on dashboards without a word."""
    monkeypatch.setattr(collect, "_MAX_LABEL_SETS", 1)
    reset_internal_errors()
    more = {"gen_ai.request.model": "n"}
    with collecting(tmp_path / "data", metrics_settle="0.2") as one:
        post(one.otlp, body_of(plain_span(0), plain_span(1, more.items())))
        problems = wait_for(
            lambda: one.get("/metrics") and one.json("/api/v1/live")["collector"]["problems"],
            "a problem, once the rows are counted",
        )
    reset_internal_errors()
    assert problems == ["1 request is in /metrics under `other`: there are too many label sets"]
