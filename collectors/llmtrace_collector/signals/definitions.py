"""The signals of all engines, gateways and GPUs, and how each may be added up.

One table. Profiles say where an engine keeps a signal; everything downstream knows these alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Room = Literal["engine", "gateway", "gpu"]
Kind = Literal["gauge", "counter", "histogram"]
Merge = Literal["sum", "mean", "max"]


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal, the same for every source.

    Attributes:
        name: the word profiles use.
        room: what reports it; its metric is `llmtrace_{room}_...`.
        kind: counters and histograms count from the start of what reports them.
        metric: the name it is exposed under, unit and all.
        merge: what several series of one engine come to. A ratio is averaged, never summed.
        help: what it is, in one sentence.
        label: the label of its own, beside those every signal has.
    """

    name: str
    room: Room
    kind: Kind
    metric: str
    merge: Merge
    help: str
    label: str | None = None


def suffixes(kind: str) -> tuple[str, ...]:
    """Return what stands after a metric's name in the names of its series, by its kind."""
    return ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)


def _engine(
    name: str,
    kind: Kind,
    metric: str,
    words: str,
    *,
    merge: Merge = "sum",
    label: str | None = None,
) -> Signal:
    return Signal(name, "engine", kind, f"llmtrace_engine_{metric}", merge, words, label)


def _gateway(
    name: str,
    kind: Kind,
    metric: str,
    words: str,
    *,
    merge: Merge = "sum",
    label: str | None = None,
) -> Signal:
    return Signal(
        f"gateway_{name}", "gateway", kind, f"llmtrace_gateway_{metric}", merge, words, label
    )


def _gpu(
    name: str,
    kind: Kind,
    metric: str,
    words: str,
    *,
    merge: Merge = "mean",
    label: str | None = None,
) -> Signal:
    return Signal(f"gpu_{name}", "gpu", kind, f"llmtrace_gpu_{metric}", merge, words, label)


_ALL: Final = (
    # What the scheduler has in hand.
    _engine("running", "gauge", "requests_running", "Requests being executed."),
    _engine("waiting", "gauge", "requests_waiting", "Requests waiting in the engine's queue."),
    _engine(
        "waiting_by_reason",
        "gauge",
        "requests_waiting_by_reason",
        "Requests waiting in the engine, by what they wait for.",
        label="reason",
    ),
    _engine("swapped", "gauge", "requests_swapped", "Requests swapped out of GPU memory."),
    _engine(
        "kv_usage",
        "gauge",
        "kv_cache_usage_ratio",
        "Share of the KV cache in use, 0 to 1.",
        merge="mean",
    ),
    _engine(
        "preemptions", "counter", "preemptions_total", "Requests put back for lack of KV cache."
    ),
    _engine(
        "request_preemptions",
        "histogram",
        "request_preemptions",
        "How often one request was preempted.",
    ),
    _engine("lora_slots_used", "gauge", "lora_slots_used", "Slots for adapters in use."),
    _engine("lora_slots", "gauge", "lora_slots", "Slots for adapters there are."),
    _engine(
        "awake", "gauge", "awake", "1 while the engine is awake, 0 while it sleeps.", merge="mean"
    ),
    # Caches.
    _engine(
        "prefix_queries",
        "counter",
        "prefix_cache_queries_tokens_total",
        "Prompt tokens looked up in the prefix cache.",
    ),
    _engine(
        "prefix_hits",
        "counter",
        "prefix_cache_hits_tokens_total",
        "Prompt tokens found in the prefix cache.",
    ),
    _engine(
        "prefix_hit_ratio",
        "gauge",
        "prefix_cache_hit_ratio",
        "Share of looked-up tokens found, where an engine tells only that.",
        merge="mean",
    ),
    _engine(
        "external_prefix_queries",
        "counter",
        "external_prefix_cache_queries_tokens_total",
        "Prompt tokens looked up in a KV cache outside the engine.",
    ),
    _engine(
        "external_prefix_hits",
        "counter",
        "external_prefix_cache_hits_tokens_total",
        "Prompt tokens found in a KV cache outside the engine.",
    ),
    _engine(
        "cached_tokens_by_source",
        "counter",
        "cached_prompt_tokens_by_source_total",
        "Prompt tokens not computed, by where their KV was.",
        label="source",
    ),
    _engine(
        "mm_cache_queries",
        "counter",
        "multimodal_cache_queries_total",
        "Images and other media looked up in the cache of their embeddings.",
    ),
    _engine(
        "mm_cache_hits", "counter", "multimodal_cache_hits_total", "Of them, those found there."
    ),
    # KV blocks that come from another engine or tier.
    _engine(
        "kv_fetch",
        "gauge",
        "requests_kv_fetch",
        "Requests whose KV blocks come from another engine, by how far they are.",
        label="stage",
    ),
    _engine("kv_transfer_time", "histogram", "kv_transfer_seconds", "One transfer of KV blocks."),
    _engine(
        "kv_transfer_bytes",
        "histogram",
        "kv_transfer_bytes",
        "Bytes of one transfer of KV blocks.",
    ),
    _engine(
        "kv_transfer_failures",
        "counter",
        "kv_transfer_failures_total",
        "Transfers of KV blocks that failed or came too late, by how.",
        label="reason",
    ),
    _engine(
        "kv_transfers",
        "counter",
        "kv_transfers_total",
        "Transfers of KV blocks between tiers, by how they went.",
        label="result",
    ),
    _engine(
        "kv_offload_load_time",
        "counter",
        "kv_offload_load_seconds_total",
        "Time spent loading KV blocks from another tier.",
    ),
    _engine(
        "kv_promotion_time",
        "histogram",
        "kv_promotion_seconds",
        "Moving KV blocks of one request up to the fastest tier.",
    ),
    # Speculative decoding.
    _engine("spec_drafts", "counter", "spec_decode_drafts_total", "Drafts proposed."),
    _engine(
        "spec_drafted", "counter", "spec_decode_drafted_tokens_total", "Draft tokens proposed."
    ),
    _engine(
        "spec_accepted", "counter", "spec_decode_accepted_tokens_total", "Draft tokens accepted."
    ),
    _engine(
        "spec_accepted_by_position",
        "counter",
        "spec_decode_accepted_tokens_by_position_total",
        "Draft tokens accepted, by their position in the draft.",
        label="position",
    ),
    _engine(
        "spec_accept_ratio",
        "gauge",
        "spec_decode_accept_ratio",
        "Share of draft tokens accepted, where an engine tells only that.",
        merge="mean",
    ),
    _engine(
        "spec_accept_length",
        "gauge",
        "spec_decode_accept_length_tokens",
        "Tokens a draft yields on average, where an engine tells only that.",
        merge="mean",
    ),
    # Work.
    _engine("prompt_tokens", "counter", "prompt_tokens_total", "Prompt tokens processed."),
    _engine(
        "prompt_tokens_by_source",
        "counter",
        "prompt_tokens_by_source_total",
        "Prompt tokens, by where their KV came from.",
        label="source",
    ),
    _engine(
        "cached_tokens", "counter", "cached_prompt_tokens_total", "Prompt tokens not computed."
    ),
    _engine("generation_tokens", "counter", "generation_tokens_total", "Tokens generated."),
    _engine("step_tokens", "histogram", "step_tokens", "Tokens an engine step worked on."),
    _engine(
        "step_time", "gauge", "step_seconds", "How long the last engine step took.", merge="mean"
    ),
    _engine(
        "busy_slots",
        "gauge",
        "busy_slots_mean",
        "Slots busy in a decode, on average.",
        merge="mean",
    ),
    _engine(
        "prefill_busy",
        "counter",
        "prefill_busy_seconds_total",
        "Time the engine spent on prompts, whole batches.",
    ),
    _engine(
        "decode_busy",
        "counter",
        "decode_busy_seconds_total",
        "Time the engine spent on generating, whole batches.",
    ),
    # Ends.
    _engine(
        "finished",
        "counter",
        "requests_finished_total",
        "Requests that came to an end, by how.",
        label="reason",
    ),
    _engine(
        "rejected",
        "counter",
        "requests_rejected_total",
        "Requests turned away at the door, by which limit.",
        label="reason",
    ),
    # A request's time, as the engine sees it.
    _engine("queue", "histogram", "queue_seconds", "Wait before the first schedule."),
    _engine("prefill", "histogram", "prefill_seconds", "First schedule to first token."),
    _engine("decode", "histogram", "decode_seconds", "First to last token."),
    _engine("inference", "histogram", "inference_seconds", "First schedule to last token."),
    _engine("ttft", "histogram", "ttft_seconds", "Arrival to first token."),
    _engine(
        "itl",
        "histogram",
        "itl_seconds",
        "Between outputs; per output or per token, as the engine counts it.",
    ),
    _engine(
        "tpot", "histogram", "tpot_seconds", "A request's mean time per token after the first."
    ),
    _engine("e2e", "histogram", "e2e_seconds", "Arrival to last token."),
    _engine(
        "prefill_batch", "histogram", "prefill_batch_seconds", "Prefill of a batch, not a request."
    ),
    _engine(
        "decode_batch",
        "histogram",
        "decode_batch_seconds",
        "One decode of a batch, not a request.",
    ),
    _engine(
        "grammar_compile",
        "histogram",
        "grammar_compile_seconds",
        "Compiling the grammar of a structured answer.",
    ),
    _engine(
        "encoder_queue",
        "histogram",
        "encoder_queue_seconds",
        "Wait of images and other media for the encoder.",
    ),
    _engine(
        "scheduler_stage",
        "counter",
        "scheduler_stage_seconds_total",
        "The scheduler's own time, by what it does.",
        label="step",
    ),
    # Gateways and routers.
    _gateway("running", "gauge", "requests_running", "Requests in the gateway's hands."),
    _gateway("waiting", "gauge", "requests_waiting", "Requests the gateway holds back."),
    _gateway("overhead", "histogram", "overhead_seconds", "The gateway's own time, a request."),
    _gateway(
        "response_overhead",
        "histogram",
        "response_overhead_seconds",
        "The gateway's own time on the answer.",
    ),
    _gateway("queue", "histogram", "queue_seconds", "Wait in the gateway's own queue."),
    _gateway(
        "stage",
        "histogram",
        "stage_seconds",
        "The gateway's own time, by its stages.",
        label="step",
    ),
    _gateway(
        "router_waiting",
        "gauge",
        "requests_waiting_for_router",
        "Requests that wait in the router for a worker.",
    ),
    _gateway("tokenize", "histogram", "tokenize_seconds", "Tokenising one prompt."),
    _gateway(
        "scheduling", "histogram", "scheduling_seconds", "Choosing an engine for one request."
    ),
    _gateway(
        "plugin",
        "histogram",
        "plugin_seconds",
        "One plugin's time for one request.",
        label="plugin",
    ),
    _gateway(
        "cached_tokens", "histogram", "cached_tokens", "Prompt tokens of a request in a cache."
    ),
    _gateway(
        "kv_hit_ratio",
        "histogram",
        "kv_hit_ratio",
        "Share of a request's prompt that the chosen engine has cached.",
    ),
    _gateway(
        "disaggregation",
        "counter",
        "disaggregation_decisions_total",
        "Requests, by which of their phases run on engines apart.",
        label="decision",
    ),
    _gateway("disconnected", "gauge", "disconnected_clients", "Clients that have left."),
    _gateway("ttft", "histogram", "ttft_seconds", "Time to first token as the gateway sees it."),
    _gateway("itl", "histogram", "itl_seconds", "Between outputs as the gateway sees it."),
    _gateway("tpot", "histogram", "tpot_seconds", "Time per token as the gateway sees it."),
    _gateway(
        "upstream", "histogram", "upstream_seconds", "The engine's time as the gateway sees it."
    ),
    _gateway("e2e", "histogram", "e2e_seconds", "Whole requests as the gateway sees them."),
    _gateway("requests", "counter", "requests_total", "Requests that came."),
    _gateway("errors", "counter", "errors_total", "Requests that failed at the gateway."),
    _gateway("retries", "counter", "retries_total", "Requests sent again."),
    _gateway("backends_up", "gauge", "backends_up", "Engines the gateway sends to.", merge="mean"),
    # GPUs.
    _gpu("utilization", "gauge", "utilization_ratio", "Share of time with a kernel running."),
    _gpu(
        "engine_active", "gauge", "engine_active_ratio", "Share of time the compute engine works."
    ),
    _gpu("sm_active", "gauge", "sm_active_ratio", "Share of multiprocessors at work."),
    _gpu("tensor_active", "gauge", "tensor_active_ratio", "Share of time the tensor cores work."),
    _gpu("dram_active", "gauge", "dram_active_ratio", "Share of time GPU memory moves data."),
    _gpu("memory_used", "gauge", "memory_used_bytes", "GPU memory in use.", merge="sum"),
    _gpu("memory_free", "gauge", "memory_free_bytes", "GPU memory that is free.", merge="sum"),
    _gpu("memory_total", "gauge", "memory_total_bytes", "GPU memory there is.", merge="sum"),
    _gpu("sm_clock", "gauge", "sm_clock_hertz", "Clock of the multiprocessors."),
    _gpu("sm_clock_max", "gauge", "sm_clock_max_hertz", "Highest clock of the multiprocessors."),
    _gpu("memory_clock", "gauge", "memory_clock_hertz", "Clock of GPU memory."),
    _gpu("power", "gauge", "power_watts", "Power drawn.", merge="sum"),
    _gpu("power_limit", "gauge", "power_limit_watts", "Power it may draw.", merge="sum"),
    _gpu(
        "energy",
        "counter",
        "energy_joules_total",
        "Energy used since the driver started.",
        merge="sum",
    ),
    _gpu("temperature", "gauge", "temperature_celsius", "Temperature of the GPU.", merge="max"),
    _gpu(
        "memory_temperature",
        "gauge",
        "memory_temperature_celsius",
        "Temperature of GPU memory.",
        merge="max",
    ),
    _gpu(
        "throttled",
        "gauge",
        "throttled",
        "1 while clocks are held down for this reason.",
        merge="max",
        label="reason",
    ),
    _gpu(
        "throttle_time",
        "counter",
        "throttle_seconds_total",
        "Time clocks were held down, by why.",
        merge="max",
        label="reason",
    ),
    _gpu("last_xid", "gauge", "last_xid", "The last XID error; 0 = none.", merge="max"),
    _gpu(
        "xid_errors", "counter", "xid_errors_total", "XID errors seen.", merge="sum", label="xid"
    ),
    _gpu(
        "ecc_uncorrected",
        "counter",
        "ecc_uncorrected_total",
        "Memory errors that could not be corrected.",
        merge="sum",
    ),
    _gpu("pcie_replays", "counter", "pcie_replays_total", "PCIe packets sent again.", merge="sum"),
)

SIGNALS: Final[Mapping[str, Signal]] = {signal.name: signal for signal in _ALL}
