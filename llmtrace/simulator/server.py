"""Serve the simulated engine over real HTTP on loopback.

`serve` runs it on 127.0.0.1 from a background thread:

    with serve(ServerConfig(gateway_s=0.02)) as engine:
        client = openai.OpenAI(base_url=engine.url, api_key="none")
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from llmtrace.core.errors import ConfigError, SourceError, needs_extra
from llmtrace.core.listen_address import listen
from llmtrace.simulator.api.fault_header import Faults
from llmtrace.simulator.api.reply_plan import ServerConfig
from llmtrace.simulator.engine.scheduler import EngineConfig

with needs_extra("the simulated engine's server", "demo"):
    import uvicorn

    from llmtrace.simulator.api.asgi_app import Service, make_app, make_service

__all__ = ["EngineConfig", "Faults", "ServerConfig", "SimulatedServer", "serve"]

_HOST = "127.0.0.1"
_START_S = 10.0
_STOP_S = 2


class SimulatedServer:
    """A simulated engine that is listening. Made by `serve`."""

    def __init__(self, service: Service, port: int) -> None:
        """Bind the port and start the server's thread.

        Raises:
            ConfigError: the port is taken.
            SourceError: the server did not start.
        """
        self._service = service
        listener = listen(_HOST, port, "its argument `port`")
        self.port: int = listener.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(service),
                log_config=None,  # the host program's logging is its own
                loop="asyncio",
                ws="none",
                lifespan="on",
                server_header=False,
                timeout_graceful_shutdown=_STOP_S,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="llmtrace-sim", daemon=True
        )
        self._thread.start()
        if not service.ready.wait(_START_S):
            self.stop()
            raise SourceError(f"the simulated engine did not start within {_START_S:g} s")

    @property
    def root(self) -> str:
        """The server's address, for `/metrics`, `/health` and Anthropic's client."""
        return f"http://{_HOST}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL OpenAI's client wants, ending in `/v1`."""
        return f"{self.root}/v1"

    @property
    def config(self) -> ServerConfig:
        """The configuration that new requests are served with."""
        return self._service.config

    def change(self, config: ServerConfig) -> None:
        """Continue with another configuration, as of `llmtrace.simulator.engine.incidents`.

        The model's name stays: clients ask for it.

        Raises:
            ConfigError: the model has another name.
        """
        if config.model != self.config.model:
            raise ConfigError(
                f"the model is {self.config.model!r}, and cannot be {config.model!r}"
            )
        self._service.change(config)

    def stop(self) -> None:
        """Cut what is open, close the port and end the thread. Stopping twice is fine."""
        self._service.live.close_soon()
        self._server.should_exit = True
        self._thread.join()


@contextmanager
def serve(config: ServerConfig | None = None, *, port: int = 0) -> Iterator[SimulatedServer]:
    """Serve a simulated engine on 127.0.0.1 from a background thread; port 0 takes a free one.

    Raises:
        ConfigError: the port is taken.
        SourceError: the server did not start.
    """
    server = SimulatedServer(make_service(config), port)
    try:
        yield server
    finally:
        server.stop()
