"""Find the targets: the servers whose metrics pages are read.

Listed in the settings, in files, or by a server: the last two in Prometheus's own formats
(`file_sd`, `http_sd`), so that what feeds Prometheus feeds this too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import aiohttp
import yaml

from llmtrace.budget.yaml_loader import load_yaml
from llmtrace.core.errors import ConfigError, explain_error
from llmtrace_collector.scrape.credentials import NONE_NEEDED, Credentials
from llmtrace_collector.scrape.fetch import checked, fetch, read_json, shown

_MAX_BYTES: Final = 8 << 20
_MAX_TEXT: Final = 500
_TIMEOUT_S: Final = 10.0  # of a server of targets
_HOST_PORT: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):[0-9]{1,5}")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PATH: Final = "__metrics_path__"
_SCHEME: Final = "__scheme__"


@dataclass(frozen=True, slots=True)
class Target:
    """One page to read.

    Attributes:
        url: of the page.
        labels: added to everything that is read there; `instance` replaces the target's own.
        credentials: for the page.
    """

    url: str
    labels: tuple[tuple[str, str], ...] = ()
    credentials: Credentials = NONE_NEEDED

    @property
    def instance(self) -> str:
        """Host and port, as Prometheus calls a target, and a path other than `/metrics`.

        Engines behind one gateway differ in nothing but the path.
        """
        if (named := dict(self.labels).get("instance")) is not None:
            return named
        return shown(self.url).partition("://")[2].removesuffix("/").removesuffix("/metrics")

    @property
    def more_labels(self) -> dict[str, str]:
        """What `labels` has beside `instance`, by name."""
        return {name: value for name, value in self.labels if name != "instance"}


class TargetSource(Protocol):
    """A source of targets: a list, a file, a server."""

    @property
    def name(self) -> str:
        """What it is called in logs and counters."""

    async def targets(self, session: aiohttp.ClientSession) -> Sequence[Target]:
        """Return all targets there are now.

        Raises:
            LlmtraceError: the source cannot be read now.
        """


@runtime_checkable
class WatchedSource(Protocol):
    """A source that reports when its targets may have changed."""

    async def changed(self, session: aiohttp.ClientSession) -> None:
        """Return when they may have changed since `targets` was called last."""


@dataclass(frozen=True, slots=True)
class StaticTargets:
    """Targets that the settings list."""

    listed: tuple[Target, ...]

    @property
    def name(self) -> str:
        """The name of the source in the log and the metrics."""
        return "static"

    async def targets(self, session: aiohttp.ClientSession) -> Sequence[Target]:
        """Return the targets as the settings list them."""
        del session
        return self.listed


@dataclass(frozen=True, slots=True)
class FileTargets:
    """Targets in JSON or YAML files, as Prometheus's `file_sd_configs` reads them.

    Attributes:
        path: of the file; a `*` in its name stands for any number of files, also none.
        for_targets: the credentials for each target in it.
    """

    path: Path
    for_targets: Credentials = NONE_NEEDED

    @property
    def name(self) -> str:
        """The path of the file, for the log and the metrics."""
        return f"file {self.path}"

    async def targets(self, session: aiohttp.ClientSession) -> Sequence[Target]:
        """Read the file again, and return the targets in it."""
        del session
        return self.read()

    def read(self) -> tuple[Target, ...]:
        """Return the targets in the file, or files.

        Raises:
            ConfigError: one cannot be read, or does not list targets.
        """
        folder, name = self.path.parent, self.path.name
        paths = sorted(folder.glob(name)) if "*" in name else [self.path]
        return tuple(target for path in paths for target in self._read(path))

    def _read(self, path: Path) -> tuple[Target, ...]:
        where = str(path)
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ConfigError(f"{where}: larger than 8 MiB, which no list of targets is")
            text = path.read_text(encoding="utf-8")
            content = json.loads(text) if path.suffix == ".json" else load_yaml(text)
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise ConfigError(f"{where}: cannot read targets: {explain_error(error)}") from error
        return parse_groups(content, where, self.for_targets)


@dataclass(frozen=True, slots=True)
class HttpTargets:
    """Targets that a server lists, as Prometheus's `http_sd_configs` asks for them.

    Attributes:
        url: of the list.
        credentials: the credentials for that server.
        for_targets: those for each target that it lists.
    """

    url: str
    credentials: Credentials = NONE_NEEDED
    for_targets: Credentials = NONE_NEEDED

    @property
    def name(self) -> str:
        """The URL of the server, for the log and the metrics."""
        return shown(self.url)

    async def targets(self, session: aiohttp.ClientSession) -> Sequence[Target]:
        """Request the list from the server, and return the targets in it."""
        text = await fetch(
            session,
            self.url,
            timeout_s=_TIMEOUT_S,
            size=_MAX_BYTES,
            authorization=self.credentials.authorization(self.name),
            tls=self.credentials.context(self.name),
            server_name=self.credentials.server_name,
        )
        return parse_groups(read_json(text, self.url), self.name, self.for_targets)


def parse_groups(
    content: Any, where: str, credentials: Credentials = NONE_NEEDED
) -> tuple[Target, ...]:
    """Read targets from a list of `{"targets": [...], "labels": {...}}`.

    A target is `host:port` or a whole address. The labels `__scheme__` and `__metrics_path__` say
    where its page is (by default `http` and `/metrics`); others that begin with `__` are dropped.

    Raises:
        ConfigError: it is not such a list; says what is wrong where.
    """
    if not isinstance(content, list):
        raise ConfigError(
            f'{where}: must be a list of {{"targets": ["host:port"], "labels": {{}}}}'
        )
    found: dict[str, Target] = {}
    for place, group in enumerate(content):
        at = f"{where}: [{place}]" if len(content) > 1 else where
        hosts = group.get("targets") if isinstance(group, Mapping) else None
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            raise ConfigError(f'{at}: "targets" must be a list of texts such as "host:8000"')
        labels = group.get("labels") or {}
        if not isinstance(labels, Mapping):
            raise ConfigError(f'{at}: "labels" must map names to texts')
        named = {
            str(name): _value(value, f"{at}: labels.{name}") for name, value in labels.items()
        }
        kept = tuple(sorted((k, v) for k, v in named.items() if not k.startswith("__")))
        for name, _ in kept:
            if _LABEL.fullmatch(name) is None:
                raise ConfigError(f"{at}: {name!r} is not the name of a label")
        if "instance" in named and len(hosts) > 1:
            raise ConfigError(f"{at}: labels.instance is the name of one target, not of several")
        for host in hosts:
            url = host
            if "://" not in host:
                if _HOST_PORT.fullmatch(host) is None:
                    raise ConfigError(
                        f"{at}: {host!r} is not an address such as engine:8000 or "
                        "http://engine:8000/metrics"
                    )
                url = f"{named.get(_SCHEME, 'http')}://{host}{named.get(_PATH, '/metrics')}"
            found.setdefault(url, Target(checked(url, at), kept, credentials))
    return tuple(found.values())


def _value(value: Any, where: str) -> str:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)[:_MAX_TEXT]
    raise ConfigError(f"{where}: must be a text, not {value!r}")
