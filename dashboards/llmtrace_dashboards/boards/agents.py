"""The board about agents: how long turns take, and what their tools cost."""

from __future__ import annotations

from typing import Final

from llmtrace.display.colours import OUTCOME_COLOURS
from llmtrace_dashboards import promql, variables
from llmtrace_dashboards.boards.shared_panels import graph, heat, stat, table
from llmtrace_dashboards.panels import Board, Column, Query, Row
from llmtrace_dashboards.promql import RANGE, TOOLS, TURNS, mean, quantile, total

_TURN: Final = "llmtrace_turn_duration_seconds"
_LOSS: Final = "llmtrace_turn_tool_serial_loss_seconds"
_TOOL: Final = "llmtrace_tool_duration_seconds"
_NO_TURNS: Final = "No turns: mark them with llmtrace.turn()"
_NO_TOOLS: Final = "No tool calls: mark them with @llmtrace.tool, and scrape the application"
_FRACTION: Final = "percentunit"
_DONE: Final = f'{TURNS}, outcome="success"'
_CALLED: Final = f'{TOOLS}, outcome="success"'

_TURNS: Final = Row(
    "Turns",
    (
        stat(
            "A turn takes",
            "p50 and p95 of whole turns that succeeded: every request and tool call "
            "inside, and what lies between.",
            {f"p{100 * q:g}": quantile(q, _TURN, where=_DONE, window=RANGE) for q in (0.5, 0.95)},
            unit="s",
            empty="no turns",
            width=6,
            height=8,
        ),
        graph(
            "Turns by outcome",
            "Turns a second, by how they ended. Cancelled turns are users who left.",
            Query(total(f"{_TURN}_count{{{TURNS}}}", "outcome"), "{{outcome}}"),
            unit="ops",
            empty=_NO_TURNS,
            stacked="normal",
            bars=True,
            colours=OUTCOME_COLOURS,
            width=9,
        ),
        graph(
            "p95 of a turn, by agent",
            "An agent whose p95 grows while its tools' do not calls the model more "
            "often, or for longer outputs: the stage breakdown of its route says which.",
            Query(quantile(0.95, _TURN, "agent", where=_DONE), "{{agent}}"),
            unit="s",
            empty=_NO_TURNS,
            width=9,
        ),
        heat(
            "Whole turns",
            _TURN,
            "Every turn that succeeded. Bands are numbers of rounds: a turn with one more round "
            "of tools lies one band higher.",
            where=_DONE,
            empty=_NO_TURNS,
        ),
        graph(
            "Lost by calling independent tools one after the other",
            "Seconds a turn that running independent tool calls at once would have "
            "saved, on average. Calls that need each other's results are not in it. Worth fixing "
            "where it is a good part of the turn: ask the model for parallel calls, and await "
            "them together.",
            Query(mean(_LOSS, "agent", where=_DONE), "{{agent}}"),
            unit="s",
            empty="No turns that called tools",
        ),
    ),
)

_CALLS: Final = total(f"{_TOOL}_count{{{TOOLS}}}", "tool", window=RANGE)
_FAILED: Final = total(f'{_TOOL}_count{{{TOOLS}, outcome!="success"}}', "tool", window=RANGE)

_TOOLS_ROW: Final = Row(
    "Tools",
    (
        table(
            "Every tool",
            "How often each tool is called, how long it takes and how often it fails. "
            "Time = calls times mean: what making it faster could win at most.",
            {
                "calls": _CALLS,
                "p50": quantile(0.5, _TOOL, "tool", where=_CALLED, window=RANGE),
                "p95": quantile(0.95, _TOOL, "tool", where=_CALLED, window=RANGE),
                "time in all": total(f"{_TOOL}_sum{{{TOOLS}}}", "tool", window=RANGE),
                "failed": promql.share(promql.or_zero(_FAILED, _CALLS), _CALLS),
            },
            unit="s",
            empty=_NO_TOOLS,
            width=12,
            height=9,
            columns=(
                Column(name="calls", unit="locale", decimals=0),
                Column(name="failed", unit=_FRACTION, decimals=1, steps=variables.BAD),
            ),
            sort=("time in all", True),
        ),
        graph(
            "p95 of a call, by tool",
            "A tool that grew slower while the others did not: look at what it calls.",
            Query(quantile(0.95, _TOOL, "tool", where=_CALLED), "{{tool}}"),
            unit="s",
            empty=_NO_TOOLS,
            height=9,
            calcs=("lastNotNull", "max"),
        ),
        graph(
            "Calls by tool",
            "Tool calls a second. A tool called far more often than before: the model "
            "repeats itself, often after an error it does not understand.",
            Query(total(f"{_TOOL}_count{{{TOOLS}}}", "tool"), "{{tool}}"),
            unit="ops",
            empty=_NO_TOOLS,
            stacked="normal",
            bars=True,
        ),
        graph(
            "Tool calls at once, while any runs",
            "Time of all tool calls over the time of their turns in which any of them "
            "ran: 1 is one after the other, 3 is three at once. A fall while turns get longer: "
            "calls that could run together take turns.",
            Query(
                promql.share(
                    *(
                        total(f"llmtrace_turn_{time}_seconds_total{{{TURNS}}}", "agent")
                        for time in ("tool", "tool_wall")
                    )
                ),
                "{{agent}}",
            ),
            unit="short",
            decimals=2,
            empty=_NO_TOOLS,
        ),
        heat(
            "Tool calls",
            _TOOL,
            "Every call that succeeded, by how long it took. Bands far apart are tools of their "
            "own, or a cache.",
            where=_CALLED,
            empty=_NO_TOOLS,
        ),
    ),
)

AGENTS: Final = Board(
    uid="llmtrace-agents",
    title="llmtrace / Agents and tools",
    description="How long do turns of agents take, and what do their tools cost?",
    rows=(_TURNS, _TOOLS_ROW),
    variables=(
        *variables.REQUEST_PLACES,
        variables.SERVICE,
        variables.REGION,
        variables.AGENT,
        variables.TOOL,
        variables.RECORDED,
    ),
    annotations=variables.MARKS,
)
