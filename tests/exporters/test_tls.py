"""OTLP over TLS, with a certificate made for the occasion on both sides."""

from __future__ import annotations

import ssl
from contextlib import contextmanager

import grpc
import pytest

from llmtrace.core.failopen import internal_errors
from llmtrace.exporters.genai_metrics.sink import GenAISink
from llmtrace.exporters.otlp.sink import otlp_sink
from tests.exporters.receivers import grpc_receiver, http_receiver
from tests.exporters.samples import typical
from tests.support.certificates import needs_openssl, self_signed

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    """Make a key and a certificate for 127.0.0.1 that signs itself."""
    certificate, key = self_signed(tmp_path_factory.mktemp("tls"))
    return key, certificate


@contextmanager
def receiver(protocol, pem):
    """Receive OTLP over TLS from clients that show the certificate."""
    key, certificate = pem
    if protocol == "grpc":
        read = certificate.read_bytes()
        secured = grpc.ssl_server_credentials([(key.read_bytes(), read)], read, True)  # noqa: FBT003
        with grpc_receiver(tls=secured) as received:
            yield received
    else:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        with http_receiver(tls=context) as received:
            yield received


def environ(received, protocol, pem):
    """Return the variables that lead to a receiver, with this client's certificate."""
    key, certificate = pem
    prefix = "OTEL_EXPORTER_OTLP_"
    return {
        f"{prefix}ENDPOINT": received.url,
        f"{prefix}PROTOCOL": protocol,
        f"{prefix}CERTIFICATE": str(certificate),
        f"{prefix}CLIENT_KEY": str(key),
        f"{prefix}CLIENT_CERTIFICATE": str(certificate),
    }


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_both_sides_show_their_certificate(protocol, pem):
    """Spans and metrics arrive over TLS, with the certificates of the standard variables."""
    with receiver(protocol, pem) as received:
        settings = environ(received, protocol, pem)
        for sink in (otlp_sink(environ=settings), GenAISink(environ=settings)):
            sink.write(typical())
            assert sink.flush(10)
            sink.close()

    assert len(received.requests) >= 2
    assert internal_errors() == {}


def test_an_untrusted_certificate(pem, caplog):
    """An unknown authority is a refusal for good: the rows are not sent, and not retried."""
    with receiver("http/protobuf", pem) as received:
        sink = otlp_sink(endpoint=received.url, environ={})
        sink.write(typical())
        assert not sink.flush(10)
        sink.close()

    assert received.requests == []
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
