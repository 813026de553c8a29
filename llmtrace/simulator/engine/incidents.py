"""The faults that can be injected into the embedded engine while it runs.

Each changes the mechanism in a server's configuration and nothing else; rows and both metrics
pages follow. `server.change(incident(server.config, "gpu_throttle", 2))` begins one, and
`server.change(before)` ends it. Causes that are made by clients (long prompts, slow renderers,
pools) or need a fleet are not here: `llmtrace.simulator.fleet` has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from llmtrace.core.errors import ConfigError
from llmtrace.simulator.api.reply_plan import ServerConfig
from llmtrace.simulator.engine.state import EngineConfig

MILD: Final = 1.0
SEVERE: Final = 3.0


def incident(config: ServerConfig, cause: str, severity: float) -> ServerConfig:
    """Return a healthy configuration with one thing wrong in it.

    Args:
        config: of the healthy server.
        cause: one of `INCIDENTS`.
        severity: from 1, hardly noticed, to 3.

    Raises:
        ConfigError: there is no such cause or severity.

    Example:
        >>> incident(ServerConfig(), "gateway_overhead", 3).gateway_s
        1.5
    """
    if cause not in INCIDENTS:
        raise ConfigError(
            f"no fault {cause!r} of one engine; known: {', '.join(sorted(INCIDENTS))}"
        )
    if not MILD <= severity <= SEVERE:
        raise ConfigError(f"{cause}: severity is from 1 to 3, not {severity:g}")
    return INCIDENTS[cause](config, severity)


def healthy(config: ServerConfig) -> ServerConfig:
    """Return a configuration of a server with something to lose: its prompts are mostly cached."""
    return replace(config, engine=replace(config.engine, prefix_hit_share=0.7))


def slowed(engine: EngineConfig, times: float) -> EngineConfig:
    """Return an engine whose steps take so many times longer."""
    return replace(
        engine,
        base_s=engine.base_s * times,
        prefill_token_s=engine.prefill_token_s * times,
        attention_s=engine.attention_s * times,
        sequence_s=engine.sequence_s * times,
        context_token_s=engine.context_token_s * times,
    )


def _between(severity: float, mild: float, medium: float, severe: float) -> float:
    low, high = (mild, medium) if severity <= 2 else (medium, severe)  # noqa: PLR2004
    return low + (high - low) * (severity - (1 if severity <= 2 else 2))  # noqa: PLR2004


def _queue_saturation(config: ServerConfig, severity: float) -> ServerConfig:
    seats = max(1, round(config.engine.max_num_seqs / _between(severity, 2, 3, 6)))
    return replace(config, engine=replace(config.engine, max_num_seqs=seats))


def _kv_exhaustion(config: ServerConfig, severity: float) -> ServerConfig:
    engine = config.engine
    # The longest prompt has to fit: to refuse it would be another incident.
    held = engine.blocks(round(_between(severity, 6000, 3600, 2300)))
    longest = min(engine.max_model_len, held)
    return replace(config, engine=replace(engine, kv_capacity_tokens=held, max_model_len=longest))


def _prefix_cache_collapse(config: ServerConfig, severity: float) -> ServerConfig:
    left = config.engine.prefix_hit_share * _between(severity, 0.5, 0.2, 0)
    return replace(config, engine=replace(config.engine, prefix_hit_share=left))


def _gpu_throttle(config: ServerConfig, severity: float) -> ServerConfig:
    slower = _between(severity, 1.4, 2.0, 3.0)
    return replace(config, gpu_clock=min(1.0, 1.05 / slower), engine=slowed(config.engine, slower))


def _longer_outputs(config: ServerConfig, severity: float) -> ServerConfig:
    longer = round(config.answer_tokens * _between(severity, 1.6, 2.2, 3.0))
    return replace(config, answer_tokens=longer)


# How a configuration comes to have each cause; `llmtrace.simulator.fleet.faults` describes them.
INCIDENTS: Final[Mapping[str, Callable[[ServerConfig, float], ServerConfig]]] = {
    "queue_saturation": _queue_saturation,
    "kv_exhaustion": _kv_exhaustion,
    "prefix_cache_collapse": _prefix_cache_collapse,
    "gpu_throttle": _gpu_throttle,
    "gateway_overhead": lambda config, severity: replace(
        config, gateway_s=config.gateway_s + _between(severity, 0.2, 0.6, 1.5)
    ),
    "rate_limit_retries": lambda config, severity: replace(
        config, reject_share=_between(severity, 0.15, 0.3, 0.5)
    ),
    "midstream_errors": lambda config, severity: replace(
        config, break_share=_between(severity, 0.08, 0.2, 0.4)
    ),
    "longer_outputs": _longer_outputs,
}
