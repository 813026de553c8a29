"""Simulated engines and fleets, for a demo, for tests and for the triage bench.

`llmtrace.simulator.engine` is the model of one engine (pure, standard library only);
`serve` answers OpenAI's and Anthropic's streaming APIs on loopback from it, and says in every
response that it is simulated; `llmtrace.simulator.fleet` simulates many engines over hours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmtrace.simulator.engine.scheduler import EngineConfig, Figures, Request, simulate

if TYPE_CHECKING:
    from llmtrace.simulator.server import ServerConfig, SimulatedServer, serve

__all__ = [
    "EngineConfig",
    "Figures",
    "Request",
    "ServerConfig",
    "SimulatedServer",
    "serve",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # The model does without a web framework; serving it does not.
    if name not in {"ServerConfig", "SimulatedServer", "serve"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from llmtrace.simulator import server

    return getattr(server, name)
