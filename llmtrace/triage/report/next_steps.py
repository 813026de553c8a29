"""Say what to do next if no cause is named, and which data would settle it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

from llmtrace.triage.evidence.evidence import ENGINE_STAGES
from llmtrace.triage.over_time import NearEvent
from llmtrace.triage.result import NAMED, Result

_TEXTS: Final[dict[str, Any]] = tomllib.loads(
    files(__package__).joinpath("next_steps.toml").read_text(encoding="utf-8")
)
_MAX_DATA: Final = 3
_NEAR_S: Final = 300.0


def next_steps(result: Result) -> list[str]:
    """Return what to do, in a sentence or two each; empty if a named cause has an action."""
    if any(one.status in NAMED for one in result.causes):
        return []
    by_verdict = _TEXTS["verdict"].get(result.verdict)
    return [by_verdict] if by_verdict else [*_by_what_moved(result)]


def _by_what_moved(result: Result) -> Iterator[str]:
    event = _event_as_it_began(result)
    if event is not None and event.kind in _TEXTS["event"]:
        yield _TEXTS["event"][event.kind].format(event=event.text)
    if _fails(result):
        yield _TEXTS["failures"]
    places = [pair for one in result.cohorts[:1] for pair in one.attributes.items()]
    yield from (_TEXTS["place"][name].format(value=value) for name, value in places
                if name in _TEXTS["place"])  # fmt: skip
    stage, hosted = _stage(result), not result.quality.values.get("replica")
    if hosted and stage in ENGINE_STAGES:
        yield _TEXTS["hosted"]
    elif not places:
        yield _TEXTS["stage"][stage]
    if result.exemplars.get("slow"):
        yield _TEXTS["traces"]


def _event_as_it_began(result: Result) -> NearEvent | None:
    """Return the nearest event that may have been when the incident began; `None` = none was."""
    onset = result.onset
    if onset is None:
        return None
    near = (one for one in result.events if onset.earliest <= one.t <= onset.latest)
    return next((one for one in near if abs(one.distance_s) <= _NEAR_S), None)


def would_settle(result: Result) -> list[str]:
    """Return which data are missing, for the verdict or for causes in the stage that moved."""
    if not next_steps(result) or result.verdict in _TEXTS["verdict"]:
        return [*result.settle]
    if result.quality.coverage == 0 and not _fails(result):
        return [*result.settle, _TEXTS["no_stages"]]
    missing = {one.id: one.missing for one in result.causes if one.status == "unknown"}
    data = [text for cause in _TEXTS["settle"][_stage(result)] for text in missing.get(cause, ())]
    return list(dict.fromkeys((*result.settle, *data)))[:_MAX_DATA]


def _fails(result: Result) -> bool:
    return result.outcomes is not None and result.outcomes.significant


def _stage(result: Result) -> str:
    """Return the stage, or `unattributed`, that grew most."""
    parts = {one.name: one.seconds for one in result.contributions if one.name in _TEXTS["stage"]}
    stage = max(parts, key=lambda name: parts[name], default="unattributed")
    return stage if parts.get(stage, 0.0) > 0 else "unattributed"
