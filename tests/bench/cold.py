"""Evict the CPU's caches, as an application does that does other things between two requests.

In the hot, the code and data of a request are in the caches already, which hides what long paths
through them cost.
"""

from __future__ import annotations

from typing import Final

# More than the last level of cache of most machines. Not zeros: those would all be one page.
_BYTES: Final = 96 << 20
_LINES: list[bytes] = []


def evict() -> None:
    """Read through more memory than the caches hold; takes some 10 ms, made on the first call."""
    if not _LINES:
        _LINES.append(b"\xff" * _BYTES)
    _LINES[0].find(b"\0")
