"""Read and change what a Grafana has, by its HTTP API.

The calls the importer needs, by uid alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from llmtrace.core.errors import SourceError, needs_extra

with needs_extra("llmtrace dashboards import", "dashboards"):
    from grafana_client.client import GrafanaException

    from llmtrace.api_clients.grafana_client import (
        NOT_FOUND,
        Grafana,
        GrafanaOptions,
        explains_error,
    )

_OPTIONS: Final = GrafanaOptions(
    url="--url",
    token_file="--token-file",  # noqa: S106 - the name of an option
    ca_file="--ca-file",
    timeout="--timeout",
    role="the role Editor, and Admin for data sources",
)


class Remote(Grafana):
    """One Grafana. Arguments and errors as of `llmtrace.api_clients.grafana_client.Grafana`."""

    def __init__(
        self, url: str, token: str, *, ca_file: Path | None = None, timeout_s: float = 10.0
    ) -> None:
        super().__init__(url, token, _OPTIONS, ca_file=ca_file, timeout_s=timeout_s)

    # Reading.

    def folder(self, uid: str) -> dict[str, Any] | None:
        """Return a folder by its uid; `None` = there is none."""
        return self._find(f"folder {uid}", lambda: self.api.folder.get_folder(uid))

    def dashboard(self, uid: str) -> dict[str, Any] | None:
        """Return a dashboard, and what Grafana says about it (`meta`)."""
        return self._find(f"dashboard {uid}", lambda: self.api.dashboard.get_dashboard(uid))

    def datasource(self, uid: str) -> dict[str, Any] | None:
        """Return a data source by its uid; `None` = there is none."""
        return self._find(
            f"data source {uid}", lambda: self.api.datasource.get_datasource_by_uid(uid)
        )

    def rule_group(self, folder: str, group: str) -> dict[str, Any] | None:
        """Return a group of alert rules."""
        return self._find(
            f"rule group {group}",
            lambda: self.api.alertingprovisioning.get_rule_group(folder, group),
            silently=True,  # Grafana gives no reason for this one
        )

    # Writing.

    def make_folder(self, uid: str, title: str) -> None:
        """Make a folder with a uid and a title."""
        with self.requesting(f"folder {title!r}"):
            self.api.folder.create_folder(title, uid=uid)

    def save_dashboard(self, dashboard: Mapping[str, Any], folder: str, message: str) -> None:
        """Save a dashboard: a new one without `version`, else one that replaces that version."""
        with self.requesting(f"dashboard {dashboard['title']!r}"):
            saved = self.api.dashboard.update_dashboard(
                {
                    "dashboard": dict(dashboard),
                    "folderUid": folder,
                    "message": message,
                    # Another person's change in between is rejected, and not lost.
                    "overwrite": False,
                }
            )
        if not isinstance(saved, dict) or "uid" not in saved:
            title = dashboard["title"]
            raise SourceError(f"dashboard {title!r}: {self.url} does not answer as a Grafana does")

    def save_datasource(self, source: Mapping[str, Any], *, new: bool) -> None:
        """Save a data source, new or in place of the present one."""
        with self.requesting(f"data source {source['name']!r}"):
            if new:
                self.api.datasource.create_datasource(dict(source))
            else:
                self.api.datasource.update_datasource_by_uid(source["uid"], dict(source))

    def save_rule_group(self, folder: str, group: Mapping[str, Any]) -> None:
        """Save a group of alert rules, in place of what it held."""
        with self.requesting(f"rule group {group['title']!r}"):
            self.api.alertingprovisioning.update_rule_group(
                folder, group["title"], dict(group), disable_provenance=True
            )

    def _find(
        self, what: str, ask: Callable[[], Any], *, silently: bool = False
    ) -> dict[str, Any] | None:
        with self.requesting(what):
            try:
                found = ask()
            except GrafanaException as error:
                if error.status_code != NOT_FOUND or not (silently or explains_error(error)):
                    raise
                return None
        if not isinstance(found, dict):
            raise SourceError(f"{what}: {self.url} answered with something other than an object")
        return found
