"""Flatten a row to plain JSON, and read it back, by the table of its fields (`row_fields.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from math import isfinite
from sys import float_info
from typing import TYPE_CHECKING, Any, Final

from llmtrace.core import browser_timing, stages
from llmtrace.core.attempts import as_plain, from_plain
from llmtrace.core.browser_timing import IN_JSON, browser_kinds
from llmtrace.core.errors import DataError
from llmtrace.core.json_values import (
    START_FORMS,
    bounded,
    read_duration,
    read_flag,
    read_ns,
    read_reported,
    read_source,
    read_wait,
    start_ns,
)
from llmtrace.core.row_fields import (
    GRANULARITY_S,
    MARKS,
    NEARLY,
    NETWORK,
    OUTCOME_WORDS,
    OUTCOMES,
    RAW,
    REPORTED,
    RowFields,
    outcome_of_status,
)
from llmtrace.core.stages import STAGES, Stages, Timeline, split
from llmtrace.core.tool_calls import flat_part, read_part

if TYPE_CHECKING:
    from llmtrace.core.row import Row

_NS: Final = 1_000_000_000
_ROUNDING_NS: Final = 1_000  # files keep decimal seconds: less than this is no time

# The keys of JSON, and the fields in nanoseconds that they are of.
_MARKS: Final = {f"{line.field}_ns": f"{line.key}_s" for line in MARKS}
_RAW: Final = {f"{line.key}_s": line.field for line in RAW}
_NETWORK: Final = {f"{line.key}_s": line.field for line in NETWORK}
_REPORTS: Final = {line.key: line.field for line in REPORTED}
_DERIVED: Final = ("stream", "e2e_s", "ttft_s", "ttft_arrival_s", "tpot_s", "retry_s")
_KINDS: Final = {
    "str": str, "Outcome": str, "bool": bool, "int": int, "float": int | float,
}  # fmt: skip
_PLAIN: Final = {
    f.name: _KINDS[str(f.type).removesuffix(" | None")]
    for f in fields(RowFields)
    if f.name not in _MARKS
}
_IDENTITY: Final = ("trace_id", "span_id", "service")  # empty = not known: others write none
_WANTED: Final[Mapping[Any, str]] = {str: "text", bool: "true or false", int: "a whole number"}
_MAX: Final = float_info.max


def flat_kinds() -> dict[str, type]:
    """Return the type of each key that `flatten` may write; `object`: a mapping or a list."""
    kinds: dict[str, type] = {"start": int}
    for name, kind in _PLAIN.items():
        kinds[name] = kind if isinstance(kind, type) else float
    kinds |= {"stream": bool, "unwatched": bool, "network_rtt_source": str}
    durations = (
        *stages.PARTITION, "client", *_REPORTS,
        *(f"marked_{when}_{stage}" for when in ("before", "after") for stage in STAGES),
    )  # fmt: skip
    kinds |= dict.fromkeys((f"{name}_s" for name in durations), float)
    kinds |= dict.fromkeys((*_MARKS.values(), *_RAW, *_NETWORK), float)
    kinds |= dict.fromkeys((name for name in _DERIVED if name != "stream"), float)
    kinds |= dict.fromkeys((f"{name}_source" for name in (*STAGES, *_REPORTS)), str)
    kinds |= browser_kinds(IN_JSON)
    nested = ("inconsistent", "attempt_log", "attributes", "response_headers", "parts")
    return kinds | dict.fromkeys(nested, object)


def flatten(row: Row) -> dict[str, Any]:
    """Return a row's JSON-ready keys: durations in seconds, unknown ones left out."""
    timeline, stages = row.timeline, row.stages
    flat: dict[str, Any] = {
        name: value
        for name in _PLAIN
        if (value := getattr(row, name)) is not None and (value or name not in _IDENTITY)
    }
    for field, key in _MARKS.items():
        if (ns := getattr(row, field)) is not None:
            flat[key] = ns / _NS
    for name in _DERIVED:
        if (value := getattr(row, name)) is not None:
            flat[name] = value
    for stage, ns in stages:
        if ns is not None:
            flat[f"{stage}_s"] = ns / _NS
            if (source := stages.sources.get(stage)) is not None:
                flat[f"{stage}_source"] = source
    flat["unattributed_s"] = stages.unattributed / _NS
    if timeline.client is not None:
        flat["client_s"] = timeline.client / _NS
    network = timeline.network
    for key, name in _NETWORK.items():
        if (ns := getattr(network, name)) is not None:
            flat[key] = ns / _NS
    if network.rtt_source is not None:
        flat["network_rtt_source"] = network.rtt_source
    for key, ns in _RAW.items():
        if value := getattr(timeline, ns):
            flat[key] = value / _NS
    for key, name in _REPORTS.items():
        if (reported := getattr(timeline, name)) is not None:
            flat[f"{key}_s"] = reported.ns / _NS
            flat[f"{key}_source"] = reported.source
    for when in ("before", "after"):
        for stage, ns in getattr(timeline, f"marked_{when}").items():
            flat[f"marked_{when}_{stage}_s"] = ns / _NS
    if not timeline.watched:
        flat["unwatched"] = True
    if stages.inconsistent:
        flat["inconsistent"] = list(stages.inconsistent)
    if row.attempt_log:
        flat["attempt_log"] = as_plain(row.attempt_log)
    if row.attributes:
        flat["attributes"] = {
            # JSON has no number for what is not finite.
            name: str(value) if isinstance(value, float) and not isfinite(value) else value
            for name, value in row.attributes.items()
        }
    if row.response_headers:
        flat["response_headers"] = dict(row.response_headers)
    if row.parts:
        flat["parts"] = [flat_part(part) for part in row.parts]
    if row.browser is not None:
        flat |= browser_timing.flatten(row.browser, IN_JSON)
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the row that `flatten` wrote; unknown keys are ignored.

    Raises:
        DataError: the outcome is unknown.
        AttributeError, KeyError, OverflowError, TypeError, ValueError: a key is missing or holds a
            value of the wrong kind, or the stages come to more than the whole wait.
    """
    plain: dict[str, Any] = dict.fromkeys(_IDENTITY, "")
    plain |= {name: value for name in _PLAIN if (value := _plain(flat, name)) is not None}
    marks: dict[str, Any] = {name: read_ns(flat, key) for name, key in _MARKS.items()}
    timeline = _timeline(flat)
    if "outcome" not in plain and (meant := outcome_of_status(plain.get("http_status"))):
        plain["outcome"] = meant
    if plain.get("outcome", "success") not in OUTCOMES:
        raise DataError(f"outcome is {plain['outcome']!r}, not one of {', '.join(OUTCOMES)}")
    attributes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in dict(flat.get("attributes") or {}).items()
    }
    return {
        "timeline": timeline,
        "attributes": attributes,
        "response_headers": _response_headers(flat),
        "browser": browser_timing.unflatten(flat, IN_JSON),
        "attempt_log": from_plain(flat.get("attempt_log")),
        "parts": tuple(read_part(part) for part in flat.get("parts", ())),
        **plain,
        **marks,
    }


def _timeline(flat: Mapping[str, Any]) -> Timeline:
    """Read the measured times, and the written stages where they do not follow from those."""
    raw: dict[str, Any] = {name: read_ns(flat, key) or 0 for key, name in _RAW.items()}
    raw |= {
        name: read_reported(flat, f"{key}_s", f"{key}_source") for key, name in _REPORTS.items()
    }
    timeline = Timeline(
        e2e=read_duration(flat, "e2e_s"),
        ttft=read_wait(flat, "ttft_s"),
        client=read_wait(flat, "client_s"),
        network=stages.Network(
            **{part: read_wait(flat, key) for key, part in _NETWORK.items()},
            rtt_source=read_source(flat, "network_rtt_source"),
        ),
        marked_before=_marked(flat, "before"),
        marked_after=_marked(flat, "after"),
        stream=read_flag(flat, "stream", default=True),
        tpot=read_wait(flat, "tpot_s"),
        watched=not read_flag(flat, "unwatched"),
        **raw,
    )
    written, made = _written(flat, timeline.e2e), split(timeline)
    if written is None:  # of other programs
        written = _known(timeline, made)
    if written is None or replace(written, client=made.client) != made:
        timeline = replace(timeline, written=written)
    return timeline


def _known(timeline: Timeline, made: Stages) -> Stages | None:
    """Return the stages without those that programs which write none do not know; `None` = all."""
    ttft, sources = timeline.ttft, dict(made.sources)
    if ttft is not None and ttft > NEARLY * timeline.e2e + GRANULARITY_S * _NS:
        raise ValueError(
            f"ttft_s is {ttft / _NS:,g} s, longer than e2e_s of {timeline.e2e / _NS:,g} s: are "
            "both in seconds?"
        )
    known = made
    if not made.render:  # how long the consumer took
        sources.pop("render", None)
        known = replace(known, render=None, sources=sources)
    if ttft is None and not made.decode:  # what came after the first content
        sources.pop("decode", None)
        known = replace(known, decode=None, sources=sources)
    return None if known is made else known


def _written(flat: Mapping[str, Any], e2e: int) -> Stages | None:
    """Read the partition of `e2e` nanoseconds that a flat row holds; `None` = it holds none."""
    ns = {stage: read_ns(flat, f"{stage}_s") for stage in STAGES}
    if flat.get("unattributed_s") is None and all(value is None for value in ns.values()):
        return None
    for stage, value in ns.items():
        if value is not None and value < 0:
            msg = f"{stage}_s is {flat[f'{stage}_s']!r}, and time does not run backwards"
            raise ValueError(msg)
    rest = e2e - sum(value for value in ns.values() if value is not None)
    if rest < 0:
        if rest < -_ROUNDING_NS:
            msg = f"the stages come to {(e2e - rest) / _NS:g} s, more than e2e_s of {e2e / _NS:g}"
            raise ValueError(msg)
        largest = max(STAGES, key=lambda stage: ns[stage] or 0)
        ns[largest] = (ns[largest] or 0) + rest
    sources = {
        stage: source
        for stage in STAGES
        if (source := read_source(flat, f"{stage}_source")) and ns[stage] is not None
    }
    inconsistent = tuple(stage for stage in flat.get("inconsistent") or () if stage in STAGES)
    unattributed, client = max(0, rest), read_ns(flat, "client_s")
    return Stages(
        **ns,
        unattributed=unattributed,
        client=None if client is None else min(max(0, client), unattributed),
        sources=sources,
        inconsistent=inconsistent,
    )


def _plain(flat: Mapping[str, Any], key: str) -> Any:
    value, kind = flat.get(key), _PLAIN[key]
    if key == "start":
        start = start_ns(value)
        if start is None and isinstance(value, str):
            raise ValueError(f"start is {value!r}, and must be {START_FORMS}")
        value = value if start is None else start
    if key == "outcome" and isinstance(value, str):
        value = OUTCOME_WORDS.get(value.lower(), value)
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # a column of whole numbers with gaps is often kept as floats
    odd = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
    if value is not None and odd:
        wanted = _WANTED.get(kind, "a number")
        raise TypeError(f"{key} is {value!r}, not {wanted}")
    if isinstance(value, int | float) and not -_MAX <= value <= _MAX:
        raise ValueError(f"{key} is {value!r}, not a finite number")
    return bounded(key, value) if value is not None and key.endswith("_s") else value


def _response_headers(flat: Mapping[str, Any]) -> dict[str, str]:
    headers = dict(flat.get("response_headers") or {})
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"response_headers holds {name!r}: {value!r}, and not text")
    return headers


def _marked(flat: Mapping[str, Any], when: str) -> dict[Any, int]:
    marked = {stage: read_ns(flat, f"marked_{when}_{stage}_s") for stage in STAGES}
    return {stage: ns for stage, ns in marked.items() if ns is not None}
