"""Print what a KV cache holds: for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from llmtrace.kv_cache.capacity import Capacity, Fit
from llmtrace.kv_cache.model_shape import ModelShape

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024


def size(count: float) -> str:
    """Write a number of bytes with its unit.

    Example:
        >>> size(524288), size(34359738368), size(-3 * 2**20)
        ('512 KiB', '32 GiB', '-3 MiB')
    """
    if count < 0:
        return f"-{size(-count)}"
    for unit in _UNITS:
        if count < _STEP or unit == _UNITS[-1]:
            break
        count /= _STEP
    return f"{count:.4g} {unit}" if count >= 1 or unit == "B" else f"{count:.2g} {unit}"


def lines(shape: ModelShape, dtype: str, holds: Capacity, fits: Fit | None) -> Iterator[str]:
    """Yield the report, a line each; without `fits`, how many requests fit is not known."""
    name = f"{shape.name}: " if shape.name else ""
    yield f"model            {name}{_attention(shape)}"
    yield f"a token          {holds.bytes_per_token:,.0f} bytes of {dtype} ({_formula(shape)})"
    if shape.parameters is not None:
        yield f"weights          {shape.parameters:,} parameters, {shape.parameters_from}"
    if holds.cache_bytes is None:
        return
    if holds.cache_bytes < 0:
        yield f"cache            none: {size(-holds.cache_bytes)} more memory is needed"
        return
    yield f"cache            {size(holds.cache_bytes)}"
    if holds.blocks is None:
        return
    yield (f"tokens that fit  {holds.tokens:,} in {holds.blocks:,} blocks of {holds.block_tokens}")
    if shape.max_tokens:
        longest = (holds.tokens or 0) / shape.max_tokens
        yield f"longest context  {shape.max_tokens:,} tokens: {longest:,.2f} of them fit at once"
    if fits is not None:
        yield from _mix(fits)


def _mix(fits: Fit) -> Iterator[str]:
    if fits.requests == 1:
        yield f"requests         {fits.at_mean:,} of {fits.high_tokens:,} tokens fit at once"
    else:
        yield (
            f"requests         {fits.at_mean:,} fit at once in the mix of {fits.requests:,} "
            f"(mean {fits.mean_tokens:,.0f} tokens), {fits.at_high:,} at its p95 of "
            f"{fits.high_tokens:,}"
        )
    yield f"lost             {fits.lost:.1%} of the room, in last blocks that are partly filled"


def as_dict(shape: ModelShape, dtype: str, holds: Capacity, fits: Fit | None) -> dict[str, Any]:
    """Return the report as plain JSON; sizes in bytes, `null` = not known."""
    return {
        "model": asdict(shape),
        "cache_dtype": dtype,
        **asdict(holds),
        "tokens": holds.tokens,
        "fit": None if fits is None else asdict(fits),
    }


def _attention(shape: ModelShape) -> str:
    said = f"{shape.layers + shape.sliding_layers} layers"
    if shape.latent_dim is not None:
        said += f", a latent of {shape.latent_dim} (multi-head latent attention)"
    else:
        said += f", {shape.kv_heads} KV heads of {shape.head_dim}"
    if shape.sliding_layers:
        said += f"; {shape.sliding_layers} of them keep the last {shape.window:,} tokens alone"
    return said


def _formula(shape: ModelShape) -> str:
    layers = shape.layers + shape.sliding_layers
    if shape.latent_dim is not None:
        return f"{layers} x {shape.latent_dim} elements"
    return f"2 x {layers} x {shape.kv_heads} x {shape.head_dim} elements"
