"""The colour of each stage, wherever it is drawn: pages, dashboards, terminals, notebooks.

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
