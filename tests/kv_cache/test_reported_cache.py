"""Is the size of a cache read out of facts, and nothing made up where they do not tell it?"""

from __future__ import annotations

import pytest

from llmtrace.kv_cache.reported_cache import reported_cache

LLAMA_7B = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
            "torch_dtype": "float16"}  # fmt: skip
GIB = 1 << 30


@pytest.mark.parametrize(
    ("facts", "tokens", "each"),
    [
        ({"kv_cache_tokens": 65_536}, 65_536, None),
        ({"kv_cache_blocks": 4096, "block_size": 16}, 65_536, None),
        ({"kv_cache_bytes": 32 * GIB, "model_config": LLAMA_7B}, 65_536, 524_288),
        ({"kv_cache_bytes": 32 * GIB, "kv_cache_tokens": 65_536}, 65_536, 524_288),
        ({"kv_cache_bytes": 32 * GIB, "model_config": LLAMA_7B, "kv_cache_dtype": "fp8"},
         131_072, 262_144),
        ({"kv_cache_tokens": 100, "model_config": LLAMA_7B}, 100, 524_288),
    ],
)  # fmt: skip
def test_a_cache_is_read_by_any_of_its_figures(facts, tokens, each):
    """Tokens, blocks, or bytes with the model's configuration."""
    found = reported_cache(facts)
    assert found is not None
    assert (found.tokens, found.bytes_per_token) == (tokens, each)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"kv_cache_blocks": 4096},
        {"kv_cache_bytes": GIB},
        {"model_config": LLAMA_7B},
        {"kv_cache_bytes": GIB, "model_config": {"num_hidden_layers": "many"}},
        {"kv_cache_tokens": "65536"},
        {"kv_cache_tokens": True},
        {"kv_cache_tokens": -1},
    ],
)
def test_what_is_not_known_is_not_worked_out(facts):
    """Half of the figures are none; a text is no number."""
    assert reported_cache(facts) is None


def test_requests_take_whole_blocks():
    """Ten blocks of 16 hold five requests of 17 tokens; without blocks, nine."""
    assert reported_cache({"kv_cache_blocks": 10, "block_size": 16}).fit([17]).at_mean == 5
    assert reported_cache({"kv_cache_tokens": 160}).fit([17]).at_mean == 9
    assert reported_cache({"kv_cache_tokens": 160}).fit([]) is None
