"""List the engine settings that help against a cause, by engine and version.

Actions use the four verbs that resolved real incidents: reroute, rebalance, add capacity, fix.
Flags are those of the engine and the version that the facts name, or of the engines that rows
name; for engines that were not seen there are none.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from llmtrace.triage.evidence.evidence import Evidence

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting of an engine that helps against a cause, and the version it came with."""

    engine: str
    text: str
    since: Version | None = None


_TABLE: Final = tomllib.loads(
    files(__package__).joinpath("engine_flags.toml").read_text(encoding="utf-8")
)
REMEDIES: Final[Mapping[str, Sequence[str]]] = _TABLE["remedies"]
FLAGS: Final[Mapping[str, Sequence[Flag]]] = {
    remedy: [
        Flag(one["engine"], one["text"], tuple(one.get("since", ())) or None) for one in every
    ]
    for remedy, every in _TABLE["flags"].items()
}


def engine(e: Evidence) -> tuple[str | None, Version | None]:
    """Return the engine and version that the facts name; `None` = none, or several."""
    name = e.fact("engine")
    found = re.match(r"v?(\d+)\.(\d+)", str(e.fact("version") or e.fact("version_at_least") or ""))
    version = (int(found[1]), int(found[2])) if found else None
    return (name.lower() if isinstance(name, str) else None), version


def seen(e: Evidence) -> frozenset[str]:
    """Return the engines that facts or rows name."""
    names = {str(facts.get("engine") or "").lower() for facts in e.facts.instances.values()}
    for side in (e.before, e.after):
        words = side.rows.words["provider"]
        names.update(name.lower() for name in words.names if bool(words.where(name).any()))
    return frozenset(names)


def flags(e: Evidence, cause: str) -> str:
    """Say what to set on the engine at hand, as the end of an action; empty if nothing fits."""
    name, version = engine(e)
    known = seen(e)
    fitting = [
        flag
        for flag in of_cause(cause)
        if flag.engine in (known if name is None else {name})
        and not (version and flag.since and name and version < flag.since)
    ]
    if not fitting:
        return ""
    if name is None:  # of several engines, the first flag of each, named
        first = {flag.engine: flag for flag in reversed(fitting)}
        return " " + "; ".join(f"{one}: {flag.text}" for one, flag in sorted(first.items())) + "."
    return " On this engine: " + "; ".join(flag.text for flag in fitting) + "."


def of_cause(cause: str) -> list[Flag]:
    """Return every flag that helps against a cause, whatever the engine."""
    return [flag for remedy in REMEDIES.get(cause, ()) for flag in FLAGS[remedy]]
