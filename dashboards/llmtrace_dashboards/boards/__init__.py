"""List the dashboards and write them as JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from llmtrace_dashboards.boards.agents import AGENTS
from llmtrace_dashboards.boards.budget import BUDGET
from llmtrace_dashboards.boards.client import CLIENT
from llmtrace_dashboards.boards.engine import ENGINE
from llmtrace_dashboards.boards.engine_budget import ENGINE_BUDGET
from llmtrace_dashboards.boards.stages import STAGES
from llmtrace_dashboards.boards.triage import TRIAGE
from llmtrace_dashboards.grafana_json import as_json
from llmtrace_dashboards.panels import Board

BOARDS: Final[tuple[Board, ...]] = (
    BUDGET, STAGES, ENGINE, ENGINE_BUDGET, TRIAGE, AGENTS, CLIENT,
)  # fmt: skip
# Those that need engines' own metrics alone.
OF_ENGINES: Final = (ENGINE, ENGINE_BUDGET)


def dashboards(
    runbooks: str | None = None, *, engines_only: bool = False
) -> dict[str, dict[str, Any]]:
    """Return each dashboard in Grafana's format, by the name of its file.

    With `engines_only` those that need engines' metrics alone, which link to each other. Causes
    link to `runbooks`, the address of docs/on-call/runbooks.
    """
    boards = OF_ENGINES if engines_only else BOARDS
    return {f"{board.uid}.json": as_json(board, boards, runbooks=runbooks) for board in boards}


def text(dashboard: Mapping[str, Any]) -> str:
    """Write a dashboard down, the same way every time."""
    return json.dumps(dashboard, indent=2, ensure_ascii=False) + "\n"
