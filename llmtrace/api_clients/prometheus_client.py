"""A client for the HTTP API of a Prometheus, or of what answers as one, as Thanos and Mimir do."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llmtrace.api_clients.collector_client import Collector
from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.core.sanitize import printable

_RELOAD_S = 30.0
_MAX_WARNING = 200


class Prometheus(Collector):
    """A Prometheus, queried by its HTTP API.

    Args:
        url: its address, without a query.
        token_file: a file with the token it requires; `None` = it requires none.

    Raises:
        ConfigError: that is no address, or the file holds no token.
    """

    server_kind = "Prometheus"
    usual = "http://127.0.0.1:9090"
    fix = "name its address with --prometheus"
    token_option = "--prometheus-token-file"  # noqa: S105 - the name of an option

    def __init__(self, url: str, token_file: Path | None = None) -> None:
        if urlsplit(url).query or urlsplit(url).fragment:
            raise ConfigError(f"--prometheus {url!r}: write its address alone")
        super().__init__(url, token_file)
        # What it warned of in its answers, as Thanos does where a store did not answer.
        self.warnings: set[str] = set()

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
