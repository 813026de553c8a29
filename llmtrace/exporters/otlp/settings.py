"""The endpoint, transport and headers of OTLP exports.

From the standard `OTEL_EXPORTER_OTLP_*` variables: a signal's own wins over the general one, and
an argument over both. Everything wrong with them is reported at set-up; header values are never
shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from llmtrace.core.errors import ConfigError

Signal = Literal["traces", "metrics"]
Protocol = Literal["grpc", "http/protobuf"]

_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
_GRPC_PORT: Final = 4317
_DEFAULT_TIMEOUT_S: Final = 10.0
# OpenTelemetry for Python reads the time-out in seconds, its specification in milliseconds.
_SURELY_MILLISECONDS: Final = 1000.0
_SIGNAL_PATH: Final = re.compile(r"/v1/(traces|metrics|logs)$")
_TRUE: Final = frozenset({"true", "1", "yes", "on"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSettings:
    """Where one signal goes, checked. The headers' values stay out of the `repr`.

    Attributes:
        protocol: `grpc` or `http/protobuf`.
        url: for HTTP the full URL of the signal; for gRPC `host:port`.
        headers: sent with each request; names in lower case.
        timeout_s: of one attempt.
        gzip: compress the body.
        insecure: no TLS.
        certificate: PEM file of the authorities to trust.
        client_key: PEM file of this client's key.
        client_certificate: PEM file of this client's certificate.
    """

    protocol: Protocol
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = _DEFAULT_TIMEOUT_S
    gzip: bool = False
    insecure: bool = False
    certificate: str | None = None
    client_key: str | None = None
    client_certificate: str | None = None


def read_settings(
    signal: Signal,
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> OtlpSettings:
    """Work out where one signal goes.

    Without a protocol, `grpc` is used for an endpoint on port 4317 and `http/protobuf` otherwise.

    Args:
        signal: `traces` or `metrics`.
        endpoint: base URL of the receiver; for HTTP, `/v1/<signal>` is put at its end.
        protocol: `grpc` or `http/protobuf`.
        environ: the variables.

    Raises:
        ConfigError: a setting cannot be; the message says which and what would do.
    """
    place, is_full = _endpoint(signal, endpoint, environ)
    named, chosen = ("protocol", protocol) if protocol else _lookup(environ, signal, "PROTOCOL")
    parts = urlsplit(place if "://" in place else f"//{place}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in {"", "http", "https"}:
        raise ConfigError(
            f"OTLP endpoint {_shown(place)!r} is not a URL; give one such as "
            "http://localhost:4318 (HTTP) or http://localhost:4317 (gRPC)"
        )
    if not chosen:
        chosen = "grpc" if port == _GRPC_PORT else "http/protobuf"
    client_key, client_certificate = _client_pair(environ, signal)
    return OtlpSettings(
        protocol="grpc" if chosen == "grpc" else "http/protobuf",
        url=_url(signal, chosen, named, place, parts, is_full=is_full),
        headers=_headers(signal, environ),
        timeout_s=_timeout(signal, environ),
        gzip=_gzip(signal, environ),
        insecure=_insecure(signal, parts.scheme, environ),
        certificate=_file(environ, signal, "CERTIFICATE"),
        client_key=client_key,
        client_certificate=client_certificate,
    )


def _client_pair(environ: Mapping[str, str], signal: Signal) -> tuple[str | None, str | None]:
    """Return the files of this client's key and certificate."""
    key = _file(environ, signal, "CLIENT_KEY")
    certificate = _file(environ, signal, "CLIENT_CERTIFICATE")
    if (key is None) != (certificate is None):
        raise ConfigError(
            f"{_PREFIX}CLIENT_KEY and {_PREFIX}CLIENT_CERTIFICATE belong together: set both or "
            "neither"
        )
    return key, certificate


def _url(
    signal: Signal, protocol: str, named: str, place: str, parts: SplitResult, *, is_full: bool
) -> str:
    """Return where a signal goes by a protocol: `host:port` for gRPC, else a whole URL."""
    if protocol == "grpc":
        return parts.netloc.rpartition("@")[2]
    if protocol != "http/protobuf":
        raise ConfigError(f"{named}={protocol!r}: llmtrace speaks grpc and http/protobuf")
    if not parts.scheme:
        raise ConfigError(f"OTLP endpoint {_shown(place)!r} needs http:// or https:// in front")
    if is_full:
        return place
    # The general one is often given as one signal's URL.
    return _SIGNAL_PATH.sub("", place.rstrip("/")) + f"/v1/{signal}"


def _lookup(environ: Mapping[str, str], signal: Signal, setting: str) -> tuple[str, str | None]:
    """Return the variable a setting comes from, the signal's own first, and its text."""
    general = f"{_PREFIX}{setting}"
    for name in (f"{_PREFIX}{signal.upper()}_{setting}", general):
        if text := environ.get(name, "").strip():
            return name, text
    return general, None


def _endpoint(signal: Signal, given: str | None, environ: Mapping[str, str]) -> tuple[str, bool]:
    """Return the endpoint, and whether it is the signal's own URL, to be used as it is."""
    if given is not None:
        return given.strip(), False
    name, text = _lookup(environ, signal, "ENDPOINT")
    if text is not None:
        return text, name != f"{_PREFIX}ENDPOINT"
    _, protocol = _lookup(environ, signal, "PROTOCOL")
    return ("http://localhost:4317" if protocol == "grpc" else "http://localhost:4318"), False


def _shown(place: str) -> str:
    """Return an endpoint without the password it may hold."""
    head, at, tail = place.rpartition("@")
    if not at:
        return place
    scheme, slashes, _ = head.partition("://")
    return f"{scheme}://…@{tail}" if slashes else f"…@{tail}"


def _headers(signal: Signal, environ: Mapping[str, str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    variable, text = _lookup(environ, signal, "HEADERS")
    for number, pair in enumerate((text or "").split(","), start=1):
        if not pair.strip():
            continue
        name, equals, value = (unquote(part.strip()) for part in pair.partition("="))
        if not equals or not name or not value.isascii() or not value.isprintable():
            # What it holds is not shown: it may be a token.
            msg = f"{variable}: entry {number} is not name=value; separate entries by commas"
            raise ConfigError(msg)
        headers[name.lower()] = value
    return headers


def _timeout(signal: Signal, environ: Mapping[str, str]) -> float:
    name, text = _lookup(environ, signal, "TIMEOUT")
    if text is None:
        return _DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds >= _SURELY_MILLISECONDS:
        seconds /= 1000
    if not 0 < seconds < _SURELY_MILLISECONDS:
        raise ConfigError(f"{name}={text!r} is not a time-out; give seconds, such as 10")
    return seconds


def _gzip(signal: Signal, environ: Mapping[str, str]) -> bool:
    name, text = _lookup(environ, signal, "COMPRESSION")
    if text is not None and text.lower() not in {"gzip", "none"}:
        raise ConfigError(f"{name}={text!r}: llmtrace compresses with gzip or not at all (none)")
    return text is not None and text.lower() == "gzip"


def _insecure(signal: Signal, scheme: str, environ: Mapping[str, str]) -> bool:
    if scheme:
        return scheme == "http"
    _, text = _lookup(environ, signal, "INSECURE")
    return text is not None and text.lower() in _TRUE


def _file(environ: Mapping[str, str], signal: Signal, setting: str) -> str | None:
    name, path = _lookup(environ, signal, setting)
    if path is not None and not Path(path).is_file():
        raise ConfigError(f"{name}={path!r}: there is no such file")
    return path
