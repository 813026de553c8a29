"""Find which normalised metrics a Prometheus can have, and why it cannot have the others.

The engines, gateways and GPU exporters that it scrapes are recognised by their profiles, which
state what each reports, from which version on and under which condition.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from llmtrace.api_clients.prometheus_client import Prometheus, written_labels
from llmtrace_collector.scrape import from_prometheus
from llmtrace_collector.signals.definitions import SIGNALS, Signal, suffixes
from llmtrace_collector.signals.normalise import Normaliser, Reading
from llmtrace_collector.signals.profile import Profile, builtin_profiles

NOT_RECORDED: Final = (
    "the rules of `llmtrace slo engines` are not loaded, or were loaded just now: "
    "llmtrace dashboards import --engines-only --rules DIR"
)
_NO_SOURCE: Final = {
    "engine": "no engine's metrics are in this Prometheus: have it scrape the engine's own page",
    "gateway": "no gateway's metrics are in this Prometheus",
    "gpu": "no GPU exporter's metrics are in this Prometheus: dcgm-exporter has them",
}
_BEHIND: Final = "no target of `llmtrace collect` reports it: `llmtrace doctor ADDRESS` says why"
_COLLECTOR_ALONE: Final = "only `llmtrace collect` reports it"
_BY_THE_COLLECTOR: Final = (
    "llmtrace_target_missing_signals", "llmtrace_target_failures_total",
    "llmtrace_target_late_total", "llmtrace_target_dropped_total",
)  # fmt: skip
_TWICE: Final = "count_over_time(llmtrace_engine_requests_running[2m]) > 1"
_LOOKS: Final = 90
_BETWEEN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """What a Prometheus knows of engines.

    Attributes:
        engines: what it scrapes: by instance, the titles of the profiles that recognise it.
        why: for each normalised metric that it may lack, the reason.
    """

    engines: Mapping[str, str]
    why: Mapping[str, str]


def recorded(server: Prometheus) -> bool:
    """Wait until its rules have recorded a normalised metric twice, so that rates have a value.

    Returns:
        `False` = within a minute and a half they did not.

    Raises:
        SourceError: it does not answer.
    """
    for _ in range(_LOOKS):
        if server.ask("query", query=_TWICE):
            return True
        time.sleep(_BETWEEN_S)
    return False


def engine_gaps(server: Prometheus) -> Gaps:
    """Look at the last values of a Prometheus.

    Raises:
        SourceError: it does not answer.
    """
    profiles = builtin_profiles()
    names = [
        name
        for name in map(str, server.ask("label/__name__/values"))
        if any(one.wants(name) for one in profiles)
    ]
    readings = {
        instance: Normaliser(profiles).read(page)
        for instance, page in _pages(server, names).items()
    }
    titles = {one.engine: one.title for one in profiles}
    engines = {
        instance: " and ".join(titles[name] for name in reading.profiles)
        for instance, reading in readings.items()
        if reading.profiles
    }
    found = [reading for reading in readings.values() if reading.profiles]
    up = server.ask("query", query='{__name__=~"llmtrace_target_up"}')
    behind = {str(from_prometheus.labels_of(one).get("kind")) for one in up}
    why = {
        signal.metric + suffix: reason
        for signal in SIGNALS.values()
        for reason in (_reason(signal, found, profiles, behind),)
        for suffix in suffixes(signal.kind)
    }
    whole = {"ttft", "queue", "prefill"} <= {
        one.signal.name for reading in found for one in reading.measured
    }
    why["llmtrace_engine_frontend_mean_seconds"] = (
        NOT_RECORDED if whole else "it is TTFT less queue and prefill, and these are not reported"
    )
    for metric in ("llmtrace_target_up", "llmtrace_target_scrape_seconds"):
        why[metric] = NOT_RECORDED if found else _NO_SOURCE["engine"]
    why["llmtrace_engine_budget_seconds"] = NOT_RECORDED
    alone = _BEHIND if behind and not found else _COLLECTOR_ALONE
    return Gaps(engines, {**why, **dict.fromkeys(_BY_THE_COLLECTOR, alone)})


def _pages(server: Prometheus, names: Sequence[str]) -> dict[str, str]:
    """Return the last values of series with these names as a metrics page for each instance."""
    lines: dict[str, list[str]] = defaultdict(list)
    for batch in from_prometheus.name_batches(names):
        for series in server.ask("query", query=f'{{__name__=~"{"|".join(batch)}"}}'):
            labels = from_prometheus.labels_of(series)
            own = {k: v for k, v in labels.items() if k != "__name__"}
            _, value = series["value"]
            written = ",".join(written_labels(own))
            line = f"{labels['__name__']}{{{written}}} {value}\n"
            lines[from_prometheus.instance_of(labels)].append(line)
    return {instance: "".join(page) for instance, page in lines.items()}


def _reason(
    signal: Signal, found: Sequence[Reading], profiles: Sequence[Profile], behind: set[str]
) -> str:
    if any(one.signal is signal for reading in found for one in reading.measured):
        return NOT_RECORDED
    kinds = {one.engine: one.kind for one in profiles}
    titles = {one.engine: one.title for one in profiles}
    reporting = {
        name for reading in found for name in reading.profiles if kinds[name] == signal.subsystem
    }
    if not reporting:
        return _BEHIND if signal.subsystem in behind else _NO_SOURCE[signal.subsystem]
    said: dict[str, str] = {}
    for reading in found:
        for one in reading.missing:
            if one.signal == signal.name and one.engine in reporting:
                names = " or ".join(one.names[:2])
                said[one.engine] = one.why or f"it should report {names}, and does not"
    return "; ".join(
        f"{titles[name]}: {said.get(name, 'does not report it')}" for name in sorted(reporting)
    )
