"""What does a Grafana have, and what does it say when it refuses?

A thin layer over `grafana_client`: the calls the importer needs, by uid alone, and errors a person
can act on. The token is in no error and no representation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from llmtrace.errors import ConfigError, SourceError, missing_extra

try:
    from grafana_client import GrafanaApi
    from grafana_client.client import GrafanaException, TokenAuth
    from niquests.exceptions import JSONDecodeError, RequestException, SSLError, Timeout
except ImportError as error:
    raise missing_extra(
        "llmtrace dashboards import", "dashboards", error.name or "grafana-client"
    ) from error

_MOST_WORDS: Final = 300
_NOT_FOUND: Final = 404
_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_CONFLICT: Final = (409, 412)


class Remote:
    """One Grafana.

    Args:
        url: of its start page, with the path it is served under.
        token: of a service account.
        ca_file: certificates to trust, where its own is signed by none of the public ones.
        timeout_s: for each answer.

    Raises:
        ConfigError: the URL is none, or says a password.
    """

    def __init__(
        self, url: str, token: str, *, ca_file: Path | None = None, timeout_s: float = 10.0
    ) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigError(f"--url {url!r}: {error}") from error
        if parts.scheme not in {"http", "https"} or not host:
            raise ConfigError(f"--url {url!r}: write it as https://grafana.example.org")
        if parts.username or parts.password or parts.query:
            raise ConfigError("--url: put the token into a file (--token-file), not into the URL")
        path = parts.path.strip("/")
        self.url = (
            f"{parts.scheme}://{host}{f':{port}' if port else ''}{f'/{path}' if path else ''}"
        )
        self._token = token
        verify: Any = True
        if ca_file is not None:
            if not ca_file.is_file():
                raise ConfigError(f"--ca-file {ca_file}: no such file")
            verify = str(ca_file)
        self._api = GrafanaApi(
            auth=TokenAuth(token),
            host=host,
            port=port,
            url_path_prefix=f"{path}/" if path else "",
            protocol=parts.scheme,
            verify=verify,
            timeout=timeout_s,
        )

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"

    def close(self) -> None:
        """Close its connections."""
        self._api.client.s.close()

    # What there is; `None` = it is not there.

    def folder(self, uid: str) -> dict[str, Any] | None:
        """Return a folder."""
        return self._find(f"folder {uid}", lambda: self._api.folder.get_folder(uid))

    def dashboard(self, uid: str) -> dict[str, Any] | None:
        """Return a dashboard, and what Grafana says about it (`meta`)."""
        return self._find(f"dashboard {uid}", lambda: self._api.dashboard.get_dashboard(uid))

    def datasource(self, uid: str) -> dict[str, Any] | None:
        """Return a data source."""
        return self._find(
            f"data source {uid}", lambda: self._api.datasource.get_datasource_by_uid(uid)
        )

    def rule_group(self, folder: str, group: str) -> dict[str, Any] | None:
        """Return a group of alert rules."""
        return self._find(
            f"rule group {group}",
            lambda: self._api.alertingprovisioning.get_rule_group(folder, group),
            silently=True,  # Grafana gives no reason for this one
        )

    # What there shall be.

    def make_folder(self, uid: str, title: str) -> None:
        """Make a folder."""
        with self._asking(f"folder {title!r}"):
            self._api.folder.create_folder(title, uid=uid)

    def save_dashboard(self, dashboard: Mapping[str, Any], folder: str, message: str) -> None:
        """Save a dashboard: a new one without `version`, else one that replaces that version."""
        with self._asking(f"dashboard {dashboard['title']!r}"):
            self._api.dashboard.update_dashboard(
                {
                    "dashboard": dict(dashboard),
                    "folderUid": folder,
                    "message": message,
                    # Somebody else's change in between is refused, and not lost.
                    "overwrite": False,
                }
            )

    def save_datasource(self, source: Mapping[str, Any], *, new: bool) -> None:
        """Save a data source."""
        with self._asking(f"data source {source['name']!r}"):
            if new:
                self._api.datasource.create_datasource(dict(source))
            else:
                self._api.datasource.update_datasource_by_uid(source["uid"], dict(source))

    def save_rule_group(self, folder: str, group: Mapping[str, Any]) -> None:
        """Save a group of alert rules, in place of what it held."""
        with self._asking(f"rule group {group['title']!r}"):
            self._api.alertingprovisioning.update_rule_group(
                folder, group["title"], dict(group), disable_provenance=True
            )

    # Errors.

    def _find(
        self, what: str, ask: Callable[[], Any], *, silently: bool = False
    ) -> dict[str, Any] | None:
        with self._asking(what):
            try:
                found = ask()
            except GrafanaException as error:
                if error.status_code != _NOT_FOUND or not (silently or _says_why(error)):
                    raise
                return None
        if not isinstance(found, dict):
            raise SourceError(f"{what}: {self.url} answered with something else than an object")
        return found

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except GrafanaException as error:
            raise SourceError(f"{what}: {self._refusal(error)}") from None
        except SSLError as error:
            raise SourceError(
                f"{what}: no secure connection to {self.url}: {self._words(error)}; if its "
                "certificate is your own, name who signed it with --ca-file"
            ) from None
        except Timeout:
            raise SourceError(
                f"{what}: {self.url} did not answer in time; see --timeout"
            ) from None
        except JSONDecodeError:
            raise SourceError(f"{what}: {self._not_grafana()}") from None
        except RequestException as error:
            raise SourceError(f"{what}: cannot reach {self.url}: {self._words(error)}") from None

    def _refusal(self, error: GrafanaException) -> str:
        status, said = error.status_code, self._words(_message(error))
        if status == 0:
            return f"{self.url} did not answer in time; see --timeout"
        if status == _UNAUTHORIZED:
            return (
                f"{self.url} does not know the token (401: {said}); take a service account's of "
                "this Grafana, which has not expired"
            )
        if status == _FORBIDDEN:
            return (
                f"the token may not do this (403: {said}); its service account needs the role "
                "Editor, and Admin for data sources"
            )
        if status == _NOT_FOUND:
            return self._not_grafana() if not _says_why(error) else f"not found (404: {said})"
        if status in _CONFLICT:
            return (
                f"refused ({status}: {said}); somebody else changed it meanwhile, or another of "
                "this name is there: look at it in Grafana, then run this again"
            )
        return f"{self.url} refused ({status}): {said}"

    def _not_grafana(self) -> str:
        return (
            f"no Grafana answers at {self.url}; give the address of its start page, with the path "
            "it is served under, as in https://example.org/grafana"
        )

    def _words(self, said: object) -> str:
        """Return what was said, on one line, not too long and without the token."""
        text = " ".join(str(said).split()).replace(self._token, "***")
        return text if len(text) <= _MOST_WORDS else f"{text[:_MOST_WORDS]}…"


def _message(error: GrafanaException) -> str:
    said = error.response
    if isinstance(said, Mapping):
        return str(said.get("message") or said.get("error") or "no reason given")
    return str(said or error.message)


def _says_why(error: GrafanaException) -> bool:
    """Whether a 404 is Grafana's own word: any other server's is a page, or nothing."""
    return isinstance(error.response, Mapping) and bool(error.response.get("message"))
