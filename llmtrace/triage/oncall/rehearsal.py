"""Send the alert of a saved incident, as Alertmanager would have when it happened."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, TextIO
from urllib.error import HTTPError
from urllib.parse import urljoin

from llmtrace.api_clients.http_client import is_address, opener, read_token
from llmtrace.core.errors import ConfigError, DataError, SourceError
from llmtrace.dataset.case import Case, read_case
from llmtrace.display.summary_tables import date_and_zone
from llmtrace.triage.pipeline import Settings, triage

NAME: Final = "LlmtraceRehearsal"
_AFTER_S: Final = 120.0  # from when it began until an alert fires
_TIMEOUT_S: Final = 10.0
_OPENER: Final = opener(proxies=False)


def rehearse(folder: Path, url: str, token_file: Path | None, out: TextIO) -> None:
    """Send the alert of a case to a receiver, and print where its report will be.

    Args:
        folder: of the case.
        url: of the receiver, such as `http://127.0.0.1:4321/alerts`.
        token_file: with the token that it requires; `None` = none.
        out: stream to print to.

    Raises:
        ConfigError: the address is invalid, or the file has no token.
        DataError: nothing stands out in the case.
        SourceError: the case cannot be read, or the receiver does not accept the alert.
    """
    if not is_address(url):
        raise ConfigError(f"--alert {url!r}: write an address, as http://127.0.0.1:4321/alerts")
    token = None if token_file is None else read_token(token_file, "--alert-token-file")
    started = fired_at(read_case(folder))
    report = _send(url, alert_at(started), token)
    out.write(f"alert {NAME} of {date_and_zone(started)} sent to {url}\n")
    out.write(f"its report: {report}\n")


def fired_at(case: Case) -> float:
    """Return when an alert of this incident would have fired, unix seconds.

    Raises:
        DataError: nothing stands out, so no alert would have fired.
    """
    window = case.after
    if window is None:
        found = triage(case, Settings(bootstrap=0))
        if found.state is None or found.after.window is None:
            raise DataError("nothing stands out in this case: no alert would have fired")
        window = found.after.window
    return window.start + min(_AFTER_S, window.seconds / 2)


def alert_at(started: float) -> dict[str, Any]:
    """Return an Alertmanager notification (version 4) of one firing alert.

    Args:
        started: when it fired, unix seconds.
    """
    alert = {
        "status": "firing",
        "labels": {"alertname": NAME},
        "annotations": {"summary": "a rehearsal: a saved incident is played"},
        "startsAt": datetime.fromtimestamp(started, UTC).isoformat(),
        "endsAt": "0001-01-01T00:00:00Z",
    }
    return {"version": "4", "status": "firing", "alerts": [alert]}


def _send(url: str, body: dict[str, Any], token: str | None) -> str:
    """Send it, and return the address of its report."""
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as response:
            given = json.loads(response.read())
            taken, report = given["taken"], urljoin(url, str(given["reports"][0]))
    except HTTPError as error:
        raise SourceError(f"--alert {url}: responded {error.code}") from error
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        raise SourceError(
            f"--alert {url}: no `llmtrace triage serve` responds there: start it first"
        ) from error
    if not taken:
        raise DataError(f"--alert {url}: this alert has been sent already; its report: {report}")
    return report
