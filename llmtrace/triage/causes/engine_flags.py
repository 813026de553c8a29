"""List the engine settings that help against a cause, by engine and version.

Actions use the four verbs that resolved real incidents: reroute, rebalance, add capacity, fix.
Flags are shown for the engine and version that the facts name, or else for the engines that rows
name; none for engines that were not seen.
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
    """An engine setting that helps against a cause, and the version that introduced it."""

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
    """Return the engine and version that the facts name; `None` = no name, or several."""
    name = e.fact("engine")
    found = re.match(r"v?(\d+)\.(\d+)", str(e.fact("version") or e.fact("version_at_least") or ""))
    version = (int(found[1]), int(found[2])) if found else None
    return (name.lower() if isinstance(name, str) else None), version


def seen(e: Evidence) -> frozenset[str]:
    """Return the names of the engines in facts and rows."""
    names = {str(facts.get("engine") or "").lower() for facts in e.facts.instances.values()}
    for side in (e.before, e.after):
        words = side.rows.words["provider"]
        names.update(name.lower() for name in words.names if bool(words.where(name).any()))
    return frozenset(names)


def flags(e: Evidence, cause: str) -> str:
    """Say which settings of this engine help, as the end of an action; empty if none does."""
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
    if name is None:  # several engines: the first flag of each, with the engine's name
        first = {flag.engine: flag for flag in reversed(fitting)}
        return " " + "; ".join(f"{one}: {flag.text}" for one, flag in sorted(first.items())) + "."
    return " On this engine: " + "; ".join(flag.text for flag in fitting) + "."


def of_cause(cause: str) -> list[Flag]:
    """Return every flag that helps against a cause, of all engines."""
    return [flag for remedy in REMEDIES.get(cause, ()) for flag in FLAGS[remedy]]
