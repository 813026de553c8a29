"""The timings that each engine reports of a request, and the stage that each of them is.

Engines use one name for different times: "prefill" begins where the request was scheduled (vLLM),
where it was handed to the engine and may still queue there (SGLang's span, Dynamo), or where the
slot began (llama.cpp). So each figure is listed with the two events that it lies between. If these
bound no stage, the figure is not used: listing it keeps it from being taken for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from llmtrace.core.stages import EngineFigures, Reported, Source, reported

Event = Literal[
    "received",  # the server that reports has the request
    "dispatched",  # it has handed it to an engine, or to the engine's scheduler
    "queued",  # the engine's scheduler has it
    "scheduled",  # the engine begins to work on it, for the first time
    "first_token",  # the engine has the first token
    "last_token",  # the engine has the last token
    "finished",  # the server that reports is done with it
    "unclear",  # its documents do not say where it begins
]
Carrier = Literal["response", "span", "stage span", "plugin"]

# What lies between two events, where that is a stage or a part of one.
STAGE_OF: Final[Mapping[tuple[Event, Event], str]] = {
    ("received", "dispatched"): "gateway",
    ("queued", "scheduled"): "queue",
    ("scheduled", "first_token"): "prefill",
    ("first_token", "last_token"): "decode",
}

_SECOND: Final = 1_000_000_000
_MS: Final = 1_000_000
_MAX_COUNT: Final = 1 << 53
_MAPPINGS: Final = (dict, Mapping)  # most are dictionaries, and the other check is slow


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: where it is, and between which two events it lies.

    Attributes:
        path: the keys that lead to it, joined by dots; of a span, the attribute's name.
        since: the event it begins with.
        until: the event it ends with.
        unit_ns: nanoseconds in the unit it is given in.
        upto: the key of the later of two points in time, by one clock; "" = `path` is a duration.
        stage: what lies between its events; `None` = no stage.
        keys: those that lead to it, in an answer.
    """

    path: str
    since: Event
    until: Event
    unit_ns: int = _MS
    upto: str = ""
    stage: str | None = field(init=False)
    keys: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stage", STAGE_OF.get((self.since, self.until)))
        object.__setattr__(self, "keys", tuple(self.path.split(".")))


@dataclass(frozen=True, slots=True)
class Report:
    """What one engine or gateway reports of a request by one carrier.

    Attributes:
        name: of the engine or gateway, as profiles call it.
        title: the same, for people.
        carrier: how it comes.
        versions: that were read or run.
        setting: what turns it on.
        figures: what is in it.
        key: of an answer: where the report is; "" elsewhere.
        type: what its key `type` must say; "" = it has none.
        counts: row fields by their paths.
    """

    name: str
    title: str
    carrier: Carrier
    versions: str
    setting: str
    figures: tuple[Figure, ...]
    key: str = ""
    type: str = ""
    counts: tuple[tuple[str, str], ...] = ()


_SPAN: Final = "gen_ai.latency."

VLLM_ANSWER: Final = Report(
    "vllm", "vLLM", "response", "0.25 to 0.33", "`--enable-per-request-metrics`",
    (
        Figure("queue_time_ms", "queued", "scheduled"),
        Figure("time_to_first_token_ms", "scheduled", "first_token"),
        Figure("generation_time_ms", "first_token", "last_token"),
    ),
    key="metrics",
    counts=(
        ("spec_drafted", "speculative_decoding.num_draft_tokens"),
        ("spec_accepted", "speculative_decoding.num_accepted_draft_tokens"),
    ),
)  # fmt: skip
LLAMA_CPP_ANSWER: Final = Report(
    "llama_cpp", "llama.cpp", "response", "2025 to 2026", "always on",
    (
        Figure("prompt_ms", "scheduled", "first_token"),
        Figure("predicted_ms", "first_token", "last_token"),
    ),
    key="timings",
    counts=(
        ("cached_tokens", "cache_n"),
        ("spec_drafted", "draft_n"),
        ("spec_accepted", "draft_n_accepted"),
    ),
)  # fmt: skip
DYNAMO_ANSWER: Final = Report(
    "dynamo", "NVIDIA Dynamo", "response", "1.6", '`nvext.extra_fields: ["timing"]` in request',
    (
        Figure("timing.prefill_wait_time_ms", "received", "dispatched"),
        Figure("timing.prefill_time_ms", "dispatched", "first_token"),
        Figure("timing.ttft_ms", "received", "first_token"),
        Figure("timing.total_time_ms", "received", "finished"),
    ),
    key="nvext",
)  # fmt: skip
NIM_ANSWER: Final = Report(
    "nim", "NVIDIA NIM", "response", "1.14", "`NIM_PER_REQ_METRICS_ENABLE=1`",
    (
        Figure("time_in_queue_in_ms", "queued", "scheduled"),
        Figure("response_tokens.time_to_first_token_in_ms", "unclear", "first_token"),
        Figure("generation_time_in_ms", "unclear", "finished"),
    ),
    key="stats",
    type="NIM LLM Model Stats",
)  # fmt: skip
SGLANG_ANSWER: Final = Report(
    "sglang", "SGLang", "response", "0.5.23",
    "`--enable-metrics`; `return_meta_info` in the request",
    (
        Figure("queue_time", "queued", "scheduled", _SECOND),
        Figure("forward_entry_time", "scheduled", "first_token", _SECOND, "prefill_finished_time"),
        Figure("e2e_latency", "received", "finished", _SECOND),
    ),
    key="meta_info",
    counts=(("cached_tokens", "cached_tokens"),),
)  # fmt: skip

VLLM_SPAN: Final = Report(
    "vllm", "vLLM, TensorRT-LLM", "span", "vLLM 0.10.2 to 0.33", "`--otlp-traces-endpoint`",
    (
        Figure(_SPAN + "time_in_queue", "queued", "scheduled", _SECOND),
        Figure(_SPAN + "time_in_model_prefill", "scheduled", "first_token", _SECOND),
        Figure(_SPAN + "time_in_model_decode", "first_token", "last_token", _SECOND),
        Figure(_SPAN + "time_to_first_token", "received", "first_token", _SECOND),
        Figure(_SPAN + "e2e", "received", "finished", _SECOND),
    ),
)  # fmt: skip
# The same names without `time_in_queue`: its prefill holds the queue.
SGLANG_SPAN: Final = Report(
    "sglang", "SGLang", "span", "0.5.23", "`--enable-trace --otlp-traces-endpoint`",
    (
        Figure(_SPAN + "time_in_model_prefill", "dispatched", "first_token", _SECOND),
        Figure(_SPAN + "time_in_model_decode", "first_token", "last_token", _SECOND),
        Figure(_SPAN + "time_to_first_token", "received", "first_token", _SECOND),
        Figure(_SPAN + "e2e", "received", "finished", _SECOND),
    ),
)  # fmt: skip
PLUGIN: Final = Report(
    "vllm", "vLLM", "plugin", "0.20 to 0.33", "`LLMTRACE_VLLM_PLUGIN=1`", VLLM_SPAN.figures
)
# A span each, by name; its own duration is the figure. Chunks of one prefill add up.
SGLANG_SLICES: Final = Report(
    "sglang", "SGLang", "stage span", "0.5.23", "`--enable-trace --otlp-traces-endpoint`",
    (
        Figure("prefill_waiting", "queued", "scheduled", 1),
        Figure("prefill_forward", "scheduled", "first_token", 1),
        Figure("chunked_prefill", "scheduled", "first_token", 1),
    ),
)  # fmt: skip
# The sidecar's spans, in milliseconds. What it calls the true TTFT ends where it asks for decode.
LLM_D_SPAN: Final = Report(
    "llm_d", "llm-d, its sidecar", "span", "0.10", "`--tracing`",
    (
        Figure("llm_d.pd_proxy.coordinator_overhead_ms", "received", "dispatched"),
        Figure("llm_d.pd_proxy.prefill_duration_ms", "dispatched", "first_token"),
        Figure("llm_d.pd_proxy.decode_duration_ms", "dispatched", "finished"),
        Figure("llm_d.pd_proxy.true_ttft_ms", "received", "unclear"),
        Figure("llm_d.pd_proxy.total_duration_ms", "received", "finished"),
    ),
)  # fmt: skip

IN_ANSWERS: Final = (VLLM_ANSWER, LLAMA_CPP_ANSWER, DYNAMO_ANSWER, NIM_ANSWER, SGLANG_ANSWER)
REPORTS: Final = (
    *IN_ANSWERS, VLLM_SPAN, SGLANG_SPAN, SGLANG_SLICES, PLUGIN, LLM_D_SPAN,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """What a report says of one request.

    Attributes:
        figures: of the engine.
        gateway: the self time of the gateway that reports; `None` = it reports none.
        counts: row fields.
    """

    figures: EngineFigures
    gateway: Reported | None
    counts: Mapping[str, int]


def read_answer(report: Report, value: Any) -> Reading | None:
    """Read a report out of what an answer has at its key; `None` = this is not one."""
    if not isinstance(value, _MAPPINGS) or (report.type and value.get("type") != report.type):
        return None
    times: dict[str, Any] = dict(_times(report, value))
    counts = {
        field: count
        for field, path in report.counts
        if (count := _count(_at(value, path.split(".")))) is not None
    }
    gateway = times.pop("gateway", None)
    return Reading(EngineFigures(**times), gateway, counts) if times or gateway or counts else None


def read_attributes(
    report: Report, attributes: Mapping[str, Any], source: Source
) -> dict[str, Reported]:
    """Read the stages that a span's attributes report, by name."""
    return {
        figure.stage: time
        for figure in report.figures
        if figure.stage is not None
        and (time := reported(attributes.get(figure.path), figure.unit_ns, source)) is not None
    }


def _times(report: Report, value: Mapping[str, Any]) -> Iterator[tuple[str, Reported]]:
    for figure in report.figures:
        if figure.stage is None:
            continue
        at = _at(value, figure.keys)
        if figure.upto:
            end = value.get(figure.upto)
            at = end - at if _is_number(at) and _is_number(end) else None
        time = reported(at, figure.unit_ns, "engine_inband")
        if time is not None:
            yield figure.stage, time


def _at(value: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, _MAPPINGS) else None
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MAX_COUNT else None
