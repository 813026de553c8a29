"""The settings of `llmtrace collect`, and their defaults.

One YAML file; variables `LLMTRACE_COLLECT_*` take precedence over it, and flags over those.
Everything is checked here, before anything listens. Tokens and passwords come only from files or
the environment.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import yaml

from llmtrace.budget import DEFAULT, Budgets, read_budgets
from llmtrace.budget.file import as_plain
from llmtrace.core.errors import ConfigError
from llmtrace.core.listen_address import bracketed, is_loopback
from llmtrace_collector.config import target_fields
from llmtrace_collector.config.fields import (
    Given,
    Key,
    Read,
    Where,
    build,
    each,
    file_there,
    flag,
    from_environment,
    from_file,
    number,
    one_of,
    path,
    setting,
    text,
    token_file,
    variable,
    whole,
)
from llmtrace_collector.config.link_templates import LinkTemplate, link
from llmtrace_collector.receive.limits import SYNCS, ReceiveLimits, SpoolLimits
from llmtrace_collector.scrape.discovery import DnsTargets, KubernetesPods
from llmtrace_collector.scrape.dns_srv import SrvTargets
from llmtrace_collector.scrape.fetch import checked, shown
from llmtrace_collector.scrape.scraper import ScrapeSettings
from llmtrace_collector.scrape.targets import (
    FileTargets,
    HttpTargets,
    StaticTargets,
    Target,
    TargetSource,
)
from llmtrace_collector.store.tables import Keep

PREFIX: Final = "LLMTRACE_COLLECT"
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_DAY_S: Final = 86_400
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": _DAY_S}
_DURATION: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([smhd])\s*")
_MAX_PORT: Final = 65_535
Limits = TypeVar("Limits", ReceiveLimits, SpoolLimits)


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen on; port 0 takes a free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


_TAKEN: Final = ReceiveLimits()
_KEPT: Final = SpoolLimits()
_KEEP: Final = Keep()


def _loopback(port: int) -> Address | None:
    return Address("127.0.0.1", port)


def address(value: Any, where: Where) -> Address | None:
    """Read `host:port`, a port alone (on loopback), or off."""
    if value is False or value == "off":
        return None
    said = str(value) if isinstance(value, int | str) and value is not True else ""
    host, colon, port = said.rpartition(":")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise where.wrong(f"{value!r}: an IPv6 address is in brackets, such as [::1]:4319")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if port.isdecimal() and int(port) <= _MAX_PORT and host:
        return Address(host, int(port))
    raise where.wrong(f"{value!r} is not an address such as 127.0.0.1:4319, a port, or off")


def size(least: int = 1) -> Read[int]:
    """Return a reader of bytes: a number, or 512MB, 20GiB (both in powers of 1024)."""

    def read(value: Any, where: Where) -> int:
        match = _SIZE.fullmatch(str(value)) if not isinstance(value, bool) else None
        found = float(match[1]) * _SIZES[match[2].lower()] if match else float("inf")
        if found == float("inf"):
            raise where.wrong(f"{value!r} is not a size such as 512MB or 20GB")
        if found < least:
            raise where.wrong(f"{value!r} is less than the minimum, {least} bytes")
        return round(found)

    return read


def duration(value: Any, where: Where) -> float:
    """Read seconds: a number, or 30s, 15m, 6h, 7d."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value)
    else:
        match = _DURATION.fullmatch(str(value))
        found = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not 0 < found < float("inf"):
        raise where.wrong(f"{value!r} is not a time such as 15s, 6h or 30d")
    return found


def store_url(value: Any, where: Where) -> str:
    """Read the address of the store; one with a password is refused: addresses get into logs."""
    said = text(value, where)
    try:
        parts = urlsplit(said)
    except ValueError as error:
        raise where.wrong(f"not an address: {error}") from error
    if parts.password is not None:
        raise where.wrong(
            "a password does not belong in an address: set CLICKHOUSE_PASSWORD, or "
            "CLICKHOUSE_PASSWORD_FILE to a file that holds it"
        )
    if parts.scheme in {"http", "https"}:
        return checked(said, where.text)
    if parts.scheme == "chdb":
        return said
    return str(path(said, where))


def origin(value: Any, where: Where) -> str:
    """Read the origin of web pages, as browsers name it."""
    said = text(value, where)
    if said != "*":
        parts = urlsplit(checked(said, where.text))
        if parts.path or parts.query or parts.username:
            raise where.wrong(f"{said!r} is not an origin such as https://shop.example")
    return said


def folder_there(value: Any, where: Where) -> Path:
    """Read the path of a folder that exists."""
    found = path(value, where)
    if not found.is_dir():
        raise where.wrong(f"there is no folder {found}")
    return found


def budgets(value: Any, where: Where) -> Budgets:
    """Read latency budgets: their file, or the mapping itself."""
    try:
        return read_budgets(value if isinstance(value, Mapping) else path(value, where))
    except ConfigError as error:
        raise where.wrong(str(error)) from error


def data_folder() -> Path:
    """Return the default folder of the data."""
    state = os.environ.get("XDG_STATE_HOME")
    return Path(state or "~/.local/state") / "llmtrace"


def _with_settings(limits: Limits, settings: Receive | Spooling) -> Limits:
    """Return the limits, with the values of the settings that have the same names."""
    names = {one.name for one in fields(limits)} & {one.name for one in fields(settings)}
    return replace(limits, **{name: getattr(settings, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """The addresses to listen on; `off` = none."""

    web: Address | None = setting(
        _loopback(4319), address, "the live page, `/metrics` and the read API"
    )
    otlp_http: Address | None = setting(
        _loopback(4318), address, "OTLP over HTTP, and browsers' beacons"
    )
    otlp_grpc: Address | None = setting(_loopback(4317), address, "OTLP over gRPC")
    open: bool = setting(
        False,
        flag,
        "listen beyond this machine without a token; access is controlled by what is in "
        "front of it, such as a container's published ports",
    )

    @property
    def addresses(self) -> dict[str, Address]:
        """The addresses to listen on, by the name of the setting."""
        named = {"web": self.web, "otlp_http": self.otlp_http, "otlp_grpc": self.otlp_grpc}
        return {name: at for name, at in named.items() if at is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """Settings of the receiver: what it accepts, and how much."""

    token_file: Path | None = setting(
        None, token_file, "OTLP senders must send the token in this file"
    )
    client_ca_file: Path | None = setting(
        None, file_there, "PEM; OTLP senders must present a certificate signed by it (mTLS)"
    )
    origins: tuple[str, ...] = setting(
        (), each(origin), "origins of web pages that may send beacons; `*` = any"
    )
    body_bytes: int = setting(_TAKEN.body_bytes, size(), "maximum size of a request as received")
    inflated_bytes: int = setting(
        _TAKEN.inflated_bytes, size(), "maximum size of a request after decompression"
    )
    expanded_bytes: int = setting(
        _TAKEN.expanded_bytes,
        size(),
        "maximum size of a request as stored, with a copy of resource and scope in each span",
    )
    memory_bytes: int = setting(_TAKEN.memory_bytes, size(), "for all requests in progress")
    connections: int = setting(
        _TAKEN.connections, whole(1, 1_000_000, "a number of connections"), "maximum open at once"
    )
    beacons_per_s: float = setting(
        _TAKEN.beacons_per_s, number(0.1, 1e6, "a number"), "maximum rate of browsers' beacons"
    )

    def limits(self) -> ReceiveLimits:
        """Return the limits of the receiver."""
        return _with_settings(_TAKEN, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooling:
    """Settings of the spool, which keeps acknowledged requests until they are stored."""

    sync: str = setting(
        str(_KEPT.sync),
        one_of(*SYNCS),
        "when to `fsync`: `always` = before the acknowledgement, `interval` = once a second, "
        "`never` = left to the operating system. It matters only in a power failure",
    )
    disk_bytes: int = setting(_KEPT.disk_bytes, size(), "maximum size; above it senders retry")
    free_bytes: int = setting(_KEPT.free_bytes, size(0), "space to leave free on the disk")
    quarantine_bytes: int = setting(
        _KEPT.quarantine_bytes, size(), "for rejected requests; above it the oldest are deleted"
    )

    def limits(self) -> SpoolLimits:
        """Return the limits of the spool."""
        return _with_settings(
            replace(_KEPT, segment_bytes=min(_KEPT.segment_bytes, self.disk_bytes)), self
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Where rows and spans are stored, and for how long."""

    url: str | None = setting(
        None,
        store_url,
        "a ClickHouse server, `https://user@host:8443/database`; else a folder under `data`",
    )
    spans_days: int = setting(
        _KEEP.spans, whole(1, 36_500, "a number of days"), "days to keep spans"
    )
    rows_days: int = setting(
        _KEEP.rows, whole(1, 36_500, "a number of days"), "days to keep rows of requests"
    )
    signals_days: int = setting(
        _KEEP.signals, whole(1, 36_500, "a number of days"), "days to keep signals of engines"
    )
    disk_bytes: int | None = setting(
        None, size(100 << 20), "embedded: maximum size; the oldest days are deleted first"
    )
    wait: float = setting(
        30.0, duration, "embedded: how long less than 1 MiB may wait before it is stored"
    )

    def keep(self) -> Keep:
        """Return the retention times of the store."""
        return replace(
            _KEEP, spans=self.spans_days, rows=self.rows_days, signals=self.signals_days
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Settings of the scraper: which metrics pages are read."""

    targets: tuple[tuple[Target, ...], ...] = setting(
        (),
        each(target_fields.target),
        "URLs to scrape, or `{targets: [...], labels: {...}, token_file: ...}`, or "
        "`username` and `password_file`, with `ca_file`, `cert_file` and `key_file` for their TLS "
        "(`server_name`: the name that the certificate must have)",
    )
    files: tuple[FileTargets, ...] = setting(
        (),
        each(target_fields.target_list),
        "lists of targets in Prometheus's file_sd format, such as `targets/*.json`; or "
        "`{file: ..., for_targets: {...}}`",
    )
    http: tuple[HttpTargets, ...] = setting(
        (),
        each(target_fields.discovery_server),
        "servers of such lists (http_sd); or `{url: ..., token_file: ...}` as for a target, with "
        "`for_targets: {token_file: ...}` for the listed targets",
    )
    dns: tuple[DnsTargets | SrvTargets, ...] = setting(
        (),
        each(target_fields.dns_name),
        "`host:port` of headless Services: each address is a target; or an SRV name such as "
        "`_metrics._tcp.engines.llm.svc.cluster.local`; or `{name: ..., scheme: https, "
        "for_targets: {...}}`",
    )
    kubernetes: tuple[KubernetesPods, ...] = setting(
        (),
        each(target_fields.pods),
        "pods by label: `{selector: app=vllm, port: 8000, namespace: llm}`, with `scheme` and "
        "`for_targets`",
    )
    interval: float = setting(15.0, duration, "seconds between two scrapes of a target")
    timeout: float | None = setting(
        None, duration, "timeout of a scrape in seconds; default: 10, or a shorter `interval`"
    )
    profiles: Path | None = setting(
        None, folder_there, "folder of profiles that add to the built-in ones or replace them"
    )
    gpu: str = setting(
        "auto", one_of("auto", "on", "off"), "read this machine's NVIDIA GPUs; `auto` = if any"
    )

    def sources(self) -> tuple[TargetSource, ...]:
        """Return the sources of targets."""
        listed = tuple(one for group in self.targets for one in group)
        static = (StaticTargets(listed),) if listed else ()
        return (*static, *self.files, *self.http, *self.dns, *self.kubernetes)

    def settings(self) -> ScrapeSettings:
        """Return the timing and the limits of a scrape."""
        timeout_s = self.timeout or min(10.0, self.interval)
        return ScrapeSettings(interval_s=self.interval, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Settings of the request metrics on `/metrics`."""

    requests: bool = setting(
        True, flag, "count stored rows, for applications that send spans and no metrics"
    )
    without: tuple[str, ...] = setting(
        (), each(text), "services that Prometheus scrapes itself; their rows are not counted"
    )
    settle: float = setting(10.0, duration, "seconds a row must be unchanged before it is counted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Settings of the read API: who may read."""

    token_file: Path | None = setting(
        None, token_file, "readers of `/metrics` and the API must send the token in this file"
    )
    certificate: Path | None = setting(None, file_there, "PEM; enables TLS on every address")
    key: Path | None = setting(None, file_there, "PEM; private key of the certificate")
    hosts: tuple[str, ...] = setting((), each(text), "additional host names that requests may use")


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Settings of the log that goes to stderr."""

    format: str = setting("text", one_of("text", "json"), "text or JSON, one line per event")
    level: str = setting("info", one_of("debug", "info", "warning", "error"), "minimum level")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of a collector, by section."""

    data: Path = setting(Path(), path, "folder of the spool and the embedded store")
    budget: Budgets = setting(
        Budgets((DEFAULT,)), budgets, "latency budgets, or their file: bucket bounds and verdicts"
    )
    links: tuple[LinkTemplate, ...] = setting(
        (),
        each(link),
        "links on a request's page: `Jaeger=https://jaeger.example/trace/{trace_id}`",
    )
    listen: Listen = field(default_factory=Listen)
    receive: Receive = field(default_factory=Receive)
    spool: Spooling = field(default_factory=Spooling)
    store: StoreSettings = field(default_factory=StoreSettings)
    scrape: Scrape = field(default_factory=Scrape)
    metrics: Metrics = field(default_factory=Metrics)
    access: Access = field(default_factory=Access)
    log: Log = field(default_factory=Log)
    stop_after: float = setting(
        20.0, number(0.1, 3600, "a number of seconds"), "maximum seconds for a graceful shutdown"
    )

    @property
    def store_place(self) -> str:
        """The URL of the store, or its folder."""
        return self.store.url or f"chdb://{self.data / 'store'}"


_FLAGS: Final = {
    ("data",): "--data-dir", ("scrape", "targets"): "--target", ("links",): "--link",
}  # fmt: skip


def load(
    file: Path | None = None,
    flags: Mapping[Key, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Return the effective configuration, checked.

    Args:
        file: YAML.
        flags: values from the command line, by key.
        environment: default: that of this process.

    Raises:
        ConfigError: something is wrong; says what, where and how to fix it.
    """
    variables = os.environ if environment is None else environment
    here = Path.cwd()
    said = {
        key: Given(value, Where(_FLAGS.get(key) or f"--{key[-1].replace('_', '-')}", here))
        for key, value in (flags or {}).items()
        if value is not None
    }
    config = build(
        Config,
        said,
        from_environment(Config, PREFIX, variables),
        {} if file is None else from_file(file.absolute()),
        {("data",): Given(str(data_folder()), Where("data", here))},
    )
    check(config)
    return config


def check(config: Config) -> None:
    """Check that the settings fit together.

    Raises:
        ConfigError: they do not.
    """
    access, listen = config.access, config.listen
    if (access.certificate is None) != (access.key is None):
        raise ConfigError("access.certificate and access.key go together: give both, or neither")
    if config.receive.client_ca_file is not None and access.certificate is None:
        raise ConfigError("receive.client_ca_file needs access.certificate: TLS comes before mTLS")
    tls(config)
    config.scrape.settings()
    config.receive.limits()
    config.spool.limits()
    for one in config.scrape.files:
        one.read()
    listed: dict[str, Target] = {}
    for target in (target for group in config.scrape.targets for target in group):
        if listed.setdefault(target.url, target) != target:
            raise ConfigError(
                f"scrape.targets: {shown(target.url)} is listed twice with different settings; a "
                "target is read once"
            )
    taken: dict[tuple[str, int], str] = {}
    for name, at in listen.addresses.items():
        other = taken.setdefault((at.host, at.port), name) if at.port else name
        if other != name:
            raise ConfigError(f"listen.{other} and listen.{name} are both {at}; take two ports")
    if not listen.addresses:
        raise ConfigError("listen: web, otlp_http and otlp_grpc are all off: nothing to do")
    if not listen.open and (unguarded := exposed(config)):
        raise ConfigError(
            f"{'; '.join(unguarded)}. If something in front of it decides who reaches it, say so "
            f"by `listen.open: true`, or by {variable(PREFIX, ('listen', 'open'))}=true"
        )
    if config.store.spans_days > config.store.rows_days:
        raise ConfigError(
            "store.spans_days is more than store.rows_days; rows are the smaller by far, "
            "keep them at least as long"
        )


def tls(config: Config) -> ssl.SSLContext | None:
    """Return the TLS context of the listeners; `None` = no TLS.

    Raises:
        ConfigError: the certificate or the key is invalid, or they do not belong together.
    """
    certificate, key = config.access.certificate, config.access.key
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        if config.receive.client_ca_file is not None:
            context.load_verify_locations(config.receive.client_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"access.certificate {certificate} and access.key {key}: "
            f"not a PEM certificate and its key: {error}"
        ) from error
    return context


def exposed(config: Config) -> Sequence[str]:
    """Return warnings about what others can reach without a token."""
    said = []
    for name, at in config.listen.addresses.items():
        key = "access" if name == "web" else "receive"
        if not at.is_loopback and getattr(config, key).token_file is None:
            said.append(f"listen.{name} is {at}: others can reach it, and may use it "
                        f"unless {key}.token_file is set")  # fmt: skip
    return said


def as_yaml(config: Config) -> str:
    """Write the settings as a configuration file, without secrets."""
    return yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Address | LinkTemplate):
        return str(value)
    if isinstance(
        value, Target | FileTargets | HttpTargets | DnsTargets | SrvTargets | KubernetesPods
    ):
        return target_fields.written(value)
    if isinstance(value, Budgets):
        return {"budgets": [as_plain(one) for one in value]}
    if isinstance(value, StoreSettings):
        # Its address has been checked for a password; the user in it is needed.
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Listen):
        places = {one.name: getattr(value, one.name) for one in fields(value)}
        return {name: at if name == "open" else str(at or "off") for name, at in places.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple):
        nested = [part for one in value for part in (one if isinstance(one, tuple) else (one,))]
        return [_plain(one) for one in nested]
    if isinstance(value, Path):
        return str(value)
    return shown(value) if isinstance(value, str) and "://" in value else value
