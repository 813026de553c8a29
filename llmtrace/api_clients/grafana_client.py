"""Connect to a Grafana, and turn its failures into errors a person can act on.

`grafana_client` speaks; here are its set-up and its errors. The token is in none of them, and in
no representation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from llmtrace.api_clients.http_client import unreachable
from llmtrace.core.errors import ConfigError, SourceError, needs_extra

with needs_extra("connecting to a Grafana", "dashboards"):
    from grafana_client import GrafanaApi
    from grafana_client.client import GrafanaException, TokenAuth
    from niquests.exceptions import JSONDecodeError, RequestException, SSLError, Timeout

NOT_FOUND: Final = 404
_MIN_TOKEN: Final = 8
_MAX_WORDS: Final = 300
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_CONFLICT: Final = (409, 412)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrafanaOptions:
    """The names of a command's Grafana options, for errors, and the role its token needs.

    Attributes:
        url, token_file, ca_file: names of options, for errors.
        timeout: its option's name, too; `None` = there is none.
        role: that the token's service account needs.
    """

    url: str
    token_file: str
    ca_file: str
    timeout: str | None
    role: str


class Grafana:
    """One Grafana.

    Attributes:
        url: of its start page.
        api: the client; to be used within `requesting`.

    Args:
        url: of its start page, with the path it is served under.
        token: of a service account.
        options: of the command that connects.
        ca_file: certificates to trust, where its own is signed by none of the public ones.
        timeout_s: for each response.

    Raises:
        ConfigError: the URL is invalid, or contains a password; the token is too short to be one;
            there is no such file.
    """

    def __init__(
        self,
        url: str,
        token: str,
        options: GrafanaOptions,
        *,
        ca_file: Path | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"{options.url} {url!r}: {error}") from error
        if "@" in url or parts.query:
            raise ConfigError(
                f"{options.url}: put the token into a file ({options.token_file}), not the URL"
            )
        if parts.scheme not in {"http", "https"} or not host:
            raise ConfigError(f"{options.url} {url!r}: write it as https://grafana.example.org")
        if len(token) < _MIN_TOKEN:
            # Tokens are taken out of what is shown, and a short one takes the words with it.
            raise ConfigError(
                f"{options.token_file}: the token has fewer than {_MIN_TOKEN} characters, which "
                "none of a service account has"
            )
        if ca_file is not None and not ca_file.is_file():
            raise ConfigError(f"{options.ca_file} {ca_file}: no such file")
        path = parts.path.strip("/")
        self.url = (
            f"{parts.scheme}://{host}{f':{port}' if port else ''}{f'/{path}' if path else ''}"
        )
        self.api: Any = GrafanaApi(
            auth=TokenAuth(token),
            host=host,
            port=port,
            url_path_prefix=f"{path}/" if path else "",
            protocol=parts.scheme,
            verify=True if ca_file is None else str(ca_file),
            timeout=timeout_s,
        )
        self._token = token
        self._options = options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def close(self) -> None:
        """Close the connections to the server."""
        self.api.client.s.close()

    @contextmanager
    def requesting(self, what: str) -> Iterator[None]:
        """Turn a failure of the requests inside into an error of ours.

        Raises:
            SourceError: it rejects a request, does not respond, or is no Grafana.
        """
        options = self._options
        try:
            yield
        except GrafanaException as error:
            raise SourceError(f"{what}: {self._refusal(error)}") from None
        except SSLError as error:
            raise SourceError(
                f"{what}: no secure connection to {self.url}: {unreachable(error)}; if its "
                f"certificate is your own, give its signer with {options.ca_file}"
            ) from None
        except Timeout:
            raise SourceError(f"{what}: {self._late()}") from None
        except JSONDecodeError:
            raise SourceError(f"{what}: {self._not_grafana()}") from None
        except RequestException as error:
            raise SourceError(f"{what}: cannot reach {self.url}: {unreachable(error)}") from None

    def _refusal(self, error: GrafanaException) -> str:
        status, message = error.status_code, self._words(_message(error))
        if status == 0:
            return self._late()
        if status == _UNAUTHORIZED:
            return (
                f"{self.url} does not know the token (401: {message}); take a service account's "
                "of this Grafana, which has not expired"
            )
        if status == _FORBIDDEN:
            return (
                f"the token may not do this (403: {message}); its service account needs "
                f"{self._options.role}"
            )
        if status == NOT_FOUND:
            return (
                self._not_grafana() if not explains_error(error) else f"not found (404: {message})"
            )
        if status in _CONFLICT:
            return (
                f"rejected ({status}: {message}); it has been changed meanwhile, or another of "
                "this name is there: look at it in Grafana, then run this again"
            )
        return f"{self.url} rejected the request ({status}): {message}"

    def _late(self) -> str:
        timeout = self._options.timeout
        return f"{self.url} did not respond in time" + (f"; see {timeout}" if timeout else "")

    def _not_grafana(self) -> str:
        return (
            f"no Grafana responds at {self.url}; give the address of its start page, with the "
            "path it is served under, as in https://example.org/grafana"
        )

    def _words(self, message: object) -> str:
        """Return a message on one line, not too long and without the token."""
        text = " ".join(str(message).split()).replace(self._token, "***")
        return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]}…"


def _message(error: GrafanaException) -> str:
    message = error.response
    if isinstance(message, Mapping):
        return str(message.get("message") or message.get("error") or "no reason given")
    return str(message or error.message)


def explains_error(error: GrafanaException) -> bool:
    """Return whether a 404 has Grafana's message: any other server's is a page, or empty."""
    return isinstance(error.response, Mapping) and bool(error.response.get("message"))
