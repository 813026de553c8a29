"""Keep requests that the store does not accept, with the reason, until a person decides.

Two files each in one folder: `NAME.otlp`, the request as it came, which any OTLP receiver accepts,
and `NAME.json` with the reason. The first file decides whether a request is in quarantine.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

_REQUEST: Final = ".otlp"
_ABOUT: Final = ".json"
_MAX_WORDS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request in quarantine.

    Attributes:
        name: of its files.
        reason: in one word, as in the counter.
        error: the store's message.
        at: when it was set aside, unix seconds.
        spans: number; 0 = not known.
        bytes: size.
    """

    name: str
    reason: str
    error: str
    at: float
    spans: int
    bytes: int


class Quarantine:
    """The folder. Any thread may call.

    Args:
        folder: made when the first request comes.
        max_bytes: of all requests; above it the oldest are deleted.

    Attributes:
        dropped: requests that were deleted for lack of space since this process began.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.dropped = 0
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._sizes = {
            path.stem: path.stat().st_size for path in sorted(folder.glob(f"*{_REQUEST}"))
        }

    @property
    def count(self) -> int:
        """The number of requests in the folder."""
        return len(self._sizes)

    @property
    def size(self) -> int:
        """The bytes of all requests in the folder."""
        with self._lock:
            return sum(self._sizes.values())

    def add(self, name: str, payload: bytes, spans: int, reason: str, error: str) -> None:
        """Keep a request; the same name again is the same request.

        Raises:
            OSError: the disk does not take it.
        """
        entry = Entry(
            name=name, reason=reason, error=error[:_MAX_WORDS], at=time.time(), spans=spans,
            bytes=len(payload),
        )  # fmt: skip
        with self._lock:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(self.folder / f"{name}{_ABOUT}", json.dumps(asdict(entry), indent=1).encode())
            _write(self.folder / f"{name}{_REQUEST}", payload)
            self._sizes[name] = len(payload)
            while len(self._sizes) > 1 and sum(self._sizes.values()) > self.max_bytes:
                self._remove(next(iter(self._sizes)))
                self.dropped += 1

    def entries(self) -> list[Entry]:
        """Return the requests, the oldest first."""
        return [self._entry(name) for name in tuple(self._sizes)]

    def payload(self, name: str) -> bytes | None:
        """Return a request; `None` = it is not here (any more)."""
        if name not in self._sizes:  # also: nothing outside of the folder
            return None
        try:
            return (self.folder / f"{name}{_REQUEST}").read_bytes()
        except OSError:
            return None

    def remove(self, name: str) -> None:
        """Delete a request, after it was replayed."""
        with self._lock:
            if name in self._sizes:
                self._remove(name)

    def _remove(self, name: str) -> None:
        del self._sizes[name]
        for suffix in (_REQUEST, _ABOUT):
            with suppress(OSError):
                (self.folder / f"{name}{suffix}").unlink()

    def _entry(self, name: str) -> Entry:
        about: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            read = json.loads((self.folder / f"{name}{_ABOUT}").read_bytes())
            about = read if isinstance(read, dict) else {}
        return Entry(
            name=name,
            reason=str(about.get("reason", "unknown")),
            error=str(about.get("error", "")),
            at=float(about.get("at", 0.0)),
            spans=int(about.get("spans", 0)),
            bytes=self._sizes.get(name, 0),
        )


def _write(path: Path, data: bytes) -> None:
    """Write a file completely or not at all, and sync it to the disk."""
    part = path.with_suffix(f"{path.suffix}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
