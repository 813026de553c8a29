"""Store reports in a folder, each as a page and a JSON file named by time and alert.

If there are too many, the oldest are removed. Alerts that wait for theirs are files there, too.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from llmtrace.core.errors import ConfigError, DataError
from llmtrace.triage.oncall.alert import Alert, read_alerts

logger = logging.getLogger("llmtrace.oncall")
_NAME: Final = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9_]{1,80}-[0-9a-f]{16}")
_ODD: Final = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Reports:
    """A folder of reports.

    Attributes:
        folder: created if it does not exist.
        most: how many reports are kept.
    """

    folder: Path
    most: int = 1000

    def ready(self) -> None:
        """Create the folder, and write to it.

        Raises:
            ConfigError: that is not possible.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(".probe", "a disk that is full takes an empty file\n")
            (self.folder / ".probe").unlink()
        except OSError as error:
            raise ConfigError(f"--reports {self.folder}: {error.strerror}") from error

    def named(self, alert: Alert) -> str:
        """Return the name of an alert's report: the same for every notification of it."""
        at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(alert.started))
        word = _ODD.sub("_", alert.name)[:80] or "alert"
        return f"{at}-{word}-{alert.id}"

    def has(self, name: str) -> bool:
        """Return whether a report exists, even from before a restart."""
        return (self.folder / f"{name}.json").exists()

    def enqueue(self, name: str, alert: Alert) -> None:
        """Write an alert that waits for its report, as it came. Raises `OSError`."""
        started = datetime.fromtimestamp(alert.started, UTC).isoformat()
        one = {"labels": dict(alert.labels), "startsAt": started}
        self._write(f"{name}.queued", json.dumps({"alerts": [one]}))

    def dequeue(self, name: str) -> None:
        """Forget that an alert waits for its report."""
        with suppress(OSError):
            (self.folder / f"{name}.queued").unlink()

    def queued(self) -> Iterator[Alert]:
        """Read the alerts that waited for their reports when the last process ended."""
        for path in sorted(self.folder.glob("*.queued")):
            try:
                [alert] = read_alerts(path.read_bytes())
            except (OSError, ValueError, DataError) as error:
                logger.warning("%s is no queued alert: %s", path, error)
                continue
            if self.has(path.stem):
                self.dequeue(path.stem)
            elif self.named(alert) == path.stem:
                yield alert

    def keep(self, name: str, report: Mapping[str, Any], page: str) -> None:
        """Write a report, each of its files atomically. Raises `OSError`."""
        self._write(f"{name}.html", page)
        self._write(f"{name}.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
        self.dequeue(name)
        for old in self.names()[self.most :]:
            for kind in ("json", "html"):
                (self.folder / f"{old}.{kind}").unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        half = self.folder / f".{name}.half"
        half.write_text(text, encoding="utf-8")
        half.replace(self.folder / name)

    def names(self) -> list[str]:
        """Return the names of all reports, the latest alert's first."""
        found = (path.stem for path in self.folder.glob("*.json"))
        return sorted(filter(_NAME.fullmatch, found), reverse=True)

    def page(self, name: str) -> str | None:
        """Return a report's page; `None` = no such report."""
        return self._read(name, "html")

    def content(self, name: str) -> dict[str, Any] | None:
        """Return a report's content; `None` = no such report."""
        text = self._read(name, "json")
        return None if text is None else dict(json.loads(text))

    def _read(self, name: str, kind: str) -> str | None:
        if not _NAME.fullmatch(name):  # no path out of the folder
            return None
        try:
            return (self.folder / f"{name}.{kind}").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
