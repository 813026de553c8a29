"""Read events (a deploy, a change of settings) that are sent to the API.

One JSON object or a list of them: `{"kind": "deploy", "text": "v2.3", "t": unix seconds}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from llmtrace_collector.serve.query_params import QueryParamError
from llmtrace_collector.store import Event

_KEYS: Final = frozenset({"t", "kind", "text", "instance", "labels"})
_MAX_EVENTS: Final = 1_000
_MAX_TEXT: Final = 2_000
_MAX_WORD: Final = 200
_MAX_LABELS: Final = 32
_LATEST_S: Final = 9e9


def read_events(body: bytes, now_ns: int) -> list[Event]:
    """Read events.

    Args:
        body: JSON.
        now_ns: the time of events that do not state it, unix nanoseconds.

    Raises:
        QueryParamError: one is invalid; says which and why.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise QueryParamError("the body is not JSON") from error
    listed = content if isinstance(content, list) else [content]
    if not listed or len(listed) > _MAX_EVENTS:
        raise QueryParamError(f"send 1 to {_MAX_EVENTS} events at once")
    return [_event(one, f"event {place}", now_ns) for place, one in enumerate(listed)]


def _event(given: Any, where: str, now_ns: int) -> Event:
    if not isinstance(given, Mapping) or not given.keys() <= _KEYS:
        raise QueryParamError(
            f"{where}: must be an object with some of {', '.join(sorted(_KEYS))}"
        )
    t = given.get("t")
    at = now_ns
    if t is not None:
        if isinstance(t, bool) or not isinstance(t, int | float) or not 0 < t < _LATEST_S:
            raise QueryParamError(f"{where}: t must be unix seconds")
        at = round(t * 1e9)
    labels = given.get("labels") or {}
    if not isinstance(labels, Mapping) or len(labels) > _MAX_LABELS:
        raise QueryParamError(f"{where}: labels must be an object of {_MAX_LABELS} texts at most")
    return Event(
        at,
        _text(given.get("kind"), f"{where}: kind", _MAX_WORD),
        _text(given.get("text"), f"{where}: text", _MAX_TEXT),
        _text(given.get("instance", ""), f"{where}: instance", _MAX_WORD, least=0),
        {
            _text(name, f"{where}: labels", _MAX_WORD): _text(
                value, f"{where}: labels.{name}"[:_MAX_WORD], _MAX_WORD, least=0
            )
            for name, value in labels.items()
        },
    )


def _text(value: Any, where: str, most: int, *, least: int = 1) -> str:
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise QueryParamError(f"{where} must be a text of {least} to {most} characters")
    return value
