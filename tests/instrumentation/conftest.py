"""Fixtures: one scripted server for all tests, and a record of what went wrong inside llmtrace."""

from __future__ import annotations

import gc
import shutil
import ssl
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from llmtrace.core.failopen import internal_errors
from llmtrace.instrumentation.llm_sdks import usage
from tests.support.certificates import self_signed
from tests.support.internal_errors import reset_internal_errors
from tests.support.sse_server import Server, serve

from . import answers
from .reading import MODES

# What is recorded is what is imported by then; each SDK may be missing.
for _sdk in ("openai", "anthropic"):
    with suppress(ImportError):
        import_module(_sdk)


@pytest.fixture(scope="session")
def _server() -> Iterator[Server]:
    with serve(answers.chat()) as server:
        yield server


@pytest.fixture
def server(_server: Server) -> Server:
    """Return the server, set to respond with a short chat."""
    _server.play(answers.chat())
    return _server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a certificate for loopback, with its key, signed by itself."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    certificate, key = self_signed(tmp_path_factory.mktemp("tls"))
    certificate.write_bytes(key.read_bytes() + certificate.read_bytes())
    return certificate


@pytest.fixture
def trusted(certificate: Path) -> ssl.SSLContext:
    """Return a client's context that trusts the certificate."""
    return ssl.create_default_context(cafile=str(certificate))


@pytest.fixture
def quick_tls_server(certificate: Path) -> Iterator[Server]:
    """Serve a short chat over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serve(answers.chat(), tls=context) as server:
        yield server


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Run a test with the sync and the async client."""
    return str(request.param)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Run a test without the garbage collector, but for where it calls it."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def faulty() -> None:
    """Say that a test makes something go wrong inside llmtrace."""


@pytest.fixture(autouse=True)
def unknown_servers() -> Iterator[None]:
    """Know of no server whether it takes `include_usage`: the one here responds in many ways."""
    yield
    for known in (usage._rejects, usage._takes, usage._doubted, usage._unrelated):
        known.clear()


@pytest.fixture(autouse=True)
def faultless(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which something went wrong inside llmtrace, unless that was its point."""
    reset_internal_errors()
    yield
    broken = internal_errors()
    reset_internal_errors()
    assert not broken or "faulty" in request.fixturenames
