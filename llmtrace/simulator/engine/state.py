"""The data of a simulated engine: its size, its requests, and their results.

Frozen records without behaviour beyond derived figures; `scheduler` moves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmtrace.core.errors import ConfigError

FinishReason = Literal["stop", "length"]
_MAX_JITTER = 0.3  # above it a normal draw is below 0 too often


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Size and speed of one simulated engine: sizes in tokens, times in seconds.

    The defaults resemble a mid-size model on one GPU: some 11,000 prompt tokens a second and 8 to
    11 ms an output token. `max_num_seqs` is far below what such a GPU holds, on purpose: a dozen
    clients on a laptop must be enough to make a queue.
    """

    max_num_seqs: int = 6
    max_num_batched_tokens: int = 2048
    max_model_len: int = 16_384
    kv_capacity_tokens: int = 49_152
    block_size: int = 16
    prefix_hit_share: float = 0.0  # of every prompt, found in the prefix cache
    base_s: float = 0.0075  # a step with nothing in it: weights read once
    prefill_token_s: float = 90e-6
    attention_s: float = 3e-9  # a pair of prompt token and token before it
    sequence_s: float = 250e-6  # a running sequence that decodes
    context_token_s: float = 0.1e-6  # a token of its context, read from the KV cache
    jitter: float = 0.03  # standard deviation of a step's time, as a share of it
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse a configuration in which some request could never be served."""
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"):
            _require(getattr(self, name) >= 1, f"EngineConfig.{name} must be at least 1")
        for name in ("base_s", "prefill_token_s", "attention_s", "sequence_s", "context_token_s"):
            _require(getattr(self, name) >= 0, f"EngineConfig.{name} must not be negative")
        _require(self.base_s > 0, "EngineConfig.base_s must be above 0: a step takes time")
        _require(0 <= self.prefix_hit_share <= 1, "EngineConfig.prefix_hit_share is from 0 to 1")
        _require(0 <= self.jitter <= _MAX_JITTER, "EngineConfig.jitter is a share from 0 to 0.3")
        _require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            "EngineConfig.max_num_batched_tokens must be at least max_num_seqs, "
            "or some running sequence would starve; raise the one or lower the other",
        )
        _require(
            self.kv_capacity_tokens >= self.blocks(self.max_model_len),
            "EngineConfig.kv_capacity_tokens must hold one sequence of max_model_len tokens; "
            "raise the one or lower the other",
        )

    def blocks(self, tokens: int) -> int:
        """Round tokens up to whole blocks of the KV cache."""
        return -(-tokens // self.block_size) * self.block_size


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and how long its answer will be. Ids are unique within an engine."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    arrived_s: float = 0.0  # at the front end, before the engine takes it in
    cached_tokens: int | None = None  # found in the prefix cache; `None` = the engine's share
    finish_reason: FinishReason = "stop"  # why the answer will end where it does


@dataclass(frozen=True, slots=True)
class Sequence:
    """A request inside the engine: what has been computed for it so far, and when."""

    request: Request
    queued_s: float
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    cached: int = 0
    computed: int = 0  # tokens in the KV cache, cached ones included
    produced: int = 0
    preemptions: int = 0

    @property
    def known(self) -> int:
        """Tokens of the sequence so far: the prompt and what was produced."""
        return self.request.prompt_tokens + self.produced

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is missing from the KV cache."""
        return self.produced > 0 and self.known - self.computed == 1


@dataclass(frozen=True, slots=True)
class EngineState:
    """Everything the engine remembers between two steps."""

    waiting: tuple[Sequence, ...] = ()
    running: tuple[Sequence, ...] = ()
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: which sequence gets how many tokens, and how long it should take."""

    started_s: float
    duration_s: float
    work: Mapping[str, int]  # request id -> tokens
    prefill_tokens: int
    admitted: tuple[Sequence, ...]  # scheduled for the first time
    preempted: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What one finished request went through, in seconds of the clock that drove the engine."""

    request: Request
    cached_tokens: int
    queued_s: float
    scheduled_s: float
    first_token_s: float
    finished_s: float
    preemptions: int

    @property
    def ttft_s(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first_token_s - self.request.arrived_s

    @property
    def queue_s(self) -> float:
        """Seconds from taken in to first scheduled; waiting for a running step is before it."""
        return self.scheduled_s - self.queued_s

    @property
    def prefill_s(self) -> float:
        """Seconds from first scheduled to the first token."""
        return self.first_token_s - self.scheduled_s

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""
        return self.finished_s - self.first_token_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; `None` for an answer of one token."""
        later = self.request.output_tokens - 1
        return self.decode_s / later if later else None


@dataclass(frozen=True, slots=True)
class Token:
    """One output token. The last of a request carries the request's figures."""

    request: Request
    number: int  # from 0
    at_s: float
    gap_s: float | None  # since the token before; `None` for the first
    figures: Figures | None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)
