"""Does the stat logger export what vLLM reports, whatever that is, and never disturb it?

Against stats of the shapes that vLLM had from version to version. The real ones:
tests/real/test_vllm_plugin.py.
"""

from __future__ import annotations

import enum
import logging
import sys
import time
import timeit
import tomllib
from abc import ABC, abstractmethod
from dataclasses import dataclass, make_dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core import failopen
from llmtrace.core.stages import Reported
from llmtrace.engines import vllm_plugin
from llmtrace.engines.spans import read_plugin_span
from llmtrace.engines.vllm_plugin import stat_logger
from llmtrace.engines.vllm_plugin.finished import Engine, finished_request
from llmtrace.engines.vllm_plugin.stat_logger import Reporter, not_for_spans, stat_logger_class
from llmtrace.exporters import queued_sink
from llmtrace.exporters.otlp.encode import encode_span
from llmtrace.exporters.otlp.settings import read_settings
from tests.exporters.receivers import http_receiver, silent_server
from tests.exporters.test_wire import attributes_of
from tests.support.internal_errors import reset_internal_errors

ROOT = Path(__file__).parents[2]
ENGINE = Engine(service="vllm", model="tiny", replica="pod-7", version="0.32.0")
CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(served_model_name=["tiny", "alias"]),
    parallel_config=SimpleNamespace(data_parallel_size=1),
)


class FinishReason(enum.IntEnum):
    """As vLLM's: a number whose text is the reason."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    def __str__(self):
        return self.name.lower()


FIELDS = {
    "finish_reason": FinishReason.STOP,
    "e2e_latency": 1.5,
    "num_prompt_tokens": 512,
    "num_generation_tokens": 64,
    "max_tokens_param": 64,
    "queued_time": 0.04,
    "prefill_time": 0.2,
    "inference_time": 1.4,
    "decode_time": 1.2,
    "mean_time_per_output_token": 0.019,
    "is_corrupted": False,
}
ADDED = {
    "0.14": {"num_cached_tokens": 256},
    "0.20": {"request_id": "chatcmpl-lt-01"},
    "0.30": {"num_preemptions": 1},
}


def shape(version, **changes):
    """Make one of vLLM's `FinishedRequestStats` as it was in a version."""
    fields = dict(FIELDS)
    for since, added in ADDED.items():
        if tuple(map(int, since.split("."))) <= tuple(map(int, version.split("."))):
            fields |= added
    made = make_dataclass("FinishedRequestStats", [(name, object) for name in fields])
    return made(**{**fields, **{k: v for k, v in changes.items() if k in fields}})


def iteration(*finished):
    """Make what vLLM reports after a step of its engine."""
    return SimpleNamespace(finished_requests=list(finished), iteration_timestamp=1_800_000_000.0)


def exported(stats, engine=ENGINE, **more):
    """Return the attributes of the span of a finished request."""
    return finished_request(stats, engine, finished_at=1_800_000_000.0, **more).attributes


class Sink:
    """Keeps what it is given."""

    def __init__(self):
        self.spans = []

    def write(self, span):
        """Keep it."""
        self.spans.append(span)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Each test has an environment and counts of its own."""
    reset_internal_errors()
    for name in ("LLMTRACE_VLLM_PLUGIN", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    yield
    reset_internal_errors()


@pytest.fixture
def reporter(monkeypatch):
    """Make a stat logger that is on and keeps its spans."""
    monkeypatch.setattr(stat_logger, "_sink", lambda _environ: Sink())
    monkeypatch.setenv("LLMTRACE_VLLM_PLUGIN", "1")
    return Reporter(vllm_config=CONFIG, engine_indexes=[0])


# --- what it exports ----------------------------------------------------------------------------


def test_a_finished_request_tells_all_the_engine_knows():
    """Durations as vLLM counted them, tokens, preemptions, and how to find the request."""
    span = finished_request(shape("0.33"), ENGINE, finished_at=1_800_000_000.0, engine_index=0)

    assert (span.name, span.kind, span.service) == ("llmtrace.engine_request", "server", "vllm")
    assert (span.start, span.duration_ns) == (1_799_999_998_500_000_000, 1_500_000_000)
    assert span.error is None
    assert span.attributes == {
        "llmtrace.engine.source": "engine_plugin",
        "llmtrace.engine.index": 0,
        "llmtrace.engine.version": "0.32.0",
        "llmtrace.request_id": "lt-01",
        "llmtrace.replica": "pod-7",
        "llmtrace.preemptions": 1,
        "gen_ai.request.id": "chatcmpl-lt-01",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.id": "chatcmpl-lt-01",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.provider.name": "vllm",
        "gen_ai.latency.time_in_queue": 0.04,
        "gen_ai.latency.time_in_model_prefill": 0.2,
        "gen_ai.latency.time_in_model_decode": 1.2,
        "gen_ai.latency.time_in_model_inference": 1.4,
        "gen_ai.latency.e2e": 1.5,
        "gen_ai.usage.input_tokens": 512,
        "gen_ai.usage.cache_read.input_tokens": 256,
        "gen_ai.usage.output_tokens": 64,
    }


def test_the_page_names_every_attribute():
    """docs/operate/vllm.md lists the fields of a record."""
    page = (ROOT / "docs" / "operate" / "vllm.md").read_text(encoding="utf-8")

    assert [name for name in exported(shape("0.33")) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("version", ["0.20", "0.25", "0.29"])
def test_an_older_vllm_tells_less(version):
    """Before 0.30 a request's preemptions are not counted: unknown, not none."""
    attributes = exported(shape(version))

    assert "llmtrace.preemptions" not in attributes
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 256
    _, figures = read_plugin_span(attributes)
    assert figures.queue == Reported(40_000_000, "engine_plugin")
    assert figures.preemptions is None


@pytest.mark.parametrize("version", ["0.11", "0.14", "0.19"])
def test_before_0_20_the_request_is_not_identified(version, reporter, caplog):
    """Without an id there is nothing to join: no record, said once, counted."""
    for _ in range(3):
        reporter.record(None, iteration(shape(version)))

    assert reporter._sink.spans == []
    assert failopen.internal_errors() == {"vllm_plugin.request_id": 3}
    assert caplog.text.count("0.20 and later do") == 1
    reporter.log()
    assert "lost" not in caplog.text


def test_a_request_that_made_nothing_was_not_measured():
    """VLLM counts from stamps; where one is missing the figure is 0 or negative, and unknown."""
    attributes = exported(
        shape("0.32", queued_time=-81_234.5, prefill_time=0.0, decode_time=0.0,
              inference_time=0.0, num_generation_tokens=0, finish_reason=FinishReason.ABORT)
    )  # fmt: skip

    assert not [name for name in attributes if name.startswith("gen_ai.latency.time_in")]
    assert attributes["gen_ai.usage.output_tokens"] == 0
    assert attributes["gen_ai.response.finish_reasons"] == ("abort",)


def test_one_token_is_decoded_in_no_time():
    """With a single token there is nothing to decode, and that is known."""
    attributes = exported(shape("0.32", num_generation_tokens=1, decode_time=0.0))

    assert attributes["gen_ai.latency.time_in_model_decode"] == 0.0


def test_a_failure_of_the_engine_is_an_error():
    """A request that the engine could not finish shows as failed."""
    span = finished_request(
        shape("0.32", finish_reason=FinishReason.ERROR), ENGINE, finished_at=1.0
    )

    assert span.error == "the engine failed"


def test_data_parallel_engines_are_distinguished():
    """Engines behind one front end have a number each."""
    engine = Engine(service="vllm", replica="pod-7", parallel=True)

    assert exported(shape("0.32"), engine, engine_index=1)["llmtrace.replica"] == "pod-7/1"


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@given(st.dictionaries(st.sampled_from([*FIELDS, "request_id", "num_cached_tokens"]), anything))
def test_whatever_vllm_tells_can_be_sent(fields):
    """Its classes are not stable: nothing in them can raise, or be written as what it is not."""
    span = finished_request(
        SimpleNamespace(**fields), ENGINE, finished_at=1.8e9, engine_index=fields.get("n")
    )

    if span is not None:
        assert encode_span(span)
        assert read_plugin_span(span.attributes) is not None


@given(anything, anything)
def test_whatever_record_is_given_it_does_not_raise(first, second):
    """An exception in here would fail every request in vLLM."""
    reporter = Reporter()
    reporter._sink = Sink()

    reporter.record(first, second, None, first)
    reporter.record(scheduler_stats=first, iteration_stats=iteration(first, second), n=1)
    reset_internal_errors()


# --- how vLLM calls it --------------------------------------------------------------------------


def test_one_odd_request_does_not_cost_the_others(reporter):
    """Each is taken by itself."""

    class Odd:
        request_id = "chatcmpl-lt-00"

        @property
        def queued_time(self):
            raise RuntimeError

    reporter.record(None, iteration(Odd(), shape("0.32")), engine_idx=0)

    assert [span.attributes["llmtrace.request_id"] for span in reporter._sink.spans] == ["lt-01"]
    assert failopen.internal_errors() == {"vllm_plugin": 1}


@pytest.mark.parametrize("served", ["tiny", ["tiny", "alias"], ("tiny",)])
def test_the_model_is_the_first_name_it_is_served_by(served, reporter, monkeypatch):
    """As in vLLM's own metrics."""
    monkeypatch.setattr(CONFIG.model_config, "served_model_name", served)
    again = Reporter(CONFIG, 0)

    assert again._engine.model == "tiny"


def test_every_call_of_vllms_is_taken(reporter):
    """By any version: positional, by name, and with what is new."""
    reporter.log_engine_initialized()
    reporter.record_sleep_state(1, 2)
    reporter.record_sleep_state(sleep=1, level=0)
    reporter.record_admission_rejection("max_num_queued_reqs")
    reporter.record(None, None)
    reporter.record(scheduler_stats=None, iteration_stats=None, mm_cache_stats=None, engine_idx=0)
    reporter.record(None, iteration(shape("0.32")), None, 0, object(), later=True)
    reporter.log()

    assert len(reporter._sink.spans) == 1
    assert failopen.internal_errors() == {}


def test_what_was_lost_is_said_where_vllm_says_its_figures(reporter, caplog):
    """Once for each loss, with the counts so far."""
    failopen.count_internal("export.otlp.dropped", 7)
    reporter.log()
    reporter.log()

    assert caplog.text.count("lost 7 records of finished requests") == 1
    assert "'export.otlp.dropped': 7" in caplog.text


# --- the class vLLM loads -----------------------------------------------------------------------


@pytest.fixture
def vllm(monkeypatch):
    """Stand in for a vLLM to subclass from; return its module of stat loggers."""

    class StatLoggerBase(ABC):
        @abstractmethod
        def __init__(self, vllm_config, engine_index=0): ...

        @abstractmethod
        def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...

        @abstractmethod
        def what_a_later_vllm_asks_for(self): ...

    loggers = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = StatLoggerBase
    top = ModuleType("vllm")
    top.__version__ = "0.99.0"
    metrics = ModuleType("vllm.v1.metrics")
    metrics.loggers = loggers
    for module in (top, ModuleType("vllm.v1"), metrics, loggers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    stat_logger_class.cache_clear()
    yield loggers
    stat_logger_class.cache_clear()


def entry_point():
    """Load the plugin as vLLM does, by what pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, value),) = project["entry-points"]["vllm.stat_logger_plugins"].items()
    assert name == "llmtrace"
    module, _, attribute = value.partition(":")
    return reduce(getattr, attribute.split("."), import_module(module))


def test_the_entry_point_is_a_stat_logger(vllm):
    """One that starts even where a later vLLM requires more than there is."""
    made = entry_point()
    logger = made(CONFIG, 0)

    assert made is entry_point()
    assert issubclass(made, vllm.StatLoggerBase)
    assert logger.what_a_later_vllm_asks_for() is None
    assert logger.record(None, iteration(shape("0.32"))) is None


def test_the_one_for_all_engines_is_preferred(vllm):
    """Where vLLM has such a base, one logger serves all engines of a front end."""

    class AggregateStatLoggerBase(vllm.StatLoggerBase):
        pass

    vllm.AggregateStatLoggerBase = AggregateStatLoggerBase

    assert issubclass(entry_point(), AggregateStatLoggerBase)


def test_a_vllm_without_stat_loggers_is_an_import_error(vllm, monkeypatch):
    """VLLM logs it and goes on without the plugin."""
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics", None)

    with pytest.raises(ImportError):
        entry_point()


def test_the_package_has_nothing_else():
    """A name that is not there is an attribute error, as in any module."""
    with pytest.raises(AttributeError, match="StatLoggers"):
        _ = vllm_plugin.StatLoggers


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", [None, "", "0", "off", "FALSE"])
def test_installed_and_not_asked_for_it_does_nothing(switch, monkeypatch, caplog):
    """It says so once, at INFO, and makes neither a queue nor a thread."""
    caplog.set_level(logging.INFO)
    if switch is not None:
        monkeypatch.setenv("LLMTRACE_VLLM_PLUGIN", switch)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    reporter = Reporter(CONFIG, [0])
    reporter.record(None, iteration(shape("0.32")))
    reporter.record(None, iteration(shape("0.11")))

    assert reporter._sink is None
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "llmtrace is installed and off: LLMTRACE_VLLM_PLUGIN=1 turns it on")
    ]
    assert failopen.internal_errors() == {}


@pytest.mark.parametrize("name", ["LLMTRACE_DISABLED", "OTEL_SDK_DISABLED"])
def test_what_switches_everything_off_switches_it_off(name, monkeypatch, caplog):
    """The usual variables apply here, too."""
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("LLMTRACE_VLLM_PLUGIN", "1")
    monkeypatch.setenv(name, "true")

    assert Reporter(CONFIG, [0])._sink is None
    assert name in caplog.text


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"LLMTRACE_VLLM_PLUGIN": "maybe"}, "LLMTRACE_VLLM_PLUGIN='maybe': set it to 1 or 0"),
        (
            {"LLMTRACE_VLLM_PLUGIN": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"},
            "needs http:// or https://",
        ),
        (
            {"LLMTRACE_VLLM_PLUGIN": "1", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
            "OTEL_EXPORTER_OTLP_TIMEOUT='soon'",
        ),
    ],
)
def test_a_wrong_setting_is_said_and_vllm_starts(variables, said, monkeypatch, caplog):
    """An error in the log that names the variable; no exception, no records."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    reporter = Reporter(CONFIG, [0])
    reporter.record(None, iteration(shape("0.32")))

    (entry,) = caplog.records
    assert entry.levelname == "ERROR"
    assert said in entry.getMessage()
    assert "vLLM is not affected" in entry.getMessage()


def test_a_failure_at_the_start_does_not_stop_vllm(monkeypatch):
    """Whatever it is, it is counted."""
    monkeypatch.setenv("LLMTRACE_VLLM_PLUGIN", "1")
    monkeypatch.setattr(stat_logger.socket, "gethostname", lambda: 1 / 0)
    reporter = Reporter(CONFIG, [0])
    reporter.record(None, iteration(shape("0.32")))

    assert failopen.internal_errors() == {"vllm_plugin": 1}


# --- where it goes ------------------------------------------------------------------------------


def turned_on(monkeypatch, url, **variables):
    """Make a stat logger that sends to a receiver."""
    monkeypatch.setenv("LLMTRACE_VLLM_PLUGIN", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Reporter(CONFIG, [0])


def test_records_arrive_by_otlp(monkeypatch, caplog):
    """By the standard variables, under the service they name, from a queue of the process."""
    caplog.set_level(logging.INFO)
    with http_receiver() as receiver:
        reporter = turned_on(monkeypatch, receiver.url, OTEL_SERVICE_NAME="engines")
        again = Reporter(CONFIG, [0])  # as vLLM does when it scales its engines
        reporter.record(None, iteration(shape("0.32"), shape("0.32", request_id="cmpl-lt-02-0")))
        assert reporter._sink is again._sink
        assert reporter._sink.flush(10)
        reporter._sink.close()

    spans = receiver.spans()
    assert [attributes_of(span)["gen_ai.response.id"] for span in spans] == [
        "chatcmpl-lt-01", "cmpl-lt-02",
    ]  # fmt: skip
    assert spans[0].trace_id != spans[1].trace_id
    (request,) = receiver.requests
    service = attributes_of(request.message.resource_spans[0].resource)["service.name"]
    assert service == "engines"
    assert f"finished requests to {receiver.url.removeprefix('http://')} by http" in caplog.text


SPANS_TO = "grpc://spans:14317"


@pytest.mark.parametrize(
    ("environ", "spans_to", "to"),
    [
        ({"ENDPOINT": "http://ours"}, SPANS_TO, ("http/protobuf", "http://ours/v1/traces")),
        ({"ENDPOINT": "http://ours:4317"}, SPANS_TO, ("grpc", "ours:4317")),
        ({}, SPANS_TO, ("grpc", "spans:14317")),
        ({}, "spans:14317", ("grpc", "spans:14317")),
        ({}, "http://spans:14317", ("grpc", "spans:14317")),
        ({}, "https://spans", ("grpc", "spans")),
        ({"TRACES_PROTOCOL": "http/protobuf"}, "http://spans/t", ("http/protobuf", "http://spans/t")),
        ({"TRACES_ENDPOINT": "http://ours/t"}, None, ("http/protobuf", "http://ours/t")),
    ],
)  # fmt: skip
def test_where_vllm_sends_its_spans_is_not_taken_for_our_own_setting(environ, spans_to, to):
    """It writes that over the variable for traces; without a setting of ours, it is followed."""
    as_left = {f"OTEL_EXPORTER_OTLP_{name}": text for name, text in environ.items()}
    if spans_to is not None:
        as_left["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = spans_to
    settings = read_settings("traces", environ=not_for_spans(as_left, spans_to))

    assert (settings.protocol, settings.url) == to
    assert settings.insecure == (not (spans_to or "").startswith("https"))


def test_records_arrive_beside_vllms_own_spans(monkeypatch, caplog):
    """With `--otlp-traces-endpoint grpc://...`, whatever that did to the environment."""
    observability = SimpleNamespace(otlp_traces_endpoint=SPANS_TO)
    config = SimpleNamespace(**vars(CONFIG), observability_config=observability)
    with http_receiver() as receiver:
        monkeypatch.setenv("LLMTRACE_VLLM_PLUGIN", "1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", SPANS_TO)
        reporter = Reporter(config, [0])
        reporter.record(None, iteration(shape("0.32")))
        assert reporter._sink is not None, caplog.text
        assert reporter._sink.flush(10)
        reporter._sink.close()

    assert len(receiver.spans()) == 1


def test_a_receiver_that_hangs_costs_records_and_no_time(monkeypatch):
    """More requests than the queue takes end while no receiver responds: the rest are counted."""
    with silent_server() as url:
        reporter = turned_on(monkeypatch, url, OTEL_EXPORTER_OTLP_TIMEOUT="2")
        took = []
        finished = iteration(*[shape("0.32")] * 32)
        for _ in range(400):
            began = time.perf_counter()
            reporter.record(None, finished)
            took.append(time.perf_counter() - began)
        lost = failopen.internal_errors()["export.otlp.dropped"]
        monkeypatch.setattr(queued_sink, "EXIT_LIMIT_S", 0.01)
        reporter._sink.close()

    # One batch may have been taken out of the queue of 10,000 by then.
    assert 12_800 - 10_000 - 512 <= lost <= 12_800 - 10_000
    assert failopen.internal_errors()["export.otlp.dropped"] == 12_800
    # No request waited for the receiver, which takes 2 s to time out; the machine may halt once.
    assert sorted(took)[-2] < 1.0


# --- what it costs ------------------------------------------------------------------------------


@dataclass
class Cost:
    """Seconds a call of `record` takes at best, of many."""

    step: float
    request: float


def cost_of(reporter):
    """Measure `record` in seconds."""
    empty, one = iteration(), iteration(shape("0.32"))
    best = [
        min(timeit.repeat(lambda s=stats: reporter.record(None, s), number=200, repeat=20)) / 200
        for stats in (empty, one)
    ]
    return Cost(*best)


def test_it_costs_microseconds(reporter, monkeypatch):
    """A step that ends nothing well under one; a finished request some. On a busy machine, more.

    tests/bench/vllm_plugin_cost.py gives the figures.
    """
    on = cost_of(reporter)
    monkeypatch.delenv("LLMTRACE_VLLM_PLUGIN")
    off = cost_of(Reporter(CONFIG, [0]))

    assert on.step < 5e-6
    assert on.request < 100e-6
    assert off.request < 5e-6
