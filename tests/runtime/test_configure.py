"""Does `init` set up what was requested, and report what is wrong before the first request?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmtrace
from llmtrace import configure
from llmtrace.budget import Budget
from llmtrace.configure import Environment, read_environment
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import Row
from llmtrace.runtime import runtime
from llmtrace.testing import capture
from tests.support.free_ports import free_port
from tests.support.internal_errors import reset_internal_errors


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No setting, runtime or count is left from elsewhere, and none stays."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "LLMTRACE_")):
            monkeypatch.delenv(name)
    reset_internal_errors()
    yield
    llmtrace.shutdown()
    reset_internal_errors()


class AsyncSink:
    """A sink whose rows nothing would await."""

    def __repr__(self) -> str:
        return "an async sink"

    async def write(self, row: Row) -> None:
        """Take a row."""


class Sink:
    """A sink that notes what is done with it."""

    every_row = True

    def __init__(self, *, sends_all: bool = True) -> None:
        self.rows: list[Row] = []
        self.calls: list[object] = []
        self._sends_all = sends_all

    def write(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)

    def flush(self, timeout_s: float) -> bool:
        """Note how long there is."""
        self.calls.append(timeout_s)
        return self._sends_all

    def close(self) -> None:
        """Note the end."""
        self.calls.append("close")


class Plain:
    """A user's own sink: it has nothing but `write`."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)


class Broken(Sink):
    """A sink that cannot be flushed or closed."""

    def flush(self, timeout_s: float) -> bool:
        """Raise."""
        raise ConnectionError(timeout_s)

    def close(self) -> None:
        """Raise."""
        raise ConnectionError


def row_of(**settings: object) -> Row:
    """Set up with a sink, make one request, and return its row."""
    sink = Sink()
    llmtrace.init(exporters=[sink], **settings)  # type: ignore[arg-type]
    list(llmtrace.wrap(iter("ab")))
    return sink.rows[0]


def refused(**settings: object) -> str:
    """Return the message `init` refuses settings with."""
    with pytest.raises(ConfigError) as caught:
        llmtrace.init(**settings)  # type: ignore[arg-type]
    return str(caught.value)


# --- the environment ----------------------------------------------------------------------------


def test_an_empty_environment_sets_nothing():
    """Without variables nothing is set, and unset is not the same as a default."""
    assert read_environment({}) == Environment()


def test_variables_set_to_nothing_are_not_set():
    """An empty variable counts as unset, as OpenTelemetry wants it."""
    names = (
        "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES",
        "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER",
        "OTEL_TRACES_SAMPLER_ARG", "LLMTRACE_BUDGET", "LLMTRACE_SAMPLE", "LLMTRACE_DISABLED",
    )  # fmt: skip

    assert read_environment(dict.fromkeys(names, "")) == Environment()


def test_the_resource_tells_service_version_and_region():
    """OpenTelemetry's resource attributes are read, their values percent-decoded."""
    text = "service.name=shop, service.version=1%2C2 ,cloud.region=eu,odd,team=a=b"

    environment = read_environment({"OTEL_RESOURCE_ATTRIBUTES": text})

    assert environment.service == "shop"
    assert environment.labels == {"version": "1,2", "region": "eu"}


def test_the_services_own_variable_wins():
    """`OTEL_SERVICE_NAME` wins over the resource, as OpenTelemetry says."""
    environ = {"OTEL_SERVICE_NAME": "till", "OTEL_RESOURCE_ATTRIBUTES": "service.name=shop"}

    assert read_environment(environ).service == "till"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"LLMTRACE_EXPORTERS": "otlp, console,"}, ("otlp", "console")),
        ({"LLMTRACE_EXPORTERS": "console", "OTEL_TRACES_EXPORTER": "otlp"}, ("console",)),
        ({"OTEL_TRACES_EXPORTER": "otlp,zipkin, console"}, ("otlp", "console")),
        ({"OTEL_TRACES_EXPORTER": "none"}, ()),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, ("otlp",)),
    ],
)
def test_where_rows_go_by_the_environment(environ, expected):
    """Llmtrace's own variable wins, then OpenTelemetry's choice, then an endpoint being set."""
    assert read_environment(environ).exporters == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LLMTRACE_SAMPLE": "0.25"}, 0.25),
        ({"LLMTRACE_SAMPLE": "1", "OTEL_TRACES_SAMPLER": "always_off"}, 1.0),
        ({"LLMTRACE_SAMPLE": "", "OTEL_TRACES_SAMPLER": "always_off"}, 0.0),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, 0.0),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, None),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}, 0.5),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, 1.0),
        ({"OTEL_TRACES_SAMPLER_ARG": "0.5"}, None),
    ],
)
def test_what_share_is_kept_by_the_environment(environ, expected):
    """Llmtrace's own variable wins over OpenTelemetry's sampler."""
    assert read_environment(environ).sample == expected


def test_a_sampler_that_is_not_known_is_said_once(caplog):
    """It may be meant for the application's own provider, so it is no reason to raise."""
    for _ in range(2):
        assert read_environment({"OTEL_TRACES_SAMPLER": "jaeger_remote"}).sample is None

    expected = "OTEL_TRACES_SAMPLER='jaeger_remote' is unknown to llmtrace: it keeps all requests"
    assert caplog.messages == [expected]


@pytest.mark.parametrize("text", ["most", "2", "-0.1", "nan", "inf", "1e999"])
@pytest.mark.parametrize("name", ["LLMTRACE_SAMPLE", "OTEL_TRACES_SAMPLER_ARG"])
def test_a_share_that_cannot_be_names_its_variable(name, text):
    """A share out of range is rejected by the variable it stands in."""
    with pytest.raises(ConfigError, match=f"^{name}=.*between 0 and 1"):
        read_environment({"OTEL_TRACES_SAMPLER": "traceidratio", name: text})


@given(st.dictionaries(st.sampled_from(
    ["OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_EXPORTER", "LLMTRACE_EXPORTERS", "LLMTRACE_SAMPLE",
     "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "OTEL_SDK_DISABLED"]
), st.text() | st.sampled_from(["traceidratio", "a=%ff,=", "0.5", "true"])))  # fmt: skip
def test_any_environment_is_read_or_refused(environ):
    """No value raises anything but `ConfigError`, whatever stands in it."""
    try:
        environment = read_environment(environ)
    except ConfigError:
        return

    assert environment.sample is None or 0 <= environment.sample <= 1


@pytest.mark.parametrize("name", ["OTEL_SDK_DISABLED", "LLMTRACE_DISABLED"])
@pytest.mark.parametrize(("text", "off"), [("true", True), (" TRUE ", True), ("false", False)])
def test_everything_can_be_switched_off(monkeypatch, name, text, off):
    """One variable makes `init` do nothing, and takes back what was set up before."""
    llmtrace.init("shop", exporters=[])
    monkeypatch.setenv(name, text)

    llmtrace.init("shop", exporters=[])

    assert (runtime.active() is None) is off


@pytest.mark.parametrize("text", ["2", "ture", "disabled"])
def test_a_switch_that_is_neither_on_nor_off(text):
    """A slip in the switch must not leave on what was meant to be off."""
    with pytest.raises(ConfigError, match=f"^LLMTRACE_DISABLED='{text}': .*true or false"):
        read_environment({"LLMTRACE_DISABLED": text})


def test_what_is_switched_off_is_not_checked(monkeypatch):
    """A switched-off llmtrace does not fail over settings it will not use."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setenv("LLMTRACE_SAMPLE", "most")
    monkeypatch.setenv("LLMTRACE_DISABLED", "perhaps")

    llmtrace.init("shop", exporters=["nowhere"], sample=7)

    assert runtime.active() is None


# --- who wins -----------------------------------------------------------------------------------


def test_arguments_win_over_the_environment(monkeypatch):
    """What the code says wins over every variable."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "cloud.region=us,service.version=0")
    monkeypatch.setenv("LLMTRACE_SAMPLE", "0.5")
    monkeypatch.setenv("LLMTRACE_EXPORTERS", "nowhere")
    monkeypatch.setenv("LLMTRACE_BUDGET", "/nowhere.yaml")

    row = row_of(service="ours", region="eu", version="1", sample=1, budget=Budget())

    assert (row.service, row.region, row.version, row.weight) == ("ours", "eu", "1", 1.0)


def test_a_share_of_nothing_is_a_choice(monkeypatch):
    """To keep no request wins over the environment, too: 0 is not "not said"."""
    monkeypatch.setenv("LLMTRACE_SAMPLE", "0.5")
    llmtrace.init(exporters=[], sample=0)

    assert runtime.active().sample == 0.0


def test_the_environment_wins_over_defaults(monkeypatch):
    """What the code does not say is taken from the variables."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "cloud.region=us,service.version=0")
    monkeypatch.setenv("LLMTRACE_SAMPLE", "0.5")

    row = row_of()

    assert (row.service, row.region, row.version, row.weight) == ("theirs", "us", "0", 2.0)


def test_a_service_without_a_name():
    """Without a name anywhere, the service is OpenTelemetry's unknown one."""
    assert row_of().service == "unknown_service"


def test_the_environment_names_exporters(monkeypatch):
    """Exporters named in the environment are built, and their names checked."""
    monkeypatch.setenv("LLMTRACE_EXPORTERS", "nowhere")

    assert "'nowhere' is not one of otlp, " in refused()


def test_the_environment_names_a_budget(monkeypatch, tmp_path):
    """A budget file named in the environment is read."""
    monkeypatch.setenv("LLMTRACE_BUDGET", str(tmp_path / "none.yaml"))

    assert "none.yaml: cannot read this budget" in refused(exporters=[])


def test_a_row_a_line_where_nothing_is_said(capsys):
    """By default a request is one line on stderr."""
    llmtrace.init("shop")
    list(llmtrace.wrap(iter("ab"), model="tiny"))
    llmtrace.shutdown()

    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)


def test_a_capture_keeps_what_an_application_inside_sets_up_for_later():
    """A test's rows stay its own though the application calls `init` inside."""
    kept, closed = Sink(), Sink()
    with capture() as outer:
        with capture() as rows:
            llmtrace.init("shop", exporters=[closed])
            list(llmtrace.wrap(iter("ab")))
            llmtrace.shutdown()
            llmtrace.init("shop", exporters=[kept])
            list(llmtrace.wrap(iter("ab")))
        list(llmtrace.wrap(iter("ab")))
    list(llmtrace.wrap(iter("ab")))

    assert (len(rows), len(outer), len(kept.rows)) == (2, 1, 1)
    assert (closed.rows, closed.calls, kept.calls) == ([], ["close"], [])


# --- what is rejected ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"exporters": ["nowhere"]}, "exporters: 'nowhere' is not one of otlp, otlp-metrics, "),
        ({"tracer_provider": "otlp"}, "tracer_provider='otlp' has no get_tracer()"),
        ({"meter_provider": 3}, "meter_provider=3 has no get_meter()"),
        ({"exporters": [5]}, "exporters: 5 is neither a name (otlp, otlp-metrics, prometheus, "),
        ({"exporters": [AsyncSink()]}, "exporters: an async sink is neither a name (otlp, otlp-"),
        ({"exporters": "otlp"}, "exporters='otlp' must be a list, as in exporters=['otlp']"),
        ({"exporters": 5}, "exporters=5 must be a list, as in exporters=['otlp']"),
        ({"exporters": ["prometheus:none"]}, "exporters: 'prometheus:none': give a port from 0"),
        ({"instrument": "openai"}, "instrument='openai' must be a list, as in instrument=['open"),
        ({"instrument": None}, "instrument=None must be a list"),
        ({"instrument": ["opeanai"]}, "instrument='opeanai': llmtrace instruments openai, anth"),
        ({"sample": 2}, "sample=2: give the share of requests to keep, a number between 0 and 1"),
        ({"sample": True}, "sample=True: give the share"),
        ({"sample": "half"}, "sample='half': give the share"),
        ({"sample": float("nan")}, "sample=nan: give the share"),
        ({"ask_usage": "no"}, "ask_usage='no' must be true or false"),
        ({"tenant_metrics": "false"}, "tenant_metrics='false' must be true or false"),
        ({"service": 7}, "service=7 must be a string, as in service='7'"),
        ({"region": 1}, "region=1 must be a string, as in region='1'"),
        ({"version": 1.2}, "version=1.2 must be a string, as in version='1.2'"),
        ({"budget": {"totl": 1}}, "budget: unknown key totl; a budget has name, objective, "),
        ({"budget": 5}, "budget: 5 is neither a mapping nor the path of a YAML or JSON file"),
    ],
)
def test_a_wrong_setting_is_explained(settings, expected):
    """The message says which setting, what was given, and what would do."""
    assert refused(**{"exporters": [], **settings}).startswith(expected)


def test_a_port_that_is_taken_is_explained():
    """A port in use is reported with what to do, and nothing stays registered."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert "take another port" in refused(exporters=[f"prometheus:{port}"])

    llmtrace.init(exporters=[f"prometheus:{port}"])


def test_a_refusal_leaves_what_was_set_up():
    """Settings that are rejected change nothing."""
    llmtrace.init("shop", exporters=[])
    before = runtime.active()

    refused(exporters=["nowhere"])

    assert runtime.active() is before


@pytest.mark.parametrize(("wrong", "calls"), [("nowhere", ["close"]), (5, [])])
def test_a_refusal_closes_what_it_had_built(monkeypatch, wrong, calls):
    """Exporters built before the wrong one are closed again, a user's own are left alone."""
    built, own = Sink(), Sink()
    build = configure.export.build
    monkeypatch.setattr(
        configure.export,
        "build",
        lambda name, settings: built if name == "console" else build(name, settings),
    )

    refused(exporters=[own, "console", wrong])

    assert (built.calls, own.calls) == (calls, [])


# --- what is set up -----------------------------------------------------------------------------


def test_a_budget_becomes_thresholds(monkeypatch):
    """The budget's limits are passed to the exporters, as bounds and by its name."""
    seen = []
    monkeypatch.setattr(
        configure.export, "build", lambda _, settings: seen.append(settings) or Plain()
    )

    llmtrace.init("shop", exporters=["console"], budget={"name": "b", "total": 2, "ttft": 1})

    assert seen[0].service == "shop"
    assert seen[0].thresholds_s == {"e2e": (2.0,), "ttft": (1.0,)}
    assert seen[0].budget_seconds == {"b": {"total": 2.0, "ttft": 1.0}}


def test_every_limit_of_several_budgets_becomes_a_threshold(monkeypatch):
    """One application may serve several routes, each with a budget of its own."""
    seen = []
    monkeypatch.setattr(
        configure.export, "build", lambda _, settings: seen.append(settings) or Plain()
    )
    budgets = [{"name": "chat", "ttft": 1}, {"name": "batch", "ttft": 9, "route": "batch"}]

    llmtrace.init("shop", exporters=["console"], budget={"budgets": budgets})

    assert seen[0].thresholds_s == {"ttft": (1.0, 9.0)}
    assert seen[0].budget_seconds == {"chat": {"ttft": 1.0}, "batch": {"ttft": 9.0}}


def test_a_users_own_sink_needs_only_write():
    """A sink with nothing but `write` can be flushed and shut down."""
    plain = Plain()
    llmtrace.init(exporters=[plain])
    list(llmtrace.wrap(iter("ab")))

    assert llmtrace.flush() is True
    llmtrace.shutdown()
    assert (len(plain.rows), internal_errors()) == (1, {})


def test_exporters_may_come_from_anywhere():
    """Any iterable of exporters will do, and is read once."""
    sinks = [Plain(), Plain()]
    llmtrace.init(exporters=(sink for sink in sinks), instrument=iter(["openai"]))
    list(llmtrace.wrap(iter("ab")))

    assert [len(sink.rows) for sink in sinks] == [1, 1]


def test_init_again_replaces_what_was_set_up():
    """A second `init` sends what the first still had queued, and takes its place."""
    first, second = Sink(), Sink()
    llmtrace.init("one", exporters=[first])
    llmtrace.init("two", exporters=[second])
    list(llmtrace.wrap(iter("ab")))

    assert first.calls == ["close"]
    assert (first.rows, [row.service for row in second.rows]) == ([], ["two"])


def test_init_again_may_take_the_same_port():
    """The port the first `init` served on is free for the second."""
    port = free_port()
    for _ in range(2):
        llmtrace.init(exporters=[f"prometheus:{port}"])


def test_shutdown_ends_recording():
    """After a shutdown every wrapper is a no-op again, and a second one does nothing."""
    sink = Sink()
    llmtrace.init(exporters=[sink])
    llmtrace.shutdown()
    llmtrace.shutdown()
    list(llmtrace.wrap(iter("ab")))

    assert (sink.rows, sink.calls) == ([], ["close"])


def test_a_stream_outlives_a_shutdown():
    """A stream that is read on after a shutdown goes on as if nothing had been."""
    llmtrace.init(exporters=[Sink()])
    stream = llmtrace.wrap(iter("ab"))
    next(stream)
    llmtrace.shutdown()

    assert list(stream) == ["b"]


def test_a_sink_that_will_not_close_is_counted():
    """An exporter that breaks on the way out costs the others nothing."""
    last = Sink()
    llmtrace.init(exporters=[Broken(), last])

    assert llmtrace.flush(1) is False
    llmtrace.shutdown()
    assert last.calls[-1] == "close"
    assert internal_errors() == {"export.Broken": 2}


@pytest.mark.parametrize("sends_all", [True, False])
def test_flush_says_whether_all_of_it_went(sends_all):
    """Flushing flushes every exporter, and is true only if each sent everything."""
    sinks = [Sink(sends_all=sends_all), Sink()]
    llmtrace.init(exporters=sinks)

    assert llmtrace.flush(3) is sends_all
    assert [len(sink.calls) for sink in sinks] == [1, 1]


def test_flush_shares_its_time(monkeypatch):
    """All exporters together have the time that was given, and never less than none."""
    now = iter([100.0, 101.0, 107.0])
    # In its place, and not on the module: other threads read the time there, too.
    clock = SimpleNamespace(monotonic=lambda: next(now))
    monkeypatch.setattr(configure, "time", clock)
    first, second = Sink(), Sink()
    llmtrace.init(exporters=[first, second])

    llmtrace.flush(5)

    assert (first.calls, second.calls) == ([4.0], [0.0])


def test_nothing_to_flush():
    """Without `init` there is nothing to send, and all of it went."""
    assert llmtrace.flush() is True


def test_leaving_the_process_sends_what_is_left():
    """At the interpreter's exit exporters are closed, so that no row is lost."""
    program = """
import llmtrace

class Sink:
    every_row = True
    def write(self, row): pass
    def close(self): print("closed")

llmtrace.init(exporters=[Sink()])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert (done.stdout, done.stderr) == ("closed\n", "")


# --- content ------------------------------------------------------------------------------------

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        ("", False), ("NO_CONTENT", False), ("false", False), ("EVENT_ONLY", False),
        ("SPAN_ONLY", True), ("span_and_event", True), ("true", True), (" True ", True),
    ],
)  # fmt: skip
def test_opentelemetrys_switch_for_content(text, recorded):
    """Content goes on spans if the variable says spans; llmtrace writes no events."""
    assert read_environment({CAPTURE: text}).record_content is recorded


def test_a_switch_that_is_neither():
    """An unknown value is a mistake that must not go unnoticed either way."""
    with pytest.raises(ConfigError, match=rf"{CAPTURE}='yes please' is not one of no_content"):
        read_environment({CAPTURE: "yes please"})


def test_content_is_off_unless_asked_for(monkeypatch):
    """By an argument, which wins, or by the variable."""
    llmtrace.init(exporters=[])
    assert runtime.active().content is None
    monkeypatch.setenv(CAPTURE, "span_only")
    llmtrace.init(exporters=[], content_limit=100, redact=str.upper)
    assert (runtime.active().content.limit, runtime.active().content.redact) == (100, str.upper)
    llmtrace.init(exporters=[], record_content=False)
    assert runtime.active().content is None
    monkeypatch.delenv(CAPTURE)
    llmtrace.init(exporters=[], record_content=True)
    assert runtime.active().content.limit == 32_768


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"redact": "***"}, "redact='\\*\\*\\*' must be a function"),
        ({"content_limit": 0}, "content_limit=0: give bytes"),
        ({"content_limit": 1e6}, "content_limit=1000000.0: give bytes"),
        ({"content_limit": True}, "content_limit=True: give bytes"),
        ({"content_limit": 1 << 30}, "content_limit=1073741824: give bytes"),
        ({"record_content": "no"}, "record_content='no' must be true or false"),
    ],
)
def test_settings_of_content_that_cannot_be(wrong, said):
    """They are wrong also while content is off: it may be switched on elsewhere."""
    with pytest.raises(ConfigError, match=said):
        llmtrace.init(exporters=[], **wrong)


@pytest.mark.parametrize("host", ["https://a.b", "a.b:80", "10.0.0.1:80", "", "*", "a/b", 5])
def test_hosts_of_ones_own_are_names(host):
    """An address with a scheme or a port would never match, and is an error at set-up."""
    with pytest.raises(ConfigError, match="own_hosts"):
        llmtrace.init("shop", exporters=[], own_hosts=[host])


def test_who_gets_headers():
    """Names are compared without case; anything but the three words is an error at set-up."""
    with pytest.raises(ConfigError, match="headers='some' is not one of all, own, none"):
        llmtrace.init("shop", exporters=[], headers="some")
    llmtrace.init("shop", exporters=[], own_hosts=["Edge.internal", "::1"], headers="own")
    policy = runtime.active().headers

    assert [policy.joins(host) for host in ("edge.INTERNAL", "::1", "other")] == [
        True,
        True,
        False,
    ]


def test_shutdown_ends_what_is_open():
    """What is read on afterwards is the application's, and in no second row."""
    sink = Sink()
    llmtrace.init("shop", exporters=[sink], instrument=())
    stream = llmtrace.wrap(iter(["Hello, ", "world"]))
    first = next(stream)
    llmtrace.shutdown()

    assert [row.outcome for row in sink.rows] == ["cancelled"]
    assert sink.calls == ["close"]
    assert [first, *stream] == ["Hello, ", "world"]
    assert len(sink.rows) == 1
