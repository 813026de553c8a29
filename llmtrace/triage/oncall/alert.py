"""Parse the payload of Alertmanager's webhook, version 4.

Any client that reaches the port may send it, so it is bounded, and an invalid one is rejected
with a sentence for its sender.
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
    """One alert that fires, or has ended.

    Attributes:
        id: the same for every notification of one firing.
        name: the rule's.
        started: unix seconds.
        ended: unix seconds; `None` = it fires still.
        labels: as of the rule and its expression.
    """

    id: str
    name: str
    started: float
    ended: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its name, and the instance it is of: each engine that is down has an alert."""
        return f"{self.name} {self.labels.get('instance', '')}".rstrip()


def read_alerts(body: bytes) -> list[Alert]:
    """Read the payload of a notification: the first 200 alerts in it, without odd ones.

    Raises:
        DataError: it is none; the text says why.
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
        raise odd  # none of them can be read: report that to the sender
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
        # Not the fingerprint in the payload: the sender could choose it to hide another alert's.
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
