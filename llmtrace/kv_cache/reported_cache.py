"""Read how large an engine's KV cache is out of the facts that are known of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.core.errors import ConfigError
from llmtrace.kv_cache.capacity import Fit, bytes_per_token, fit_blocks
from llmtrace.kv_cache.model_shape import DTYPE_BYTES, ModelShape, shape_from

_MAX: Final = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedCache:
    """A KV cache as facts describe it.

    Attributes:
        tokens: that fit.
        block_tokens: tokens of a block; `None` = not known.
        bytes_per_token: `None` = not known.
        shape: of the model; `None` = not known.
    """

    tokens: int
    block_tokens: int | None = None
    bytes_per_token: float | None = None
    shape: ModelShape | None = None

    def fit(self, lengths: list[int]) -> Fit | None:
        """Return how many requests of these lengths fit; `None` = no length is given.

        Where the size of a block is not known, what last blocks waste is not counted.
        """
        size = self.block_tokens or 1
        return fit_blocks(self.tokens // size, size, lengths, self.shape)


def reported_cache(facts: Mapping[str, Any]) -> ReportedCache | None:
    """Return the cache that facts of an engine describe; `None` = they do not.

    By `kv_cache_tokens`; or by `kv_cache_blocks` and `block_size`; or by `kv_cache_bytes` and the
    model's `config.json` as `model_config`, with `kv_cache_dtype` where it is not the weights'.
    """
    tokens, blocks, size, room = (
        _whole(facts.get(name))
        for name in ("kv_cache_tokens", "kv_cache_blocks", "block_size", "kv_cache_bytes")
    )
    shape = _shape(facts.get("model_config"))
    dtype = facts.get("kv_cache_dtype")
    known = isinstance(dtype, str) and dtype in DTYPE_BYTES
    each = bytes_per_token(shape, dtype if known else None) if shape is not None else None
    if tokens is None and blocks and size:
        tokens = blocks * size
    if tokens is None and room and each:
        tokens = int(room // each)
    if tokens and room:
        each = room / tokens
    if not tokens:
        return None
    return ReportedCache(tokens=tokens, block_tokens=size, bytes_per_token=each, shape=shape)


def _whole(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX
    return int(value) if whole else None


def _shape(config: Any) -> ModelShape | None:
    """Return the shape in a configuration; `None` = there is none, or it is not understood."""
    if not isinstance(config, Mapping):
        return None
    try:
        return shape_from(config, where="model_config")
    except ConfigError:
        return None
