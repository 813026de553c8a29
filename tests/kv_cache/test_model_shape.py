"""Is a model's shape read from the configurations that models really have?"""

from __future__ import annotations

import json

import pytest

from llmtrace.core.errors import ConfigError, DataError, SourceError
from llmtrace.kv_cache.capacity import bytes_per_token
from llmtrace.kv_cache.model_shape import read_shape, shape_from

# The fields that matter, as the models' own files have them.
LLAMA_31_8B = {
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}  # fmt: skip
MIXTRAL_8X7B = {
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "sliding_window": None, "vocab_size": 32000,
}  # fmt: skip
DEEPSEEK_V3 = {
    "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "num_attention_heads": 128, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "qk_rope_head_dim": 64, "vocab_size": 129280, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT2 = {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}


@pytest.mark.parametrize(
    ("config", "token"),
    [
        (LLAMA_31_8B, 131_072),
        (MIXTRAL_8X7B, 131_072),
        (DEEPSEEK_V3, 70_272),
        (GPT2, 36_864),
        ({**LLAMA_31_8B, "torch_dtype": "float32"}, 262_144),
        ({"n_layer": 2, "n_head": 8, "hidden_size": 64, "multi_query": True}, 64),
    ],
    ids=["grouped", "experts", "latent", "gpt2", "fp32", "multi-query"],
)
def test_the_bytes_of_a_token(config, token):
    """Grouped-query, multi-query and latent attention, by the names their files use."""
    assert bytes_per_token(shape_from(config, where="config.json")) == token


@pytest.mark.parametrize(
    ("config", "count"),
    [(LLAMA_31_8B, 8_030_261_248), (MIXTRAL_8X7B, 46_702_792_704)],
    ids=["Llama-3.1-8B", "Mixtral-8x7B"],
)
def test_the_weights_are_counted(config, count):
    """To the weight, as the models' own cards have it."""
    assert shape_from(config, where="config.json").parameters == count


@pytest.mark.parametrize("config", [DEEPSEEK_V3, GPT2])
def test_weights_of_another_design_are_not_guessed(config):
    """A wrong count would be worse than none."""
    assert shape_from(config, where="config.json").parameters is None


def test_sliding_layers_are_apart():
    """Five of six layers of Gemma 3 keep the last 1,024 tokens alone."""
    config = {
        "text_config": {
            "head_dim": 256, "num_attention_heads": 16, "num_hidden_layers": 12,
            "num_key_value_heads": 8, "sliding_window": 1024, "sliding_window_pattern": 6,
        }
    }  # fmt: skip
    shape = shape_from(config, where="config.json")
    assert (shape.layers, shape.sliding_layers, shape.window) == (2, 10, 1024)


def test_linear_layers_keep_no_tokens():
    """Three of four layers have a state of fixed size."""
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]
    config = {**LLAMA_31_8B, "num_hidden_layers": 4, "layer_types": kinds}
    shape = shape_from(config, where="config.json")
    assert (shape.layers, shape.sliding_layers) == (1, 0)


def test_a_window_that_is_switched_off_is_none():
    """Qwen 2.5 names a window that it does not use."""
    config = {**LLAMA_31_8B, "sliding_window": 131072, "use_sliding_window": False}
    assert shape_from(config, where="config.json").sliding_layers == 0


def test_the_index_beside_it_counts_the_weights(tmp_path):
    """What the weights' own index reports is better than any count."""
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    index = {"metadata": {"total_size": 2_000_000}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    shape = read_shape(tmp_path)
    assert shape.parameters == 1_000_000
    assert "index" in shape.parameters_from


def test_an_index_without_metadata_counts_no_weights(tmp_path):
    """The number is then not known, as without an index."""
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": null}')
    assert read_shape(tmp_path).parameters is None


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": "12"}, "not a whole number"),
        ({"num_hidden_layers": True}, "not a whole number"),
        ({"num_hidden_layers": -1}, "not a whole number"),
        ({"num_hidden_layers": 2, "num_attention_heads": 2}, "neither head_dim nor hidden_size"),
    ],
)
def test_what_is_no_model_is_an_error(config, problem):
    """The error names the file and the field."""
    with pytest.raises(ConfigError, match=f"odd.json: .*{problem}"):
        shape_from(config, where="odd.json")


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, "{", "1"])
def test_a_file_that_is_no_object_is_an_error(tmp_path, text):
    """Whatever the file holds, the error is ours."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(DataError, match=r"config\.json"):
        read_shape(tmp_path)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    """It is named."""
    with pytest.raises(SourceError, match=r"config\.json"):
        read_shape(tmp_path)
