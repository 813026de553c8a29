"""Make recording rules that normalise engines' metrics in a Prometheus that scrapes them itself.

The collector's profiles as PromQL: each series of an engine, gateway or GPU exporter is recorded
under the signal's name (`llmtrace_engine_...`) with the labels of its target. Cumulative values
stay cumulative, and only series of one process are added up, so that a restart is one reset.
Left out is what PromQL cannot see: a unit that only HELP names, and bucket bounds in another unit
than seconds (sums and counts are recorded).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmtrace_collector.signals.definitions import Signal, suffixes
from llmtrace_collector.signals.profile import Family, Profile

# The labels that identify a target; kept wherever they are present.
TARGET: Final = ("cluster", "namespace", "job", "instance")
_ON_TARGET: Final = f"on ({', '.join(TARGET)})"
_EVERY: Final = "15s"
_BASE: Final = "5m"
_SEEN: Final = "1h"  # a target that was an engine within this time still counts as one


@dataclass(frozen=True, slots=True)
class _Part:
    """One recorded series of a signal: all of a gauge or counter, or a part of a histogram."""

    signal: Signal
    suffix: str = ""

    @property
    def own_labels(self) -> tuple[str, ...]:
        """Its labels in addition to those of every signal of its profile."""
        own = (self.signal.label,) if self.signal.label else ()
        return (*own, "le") if self.suffix == "_bucket" else own


def rule_groups(profiles: Sequence[Profile], every: str = _EVERY) -> list[dict[str, Any]]:
    """Return groups of recording rules, evaluated `every` so often: one a profile, one derived."""
    engines = [one for one in profiles if one.kind == "engine"]
    groups = [
        _group(f"llmtrace-metrics-{one.engine}", every, _of_profile(one, engines))
        for one in profiles
    ]
    return [*groups, _group("llmtrace-metrics-derived", every, _derived(profiles))]


def _group(name: str, every: str, rules: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"name": name, "interval": every, "rules": list(rules)}


def _of_profile(profile: Profile, engines: Sequence[Profile]) -> Iterator[dict[str, Any]]:
    for signal, families in _signals(profile):
        for part in (_Part(signal, suffix) for suffix in suffixes(signal.kind)):
            expression = _first_there(profile, part, families)
            if expression is None:
                continue
            if signal.subsystem == "engine" and profile.kind != "engine":
                # Where a page has the engine's own metrics, those take precedence.
                own = [name for one in engines for name in _recognised(one)]
                expression = f"({expression})\nunless {_ON_TARGET} {_named(own)}"
            yield {
                "record": signal.metric + part.suffix,
                "expr": expression,
                "labels": {"engine": profile.engine},
            }


def _signals(profile: Profile) -> Iterator[tuple[Signal, list[Family]]]:
    found: dict[str, tuple[Signal, list[Family]]] = {}
    for signal, _, family in profile.families():
        if family.help is None:
            found.setdefault(signal.name, (signal, []))[1].append(family)
    yield from found.values()


def _first_there(profile: Profile, part: _Part, families: Sequence[Family]) -> str | None:
    """Return PromQL for the first family that a target has, and for its `also`."""
    alternatives: list[list[str]] = []
    for family in families:
        one = _of_family(profile, part, family)
        if one is None:
            continue
        if family.also and alternatives:
            alternatives[-1].append(one)
        else:
            alternatives.append([one])
    if not alternatives:
        return None
    return f"\nor {_ON_TARGET} ".join(
        f"({' or '.join(kin)})" if len(kin) > 1 and len(alternatives) > 1 else "\nor ".join(kin)
        for kin in alternatives
    )


def _of_family(profile: Profile, part: _Part, family: Family) -> str | None:
    """Return PromQL for a family, in base units and with our labels; `None` = not possible."""
    if part.suffix == "_bucket" and (family.factor != 1.0 or family.less is not None):
        return None
    added = _normalised(profile, part, family, family.name + part.suffix)
    if part.suffix == "_sum" and family.less is not None:
        less = _normalised(profile, part, family, f"{family.less}_sum")
        added = f"clamp_min({added} - ({less} or 0 * {added}), 0)"
    scaled = part.suffix != "_count" and family.factor != 1.0
    return f"{added} * {family.factor!r}" if scaled else added


def _normalised(profile: Profile, part: _Part, family: Family, name: str) -> str:
    matchers = [
        *(f'{label}="{value}"' for label, value in family.where),
        *(f'{label}=""' for label in profile.skip_labels),
        *(f'{label}=~"|0"' for label in profile.one_of),
    ]
    series = _named(profile.spellings(name), matchers)
    labels = [ours for ours, _ in profile.labels if ours not in TARGET]
    for ours, theirs in profile.labels:
        if ours in labels:
            series = _relabelled(series, ours, theirs)
    own = part.signal.label
    if own is not None and family.say is not None:
        series = f'label_replace({series}, "{own}", "{family.say}", "", "")'
    elif own is not None and family.label is not None:
        series = _copied(series, own, family.label)
    kept = ", ".join((*TARGET, *labels, *part.own_labels))
    how = {"mean": "avg"}.get(part.signal.merge, part.signal.merge)
    return f"{how if not part.suffix else 'sum'} by ({kept}) ({series})"


def _relabelled(series: str, ours: str, theirs: Sequence[str]) -> str:
    if ours == "replica" and len(theirs) > 1:
        # A replica joins all labels that are there, as `backend/0`.
        parts = ", ".join(f'"{label}"' for label in theirs)
        joined = f'label_join({series}, "{ours}", "/", {parts})'
        joined = f'label_replace({joined}, "{ours}", "$1/$2", "{ours}", "(.+)//(.+)")'
        return f'label_replace({joined}, "{ours}", "$1", "{ours}", "/*(.*?)/*")'
    for label in reversed(theirs):  # the first label that is there counts
        series = _copied(series, ours, label)
    return series


def _copied(series: str, ours: str, theirs: str) -> str:
    if ours == theirs:
        return series
    return f'label_replace({series}, "{ours}", "$1", "{theirs}", "(.+)")'


def _named(names: Sequence[str], matchers: Sequence[str] = ()) -> str:
    if len(names) == 1:
        return names[0] + (f"{{{', '.join(matchers)}}}" if matchers else "")
    either = '__name__=~"' + "|".join(names) + '"'
    return "{" + ", ".join((either, *matchers)) + "}"


def _recognised(profile: Profile) -> list[str]:
    return [spelled for name in profile.recognise for spelled in profile.spellings(name)]


def _derived(profiles: Sequence[Profile]) -> Iterator[dict[str, Any]]:
    """Yield the collector's metrics of its targets, and the front end's share of TTFT."""
    yield {
        "record": "llmtrace_engine_frontend_mean_seconds",
        "expr": f"clamp_min({_mean('ttft')}\n - {_mean('queue')}\n - {_mean('prefill')}, 0)",
    }
    for kind in dict.fromkeys(one.kind for one in profiles):
        names = [name for one in profiles if one.kind == kind for name in _recognised(one)]
        mine = f"and {_ON_TARGET} last_over_time({_named(names)}[{_SEEN}])"
        for metric, theirs in (
            ("llmtrace_target_up", "up"),
            ("llmtrace_target_scrape_seconds", "scrape_duration_seconds"),
        ):
            yield {"record": metric, "expr": f"{theirs} {mine}", "labels": {"kind": kind}}


def _mean(what: str) -> str:
    name = f"llmtrace_engine_{what}_seconds"
    return f"rate({name}_sum[{_BASE}]) / (rate({name}_count[{_BASE}]) > 0)"
