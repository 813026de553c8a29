from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from llmtrace.core.errors import DataError
from llmtrace.core.row import Row
from llmtrace.core.row_fields import PLAIN
from llmtrace.core.stages import PARTITION, Timeline
from llmtrace.semconv.attributes import LATEST, RELEASED, SPECIAL, client_metrics
from llmtrace.semconv.convert import from_attributes, is_row, reserved, split_server, to_attributes
from llmtrace.semconv.docs import page
from tests.strategies import rows

DOCS = Path(__file__).parents[2] / "docs" / "reference"


def back(row, attributes, **given):
    """Rebuild a row from attributes, and its ids."""
    return from_attributes(
        attributes,
        start=row.start,
        trace_id=row.trace_id,
        span_id=row.span_id,
        parent_span_id=row.parent_span_id,
        resource={"service.name": row.service},
        **given,
    )


def bare(**given):
    """Make a row that knows next to nothing."""
    return Row(
        **{
            "request_id": "r",
            "trace_id": "1" * 32,
            "span_id": "2" * 16,
            "start": 0,
            "service": "shop",
            "timeline": Timeline(e2e=2_000_000_000),
            **given,
        }
    )


@given(rows)
def test_round_trip(row):
    """Whatever a row holds comes back from its attributes, to the nanosecond."""
    assert row == back(row, to_attributes(row))


@given(rows)
def test_nothing_unknown_is_written(row):
    """An attribute is written only for what is known."""
    attributes = to_attributes(row)

    assert None not in attributes.values()
    for stage, ns in row.stages:
        assert (f"llmtrace.stage.{stage}" in attributes) == (ns is not None)


@given(rows)
def test_stages_on_the_wire_add_up(row):
    """The stages as written add up to the whole wait once they are rounded to nanoseconds."""
    attributes = to_attributes(row)
    parts = (attributes.get(f"llmtrace.stage.{name}", 0.0) for name in PARTITION)

    assert row.e2e_ns == sum(round(part * 1e9) for part in parts)


def test_every_field_is_written():
    """No field of a row is forgotten: each is in the table, or said to be elsewhere."""
    elsewhere = {
        "trace_id", "span_id", "parent_span_id", "start", "service",  # the span and its resource
        "timeline", "attributes", "response_headers", "browser",  # have tables of their own
        "parts",  # spans of their own
        "content",  # on the span if asked for, by names of its own
        "gap_counts",  # kept in memory only
        "gap_sum_ns",
    }  # fmt: skip
    in_table = {line.field for line in (*PLAIN, *SPECIAL)}
    named = {field.name for field in fields(Row) if not field.name.endswith("_ns")}

    assert named - elsewhere == named & in_table


def test_genai_names_are_opentelemetrys():
    """Every `gen_ai.*` name is one that OpenTelemetry's package of conventions has."""
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    used = {line.name for line in (*PLAIN, *SPECIAL) if line.name.startswith("gen_ai.")}

    assert used
    # Of the GenAI conventions' own repository, which no package has yet.
    newer = {"gen_ai.usage.cache_write.input_tokens"}
    assert used <= known | newer


def test_released_metric_names_are_opentelemetrys():
    """The released metric names are those of OpenTelemetry's package of conventions."""
    expected = (
        gen_ai_metrics.GEN_AI_CLIENT_OPERATION_DURATION,
        gen_ai_metrics.GEN_AI_CLIENT_OPERATION_TIME_TO_FIRST_CHUNK,
        gen_ai_metrics.GEN_AI_CLIENT_OPERATION_TIME_PER_OUTPUT_CHUNK,
        gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE,
    )

    assert expected == (
        RELEASED.duration,
        RELEASED.time_to_first_chunk,
        RELEASED.time_per_output_chunk,
        RELEASED.token_usage,
    )


@pytest.mark.parametrize(
    ("opt_in", "expected"),
    [
        ("", RELEASED),
        ("http", RELEASED),
        ("gen_ai_latest_experimental", LATEST),
        ("http, gen_ai_latest_experimental", LATEST),
    ],
)
def test_opting_in_to_the_latest_metric_names(opt_in, expected):
    """The latest metric names are used only on request."""
    assert expected is client_metrics({"OTEL_SEMCONV_STABILITY_OPT_IN": opt_in})


def test_own_names_win_over_user_attributes():
    """A user attribute cannot pass itself off as one of the row's own fields."""
    fakes = {"gen_ai.request.model": "fake", "llmtrace.e2e": 9, "a": 1}
    row = bare(model="real", attributes=fakes)
    attributes = to_attributes(row)

    assert (
        attributes["gen_ai.request.model"],
        attributes["llmtrace.e2e"],
        attributes["a"],
    ) == ("real", 2.0, 1)


def test_foreign_attributes_that_are_no_plain_values_are_left_out():
    """A list that other code put on the span does not become a row attribute."""
    row = bare()

    assert back(row, {**to_attributes(row), "a": 1, "b": [1, 2]}).attributes == {"a": 1}


def test_the_resource_fills_what_the_span_does_not_say():
    """Version, region and service come from the resource unless the span has its own."""
    resource = {"service.name": "r", "service.version": "1", "cloud.region": "eu"}
    row = bare()
    ids = {"start": 0, "trace_id": row.trace_id, "span_id": row.span_id, "resource": resource}
    plain = from_attributes(to_attributes(row), **ids)
    own = from_attributes(
        {**to_attributes(replace(row, version="2", region="us")), "service.name": "s"}, **ids
    )

    assert (plain.service, plain.version, plain.region) == ("r", "1", "eu")
    assert (own.service, own.version, own.region) == ("s", "2", "us")


@pytest.mark.parametrize(
    "broken",
    [
        {"llmtrace.e2e": None},
        {"llmtrace.e2e": "2"},
        {"llmtrace.e2e": True},
        {"llmtrace.e2e": float("nan")},
        {"llmtrace.e2e": 1e300},
        {"llmtrace.tool_wall": 1e300},
        {"llmtrace.outcome": "fine"},
        {"llmtrace.reported.queue": 1.0, "llmtrace.reported.queue.source": "guess"},
        {"llmtrace.network.rtt.source": "guess"},
        {"gen_ai.request.model": 3},
        {"gen_ai.usage.input_tokens": "3"},
        {"gen_ai.usage.input_tokens": True},
        {"gen_ai.request.stream": "false"},
    ],
)
def test_what_is_no_row_is_refused(broken):
    """A value of the wrong kind is an error that names the attribute, not a wrong row."""
    name = next(reversed(broken))
    row = bare()
    with pytest.raises(DataError, match=re.escape(name)):
        back(row, {**to_attributes(row), **broken})


def test_only_a_rows_own_span_is_a_row():
    """A stage's span, and any other span, is distinguished from a row's."""
    assert is_row(to_attributes(bare()))
    assert not is_row({"llmtrace.stage.name": "queue"})
    assert not is_row({"gen_ai.operation.name": "chat"})


@pytest.mark.parametrize("name", ["llmtrace.anything", "gen_ai.request.model", "service.name"])
def test_reserved_names(name):
    """Names of the table and the whole of `llmtrace.*` are llmtrace's own."""
    assert reserved(name)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("engine:8000", ("engine", 8000)),
        ("[::1]:8000", ("::1", 8000)),
        ("::1", ("::1", None)),
        ("[::1]", ("[::1]", None)),
        ("engine:" + "9" * 5000, ("engine:" + "9" * 5000, None)),
        ("", ("", None)),
    ],
)
def test_servers(server, expected):
    """A port is split off only where there certainly is one."""
    assert expected == split_server(server)


def test_the_page_is_up_to_date():
    """docs/reference/semconv.md is what `llmtrace semconv` prints."""
    assert page() == (DOCS / "semconv.md").read_text(encoding="utf-8")
