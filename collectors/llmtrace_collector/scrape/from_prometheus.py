"""Read the signals of engines, gateways and GPUs in a time range from a Prometheus.

Preferably the collector's own metrics, sample by sample as they were scraped. Where a Prometheus
scrapes the engines itself, their metrics are read by the collector's profiles. Anything with
Prometheus's HTTP API will do: Thanos, Mimir, VictoriaMetrics.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from llmtrace.api_clients.prometheus_client import Prometheus, written_labels
from llmtrace.core.errors import DataError
from llmtrace.dataset.case import Signals, Window, signals_from
from llmtrace.dataset.columns import Doubt
from llmtrace.display.summary_tables import date_and_zone
from llmtrace_collector.scrape.samples import of_reading
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.normalise import CPU_USED, STARTED, Normaliser
from llmtrace_collector.signals.profile import Profile, builtin_profiles

Progress = Callable[[str, float], None]
Series = Mapping[str, Any]  # `metric`: its labels, `values`: pairs of time and text

_OURS: Final = "llmtrace_(engine|gateway|gpu|target)_.+"
_CHUNK_S: Final = 900.0  # of samples as they were scraped, per query
_MAX_POINTS: Final = 720  # of an engine's own metrics
_MIN_STEP_S: Final = 1.0
_USUAL_STEP_S: Final = 15.0
_MAX_SAMPLES: Final = 5_000_000
_NAMES_A_QUERY: Final = 20
# Labels that tell apart targets whose `instance` is the same.
_PLACE: Final = ("cluster", "namespace", "pod")
# Labels that say where a series comes from, not what it is: two Prometheus that scrape the same
# target differ in some of them.
_OF_PROMETHEUS: Final = frozenset(
    {"__name__", "job", "instance", "exported_instance", "prometheus", "prometheus_replica",
     *_PLACE}
)  # fmt: skip
_Target = tuple[str, ...]  # the instance, and `_PLACE`
_COLLECTED: Final = (
    "llmtrace_target_late_total"  # the collector exposes it, and no rule records it
)
# In addition to the table of signals, by the names they have in the store.
_MORE: Final = {
    "llmtrace_target_up": "up",
    "llmtrace_engine_frontend_mean_seconds": "frontend_time",
}


def read_signals(
    url: str,
    token_file: Path | None,
    window: Window,
    progress: Progress,
    where: Mapping[str, str] | None = None,
) -> tuple[Signals, tuple[str, ...]]:
    """Read the signals of a time range.

    Args:
        url: of the Prometheus.
        token_file: a file with the token it requires; `None` = it requires none.
        window: the time range.
        progress: called with what is being done, and the share that is done.
        where: labels that a series must have.

    Returns:
        The signals, and warnings about them.

    Raises:
        ConfigError: the address is not valid, or the file holds no token.
        SourceError: it does not answer.
        DataError: it has none of these metrics.
    """
    server = Prometheus(url, token_file, where)
    span = {"start": f"{window.start:.3f}", "end": f"{window.end:.3f}"}
    label = "label/__name__/values"
    ours_there = {"match[]": server.selector(f'__name__=~"{_OURS}"')}
    there = set(map(str, server.ask(label, **span, **ours_there)))
    all_there = {"match[]": server.selector()} if where else {}
    ours = _known(there)
    profiles = builtin_profiles()
    own = [
        name
        for name in map(str, server.ask(label, **span, **all_there))
        if not name.endswith("_bucket") and any(one.wants(name) for one in profiles)
    ]
    # Recorded series do not reach as far back as the engines' metrics they are computed from.
    if ours and (_COLLECTED in there or not own):
        samples = _ours(server, ours, window, progress)
    elif own:
        samples = _engines_own(server, [*own, STARTED, CPU_USED], profiles, window, progress)
    else:
        raise DataError(
            f"{server.url} has no metrics of engines between {date_and_zone(window.start)} and "
            f"{date_and_zone(window.end)}{' with ' if where else ''}"
            f"{', '.join(server.where)}: neither llmtrace_engine_* nor an engine's own"
        )
    signals, odd = signals_from(islice(samples, _MAX_SAMPLES))
    progress("asking Prometheus", 1.0)
    full = len(signals) >= _MAX_SAMPLES
    odd = (*odd, *(Doubt(f"Prometheus warns: {one}") for one in sorted(server.warnings)))
    return signals, (*odd, *([f"only the first {_MAX_SAMPLES} samples are read"] * full))


def read_buckets(
    url: str,
    token_file: Path | None,
    name: str,
    window: Window,
    where: Mapping[str, str] | None = None,
) -> Sequence[tuple[float, float]]:
    """Count the requests of a window by the buckets of a histogram, the signal `name`.

    The other arguments are as of `read_signals`.

    Returns:
        Each upper bound with how many requests were at or below it. Kinds of engines have
        different bounds: only the kind that counted most is used. Empty = none counts it.

    Raises:
        SourceError: it does not answer.
    """
    server = Prometheus(url, token_file, where)
    range_ms = max(1, round(1000 * window.seconds))
    best: dict[float, float] = {}
    for matchers, by, factor in _bucket_series(name):
        query = f"sum by ({by}) (increase({server.selector(*matchers)}[{range_ms}ms]))"
        kinds: dict[str, dict[float, float]] = defaultdict(dict)
        for series in server.ask("query", query=query, time=f"{window.end:.3f}"):
            labels = labels_of(series)
            bound = float(labels.get("le", "NaN")) * factor
            kinds[labels.get("engine", "")][bound] = float(series["value"][1])
        found = [best, *kinds.values()]
        best = max(found, key=lambda counts: max(counts.values(), default=0.0))
    return sorted(best.items())


def _bucket_series(name: str) -> Iterator[tuple[list[str], str, float]]:
    """Yield matchers of a histogram's buckets, labels to keep, and a factor for the bounds."""
    yield [f'__name__="{SIGNALS[name].metric}_bucket"'], "engine, le", 1.0
    for profile in builtin_profiles():
        for family in profile.signals.get(name, ()):
            if family.less is None:
                names = "|".join(profile.spellings(f"{family.name}_bucket"))
                where = [f'{label}="{value}"' for label, value in family.where]
                yield [f'__name__=~"{names}"', *where], "le", family.factor


# --- the collector's metrics ---------------------------------------------------------------------


def _known(names: Iterable[str]) -> dict[str, str]:
    """Return the signal of each of our metrics: of a histogram, its sum and count."""
    found = dict(_MORE)
    for signal in SIGNALS.values():
        for part in ("_sum", "_count") if signal.kind == "histogram" else ("",):
            found[f"{signal.metric}{part}"] = f"{signal.name}{part}"
    return {name: found[name] for name in sorted(names) if name in found}


def _ours(
    server: Prometheus, names: Mapping[str, str], window: Window, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield the samples of our metrics as they were scraped."""
    chunks = max(1, math.ceil(window.seconds / _CHUNK_S))
    batches = [*name_batches(list(names))]
    for number in range(chunks):
        since = window.start + number * _CHUNK_S
        until = min(window.end, since + _CHUNK_S)
        for place, batch in enumerate(batches):
            progress("asking Prometheus", (number + place / len(batches)) / chunks)
            range_ms = max(1, round(1000 * (until - since)))
            expression = f"{_named(server, batch)}[{range_ms}ms]"
            for series in server.ask("query", query=expression, time=f"{until:.3f}"):
                labels = labels_of(series)
                name = names.get(labels.get("__name__", ""))
                if name is None:
                    continue
                own = {k: v for k, v in labels.items() if k not in _OF_PROMETHEUS}
                for t, value in _values(series):
                    if since <= t < until:  # both ends of a range may be in a response
                        yield {
                            "t": t, "instance": instance_of(labels), "signal": name,
                            "value": value, "labels": own,
                        }  # fmt: skip


# --- engines' own metrics ------------------------------------------------------------------------


def _engines_own(
    server: Prometheus,
    names: Sequence[str],
    profiles: Sequence[Profile],
    window: Window,
    progress: Progress,
) -> Iterator[dict[str, Any]]:
    """Yield the signals of engines that a Prometheus scrapes itself, step by step."""
    step = max(_MIN_STEP_S, window.seconds / _MAX_POINTS)
    if step < _USUAL_STEP_S < window.seconds / 40:
        step = _USUAL_STEP_S
    span = {
        "start": f"{window.start:.3f}", "end": f"{window.end:.3f}", "step": f"{step:.3f}",
    }  # fmt: skip
    pages: dict[_Target, dict[float, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    scraped = _scraped(server, [name for name in names if name in _recognised(profiles)], span)
    batches = [*name_batches(names)]
    for place, batch in enumerate(batches):
        progress("asking Prometheus", place / (len(batches) + 1))
        for series in server.ask("query_range", query=_named(server, batch), **span):
            labels = labels_of(series)
            own = {k: v for k, v in labels.items() if k not in _OF_PROMETHEUS}
            line = f"{labels.get('__name__', '')}{{{','.join(written_labels(own))}}}"
            for t, value in _values(series):
                pages[_target_of(labels)][t].setdefault(line, value)
    for target, by_time in pages.items():
        instance = _name(target, pages)
        normaliser = Normaliser(profiles)
        last = -math.inf
        for step_at in sorted(by_time):
            # For minutes after the last scrape a step has its values again.
            t = scraped[target].get(step_at, step_at)
            if t <= last:
                continue
            last = t
            lines = (f"{line} {value!r}\n" for line, value in by_time[step_at].items())
            reading = normaliser.read("".join(lines))
            for one in of_reading(reading, instance, {}, round(t * 1e9)):
                yield {
                    "t": t, "instance": instance, "signal": one.signal,
                    "value": one.value, "labels": dict(one.labels),
                }  # fmt: skip


def _target_of(labels: Mapping[str, str]) -> _Target:
    return instance_of(labels), *(labels.get(name, "") for name in _PLACE)


def _name(target: _Target, others: Iterable[_Target]) -> str:
    """Return the target's instance, with what tells it from others of the same instance."""
    same = [other for other in others if other[0] == target[0]]
    apart = [part for part, values in zip(target, zip(*same, strict=True), strict=True)
             if part and len({*values}) > 1]  # fmt: skip
    return " ".join([target[0], *apart])


def _recognised(profiles: Sequence[Profile]) -> set[str]:
    """Return names that identify a page, of which each page has at least one."""
    return {one for profile in profiles for name in profile.recognise
            for one in profile.spellings(name)}  # fmt: skip


def _scraped(
    server: Prometheus, names: Sequence[str], span: Mapping[str, object]
) -> dict[_Target, dict[float, float]]:
    """Return by target and step when the sample that the step has was scraped."""
    found: dict[_Target, dict[float, float]] = defaultdict(dict)
    by = ", ".join(("instance", "exported_instance", *_PLACE))
    for name in names:
        query = f"max by ({by}) (timestamp({_named(server, [name])}))"
        for series in server.ask("query_range", query=query, **span):
            by_step = found[_target_of(labels_of(series))]
            for step, t in _values(series):
                by_step[step] = max(t, by_step.get(step, t))
    return found


# --- responses -----------------------------------------------------------------------------------


def _named(server: Prometheus, names: Sequence[str]) -> str:
    return server.selector(f'__name__=~"{"|".join(names)}"')


def name_batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the names in batches that fit into one query each."""
    for place in range(0, len(names), _NAMES_A_QUERY):
        yield names[place : place + _NAMES_A_QUERY]


def labels_of(series: Any) -> dict[str, str]:
    """Return the labels of one series in a response."""
    labels = series.get("metric") if isinstance(series, dict) else None
    return {str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {}


def _values(series: Series) -> Iterator[tuple[float, float]]:
    for pair in series.get("values") or ():
        try:
            t, value = float(pair[0]), float(pair[1])
        except (TypeError, ValueError, IndexError):
            continue
        if math.isfinite(t) and math.isfinite(value):
            yield t, value


def instance_of(labels: Mapping[str, str]) -> str:
    """Return the target of a series."""
    # Without honor_labels Prometheus keeps the engine's name under the other label.
    return labels.get("exported_instance") or labels.get("instance", "")
