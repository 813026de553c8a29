"""Plan the simulated response to one request, and the work it takes from the engine.

Pure: a body that was read and a configuration go in; a reply to send and a request to run come
out.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field, replace

from llmtrace.core.errors import ConfigError
from llmtrace.simulator.api.fault_header import NO_FAULTS, Faults
from llmtrace.simulator.api.request_body import ParsedRequest, RejectedError
from llmtrace.simulator.api.wire_format import Dialect, Reply
from llmtrace.simulator.engine.scheduler import EngineConfig, Request
from llmtrace.simulator.engine.text import count_tokens, natural_tokens, write_answer

# A chat template wraps every prompt; the engine has no template.
_TEMPLATE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One simulated server: its engine, and what stands before and around it."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    model: str = "llmtrace-sim"
    answer_tokens: int = 120  # median length of a response without a limit
    gateway_s: float = 0.0  # spent in a simulated gateway before the engine, and reported by it
    faults: Faults = NO_FAULTS
    reject_share: float = 0.0  # of requests, answered with 429
    break_share: float = 0.0  # of answers, ended by an error event in the middle
    gpu_clock: float = 1.0  # of its nominal clock; what that costs is in the engine's figures

    def __post_init__(self) -> None:
        """Refuse a server that could not answer."""
        if not self.model:
            raise ConfigError("ServerConfig.model must not be empty: clients ask for it by name")
        if self.answer_tokens < 1:
            raise ConfigError("ServerConfig.answer_tokens must be at least 1")
        if self.gateway_s < 0:
            raise ConfigError("ServerConfig.gateway_s must not be negative")
        for name in ("reject_share", "break_share", "gpu_clock"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"ServerConfig.{name} is a share from 0 to 1")

    @property
    def fingerprint(self) -> str:
        """The `system_fingerprint` of every answer; another configuration has another one."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()
        return f"llmtrace-sim-{digest[:8]}"


def plan_reply(
    config: ServerConfig,
    dialect: Dialect,
    ask: ParsedRequest,
    *,
    faults: Faults,
    request_id: str,
    arrived_s: float,
) -> tuple[Reply, Request]:
    """Decide the answer to one request: how long, why it ends, and its very words.

    Raises:
        RejectedError: the model is another, or prompt and response do not fit.
    """
    if ask.model not in (None, config.model):
        message = f"The model `{ask.model}` does not exist: here is only `{config.model}`."
        raise RejectedError(404, message, "model")
    prompt_tokens = count_tokens(ask.prompt) + _TEMPLATE_TOKENS
    room = config.engine.max_model_len - prompt_tokens
    wanted = 1 if ask.limit is None else ask.limit
    if wanted > room:
        raise RejectedError(
            400,
            f"this engine holds {config.engine.max_model_len} tokens: {prompt_tokens} of the "
            f"prompt leave no room for {wanted} of output; shorten the prompt or ask for less",
            "max_tokens",
        )
    limit = room if ask.limit is None else ask.limit
    seed = config.engine.seed
    natural = natural_tokens(ask.prompt, seed, config.answer_tokens)
    stops = not ask.ignore_eos and max(natural, ask.min_tokens) <= limit
    tokens = max(natural, ask.min_tokens) if stops else limit
    reply = Reply(
        ask=ask,
        reply_id=dialect.id_prefix + request_id,
        model=config.model,
        created=int(time.time()),
        fingerprint=config.fingerprint,
        prompt_tokens=prompt_tokens,
        finish=("tool_calls" if faults.tool_calls else "stop") if stops else "length",
        pieces=write_answer(
            ask.prompt,
            seed,
            tokens,
            stops=stops,
            reasoning_tokens=faults.reasoning_tokens,
            tool_calls=faults.tool_calls,
        ),
    )
    request = Request(
        request_id=reply.reply_id,
        prompt_tokens=prompt_tokens,
        output_tokens=tokens,
        arrived_s=arrived_s,
        finish_reason="stop" if stops else "length",
    )
    return reply, request


def unique(request: Request, number: int) -> Request:
    """Return the request with an id that no other has, whatever ids clients send."""
    return replace(request, request_id=f"{request.request_id}-{number}")
