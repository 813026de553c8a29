"""The colours of stages, outcomes and limits, wherever they are drawn.

One table for dashboards, pages and pictures, so that a stage is known by its colour everywhere.
Legible on dark and on light; no meaning depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llmtrace.core.stage_colours import STAGE_COLOURS

__all__ = ["NEAR", "NEUTRAL", "OUTCOME_COLOURS", "OVER", "STAGE_COLOURS", "WITHIN"]

# None is a stage's.
OUTCOME_COLOURS: Final[Mapping[str, str]] = {
    "success": "#96D98D",
    "cancelled": "#6E6ED8",
    "truncated": "#B5651D",
    "timeout": "#C23B7A",
    "error": "#E02F44",
}

# Of values compared with a limit.
WITHIN: Final = "#56A64B"
NEAR: Final = "#E5B800"
OVER: Final = "#E02F44"
NEUTRAL: Final = "#7B8A9E"
