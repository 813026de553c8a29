"""The colour of each stage, wherever it is drawn.

One table for dashboards, pages and pictures, so that a stage is known by its colour everywhere.
Legible on dark and on light; no meaning depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

STAGE_COLOURS: Final[Mapping[str, str]] = {
    "network": "#5794F2",
    "gateway": "#A378D9",
    "queue": "#FF8833",
    "prefill": "#E5B800",
    "first_chunk": "#1AA39A",
    "decode": "#56A64B",
    "render": "#E07BB0",
    "unattributed": "#8E99A8",
}

OUTCOME_COLOURS: Final[Mapping[str, str]] = {
    "success": "#56A64B",
    "cancelled": "#5794F2",
    "truncated": "#E5B800",
    "timeout": "#FF8833",
    "error": "#E02F44",
}

# Of values compared with a limit.
WITHIN: Final = "#56A64B"
NEAR: Final = "#E5B800"
OVER: Final = "#E02F44"
NEUTRAL: Final = "#7B8A9E"
