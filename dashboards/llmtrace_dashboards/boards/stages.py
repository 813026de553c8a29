"""The board about stages: where the time goes, stage by stage, and from which source."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from llmtrace.display.colours import NEAR, NEUTRAL, OVER, STAGE_COLOURS, WITHIN
from llmtrace_dashboards import promql
from llmtrace_dashboards.boards import shared_panels
from llmtrace_dashboards.panels import Board, Column, Panel, Query, Row, Step, Variable
from llmtrace_dashboards.promql import RANGE, SUCCEEDED, mean, quantile, total
from llmtrace_dashboards.variables import MARKS, RECORDED, REQUESTS

_STAGE: Final = "llmtrace_stage_duration_seconds"
_FRACTION: Final = "percentunit"
# Of requests for which a stage is known.
_KNOWN_STEPS: Final[tuple[Step, ...]] = ((None, NEUTRAL), (0.5, NEAR), (0.95, WITHIN))

_BY_PROMPT: Final = promql.share(
    *(
        total(f"llmtrace_prompt_ttft_{what}_total{{{SUCCEEDED}}}", "over", "le")
        for what in ("seconds", "requests")
    )
)

_TIME: Final = Row(
    "Where does the time go?",
    (
        replace(shared_panels.STAGES_OVER_TIME, width=14, height=9),
        replace(shared_panels.ANATOMY, width=10, height=9),
        replace(
            shared_panels.STAGES_OVER_TIME,
            title="Each stage's share of the time",
            description="The same means, as shares of the whole. More load at the same mix leaves "
            "the shares as they are, but for `queue`; longer prompts widen `prefill`, longer "
            "answers `decode`.",
            stacked="percent",
            unit="s",
            width=14,
            height=11,
            least=None,
        ),
        shared_panels.table(
            "Percentiles of each stage (do not add)",
            "Each stage by itself. Percentiles do not add up: the requests that are "
            "slow in one stage are seldom those that are slow in another. To see what a slow "
            "request is made of, read the anatomy above.",
            {
                "mean": mean(_STAGE, "stage", window=RANGE),
                "p50": quantile(0.5, _STAGE, "stage", window=RANGE),
                "p95": quantile(0.95, _STAGE, "stage", window=RANGE),
                "p99": quantile(0.99, _STAGE, "stage", window=RANGE),
            },
            unit="s",
            empty=shared_panels.NO_REQUESTS,
            width=10,
            height=11,
            columns=(Column(name="stage", width=130, link=shared_panels.ROW_TO_STAGE),),
            sort=("p95", True),
        ),
        shared_panels.graph(
            "p95 of each stage (do not add)",
            "For seeing which stage's tail moved, and when. A stage that is not "
            "reported has no line here: see the last row.",
            Query(quantile(0.95, _STAGE, "stage"), "{{stage}}"),
            unit="s",
            empty=shared_panels.NO_REQUESTS,
            colours=STAGE_COLOURS,
            width=24,
            height=9,
            link=shared_panels.TO_STAGE,
        ),
        shared_panels.graph(
            "Whole request: p50, p95 and p99",
            "Of the requests that succeeded. A p99 that moves without the p95 is a "
            "few requests: look at which, by an exemplar or in the collector's list; one that "
            "moves with it is everybody's.",
            *(
                Query(quantile(q, "llmtrace_e2e_seconds"), f"p{100 * q:g}")
                for q in (0.5, 0.95, 0.99)
            ),
            unit="s",
            empty=shared_panels.NO_REQUESTS,
        ),
        shared_panels.graph(
            "Time to first token, by prompt length",
            "Mean time to the first token of the prompts of each length. Flat while "
            "TTFT rises: prompts are longer, and take what their length takes. Rising: the same "
            "prompt takes longer, in a queue, without its cached prefix, or on a slower engine.",
            Query(_BY_PROMPT, "over {{over}} tokens"),
            unit="s",
            empty="No TTFT, or no prompt tokens: clients must ask for usage",
        ),
    ),
)


def _share_of(metric: str) -> str:
    requests = total(f"llmtrace_requests_total{{{SUCCEEDED}}}")
    return promql.share(total(f"{metric}{{{SUCCEEDED}}}"), requests)


_HITS: Final = _share_of("llmtrace_cache_hits_total")

_OUTCOMES: Final = Row(
    "How did requests end?",
    (
        replace(shared_panels.RATE, width=9, height=7),
        replace(shared_panels.OUTCOMES, width=9, height=7),
        replace(shared_panels.NOT_SUCCEEDED, width=6, height=7),
        shared_panels.graph(
            "Answered by a response cache",
            "Share of the requests that succeeded whose response came from a cache, "
            "where a gateway or server reports that. A fall makes every percentile worse while "
            "each request that misses is as fast as before: ask why it misses.",
            Query(_HITS, "hit"),
            Query(f"1 - {_HITS}", "miss"),
            unit=_FRACTION,
            decimals=1,
            empty=shared_panels.NO_REQUESTS,
            stacked="normal",
            most=1,
            height=6,
        ),
        shared_panels.graph(
            "Streamed",
            "Share of the requests that succeeded whose response came as a stream. A "
            "response that is not streamed shows nothing before its end: a fall is a longer wait "
            "for the first content, which no histogram of TTFT has.",
            Query(_share_of("llmtrace_streamed_requests_total"), "streamed"),
            unit=_FRACTION,
            decimals=1,
            empty=shared_panels.NO_REQUESTS,
            most=1,
            height=6,
        ),
    ),
)

_SPREAD: Final = Row(
    "How are they spread?",
    (
        shared_panels.heat(
            "Whole request",
            "llmtrace_e2e_seconds",
            "Every request that succeeded, by how long it took. Two bands = two kinds of request: "
            "a cache that hits or not, two routes, two replicas.",
        ),
        shared_panels.heat(
            "Time to first token",
            "llmtrace_ttft_seconds",
            "Queueing smears this upwards; a second, sharp band above the first is long prompts.",
        ),
        shared_panels.heat(
            "Stage: $stage",
            _STAGE,
            "The stage chosen at the top, of every request that succeeded and knows it.",
            where=f'{SUCCEEDED}, stage="$stage"',
        ),
        shared_panels.heat(
            "Gaps between chunks",
            "llmtrace_inter_chunk_gap_seconds",
            "Waits for a chunk after the first: what a user feels as stutter. Prefills of other "
            "people's long prompts show as a band far above the rest.",
            empty=shared_panels.NO_GAPS,
        ),
    ),
    collapsed=True,
)

_UNKNOWN: Final = f"llmtrace_stage_unknown_total{{{SUCCEEDED}}}"
_KNOWN: Final = f"{_STAGE}_count{{{SUCCEEDED}}}"


def _known(window: str) -> str:
    known = total(_KNOWN, "stage", window=window)
    unknown = total(_UNKNOWN, "stage", window=window)
    return promql.share(known, f"{known} + {unknown}")


_SOURCES: Final = Row(
    "What is known, and from which source?",
    (
        shared_panels.graph(
            "Requests that report each stage",
            "Share of requests for which a stage is known. 0 % = not reported by "
            "anybody, which is not 0 s: its time is in `first_chunk` or `unattributed`. The page "
            "on engines says which setting makes an engine report it.",
            Query(f"sort_desc({_known(RANGE)})", "{{stage}}", instant=True),
            kind="bargauge",
            unit=_FRACTION,
            decimals=0,
            empty=shared_panels.NO_REQUESTS,
            steps=_KNOWN_STEPS,
            most=1,
            width=8,
            height=9,
        ),
        shared_panels.graph(
            "Requests whose stage is not reported",
            "Requests a second for which a stage is not reported. A line that begins "
            "at a deploy: a header, a flag or the usage chunk got lost on the way.",
            Query(f"{total(_UNKNOWN, 'stage')} > 0", "{{stage}} not reported"),
            unit="reqps",
            empty="Every stage of every request is known",
            colours={f"{stage} not reported": hue for stage, hue in STAGE_COLOURS.items()},
            width=8,
            height=9,
        ),
        Panel(
            kind="table",
            title="Source of each stage",
            description="Requests by stage and source. `engine_window` is an average over a "
            "scrape and `client_bound` a bound: both are approximate.",
            queries=(
                Query(
                    total(
                        f"llmtrace_stage_source_total{{{SUCCEEDED}}}",
                        "stage",
                        "source",
                        window=RANGE,
                    )
                    + " > 0",
                    instant=True,
                    form="table",
                ),
            ),
            unit="locale",
            decimals=0,
            empty=shared_panels.NO_REQUESTS,
            width=8,
            height=9,
            transformations=(
                (
                    "organize",
                    {
                        "excludeByName": {"Time": True},
                        "indexByName": {"stage": 0, "source": 1, "Value": 2},
                        "renameByName": {"Value": "requests"},
                    },
                ),
            ),
            sort=("stage", False),
        ),
        shared_panels.graph(
            "Time that could not be split",
            "`unattributed`, as a share of all the time requests took. It grows when "
            "an engine stops telling its queue and prefill. Above a tenth, trust no attribution.",
            Query(promql.stage_share("unattributed"), "unattributed"),
            unit=_FRACTION,
            decimals=1,
            empty=shared_panels.NO_REQUESTS,
            colours={"unattributed": STAGE_COLOURS["unattributed"]},
            steps=((None, NEUTRAL), (0.1, OVER)),
            lines=True,
            width=24,
            height=6,
        ),
    ),
    collapsed=True,
)

STAGES: Final = Board(
    uid="llmtrace-stages",
    title="llmtrace / Stage breakdown",
    description="Where does the time go, stage by stage, and who says so?",
    rows=(_TIME, _OUTCOMES, _SPREAD, _SOURCES),
    variables=(
        *REQUESTS,
        Variable(
            name="stage",
            label="Stage",
            description="Whose spread is shown.",
            choices=("queue", *(stage for stage in STAGE_COLOURS if stage != "queue")),
        ),
        RECORDED,
    ),
    annotations=MARKS,
)
