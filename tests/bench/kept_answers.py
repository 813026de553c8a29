"""Append a bench's answers to a file of JSON lines; a later run goes on from those."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def read_kept(path: Path | None, read: Callable[[dict[str, Any]], T]) -> list[T]:
    """Return the answers that an earlier run kept, as `read` makes them of an object."""
    if path is None or not path.exists():
        return []
    return [read(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def keep(path: Path | None, answer: Any) -> None:
    """Append an answer, which is a dataclass."""
    if path is not None:
        with path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(answer)) + "\n")
