"""Does a real vLLM have the KV cache blocks that are worked out for it?"""

from __future__ import annotations

import re
import urllib.request

from llmtrace.engines import local_vllm
from llmtrace.engines.local_vllm.install import cache_folder
from llmtrace.kv_cache.capacity import capacity, fit
from llmtrace.kv_cache.model_shape import read_shape


def test_blocks_tokens_and_requests_are_vllms_own(vllm: local_vllm.Server):
    """To the block, from the model's config.json and the memory vLLM was given."""
    with urllib.request.urlopen(f"{vllm.url}/metrics", timeout=10) as page:
        sample = next(line for line in page.read().decode().splitlines() if "config_info{" in line)
    reported = dict(re.findall(r'(\w+)="([^"]*)"', sample))
    shape = read_shape(cache_folder() / "tiny-llama-256-4")

    holds = capacity(
        shape,
        int(reported["kv_cache_memory_bytes"]),
        block_tokens=int(reported["block_size"]),
    )

    assert holds.blocks == int(reported["num_gpu_blocks"])
    log = vllm.log_path.read_text(encoding="utf-8", errors="replace")
    logged = re.search(r"KV cache size: ([\d,]+) tokens.*for ([\d,]+) tokens.*?: ([\d.]+)x", log)
    assert logged is not None, "vLLM did not log the size of its cache"
    tokens, longest = (int(figure.replace(",", "")) for figure in logged.group(1, 2))
    assert holds.tokens == tokens
    found = fit(shape, holds, [longest])
    assert found is not None
    assert found.at_mean == int(float(logged[3]))
