"""Are metrics and logs taken without complaint, and not kept?"""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from llmtrace_collector.receive.discard import OtlpDiscard

TOKEN = "0123456789abcdef-secret"


@pytest.mark.parametrize("kind", ["metrics", "logs"])
def test_over_http(kind):
    """Answered as if kept, in the sender's own format."""
    discard = OtlpDiscard(None, 100)
    with TestClient(Starlette(routes=discard.routes())) as client:
        for media, body in (("application/x-protobuf", b""), ("application/json", b"{}")):
            answer = client.post(f"/v1/{kind}", content=b"x", headers={"Content-Type": media})
            assert (answer.status_code, answer.content) == (200, body)
            assert answer.headers["content-type"] == media
        assert client.post(f"/v1/{kind}", content=b"x" * 101).status_code == 413

    assert discard.requests == {kind: 2}


def test_not_from_everybody():
    """Who may not send spans may not send these."""
    discard = OtlpDiscard(TOKEN, 100)
    with TestClient(Starlette(routes=discard.routes())) as client:
        assert client.post("/v1/metrics", content=b"x").status_code == 401
        shown = {"Authorization": f"Bearer {TOKEN}"}
        assert client.post("/v1/metrics", content=b"x", headers=shown).status_code == 200


def test_over_grpc():
    """Both services, with and without the token."""

    async def send() -> list[str]:
        discard = OtlpDiscard(TOKEN, 100)
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        # As the collector does it: to a server that runs.
        server.add_generic_rpc_handlers(discard.handlers())
        said = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for service in ("metrics.v1.MetricsService", "logs.v1.LogsService"):
                export = channel.unary_unary(f"/opentelemetry.proto.collector.{service}/Export")
                shown = [("authorization", f"Bearer {TOKEN}")]
                said.append(repr(await export(b"x", metadata=shown, timeout=20)))
                try:
                    await export(b"x", timeout=20)
                except grpc.aio.AioRpcError as error:
                    said.append(error.code().name)
        await server.stop(None)
        assert discard.requests == {"metrics": 1, "logs": 1}
        return said

    assert asyncio.run(send()) == ["b''", "UNAUTHENTICATED"] * 2
