"""Read from a model's `config.json` what its KV cache and its weights depend on.

Field names as Hugging Face's `transformers` writes them. The arithmetic follows the papers on
grouped-query attention (arXiv:2305.13245) and multi-head latent attention (arXiv:2405.04434).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from llmtrace.core.errors import ConfigError
from llmtrace.core.json_object import read_object

# Bytes of one element.
DTYPE_BYTES: Final[Mapping[str, float]] = {
    "float32": 4, "fp32": 4,
    "float16": 2, "fp16": 2, "half": 2, "bfloat16": 2, "bf16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1,
    "int4": 0.5, "fp4": 0.5,
}  # fmt: skip
_DEFAULT_DTYPE: Final = "bfloat16"
_MAX_FIELD: Final = 1 << 40
_LINEAR: Final = ("linear_attention", "mamba", "recurrent", "conv")
_SLIDING: Final = ("sliding_attention", "chunked_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a token leaves in the KV cache.

    Attributes:
        layers: attention layers that keep every token of the context.
        sliding_layers: attention layers that keep the last `window` tokens alone.
        window: tokens that a sliding layer keeps; `None` where there are none of them.
        kv_heads: heads of keys and values a layer; fewer than query heads by grouped-query
            attention.
        head_dim: elements of one head's key, or of its value.
        latent_dim: elements that multi-head latent attention keeps a token and layer, in place of
            keys and values; `None` = the model has none.
        dtype: type of the weights, and of the cache unless it is set apart.
        parameters: number of weights; `None` = not known.
        parameters_from: where that number is from, for people.
        max_tokens: longest context that the model takes; `None` = not known.
        name: what people call the model; empty = not known.
    """

    layers: int
    kv_heads: int
    head_dim: int
    sliding_layers: int = 0
    window: int | None = None
    latent_dim: int | None = None
    dtype: str = _DEFAULT_DTYPE
    parameters: int | None = None
    parameters_from: str = "not known"
    max_tokens: int | None = None
    name: str = ""


def read_shape(path: Path) -> ModelShape:
    """Read a model's `config.json`, or the one in a model's folder.

    The number of parameters is that of `model.safetensors.index.json` beside it, if there is one.

    Raises:
        SourceError: the file cannot be read.
        DataError: it is not a JSON object.
        ConfigError: it lacks what the cache depends on.
    """
    if path.is_dir():
        path = path / "config.json"
    config = read_object(path)
    shape = shape_from(config, name=path.parent.name, where=str(path))
    index = path.parent / "model.safetensors.index.json"
    if not index.is_file():
        return shape
    metadata = read_object(index).get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if not isinstance(total, int) or total <= 0:
        return shape
    stored = DTYPE_BYTES.get(shape.dtype, DTYPE_BYTES[_DEFAULT_DTYPE])
    return replace(
        shape,
        parameters=round(total / stored),
        parameters_from=f"{index.name}, at {stored:g} bytes each",
    )


def shape_from(config: Mapping[str, Any], *, name: str = "", where: str) -> ModelShape:
    """Return the shape that a model's configuration describes.

    Args:
        config: what `config.json` holds; of a multimodal model its `text_config` counts.
        name: what people call the model; empty = not known.
        where: names the file in errors.

    Raises:
        ConfigError: a field is missing or no number.
    """
    text = config.get("text_config")
    inner = {**config, **text} if isinstance(text, Mapping) else dict(config)
    fields = _Fields(inner, where)
    layers = fields.required("num_hidden_layers", "n_layer", "num_layers")
    heads = fields.required("num_attention_heads", "n_head", "num_heads")
    hidden = fields.get("hidden_size", "n_embd", "d_model")
    head_dim = fields.get("head_dim")
    latent = _latent(fields)
    if head_dim is None:
        if hidden is None and latent is None:
            raise ConfigError(f"{where}: neither head_dim nor hidden_size is in it")
        head_dim = (hidden or heads) // heads
    full, sliding = _layer_kinds(inner, layers)
    window = fields.get("sliding_window", "attention_chunk_size")
    if window is None:
        full, sliding = full + sliding, 0
    shape = ModelShape(
        layers=full,
        sliding_layers=sliding,
        window=window if sliding else None,
        kv_heads=_kv_heads(inner, fields, heads),
        head_dim=head_dim,
        latent_dim=latent,
        dtype=_dtype(inner),
        max_tokens=fields.get("max_position_embeddings", "n_positions", "max_seq_len"),
        name=name,
    )
    counted = _count_parameters(inner, fields, shape, layers, heads)
    if counted is None:
        return shape
    return replace(shape, parameters=counted, parameters_from="counted from its layers")


class _Fields:
    """Whole numbers of a configuration, by any of their names."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where

    def get(self, *names: str) -> int | None:
        for name in names:
            value = self._config.get(name)
            if value is None:
                continue
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not 0 <= value <= _MAX_FIELD:
                raise ConfigError(f"{self._where}: {name} is {value!r}, not a whole number")
            return int(value) or None
        return None

    def required(self, *names: str) -> int:
        value = self.get(*names)
        if value is None:
            raise ConfigError(f"{self._where}: {names[0]} is missing; is it a config.json?")
        return value


def _latent(fields: _Fields) -> int | None:
    rank = fields.get("kv_lora_rank")
    return None if rank is None else rank + (fields.get("qk_rope_head_dim") or 0)


def _kv_heads(config: Mapping[str, Any], fields: _Fields, heads: int) -> int:
    found = fields.get("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
    return found or (1 if config.get("multi_query") is True else heads)


def _dtype(config: Mapping[str, Any]) -> str:
    found = config.get("dtype", config.get("torch_dtype"))
    return found if isinstance(found, str) and found in DTYPE_BYTES else _DEFAULT_DTYPE


def _layer_kinds(config: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """Return how many layers keep every token, and how many only the last ones.

    Layers that keep a state of fixed size count as neither.
    """
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        sliding = sum(kind in _SLIDING for kind in kinds)
        fixed = sum(isinstance(kind, str) and kind.startswith(_LINEAR) for kind in kinds)
        return layers - sliding - fixed, sliding
    if config.get("use_sliding_window") is False or config.get("sliding_window") is None:
        return layers, 0
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 1:  # each n-th layer keeps all tokens
        return layers // pattern, layers - layers // pattern
    return 0, layers


def _count_parameters(
    config: Mapping[str, Any], fields: _Fields, shape: ModelShape, layers: int, heads: int
) -> int | None:
    """Count the weights of a decoder with gated feed-forward layers; `None` = another design."""
    hidden, inner = fields.get("hidden_size"), fields.get("intermediate_size")
    vocabulary = fields.get("vocab_size")
    if not (hidden and inner and vocabulary) or shape.latent_dim is not None:
        return None
    if config.get("hidden_act") not in {"silu", "swish"} or "layer_types" in config:
        return None
    width = shape.head_dim
    attention = hidden * width * (2 * heads + 2 * shape.kv_heads)
    experts = fields.get("num_local_experts", "num_experts", "n_routed_experts")
    gated = 3 * hidden * (fields.get("moe_intermediate_size") or inner)
    feed_forward = gated if experts is None else experts * (gated + hidden)
    embedding = vocabulary * hidden * (1 if config.get("tie_word_embeddings") is True else 2)
    norms = (2 * layers + 1) * hidden
    return layers * (attention + feed_forward) + embedding + norms
