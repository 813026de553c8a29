"""The board for the client's side: the network, retries, and a slow consumer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from llmtrace.display.colours import NEUTRAL, OVER, STAGE_COLOURS
from llmtrace_dashboards import promql
from llmtrace_dashboards.boards import shared_panels
from llmtrace_dashboards.panels import Board, Query, Row
from llmtrace_dashboards.promql import SUCCEEDED, quantile, total
from llmtrace_dashboards.variables import MARKS, RECORDED, REQUESTS

_STAGE: Final = "llmtrace_stage_duration_seconds"
_GAP: Final = "llmtrace_inter_chunk_gap_seconds"
_FRACTION: Final = "percentunit"
_PHASES: Final = f"llmtrace_network_phase_seconds_total{{{SUCCEEDED}}}"
_REQUESTS: Final = f"llmtrace_requests_total{{{SUCCEEDED}}}"


def _stage(stage: str, q: float, legend: str) -> Query:
    return Query(quantile(q, _STAGE, where=f'{SUCCEEDED}, stage="{stage}"'), legend)


_READER: Final = Row(
    "Is the consumer slow?",
    (
        shared_panels.graph(
            "Render: the consumer's own time",
            "Time in which the application, or the browser, did not ask the stream "
            "for more. A slow consumer is not a slow server: if this grows, batch what is drawn "
            "(every 50 ms, say) and parse Markdown once a batch, not once a token.",
            _stage("render", 0.5, "p50"),
            _stage("render", 0.95, "p95"),
            unit="s",
            empty="This stage is not reported",
            colours={"p50": NEUTRAL, "p95": STAGE_COLOURS["render"]},
            width=8,
        ),
        shared_panels.graph(
            "The client's part of the whole request",
            "How much of what the user waited was the consumer's own time (render), "
            "and how much the client was too busy to read what had arrived: inside other stages, "
            "and at least so much. Above a tenth it is worth more to fix the client than the "
            "engine.",
            Query(promql.stage_share("render"), "render"),
            Query(
                promql.share(
                    total(f"llmtrace_client_lag_seconds_total{{{SUCCEEDED}}}"),
                    total(f"llmtrace_e2e_seconds_sum{{{SUCCEEDED}}}"),
                ),
                "received, not read",
            ),
            unit=_FRACTION,
            decimals=1,
            empty=shared_panels.NO_REQUESTS,
            colours={"render": STAGE_COLOURS["render"]},
            steps=((None, NEUTRAL), (0.1, OVER)),
            lines=True,
            width=8,
        ),
        shared_panels.graph(
            "Tokens a second, as one user sees them",
            "One over the time per token: half of all responses come at least this "
            "fast, and 95 % of them at the lower figure. People read about 5 to 10 tokens a "
            "second; much more is for machines.",
            Query(f"1 / {quantile(0.5, 'llmtrace_tpot_seconds')}", "half of responses"),
            Query(f"1 / {quantile(0.95, 'llmtrace_tpot_seconds')}", "95 %"),
            unit="suffix:tok/s",
            empty=shared_panels.NO_REQUESTS,
            width=8,
        ),
        shared_panels.heat(
            "Gaps between chunks",
            _GAP,
            "Every wait for a chunk after the first. What lies above half a second is felt as a "
            "stall.",
            empty=shared_panels.NO_GAPS,
        ),
        shared_panels.graph(
            "Stalls: chunks that took longer than 0.5 s and 1 s",
            "Share of all chunks. Rare stalls are other people's prefills or "
            "preemptions; regular ones a proxy that buffers.",
            *(
                Query(
                    "1 - "
                    + promql.share(
                        total(f'{_GAP}_bucket{{{SUCCEEDED}, le="{edge}"}}'),
                        total(f"{_GAP}_count{{{SUCCEEDED}}}"),
                    ),
                    legend,
                )
                for edge, legend in (("0.5", "> 0.5 s"), ("1.0", "> 1 s"))
            ),
            unit=_FRACTION,
            decimals=2,
            empty=shared_panels.NO_GAPS,
        ),
    ),
)

_NETWORK: Final = Row(
    "What does the way there cost?",
    (
        shared_panels.graph(
            "Network, by sub-phase (means, which add up)",
            "Mean time of a request on the way to the gateway. `client_wait` is "
            "waiting for a connection from the client's own pool: raise its limit. `dns`, "
            "`connect` and `tls` above zero all the time = connections are not kept. `rtt` is "
            "distance.",
            Query(
                f"{total(_PHASES, 'phase')} / on () group_left () {total(_REQUESTS)}", "{{phase}}"
            ),
            unit="s",
            empty="No sub-phases: the client's HTTP hooks are not in place",
            stacked="normal",
            width=10,
        ),
        shared_panels.graph(
            "Network and gateway, p95",
            "Each by itself; they do not add. Gateway time is what gateways report of "
            "themselves, and attempts they rejected with the wait after them.",
            *(_stage(stage, 0.95, stage) for stage in ("network", "gateway")),
            unit="s",
            empty="These stages are not reported",
            colours={stage: STAGE_COLOURS[stage] for stage in ("network", "gateway")},
            width=7,
        ),
        shared_panels.graph(
            "Retries a request",
            "HTTP attempts after the first, for each request that ended. Retries hide "
            "429s and 5xx in latency: their time is in `gateway`, or in `network` if no status "
            "came.",
            Query(
                f"{total(f'llmtrace_retries_total{{{promql.REQUESTS}}}')} "
                f"/ {total(f'llmtrace_requests_total{{{promql.REQUESTS}}}')}",
                "retries a request",
            ),
            unit="short",
            decimals=2,
            empty=shared_panels.NO_REQUESTS,
            width=7,
        ),
    ),
)

_ENDS: Final = Row(
    "Do people wait for the end?",
    (
        replace(shared_panels.OUTCOMES, width=10, height=7),
        replace(shared_panels.NOT_SUCCEEDED, width=7, height=7),
        shared_panels.graph(
            "llmtrace's own errors",
            "Things lost or broken inside llmtrace itself, a second. They never reach "
            "the application; they may make these pages incomplete.",
            Query(f"{total('llmtrace_internal_errors_total', 'kind')} > 0", "{{kind}}"),
            unit="ops",
            empty="None: nothing was lost",
            width=7,
            height=7,
        ),
    ),
)

CLIENT: Final = Board(
    uid="llmtrace-client",
    title="llmtrace / Client and render",
    description="What does the client's side add: network, retries, a slow consumer?",
    rows=(_READER, _NETWORK, _ENDS),
    variables=(*REQUESTS, RECORDED),
    annotations=MARKS,
)
