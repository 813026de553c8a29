"""Format a duration for the terminal, as a number and as a bar."""

from __future__ import annotations

from typing import Final

_MS: Final = 1_000_000
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def short_ms(ns: int | None) -> str:
    """Write nanoseconds as milliseconds with at most three digits that matter; `-` = unknown."""
    if ns is None:
        return "-"
    ms = ns / _MS
    if ms == 0:
        return "0"
    if ms < 0.1:  # noqa: PLR2004
        return "<0.1"
    return f"{ms:.1f}" if ms < 10 else f"{ms:.0f}"  # noqa: PLR2004


def bar(start: int, end: int, total: int, width: int) -> str:
    """Draw an interval in eighths of a character, at least one where there is any time at all.

    `total` is what the whole width, in characters, stands for.
    """
    if end == start:
        return ""
    first = min(start * width * 8 // total, width * 8 - 1)
    last = max(first + 1, end * width * 8 // total)
    cell = first // 8
    if first >= cell * 8 + 4 and last <= cell * 8 + 8:
        return " " * cell + "▐"  # within the right half of a character
    # Other block characters fill from the left, so a longer bar begins with its character.
    full, part = divmod(last - cell * 8, 8)
    return " " * cell + "█" * full + (_EIGHTHS[part] if part else "")
