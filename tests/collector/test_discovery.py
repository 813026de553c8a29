"""Are targets found by DNS name and by Kubernetes label, and lost when they are gone?"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from llmtrace.core.errors import ConfigError
from llmtrace_collector.commands import banner
from llmtrace_collector.config.schema import as_yaml, load
from llmtrace_collector.scrape import dns_srv
from llmtrace_collector.scrape.credentials import Credentials
from llmtrace_collector.scrape.discovery import DnsTargets, KubernetesPods
from llmtrace_collector.scrape.dns_srv import SrvTargets
from llmtrace_collector.scrape.fetch import FetchError, make_session
from llmtrace_collector.scrape.scraper import Scraper, ScrapeSettings
from llmtrace_collector.scrape.targets import Target
from llmtrace_collector.serve.how_to_send import Places

from .test_scrape import until

SHOWN = Credentials(username="me", password_file=Path("password"))


def pod(name: str, address: str | None, phase: str = "Running", **about: Any) -> dict[str, Any]:
    """Make a pod as the API lists it."""
    return {"metadata": {"name": name, "namespace": "llm", **about},
            "status": {"phase": phase, "podIP": address}}  # fmt: skip


class Api:
    """Lists pods in pages of two, to a client that sends the token."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.pods = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("c", "fd00::3")]
        self.asked: list[dict[str, str]] = []
        self.version, self.oldest, self.expired = 7, 0, 0
        self.change = asyncio.Event()

    def remove(self, name: str) -> None:
        """Remove a pod, and say so to those that watch."""
        self.pods = [one for one in self.pods if one["metadata"]["name"] != name]
        self.version += 1
        self.change.set()

    async def watch(self, request: web.Request) -> web.StreamResponse:
        """Answer what changes after a version, once something does."""
        answer = web.StreamResponse()
        await answer.prepare(request)
        if int(request.query["resourceVersion"]) < self.oldest:
            gone = {
                "type": "ERROR",
                "object": {"kind": "Status", "code": 410, "reason": "Expired"},
            }
            await answer.write(json.dumps(gone).encode() + b"\n")
            return answer
        await self.change.wait()
        self.change.clear()
        await answer.write(b'{"type": "DELETED", "object": {}}\n')
        return answer

    async def list(self, request: web.Request) -> web.StreamResponse:
        """Answer one page, or what changes."""
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status"}, status=401)
        self.asked.append(dict(request.query))
        if "watch" in request.query:
            return await self.watch(request)
        at = int(request.query.get("continue", "0"))
        if at and self.expired:
            self.expired -= 1
            return web.json_response({"kind": "Status", "code": 410}, status=410)
        more = {"continue": str(at + 2)} if at + 2 < len(self.pods) else {}
        more["resourceVersion"] = str(self.version)
        return web.json_response({"metadata": more, "items": self.pods[at : at + 2]})


def found(source: Any) -> list[Target]:
    """Look once."""

    async def look() -> list[Target]:
        async with make_session() as session:
            return list(await source.targets(session))

    return asyncio.run(look())


def looks(api: Api, account: Path, steps: Any) -> None:
    """Serve the API, and run steps with what lists the pods."""

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/llm/pods", api.list)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        source = KubernetesPods(
            "app=vllm", 8000, api=f"http://127.0.0.1:{port}", account=account, for_targets=SHOWN
        )
        try:
            async with make_session() as session:
                await steps(lambda: source.targets(session), source)
        finally:
            await runner.cleanup()

    asyncio.run(run())


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """A pod's credentials."""
    (tmp_path / "token").write_text("first-token\n")
    (tmp_path / "namespace").write_text("llm")
    return tmp_path


def test_pods_that_come_and_go(account: Path) -> None:
    """Those that run are targets, page by page; those that end, or are being removed, are none."""
    api = Api("first-token")

    async def steps(look: Any, _source: Any) -> None:
        first = await look()
        assert [one.url for one in first] == [
            "http://10.0.0.1:8000/metrics",
            "http://10.0.0.2:8000/metrics",
            "http://[fd00::3]:8000/metrics",
        ]
        assert first[0].labels == (("namespace", "llm"), ("pod", "a"))
        assert {one.credentials for one in first} == {SHOWN}
        assert [one["labelSelector"] for one in api.asked] == ["app=vllm"] * 2
        api.pods = [
            pod("a", "10.0.0.1", deletionTimestamp="2026-11-22T10:00:00Z"),
            pod("b", "10.0.0.2", phase="Failed"), pod("d", None, phase="Pending"),
            pod("e", "10.0.0.5"), {"odd": 1},
        ]  # fmt: skip
        assert [one.instance for one in await look()] == ["10.0.0.5:8000"]

    looks(api, account, steps)


def test_a_token_that_was_renewed_and_one_that_is_refused(account: Path) -> None:
    """The token is read each time; a refusal is an error and no empty list."""
    api = Api("first-token")

    async def steps(look: Any, _source: Any) -> None:
        assert len(await look()) == 3
        api.token = "second-token"
        with pytest.raises(FetchError, match="401"):
            await look()
        (account / "token").write_text("second-token\n")
        assert len(await look()) == 3

    looks(api, account, steps)


def test_a_list_that_changes_while_it_is_read(account: Path) -> None:
    """Its next page is gone (410): it is read again from the start, once."""
    api = Api("first-token")

    async def steps(look: Any, _source: Any) -> None:
        api.expired = 1
        assert len(await look()) == 3
        api.expired = 9
        with pytest.raises(FetchError, match="410"):
            await look()

    looks(api, account, steps)


def test_a_pod_that_is_removed_is_noticed_at_once(account: Path) -> None:
    """The API says so, long before it is time to look again."""
    api = Api("first-token")

    async def steps(_look: Any, source: Any) -> None:
        every_hour = ScrapeSettings(interval_s=3600, timeout_s=1, refresh_s=3600)
        async with Scraper([source], every_hour) as scraper:
            await until(lambda: len(scraper.states()) == 3, "the pods")
            await until(lambda: "watch" in api.asked[-1], "a watch")
            api.remove("b")
            await until(lambda: len(scraper.states()) == 2, "the removal")
            await until(lambda: "watch" in api.asked[-1], "another watch")
            assert api.asked[-1]["resourceVersion"] == "8"
            # What it watched from is compacted away, and its connection ends.
            api.version = api.oldest = 20
            api.pods.pop()
            api.change.set()
            await until(lambda: len(scraper.states()) == 1, "what there is now")

    looks(api, account, steps)


def test_a_watch_that_begins_too_late_ends_at_once(account: Path) -> None:
    """Kubernetes has forgotten that version (410): the list is to be read again."""
    api = Api("first-token")

    async def steps(look: Any, source: Any) -> None:
        await look()
        api.oldest = 20
        async with make_session() as session:
            await asyncio.wait_for(source.changed(session), 10)

    looks(api, account, steps)


def test_outside_of_a_cluster(monkeypatch: pytest.MonkeyPatch, account: Path) -> None:
    """It says so."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(FetchError, match="runs in no cluster"):
        found(KubernetesPods("app=vllm", 8000, account=account))


def test_the_addresses_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address is a target, once; a name that is gone is an error."""
    answers = [["10.0.0.1", "10.0.0.2", "10.0.0.1"], ["10.0.0.2"], []]

    def resolve(*_args: Any, **_more: Any) -> Any:
        addresses = answers.pop(0)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "name not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 8000)) for one in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    source = DnsTargets("engines.llm.svc", 8000)
    assert [one.instance for one in found(source)] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert [one.instance for one in found(source)] == ["10.0.0.2:8000"]
    with pytest.raises(FetchError, match=r"engines\.llm\.svc:8000: name not known"):
        found(source)


def srv_answer(question: bytes, *records: tuple[int, bytes]) -> bytes:
    """Make an answer whose records point back to the name in the question."""
    name_end = question.index(b"\0", 12)
    flags = 0x8180 if records else 0x8183
    head = question[:2] + struct.pack("!5H", flags, 1, len(records), 0, 0)
    answer = head + question[12 : name_end + 5]
    for port, host in records:
        data = struct.pack("!3H", 0, 10, port) + host
        answer += b"\xc0\x0c" + struct.pack("!2HIH", 33, 1, 30, len(data)) + data
    return answer


def test_the_hosts_and_ports_of_a_service() -> None:
    """By SRV records of a DNS server; an answer too long for a datagram is had over TCP."""
    # `pod-1` and the rest of the name in the question, from its third label on.
    short, other = b"\5pod-1\xc0\x1a", b"\5pod-2\3llm\3svc\0"
    answers: list[list[tuple[int, bytes]]] = [[(8000, short), (8001, other)], [(8001, other)], []]
    asked: list[str] = []

    class Datagrams(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            asked.append("udp")
            whole = srv_answer(data, *answers[0])
            cut = data[:2] + struct.pack("!5H", 0x8380, 1, 0, 0, 0) + data[12:]
            self.transport.sendto(cut if len(answers) == 2 else whole, addr)
            if len(answers) != 2:
                answers.pop(0)

    async def stream(incoming: Any, outgoing: Any) -> None:
        asked.append("tcp")
        [length] = struct.unpack("!H", await incoming.readexactly(2))
        whole = srv_answer(await incoming.readexactly(length), *answers.pop(0))
        outgoing.write(struct.pack("!H", len(whole)) + whole)
        outgoing.close()

    async def main() -> list[list[str]]:
        server = await asyncio.start_server(stream, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            Datagrams, local_addr=address
        )
        source = SrvTargets(
            "_metrics._tcp.engines.llm.svc", server=address, scheme="https", for_targets=SHOWN
        )
        try:
            async with server, make_session() as session:
                found = [await source.targets(session) for _ in range(3)]
                assert {(one.url[:8], one.credentials) for one in found[0]} == {
                    ("https://", SHOWN)
                }
                return [[one.instance for one in each] for each in found]
        finally:
            transport.close()

    assert asyncio.run(main()) == [["pod-1.engines.llm.svc:8000", "pod-2.llm.svc:8001"],
                                   ["pod-2.llm.svc:8001"], []]  # fmt: skip
    assert asked == ["udp", "udp", "tcp", "udp"]


@pytest.mark.parametrize(
    "broken", [b"\0" * 11, b"\0\0\x81\x80" + b"\xff" * 40], ids=["short", "long"]
)
def test_what_is_no_answer_of_records(monkeypatch: pytest.MonkeyPatch, broken: bytes) -> None:
    """A failure with a reason, never a crash of the reading of other targets."""

    class Broken(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            self.transport.sendto(data[:2] + broken[2:], addr)

    async def main() -> None:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            Broken, local_addr=("127.0.0.1", 0)
        )
        address = transport.get_extra_info("sockname")
        try:
            async with make_session() as session:
                await SrvTargets("_a._tcp.b", server=address).targets(session)
        finally:
            transport.close()

    monkeypatch.setattr(dns_srv, "_TIMEOUT_S", 0.3)  # for which it asks again
    with pytest.raises(FetchError, match="answer"):
        asyncio.run(main())


def test_a_server_that_lists_targets_and_an_engine_with_a_password(tmp_path: Path) -> None:
    """The list is given to who shows the token, the page to who shows name and password."""
    (tmp_path / "token").write_text("a-token-of-many-letters")
    (tmp_path / "password").write_text("päss word\n")
    (tmp_path / "engines").write_text("another-token-of-many")
    asked: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, request.headers.get("Authorization")))
        port = request.url.port
        if request.path == "/sd":
            return web.json_response([{"targets": [f"127.0.0.1:{port}"]}])
        if request.path == "/others":
            return web.json_response([{"targets": [f"http://127.0.0.1:{port}/other"]}])
        return web.Response(text="# no engine\n")

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/{path}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        root = f"http://127.0.0.1:{runner.addresses[0][1]}"
        file = tmp_path / "c.yaml"
        file.write_text(
            f"scrape:\n  http: [{{url: {root}/sd, token_file: token}},\n"
            f"    {{url: {root}/others, for_targets: {{token_file: engines}}}}]\n"
            "  files: [{file: t.json, for_targets: {username: me, password_file: password}}]\n"
            f"  targets: [{{targets: ['{root}/page'], username: me, password_file: password}}]\n"
        )
        (tmp_path / "t.json").write_text(f'[{{"targets": ["{root}/filed"]}}]')
        config = load(file, None, {})
        (tmp_path / "again.yaml").write_text(as_yaml(config))
        again = load(tmp_path / "again.yaml", None, {})
        assert again.scrape.sources() == config.scrape.sources()
        assert "password_file: " + str(tmp_path / "password") in as_yaml(config)
        quick = ScrapeSettings(interval_s=0.2, timeout_s=0.2)
        async with Scraper(config.scrape.sources(), quick):
            await until(lambda: len({path for path, _ in asked}) == 6, "all six")
        await runner.cleanup()

    asyncio.run(main())
    basic = base64.b64encode("me:päss word".encode()).decode()
    assert set(asked) == {
        ("/sd", "Bearer a-token-of-many-letters"), ("/metrics", None),
        ("/others", None), ("/other", "Bearer another-token-of-many"),
        ("/page", f"Basic {basic}"), ("/filed", f"Basic {basic}"),
    }  # fmt: skip


def test_the_settings(tmp_path: Path) -> None:
    """What is written is read back; what is wrong is named."""
    file = tmp_path / "c.yaml"
    file.write_text(
        "scrape:\n  dns: ['engines.llm.svc:8000', '[::1]:9']\n"
        "  kubernetes: [{selector: app=vllm, port: 8000, namespace: llm}]\n"
    )
    config = load(file, None, {})
    assert config.scrape.sources() == (
        DnsTargets("engines.llm.svc", 8000),
        DnsTargets("::1", 9),
        KubernetesPods("app=vllm", 8000, "llm"),
    )
    said = {name: what for name, what, _ in banner.lines(config, Places())}
    assert said["engines"] == "2 DNS names, 1 pod selector"
    file.write_text(as_yaml(config))
    assert load(file, None, {}).scrape.sources() == config.scrape.sources()
    file.write_text("scrape: {dns: [_metrics._tcp.engines.llm.svc]}")
    assert load(file, None, {}).scrape.sources() == (SrvTargets("_metrics._tcp.engines.llm.svc"),)
    for text, words in (
        ("http: [{url: 'http://a/sd', username: me}]", "username and password_file go together"),
        ("http: [{url: 'http://a/sd', colour: b}]", "colour"),
        ("dns: [engines]", "scrape.dns"),
        ("kubernetes: [{port: 1}]", "selector"),
        ("kubernetes: [{selector: a, port: no}]", "port"),
        ("kubernetes: [{selector: a, port: 1, colour: b}]", "colour"),
        ("kubernetes: [{selector: a, port: 1, for_targets: x}]", "for_targets: 'x' is not"),
        ("dns: [{name: 'a:1', for_targets: {server_name: b}}]", "say `scheme: https`"),
        ("dns: [{name: 'a:1', scheme: ftp}]", "scheme: 'ftp' is not one of http, https"),
        ("files: [{path: a}]", "no such setting: path"),
    ):
        file.write_text(f"scrape: {{{text}}}")
        with pytest.raises(ConfigError, match=words):
            load(file, None, {})
