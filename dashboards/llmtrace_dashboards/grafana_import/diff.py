"""Compare what a Grafana has with what it should have.

Grafana adds ids, versions and defaults. So a dashboard carries a fingerprint of its content, and
is up to date if the fingerprint is the same and nothing that was given has changed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

_MARK: Final = "Made by llmtrace"
_GIVEN_BY_GRAFANA: Final = ("id", "version")
_MAX_LINES: Final = 60


def marked(dashboard: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dashboard whose description ends with the fingerprint of all the rest."""
    content = json.dumps(dashboard, sort_keys=True, ensure_ascii=False).encode()
    mark = f"{_MARK} ({hashlib.sha256(content).hexdigest()[:12]}): changes by hand will be lost."
    said = str(dashboard.get("description") or "")
    return {**dashboard, "description": f"{said}\n\n{mark}".strip()}


def same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a dashboard that was found is the marked one that is wanted."""
    return found.get("description") == wanted.get("description") and holds(found, wanted)


def holds(found: Any, wanted: Any) -> bool:
    """Return whether something holds all that is wanted; it may hold more.

    Example:
        >>> holds({"a": [1, {"b": 2, "more": 3}], "id": 7}, {"a": [1, {"b": 2}]})
        True
        >>> holds({"a": [1]}, {"a": [1, 2]})
        False
    """
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(
            holds(found.get(key), value)
            for key, value in wanted.items()
            if key not in _GIVEN_BY_GRAFANA
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(map(holds, found, wanted))
        )
    # What is not there and what is empty are the same to Grafana.
    return bool(found == wanted) or (not found and not wanted and found is not False)


def difference(found: Mapping[str, Any] | None, wanted: Mapping[str, Any], name: str) -> str:
    """Return what would change, as a unified diff; not more than a screen or two of it."""
    before = [] if found is None else _lines(_seen_as(found, wanted))
    lines = list(
        difflib.unified_diff(before, _lines(wanted), f"{name} (there)", f"{name} (here)", n=2)
    )
    if len(lines) > _MAX_LINES:
        more = len(lines) - _MAX_LINES
        lines = [*lines[:_MAX_LINES], f"... and {more} lines more\n"]
    return "".join(lines)


def _seen_as(found: Any, wanted: Any) -> Any:
    """Leave out what Grafana has added."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return {
            key: _seen_as(found[key], value)
            for key, value in wanted.items()
            if key in found and key not in _GIVEN_BY_GRAFANA
        }
    if isinstance(found, list) and isinstance(wanted, list):
        matched = [_seen_as(one, other) for one, other in zip(found, wanted, strict=False)]
        return matched + found[len(matched) :]
    return found


def _lines(content: Mapping[str, Any]) -> list[str]:
    plain = {key: value for key, value in content.items() if key not in _GIVEN_BY_GRAFANA}
    return json.dumps(plain, indent=2, ensure_ascii=False, sort_keys=True).splitlines(
        keepends=True
    )
