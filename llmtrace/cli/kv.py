"""Run the command that works out what a KV cache holds."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from llmtrace.cli.arguments import positive
from llmtrace.core.errors import ConfigError

if TYPE_CHECKING:
    from llmtrace.kv_cache.model_shape import ModelShape

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB|KB|MB|GB|TB)?", re.IGNORECASE)
_COUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
_THOUSANDS: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def run_kv(options: argparse.Namespace) -> None:
    """Run `llmtrace kv` as its options say."""
    from llmtrace.kv_cache import capacity, capacity_report

    shape = _shape(options)
    dtype = options.cache_dtype or shape.dtype
    room = _room(options, shape)
    holds = capacity.capacity(
        shape, room, dtype=dtype, block_tokens=options.block_size, devices=options.tensor_parallel
    )
    fits = capacity.fit(shape, holds, _lengths(options, shape))
    if options.json:
        print(json.dumps(capacity_report.as_dict(shape, dtype, holds, fits), indent=2))
        return
    for line in capacity_report.lines(shape, dtype, holds, fits):
        print(line)


def _shape(options: argparse.Namespace) -> ModelShape:
    from dataclasses import replace

    from llmtrace.kv_cache.model_shape import ModelShape, read_shape

    given = (options.layers, options.kv_heads, options.head_dim)
    if options.model_config is not None:
        if any(value is not None for value in given):
            raise ConfigError("--model-config: not together with --layers, --kv-heads, --head-dim")
        shape = read_shape(options.model_config)
    elif all(value is not None for value in given):
        shape = ModelShape(layers=given[0], kv_heads=given[1], head_dim=given[2])
    else:
        raise ConfigError("give --model-config, or all of --layers, --kv-heads and --head-dim")
    if options.parameters is not None:
        shape = replace(shape, parameters=options.parameters, parameters_from="as given")
    return shape if options.dtype is None else replace(shape, dtype=options.dtype)


def _room(options: argparse.Namespace, shape: ModelShape) -> int | None:
    from llmtrace.kv_cache.capacity import Memory, cache_bytes
    from llmtrace.kv_cache.model_shape import DTYPE_BYTES

    if options.cache_memory is not None:
        if options.gpu_memory is not None:
            raise ConfigError("--cache-memory: not together with --gpu-memory")
        return int(options.cache_memory)
    if options.gpu_memory is None:
        return None
    memory = Memory(
        device=options.gpu_memory,
        utilization=options.utilization,
        devices=options.tensor_parallel,
        reserved=options.reserved,
        weight_bytes=DTYPE_BYTES[shape.dtype],
    )
    room = cache_bytes(shape, memory)
    if room is None:
        raise ConfigError("--gpu-memory: how large the weights are is not known; add --parameters")
    return room


def _lengths(options: argparse.Namespace, shape: ModelShape) -> Sequence[int]:
    if options.rows is None:
        length = options.tokens or shape.max_tokens
        return () if length is None else (length,)
    from llmtrace.exporters.row_files.read_back import read_rows

    lengths = [
        row.prompt_tokens + (row.output_tokens or 0)
        for row in read_rows(options.rows)
        if row.prompt_tokens is not None and not row.is_turn
    ]
    if not lengths:
        raise ConfigError(f"{options.rows}: no row reports its prompt's tokens")
    return lengths


def size_of(text: str) -> int:
    """Return the bytes that a text such as `80GB`, `24GiB` or `1048576` names."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 80GB or 24GiB")
    unit = (found[2] or "").lower()
    base = 1024 if unit.endswith("ib") else 1000
    return int(float(found[1]) * (base ** _POWERS[unit[0]] if unit else 1))


def count(text: str) -> int:
    """Return the number that a text such as `8.03B` or `70000000000` names."""
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 8.03B or 70000000000")
    return round(float(found[1]) * _THOUSANDS[found[2].lower()])


def share(text: str) -> float:
    """Return the share above 0 and up to 1 that a text such as `0.9` names."""
    share = positive(float)(text)
    if share > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return share
