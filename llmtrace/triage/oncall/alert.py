"""Parse the payload of Alertmanager's webhook, version 4.

Any client that reaches the port may send one, so its size is limited, and an invalid one is
rejected with a sentence for the sender.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from llmtrace.core.errors import DataError

MAX_BYTES: Final = 1 << 20
_MAX_ALERTS: Final = 200
_MAX_LABELS: Final = 64
_MAX_LENGTH: Final = 256
_EARLIEST: Final = 946_684_800.0  # the year 2000: Alertmanager's zero time is long before it


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert, firing or resolved.

    Attributes:
        id: the same in every notification of one firing.
        name: of its rule.
        started: unix seconds.
        ended: unix seconds; `None` = it is still firing.
        labels: from the rule and its expression.
    """

    id: str
    name: str
    started: float
    ended: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its name and, if it has one, its instance: each engine has an alert of its own."""
        return f"{self.name} {self.labels.get('instance', '')}".rstrip()


def read_alerts(body: bytes) -> list[Alert]:
    """Parse a notification: the first 200 alerts in it, without invalid ones.

    Raises:
        DataError: the notification is invalid, or all its alerts are; the text says why.
    """
    if len(body) > MAX_BYTES:
        raise DataError(f"more than {MAX_BYTES} bytes")
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DataError("the body is no JSON") from error
    if not isinstance(payload, dict) or not isinstance(payload.get("alerts"), list):
        raise DataError("the body is no notification of Alertmanager's: `alerts` is missing")
    found, odd = [], None
    for one in payload["alerts"][:_MAX_ALERTS]:
        try:
            found.append(_alert(one))
        except DataError as error:
            odd = error
    if odd is not None and not found:
        raise odd
    return found


def _alert(given: Any) -> Alert:
    if not isinstance(given, dict):
        raise DataError("an alert is no object")
    labels = dict(_texts(given.get("labels")))
    started = _time(given.get("startsAt"))
    if started is None:
        raise DataError("an alert says no time in `startsAt`")
    ended = _time(given.get("endsAt")) if given.get("status") == "resolved" else None
    named = json.dumps([sorted(labels.items()), started])
    return Alert(
        # Not the payload's fingerprint: a sender could choose one to suppress another alert.
        id=hashlib.sha256(named.encode()).hexdigest()[:16],
        name=labels.get("alertname", "alert"),
        started=started,
        ended=ended,
        labels=labels,
    )


def _texts(given: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(given, dict):
        return
    for name, value in list(given.items())[:_MAX_LABELS]:
        if isinstance(value, str):
            yield name[:_MAX_LENGTH], value[:_MAX_LENGTH]


def _time(given: Any) -> float | None:
    if not isinstance(given, str):
        return None
    try:
        at = datetime.fromisoformat(given[:40]).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return at if at > _EARLIEST else None
