"""The board about engines and their GPUs: load, cache, times and throttling."""

from __future__ import annotations

from typing import Any, Final

from llmtrace.display.colours import NEAR, NEUTRAL, OVER, STAGE_COLOURS, WITHIN
from llmtrace_dashboards import promql, variables
from llmtrace_dashboards.boards.shared_panels import NO_ENGINES, graph, heat, table
from llmtrace_dashboards.panels import Board, Column, Panel, Query, Row
from llmtrace_dashboards.promql import ENGINES, INSTANCES, mean, quantile, total

_FRACTION: Final = "percentunit"
_ENGINE: Final = "llmtrace_engine"
_NOT_REPORTED: Final = "Not reported by these engines"
_NO_GPUS: Final = "No GPU read: point the collector at NVML or dcgm-exporter"


def _gauge(name: str, *by: str, how: str = "sum", where: str = ENGINES) -> str:
    return f"{how} by ({', '.join(by)}) ({name}{{{where}}})"


def _each(expr: str) -> Query:
    """Query a series of each instance."""
    return Query(expr, "{{instance}}")


def _graph(
    title: str, description: str, *queries: Query, empty: str = NO_ENGINES, **more: Any
) -> Panel:
    return graph(title, description, *queries, empty=empty, **({"width": 8} | more))


_SCHEDULER: Final = Row(
    "What does the scheduler have in hand?",
    (
        _graph(
            "Running requests",
            "Requests being executed, by engine. One engine far below the others gets less "
            "traffic, or is stuck.",
            _each(_gauge(f"{_ENGINE}_requests_running", "instance")),
            unit="short",
        ),
        _graph(
            "Waiting requests",
            "Requests in the engine's queue. Rising while `running` is flat = the engine is full: "
            "more replicas, or less concurrency. `deferred` ones wait for something else than a "
            "slot, as for a remote KV cache.",
            _each(_gauge(f"{_ENGINE}_requests_waiting", "instance")),
            unit="short",
        ),
        _graph(
            "Waiting, by reason",
            "What waiting requests wait for, where the engine reports it: `capacity` is a slot or "
            "KV blocks, `deferred` is a transfer or a grammar.",
            Query(_gauge(f"{_ENGINE}_requests_waiting_by_reason", "reason"), "{{reason}}"),
            unit="short",
            empty=_NOT_REPORTED,
            stacked="normal",
        ),
        _graph(
            "KV cache in use",
            "Share of the KV cache's blocks in use. Near 100 % the engine preempts: shorter "
            "contexts, fewer sequences at once, or more memory for the cache.",
            _each(_gauge(f"{_ENGINE}_kv_cache_usage_ratio", "instance", how="avg")),
            unit=_FRACTION,
            most=1,
            steps=variables.FULL,
            lines=True,
        ),
        _graph(
            "Preemptions",
            "Requests put back for lack of KV cache, a second. Each is computed again: any "
            "steady rate is wasted work, felt as gaps in the middle of responses.",
            _each(total(f"{_ENGINE}_preemptions_total{{{ENGINES}}}", "instance")),
            unit="ops",
        ),
        _graph(
            "Requests finished, by reason",
            "How requests ended, as the engine sees it. `length` growing = responses are cut at "
            "max_tokens. Aborted requests are counted by few engines: callers' rows know them.",
            Query(
                total(f"{_ENGINE}_requests_finished_total{{{ENGINES}}}", "reason"), "{{reason}}"
            ),
            unit="reqps",
            stacked="normal",
            bars=True,
        ),
    ),
)

_REQUEST: Final = Row(
    "A request's time, as the engine sees it",
    (
        _graph(
            "Queue, prefill and decode (means, which add up)",
            "Mean time of a request in each of the engine's stages; together, the time it was in "
            "the engine. Compare with the client's stages: what is missing here is outside.",
            *(
                Query(mean(f"{_ENGINE}_{stage}_seconds", where=ENGINES), stage)
                for stage in ("queue", "prefill", "decode")
            ),
            unit="s",
            stacked="normal",
            colours={name: STAGE_COLOURS[name] for name in ("queue", "prefill", "decode")},
            width=12,
        ),
        _graph(
            "Engine's TTFT, p95 by instance",
            "From arrival at the engine to its first token. One instance above the others is a "
            "replica to look at; all together is load.",
            _each(quantile(0.95, f"{_ENGINE}_ttft_seconds", "instance", where=ENGINES)),
            unit="s",
            empty=_NOT_REPORTED,
            width=12,
        ),
        _graph(
            "Queue, p95 by instance",
            "Wait before the first schedule. A p95 far above zero with little waiting = bursts.",
            _each(quantile(0.95, f"{_ENGINE}_queue_seconds", "instance", where=ENGINES)),
            unit="s",
            empty=_NOT_REPORTED,
            width=6,
        ),
        _graph(
            "Prefill, p95 by instance",
            "First schedule to first token. Grows with prompts, with cache misses, and when "
            "decodes of others take the step.",
            _each(quantile(0.95, f"{_ENGINE}_prefill_seconds", "instance", where=ENGINES)),
            unit="s",
            empty=_NOT_REPORTED,
            width=6,
        ),
        _graph(
            "Front end: TTFT less queue and prefill",
            "The engine's own time outside the scheduler: templates, tokenising, IPC. Above some "
            "tens of ms the API server is short of CPU: more API servers, or cores.",
            _each(_gauge(f"{_ENGINE}_frontend_mean_seconds", "instance", how="avg")),
            unit="s",
            empty="Needs an engine that reports TTFT, queue and prefill",
            width=6,
        ),
        _graph(
            "Between tokens, p95",
            "Inter-token latency as the engine counts it. Rises with the batch: more requests at "
            "once, each slower.",
            _each(quantile(0.95, f"{_ENGINE}_itl_seconds", "instance", where=ENGINES)),
            unit="s",
            empty=_NOT_REPORTED,
            width=6,
        ),
    ),
)

_HITS: Final = promql.share(
    total(f"{_ENGINE}_prefix_cache_hits_tokens_total{{{ENGINES}}}", "instance"),
    total(f"{_ENGINE}_prefix_cache_queries_tokens_total{{{ENGINES}}}", "instance"),
)
_DRAFTED: Final = total(f"{_ENGINE}_spec_decode_drafted_tokens_total{{{ENGINES}}}", "instance")
_ACCEPTED: Final = total(f"{_ENGINE}_spec_decode_accepted_tokens_total{{{ENGINES}}}", "instance")

_WORK: Final = Row(
    "What do they work on?",
    (
        _graph(
            "Tokens generated",
            "Tokens a second, by engine: throughput. Falling while requests wait = slower steps: "
            "clocks, preemptions, or longer contexts.",
            _each(total(f"{_ENGINE}_generation_tokens_total{{{ENGINES}}}", "instance")),
            unit="suffix:tok/s",
        ),
        _graph(
            "Prompt tokens",
            "Prompt tokens a second, by engine. A jump with TTFT in step: longer prompts, or more "
            "requests; divide by the requests to know which.",
            _each(total(f"{_ENGINE}_prompt_tokens_total{{{ENGINES}}}", "instance")),
            unit="suffix:tok/s",
        ),
        _graph(
            "Prefix cache hits",
            "Share of looked-up prompt tokens that were cached. A fall = the beginning of prompts "
            "changed (a date, an id), the cache is full, or routing forgot its affinity.",
            _each(
                promql.either(
                    _HITS, f"avg by (instance) ({_ENGINE}_prefix_cache_hit_ratio{{{ENGINES}}})"
                )
            ),
            unit=_FRACTION,
            empty="No look-ups: prefix caching is off or not reported",
            most=1,
        ),
        heat(
            "Tokens a step worked on",
            f"{_ENGINE}_step_tokens",
            "How full the engine's batches are. A band at the top is `max_num_batched_tokens`: "
            "prefills fill the steps, and decodes wait for them.",
            where=ENGINES,
            unit="short",
            width=8,
        ),
        _graph(
            "Speculative decoding: accepted",
            "Share of draft tokens the model accepted. Under about 40 % drafting costs more than "
            "it saves: another draft, or none.",
            _each(
                promql.either(
                    promql.share(_ACCEPTED, _DRAFTED),
                    f"avg by (instance) ({_ENGINE}_spec_decode_accept_ratio{{{ENGINES}}})",
                )
            ),
            unit=_FRACTION,
            empty="No drafts: speculative decoding is off",
            most=1,
            steps=((None, OVER), (0.4, NEUTRAL)),
            lines=True,
        ),
        _graph(
            "Accepted, by position in the draft",
            "Draft tokens accepted a second, by how far into the draft. Late positions that are "
            "seldom accepted: a shorter draft is cheaper.",
            Query(
                total(
                    f"{_ENGINE}_spec_decode_accepted_tokens_by_position_total{{{ENGINES}}}",
                    "position",
                ),
                "position {{position}}",
            ),
            unit="suffix:tok/s",
            empty="No drafts: speculative decoding is off",
        ),
    ),
)


def _gpu(name: str, how: str = "avg") -> str:
    return _gauge(f"llmtrace_gpu_{name}", "instance", "gpu", how=how, where=INSTANCES)


_MEMORY: Final = promql.either(
    _gpu("memory_total_bytes"), f"{_gpu('memory_used_bytes')} + {_gpu('memory_free_bytes')}"
)
_EACH: Final = "{{instance}} GPU {{gpu}}"

_GPUS: Final = Row(
    "GPUs",
    (
        _graph(
            "Multiprocessor clock",
            "A clock that falls under load is a throttled GPU: look at the next panel for why.",
            Query(_gpu("sm_clock_hertz"), _EACH),
            unit="hertz",
            empty=_NO_GPUS,
            least=None,
        ),
        _graph(
            "Throttled GPUs, by reason",
            "How many GPUs run below their clock, on average. Power: the limit is too low "
            "for the work. Thermal: cooling. A software power cap alone is common under load.",
            Query(
                promql.either(
                    _gauge("llmtrace_gpu_throttled", "reason", where=INSTANCES),
                    total(f"llmtrace_gpu_throttle_seconds_total{{{INSTANCES}}}", "reason"),
                ),
                "{{reason}}",
            ),
            unit="short",
            decimals=0,
            empty="Not reported: these counters are off by default in dcgm-exporter",
            stacked="normal",
        ),
        _graph(
            "Power",
            "Watts drawn. Flat at the limit = power-bound: then clocks fall, and steps take "
            "longer.",
            Query(_gpu("power_watts"), _EACH),
            unit="watt",
            empty=_NO_GPUS,
        ),
        _graph(
            "Memory in use",
            "Of all there is. Engines reserve their share at the start: what matters is the KV "
            "cache above. A rise after the start is a leak, or a neighbour.",
            Query(f"{_gpu('memory_used_bytes')} / ({_MEMORY})", _EACH),
            unit=_FRACTION,
            empty=_NO_GPUS,
            most=1,
        ),
        _graph(
            "Utilization",
            "Share of time with a kernel running: 100 % says that the GPU is not idle, not that "
            "it is full.",
            Query(_gpu("utilization_ratio"), _EACH),
            unit=_FRACTION,
            empty=_NO_GPUS,
            most=1,
        ),
        _graph(
            "Temperature",
            "Throttling begins around 85 °C, that of memory later. One GPU hotter than its "
            "neighbours: its cooling, or its work.",
            Query(_gpu("temperature_celsius", how="max"), _EACH),
            unit="celsius",
            empty=_NO_GPUS,
            least=None,
        ),
    ),
    collapsed=True,
)

_TARGETS: Final = Row(
    "Is this page to be trusted?",
    (
        table(
            "What the collector reads",
            "Down, slow or incomplete targets make the panels above incomplete. "
            "Missing signals: run `llmtrace doctor URL`, which says what to switch on.",
            {
                "up": _gauge("llmtrace_target_up", "instance", how="min", where=INSTANCES),
                "last reading took": _gauge(
                    "llmtrace_target_scrape_seconds", "instance", how="max", where=INSTANCES
                ),
                "signals missing": _gauge(
                    "llmtrace_target_missing_signals", "instance", how="max", where=INSTANCES
                ),
            },
            unit="none",
            empty=NO_ENGINES,
            width=14,
            height=7,
            columns=(
                Column(name="up", unit="bool_yes_no", steps=((None, OVER), (1, WITHIN))),
                Column(name="last reading took", unit="s"),
                Column(name="signals missing", unit="none", steps=((None, NEUTRAL), (1, NEAR))),
            ),
            sort=("up", False),
        ),
        _graph(
            "Readings that failed or came late",
            "A second, by why. A target that is often late has a page too large for the interval.",
            Query(
                total(f"llmtrace_target_failures_total{{{INSTANCES}}}", "instance", "reason"),
                "{{instance}}: {{reason}}",
            ),
            Query(
                total(f"llmtrace_target_late_total{{{INSTANCES}}}", "instance"),
                "{{instance}}: late",
            ),
            unit="ops",
            empty="None",
            width=10,
            height=7,
        ),
    ),
    collapsed=True,
)

ENGINE: Final = Board(
    uid="llmtrace-engine",
    title="llmtrace / Engine",
    description="What are the engines, and the GPUs under them, doing?",
    rows=(_SCHEDULER, _REQUEST, _WORK, _GPUS, _TARGETS),
    variables=(
        *variables.ENGINE_PLACES,
        variables.ENGINE_MODEL,
        variables.INSTANCE,
        variables.RECORDED,
    ),
    annotations=variables.MARKS,
)
