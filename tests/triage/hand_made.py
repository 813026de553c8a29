"""What does each cause look like, what only resembles it, and what if its data are missing?

Three incidents a cause: `CAUSE`, `CAUSE_near` and `CAUSE_missing`, by mechanism.
"""
# ruff: noqa: D103 - the name says it

from __future__ import annotations

import numpy as np

from llmtrace.dataset.case import Event, Window

from .incidents import AFTER, BEFORE, REPLICAS, Incident, quiet

START_OF_OLD = BEFORE.start - 86_400


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def not_divided(incident: Incident, *stages: str) -> None:
    """Have no request tell these stages of its time."""
    for row in incident.rows:
        row["unattributed_s"] += sum(row.pop(stage) for stage in stages)


def hosted(incident: Incident) -> Incident:
    """Leave nothing that is known of any engine, as with the API of a provider."""
    incident.gauges.clear()
    incident.counters.clear()
    incident.facts.clear()
    not_divided(incident, "queue_s", "prefill_s")
    incident.forget_rows("replica", "first_chunk_frontend_s")
    return incident


def slow_queue(incident: Incident, seconds: float, *replicas: str) -> None:
    dice = rng()
    for row in incident.after():
        if not replicas or row["replica"] in replicas:
            row["queue_s"] += float(dice.exponential(seconds))


# --- queue_saturation


def queue_saturation() -> Incident:
    made = quiet(after_rate=3.0)
    slow_queue(made, 1.5)
    made.gauge("waiting", 14.0, 2.0)
    made.gauge("running", 64.0)
    return made


def queue_saturation_near() -> Incident:
    """The client's figures say queue, but nothing waits in the engine."""
    made = quiet()
    slow_queue(made, 1.5)
    return made


def queue_saturation_missing() -> Incident:
    """As many requests as before wait, and neither they nor an engine say for what."""
    made = queue_saturation_near()
    made.forget("waiting", "running")
    not_divided(made, "queue_s")
    return made


# --- kv_exhaustion


def kv_exhaustion() -> Incident:
    made = quiet()
    slow_queue(made, 2.0)
    made.gauge("kv_usage", 0.98, 0.01)
    made.gauge("running", 18.0, 1.0)
    made.gauge("waiting", 9.0, 1.0)
    made.counter("preemptions", 0.3)
    return made


def kv_exhaustion_near() -> Incident:
    """A cache well filled, without one preemption and without anybody slow."""
    made = quiet()
    made.gauge("kv_usage", 0.97, 0.01)
    return made


def kv_exhaustion_missing() -> Incident:
    made = kv_exhaustion()
    made.forget("kv_usage", "preemptions")
    made.forget_rows("preemptions")
    return made


# --- long_prompts


def long_prompts() -> Incident:
    made = quiet()
    for row in made.after():
        row["prompt_tokens"] = int(row["prompt_tokens"] * 2.5)
        row["prefill_s"] = 0.02 + 0.0003 * (row["prompt_tokens"] - row["cached_tokens"])
    return made


def long_prompts_near() -> Incident:
    """Prefill takes longer for the same prompts."""
    made = quiet()
    for row in made.after():
        row["prefill_s"] *= 3
    return made


def long_prompts_missing() -> Incident:
    made = long_prompts()
    made.forget_rows("prompt_tokens", "cached_tokens")
    return made


# --- longer_outputs


def longer_outputs() -> Incident:
    made = quiet()
    for row in made.after():
        row["output_tokens"] = row["chunks"] = int(row["output_tokens"] * 2)
        row["decode_s"] *= 2
        row["render_s"] *= 2
    return made


def longer_outputs_near() -> Incident:
    """Every token takes twice as long; the answers are as long as ever."""
    made = quiet()
    for row in made.after():
        row["decode_s"] *= 2
    return made


def longer_outputs_missing() -> Incident:
    made = longer_outputs()
    made.forget_rows("output_tokens", "chunks", "burst_chunks")
    return made


# --- head_of_line


def head_of_line() -> Incident:
    made = quiet()
    longs = [(AFTER.start + 5 + 18 * k, REPLICAS[k % 3]) for k in range(11)]
    for at, replica in longs:
        giant = next(r for r in made.after() if r["start"] >= at * 1e9)
        giant |= {"prompt_tokens": 30_000, "cached_tokens": 0, "prefill_s": 8.0,
                  "replica": replica, "start": int(at * 1e9)}  # fmt: skip
    for row in made.after():
        t = row["start"] / 1e9
        for at, replica in longs:
            if row["replica"] == replica and at < t < at + 8 and row["prompt_tokens"] < 30_000:
                row["first_chunk_s"] += at + 8 - t
    return made


def head_of_line_near() -> Incident:
    """The same giants, and the slow ones are slow at all sorts of times."""
    made = head_of_line()
    dice = rng()
    for row in made.after():
        if row["prompt_tokens"] < 30_000:
            slow = dice.random() < 0.15
            row["first_chunk_s"] = 0.012 + (float(dice.uniform(1, 6)) if slow else 0.0)
    return made


def head_of_line_missing() -> Incident:
    made = head_of_line()
    made.forget_rows("prompt_tokens", "cached_tokens")
    return made


# --- prefix_cache_collapse


def prefix_cache_collapse() -> Incident:
    made = quiet()
    for row in made.after():
        row["cached_tokens"] = 16
        row["prefill_s"] = 0.02 + 0.0003 * (row["prompt_tokens"] - 16)
    made.counter("prefix_hits", 80.0)
    made.events.append(Event(AFTER.start - 20, "deploy", "new prompt template"))
    return made


def prefix_cache_collapse_near() -> Incident:
    """Longer prompts with the same cached head: the ratio falls, the cache works."""
    made = long_prompts()
    made.counter("prefix_queries", 5000.0)
    return made


def prefix_cache_collapse_missing() -> Incident:
    made = prefix_cache_collapse()
    made.forget("prefix_hits", "prefix_queries")
    made.forget_rows("cached_tokens")
    return made


# --- cold_start


def cold_start() -> Incident:
    made = quiet()
    for key in list(made.gauges):
        if key == ("started", "vllm-2"):
            made.gauges[key] = lambda t, u: AFTER.start if t >= AFTER.start else 1.6e9
    made.dead["vllm-2"] = Window(BEFORE.start, AFTER.start)
    for row in made.rows:
        if row["replica"] == "vllm-2" and row["start"] < AFTER.start * 1e9:
            row["replica"] = "vllm-0"
    for row in made.after():
        age = row["start"] / 1e9 - AFTER.start
        if row["replica"] == "vllm-2" and age < 110:
            row["first_chunk_s"] += 4.0 * (1 - age / 120)
    made.events.append(Event(AFTER.start - 5, "scale", "2 → 3 replicas"))
    return made


def cold_start_near() -> Incident:
    """A replica has just started, and all of them are equally slow."""
    made = cold_start()
    dice = rng()
    for row in made.after():
        row["first_chunk_s"] = 0.5 + float(dice.exponential(0.5))
    return made


def cold_start_missing() -> Incident:
    made = cold_start()
    made.forget("started")
    made.dead.clear()
    return made


# --- network_path


def network_path() -> Incident:
    made = quiet()
    for row in made.after():
        if row["region"] == "us":
            row["network_rtt_s"] += 0.15
            row["network_s"] += 0.15
    return made


def network_path_near() -> Incident:
    """Network is up, and all of it is the client's own pool."""
    return client_gate()


def network_path_missing() -> Incident:
    made = quiet()
    for row in made.after():
        row["first_chunk_s"] += 0.2
    made.forget_rows("network_s", "network_rtt_s", "network_connect_s", "network_client_wait_s")
    return made


# --- gateway_overhead


def gateway_overhead() -> Incident:
    made = quiet()
    dice = rng()
    for row in made.after():
        row["gateway_s"] += float(dice.lognormal(np.log(0.25), 0.4))
    return made


def gateway_overhead_near() -> Incident:
    """The gateway's time is failed attempts and their backoff."""
    return rate_limit_retries()


def gateway_overhead_missing() -> Incident:
    made = gateway_overhead_by_exclusion()
    made.forget("frontend_time")
    made.forget_rows("first_chunk_frontend_s")
    return made


def gateway_overhead_by_exclusion() -> Incident:
    """The gateway tells nothing; the engine's front end does, and is as fast as ever."""
    made = gateway_overhead()
    for row in made.rows:
        row["first_chunk_s"] += row.pop("gateway_s")
    return made


# --- rate_limit_retries


def rate_limit_retries() -> Incident:
    made = quiet()
    dice = rng()
    for row in made.after():
        if row["tenant"] == "t1":
            row["attempts"] = 2 + int(dice.integers(2))
            row["retry_s"] = float(dice.uniform(0.5, 3.0))
            row["gateway_s"] += row["retry_s"]
    for replica in REPLICAS:
        made.counters["gateway_429", replica] = lambda t: 0.4 if t >= AFTER.start else 0.0
    return made


def rate_limit_retries_near() -> Incident:
    """The gateway is slow, and no request is rejected."""
    return gateway_overhead()


def rate_limit_retries_missing() -> Incident:
    made = gateway_overhead()
    made.forget_rows("attempts", "http_status", "retry_s")
    return made


# --- proxy_buffering


def proxy_buffering() -> Incident:
    made = quiet()
    for row in made.after():
        held = 0.9 * row["decode_s"]
        row["first_chunk_s"] += held
        row["decode_s"] -= held
        row["burst_chunks"] = int(0.9 * row["chunks"])
    return made


def proxy_buffering_near() -> Incident:
    """The first chunk is late, and the others come as evenly as ever."""
    made = quiet()
    for row in made.after():
        row["first_chunk_s"] += 2.0
    return made


def proxy_buffering_missing() -> Incident:
    made = proxy_buffering_near()
    made.forget_rows("burst_chunks", "chunks", "output_tokens")
    return made


# --- low_spec_acceptance


def low_spec_acceptance() -> Incident:
    made = quiet()
    made.counter("spec_accepted", 110.0)
    for row in made.after():
        row["spec_accepted"] = int(0.5 * row["output_tokens"])
        row["decode_s"] *= 1.8
    return made


def low_spec_acceptance_near() -> Incident:
    """Slow tokens, with drafts as good as ever."""
    return longer_outputs_near()


def low_spec_acceptance_missing() -> Incident:
    made = low_spec_acceptance()
    made.forget("spec_drafted", "spec_accepted")
    made.forget_rows("spec_drafted", "spec_accepted")
    return made


# --- batch_size


def batch_size() -> Incident:
    made = quiet(after_rate=4.0)
    before = dict(made.gauges)
    for replica in REPLICAS:
        was = before["running", replica]
        made.gauges["running", replica] = lambda t, u, was=was: (
            20.0 + u if t >= AFTER.start else was(t, u) + 4 * np.sin(t / 20)
        )
    for row in made.rows:
        t = row["start"] / 1e9
        running = 20.0 if t >= AFTER.start else 8.0 + 4 * np.sin((t + row["decode_s"] / 2) / 20)
        row["decode_s"] = (0.01 + 0.00125 * running) * (row["output_tokens"] - 1)
    return made


def batch_size_near() -> Incident:
    """More requests run, and each token takes far longer than that explains."""
    made = batch_size()
    for row in made.after():
        row["decode_s"] *= 2.2
    made.gauge("gpu_sm_clock_mhz", 900.0, 10.0)
    made.gauge("gpu_throttle", 1.0)
    return made


def batch_size_missing() -> Incident:
    """Requests show how many are in progress, and nothing shows an engine that runs them."""
    made = hosted(batch_size())
    made.forget_rows("spec_drafted", "spec_accepted")
    return made


# --- gpu_throttle


def gpu_throttle() -> Incident:
    made = quiet()
    made.gauge("gpu_sm_clock_mhz", 1100.0, 20.0, "vllm-1")
    made.gauge("gpu_throttle", 64.0, 0.0, "vllm-1")
    made.gauge("gpu_temp_c", 88.0, 1.0, "vllm-1")
    for row in made.after():
        if row["replica"] == "vllm-1":
            row["decode_s"] *= 1.9
            row["prefill_s"] *= 1.9
    return made


def gpu_throttle_near() -> Incident:
    """A replica is as slow, at full clock."""
    made = gpu_throttle()
    made.gauge("gpu_sm_clock_mhz", 1980.0, 5.0)
    made.gauge("gpu_throttle", 0.0)
    return made


def gpu_throttle_missing() -> Incident:
    """Nor can steps of as large a batch be compared."""
    made = gpu_throttle()
    made.forget("running")
    made.forget("gpu_sm_clock_mhz", "gpu_throttle", "gpu_temp_c", "gpu_power_w")
    return made


# --- slow_renderer


def slow_renderer() -> Incident:
    made = quiet()
    for row in made.after():
        if row["client"] == "web":
            row["render_s"] += 0.02 * row["output_tokens"]
    return made


def slow_renderer_near() -> Incident:
    """The consumer holds the stream because its tools run."""
    return serial_tools()


def slow_renderer_missing() -> Incident:
    made = quiet()
    for row in made.rows:
        row["decode_s"] += row["render_s"]
        row["render_s"] = float("nan")
    made.forget_rows()
    return made


# --- serial_tools


def serial_tools() -> Incident:
    made = quiet()
    for row in made.rows:
        row |= {"tool_calls": 3, "tool_critical_path_s": 1.5, "tool_serial_s": 4.5,
                "tool_wall_s": 1.5}  # fmt: skip
        row["render_s"] += 1.5
    for row in made.after():
        row["tool_wall_s"] = 4.5
        row["render_s"] += 3.0
        row["tool_critical_path_s"] = 1.5
    return made


def serial_tools_near() -> Incident:
    """The tools overlap; one of them is slow."""
    made = quiet()
    for row in made.rows:
        row |= {"tool_calls": 3, "tool_critical_path_s": 1.5, "tool_serial_s": 2.0,
                "tool_wall_s": 1.5}  # fmt: skip
        row["render_s"] += 1.5
    for row in made.after():
        row |= {"tool_critical_path_s": 4.5, "tool_serial_s": 5.0, "tool_wall_s": 4.5}
        row["render_s"] += 3.0
    return made


def serial_tools_missing() -> Incident:
    made = serial_tools()
    made.forget_rows("tool_critical_path_s", "tool_serial_s", "tool_calls")
    return made


# --- idle_timeout


def idle_timeout() -> Incident:
    made = quiet()
    dice = rng()
    for row in made.after():
        if dice.random() < 0.08:
            row["decode_s"] = float(dice.uniform(0.5, 60)) + 60.0
            row["max_gap_s"] = 60.0 + float(dice.uniform(0, 0.05))
            row["outcome"] = "truncated"
            row.pop("finish_reason")
    return made


def idle_timeout_seen_late() -> Incident:
    """A short timer, and a host so busy that it notices the end only after a while."""
    made = quiet()
    dice = rng()
    for row in made.after():
        if dice.random() < 0.15:
            row["max_gap_s"] = 2.0 + float(dice.exponential(0.4))
            row["decode_s"] = float(dice.uniform(0.1, 9)) + row["max_gap_s"]
            row["outcome"] = "truncated"
            row.pop("finish_reason")
    return made


def idle_timeout_near() -> Incident:
    return midstream_errors()


def idle_timeout_missing() -> Incident:
    made = idle_timeout()
    made.forget_rows("max_gap_s")
    return made


# --- midstream_errors


def midstream_errors() -> Incident:
    made = quiet()
    dice = rng()
    for row in made.after():
        if dice.random() < 0.1:
            part = float(dice.random())
            row["decode_s"] *= part
            row["outcome"] = "error"
            row["error_type"] = "stream_error"
            row["output_tokens"] = max(int(row["output_tokens"] * part), 1)
            row.pop("finish_reason")
    return made


def midstream_errors_near() -> Incident:
    return idle_timeout()


# --- client_gate


def client_gate() -> Incident:
    made = quiet()
    dice = rng()
    for row in made.after():
        if row["client"] == "web":
            row["network_client_wait_s"] = float(dice.exponential(0.8))
            row["network_s"] += row["network_client_wait_s"]
    return made


def client_gate_and_fewer_at_once() -> Incident:
    """With fewer requests at a time the engine is faster, and its chunks come closer together."""
    made = quiet()
    dice = rng()
    for row in made.after():
        row["network_client_wait_s"] = float(dice.exponential(3.0))
        row["network_s"] += row["network_client_wait_s"]
        row["decode_s"] *= 0.5
        row["burst_chunks"] = int(0.3 * row["chunks"])
    return made


def client_gate_near() -> Incident:
    return network_path()


def client_gate_missing() -> Incident:
    made = client_gate()
    made.forget_rows("network_client_wait_s")
    return made


# --- client_cold


def client_cold() -> Incident:
    """A new version is rolled out, and its first requests import and connect."""
    made = quiet()
    for row in made.rows:
        row |= {"version": "1", "client_s": 0.0}
    for number, row in enumerate(made.after()):
        row["version"] = "2"
        if number < 60:
            row |= {"client_s": 0.7, "network_tls_s": 0.5, "network_s": row["network_s"] + 0.5}
            row["unattributed_s"] += 0.7
    return made


def client_cold_near() -> Incident:
    """A pool that is too small, in a new version: the wait lasts."""
    made = client_gate()
    for row in made.rows:
        row["version"] = "1"
    for row in made.after():
        row["version"] = "2"
    return made


def client_cold_missing() -> Incident:
    made = client_cold()
    made.forget_rows("version")
    return made


# --- traffic_lost, traffic_surge


def traffic_lost() -> Incident:
    return quiet(after_rate=0.5)


def traffic_lost_near() -> Incident:
    """Clients that wait for one answer before they ask again: fewer requests are an effect."""
    made = traffic_lost()
    slow_queue(made, 3.0)
    return made


def traffic_surge() -> Incident:
    made = quiet(after_rate=6.0)
    for number, row in enumerate(made.after()):
        row["tenant"] = row["tenant"] if number % 3 == 0 else "batch"
    return made


def traffic_surge_near() -> Incident:
    return queue_saturation()


# --- busy_client


def busy_client() -> Incident:
    """One application's loop is blocked: its waits are longer, and data lay there meanwhile."""
    made = quiet()
    dice = rng()
    for row in made.rows:
        row["client_lag_s"] = 0.0
    for row in made.after():
        if row["client"] == "web":
            row["client_lag_s"] = float(dice.exponential(0.8))
            row["first_chunk_s"] += row["client_lag_s"]
    return made


def busy_client_near() -> Incident:
    """The server is that much slower, and each chunk is read as it comes."""
    made = busy_client()
    for row in made.after():
        row["client_lag_s"] = 0.0
    return made


def busy_client_missing() -> Incident:
    made = busy_client()
    made.forget_rows("client_lag_s")
    return made


# --- frontend_cpu


def frontend_cpu() -> Incident:
    made = quiet()
    dice = rng()
    for row in made.after():
        more = float(dice.exponential(0.25))
        row["first_chunk_s"] += more
        row["first_chunk_frontend_s"] += more
    made.gauge("frontend_time", 0.24, 0.02)
    made.gauge("api_cpu", 0.97, 0.01)
    return made


def frontend_cpu_hardly_sampled() -> Incident:
    """It is so short of CPU that it hardly tells its figures; time per token is up as well."""
    made = quiet()
    for row in made.after():
        row["first_chunk_s"] += 10.0
        row["decode_s"] *= 3
    made.forget_rows("first_chunk_frontend_s")
    made.forget("api_cpu")
    made.gauge("frontend_time", 9.5, 0.3)
    for replica in REPLICAS:
        made.only[("frontend_time", replica)] = Window(BEFORE.start, AFTER.start + 10)
    return made


def frontend_cpu_near() -> Incident:
    """The front-end figure is up because everybody waits for long steps; its CPU is idle."""
    return head_of_line()


def frontend_cpu_missing() -> Incident:
    made = frontend_cpu()
    made.forget("frontend_time", "api_cpu")
    made.forget_rows("first_chunk_frontend_s", "burst_chunks")
    return made


# --- kv_transfer


def kv_transfer() -> Incident:
    made = quiet()
    slow_queue(made, 0.8)
    made.gauge("waiting", 6.0, 1.0)
    made.gauge("waiting_deferred", 6.0, 1.0)
    for i, row in enumerate(made.rows):
        row["model"] = ("llama", "qwen")[i % 2]
    for facts in made.facts.values():
        facts["kv_connector"] = "NixlConnector"
    return made


def kv_transfer_near() -> Incident:
    """As many wait, for capacity."""
    return queue_saturation()


def kv_transfer_missing() -> Incident:
    made = kv_transfer()
    made.forget("waiting_deferred")
    for facts in made.facts.values():
        del facts["kv_connector"]
    return made


# --- disaggregated_kv


def disaggregated_kv() -> Incident:
    """What was prefilled elsewhere takes long to get to the engine that decodes."""
    made = quiet()
    dice = rng()
    for row in made.rows:
        row["first_chunk_kv_transfer_s"] = 0.004
    for row in made.after():
        more = float(dice.exponential(0.6))
        row["first_chunk_kv_transfer_s"] += more
        row["first_chunk_s"] += more
    return made


def disaggregated_kv_near() -> Incident:
    """The first chunk is as late, and the transfer is not."""
    made = disaggregated_kv()
    for row in made.after():
        row["first_chunk_kv_transfer_s"] = 0.004
    return made


def disaggregated_kv_missing() -> Incident:
    made = disaggregated_kv()
    made.forget_rows("first_chunk_kv_transfer_s")
    return made


# --- lora_slots


def lora_slots() -> Incident:
    made = kv_transfer()
    dice = rng()
    for row in made.rows:
        row["model"] = ("base", "adapter-a", "adapter-b")[int(dice.integers(3))]
        row["queue_s"] = 0.01 + float(dice.exponential(0.01))
    for row in made.after():
        if row["model"] != "base":
            row["queue_s"] += float(dice.exponential(1.5))
    return made


def lora_slots_near() -> Incident:
    return kv_transfer()


def lora_slots_missing() -> Incident:
    made = lora_slots()
    made.forget_rows("model")
    return made


def kv_transfer_by_fetches() -> Incident:
    """The engine reports requests that fetch KV blocks, and none deferred."""
    made = kv_transfer()
    made.forget("waiting_deferred")
    report(made, "kv_fetch", 0.0, 6.0)
    return made


def lora_slots_by_slots() -> Incident:
    """SGLang reports the slots, and none deferred."""
    made = lora_slots()
    made.forget("waiting_deferred")
    report(made, "lora_slots_used", 3.0, 8.0)
    report(made, "lora_slots", 8.0, 8.0)
    return made


def report(made: Incident, name: str, before: float, after: float) -> None:
    """Have every replica report a gauge that none of the others do."""
    for replica in REPLICAS:
        made.gauges[name, replica] = lambda t, _u: after if t >= AFTER.start else before


# --- grammar_compilation


def grammar_compilation() -> Incident:
    """Schemas that differ with every request: nothing queues, and first content is late."""
    made = quiet()
    for row in made.after():
        row["first_chunk_s"] += 1.5
    report(made, "waiting_grammar", 0.0, 5.0)
    for replica in REPLICAS:
        made.counters["grammar_compile_sum", replica] = lambda t: (
            0.4 if t >= AFTER.start else 0.001
        )
    return made


def grammar_compilation_near() -> Incident:
    """As late, with grammars that take what they always took."""
    made = grammar_compilation()
    made.forget("grammar_compile_sum")
    report(made, "waiting_grammar", 0.1, 0.1)
    return made


def grammar_compilation_missing() -> Incident:
    made = grammar_compilation()
    made.forget("grammar_compile_sum", "waiting_grammar")
    return made


# --- replica_imbalance


def replica_imbalance() -> Incident:
    made = quiet()
    dice = rng()
    for row in made.after():
        if dice.random() < 0.6:
            row["replica"] = "vllm-1"
    slow_queue(made, 1.5, "vllm-1")
    made.gauge("running", 64.0, 0.0, "vllm-1")
    made.gauge("waiting", 15.0, 2.0, "vllm-1")
    made.gauge("running", 4.0, 0.5, "vllm-0", "vllm-2")
    return made


def replica_imbalance_near() -> Incident:
    """One replica is slow, and gets no more than its share: it is ill."""
    return gpu_throttle()


def replica_imbalance_missing() -> Incident:
    made = replica_imbalance()
    made.forget("running", "waiting")
    made.forget_rows("replica")
    return made


# --- engine_paused


def engine_paused() -> Incident:
    made = quiet(rate=4.0)
    for begin in (AFTER.start + 30, AFTER.start + 100, AFTER.start + 160):
        for row in made.after():
            t = row["start"] / 1e9
            if begin <= t < begin + 12:
                row["first_chunk_s"] += begin + 12 - t
            elif t < begin < t + 3:
                row["decode_s"] += 12
                row["max_gap_s"] = 12.0
        for replica in REPLICAS:
            was, slept = made.counters["tokens_out", replica], made.gauges["sleep", replica]
            made.counters["tokens_out", replica] = lambda t, was=was, begin=begin: (
                0.0 if begin < t <= begin + 12 else was(t)
            )
            made.gauges["sleep", replica] = lambda t, u, was=slept, begin=begin: (
                1.0 if begin < t <= begin + 12 else was(t, u)
            )
    return made


def engine_paused_near() -> Incident:
    """Slow first chunks, one here and one there."""
    return frontend_cpu()


def engine_paused_missing() -> Incident:
    """One of three stood still, and no source says which requests were its."""
    made = quiet(rate=4.0)
    for begin in (AFTER.start + 30, AFTER.start + 90, AFTER.start + 150):
        for row in made.after():
            t = row["start"] / 1e9
            if row["replica"] == "vllm-1" and begin <= t < begin + 20:
                row["first_chunk_s"] += begin + 20 - t
    made.forget("sleep", "tokens_out", "running")
    made.forget_rows("max_gap_s", "replica")
    return made


# --- engine_down


def engine_down() -> Incident:
    made = quiet()
    dies = AFTER.start + 60
    made.dead["vllm-1"] = Window(dies, dies + 40)
    made.gauges["started", "vllm-1"] = lambda t, u: dies + 40 if t > dies else START_OF_OLD
    for row in made.after():
        t = row["start"] / 1e9
        if row["replica"] == "vllm-1" and t < dies < t + 25:
            row |= {"decode_s": max(dies - t - 0.2, 0.1), "outcome": "truncated"}
        elif row["replica"] == "vllm-1" and dies <= t < dies + 40:
            row |= {"outcome": "error", "http_status": 502, "error_type": "ConnectError",
                    "never_answered": True}  # fmt: skip
    return made


def engine_down_near() -> Incident:
    """An engine has just started, and no request failed."""
    return cold_start()


def engine_down_missing() -> Incident:
    made = engine_down()
    made.forget("started", "running")
    made.forget_rows("replica", "http_status", "error_type")
    return made


def engine_down_by_rows() -> Incident:
    """The engines were not scraped: the rows alone show it."""
    made = engine_down()
    made.gauges.clear()
    made.counters.clear()
    return made


# --- client_give_ups


def client_give_ups() -> Incident:
    made = quiet()
    dice = rng()
    for row in made.after():
        if dice.random() < 0.15:
            row |= {"outcome": "cancelled", "never_answered": True}
            row.pop("finish_reason")
    return made


def client_give_ups_near() -> Incident:
    """As slow as that, and everybody stays."""
    return queue_saturation()


# --- provider_errors


def provider_errors(**failed: object) -> Incident:
    """No engine is seen, as with a hosted API, and every fifth request gets an error."""
    made = quiet()
    made.gauges.clear()
    made.counters.clear()
    made.facts.clear()
    made.forget_rows("replica", "queue_s", "prefill_s", "first_chunk_frontend_s")
    for i, row in enumerate(made.after()):
        if i % 5 == 0:
            row |= {"outcome": "error", "never_answered": True, **(failed or {"http_status": 503})}
            row.pop("finish_reason")
    return made


def provider_errors_near() -> Incident:
    """The same errors, of requests that the client gets wrong."""
    return provider_errors(http_status=400)


def provider_errors_missing() -> Incident:
    made = provider_errors()
    made.forget_rows("http_status")
    return made


# --- response_cache_misses


def with_cache(incident: Incident, hits: float, window: Window) -> None:
    """Answer this share of a window's requests from a response cache, and mark all of them."""
    dice = rng()
    for row in incident.rows:
        if window.start <= row["start"] / 1e9 < window.end:
            row["cache_hit"] = bool(dice.random() < hits)
            if row["cache_hit"]:
                row.update(queue_s=0.0, prefill_s=0.001, first_chunk_s=0.001, decode_s=0.002)


def response_cache_misses() -> Incident:
    made = quiet()
    with_cache(made, 0.96, BEFORE)
    with_cache(made, 0.0, AFTER)
    return made


def response_cache_misses_near() -> Incident:
    """As many hits as before, and a queue for the others."""
    made = quiet(after_rate=3.0)
    with_cache(made, 0.5, BEFORE)
    with_cache(made, 0.5, AFTER)
    slow_queue(made, 1.5)
    return made


def response_cache_misses_missing() -> Incident:
    made = response_cache_misses()
    made.forget_rows("cache_hit")
    return made


# --- streaming_off


def streaming_off() -> Incident:
    made = quiet()
    for row in made.rows:
        row["stream"] = row["start"] < AFTER.start * 1e9
        row["whole"] = not row["stream"]
    return made


def streaming_off_near() -> Incident:
    """All are streamed, and their first token takes longer."""
    made = quiet()
    for row in made.rows:
        row["stream"] = True
    slow_queue(made, 3.0)
    return made


def streaming_off_missing() -> Incident:
    made = streaming_off()
    made.forget_rows("stream")
    return made
