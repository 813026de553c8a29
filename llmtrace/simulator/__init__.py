"""What can llmtrace be shown on with no GPU, no key and no server?

A simulated engine: `engine` is the model (pure, standard library only), `server` speaks OpenAI's
and Anthropic's streaming APIs over real HTTP on loopback. Every answer says it is simulated.
"""

from __future__ import annotations

from llmtrace.simulator.engine.scheduler import EngineConfig, Figures, Request, simulate

__all__ = ["EngineConfig", "Figures", "Request", "simulate"]
