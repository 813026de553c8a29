"""A client for the read API of a running collector.

`Collector` speaks the read API of `llmtrace collect` (docs/operate/collector.md). It follows no
redirect to another server and uses no proxy: the token is for this one server.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Final

from llmtrace.api_clients.http_client import OWN_AUTHORITY, opener, read_authorization, unreachable
from llmtrace.core.errors import ConfigError, SourceError

DEFAULT_URL: Final = "http://127.0.0.1:4319"
_TIMEOUT_S: Final = 60.0
_MAX_BYTES: Final = 64 << 20  # of a response that is read as a whole
_MAX_LINE: Final = 1 << 20
_MAX_SAID: Final = 512
_BUSY: Final = frozenset({429, 502, 503, 504})
_FOR_BASIC: Final = "`Basic ` and the base64 of user:password"


class Collector:
    """A collector at an address.

    Args:
        url: `http://host:port` or `https://…`.
        token_file: a file with the token it requires; `None` = it requires none.

    Raises:
        ConfigError: the address is invalid, or the file contains no token.
    """

    # Used in errors. Others speak the same protocol below /api/v1, by names of their own.
    server_kind = "collector"
    usual = DEFAULT_URL
    fix = "start one with `llmtrace collect`, or name its address with --url"
    token_option = "--token-file"  # noqa: S105 - the name of an option
    retry_after_s: tuple[float, ...] = ()  # waits before what a busy server rejects is sent again

    def __init__(self, url: str = DEFAULT_URL, token_file: Path | None = None) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(
                f"{url!r} is not an address of a {self.server_kind}; write {self.usual}"
            )
        if parts.username or parts.password:
            raise ConfigError(
                "keep secrets out of the address: put a token, or for a user and password "
                f"{_FOR_BASIC}, into a file and give {self.token_option}"
            )
        self.url = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
        self.url = self.url.rstrip("/")
        self.headers: dict[str, str] = {}
        if token_file is not None:
            self.headers["Authorization"] = read_authorization(token_file, self.token_option)
        self._opener = opener(proxies=False)

    def get(self, path: str, **parameters: object) -> Any:
        """Return the JSON at an address below /api/v1.

        Raises:
            SourceError: it does not respond, or not with JSON.
        """
        try:
            with self._open(path, parameters) as response:
                return json.loads(response.read(_MAX_BYTES))
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{self.url}/api/v1/{path}: the response is not JSON") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._broke(error) from error

    def lines(self, path: str, **parameters: object) -> Iterator[dict[str, Any]]:
        """Yield the objects of a response that has one a line, as they come.

        Raises:
            SourceError: it does not respond, or its response breaks off.
        """
        try:
            with self._open(path, parameters) as response:
                while line := response.readline(_MAX_LINE):
                    value = json.loads(line)
                    if isinstance(value, dict):
                        yield value
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{self.url}/api/v1/{path}: the response breaks off") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._broke(error) from error

    def post(self, path: str, content: Mapping[str, object]) -> Any:
        """Send JSON to an address below /api/v1 and return the JSON that comes back.

        Raises:
            SourceError: it does not respond, or not with JSON.
        """
        try:
            with self._open(path, {}, json.dumps(content).encode()) as response:
                return json.loads(response.read(_MAX_BYTES))
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{self.url}/api/v1/{path}: the response is not JSON") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._broke(error) from error

    def _open(
        self, path: str, parameters: Mapping[str, object], body: bytes | None = None
    ) -> IO[bytes]:
        given = {name: value for name, value in parameters.items() if value is not None}
        query = urllib.parse.urlencode(given)
        address = f"{self.url}/api/v1/{path}" + (f"?{query}" if query else "")
        request = urllib.request.Request(address, body)  # noqa: S310 - http or https, see `__init__`
        if body is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in self.headers.items():
            request.add_unredirected_header(name, value)
        for wait_s in (*(self.retry_after_s if body is None else ()), None):
            try:
                opened: IO[bytes] = self._opener.open(request, timeout=_TIMEOUT_S)
            except urllib.error.HTTPError as error:
                with error:
                    if wait_s is None or error.code not in _BUSY:
                        raise SourceError(self._rejection(error)) from None
                time.sleep(wait_s)
            else:
                break
        return opened

    def _rejection(self, error: urllib.error.HTTPError) -> str:
        if error.code == HTTPStatus.UNAUTHORIZED:
            if error.headers.get("WWW-Authenticate", "").lower().startswith("basic"):
                return (
                    f"{self.url} requires a user and password; put {_FOR_BASIC} into a file and "
                    f"give {self.token_option}"
                )
            return f"{self.url} requires a token; put it into a file and give {self.token_option}"
        reason = error.read(_MAX_SAID).decode("utf-8", "replace")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            reason = json.loads(reason)["error"]
        return f"{self.url} responded {error.code}: {reason}".rstrip(": ")

    def _broke(self, error: Exception) -> SourceError:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return SourceError(f"{self.url}: TLS failed: {unreachable(reason)} ({OWN_AUTHORITY})")
        why = unreachable(error)
        return SourceError(f"no {self.server_kind} responds at {self.url}: {why}; {self.fix}")
