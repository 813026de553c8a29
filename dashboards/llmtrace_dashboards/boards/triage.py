"""The board for triage: a p95 moved; which stage, where, and what next?"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from llmtrace.display.colours import NEUTRAL, OVER, STAGE_COLOURS, WITHIN
from llmtrace_dashboards import promql
from llmtrace_dashboards.boards import shared_panels
from llmtrace_dashboards.panels import Board, Column, Panel, Query, Row, Step
from llmtrace_dashboards.promql import INSTANCES, RANGE, SUCCEEDED, anatomy, named, quantile, total
from llmtrace_dashboards.variables import BEFORE, FULL, INSTANCE, MARKS, RECORDED_BEFORE, REQUESTS

_E2E: Final = "llmtrace_e2e_seconds"
_TTFT: Final = "llmtrace_ttft_seconds"
_TPOT: Final = "llmtrace_tpot_seconds"
_FRACTION: Final = "percentunit"
_BEFORE: Final = "$before"
_NO_BEFORE: Final = "Nothing to compare with: no requests so far back"
# Slower is bad, faster is good; a tenth of a second either way is neither.
_MOVED: Final[tuple[Step, ...]] = ((None, WITHIN), (-0.05, NEUTRAL), (0.05, OVER))


_WAITS: Final = (
    f"llmtrace_stage_duration_seconds_sum{{{SUCCEEDED}, "
    'stage=~"network|gateway|queue|prefill|first_chunk"}'
)

# What moved and what it may be; `{...}` becomes a link where runbooks are served.
_RUNBOOKS: Final = (
    ("queue", ("queue_saturation", "kv_exhaustion", "replica_imbalance", "head_of_line",
               "lora_slots", "engine_paused")),
    ("prefill", ("long_prompts", "prefix_cache_collapse", "gpu_throttle", "kv_transfer")),
    ("first_chunk", ("frontend_cpu", "proxy_buffering", "cold_start", "grammar_compilation",
                     "busy_client")),
    ("decode", ("longer_outputs", "batch_size", "low_spec_acceptance", "gpu_throttle")),
    ("network, gateway", ("network_path", "gateway_overhead", "rate_limit_retries",
                          "client_gate")),
    ("render, tools", ("slow_renderer", "serial_tools")),
    ("outcomes", ("engine_down", "midstream_errors", "idle_timeout", "client_give_ups")),
)  # fmt: skip

_NEXT_STEPS: Final = (
    "```\nllmtrace triage --after ${__from:date:iso}/${__to:date:iso}\n```\n\n"
    "It says which stage moved, whether the workload or the system changed, who is hit, the "
    "likely cause and what to do. Or begin with the stage that moved:\n\n"
    "| moved | may be |\n|---|---|\n"
    + "\n".join(
        f"| **{moved}** | {' · '.join(f'{{{cause}}}' for cause in causes)} |"
        for moved, causes in _RUNBOOKS
    )
)


def _rate(before: str) -> str:
    requests = f"llmtrace_requests_total{{{SUCCEEDED}}}"
    return f"{total(requests, window=RANGE, before=before)} / $__range_s"


def _tokens(kind: str, before: str) -> str:
    tokens = f'llmtrace_tokens_total{{{SUCCEEDED}, type="{kind}"}}'
    requests = f"llmtrace_requests_total{{{SUCCEEDED}}}"
    return (
        f"{total(tokens, window=RANGE, before=before)} "
        f"/ {total(requests, window=RANGE, before=before)}"
    )


def _cached(before: str) -> str:
    cached, prompt = (
        total(f'llmtrace_tokens_total{{{SUCCEEDED}, type="{kind}"}}', window=RANGE, before=before)
        for kind in ("cached_input", "input")
    )
    return f"100 * {cached} / {prompt}"


def _workload(before: str) -> str:
    quantities = {
        "requests a second": _rate(before),
        "prompt tokens a request": _tokens("input", before),
        "output tokens a request": _tokens("output", before),
        "prompt tokens cached, %": _cached(before),
    }
    return promql.either(*(named(expr, name, "quantity") for name, expr in quantities.items()))


def _moved(title: str, metric: str, what: str) -> Panel:
    return shared_panels.stat(
        title,
        f"{what} in the time shown, and in one as long that ended $before earlier. "
        "Small samples move by themselves: `llmtrace triage` says whether a difference is real.",
        {
            "now": quantile(0.95, metric, window=RANGE),
            "before": quantile(0.95, metric, window=RANGE, before=_BEFORE),
        },
        unit="s",
        empty="no requests",
        width=6,
        height=4,
    )


_STAGES_NOW: Final = anatomy()
_STAGES_BEFORE: Final = anatomy(before=_BEFORE)
_STAGE_CHANGE: Final = f"{_STAGES_NOW} - on (stage) ({_STAGES_BEFORE})"

_WHAT_MOVED: Final = Row(
    "What moved?",
    (
        _moved("p95, whole request", _E2E, "p95 of the whole request"),
        _moved("p95, TTFT", _TTFT, "p95 of the time to first content"),
        _moved("p95, TPOT", _TPOT, "p95 of the time of a token after the first"),
        replace(shared_panels.NOT_SUCCEEDED, width=6, height=4),
        shared_panels.graph(
            "p95 now, and $before earlier",
            "The thick line leaves the thin one where the trouble began. Dots are "
            "single requests: click one to open its trace, if the data source knows where traces "
            "are. Blue marks are findings of llmtrace triage, red ones alerts.",
            Query(quantile(0.95, _E2E), "now", exemplar=True),
            Query(quantile(0.95, _E2E, before=_BEFORE), "before"),
            unit="s",
            empty=shared_panels.NO_REQUESTS,
            colours={"now": "#FF8833", "before": NEUTRAL},
            height=9,
        ),
        shared_panels.graph(
            "Which stage moved? Change of the p95's anatomy",
            "Seconds each stage adds to the p95 request, now less before; the bars "
            "sum to the change of the p95. The longest is the stage to look at. If `queue` grew "
            "because prompts did, it is the workload and not the system: see the next row.",
            Query(f"sort_desc({_STAGE_CHANGE})", "{{stage}}", instant=True),
            kind="bargauge",
            unit="s",
            empty=_NO_BEFORE,
            least=None,
            steps=_MOVED,
            height=9,
        ),
        shared_panels.table(
            "The p95 request before and now, by stage",
            "The same as a table; each column adds up to the p95 of its time.",
            {"before": _STAGES_BEFORE, "now": _STAGES_NOW, "change": _STAGE_CHANGE},
            unit="s",
            empty=_NO_BEFORE,
            width=12,
            height=11,
            columns=(Column(name="change", unit="s", steps=_MOVED),),
            sort=("change", True),
        ),
        shared_panels.table(
            "Workload or system?",
            "The workload, before and now. Longer prompts make prefill slower, "
            "longer outputs make requests longer, more requests make queues: then it is the "
            "workload that changed. If none of these moved, the system did.",
            {"before": _workload(_BEFORE), "now": _workload("")},
            order=("quantity", "before", "now"),
            then=(
                (
                    "calculateField",
                    {
                        "mode": "binary",
                        "alias": "times",
                        "binary": {"left": "now", "operator": "/", "right": "before"},
                    },
                ),
            ),
            unit="none",
            decimals=1,
            empty=_NO_BEFORE,
            width=12,
            height=11,
            columns=(
                Column(
                    name="times",
                    unit="suffix:x",
                    decimals=2,
                    steps=((None, "#5794F2"), (0.8, NEUTRAL), (1.25, "#FF8833")),
                ),
            ),
        ),
    ),
)


def _by(label: str, title: str, empty: str, more: str = "") -> Panel:
    named_only = f'{SUCCEEDED}, {label}!=""'
    return shared_panels.table(
        title,
        f"The p95 of each {label} before and now. One line that moved = the trouble "
        f"is in that {label}; all of them = it is behind all of them.{more}",
        {
            "p95 now": quantile(0.95, _E2E, label, where=named_only, window=RANGE),
            "p95 before": quantile(
                0.95, _E2E, label, where=named_only, window=RANGE, before=_BEFORE
            ),
            "requests": total(f"llmtrace_requests_total{{{named_only}}}", label, window=RANGE),
        },
        order=(label, "requests", "p95 before", "p95 now"),
        unit="s",
        empty=empty,
        width=8,
        height=7,
        columns=(Column(name="requests", unit="locale", decimals=0),),
        sort=("p95 now", True),
    )


def _most(gauge: str) -> str:
    return f"max by (instance) (max_over_time({gauge}{{{INSTANCES}}}[{RANGE}]))"


def _least(gauge: str) -> str:
    return f"min by (instance) (min_over_time({gauge}{{{INSTANCES}}}[{RANGE}]))"


def _engine_p95(which: str) -> str:
    metric = f"llmtrace_engine_{which}_seconds"
    return quantile(0.95, metric, "instance", where=INSTANCES, window=RANGE)


_PREEMPTED: Final = f"llmtrace_engine_preemptions_total{{{INSTANCES}}}"

_WHO: Final = Row(
    "What is affected?",
    (
        _by("region", "Regions", "No regions: set LLMTRACE_REGION where the application runs"),
        _by("route", "Routes", "No routes: name them with @trace(route=...)"),
        _by(
            "tenant",
            "Tenants",
            "Tenants are not separated: an application's own metrics do that, by "
            "init(tenant_metrics=True)",
            " Tenants are labels only if that is set.",
        ),
        shared_panels.table(
            "Slowest replicas",
            "Each engine in the time shown, the slowest TTFT first. One replica "
            "alone: drain it. All alike, and requests waiting: capacity. Not chosen by model, "
            "route or region, which engines do not know.",
            {
                "p95 TTFT": _engine_p95("ttft"),
                "p95 queue": _engine_p95("queue"),
                "p95 prefill": _engine_p95("prefill"),
                "most waiting": _most("llmtrace_engine_requests_waiting"),
                "most KV used": _most("llmtrace_engine_kv_cache_usage_ratio"),
                "preempted": total(_PREEMPTED, "instance", window=RANGE),
                "always up": _least("llmtrace_target_up"),
            },
            unit="s",
            empty=shared_panels.NO_ENGINES,
            width=24,
            height=7,
            columns=(
                Column(name="most waiting", unit="short", decimals=0),
                Column(name="most KV used", unit=_FRACTION, decimals=0, steps=FULL),
                Column(name="preempted", unit="short", decimals=0),
                Column(name="always up", unit="bool_yes_no", steps=((None, OVER), (1, WITHIN))),
            ),
            sort=("p95 TTFT", True),
        ),
        replace(shared_panels.OUTCOMES, width=12, height=7),
        shared_panels.graph(
            "Mean time in each stage before the first content",
            "What TTFT is made of, over time. The stage that widens first is usually "
            "the cause; those that follow are its consequences.",
            Query(
                f"{total(_WAITS, 'stage')} / on () group_left () "
                f"{total(f'llmtrace_requests_total{{{SUCCEEDED}}}')}",
                "{{stage}}",
            ),
            unit="s",
            empty=shared_panels.NO_REQUESTS,
            stacked="normal",
            colours={
                stage: colour
                for stage, colour in STAGE_COLOURS.items()
                if stage not in {"decode", "render", "unattributed"}
            },
            width=12,
            height=7,
        ),
    ),
)

_NEXT: Final = Row(
    "What next?",
    (
        Panel(
            kind="text",
            title="Let llmtrace decide",
            description="The command for the time shown: it tells workload from regression, names "
            "the cohort and the cause, and says what to do.",
            text=_NEXT_STEPS,
            width=24,
            height=12,
        ),
    ),
)

TRIAGE: Final = Board(
    uid="llmtrace-triage",
    title="llmtrace / Triage",
    description="A p95 moved: which stage, where, and what next?",
    rows=(_WHAT_MOVED, _WHO, _NEXT),
    variables=(*REQUESTS, INSTANCE, BEFORE, RECORDED_BEFORE),
    annotations=MARKS,
)
