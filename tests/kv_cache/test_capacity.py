"""Do the tokens and requests that fit follow from the bytes there are?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.kv_cache.capacity import (
    Memory,
    bytes_per_token,
    cache_bytes,
    capacity,
    fit,
    tokens_held,
)
from llmtrace.kv_cache.model_shape import ModelShape

GIB = 1 << 30
LLAMA_7B = ModelShape(layers=32, kv_heads=32, head_dim=128, dtype="float16")


def test_a_well_known_figure():
    """32 layers, 32 heads of 128, fp16: 512 KiB a token, 32 GiB for 32 requests of 2,048."""
    holds = capacity(LLAMA_7B, 32 * GIB)
    assert holds.bytes_per_token == 524_288
    assert holds.tokens == 32 * 2048
    assert fit(LLAMA_7B, holds, [2048]).at_mean == 32


def test_fp8_halves_the_cache_and_not_the_weights():
    """The cache's type is apart from the weights'."""
    assert bytes_per_token(LLAMA_7B, "fp8") == bytes_per_token(LLAMA_7B) / 2


def test_heads_are_split_over_gpus_then_repeated():
    """Eight heads on four GPUs take what they take on one; on sixteen, twice that."""
    grouped = ModelShape(layers=32, kv_heads=8, head_dim=128, dtype="float16")
    assert bytes_per_token(grouped, devices=4) == bytes_per_token(grouped)
    assert bytes_per_token(grouped, devices=16) == 2 * bytes_per_token(grouped)


def test_a_latent_is_on_every_gpu():
    """It has no heads to split."""
    latent = ModelShape(layers=61, kv_heads=128, head_dim=128, latent_dim=576)
    assert bytes_per_token(latent, devices=8) == 8 * 70_272


def test_what_the_weights_leave():
    """8 billion weights of 2 bytes on 80 GB at 0.9, with 2 GB apart, leave 54 GB."""
    shape = ModelShape(layers=32, kv_heads=8, head_dim=128, parameters=8_000_000_000)
    memory = Memory(device=80 * 10**9, reserved=2 * 10**9)
    assert cache_bytes(shape, memory) == 54 * 10**9


def test_weights_that_do_not_fit_leave_less_than_nothing():
    """How much is missing is said; no block fits."""
    shape = ModelShape(layers=32, kv_heads=8, head_dim=128, parameters=70_000_000_000)
    room = cache_bytes(shape, Memory(device=80 * 10**9))
    assert room == -68 * 10**9
    assert capacity(shape, room).blocks == 0


def test_a_request_takes_whole_blocks():
    """17 tokens take two blocks of 16."""
    holds = capacity(LLAMA_7B, 10 * 16 * 524_288)
    assert holds.blocks == 10
    found = fit(LLAMA_7B, holds, [17])
    assert (found.at_mean, found.lost) == (5, 1 - 17 / 32)


def test_a_window_bounds_what_a_request_takes():
    """Beyond the window only the layers that keep all take more."""
    shape = ModelShape(layers=1, sliding_layers=5, window=1024, kv_heads=8, head_dim=128)
    assert tokens_held(shape, 1024) == 1024
    assert tokens_held(shape, 7 * 1024) == 2 * 1024


def test_a_mix_fits_by_its_mean_and_its_p95():
    """Two of twenty requests are long: the p95 is theirs."""
    holds = capacity(LLAMA_7B, 1000 * 16 * 524_288)
    found = fit(LLAMA_7B, holds, [16] * 18 + [1600] * 2)
    assert found.at_mean == 1000 * 20 // 218
    assert (found.high_tokens, found.at_high) == (1600, 10)


def test_no_model_layer_keeps_tokens():
    """Then blocks mean nothing, and are not known."""
    shape = ModelShape(layers=0, kv_heads=1, head_dim=1)
    assert capacity(shape, GIB).blocks is None
    assert fit(shape, capacity(shape, GIB), [10]) is None


@given(
    st.builds(
        ModelShape,
        layers=st.integers(1, 100),
        kv_heads=st.integers(1, 64),
        head_dim=st.sampled_from([64, 128, 256]),
    ),
    st.integers(0, 1 << 40),
    st.sampled_from([1, 16, 128]),
    st.lists(st.integers(1, 200_000), min_size=1, max_size=50),
)
def test_what_fits_does_fit_and_one_more_does_not(shape, room, block, lengths):
    """Blocks times their bytes is at most the room, and one more is not."""
    holds = capacity(shape, room, block_tokens=block)
    each = holds.bytes_per_token * block
    assert holds.blocks * each <= room < (holds.blocks + 1) * each
    found = fit(shape, holds, lengths)
    assert found.at_high * found.high_tokens <= holds.tokens
    assert 0 <= found.lost < 1


@pytest.mark.parametrize("lengths", [[], [0], [-1]])
def test_no_lengths_fit_nothing(lengths):
    """What is no length is not counted as one."""
    assert fit(LLAMA_7B, capacity(LLAMA_7B, GIB), lengths) is None


def test_room_is_unknown_where_the_weights_are():
    """Weights that are not known do not take 0 bytes."""
    shape = ModelShape(layers=32, kv_heads=8, head_dim=128)
    assert cache_bytes(shape, Memory(device=80 * 10**9)) is None
