"""Does a target's TLS connection trust and show what the settings say for that target?"""

from __future__ import annotations

import asyncio
import ssl
import subprocess

import pytest

from llmtrace.core.errors import ConfigError
from llmtrace_collector.config.schema import as_yaml, load
from llmtrace_collector.scrape.credentials import Credentials
from llmtrace_collector.scrape.scraper import Scraper
from llmtrace_collector.scrape.target_tls import TlsFiles
from llmtrace_collector.scrape.targets import StaticTargets, Target

from . import web
from .test_scrape import QUICK, good, until


def openssl(folder, *words):
    """Run it."""
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An authority of our own, and the certificates of an engine and of a collector."""
    folder = tmp_path_factory.mktemp("tls")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl(folder, "req", "-x509", *curve, "-subj", "/CN=authority", "-keyout", "ca.key",
            "-out", "ca.pem")  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:engines.test\n")
    for name in ("engine", "collector"):
        openssl(folder, "req", *curve, "-subj", f"/CN={name}", "-keyout", f"{name}.key",
                "-out", f"{name}.csr")  # fmt: skip
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    return folder


def listed(tls):
    """Return what makes a source of one target on a port, with these files."""
    return lambda port: StaticTargets(
        (Target(f"https://127.0.0.1:{port}/metrics", credentials=Credentials(tls=tls)),)
    )


def read_once(made, source):
    """Read the page of an engine that wants a certificate; return the target's state."""
    there = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=made / "ca.pem")
    there.load_cert_chain(made / "engine.pem", made / "engine.key")
    there.verify_mode = ssl.CERT_REQUIRED

    async def main():
        server = await asyncio.start_server(web.always(good()), "127.0.0.1", 0, ssl=there)
        port = server.sockets[0].getsockname()[1]
        async with server, Scraper([source(port)], QUICK) as scraper:
            await until(lambda: any(s.up is not None for s in scraper.states()), "a reading")
            [state] = scraper.states()
        return state

    return asyncio.run(main())


def test_a_target_with_an_authority_and_a_certificate_of_its_own_is_read(made):
    """The engine's is signed by that authority, and so is the one that is shown to it."""
    state = read_once(
        made,
        listed(
            TlsFiles(ca=made / "ca.pem", cert=made / "collector.pem", key=made / "collector.key")
        ),
    )

    assert (state.up, dict(state.failures)) == (True, {})


@pytest.mark.parametrize("known", [False, True])
def test_without_the_authority_or_the_certificate_it_is_not_read(made, known):
    """And the reason says that it is TLS, or that the engine broke off."""
    state = read_once(made, listed(TlsFiles(ca=made / "ca.pem") if known else None))

    assert state.up is False
    assert set(state.failures) <= ({"tls", "protocol", "connect"} if known else {"tls"})


def test_a_certificate_that_is_renewed_is_taken_and_one_that_is_gone_is_said(made, tmp_path):
    """Where nothing changed, the context is the same, so that connections live on."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes((made / "ca.pem").read_bytes())
    files = TlsFiles(ca=ca)
    first = files.context()
    assert files.context() is first

    renewed = tmp_path / "new.pem"
    renewed.write_bytes((made / "ca.pem").read_bytes())
    renewed.replace(ca)
    assert files.context() is not first

    ca.unlink()
    state = read_once(made, listed(files))
    assert dict(state.failures) == {"files": 1}
    assert "ca.pem" in state.problem


@pytest.mark.parametrize("named", [True, False])
def test_what_a_name_finds_is_read_with_the_files_for_it(made, tmp_path, named):
    """The certificate must name the host that was looked up, or whom the settings say."""
    files = {"ca_file": "ca.pem", "cert_file": "collector.pem", "key_file": "collector.key"}
    given = ", ".join(f"{name}: {made / one}" for name, one in files.items())
    more = ", server_name: engines.test" if named else ""

    def source(port):
        file = tmp_path / "collect.yaml"
        entry = f"{{name: 'localhost:{port}', scheme: https, for_targets: {{{given}{more}}}}}"
        file.write_text(f"data: {tmp_path}\nscrape: {{dns: [{entry}]}}\n")
        config = load(file)
        file.write_text(as_yaml(config))
        [found] = load(file).scrape.sources()
        assert found == config.scrape.dns[0]
        return found

    state = read_once(made, source)

    assert state.up is named
    assert dict(state.failures) == ({} if named else {"tls": 1})
    assert named or "set `server_name`" in state.problem


def settings(tmp_path, **files):
    """Read settings with one target."""
    named = "".join(f", {name}: {path}" for name, path in files.items())
    file = tmp_path / "collect.yaml"
    file.write_text(
        f"data: {tmp_path}\nscrape: {{targets: [{{targets: ['https://e:1/metrics']{named}}}]}}\n"
    )
    return load(file)


def test_the_settings_give_a_target_its_files(made, tmp_path):
    """And what the configuration prints names them."""
    named = {"ca_file": "ca.pem", "cert_file": "collector.pem", "key_file": "collector.key"}
    config = settings(tmp_path, **{name: made / one for name, one in named.items()})

    [[target]] = config.scrape.targets
    assert target.credentials.tls == TlsFiles(
        ca=made / "ca.pem", cert=made / "collector.pem", key=made / "collector.key"
    )
    assert f"ca_file: {made / 'ca.pem'}" in as_yaml(config)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"cert_file": "collector.pem"}, "cert_file and key_file go together"),
        ({"ca_file": "none.pem"}, "there is no file"),
        ({"ca_file": "names"}, "names"),
        ({"cert_file": "collector.pem", "key_file": "engine.key"}, r"collector\.pem"),
    ],
)
def test_files_that_are_wrong_are_refused_before_anything_listens(made, tmp_path, files, words):
    """By name."""
    with pytest.raises(ConfigError, match=words):
        settings(tmp_path, **{name: made / one for name, one in files.items()})
