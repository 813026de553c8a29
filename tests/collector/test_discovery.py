"""Are targets found by DNS name and by Kubernetes label, and lost when they are gone?"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from llmtrace.errors import ConfigError
from llmtrace_collector.config.schema import as_yaml, load
from llmtrace_collector.scrape.discovery import DnsTargets, KubernetesPods
from llmtrace_collector.scrape.fetch import FetchError, make_session
from llmtrace_collector.scrape.targets import Target


def pod(name: str, address: str | None, phase: str = "Running", **about: Any) -> dict[str, Any]:
    """Make a pod as the API lists it."""
    return {"metadata": {"name": name, "namespace": "llm", **about},
            "status": {"phase": phase, "podIP": address}}  # fmt: skip


class Api:
    """Lists pods in pages of two, to whoever shows the token."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.pods = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("c", "fd00::3")]
        self.asked: list[dict[str, str]] = []

    async def list(self, request: web.Request) -> web.Response:
        """Answer one page."""
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status"}, status=401)
        self.asked.append(dict(request.query))
        at = int(request.query.get("continue", "0"))
        more = {"continue": str(at + 2)} if at + 2 < len(self.pods) else {}
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
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        source = KubernetesPods("app=vllm", 8000, api=f"http://127.0.0.1:{port}", account=account)
        try:
            async with make_session() as session:
                await steps(lambda: source.targets(session))
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

    async def steps(look: Any) -> None:
        first = await look()
        assert [one.url for one in first] == [
            "http://10.0.0.1:8000/metrics",
            "http://10.0.0.2:8000/metrics",
            "http://[fd00::3]:8000/metrics",
        ]
        assert first[0].labels == (("namespace", "llm"), ("pod", "a"))
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

    async def steps(look: Any) -> None:
        assert len(await look()) == 3
        api.token = "second-token"
        with pytest.raises(FetchError, match="401"):
            await look()
        (account / "token").write_text("second-token\n")
        assert len(await look()) == 3

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
    file.write_text(as_yaml(config))
    assert load(file, None, {}).scrape.sources() == config.scrape.sources()
    for text, words in (
        ("dns: [engines]", "scrape.dns"),
        ("kubernetes: [{port: 1}]", "selector"),
        ("kubernetes: [{selector: a, port: no}]", "port"),
        ("kubernetes: [{selector: a, port: 1, colour: b}]", "colour"),
    ):
        file.write_text(f"scrape: {{{text}}}")
        with pytest.raises(ConfigError, match=words):
            load(file, None, {})
