"""How is a Grafana asked, and what does it mean when it refuses?

`grafana_client` speaks; here are its set-up, and errors a person can act on. The token is in none
of them, and in no representation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from llmtrace.api_clients.http_client import unreachable
from llmtrace.errors import ConfigError, SourceError, missing_extra

try:
    from grafana_client import GrafanaApi
    from grafana_client.client import GrafanaException, TokenAuth
    from niquests.exceptions import JSONDecodeError, RequestException, SSLError, Timeout
except ImportError as error:
    raise missing_extra(
        "asking a Grafana", "dashboards", error.name or "grafana-client"
    ) from error

NOT_FOUND: Final = 404
_MIN_TOKEN: Final = 8
_MAX_WORDS: Final = 300
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_CONFLICT: Final = (409, 412)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks a Grafana: what its options are called, and which role its token needs there.

    Attributes:
        url, token_file, ca_file: names of options, for errors.
        timeout: likewise; `None` = there is none.
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
        api: what speaks to it; to be used within `asking`.

    Args:
        url: of its start page, with the path it is served under.
        token: of a service account.
        asker: who asks.
        ca_file: certificates to trust, where its own is signed by none of the public ones.
        timeout_s: for each answer.

    Raises:
        ConfigError: the URL is none, or says a password; the token is too short to be one; there
            is no such file.
    """

    def __init__(
        self,
        url: str,
        token: str,
        asker: Asker,
        *,
        ca_file: Path | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"{asker.url} {url!r}: {error}") from error
        if "@" in url or parts.query:
            raise ConfigError(
                f"{asker.url}: put the token into a file ({asker.token_file}), not into the URL"
            )
        if parts.scheme not in {"http", "https"} or not host:
            raise ConfigError(f"{asker.url} {url!r}: write it as https://grafana.example.org")
        if len(token) < _MIN_TOKEN:
            # Tokens are taken out of what is shown, and a short one takes the words with it.
            raise ConfigError(
                f"{asker.token_file}: the token has fewer than {_MIN_TOKEN} characters, which "
                "none of a service account has"
            )
        if ca_file is not None and not ca_file.is_file():
            raise ConfigError(f"{asker.ca_file} {ca_file}: no such file")
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
        self._asker = asker

    def __repr__(self) -> str:
        return f"Grafana({self.url!r})"

    def close(self) -> None:
        """Close its connections."""
        self.api.client.s.close()

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Turn what goes wrong while it is asked for something into an error of ours.

        Raises:
            SourceError: it refuses, does not answer, or is no Grafana.
        """
        asker = self._asker
        try:
            yield
        except GrafanaException as error:
            raise SourceError(f"{what}: {self._refusal(error)}") from None
        except SSLError as error:
            raise SourceError(
                f"{what}: no secure connection to {self.url}: {unreachable(error)}; if its "
                f"certificate is your own, name who signed it with {asker.ca_file}"
            ) from None
        except Timeout:
            raise SourceError(f"{what}: {self._late()}") from None
        except JSONDecodeError:
            raise SourceError(f"{what}: {self._not_grafana()}") from None
        except RequestException as error:
            raise SourceError(f"{what}: cannot reach {self.url}: {unreachable(error)}") from None

    def _refusal(self, error: GrafanaException) -> str:
        status, said = error.status_code, self._words(_message(error))
        if status == 0:
            return self._late()
        if status == _UNAUTHORIZED:
            return (
                f"{self.url} does not know the token (401: {said}); take a service account's of "
                "this Grafana, which has not expired"
            )
        if status == _FORBIDDEN:
            return (
                f"the token may not do this (403: {said}); its service account needs "
                f"{self._asker.role}"
            )
        if status == NOT_FOUND:
            return self._not_grafana() if not says_why(error) else f"not found (404: {said})"
        if status in _CONFLICT:
            return (
                f"refused ({status}: {said}); somebody else changed it meanwhile, or another of "
                "this name is there: look at it in Grafana, then run this again"
            )
        return f"{self.url} refused ({status}): {said}"

    def _late(self) -> str:
        timeout = self._asker.timeout
        return f"{self.url} did not answer in time" + (f"; see {timeout}" if timeout else "")

    def _not_grafana(self) -> str:
        return (
            f"no Grafana answers at {self.url}; give the address of its start page, with the path "
            "it is served under, as in https://example.org/grafana"
        )

    def _words(self, said: object) -> str:
        """Return what was said, on one line, not too long and without the token."""
        text = " ".join(str(said).split()).replace(self._token, "***")
        return text if len(text) <= _MAX_WORDS else f"{text[:_MAX_WORDS]}…"


def _message(error: GrafanaException) -> str:
    said = error.response
    if isinstance(said, Mapping):
        return str(said.get("message") or said.get("error") or "no reason given")
    return str(said or error.message)


def says_why(error: GrafanaException) -> bool:
    """Say whether a 404 is Grafana's own word: any other server's is a page, or nothing."""
    return isinstance(error.response, Mapping) and bool(error.response.get("message"))
