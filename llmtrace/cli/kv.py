"""Declare the command that works out what a KV cache holds."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmtrace.cli.arguments import Commands, add_command, add_json, positive
from llmtrace.cli.explain import usable_rows
from llmtrace.core.errors import ConfigError

if TYPE_CHECKING:
    from llmtrace.kv_cache.model_shape import ModelShape

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB|KB|MB|GB|TB)?", re.IGNORECASE)
_COUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_MIN_BYTES: Final = 1e6  # of less, the unit is missing
_POWERS: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
_THOUSANDS: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_DTYPES: Final = ("fp32", "fp16", "bf16", "fp8", "int8", "fp4", "int4")


def add_kv(commands: Commands) -> None:
    """Declare `llmtrace kv`."""
    kv = add_command(
        commands,
        "kv",
        _kv,
        "compute how many tokens and requests a KV cache holds",
        "Compute the bytes a token takes in the KV cache, and how many tokens and requests fit: "
        "from a model's config.json, or from its layers and heads.",
        examples=(
            "llmtrace kv --model-config Llama-3.1-8B/config.json --gpu-memory 80GB",
            "llmtrace kv --model-config config.json --gpu-memory 80GB --rows rows.jsonl",
            "llmtrace kv --layers 32 --kv-heads 32 --head-dim 128 --dtype fp16 --tokens 2048",
        ),
        docs="operate/kv-cache.md",
    )
    _add_model(kv)
    _add_memory(kv)
    _add_cache(kv)


def _add_model(kv: argparse.ArgumentParser) -> None:
    model = kv.add_argument_group("model: a file, or its figures")
    model.add_argument(
        "--model-config", type=Path, metavar="FILE",
        help="the model's config.json, or the folder it is in",
    )  # fmt: skip
    for name, what in (
        ("--layers", "attention layers"),
        ("--kv-heads", "heads of keys and values in a layer"),
        ("--head-dim", "elements of a head"),
    ):
        model.add_argument(name, type=positive(int), metavar="N", help=what)
    model.add_argument(
        "--parameters", type=_count, metavar="N", help="number of weights, such as 8.03B"
    )
    model.add_argument(
        "--dtype", choices=_DTYPES, help="type of the weights (default: the model's, else bf16)"
    )


def _add_memory(kv: argparse.ArgumentParser) -> None:
    memory = kv.add_argument_group("memory: what is left of the GPU, or of the cache alone")
    memory.add_argument(
        "--gpu-memory", type=size_of, metavar="SIZE", help="memory of each GPU, such as 80GB"
    )
    memory.add_argument(
        "--utilization", type=_share, default=0.9, metavar="SHARE",
        help="share of it for the engine, like --gpu-memory-utilization (default: 0.9)",
    )  # fmt: skip
    memory.add_argument(
        "--tensor-parallel", type=positive(int), default=1, metavar="N",
        help="GPUs over which each layer is split (default: 1)",
    )  # fmt: skip
    memory.add_argument(
        "--reserved", type=size_of, default=0, metavar="SIZE",
        help="memory of each GPU for activations and CUDA graphs (default: 0)",
    )  # fmt: skip
    memory.add_argument(
        "--cache-memory",
        type=size_of,
        metavar="SIZE",
        help="memory of the cache alone, on all GPUs",
    )


def _add_cache(kv: argparse.ArgumentParser) -> None:
    cache = kv.add_argument_group("cache and requests")
    cache.add_argument(
        "--cache-dtype",
        choices=_DTYPES,
        help="type of the cache, like --kv-cache-dtype (default: that of the weights)",
    )
    cache.add_argument(
        "--block-size", type=positive(int), default=16, metavar="N",
        help="tokens of a block, like --block-size (default: 16)",
    )  # fmt: skip
    lengths = cache.add_mutually_exclusive_group()
    lengths.add_argument(
        "--tokens", type=positive(int), metavar="N",
        help="length of a request, prompt and output (default: the model's longest context)",
    )  # fmt: skip
    lengths.add_argument(
        "--rows", type=Path, action="append", metavar="ROWS",
        help="file of rows, whose lengths are the mix; may be repeated",
    )  # fmt: skip
    add_json(kv, "text")


def _kv(options: argparse.Namespace) -> None:
    from llmtrace.kv_cache import capacity, capacity_report

    shape = _shape(options)
    heads, devices = shape.kv_heads, options.tensor_parallel
    if heads % devices and devices % heads:
        raise ConfigError(
            f"--tensor-parallel: {heads} KV heads cannot be split over {devices} GPUs"
        )
    dtype = options.cache_dtype or shape.dtype
    room = _room(options, shape)
    holds = capacity.capacity(
        shape, room, dtype=dtype, block_tokens=options.block_size, devices=devices
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
    lengths = [
        row.prompt_tokens + row.output_tokens
        for row in usable_rows(*options.rows)
        if row.prompt_tokens is not None and row.output_tokens is not None and not row.is_turn
    ]
    if not lengths:
        raise ConfigError("--rows: no row reports both prompt_tokens and output_tokens")
    return lengths


def size_of(text: str) -> int:
    """Return the bytes that a text such as `80GB`, `24GiB` or `1048576` names."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 80GB or 24GiB")
    unit = (found[2] or "").lower()
    if not unit and 0 < float(found[1]) < _MIN_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is bytes; write {found[1]}GB or {found[1]}GiB")
    base = 1024 if unit.endswith("ib") else 1000
    return int(float(found[1]) * (base ** _POWERS[unit[0]] if unit else 1))


def _count(text: str) -> int:
    found = _COUNT.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number such as 8.03B or 70000000000")
    return round(float(found[1]) * _THOUSANDS[found[2].lower()])


def _share(text: str) -> float:
    share = positive(float)(text)
    if share > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return share
