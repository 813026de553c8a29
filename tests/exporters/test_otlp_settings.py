from __future__ import annotations

import pytest

from llmtrace.core.errors import ConfigError
from llmtrace.exporters.otlp.settings import read_settings

P = "OTEL_EXPORTER_OTLP_"


def read(signal="traces", environ=None, **given):
    """Read settings from variables named without their common prefix."""
    return read_settings(signal, environ={P + k: v for k, v in (environ or {}).items()}, **given)


@pytest.mark.parametrize(
    ("environ", "protocol", "url"),
    [
        ({}, "http/protobuf", "http://localhost:4318/v1/traces"),
        ({"PROTOCOL": "grpc"}, "grpc", "localhost:4317"),
        ({"ENDPOINT": "http://c:4318"}, "http/protobuf", "http://c:4318/v1/traces"),
        ({"ENDPOINT": "http://c:4318/"}, "http/protobuf", "http://c:4318/v1/traces"),
        ({"ENDPOINT": "https://c/api/otel"}, "http/protobuf", "https://c/api/otel/v1/traces"),
        ({"ENDPOINT": "http://c:4317"}, "grpc", "c:4317"),
        ({"ENDPOINT": "c:4317"}, "grpc", "c:4317"),
        (
            {"ENDPOINT": "http://c:4317", "PROTOCOL": "http/protobuf"},
            "http/protobuf",
            "http://c:4317/v1/traces",
        ),
        ({"ENDPOINT": "http://c:1", "TRACES_PROTOCOL": "grpc", "PROTOCOL": "x"}, "grpc", "c:1"),
        (
            {"ENDPOINT": "http://c:1", "TRACES_ENDPOINT": "http://t:2/own"},
            "http/protobuf",
            "http://t:2/own",
        ),
        ({"ENDPOINT": "http://[::1]:4317"}, "grpc", "[::1]:4317"),
    ],
)
def test_where_to(environ, protocol, url):
    """The endpoint and the protocol follow OpenTelemetry's rules, the signal's own first."""
    settings = read(environ=environ)

    assert (protocol, url) == (settings.protocol, settings.url)


def test_arguments_win():
    """What is given as an argument wins over every variable."""
    environ = {"TRACES_ENDPOINT": "http://e:1", "PROTOCOL": "grpc"}
    settings = read(environ=environ, endpoint="http://arg:2", protocol="http/protobuf")

    assert settings.url == "http://arg:2/v1/traces"


def test_an_argument_that_is_the_full_url_is_taken_as_it_is():
    """The signal's path is not added twice."""
    assert read(endpoint="http://a/v1/traces").url == "http://a/v1/traces"


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/traces/", "/v1/metrics", "/v1/logs"])
def test_the_general_endpoint_as_a_signals_url(path):
    """Both signals go to the receiver it is of, each by its own path."""
    environ = {"ENDPOINT": f"http://a/x{path}"}

    assert read("traces", environ).url == "http://a/x/v1/traces"
    assert read("metrics", environ).url == "http://a/x/v1/metrics"
    assert read("traces", endpoint=f"http://a/x{path}").url == "http://a/x/v1/traces"


def test_metrics_have_their_own():
    """The metrics' variables do not touch the traces, nor the other way round."""
    environ = {"METRICS_ENDPOINT": "http://m:1/x", "ENDPOINT": "http://c:2"}

    assert read("metrics", environ).url == "http://m:1/x"
    assert read("traces", environ).url == "http://c:2/v1/traces"


def test_headers():
    """Header values may be URL-encoded, and may hold an equals sign."""
    settings = read(environ={"HEADERS": "Authorization=Basic%20YTpi==, x-Tenant = t ,"})

    assert settings.headers == {"authorization": "Basic YTpi==", "x-tenant": "t"}


def test_secrets_do_not_show():
    """Neither the representation nor an error shows what headers and URLs hold."""
    secret = "hunter2"
    settings = read(environ={"HEADERS": f"authorization={secret}"})
    assert secret not in repr(settings)
    with pytest.raises(ConfigError) as caught:
        read(environ={"HEADERS": f"a=b,{secret}"})
    assert secret not in str(caught.value)
    assert "entry 2" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        read(endpoint=f"ftp://me:{secret}@host")
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("0.5", 0.5), ("10000", 10), ("1000", 1), ("999", 999)]
)
def test_time_out(text, seconds):
    """Seconds, as OpenTelemetry for Python reads them; what can only be milliseconds is that."""
    assert seconds == read(environ={"TIMEOUT": text}).timeout_s


@pytest.mark.parametrize(
    ("environ", "insecure"),
    [
        ({"ENDPOINT": "http://c:4317"}, True),
        ({"ENDPOINT": "https://c:4317", "INSECURE": "true"}, False),
        ({"ENDPOINT": "c:4317", "INSECURE": "true"}, True),
        ({"ENDPOINT": "c:4317"}, False),
    ],
)
def test_tls(environ, insecure):
    """The scheme decides about TLS; without one, INSECURE does."""
    assert insecure is read(environ=environ).insecure


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"ENDPOINT": "ftp://c"}, "ftp://c"),
        ({"ENDPOINT": "http://"}, "http://"),
        ({"ENDPOINT": "http://c:port"}, "http://c:port"),
        ({"ENDPOINT": "c:4318"}, "http://"),
        ({"PROTOCOL": "http/json"}, "http/json"),
        ({"TRACES_PROTOCOL": "udp"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"),
        ({"TIMEOUT": "soon"}, "OTEL_EXPORTER_OTLP_TIMEOUT"),
        ({"TIMEOUT": "0"}, "TIMEOUT"),
        ({"TIMEOUT": "-1"}, "TIMEOUT"),
        ({"TIMEOUT": "nan"}, "TIMEOUT"),
        ({"COMPRESSION": "zstd"}, "zstd"),
        ({"HEADERS": "novalue"}, "OTEL_EXPORTER_OTLP_HEADERS"),
        ({"HEADERS": "a=b%0ac"}, "OTEL_EXPORTER_OTLP_HEADERS"),
        ({"CERTIFICATE": "/no/such/file.pem"}, "/no/such/file.pem"),
    ],
)
def test_nonsense_is_refused(environ, named):
    """A setting that cannot be is an error at set-up that names it."""
    with pytest.raises(ConfigError, match=named.replace("/", "/").replace(".", r"\.")):
        read(environ=environ)


def test_a_key_needs_its_certificate(tmp_path):
    """Half of a client certificate is an error, not a plain connection."""
    key = tmp_path / "key.pem"
    key.write_text("")
    with pytest.raises(ConfigError, match="CLIENT_CERTIFICATE"):
        read(environ={"CLIENT_KEY": str(key)})
