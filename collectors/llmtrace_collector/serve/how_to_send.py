"""Where a running collector listens, and how an application is pointed at it."""

from __future__ import annotations

from dataclasses import dataclass

from llmtrace_collector.config.schema import Address


@dataclass(slots=True)
class Places:
    """Where a running collector listens; `None` = it does not.

    Attributes:
        gpus: of this machine, that are read.
        tls: whether all of it speaks TLS.
    """

    web: Address | None = None
    otlp_http: Address | None = None
    otlp_grpc: Address | None = None
    gpus: int = 0
    tls: bool = False

    def url(self, at: Address) -> str:
        """Return an address as a client on this machine writes it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(at.host, at.host)  # noqa: S104
        return f"{'https' if self.tls else 'http'}://{Address(host, at.port)}"


def how_to_send(places: Places) -> str:
    """Return the line that points an application at it."""
    if places.otlp_http is not None:
        return f"export OTEL_EXPORTER_OTLP_ENDPOINT={places.url(places.otlp_http)}"
    if places.otlp_grpc is not None:
        url = places.url(places.otlp_grpc)
        return f"export OTEL_EXPORTER_OTLP_ENDPOINT={url}\nexport OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
    return "listen.otlp_http and listen.otlp_grpc are off: nothing is received"
