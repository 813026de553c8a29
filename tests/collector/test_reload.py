"""Does the collector take new certificates, tokens and targets while it runs?"""

from __future__ import annotations

import asyncio
import signal
import ssl
import urllib.error
import urllib.request

import grpc
import pytest

from llmtrace.core.errors import ConfigError
from llmtrace_collector.commands import collect
from llmtrace_collector.commands.reload import Reloader
from llmtrace_collector.config.schema import Config, load
from llmtrace_collector.receive import Admission, Spool
from llmtrace_collector.scrape.scraper import Scraper
from tests.support.certificates import self_signed
from tests.support.free_ports import free_port
from tests.support.waiting import until

from .collecting import as_otlp, some_rows

FIRST, SECOND = "first-0123456789abcdef", "second-0123456789abcdef"


def certificate(folder, name, *more):
    """Return the bytes of a certificate and of its key."""
    made, key = self_signed(folder, name, *more)
    return made.read_bytes(), key.read_bytes()


def shown(address):
    """Return the certificate that a listener shows."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((address.host, address.port)))


def status(url, token, context, data=None):
    """Ask, and return the status."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-protobuf"}
    asked = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=30, context=context) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture
def settings(tmp_path):
    """A configuration file with certificates, tokens and a target, and how it is read."""
    port = free_port()
    (tmp_path / "token").write_text(FIRST)
    pair = certificate(tmp_path, "one")
    (tmp_path / "cert.pem").write_bytes(pair[0])
    (tmp_path / "key.pem").write_bytes(pair[1])
    file = tmp_path / "collect.yaml"

    def write(target):
        file.write_text(
            f"data: {tmp_path / 'data'}\n"
            "listen: {web: 127.0.0.1:0, otlp_http: 127.0.0.1:0, otlp_grpc: 127.0.0.1:0}\n"
            "receive: {token_file: token}\naccess: {token_file: token, certificate: cert.pem,"
            f" key: key.pem}}\nscrape: {{gpu: 'off', targets: [{target}]}}\n"
        )

    write(f"http://127.0.0.1:{port}/metrics")
    return file, write


def test_what_is_read_anew_is_in_effect_and_what_is_wrong_changes_nothing(
    tmp_path, settings, caplog
):
    """Certificates of HTTP and gRPC, both tokens, and the targets."""
    file, write = settings

    async def run():
        reloader = Reloader(load(file), lambda: load(file))
        async with collect.running(reloader.config, reloader) as places:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            spans = as_otlp(some_rows(1))
            otlp, web = (places.url(at) for at in (places.otlp_http, places.web))

            async def states(token):
                return [
                    await asyncio.to_thread(status, f"{otlp}/v1/traces", token, context, spans),
                    await asyncio.to_thread(status, f"{web}/metrics", token, context),
                ]

            async def certificates():
                addresses = (places.web, places.otlp_http, places.otlp_grpc)
                return {await asyncio.to_thread(shown, at) for at in addresses}

            first = await certificates()
            assert len(first) == 1
            assert await states(FIRST) == [200, 200]

            pair = certificate(tmp_path, "two")
            (tmp_path / "cert.pem").write_bytes(pair[0])
            assert not await reloader.reload()  # the key is another's
            assert await states(FIRST) == [200, 200]
            assert await certificates() == first

            (tmp_path / "key.pem").write_bytes(pair[1])
            (tmp_path / "token").write_text(SECOND)
            write("http://127.0.0.1:9/other")
            assert await reloader.reload()
            assert await states(SECOND) == [200, 200]
            assert await states(FIRST) == [401, 401]
            second = await certificates()
            assert second.isdisjoint(first)
            assert second == {ssl.PEM_cert_to_DER_cert(pair[0].decode())}
            request = urllib.request.Request(
                f"{web}/metrics", headers={"Authorization": f"Bearer {SECOND}"}
            )

            def targets() -> bytes:
                with urllib.request.urlopen(request, None, 30, context=context) as page:
                    return page.read()

            await asyncio.to_thread(until, lambda: b"127.0.0.1:9" in targets())

    asyncio.run(run())
    assert "settings not reloaded" in caplog.text
    assert "stay as they were" in caplog.text


def test_senders_show_a_certificate_where_one_is_asked_for(tmp_path):
    """Over HTTP and gRPC; without one there is no connection."""
    cert, key = certificate(tmp_path, "server")
    mine = certificate(tmp_path, "client")
    (tmp_path / "ca.pem").write_bytes(mine[0])
    file = tmp_path / "collect.yaml"
    file.write_text(
        f"data: {tmp_path / 'data'}\n"
        "listen: {web: 'off', otlp_http: 127.0.0.1:0, otlp_grpc: 127.0.0.1:0}\n"
        "receive: {client_ca_file: ca.pem}\nscrape: {gpu: 'off'}\n"
        "access: {certificate: server.pem, key: server.key}\n"
    )
    spans = as_otlp(some_rows(1))

    async def run():
        async with collect.running(load(file)) as places:
            context = ssl.create_default_context(cadata=cert.decode())
            url = f"{places.url(places.otlp_http)}/v1/traces"
            with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(status, url, "", context, spans)
            context.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
            assert await asyncio.to_thread(status, url, "", context, spans) == 200

            def export(*pair):
                credentials = grpc.ssl_channel_credentials(cert, *pair)
                with grpc.secure_channel(str(places.otlp_grpc), credentials) as channel:
                    call = channel.unary_unary(
                        "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
                    )
                    return call(spans, timeout=20)

            with pytest.raises(grpc.RpcError):
                await asyncio.to_thread(export)
            assert await asyncio.to_thread(export, mine[1], mine[0]) == b""

    asyncio.run(run())
    del key


def test_limits_are_applied(tmp_path):
    """Those of requests, of the spool and of its quarantine."""
    file = tmp_path / "collect.yaml"
    file.write_text("receive: {body_bytes: 1MB}\nspool: {disk_bytes: 1GB, quarantine_bytes: 2MB}")
    spool = Spool(tmp_path / "spool")
    admission = Admission(spool)
    try:
        collect._follow(admission, spool, Scraper([]), load(file))
    finally:
        spool.close()

    assert admission.limits.body_bytes == 1 << 20
    assert spool.limits.disk_bytes == 1 << 30
    assert spool.quarantine.max_bytes == 2 << 20


def test_a_client_ca_needs_tls(tmp_path):
    """Said at the start."""
    (tmp_path / "ca.pem").write_text("x")
    file = tmp_path / "collect.yaml"
    file.write_text("receive: {client_ca_file: ca.pem}\n")
    with pytest.raises(ConfigError, match=r"client_ca_file needs access\.certificate"):
        load(file)


def test_sighup_reloads_and_does_not_end_it():
    """Its default would end the process, unstored."""

    async def run():
        done = asyncio.Event()

        class Noted(Reloader):
            async def reload(self):
                done.set()
                return True

        stop = asyncio.Event()
        with collect._signals(stop, Noted(load())):
            signal.raise_signal(signal.SIGHUP)
            await asyncio.wait_for(done.wait(), 5)
        assert not stop.is_set()

    asyncio.run(run())


def test_what_cannot_be_applied_keeps_nothing_else_from_it(caplog):
    """The others follow, and it is logged."""
    reloader = Reloader(Config(), Config)
    applied = []

    def fails(config):
        raise OSError("no such certificate")

    reloader.applies(fails)
    reloader.applies(applied.append)

    assert not asyncio.run(reloader.reload())
    assert len(applied) == 1
    assert "a setting stays as it was: no such certificate" in caplog.text


def test_what_needs_a_restart_is_named(tmp_path, caplog):
    """Until it is had, or the setting is as it was; what is applied at once is not named."""
    made = [
        load(environment={"LLMTRACE_COLLECT_STORE_ROWS_DAYS": "91"}),
        load(environment={"LLMTRACE_COLLECT_STORE_ROWS_DAYS": "91"}),
        load(environment={"LLMTRACE_COLLECT_SPOOL_DISK_BYTES": "1GB"}),
    ]
    reloader = Reloader(load(environment={}), lambda: made.pop(0))
    for _ in range(3):
        assert asyncio.run(reloader.reload())
    named = [line for line in caplog.messages if "only after a restart" in line]
    assert named == ["changed, but applied only after a restart: store.rows_days"] * 2
