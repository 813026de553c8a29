"""Compute how many tokens, and how many requests, a KV cache holds.

Blocks as vLLM's paged cache counts them: a request takes whole blocks, and the cache has whole
blocks alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmtrace.kv_cache.model_shape import DTYPE_BYTES, ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one engine replica, in bytes.

    Attributes:
        device: of each GPU.
        utilization: share of it that the engine may take, 0 to 1.
        devices: GPUs over which each layer is split (tensor parallelism).
        reserved: of each GPU for activations, CUDA graphs and the like.
        weight_bytes: of one weight.
    """

    device: int
    utilization: float = 0.9
    devices: int = 1
    reserved: int = 0
    weight_bytes: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a KV cache holds.

    Attributes:
        bytes_per_token: in all layers and on all devices, while the context grows.
        cache_bytes: memory for the cache, on all devices; `None` = not given.
        block_tokens: tokens of a block.
        blocks: whole blocks that fit; `None` where `cache_bytes` is, or no layer keeps tokens.
    """

    bytes_per_token: float
    cache_bytes: int | None
    block_tokens: int
    blocks: int | None

    @property
    def tokens(self) -> int | None:
        """Tokens that fit, in whole blocks."""
        return None if self.blocks is None else self.blocks * self.block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How many requests of some lengths fit at once.

    Attributes:
        requests: lengths this is worked out from.
        mean_tokens: their mean, prompt and output together.
        high_tokens: their 95th percentile, nearest rank.
        at_mean: requests that fit if they come in this mix, each with all its tokens.
        at_high: requests that fit if each is as long as `high_tokens`.
        lost: share of the blocks' room that a request's last, partly filled block wastes.
    """

    requests: int
    mean_tokens: float
    high_tokens: int
    at_mean: int
    at_high: int
    lost: float


def bytes_per_token(shape: ModelShape, dtype: str | None = None, devices: int = 1) -> float:
    """Return the bytes that one more token takes: `2 x layers x kv_heads x head_dim x bytes`.

    The 2 is for keys and values. Heads are split over devices as far as there are heads, then
    repeated; a latent (multi-head latent attention) is one tensor, and repeated on every device.
    A layer with a sliding window counts: it takes no more only once its window is full.

    Example:
        >>> shape = ModelShape(layers=32, kv_heads=32, head_dim=128, dtype="float16")
        >>> bytes_per_token(shape)
        524288.0
    """
    layers = shape.layers + shape.sliding_layers
    return float(layers * _elements(shape, devices) * DTYPE_BYTES[dtype or shape.dtype])


def tokens_held(shape: ModelShape | None, tokens: int) -> float:
    """Return for how many tokens a request of so many takes room: fewer, by sliding windows."""
    if shape is None or not shape.sliding_layers:
        return float(tokens)
    layers = shape.layers + shape.sliding_layers
    inside = min(tokens, shape.window or tokens)
    return (shape.layers * tokens + shape.sliding_layers * inside) / layers


def _elements(shape: ModelShape, devices: int) -> int:
    if shape.latent_dim is not None:
        return shape.latent_dim * devices
    return 2 * max(shape.kv_heads, devices) * shape.head_dim


def cache_bytes(shape: ModelShape, memory: Memory) -> int | None:
    """Return what is left for the cache on all devices; negative if the weights do not fit.

    `None` where it is not known how many weights there are.
    """
    if shape.parameters is None:
        return None
    room = memory.devices * (int(memory.device * memory.utilization) - memory.reserved)
    return room - round(shape.parameters * memory.weight_bytes)


def capacity(
    shape: ModelShape,
    room: int | None,
    *,
    dtype: str | None = None,
    block_tokens: int = 16,
    devices: int = 1,
) -> Capacity:
    """Return what a cache of `room` bytes holds, all devices together.

    Args:
        shape: of the model.
        room: bytes for the cache; `None` = not known.
        dtype: type of the cache's elements; default: that of the weights.
        block_tokens: tokens of a block: vLLM's `--block-size`.
        devices: GPUs over which each layer is split.
    """
    token = bytes_per_token(shape, dtype, devices)
    blocks = None if room is None or not token else max(0, int(room // (token * block_tokens)))
    return Capacity(
        bytes_per_token=token, cache_bytes=room, block_tokens=block_tokens, blocks=blocks
    )


def fit(shape: ModelShape, holds: Capacity, lengths: Sequence[int]) -> Fit | None:
    """Return how many requests of these lengths, in tokens, fit at once.

    `None` where it is not known how many blocks there are, or no length is given.
    """
    if holds.blocks is None:
        return None
    return fit_blocks(holds.blocks, holds.block_tokens, lengths, shape)


def fit_blocks(
    total: int, size: int, lengths: Sequence[int], shape: ModelShape | None
) -> Fit | None:
    """Return how many requests of these lengths fit in so many blocks of a size at once.

    `None` where no length is given. Without a shape, every layer is taken to keep every token.
    """
    lengths = sorted(length for length in lengths if length > 0)
    if not lengths:
        return None
    held = [tokens_held(shape, length) for length in lengths]
    blocks = [math.ceil(tokens / size) for tokens in held]
    high = lengths[max(math.ceil(0.95 * len(lengths)) - 1, 0)]
    return Fit(
        requests=len(lengths),
        mean_tokens=sum(lengths) / len(lengths),
        high_tokens=high,
        at_mean=total * len(blocks) // sum(blocks),
        at_high=total // math.ceil(tokens_held(shape, high) / size),
        lost=1 - sum(held) / (size * sum(blocks)),
    )
