"""The addresses of a running collector, and how an application sends to it."""

from __future__ import annotations

from dataclasses import dataclass

from llmtrace_collector.config.schema import Address


@dataclass(slots=True)
class Places:
    """The addresses that a running collector listens on; `None` = off.

    Attributes:
        gpus: number of this machine's GPUs that are read.
        tls: whether all addresses use TLS.
        token, client_certificate: whether senders must show one.
    """

    web: Address | None = None
    otlp_http: Address | None = None
    otlp_grpc: Address | None = None
    gpus: int = 0
    tls: bool = False
    token: bool = False
    client_certificate: bool = False

    def url(self, at: Address) -> str:
        """Return an address as a client on this machine writes it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(at.host, at.host)  # noqa: S104
        return f"{'https' if self.tls else 'http'}://{Address(host, at.port)}"


def how_to_send(places: Places) -> str:
    """Return the shell lines with which an application sends to it; TOKEN and FILE are its own."""
    at = places.otlp_http or places.otlp_grpc
    if at is None:
        return "listen.otlp_http and listen.otlp_grpc are off: nothing is received"
    said = [f"ENDPOINT={places.url(at)}"]
    said += ["PROTOCOL=grpc"] * (places.otlp_http is None)
    said += ["HEADERS=authorization=Bearer%20TOKEN"] * places.token
    if places.client_certificate:
        said += ["CLIENT_CERTIFICATE=FILE", "CLIENT_KEY=FILE"]
    return "\n".join(f"export OTEL_EXPORTER_OTLP_{one}" for one in said)
