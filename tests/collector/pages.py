"""Pages as engines and gateways that are not run here would send them, written by hand.

Names and labels are those of `profiles/`' sources; the numbers are ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

DATA: Final = Path(__file__).parent / "data"
SCRAPES: Final = tuple(sorted(path.name for path in DATA.glob("vllm-*.txt")))


def scrape(name: str) -> str:
    """Return a page of a real vLLM 0.32.0."""
    return (DATA / name).read_text(encoding="utf-8")


def histogram(name: str, total: float, counts: dict[str, int], labels: str = "") -> str:
    """Write a histogram: its cumulative counts by upper bound, the last of which is `+Inf`."""
    comma = "," if labels else ""
    lines = [f'{name}_bucket{{{labels}{comma}le="{le}"}} {n}' for le, n in counts.items()]
    inside = f"{{{labels}}}" if labels else ""
    lines += [f"{name}_sum{inside} {total}", f"{name}_count{inside} {counts['+Inf']}"]
    return f"# TYPE {name} histogram\n" + "\n".join(lines) + "\n"


_M: Final = 'model_name="m"'

VLLM_0_6: Final = (
    f"""# V0: swapping, hit rates, no engine label, KV usage by the old name
vllm:num_requests_running{{{_M}}} 3.0
vllm:num_requests_swapped{{{_M}}} 1.0
vllm:num_requests_waiting{{{_M}}} 7.0
vllm:gpu_cache_usage_perc{{{_M}}} 0.25
vllm:cpu_cache_usage_perc{{{_M}}} 0.5
vllm:gpu_prefix_cache_hit_rate{{{_M}}} 0.75
vllm:num_preemptions_total{{{_M}}} 2.0
vllm:prompt_tokens_total{{{_M}}} 1000.0
vllm:generation_tokens_total{{{_M}}} 400.0
vllm:request_success_total{{finished_reason="stop",{_M}}} 9.0
vllm:avg_prompt_throughput_toks_per_s{{{_M}}} 12.0
"""
    + histogram("vllm:time_to_first_token_seconds", 4.5, {"0.5": 8, "+Inf": 10}, _M)
    + histogram("vllm:time_per_output_token_seconds", 3.0, {"0.1": 99, "+Inf": 100}, _M)
    + histogram("vllm:e2e_request_latency_seconds", 27.0, {"1.0": 1, "+Inf": 9}, _M)
)

_E: Final = 'engine="0",model_name="m"'


def vllm_0_33() -> str:
    """Return a real page of 0.32 with the families of KV connectors that 0.33 added."""
    counters = {
        "mooncake_num_failed_transfers": 0, "mooncake_num_failed_recvs": 1,
        "mooncake_num_kv_expired_reqs": 2, "umbp_transfer_submitted": 41,
        "umbp_transfer_completed": 40, "umbp_transfer_failed": 1, "umbp_transfer_bytes": 4096,
    }  # fmt: skip
    added = [
        "# TYPE vllm:num_requests_kv_fetch_by_stage gauge",
        *(
            f'vllm:num_requests_kv_fetch_by_stage{{{_E},stage="{stage}"}} {n}'
            for stage, n in (("waiting_to_start", 1), ("in_progress", 3), ("completed_waiting", 0))
        ),
        *(
            line
            for name, n in counters.items()
            for line in (f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{{{_E}}} {n}.0")
        ),
        f'vllm:kv_offload_config_info{{{_E},connector="OffloadingConnector"}} 1.0',
    ]
    return (
        scrape("vllm-0.32-metrics.txt")
        + "\n".join(added)
        + "\n"
        + histogram("vllm:mooncake_xfer_time_seconds", 1.5, {"0.1": 2, "+Inf": 8}, _E)
        + histogram("vllm:mooncake_bytes_transferred", 9e9, {"1e9": 2, "+Inf": 8}, _E)
        + histogram("vllm:mooncake_num_descriptors", 80, {"10": 8, "+Inf": 8}, _E)
        + histogram(
            "vllm:kv_offload_tiering_promotion_latency_seconds", 0.25, {"0.1": 4, "+Inf": 4}, _E
        )
    )


def vllm_prefix(unit: str) -> str:
    """Return part of a page of V1 from 0.8.3 to 0.9.1: one name, blocks or tokens."""
    return f"""# HELP vllm:gpu_prefix_cache_queries_total Prefix cache queries, in terms of {unit}.
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{{{_E}}} 100.0
# HELP vllm:gpu_prefix_cache_hits_total Prefix cache hits, in terms of {unit}.
# TYPE vllm:gpu_prefix_cache_hits_total counter
vllm:gpu_prefix_cache_hits_total{{{_E}}} 25.0
vllm:num_requests_running{{{_E}}} 1.0
vllm:gpu_cache_usage_perc{{{_E}}} 0.5
"""


BLOCK_SIZE: Final = 'vllm:cache_config_info{block_size="16",engine="0"} 1.0\n'

RAY: Final = (
    """ray_vllm_num_requests_running{engine="0",model_name="m",ReplicaId="abc"} 4.0
ray_vllm_kv_cache_usage_perc{engine="0",model_name="m",ReplicaId="abc"} 0.5
ray_vllm_generation_tokens_total{engine="0",model_name="m",ReplicaId="abc"} 10.0
"""
    + histogram(
        "ray_vllm_request_queue_time_seconds", 2.0, {"0.3": 1, "+Inf": 4},
        'ReplicaId="abc",engine="0",model_name="m"',
    )
)  # fmt: skip

PRODUCTION_STACK: Final = """vllm:num_requests_running{server="http://a:8000"} 5.0
vllm:num_requests_waiting{server="http://a:8000"} 6.0
vllm:current_qps{server="http://a:8000"} 1.5
vllm:healthy_pods_total{server="http://a:8000"} 1.0
vllm:healthy_pods_total{server="http://b:8000"} 1.0
vllm:num_incoming_requests_total{model="m"} 12.0
""" + histogram(
    "vllm:request_latency_seconds", 9.0, {"1": 2, "+Inf": 3},
    'model="m",server="http://a:8000",status="200"',
)  # fmt: skip


def _sglang(rank: int, running: int, usage: float) -> str:
    labels = f'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="{rank}"'
    return f"""sglang:num_running_reqs{{{labels}}} {running}.0
sglang:num_queue_reqs{{{labels}}} 2.0
sglang:num_grammar_queue_reqs{{{labels}}} 1.0
sglang:num_prefill_inflight_queue_reqs{{{labels}}} 3.0
sglang:token_usage{{{labels}}} {usage}
sglang:cache_hit_rate{{{labels}}} 0.4
sglang:max_total_num_tokens{{{labels}}} 40000.0
sglang:page_size{{{labels}}} 16.0
sglang:num_pages{{{labels}}} 2500.0
"""


_S: Final = 'model_name="m"'
SGLANG: Final = (
    _sglang(1, 9, 0.9)  # ranks of one engine say the same thing; the lowest speaks
    + _sglang(0, 8, 0.8)
    + histogram("sglang:queue_time_seconds", 1.0, {"0.1": 5, "+Inf": 10}, _S)
    + histogram(
        "sglang:per_stage_req_latency_seconds", 2.0, {"0.1": 1, "+Inf": 10},
        f'{_S},stage="prefill_forward"',
    )
    + histogram(
        "sglang:per_stage_req_latency_seconds", 70.0, {"0.1": 1, "+Inf": 10},
        f'{_S},stage="request_process"',
    )
    + histogram(
        "sglang:time_to_first_token_seconds", 5.0, {"0.1": 1, "+Inf": 10},
        f'is_streaming="True",{_S}',
    )
    + f"sglang:num_requests_total{{{_S}}} 10.0\nsglang:num_aborted_requests_total{{{_S}}} 2.0\n"
)  # fmt: skip

TGI: Final = (
    "tgi_queue_size 3\ntgi_batch_current_size 8\ntgi_request_success 11\n"
    'tgi_request_failure{err="overloaded"} 2\n'
    "tgi_request_input_length_sum 1234\ntgi_request_input_length_count 11\n"
    "tgi_request_generated_tokens_sum 567\ntgi_request_generated_tokens_count 11\n"
    + histogram("tgi_request_queue_duration", 0.5, {"0.1": 9, "+Inf": 11})
    + histogram("tgi_request_duration", 12.0, {"1": 5, "+Inf": 11})
    + histogram("tgi_batch_inference_duration", 2.5, {"1": 5, "+Inf": 5}, 'method="prefill"')
    + histogram("tgi_batch_inference_duration", 7.5, {"1": 70, "+Inf": 70}, 'method="decode"')
)

_T: Final = 'engine_type="pytorch",model_name="m"'
TRTLLM: Final = (
    f"""trtllm_num_requests_running{{{_T}}} 6.0
trtllm_num_requests_waiting{{{_T}}} 1.0
trtllm_num_paused_requests{{{_T}}} 2.0
trtllm_kv_cache_utilization{{{_T}}} 0.6
trtllm_kv_cache_tokens_per_block{{{_T}}} 32.0
trtllm_kv_cache_max_blocks{{{_T}}} 1000.0
trtllm_iteration_latency_seconds{{{_T}}} 0.02
trtllm_request_success_total{{{_T},finished_reason="stop"}} 5.0
"""
    + histogram("trtllm_request_queue_time_seconds", 0.4, {"0.3": 3, "+Inf": 4}, _T)
    + histogram("trtllm_request_prefill_time_seconds", 0.8, {"0.3": 3, "+Inf": 4}, _T)
    + histogram("trtllm_time_to_first_token_seconds", 1.6, {"0.3": 3, "+Inf": 4}, _T)
)

TRITON: Final = (
    "".join(
        f'nv_trt_llm_request_metrics{{model="t",request_type="{kind}",version="1"}} {n}\n'
        for kind, n in (("scheduled", 5), ("waiting", 4), ("active", 9), ("max", 512))
    )
    + "".join(
        f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{kind}",model="tensorrt_llm",'
        f'version="1"}} {n}\n'
        for kind, n in (("used", 10), ("max", 100), ("fraction", 0.1))
    )
    + histogram(
        "nv_inference_first_response_histogram_ms", 500.0, {"100": 1, "+Inf": 4},
        'model="tensorrt_llm",version="1"',
    )
)  # fmt: skip

LLAMA_CPP: Final = """llamacpp:prompt_tokens_total 1000
llamacpp:prompt_seconds_total 2.5
llamacpp:tokens_predicted_total 300
llamacpp:tokens_predicted_seconds_total 6.25
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:n_busy_slots_per_decode 1.5
llamacpp:prompt_tokens_seconds 400
"""

_D: Final = 'dynamo_component="frontend",dynamo_namespace="d",model="m"'
DYNAMO: Final = (
    f"""dynamo_frontend_inflight_requests{{{_D}}} 7
dynamo_frontend_queued_requests{{{_D}}} 3
"""
    + histogram("dynamo_frontend_time_to_first_token_seconds", 2.0, {"0.5": 3, "+Inf": 4}, _D)
    + histogram(
        "dynamo_frontend_stage_duration_seconds", 0.2, {"0.5": 4, "+Inf": 4},
        f'{_D},stage="preprocess"',
    )
    + histogram("dynamo_router_overhead_total_ms", 8.0, {"1": 1, "5": 4, "+Inf": 4}, _D)
)  # fmt: skip
DYNAMO_WORKER: Final = (
    'dynamo_component_gpu_cache_usage_percent{dynamo_component="backend",model="m"} 0.9\n'
    'dynamo_component_inflight_requests{dynamo_component="backend",model="m"} 2\n'
    f"vllm:num_requests_running{{{_E}}} 2.0\nvllm:kv_cache_usage_perc{{{_E}}} 0.3\n"
)

_L: Final = 'model="m",requested_model="alias",user="u1"'
LITELLM: Final = (
    "litellm_in_flight_requests 4.0\n"
    f"litellm_proxy_total_requests_metric_total{{{_L}}} 20.0\n"
    f"litellm_proxy_total_requests_metric_total{{{_L.replace('u1', 'u2')}}} 30.0\n"
    + histogram("litellm_request_total_latency_metric", 10.0, {"1": 15, "+Inf": 20}, _L)
    + histogram(
        "litellm_request_total_latency_metric", 5.0, {"1": 29, "+Inf": 30}, _L.replace("u1", "u2")
    )
)

ENVOY: Final = histogram(
    "gen_ai_server_request_duration_seconds", 6.0, {"1": 2, "+Inf": 3},
    'gen_ai_provider_name="openai",gen_ai_request_model="m"',
)  # fmt: skip

LLM_D: Final = (
    "llm_d_epp_ready_endpoints 3\n"
    'llm_d_epp_request_total{model_name="m",target_model_name="m"} 40\n'
    'inference_objective_request_total{model_name="m",target_model_name="m"} 40\n'
    + histogram("llm_d_epp_request_processing_duration_seconds", 0.2, {"0.01": 39, "+Inf": 40})
)

DCGM: Final = """# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 1980
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 61
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 98
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 1024
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 512.5
DCGM_FI_DEV_POWER_VIOLATION{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 2500000000
DCGM_FI_DEV_THERMAL_VIOLATION{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 0
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 9000
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-a",modelName="H100",Hostname="n1"} 0.93
"""

AMD: Final = """amd_gpu_gfx_activity{gpu_id="0",gpu_uuid="u",card_model="MI300X",hostname="n2"} 50
amd_gpu_used_vram{gpu_id="0",gpu_uuid="u",card_model="MI300X",hostname="n2"} 2048
amd_gpu_average_package_power{gpu_id="0",gpu_uuid="u",card_model="MI300X",hostname="n2"} 600
"""
