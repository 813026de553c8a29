"""Does the HTTP server say at set-up what is wrong?"""

from __future__ import annotations

import asyncio

import pytest

from llmtrace.core.errors import ConfigError
from llmtrace_collector.receive import HttpServer, ReceiveLimits
from llmtrace_collector.receive.counters import Received


async def nothing(scope, receive, send):
    """Answer nothing."""


def server(port=0, **how):
    """Make a server that is not started."""
    return HttpServer(nothing, "127.0.0.1", port, ReceiveLimits(), Received(), **how)


def test_a_port_in_use_is_reported():
    """With the port, and what would do."""

    async def run():
        first = await server().start()
        try:
            with pytest.raises(ConfigError, match="choose another address"):
                await server(first.port).start()
        finally:
            await first.stop()

    asyncio.run(run())


def test_a_certificate_that_is_none_is_reported(tmp_path):
    """Before anybody connects."""
    (tmp_path / "x.pem").write_text("no certificate")

    with pytest.raises(ConfigError, match="PEM"):
        asyncio.run(server(certificate=tmp_path / "x.pem", key=tmp_path / "x.pem").start())


@pytest.mark.parametrize(
    "wrong", [{"body_bytes": 0}, {"connections": -1}, {"body_bytes": 1 << 40}]
)
def test_wrong_limits_are_reported(wrong):
    """With the setting's name."""
    with pytest.raises(ConfigError, match=f"receive.{next(iter(wrong))}"):
        ReceiveLimits(**wrong)
