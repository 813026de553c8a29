"""A client for the HTTP API of a Prometheus, or of what answers as one, as Thanos and Mimir do."""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from llmtrace.api_clients.collector_client import Collector
from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.core.sanitize import printable

# Names an environment variable, as they may be secret: `X-Scope-OrgID=team`, as Mimir requires.
HEADERS = "LLMTRACE_PROMETHEUS_HEADERS"
_RELOAD_S = 30.0
_MAX_WARNING = 200
_NAME = re.compile(r"[A-Za-z0-9-]{1,64}")
_VALUE = re.compile(r"[\x20-\x7e]{1,1024}")


class Prometheus(Collector):
    """A Prometheus, queried by its HTTP API.

    Args:
        url: its address, without a query.
        token_file: a file with the token it requires; `None` = it requires none.
        where: labels that every series must have.

    Raises:
        ConfigError: that is no address, the file holds no token, or `HEADERS` no headers.
    """

    server_kind = "Prometheus"
    usual = "http://127.0.0.1:9090"
    fix = "name its address with --prometheus"
    token_option = "--prometheus-token-file"  # noqa: S105 - the name of an option
    retry_after_s = (0.5, 1.0, 2.0)  # a report asks a hundred times

    def __init__(
        self, url: str, token_file: Path | None = None, where: Mapping[str, str] | None = None
    ) -> None:
        if urlsplit(url).query or urlsplit(url).fragment:
            raise ConfigError(f"--prometheus {url!r}: write its address alone")
        super().__init__(url, token_file)
        self.headers |= _more_headers(os.environ.get(HEADERS, ""))
        # What it warned of in its answers, as Thanos does where a store did not answer.
        self.warnings: set[str] = set()
        self.where = [*written_labels(where or {})]

    def selector(self, *matchers: str) -> str:
        """Return a selector of the series that all these matchers fit, and `where`."""
        return f"{{{', '.join([*matchers, *self.where])}}}"

    def ask(self, path: str, **parameters: object) -> list[Any]:
        """Return the result of a query, or the values of a label.

        Raises:
            SourceError: it does not answer, or answers what no Prometheus does.
        """
        response = self.get(path, **parameters)
        data = response.get("data") if isinstance(response, dict) else None
        warned = response.get("warnings") if isinstance(response, dict) else None
        if isinstance(warned, list):
            self.warnings.update(printable(str(one))[:_MAX_WARNING] for one in warned)
        found = data.get("result") if isinstance(data, dict) else data
        if not isinstance(found, list):
            raise SourceError(f"{self.url} does not answer as a Prometheus does")
        return found

    def reload(self) -> bool:
        """Have it read its configuration and rules again; `False` = it does not allow that."""
        request = urllib.request.Request(f"{self.url}/-/reload", b"")  # noqa: S310 - see `Collector`
        try:
            with self._opener.open(request, timeout=_RELOAD_S):
                return True
        except (OSError, urllib.error.HTTPError):
            return False


def written_labels(labels: Mapping[str, str]) -> Iterator[str]:
    """Yield labels in the format of a metrics page."""
    for name, value in labels.items():
        text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield f'{name}="{text}"'


def _more_headers(text: str) -> dict[str, str]:
    """Read headers as OTEL_EXPORTER_OTLP_HEADERS has them: `name=value,name=value`."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    found = {name.strip(): unquote(value.strip()) for name, _, value in pairs}
    if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in found.items()):
        raise ConfigError(f"{HEADERS}: write NAME=VALUE, separated by commas")
    return found
