"""Do pages of every engine, gateway and GPU come out in the same words and units?"""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from llmtrace.run_comparison.engine_signals import COUNTERS
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.normalise import Distribution, Normaliser, Reading
from llmtrace_collector.signals.profile import builtin_profiles

from . import pages


def read(text: str) -> Reading:
    """Return what the first page of a target comes to."""
    return Normaliser(builtin_profiles()).read(text)


def values(reading: Reading) -> dict[str, object]:
    """Return each signal's value, with its own label and replica where there are several."""
    found: dict[str, object] = {}
    for one in reading.measured:
        labels = dict(one.labels)
        parts = [one.signal.name]
        if one.signal.label:
            parts.append(labels.get(one.signal.label, ""))
        value = one.value
        found["/".join(parts)] = (
            (round(value.sum, 9), value.count) if isinstance(value, Distribution) else value
        )
    return found


def labels_of(reading: Reading, signal: str) -> list[dict[str, str]]:
    """Return the labels of each series of a signal."""
    return [dict(one.labels) for one in reading.measured if one.signal.name == signal]


def why_missing(reading: Reading) -> dict[str, str | None]:
    """Return why each missing signal is missing."""
    return {one.signal: one.why for one in reading.missing}


# --- real scrapes -------------------------------------------------------------------------------


def test_a_real_vllm_page():
    """Figures of a real page come out as they stand there."""
    reading = read(pages.scrape("vllm-0.32-metrics.txt"))

    assert reading.profiles == ("vllm",)
    assert reading.oldest == (0, 32, 0)
    assert reading.started == 1.7952273965e09
    assert reading.kv_cache == {"kv_cache_tokens": 1_048_576, "kv_cache_blocks": 8192,
                                "kv_cache_bytes": 2 << 30, "block_size": 128}  # fmt: skip
    assert values(reading) == {
        "running": 0.0,
        "waiting": 0.0,
        "waiting_by_reason/capacity": 0.0,
        "waiting_by_reason/deferred": 0.0,
        "kv_usage": 0.0,
        "preemptions": 0.0,
        "awake": 1.0,
        "prefix_queries": 51395.0,
        "prefix_hits": 38400.0,
        "external_prefix_queries": 0.0,
        "external_prefix_hits": 0.0,
        "prompt_tokens": 51395.0,
        "prompt_tokens_by_source/local_compute": 12995.0,
        "prompt_tokens_by_source/local_cache_hit": 38400.0,
        "prompt_tokens_by_source/external_kv_transfer": 0.0,
        "cached_tokens": 38400.0,
        "generation_tokens": 1284.0,
        "step_tokens": (14279.0, 252.0),
        "finished/stop": 0.0,
        "finished/length": 62.0,
        "finished/abort": 0.0,
        "finished/error": 0.0,
        "finished/repetition": 0.0,
        "rejected/max_num_queued_reqs": 0.0,
        "rejected/max_num_queued_tokens": 0.0,
        **{
            f"cached_tokens_by_source/{source}": 38400.0 if source == "device" else 0.0
            for source in ("device", "host", "p2p", "disk", "external_unspecified")
        },
        "mm_cache_queries": 0.0,
        "mm_cache_hits": 0.0,
        "request_preemptions": (0.0, 62.0),
        "queue": (0.864701005, 62.0),
        "prefill": (2.861867995, 62.0),
        "decode": (5.985222912, 62.0),
        "inference": (8.847090907, 62.0),
        "ttft": (6.066566229, 63.0),
        "itl": (5.994632376, 1221.0),
        "tpot": (0.421691217, 62.0),
        "e2e": (11.976439238, 62.0),
    }


def test_a_real_page_with_all_flags_on():
    """Families that are not wanted change nothing; TTFT counts two requests that were given up."""
    found = values(read(pages.scrape("vllm-0.32-metrics-flags.txt")))

    assert found["ttft"] == (3.974428654, 64.0)
    assert found["queue"] == (0.001380293, 62.0)
    assert found["step_tokens"] == (38056.0, 11353.0)


def test_a_real_page_of_two_api_servers():
    """Without `process_*` the start is not known; everything else is."""
    reading = read(pages.scrape("vllm-0.32-metrics-2apiservers.txt"))

    assert reading.started is None
    assert values(reading)["queue"] == (21.866822596, 60.0)
    assert values(reading)["finished/length"] == 60.0


def test_a_real_page_of_two_data_parallel_ranks():
    """Each rank is a replica of its own."""
    reading = read(pages.scrape("vllm-0.32-metrics-dp2.txt"))

    assert labels_of(reading, "queue") == [
        {"engine": "vllm", "model": "tiny", "replica": "0"},
        {"engine": "vllm", "model": "tiny", "replica": "1"},
    ]
    counts = [one.value.count for one in reading.measured if one.signal.name == "queue"]
    assert counts == [17.0, 23.0]


def test_a_real_page_of_speculative_decoding():
    """Drafts are reported, by position too; custom buckets are taken as they come."""
    reading = read(pages.scrape("vllm-0.32-metrics-specdecode.txt"))
    found = values(reading)

    assert found["spec_drafts"] == 2013.0
    assert found["spec_drafted"] == 6006.0
    assert found["spec_accepted"] == 5373.0
    assert [found[f"spec_accepted_by_position/{n}"] for n in range(3)] == [1869.0, 1776.0, 1728.0]
    assert found["rejected/max_num_queued_reqs"] == 5.0


@pytest.mark.parametrize("name", pages.SCRAPES)
def test_nothing_a_real_page_lacks_goes_unexplained(name):
    """The profile knows why each signal that is missing on 0.32.0 is missing."""
    reading = read(pages.scrape(name))

    assert [one for one in reading.missing if one.why is None] == []


@pytest.mark.parametrize("name", pages.SCRAPES)
def test_buckets_rise_to_the_count(name):
    """A histogram's counts never fall, and the last is its count."""
    for one in read(pages.scrape(name)).measured:
        if isinstance(one.value, Distribution):
            assert list(one.value.bounds) == sorted(one.value.bounds)
            assert list(one.value.counts) == sorted(one.value.counts)
            assert one.value.counts[-1] == one.value.count
            assert one.value.bounds[-1] == float("inf")


# --- other versions of vLLM ---------------------------------------------------------------------


def test_vllm_before_v1():
    """V0's names are understood; what came later is missing for that reason."""
    reading = read(pages.VLLM_0_6)
    found = values(reading)

    assert found["kv_usage"] == 0.25
    assert found["swapped"] == 1.0
    assert found["prefix_hit_ratio"] == 0.75
    assert found["itl"] == (3.0, 100.0)
    assert labels_of(reading, "running") == [{"engine": "vllm", "model": "m"}]
    assert why_missing(reading)["waiting_by_reason"] == "from 0.20.0 on"
    assert why_missing(reading)["queue"] == "from 0.6.4 on"
    assert (reading.oldest, reading.newest) == ((0, 6, 0), (0, 8, 5))


@pytest.mark.parametrize(
    ("unit", "info", "queries"),
    [
        ("number of queried blocks", pages.BLOCK_SIZE, 1600.0),
        ("number of queried tokens", pages.BLOCK_SIZE, 100.0),
        ("number of queried blocks", "", None),
    ],
)
def test_one_name_counted_blocks_and_then_tokens(unit, info, queries):
    """Blocks become tokens where the page tells the size of a block; else they are unknown."""
    found = values(read(pages.vllm_prefix(unit) + info))

    assert found.get("prefix_queries") == queries


def test_the_new_name_wins_while_both_are_there():
    """During a deprecation both names are on the page: one is read, never their sum."""
    both = pages.vllm_prefix("number of queried tokens") + (
        'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 777.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.6\n'
    )
    found = values(read(both))

    assert found["prefix_queries"] == 777.0
    assert found["kv_usage"] == 0.6


def test_ray_spells_the_names_its_own_way():
    """`ray_vllm_` is vLLM, and the replica is named by Ray too."""
    reading = read(pages.RAY)

    assert reading.profiles == ("vllm",)
    assert values(reading)["running"] == 4.0
    assert values(reading)["queue"] == (2.0, 4.0)
    assert labels_of(reading, "running") == [{"engine": "vllm", "model": "m", "replica": "0/abc"}]


def test_openmetrics_of_a_newer_prometheus_client_has_no_colons():
    """A Prometheus that asks for OpenMetrics gets `vllm_...` of the same process."""
    text = pages.scrape("vllm-0.32-metrics.txt")
    registry = CollectorRegistry()
    registry.register(_Page(text))
    written = openmetrics(registry).decode()

    assert "\nvllm:" not in written
    assert values(read(written)) == values(read(text))


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        (pages.SGLANG, "sglang:"),
        (pages.LLAMA_CPP, "llamacpp:"),
        (pages.PRODUCTION_STACK, "vllm:"),
    ],
)
def test_a_colon_may_be_written_as_an_underscore(text, prefix):
    """As OpenMetrics has it, whatever the engine."""
    written = re.sub(f"^{prefix}", f"{prefix[:-1]}_", text, flags=re.MULTILINE)

    assert written != text
    assert values(read(written)) == values(read(text)) != {}


class _Page(Collector):
    """What a process has counted, as its page says."""

    def __init__(self, text: str) -> None:
        self._text = text

    def collect(self) -> Iterator[Metric]:
        """Return the families of the page."""
        yield from text_string_to_metric_families(self._text)


def test_a_router_that_exports_engines_again_is_not_counted_twice():
    """The production-stack router is a gateway; what it repeats of its engines is left alone."""
    reading = read(pages.PRODUCTION_STACK)

    assert reading.profiles == ("production_stack",)
    assert values(reading) == {
        "gateway_e2e": (9.0, 3.0),
        "gateway_requests": 12.0,
        "gateway_backends_up": 1.0,
    }


def test_a_router_and_an_engine_on_one_page():
    """Series with the router's label belong to no engine; the engine's own still count once."""
    federated = 'vllm:num_requests_running{server="http://a:8000"} 5.0\n' + pages.RAY.replace(
        "ray_vllm_", "vllm:"
    )

    assert values(read(federated))["running"] == 4.0


def test_a_renamed_metric_is_missing_and_no_reason_is_known():
    """What should be there and is not is distinguished from what cannot be there."""
    text = pages.scrape("vllm-0.32-metrics.txt").replace(
        "vllm:kv_cache_usage_perc", "vllm:kv_fill"
    )
    reading = read(text)

    gone = [one for one in reading.missing if one.why is None]
    assert [(one.signal, one.names) for one in gone] == [
        ("kv_usage", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"))
    ]


def test_compare_knows_what_counts():
    """What grows from an engine's start on is compared by its growth, all else by its mean."""
    named = {one.name for one in SIGNALS.values() if "_by_" not in one.name}
    counters = {name for name in named if SIGNALS[name].kind == "counter"}
    assert counters == COUNTERS & named


# --- other engines ------------------------------------------------------------------------------


def test_sglang():
    """Ranks of one engine say the same; the lowest speaks for all; stages are distinguished."""
    reading = read(pages.SGLANG)
    found = values(reading)

    assert reading.kv_cache == {
        "kv_cache_tokens": 40_000, "kv_cache_blocks": 2500, "block_size": 16
    }  # fmt: skip
    assert found["running"] == 8.0
    assert found["kv_usage"] == 0.8
    assert found["prefix_hit_ratio"] == 0.4
    assert found["waiting"] == 2.0
    assert found["waiting_by_reason/grammar"] == 1.0
    assert found["waiting_by_reason/prefill_inflight"] == 3.0
    assert found["queue"] == (1.0, 10.0)
    assert found["prefill"] == (2.0, 10.0)
    assert found["ttft"] == (5.0, 10.0)
    assert found["finished/any"] == 10.0
    assert found["finished/abort"] == 2.0


def test_sglang_data_parallel_ranks_are_replicas():
    """Ranks of different engines do not speak for one another."""
    two = pages.SGLANG.replace('engine_type="unified"', 'dp_rank="0",engine_type="unified"')
    two += pages.SGLANG.replace('engine_type="unified"', 'dp_rank="1",engine_type="unified"')
    reading = read(two)

    assert [labels["replica"] for labels in labels_of(reading, "running")] == [
        "unified/0",
        "unified/1",
    ]
    assert reading.kv_cache["kv_cache_tokens"] == 80_000


def test_sglang_before_it_had_gauges_of_its_cache():
    """Labels report it, as far as they do; an engine that starts reports 0, which is no size."""
    new = ("sglang:max_total_num_tokens", "sglang:page_size", "sglang:num_pages")
    lines = [line for line in pages.SGLANG.splitlines() if not line.startswith(new)]
    lines.append('sglang:cache_config_info{model_name="m",num_pages="100",page_size="64"} 1.0')
    assert read("\n".join(lines)).kv_cache == {
        "kv_cache_tokens": 6400, "kv_cache_blocks": 100, "block_size": 64
    }  # fmt: skip
    starting = pages.SGLANG.replace(" 40000.0", " 0.0").replace(" 2500.0", " NaN")
    assert read(starting).kv_cache == {"block_size": 16}


def test_a_cache_of_another_size_after_a_restart_is_read():
    """The page looks the same, but for the figure."""
    reader = Normaliser(builtin_profiles())
    assert reader.read(pages.SGLANG).kv_cache["kv_cache_tokens"] == 40_000
    smaller = pages.SGLANG.replace(" 40000.0", " 30000.0")
    assert reader.read(smaller).kv_cache["kv_cache_tokens"] == 30_000


def test_tgi():
    """Batches are not requests, and sums of histograms are counters."""
    reading = read(pages.TGI)

    assert values(reading) == {
        "running": 8.0,
        "waiting": 3.0,
        "queue": (0.5, 11.0),
        "prefill_batch": (2.5, 5.0),
        "decode_batch": (7.5, 70.0),
        "e2e": (12.0, 11.0),
        "prompt_tokens": 1234.0,
        "generation_tokens": 567.0,
        "finished/success": 11.0,
        "finished/overloaded": 2.0,
    }
    assert "TGI does not report it" in (why_missing(reading)["ttft"] or "")


def test_trtllm_serve():
    """TensorRT-LLM's own server is read as vLLM is."""
    reading = read(pages.TRTLLM)
    found = values(reading)

    assert reading.kv_cache["kv_cache_tokens"] == 32_000
    assert found["running"] == 6.0
    assert found["waiting_by_reason/paused"] == 2.0
    assert found["kv_usage"] == 0.6
    assert found["queue"] == (0.4, 4.0)
    assert found["prefill"] == (0.8, 4.0)
    assert found["step_time"] == 0.02


def test_triton_keeps_many_signals_under_one_name():
    """A label says which, and milliseconds become seconds, bounds too."""
    reading = read(pages.TRITON)
    ttft = next(one.value for one in reading.measured if one.signal.name == "ttft")

    assert values(reading)["running"] == 5.0
    assert values(reading)["waiting"] == 4.0
    assert values(reading)["kv_usage"] == 0.1
    assert ttft == Distribution((0.1, float("inf")), (1.0, 4.0), 0.5, 4.0)


def test_llama_cpp():
    """Gauges in tokens a second are not taken for seconds."""
    found = values(read(pages.LLAMA_CPP))

    assert found == {
        "running": 2.0,
        "waiting": 1.0,
        "prompt_tokens": 1000.0,
        "generation_tokens": 300.0,
        "prefill_busy": 2.5,
        "decode_busy": 6.25,
        "busy_slots": 1.5,
    }


# --- gateways -----------------------------------------------------------------------------------


def test_dynamo():
    """Its frontend is a gateway with stages of its own."""
    found = values(read(pages.DYNAMO))

    assert found["gateway_running"] == 7.0
    assert found["gateway_waiting"] == 3.0
    assert found["gateway_ttft"] == (2.0, 4.0)
    assert found["gateway_stage/preprocess"] == (0.2, 4.0)
    assert found["gateway_overhead"] == (0.008, 4.0)


def test_a_dynamo_worker_passes_its_engine_through():
    """One profile speaks for the engine, so nothing of it is there twice."""
    reading = read(pages.DYNAMO_WORKER)

    assert reading.profiles == ("vllm", "dynamo")
    assert labels_of(reading, "kv_usage") == [{"engine": "vllm", "model": "m", "replica": "0"}]
    assert values(reading)["kv_usage"] == 0.3
    assert values(reading)["gateway_running"] == 2.0


def test_litellm():
    """Users are no label of ours: their series become one."""
    reading = read(pages.LITELLM)

    assert values(reading) == {
        "gateway_running": 4.0,
        "gateway_requests": 50.0,
        "gateway_e2e": (15.0, 50.0),
    }
    assert labels_of(reading, "gateway_e2e") == [{"engine": "litellm", "model": "alias"}]


def test_envoy_ai_gateway():
    """Its histograms by OpenTelemetry's names are understood."""
    assert values(read(pages.ENVOY)) == {"gateway_e2e": (6.0, 3.0)}


def test_llm_d_tells_everything_twice_and_is_counted_once():
    """Old names beside the new ones are not added to them."""
    found = values(read(pages.LLM_D))

    assert found["gateway_requests"] == 40.0
    assert found["gateway_overhead"] == (0.2, 40.0)
    assert found["gateway_backends_up"] == 3.0


# --- GPUs ---------------------------------------------------------------------------------------


def test_dcgm():
    """MHz, MiB, percent, ns and mJ become base units; a host is one under either name."""
    reading = read(pages.DCGM)

    assert values(reading) == {
        "gpu_utilization": 0.98,
        "gpu_engine_active": 0.93,
        "gpu_memory_used": 1024.0 * 1048576,
        "gpu_sm_clock": 1980e6,
        "gpu_power": 512.5,
        "gpu_energy": 9.0,
        "gpu_temperature": 61.0,
        "gpu_throttle_time/power": 2.5,
        "gpu_throttle_time/thermal": 0.0,
    }
    assert labels_of(reading, "gpu_power") == [
        {"engine": "dcgm", "gpu": "0", "uuid": "GPU-a", "model": "H100", "host": "n1"}
    ]


def test_amd():
    """AMD's exporter comes out like NVIDIA's."""
    assert values(read(pages.AMD)) == {
        "gpu_utilization": 0.5,
        "gpu_memory_used": 2048.0 * 1048576,
        "gpu_power": 600.0,
    }


# --- what is no number, and what changes --------------------------------------------------------


def test_usage_is_averaged_and_requests_are_summed():
    """Two series that come to one replica: a ratio is never above 1."""
    text = (
        'vllm:num_requests_running{engine="0",model_name="m",pod="a"} 2.0\n'
        'vllm:num_requests_running{engine="0",model_name="m",pod="b"} 3.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m",pod="a"} 0.8\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m",pod="b"} 0.6\n'
    )
    found = values(read(text))

    assert found["running"] == 5.0
    assert found["kv_usage"] == pytest.approx(0.7)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-5"])
def test_what_no_gauge_can_be_is_not_reported(value):
    """NaN is what exporters say when they do not know; JSON has no word for an infinity."""
    running = 'vllm:num_requests_running{{engine="{}"}} {}\n'.format
    waiting = "vllm:num_requests_waiting 1\n"

    assert values(read(running(0, value) + waiting)) == {"waiting": 1.0}
    both = read(running(0, value) + running(1, 4) + waiting)
    assert values(both) == {"running": 4.0, "waiting": 1.0}


def test_llm_ds_queue_is_in_its_processing_and_counts_once():
    """10 s in the gateway, 9 of them in flow control: its own time is the 1 that is left."""
    processing = pages.histogram(
        "llm_d_epp_request_processing_duration_seconds", 10.0, {"1": 4, "+Inf": 10}
    )
    queue = pages.histogram(
        "llm_d_epp_flow_control_request_queue_duration_seconds", 9.0, {"1": 5, "+Inf": 10}
    )
    counts = "# TYPE llm_d_epp_request_total counter\nllm_d_epp_request_total 10\n"

    both = read(counts + processing + queue)
    assert values(both)["gateway_overhead"] == (1.0, 10)
    assert values(both)["gateway_queue"] == (9.0, 10)
    [own] = [one.value for one in both.measured if one.signal.name == "gateway_overhead"]
    assert isinstance(own, Distribution)
    # Of two distributions the means alone can be subtracted.
    assert own.bounds == (float("inf"),)
    assert values(read(counts + processing))["gateway_overhead"] == (10.0, 10)


def test_vllm_0_33s_connectors():
    """The families of KV connectors that 0.33 added, on a page written by hand."""
    reading = read(pages.vllm_0_33())
    found = values(reading)

    assert (reading.profiles, reading.oldest) == (("vllm",), (0, 33, 0))
    assert found["kv_fetch/in_progress"] == 3.0
    assert found["kv_transfer_time"] == (1.5, 8)
    assert found["kv_transfer_failures/expired"] == 2.0
    assert found["kv_transfers/completed"] == 40.0
    assert found["kv_promotion_time"] == (0.25, 4)


def test_a_page_no_profile_knows():
    """It is read, and comes to nothing."""
    assert read("up 1\n# nothing else\n") == Reading()


def test_a_target_that_becomes_another_engine():
    """Behind the same address there may be something else after a deployment."""
    normaliser = Normaliser(builtin_profiles())
    before = normaliser.read(pages.VLLM_0_6)
    after = normaliser.read(pages.SGLANG)

    assert before.profiles == ("vllm",)
    assert after.profiles == ("sglang",)
    assert values(after)["running"] == 8.0


def test_a_series_that_goes_is_not_kept():
    """What is not on this page is not reported, whatever the page before said."""
    normaliser = Normaliser(builtin_profiles())
    normaliser.read(pages.VLLM_0_6)
    after = normaliser.read(pages.VLLM_0_6.replace("vllm:num_requests_swapped", "other"))

    assert "swapped" not in values(after)
    assert "running" in values(after)


def test_reading_for_hours_takes_no_more_memory():
    """Numbers move, series stay: what is kept of a target does not grow."""
    normaliser = Normaliser(builtin_profiles())
    text = pages.scrape("vllm-0.32-metrics.txt")
    # Threads that other tests left may need memory, too.
    ours = [
        tracemalloc.Filter(
            inclusive=True, filename_pattern="*/llmtrace_collector/*", all_frames=True
        )
    ]

    def run(first: int, last: int) -> int:
        for n in range(first, last):
            normaliser.read(text.replace(" 62.0", f" {62 + n}.0").replace(" 63.0", f" {63 + n}.0"))
        gc.collect()  # what Python keeps for reuse is not ours
        here = tracemalloc.take_snapshot().filter_traces(ours)
        return sum(one.size for one in here.statistics("filename"))

    tracemalloc.start(8)
    try:
        before, after = run(0, 60), run(60, 240)  # an hour, at one reading every 15 seconds
    finally:
        tracemalloc.stop()
    assert after - before < 16 * 1024


def test_reading_a_page_again_gives_the_same():
    """What is remembered between pages changes nothing in what they say."""
    normaliser = Normaliser(builtin_profiles())
    text = pages.scrape("vllm-0.32-metrics-dp2.txt")

    assert normaliser.read(text) == normaliser.read(text)
