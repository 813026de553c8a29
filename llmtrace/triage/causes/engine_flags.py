"""List the engine settings that help against a cause, by engine and version.

Actions use the four verbs that resolved real incidents: reroute, rebalance, add capacity, fix.
Flags are those of the engine and the version that the facts name, or of the engines that rows
name; for engines that were not seen there are none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from llmtrace.triage.evidence.evidence import Evidence

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting of an engine that helps against a cause, and the version it came with."""

    engine: str
    text: str
    since: Version | None = None


FLAGS: Final[Mapping[str, tuple[Flag, ...]]] = {
    "more_sequences": (
        Flag("vllm", "raise `--max-num-seqs` if KV usage leaves room"),
        Flag("sglang", "raise `--max-running-requests` if token usage leaves room"),
        Flag("trtllm", "raise `--max_batch_size`"),
        Flag("tgi", "raise `--max-concurrent-requests` and `--max-batch-total-tokens`"),
    ),
    "cap_batch": (
        Flag("vllm", "cap the batch with `--max-num-seqs`"),
        Flag("sglang", "cap the batch with `--max-running-requests`"),
        Flag("trtllm", "cap the batch with `--max_batch_size`"),
    ),
    "shed": (
        Flag("vllm", "shed early with `--max-num-queued-reqs` (responds 503)", (0, 29)),
        Flag("sglang", "shed early with `--max-queued-requests`"),
    ),
    "kv_room": (
        Flag("vllm", "raise `--gpu-memory-utilization`, or lower `--max-num-seqs`"),
        Flag("vllm", "halve KV bytes with `--kv-cache-dtype fp8`"),
        Flag("sglang", "raise `--mem-fraction-static`, or lower `--max-running-requests`"),
        Flag("trtllm", "raise `kv_cache_config.free_gpu_memory_fraction`"),
    ),
    "prefill_chunks": (
        Flag("vllm", "keep chunked prefill on; lower `--max-num-batched-tokens` (2048 favours "
                     "streams in progress)"),
        Flag("vllm", "hold long prompts back with `--long-prefill-token-threshold`"),
        Flag("sglang", "lower `--chunked-prefill-size`"),
        Flag("trtllm", "set `enable_chunked_prefill: true` and lower `--max_num_tokens`"),
    ),
    "prefix_cache": (
        Flag("vllm", "check that `--no-enable-prefix-caching` is not set"),
        Flag("vllm", "see how long blocks live with `--kv-cache-metrics`", (0, 12)),
        Flag("sglang", "check that `--disable-radix-cache` is not set; route by prefix"),
        Flag("trtllm", "set `kv_cache_config.enable_block_reuse: true`"),
    ),
    "warm_up": (
        Flag("vllm", "keep `~/.cache/vllm/torch_compile_cache` on a volume that survives"),
        Flag("sglang", "warm up with `--warmups`, and gate readiness on `/health_generate`"),
    ),
    "keep_alive": (
        Flag("vllm", "send comments with `--sse-keep-alive-interval 15`", (0, 29)),
    ),
    "fewer_drafts": (
        Flag("vllm", "lower `num_speculative_tokens` in `--speculative-config`, or drop it"),
        Flag("sglang", "lower `--speculative-num-draft-tokens`, or speculate no more"),
        Flag("trtllm", "lower `max_draft_len` in `speculative_config`"),
    ),
    "front_end": (
        Flag("vllm", "raise `--api-server-count`", (0, 9)),
        Flag("vllm", "try the Rust front end: `VLLM_USE_RUST_FRONTEND=1`", (0, 22)),
        Flag("sglang", "raise `--tokenizer-worker-num`"),
    ),
    "lora": (
        Flag("vllm", "raise `--max-loras` and `--max-cpu-loras`"),
        Flag("sglang", "raise `--max-loras-per-batch`, pin hot adapters"),
    ),
    "kv_link": (
        Flag("vllm", "look at `vllm:num_requests_kv_fetch_by_stage`", (0, 32)),
        Flag("vllm", "look at `vllm:nixl_xfer_time_seconds` and `vllm:nixl_num_failed_transfers`",
             (0, 11)),
        Flag("sglang", "look at `sglang:num_decode_transfer_queue_reqs`"),
    ),
}  # fmt: skip


REMEDIES: Final[Mapping[str, tuple[str, ...]]] = {
    "queue_saturation": ("more_sequences", "shed"),
    "kv_exhaustion": ("kv_room",),
    "batch_size": ("cap_batch",),
    "long_prompts": ("prefill_chunks",),
    "head_of_line": ("prefill_chunks",),
    "prefix_cache_collapse": ("prefix_cache",),
    "cold_start": ("warm_up",),
    "idle_timeout": ("keep_alive",),
    "low_spec_acceptance": ("fewer_drafts",),
    "frontend_cpu": ("front_end",),
    "lora_slots": ("lora",),
    "kv_transfer": ("kv_link",),
}


def engine(e: Evidence) -> tuple[str | None, Version | None]:
    """Return the engine and version that the facts name; `None` = none, or several."""
    name = e.fact("engine")
    found = re.match(r"v?(\d+)\.(\d+)", str(e.fact("version") or e.fact("version_at_least") or ""))
    version = (int(found[1]), int(found[2])) if found else None
    return (name.lower() if isinstance(name, str) else None), version


def seen(e: Evidence) -> frozenset[str]:
    """Return the engines that facts or rows name."""
    names = {str(facts.get("engine") or "").lower() for facts in e.facts.instances.values()}
    for side in (e.before, e.after):
        words = side.rows.words["provider"]
        names.update(name.lower() for name in words.names if bool(words.where(name).any()))
    return frozenset(names)


def flags(e: Evidence, cause: str) -> str:
    """Say what to set on the engine at hand, as the end of an action; empty if nothing fits."""
    name, version = engine(e)
    known = seen(e)
    fitting = [
        flag
        for flag in of_cause(cause)
        if flag.engine in (known if name is None else {name})
        and not (version and flag.since and name and version < flag.since)
    ]
    if not fitting:
        return ""
    if name is None:  # of several engines, the first flag of each, named
        first = {flag.engine: flag for flag in reversed(fitting)}
        return " " + "; ".join(f"{one}: {flag.text}" for one, flag in sorted(first.items())) + "."
    return " On this engine: " + "; ".join(flag.text for flag in fitting) + "."


def of_cause(cause: str) -> list[Flag]:
    """Return every flag that helps against a cause, whatever the engine."""
    return [flag for remedy in REMEDIES.get(cause, ()) for flag in FLAGS[remedy]]
