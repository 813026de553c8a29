"""Which dashboards are there?"""

from __future__ import annotations

from typing import Final

from llmtrace_dashboards.boards.agents import AGENTS
from llmtrace_dashboards.boards.budget import BUDGET
from llmtrace_dashboards.boards.client import CLIENT
from llmtrace_dashboards.boards.engine import ENGINE
from llmtrace_dashboards.boards.stages import STAGES
from llmtrace_dashboards.boards.triage import TRIAGE
from llmtrace_dashboards.panel import Board

BOARDS: Final[tuple[Board, ...]] = (BUDGET, STAGES, ENGINE, TRIAGE, AGENTS, CLIENT)
