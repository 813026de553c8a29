"""Are the logs that other programs write read as they are, without a column renamed?"""

import csv
import io
import json
from decimal import Decimal

import numpy as np
import pytest

from llmtrace.cli import main
from llmtrace.core.errors import DataError, SourceError
from llmtrace.dataset.files import read_columns
from llmtrace.exporters.row_files.read_back import read_rows, read_usable_rows
from llmtrace.semconv.convert import to_attributes
from tests.exporters.samples import typical

AT = 1_795_510_802_000_000_000  # 2026-11-24T09:00:02Z
LITELLM = {
    "request_id": "chatcmpl-1", "call_type": "acompletion", "total_tokens": 660,
    "prompt_tokens": 650, "completion_tokens": 10, "startTime": "2026-11-24 09:00:02.000",
    "endTime": "2026-11-24 09:00:03.500", "completionStartTime": "2026-11-24 09:00:02.500",
    "model": "azure/gpt-4o", "model_group": "gpt-4o", "custom_llm_provider": "azure",
    "api_base": "https://eastus.openai.azure.com/", "cache_hit": "None", "team_id": "search",
    "status": "success", "metadata": {"attempted_retries": 0, "litellm_overhead_time_ms": 12.5},
}  # fmt: skip
LITELLM_FAILED = {
    **LITELLM, "prompt_tokens": 0, "completion_tokens": 0, "completionStartTime": None,
    "cache_hit": "True", "status": "failure", "metadata": {"attempted_retries": 2,
        "error_information": {"error_code": "429", "error_class": "RateLimitError"}},
}  # fmt: skip
LITELLM_ROW = {
    "start": AT, "e2e_s": 1.5, "ttft_s": 0.5, "prompt_tokens": 650, "output_tokens": 10,
    "model": "gpt-4o", "provider": "azure", "server": "eastus.openai.azure.com",
    "tenant": "search", "outcome": "success", "attempts": 1, "gateway_s": 0.0125,
    "request_id": "chatcmpl-1",
}  # fmt: skip
LANGFUSE = {
    "id": "g-1", "traceId": "t-1", "traceName": "answer", "type": "GENERATION",
    "startTime": "2026-11-24T09:00:02.000Z", "endTime": "2026-11-24T09:00:03.500Z",
    "completionStartTime": "2026-11-24T09:00:02.500Z", "latency": 1500, "model": "gpt-4o",
    "usageDetails": {"input": 150, "input_cached_tokens": 500, "output": 10, "total": 660},
    "level": "DEFAULT", "statusMessage": None, "userId": "u-1", "version": "2.4",
    "environment": "production", "metadata": {"client": "web"},
}  # fmt: skip
NGINX = {
    "msec": "1795510803.500", "time_iso8601": "2026-11-24T09:00:03+00:00",
    "request_time": "1.500", "status": "200", "upstream_header_time": "0.004",
    "upstream_addr": "10.0.3.12:8000, 10.0.3.11:8000", "request_id": "r-1", "tenant": "acme",
    "prompt_tokens": 650, "completion_tokens": 10, "ttft": 0.5, "stream": True,
}  # fmt: skip
ENVOY = {
    "start_time": "2026-11-24T09:00:02.000Z", "duration": "1500", "response_code": 0,
    "response_flags": "DC", "upstream_host": "10.0.3.11:8000", "x-request-id": "r-1",
    "upstream_service_time": "12",
}  # fmt: skip
VLLM = {
    "request_id": "r-1", "arrival_time": AT / 1e9, "replica": "vllm-0", "e2e": 1.5, "ttft": 0.5,
    "queue_time": 0.25, "num_prompt_tokens": 650, "num_cached_tokens": None,
    "num_generation_tokens": 10, "num_preemptions": 1, "finish_reason": "length",
}  # fmt: skip


def as_jsonl(records):
    """Return records as JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records)


def as_csv(records):
    """Return records as CSV, as databases export it: objects as JSON, and their count below."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*records[0]])
    writer.writeheader()
    for record in records:
        writer.writerow({
            name: json.dumps(value) if isinstance(value, dict) else value
            for name, value in record.items()
        })  # fmt: skip
    return f"{text.getvalue()}({len(records)} rows)\n"


def read(tmp_path, text, name="log.jsonl"):
    """Return the rows of a file of this text, and what is said of it."""
    (tmp_path / name).write_text(text)
    columns = read_columns(tmp_path / name)
    return [*columns.to_dicts()], columns.warnings


def says(row, **wanted):
    """Return what a row says of these keys; of numbers, to a nanosecond."""
    found = {name: row.get(name) for name in wanted}
    return {k: round(v, 9) if isinstance(v, float) else v for k, v in found.items()} == wanted


@pytest.mark.parametrize(("form", "name"), [
    (as_csv, "spend.csv"), (as_csv, "spend"), (as_jsonl, "spend.log"), (json.dumps, "spend.json"),
])  # fmt: skip
def test_a_spend_log_of_litellm(tmp_path, form, name):
    """In each form: `status` is an outcome, `None` is unknown, and no tokens are not none."""
    (ok, failed), warnings = read(tmp_path, form([LITELLM, LITELLM_FAILED]), name)

    assert says(ok, **LITELLM_ROW, cache_hit=None)
    assert says(failed, outcome="error", http_status=429, error_type="RateLimitError",
                attempts=3, cache_hit=True, output_tokens=None, ttft_s=None)  # fmt: skip
    said = next(line for line in warnings if "a LiteLLM spend log" in line)
    assert said.startswith(f"{name} is read as a LiteLLM spend log: startTime → start, endTime - ")
    assert said.endswith("; not read: call_type, total_tokens")
    assert ("line: not a row: 1 line ignored" in warnings) == (form is as_csv)


def test_a_spend_log_in_parquet(tmp_path):
    """With timestamps as such, and objects as structs."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.Table.from_pylist([LITELLM])
    for name in ("startTime", "endTime", "completionStartTime"):
        times = pa.compute.cast(table[name], pa.timestamp("ms"))
        table = table.set_column(table.column_names.index(name), name, times)
    parquet.write_table(table, tmp_path / "spend.parquet")

    (row,) = read_columns(tmp_path / "spend.parquet").to_dicts()

    assert says(row, **LITELLM_ROW)
    assert read_rows(tmp_path / "spend.parquet")[0].e2e_s == 1.5


@pytest.mark.parametrize(("form", "name"), [(as_csv, "export.csv"), (as_jsonl, "export.jsonl")])
def test_an_export_of_langfuse(tmp_path, form, name):
    """Generations, by the mapping of the API; spans between them are not requests."""
    failed = {
        **LANGFUSE, "id": "g-2", "level": "ERROR", "completionStartTime": None,
        "statusMessage": "Error code: 429 - rate limited", "usageDetails": {"input": 0},
    }  # fmt: skip
    span = {**LANGFUSE, "id": "s-1", "type": "SPAN"}

    (ok, odd), _ = read(tmp_path, form([LANGFUSE, span, failed]), name)

    assert says(ok, start=AT, e2e_s=1.5, ttft_s=0.5, prompt_tokens=650, cached_tokens=500,
                output_tokens=10, model="gpt-4o", route="answer", version="2.4", stream=True,
                outcome="success", trace_id="t-1", tpot_s=round(1 / 9, 9),
                attempts=None)  # fmt: skip
    assert says(odd, outcome="error", http_status=429, prompt_tokens=None, stream=None,
                attempts=None, retry_s=None, nested=None)  # fmt: skip


@pytest.mark.parametrize(
    "times",
    [{}, {"msec": None, "time_iso8601": None, "time_local": "24/Nov/2026:09:00:03.500 +0000"}],
)
def test_an_access_log_of_nginx(tmp_path, times):
    """Its time is the end of a request; the last upstream answered, its headers are no token."""
    (row, none), _ = read(
        tmp_path, as_jsonl([NGINX | times, NGINX | times | {"upstream_addr": "-"}])
    )

    assert says(row, start=AT, e2e_s=1.5, ttft_s=0.5, output_tokens=10, http_status=200,
                replica="10.0.3.11:8000", attempts=2, outcome="success", tenant="acme",
                stream=True, answered_s=None)  # fmt: skip
    assert says(none, replica=None, attempts=None)


def test_an_access_log_of_envoy(tmp_path):
    """Its time is the start, its durations are milliseconds; `DC`: the client left."""
    (left, failed), _ = read(
        tmp_path, as_jsonl([ENVOY, ENVOY | {"response_code": 503, "response_flags": "UF"}])
    )

    assert says(left, start=AT, e2e_s=1.5, ttft_s=None, replica="10.0.3.11:8000",
                request_id="r-1", outcome="cancelled", http_status=None)  # fmt: skip
    assert says(failed, outcome="error", http_status=503)


def test_a_request_log_of_vllm(tmp_path):
    """An aborted request was ended by its client."""
    (row, left), _ = read(tmp_path, as_jsonl([VLLM, VLLM | {"finish_reason": "abort"}]))

    assert says(row, start=AT, e2e_s=1.5, ttft_s=0.5, queue_s=0.25, prompt_tokens=650,
                output_tokens=10, cached_tokens=None, preemptions=1, replica="vllm-0",
                outcome="success", finish_reason="length")  # fmt: skip
    assert left["outcome"] == "cancelled"


def span(attributes, **more):
    """Return a span in OTLP's JSON."""
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    held = []
    for name, value in attributes.items():
        if isinstance(value, tuple | list):
            wrapped = {"arrayValue": {"values": [{"stringValue": one} for one in value]}}
        else:
            wrapped = {kinds[type(value)]: str(value) if type(value) is int else value}
        held.append({"key": name, "value": wrapped})
    return {"traceId": "ab" * 16, "spanId": "cd" * 8, "startTimeUnixNano": str(AT),
            "endTimeUnixNano": str(AT + 1_500_000_000), "attributes": held, **more}  # fmt: skip


def batch(*spans):
    """Return an export of these spans, as the Collector's file exporter writes a line."""
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [*spans]}]}]}


def test_genai_spans_in_otlp_json(tmp_path):
    """Many in a line; other spans are no requests, and what cannot be read is counted."""
    chat = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o",
            "gen_ai.usage.output_tokens": 10, "gen_ai.response.time_to_first_chunk": 0.5,
            "gen_ai.request.stream": True}  # fmt: skip
    failed = {"gen_ai.operation.name": "chat", "http.response.status_code": 529}
    whole = {"gen_ai.operation.name": "chat", "gen_ai.request.stream": False}
    odd_span = span(chat, startTimeUnixNano="then")
    lines = [
        batch(span(chat), span({"http.route": "/"}), odd_span),
        batch(span(failed, status={"code": 2}), span(whole)),
    ]

    (ok, odd, unary), warnings = read(tmp_path, as_jsonl(lines))

    assert says(ok, start=AT, e2e_s=1.5, ttft_s=0.5, output_tokens=10, model="gpt-4o",
                service="shop", outcome="success", stream=True)  # fmt: skip
    assert says(odd, outcome="error", http_status=529, stream=None)
    assert unary == {"start": AT, "e2e_s": 1.5, "stream": False, "service": "shop",
                     "operation": "chat", "outcome": "success", "trace_id": "ab" * 16,
                     "span_id": "cd" * 8, "weight": 1.0}  # fmt: skip
    assert any("line: not a row: 1 line ignored" in line for line in warnings)


def test_own_spans_in_otlp_json_come_back_whole(tmp_path):
    """Stages and all."""
    row = typical()
    (tmp_path / "spans.json").write_text(as_jsonl([batch(span(to_attributes(row)))]))

    (found,) = read_rows(tmp_path / "spans.json")

    assert (found.stages, found.model) == (row.stages, row.model)


def test_a_log_with_start_and_end(tmp_path):
    """The time between is how long a request took; of a log that says that, `end` is not read."""
    row = {"start": "2026/11/24 09:00:02", "end": "24/Nov/2026:09:00:03.500 +0000", "model": "m"}

    (read_row,), _ = read(tmp_path, as_jsonl([row]))

    assert says(read_row, start=AT, e2e_s=1.5, model="m")
    (said,), warnings = read(tmp_path, as_jsonl([row | {"e2e_s": 1.25}]))
    assert said["e2e_s"] == 1.25
    assert not any("is read as" in line for line in warnings)


def test_what_cannot_be_read_is_counted(tmp_path):
    """It does not pass as unknown; a request without a time has no place."""
    odd = {**NGINX, "status": "soon", "ttft": "fast"}
    lines = (
        as_jsonl([NGINX, odd, {**NGINX, "request_time": "-"}, {**NGINX, "request_time": "fast"}])
        + '{"msec": 1, "re\n'
    )

    rows, warnings = read(tmp_path, lines)

    assert len(rows) == 2
    for what in ("http_status: not a number", "ttft_s: not a number", "row: no usable start",
                 "line: not a row"):  # fmt: skip
        assert any(what in line for line in warnings), what


@pytest.mark.parametrize("odd", [
    {"upstream_addr": 5}, {"upstream_addr": ["a"]}, {"msec": {"a": 1}}, {"request_time": "inf"},
    {"request_time": [1]}, {"status": True}, {"msec": 1e300}, {"status": "[" * 5000},
])  # fmt: skip
def test_a_value_of_any_kind_costs_its_row_at_most(tmp_path, odd):
    """What a log contains is not under control."""
    rows, _ = read(tmp_path, as_jsonl([NGINX, NGINX | odd]))

    assert says(rows[0], start=AT, e2e_s=1.5)


@pytest.mark.parametrize("odd", [
    {"metadata": "text"}, {"metadata": [1]}, {"usageDetails": [1]}, {"startTime": 5},
    {"endTime": {}}, {"statusMessage": {"a": 1}, "level": "ERROR"}, {"level": 3},
])  # fmt: skip
def test_an_observation_of_any_kind_costs_itself_at_most(tmp_path, odd):
    """Langfuse keeps what applications send."""
    rows, _ = read(tmp_path, as_jsonl([LANGFUSE, LANGFUSE | odd]))

    assert says(rows[0], start=AT, e2e_s=1.5)


def test_the_commands_that_read_rows_read_it_too(tmp_path, capsys):
    """And say how."""
    log = tmp_path / "access.log"
    log.write_text(as_jsonl([NGINX] * 3))

    assert main(["waterfall", str(log)]) == 0

    rows, notes = read_usable_rows(log)
    assert [row.e2e_s for row in rows] == [1.5] * 3
    assert notes[0].startswith("Note: access.log is read as an nginx access log: msec - request_")
    assert "an nginx access log" in "".join(capsys.readouterr())


@pytest.mark.parametrize(("name", "status", "meant"), [
    ("log.jsonl", "success", "status → outcome"),
    ("log.jsonl", 200, "status → http_status"),
    ("log.csv", "failure", "status → outcome"),
    ("log.csv", "200", "status → http_status"),
])  # fmt: skip
def test_a_status_that_is_a_word_is_an_outcome(tmp_path, name, status, meant):
    """Of an unknown format, the names to change are proposed by what is there."""
    form = as_csv if name.endswith("csv") else as_jsonl
    with pytest.raises(DataError, match=meant):
        read(tmp_path, form([{"when": "2026-11-24T09:00:02Z", "status": status}]), name)


def test_that_stream_is_inferred_is_said(tmp_path):
    """A log that does not say it has times from which it follows."""
    row = {"start": AT, "e2e_s": 2.2, "ttft_s": 0.2, "output_tokens": 101}

    rows, warnings = read(tmp_path, as_jsonl([row, row | {"start": AT + 1, "stream": True}]))

    assert [row["stream"] for row in rows] == [True, True]
    said = "whether a response was streamed is inferred from its times: 1 of 2 rows do not say"
    assert said in warnings


def test_long_lines_of_otlp_are_read_across_blocks(tmp_path, monkeypatch):
    """The Collector writes a batch of thousands of spans in a line."""
    monkeypatch.setattr("llmtrace.exporters.row_files.forms._BLOCK_BYTES", 1 << 19)
    chat = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": "x" * 1000}
    spans = [span(chat) | {"spanId": f"{i:016x}"} for i in range(1500)]

    rows, _ = read(tmp_path, as_jsonl([batch(*spans)]))

    assert len(rows) == 1500
    assert np.unique([row["span_id"] for row in rows]).size == 1500


def test_decimal_commas_are_read_in_the_csv_of_a_format_too(tmp_path):
    """As in any other CSV, whether or not the column is a key of a row."""
    own = "start;end;ttft_s\n2026-11-24 09:00:02;2026-11-24 09:00:03.5;0,5\n"
    nginx = "msec;request_time;status\n1795510803,500;1,500;200\n"

    for name, text in (("own.csv", own), ("nginx.csv", nginx)):
        (row,), _ = read(tmp_path, text, name)
        assert (row["start"], row["e2e_s"]) == (AT, 1.5)
    assert read(tmp_path, own, "own.csv")[0][0]["ttft_s"] == 0.5


def test_a_format_is_recognised_by_its_first_records_together(tmp_path):
    """The first may lack a column, and a byte order mark may precede it.

    What no record has is not said to be read.
    """
    lacks = {name: value for name, value in LITELLM_FAILED.items() if name != "endTime"}
    text = b"\xef\xbb\xbf" + as_jsonl([lacks, {**LITELLM, "metadata": {}}]).encode()

    path = tmp_path / "spend.jsonl"
    path.write_bytes(text)
    found = read_columns(path)

    assert found.n == 2
    assert "endTime - startTime → e2e_s" in found.warnings[0]
    assert "metadata.error_information" in found.warnings[0]
    assert "litellm_overhead_time_ms" not in found.warnings[0]


def test_no_secret_and_no_control_character_leaves_a_log(tmp_path):
    """A URL may hold a password and a key, spans of others a prompt, and a name anything."""
    odd = {**LITELLM, "api_base": "https://me:pw@host:8443/v1?key=K", "\x1b[2Jevil": 1}
    (row,), said = read(tmp_path, as_jsonl([odd]))
    assert row["server"] == "host:8443"
    assert all(map(str.isprintable, said))
    span = {
        "traceId": "ab" * 16, "spanId": "cd" * 8, "startTimeUnixNano": str(AT),
        "endTimeUnixNano": str(AT + 10**9), "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
            {"key": "gen_ai.prompt", "value": {"stringValue": "a prompt"}},
            {"key": "unset", "value": {}},
            {"key": "gen_ai.usage.output_tokens", "value": {"doubleValue": 9.0}},
        ],
    }  # fmt: skip
    batches = [{"resource": None, "scopeSpans": [{"spans": [span]}]}, None,
               {"scopeSpans": [{"spans": [{**span, "spanId": "ef" * 8}]}]}]  # fmt: skip
    path = tmp_path / "otlp.jsonl"
    path.write_text(json.dumps({"resourceSpans": batches}))

    rows, notes = read_usable_rows(path)

    assert [one.output_tokens for one in rows] == [9, 9]
    assert "a prompt" not in repr([one.as_dict() for one in rows])
    assert any("1 line" in note for note in notes)


def test_what_langfuse_does_not_count_is_unknown(tmp_path):
    """Parquet of usages that differ has nulls, and pandas writes times as milliseconds."""
    odd = {**LANGFUSE, "startTime": AT // 10**6, "endTime": AT // 10**6 + 1500,
           "completionStartTime": None, "level": "ERROR", "statusMessage": {"code": 1},
           "usageDetails": {"input": 150, "input_cached_tokens": None, "output": 10}}  # fmt: skip
    (row,), _ = read(tmp_path, as_jsonl([odd]))

    assert (row["start"], row["e2e_s"], row["outcome"]) == (AT, 1.5, "error")
    assert (row["prompt_tokens"], row["output_tokens"]) == (150, 10)


def test_what_of_parquet_cannot_be_read_is_an_error_that_names_it(tmp_path):
    """Decimals are numbers; a date beyond all calendars is none."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    times = {name: pa.array([2**62], pa.timestamp("us")) for name in ("startTime", "endTime")}
    path = tmp_path / "far.parquet"
    parquet.write_table(pa.table({**times, "call_type": ["x"], "completion_tokens": [3]}), path)
    with pytest.raises(SourceError, match=r"far\.parquet: cannot read it"):
        read_columns(path)

    good = {**LITELLM, "metadata": "{}", "prompt_tokens": Decimal("650.00")}
    parquet.write_table(pa.table({name: [value] for name, value in good.items()}), path)
    assert read_usable_rows(path)[0][0].prompt_tokens == 650


def test_a_log_without_a_usable_row_is_named_as_what_it_is_read_as(tmp_path):
    """Its own columns are in the message, not those of a row."""
    path = tmp_path / "vllm.jsonl"
    path.write_text(as_jsonl([{**VLLM, "arrival_time": 12345.6}]))

    with pytest.raises(DataError, match="is read as a vLLM request log: arrival_time → start"):
        read_columns(path)
