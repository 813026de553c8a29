"""Rows reach Langfuse as its own SDK would have written them."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import pytest
from langfuse._client.attributes import (
    LangfuseOtelSpanAttributes,
    create_generation_attributes,
    create_span_attributes,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.trace import TracerProvider

from llmtrace import exporters
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.core.span import Span
from llmtrace.core.stages import PARTITION
from llmtrace.exporters.langfuse import span_attributes as names
from llmtrace.exporters.langfuse.settings import read_labels, read_project, to_otlp
from llmtrace.exporters.langfuse.sink import langfuse_sink
from llmtrace.semconv.convert import from_attributes, to_attributes
from tests.exporters.receivers import Answer, http_receiver
from tests.exporters.samples import MS, START, typical
from tests.exporters.test_wire import attributes_of

PUBLIC, SECRET = "pk-lf-1234", "sk-lf-5678-secret"
KEYS = {"LANGFUSE_PUBLIC_KEY": PUBLIC, "LANGFUSE_SECRET_KEY": SECRET}
OF_A_TRACE = {"user.id": "ada", "session.id": "s-1", "tag.tags": ("beta", "eu")}


@contextmanager
def sending(received, **environ):
    """A sink that sends to the receiver when flushed, and is closed at the end."""
    url = {"LANGFUSE_BASE_URL": received.url}
    sink = langfuse_sink(interval_s=60.0, environ={**KEYS, **url, **environ})
    try:
        yield sink
    finally:
        sink.close()


def sent(*rows, **environ):
    """Return the spans that rows become, in order."""
    with http_receiver() as received, sending(received, **environ) as sink:
        for row in rows:
            sink.write(row)
        assert sink.flush(10)
        return received.spans()


def metadata(span):
    """Return the metadata of an observation."""
    return json.loads(attributes_of(span)["langfuse.observation.metadata"])


# --- the request ---------------------------------------------------------------------------------


def test_the_request_is_what_langfuse_takes():
    """Path, authentication, version, encoding: as Langfuse documents them."""
    with http_receiver() as received, sending(received) as sink:
        sink.write(typical())
        assert sink.flush(10)
    (request,) = received.requests
    basic = base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode()

    assert request.path == "/api/public/otel/v1/traces"
    assert request.headers["authorization"] == f"Basic {basic}"
    assert request.headers["x-langfuse-ingestion-version"] == "4"
    assert request.headers["content-type"] == "application/x-protobuf"
    assert request.headers["content-encoding"] == "gzip"


def test_the_path_and_compression_can_be_set():
    """A gateway in front of Langfuse may want another path, and no compression."""
    with (
        http_receiver() as received,
        sending(
            received,
            LANGFUSE_OTEL_TRACES_EXPORT_PATH="/proxy/v1/traces",
            LANGFUSE_OTEL_COMPRESSION="none",
        ) as sink,
    ):
        sink.write(typical())
        assert sink.flush(10)

    assert received.requests[0].path == "/proxy/v1/traces"
    assert "content-encoding" not in received.requests[0].headers


def test_the_sdk_sends_to_the_same_place():
    """What Langfuse's own processor sends, given the same project, comes the same way."""
    from langfuse._client.span_processor import LangfuseSpanProcessor

    with http_receiver() as received, sending(received) as sink:
        sink.write(typical())
        assert sink.flush(10)
        theirs = TracerProvider(shutdown_on_exit=False)
        theirs.add_span_processor(
            LangfuseSpanProcessor(public_key=PUBLIC, secret_key=SECRET, base_url=received.url)
        )
        theirs.get_tracer("x").start_span("x", attributes={"gen_ai.request.model": "m"}).end()
        theirs.shutdown()
    ours, sdk = received.requests

    assert ours.path == sdk.path
    for name in (
        "authorization", "x-langfuse-ingestion-version", "content-type", "content-encoding"
    ):  # fmt: skip
        assert ours.headers[name] == sdk.headers[name]


# --- the generation ------------------------------------------------------------------------------


def test_every_attribute_of_a_generation():
    """A row is a generation with the very attributes that the SDK writes, and its own figures."""
    row = typical(attributes={**OF_A_TRACE, "shop.cart": "full"})
    span, *_ = sent(
        row, LANGFUSE_TRACING_ENVIRONMENT="staging", LANGFUSE_RELEASE="v7", GITHUB_SHA="no"
    )
    theirs = create_generation_attributes(
        completion_start_time=datetime(1970, 1, 1, tzinfo=UTC)
        + timedelta(microseconds=(START + 400 * MS) // 1000),
        model="llama-3.1-8b",
        usage_details={"input": 176, "input_cached_tokens": 1024, "output": 200},
        version="1.2.3",
    )
    metadata = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in to_attributes(row).items()
        if name not in OF_A_TRACE
    }
    ours = attributes_of(span)

    assert json.loads(ours.pop("langfuse.observation.metadata")) == metadata
    assert metadata["shop.cart"] == "full"
    assert ours == theirs | {
        "user.id": "ada",
        "session.id": "s-1",
        "langfuse.trace.tags": ("beta", "eu"),
        "langfuse.environment": "staging",
        "langfuse.release": "v7",
        "langfuse.internal.is_app_root": True,
    }
    assert span.name == "chat llama-3.1-8b"
    assert span.start_time_unix_nano == START
    assert span.end_time_unix_nano == START + row.e2e_ns


def test_names_are_those_of_the_installed_package():
    """Every attribute name that llmtrace writes is one that Langfuse's SDK has."""
    theirs = {
        value
        for name, value in vars(LangfuseOtelSpanAttributes).items()
        if not name.startswith("_")
    }
    ours = {
        value
        for name, value in vars(names).items()
        if name.isupper()
        and not name.startswith("_")
        and isinstance(value, str)
        and value.startswith("langfuse.")
    }

    assert version("langfuse").startswith("5.")
    assert len(ours) > 10
    assert ours - theirs == set()


def test_stages_are_observations_of_their_own():
    """Each stage is a span under the generation, laid end to end, found by user and session."""
    row = typical(attributes=OF_A_TRACE)
    generation, *stages = sent(row, LANGFUSE_TRACING_ENVIRONMENT="staging")
    at = START
    for span in stages:
        assert span.parent_span_id == generation.span_id
        assert span.start_time_unix_nano == at
        at = span.end_time_unix_nano
        source = metadata(span).get("llmtrace.stage.source")
        assert attributes_of(span) == create_span_attributes(version="1.2.3") | {
            "langfuse.observation.metadata": json.dumps(
                {"llmtrace.stage.name": span.name}
                | ({} if source is None else {"llmtrace.stage.source": source}),
                separators=(",", ":"),
            ),
            "user.id": "ada",
            "session.id": "s-1",
            "langfuse.trace.tags": ("beta", "eu"),
            "langfuse.environment": "staging",
        }

    assert at == START + row.e2e_ns
    assert {span.name for span in stages} <= set(PARTITION)
    assert len(stages) == 6
    assert metadata(stages[1]) == {
        "llmtrace.stage.name": "queue",
        "llmtrace.stage.source": "engine_inband",
    }


@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        ("error", "openai.APIError", "the request failed: openai.APIError"),
        ("timeout", None, "the request timed out"),
        ("truncated", None, "the stream ended without a finish reason"),
    ],
)
def test_failures_have_the_level_error(outcome, error, message):
    """What failed is an ERROR that says why, in Langfuse's words and in OpenTelemetry's."""
    span, *_ = sent(typical(outcome=outcome, error_type=error))
    attributes = attributes_of(span)

    assert attributes["langfuse.observation.level"] == "ERROR"
    assert attributes["langfuse.observation.status_message"] == message
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, message)


@pytest.mark.parametrize("outcome", ["success", "cancelled"])
def test_what_went_as_asked_has_no_level(outcome):
    """A request cancelled by its client is no error."""
    span, *_ = sent(typical(outcome=outcome))

    assert "langfuse.observation.level" not in attributes_of(span)


def test_what_is_unknown_is_left_out():
    """Without tokens, model or content there is no usage, model or start of completion."""
    row = typical()
    row = replace(
        row, model=None, prompt_tokens=None, cached_tokens=None, output_tokens=None, version=None,
        timeline=replace(row.timeline, ttft=None), parent_span_id=None,
    )  # fmt: skip
    span, *_ = sent(row)

    assert {*attributes_of(span)} == {
        "langfuse.observation.type",
        "langfuse.observation.metadata",
        "langfuse.internal.is_app_root",
    }


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("chat", "generation"),
        ("text_completion", "generation"),
        ("embeddings", "embedding"),
        ("invoke_agent", "agent"),
    ],
)
def test_kinds_of_observations(operation, kind):
    """A turn is an agent; only what asked a model itself counts tokens."""
    span, *_ = sent(typical(operation=operation))
    attributes = attributes_of(span)

    assert attributes["langfuse.observation.type"] == kind
    assert ("langfuse.observation.usage_details" in attributes) == (kind != "agent")


def test_a_request_inside_another_is_no_root():
    """What is around it is the entry that Langfuse lists."""
    outer, *_ = sent(typical(nested=False))
    inner, *_ = sent(typical(nested=True))

    assert attributes_of(outer)["langfuse.internal.is_app_root"] is True
    assert "langfuse.internal.is_app_root" not in attributes_of(inner)


def test_langfuses_own_words_pass():
    """Attributes the user gives in Langfuse's own names go as they are, and win."""
    span, stage, *_ = sent(
        typical(
            attributes={
                "langfuse.trace.name": "checkout",
                "langfuse.observation.prompt.name": "greet",
                "langfuse.environment": "canary",
            }
        ),
        LANGFUSE_TRACING_ENVIRONMENT="staging",
    )
    on_row, on_stage = attributes_of(span), attributes_of(stage)

    assert on_row["langfuse.trace.name"] == on_stage["langfuse.trace.name"] == "checkout"
    assert on_row["langfuse.environment"] == on_stage["langfuse.environment"] == "canary"
    assert on_row["langfuse.observation.prompt.name"] == "greet"
    assert "langfuse.observation.prompt.name" not in on_stage
    assert not any(name.startswith("langfuse.") for name in metadata(span))


def test_a_row_comes_back_from_its_metadata():
    """The metadata holds all of the row that Langfuse has no field for."""
    row = typical(attributes={"shop.cart": "full"})
    span, *_ = sent(row)
    back = from_attributes(
        metadata(span),
        start=span.start_time_unix_nano,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        resource={"service.name": "shop"},
    )

    assert row == back


def test_a_tools_run_is_a_tool():
    """A span that is no row goes along, as what OpenTelemetry says it is."""
    tool = Span(
        name="execute_tool weather",
        trace_id=typical().trace_id,
        span_id="00000000000000aa",
        parent_span_id=typical().span_id,
        service="shop",
        start=START,
        duration_ns=5 * MS,
        attributes={"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather"},
        error="builtins.ValueError",
    )
    span, hop = sent(tool, replace(tool, name="proxy", attributes={}, error=None))
    attributes = attributes_of(span)

    assert attributes["langfuse.observation.type"] == "tool"
    assert attributes["langfuse.observation.level"] == "ERROR"
    assert attributes["langfuse.observation.status_message"] == "builtins.ValueError"
    assert metadata(span) == dict(tool.attributes)
    assert attributes_of(hop)["langfuse.observation.type"] == "span"


def test_content_is_input_and_output():
    """What was asked and answered, where it is recorded at all, is where Langfuse shows it."""
    tool = Span(
        name="execute_tool weather",
        trace_id=typical().trace_id,
        span_id="00000000000000aa",
        service="shop",
        start=START,
        duration_ns=5 * MS,
        attributes={
            "gen_ai.tool.call.arguments": '{"city": "Berlin"}',
            "gen_ai.tool.call.result": "rain",
        },
    )
    attributes = attributes_of(sent(tool)[0])

    assert attributes["langfuse.observation.input"] == '{"city": "Berlin"}'
    assert attributes["langfuse.observation.output"] == "rain"
    assert attributes["langfuse.observation.metadata"] == "{}"


@pytest.mark.parametrize("messages", ['[{"role": "user", "parts": []}]', "[]", None])
def test_the_system_prompt_comes_first(messages):
    """Langfuse has one input: what the system said is the first message of it."""
    said = {"gen_ai.system_instructions": '[{"type": "text", "content": "Be kind."}]'}
    if messages is not None:
        said["gen_ai.input.messages"] = messages
    span, *_ = sent(typical(content={**said, "gen_ai.output.messages": "[]"}))
    attributes = attributes_of(span)
    system, *rest = json.loads(attributes["langfuse.observation.input"])

    assert system == {"role": "system", "parts": [{"type": "text", "content": "Be kind."}]}
    assert rest == json.loads(messages or "[]")
    assert attributes["langfuse.observation.output"] == "[]"
    assert not {*said} & {*metadata(span)}


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"LANGFUSE_PUBLIC_KEY": ""}, "LANGFUSE_PUBLIC_KEY is not set"),
        ({"LANGFUSE_SECRET_KEY": " "}, "LANGFUSE_SECRET_KEY is not set"),
        ({"LANGFUSE_SECRET_KEY": "sk-lf-schlüssel"}, "LANGFUSE_SECRET_KEY has characters"),
        ({"LANGFUSE_SECRET_KEY": "pk-lf-1"}, "which is which"),
        ({"LANGFUSE_PUBLIC_KEY": SECRET}, "which is which"),
        ({"LANGFUSE_BASE_URL": "langfuse:3000"}, "LANGFUSE_BASE_URL is not a URL"),
        ({"LANGFUSE_HOST": "http://me:hush@langfuse"}, "LANGFUSE_HOST is not a URL"),
        ({"LANGFUSE_BASE_URL": "http://[::1"}, "LANGFUSE_BASE_URL is not a URL"),
        ({"LANGFUSE_TIMEOUT": "soon"}, "LANGFUSE_TIMEOUT='soon'"),
        ({"LANGFUSE_OTEL_COMPRESSION": "zstd"}, "LANGFUSE_OTEL_COMPRESSION='zstd'"),
        ({"LANGFUSE_TRACING_ENVIRONMENT": "Prod"}, "LANGFUSE_TRACING_ENVIRONMENT='Prod'"),
        ({"LANGFUSE_TRACING_ENVIRONMENT": "langfuse-x"}, "LANGFUSE_TRACING_ENVIRONMENT="),
    ],
)
def test_what_is_wrong_is_named(wrong, named):
    """Each variable that cannot be is named at set-up, and no key or password is shown."""
    with pytest.raises(ConfigError) as raised:
        langfuse_sink(environ={**KEYS, **wrong})

    assert named in str(raised.value)
    assert "secret" not in str(raised.value)
    assert "hush" not in str(raised.value)


def test_the_secret_is_in_no_repr():
    """Neither the project nor where it is shows the secret key, plain or encoded."""
    project = read_project(KEYS)
    basic = base64.b64encode(f"{PUBLIC}:{SECRET}".encode()).decode()
    shown = repr(project) + repr(to_otlp(project, {}))

    assert SECRET not in shown
    assert basic not in shown


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, "https://cloud.langfuse.com"),
        ({"LANGFUSE_HOST": "https://us.cloud.langfuse.com/"}, "https://us.cloud.langfuse.com"),
        (
            {"LANGFUSE_HOST": "http://old", "LANGFUSE_BASE_URL": "http://new/langfuse"},
            "http://new/langfuse",
        ),
    ],
)
def test_where_langfuse_is(environ, url):
    """The base URL's own variable wins over its older name; without either it is the cloud."""
    assert read_project({**KEYS, **environ}).url == url


def test_releases():
    """Langfuse's own variable says the release, else one of those the build services set."""
    assert read_labels({"GITHUB_SHA": "abc"}) == {"langfuse.release": "abc"}
    assert read_labels({"GITHUB_SHA": "abc", "LANGFUSE_RELEASE": "v1"}) == {
        "langfuse.release": "v1"
    }


def test_it_goes_by_its_name(monkeypatch):
    """`exporters=["langfuse"]` makes it from the process's variables, if they leave it on."""
    settings = exporters.ExportSettings(service="shop")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    (sink,) = exporters.build_all(["langfuse"], settings)
    sink.close()

    assert exporters.build_all(["langfuse"], settings, {"LANGFUSE_TRACING_ENABLED": "False"}) == []
    monkeypatch.delenv("LANGFUSE_SECRET_KEY")
    with pytest.raises(ConfigError, match="LANGFUSE_SECRET_KEY is not set"):
        exporters.build_all(["langfuse"], settings)


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 404, 413])
def test_a_refusal_is_logged_without_the_keys(caplog, status):
    """Rows that Langfuse refuses for good are dropped and counted; the log shows no key."""
    with http_receiver(lambda _: Answer(status)) as received, sending(received) as sink:
        sink.write(typical())
        assert not sink.flush(10)
        assert len(received.requests) == 1

    assert internal_errors() == {"export.langfuse": 1, "export.langfuse.dropped": 1}
    assert f"HTTP {status}" in caplog.text
    assert SECRET not in caplog.text
    assert "Basic" not in caplog.text


def test_a_busy_langfuse_is_asked_again():
    """A 429 is retried after the wait it asks for."""

    def answer(number):
        return Answer(429, {"retry-after": "0"}) if number == 0 else Answer(207)

    with http_receiver(answer) as received, sending(received) as sink:
        sink.write(typical())
        assert sink.flush(10)

    assert len(received.requests) == 2
    assert internal_errors() == {}


def test_a_providers_own_way_to_langfuse_is_enough():
    """The sink stands back for a provider that sends to the same project, and for no other."""
    from langfuse._client.span_processor import LangfuseSpanProcessor

    def provider(key):
        made = TracerProvider(shutdown_on_exit=False)
        if key is not None:
            made.add_span_processor(
                LangfuseSpanProcessor(
                    public_key=key, secret_key="s", base_url="http://127.0.0.1:9"
                )
            )
        return made

    sink = langfuse_sink(environ=KEYS)
    providers = [provider(key) for key in (PUBLIC, "pk-lf-other", None)]
    try:
        assert [sink.left_to(one) for one in providers] == [True, False, False]
    finally:
        sink.close()
        for one in providers:
            one.shutdown()
