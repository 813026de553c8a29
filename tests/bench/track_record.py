"""Store how often causes were right, in the file that reports quote."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import llmtrace.triage.causes.track_record as quoted

PATH: Final = Path(quoted.__file__).with_name(quoted.FILE)


def store(part: str, command: str, measured: Mapping[str, Any]) -> None:
    """Write what a bench measured.

    Args:
        part: `worlds` or `recordings`; the other stays as it is.
        command: that measured it.
        measured: seeds, numbers of incidents and counts.
    """
    found = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    date = time.strftime("%Y-%m-%d", time.gmtime())
    found[part] = {"command": command, "date": date, **measured}
    PATH.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def counted(said: Iterable[tuple[str, bool]]) -> dict[str, list[int]]:
    """Return how often each was right, and of how many."""
    found: dict[str, list[int]] = {}
    for name, right in said:
        counts = found.setdefault(name, [0, 0])
        counts[0] += right
        counts[1] += 1
    return found
