"""Read and write an incident as a folder, to be shared, replayed or kept as a test.

The folder has `case.json`, `rows.jsonl` (or `.gz`, or `rows.parquet`), `signals.jsonl` and
`facts.json` (docs/on-call/triage.md). All but the rows may be missing; odd values are left out and
reported.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeGuard

import numpy as np
from numpy.typing import NDArray

from llmtrace.budget import Budget, read_budget
from llmtrace.core.errors import DataError, SourceError, writes
from llmtrace.core.json_object import read_object
from llmtrace.dataset.columns import Columns, Words, short
from llmtrace.dataset.files import objects, read_columns, write_columns
from llmtrace.exporters.row_files.forms import Progress, silent
from llmtrace.exporters.row_files.read_back import CASE_ROWS, case_rows
from llmtrace.stats.arrays import Floats, Mask

METRICS: Final = ("ttft", "tpot", "e2e", "render")

_SIGNALS: Final = ("signals.jsonl", "signals.jsonl.gz")
_MAX_SIGNALS: Final = 20_000_000
_MAX_LABELS: Final = 32
_LATEST_S: Final = 9e9  # the year 2255: what is later is no unix time in seconds


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time, unix seconds: from `start` on and before `end`."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """The window's length in seconds."""
        return self.end - self.start

    def seconds_with(self, other: Window) -> float:
        """Return how long two windows have in common; below 0 = they are apart."""
        return min(self.end, other.end) - max(self.start, other.start)


@dataclass(frozen=True, slots=True)
class Signals:
    """Samples of engines, GPUs and gateways, a column each, by time.

    Attributes:
        t: unix seconds, not before the sample above it.
        instance: the server it is of; a row's `replica` matches it.
        signal: the normalised name: `running`, `waiting`, `kv_usage`, ...
        value: gauges as sampled, counters raw and cumulative.
        labels: `label_sets[labels[i]]` are the labels of sample i.
    """

    t: Floats
    instance: Words
    signal: Words
    value: Floats
    labels: NDArray[np.int32]
    label_sets: tuple[Mapping[str, str], ...]

    def __len__(self) -> int:
        return len(self.t)

    def take(self, which: Mask) -> Signals:
        """Return the samples that a mask selects."""
        return Signals(
            t=self.t[which],
            instance=Words(self.instance.codes[which], self.instance.names),
            signal=Words(self.signal.codes[which], self.signal.names),
            value=self.value[which],
            labels=self.labels[which],
            label_sets=self.label_sets,
        )


@dataclass(frozen=True, slots=True)
class Event:
    """Something people or machines did: `kind` is deploy, scale or config; `t` unix seconds."""

    t: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """The known facts of engines at the end of the incident, and the changes before it."""

    instances: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """An incident: its rows, signals and facts, and what is known of when it was.

    Attributes:
        before, after: the windows to compare; `None` = find the spike.
        metric: one of `METRICS`; `None` = decide.
        searched: the time that rows were read for; those of before it are of earlier days, to
            compare with. `None` = all rows are of it.
        budget: what the requests may take, where given.
        note: what a triage of it must state first: that it is simulated, say.
        warnings: what was odd in the files, for people.
    """

    rows: Columns
    signals: Signals
    facts: Facts = field(default_factory=Facts)
    before: Window | None = None
    after: Window | None = None
    metric: str | None = None
    searched: Window | None = None
    budget: Budget | None = None
    note: str | None = None
    warnings: tuple[str, ...] = ()


def signals_from(samples: Iterable[Mapping[str, Any]]) -> tuple[Signals, tuple[str, ...]]:
    """Make signals of samples as in `signals.jsonl`; return also what was kept out of them."""
    kept_out: Counter[str] = Counter()
    times: list[float] = []
    values: list[float] = []
    codes: dict[str, list[int]] = {"instance": [], "signal": [], "labels": []}
    names: dict[str, dict[Any, int]] = {"instance": {}, "signal": {}, "labels": {}}
    for sample in samples:
        t: object = sample.get("t")
        value: object = sample.get("value")
        signal, instance = sample.get("signal"), sample.get("instance")
        if not (_finite(t) and 0 < t <= _LATEST_S and _finite(value) and isinstance(signal, str)):
            kept_out["signal: no usable time, name or value"] += 1
            continue
        if len(times) == _MAX_SIGNALS:
            kept_out[f"signal: more than {_MAX_SIGNALS}, the rest"] += 1
            break
        times.append(float(t))
        values.append(float(value))
        server = short(instance) if isinstance(instance, str) else ""
        labels = _labels(sample.get("labels"))
        for name, key in (("instance", server), ("signal", short(signal)), ("labels", labels)):
            codes[name].append(names[name].setdefault(key, len(names[name])))
    t_column = np.array(times, np.float64)
    order = np.argsort(t_column, kind="stable")
    column = {name: np.array(found, np.int32)[order] for name, found in codes.items()}
    signals = Signals(
        t=t_column[order],
        instance=Words(column["instance"], tuple(names["instance"])),
        signal=Words(column["signal"], tuple(names["signal"])),
        value=np.array(values, np.float64)[order],
        labels=column["labels"],
        label_sets=tuple(dict(key) for key in names["labels"]),
    )
    return signals, tuple(f"{what}: {count} ignored" for what, count in kept_out.items())


def no_signals() -> Signals:
    """Return a table without any signals."""
    return signals_from(())[0]


def samples_of(signals: Signals) -> Iterator[dict[str, Any]]:
    """Yield samples as in `signals.jsonl`."""
    for i in range(len(signals)):
        sample: dict[str, Any] = {
            "t": float(signals.t[i]),
            "instance": signals.instance.word(i) or "",
            "signal": signals.signal.word(i),
            "value": float(signals.value[i]),
        }
        if labels := signals.label_sets[signals.labels[i]]:
            sample["labels"] = dict(labels)
        yield sample


def read_case(folder: str | Path, progress: Progress = silent) -> Case:
    """Read a case folder.

    Raises:
        SourceError: there is no such folder, or no rows in it, or a file cannot be read.
        DataError: `case.json` or `facts.json` is not what it must be, or no line is a row.
        ConfigError: the budget in `case.json` is none.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder; a case is a folder with rows.jsonl in it")
    path = case_rows(folder)
    if path is None:
        raise SourceError(f"{folder}: contains none of {', '.join(CASE_ROWS)}; a case needs one")
    about = _read_json(folder / "case.json")
    facts, odd_facts = facts_from(_read_json(folder / "facts.json"))
    rows = read_columns(path, progress=progress)
    odd_lines = 0
    samples: list[dict[str, Any]] = []
    for name in _SIGNALS:
        if (folder / name).is_file():
            found = list(objects(folder / name, progress))
            odd_lines = found.count(None)
            samples = [sample for sample in found if sample is not None]
            break
    signals, odd_signals = signals_from(samples)
    metric = about.get("metric")
    if metric is not None and metric not in METRICS:
        raise DataError(
            f"{folder / 'case.json'}: metric is {metric!r}, not one of {', '.join(METRICS)}"
        )
    note = about.get("note")
    if note is not None and not isinstance(note, str):
        raise DataError(f"{folder / 'case.json'}: note is {note!r}; wanted a text")
    budget = about.get("budget")
    return Case(
        rows=rows,
        signals=signals,
        facts=facts,
        before=_window(folder, about, "before"),
        after=_window(folder, about, "after"),
        metric=metric,
        searched=_window(folder, about, "searched"),
        budget=None if budget is None else read_budget(budget),
        note=None if note is None else short(note),
        warnings=(
            *rows.warnings,
            *([f"signals: {odd_lines} lines ignored: not JSON objects"] if odd_lines else []),
            *odd_signals,
            *odd_facts,
        ),
    )


def write_case(folder: str | Path, case: Case, *, compress: bool = False) -> None:
    """Write a case folder, making it if need be; what is in it of an older case is replaced.

    Raises:
        SourceError: it cannot be written; an older case is then still there.
    """
    folder = Path(folder)
    with writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".half-", dir=folder) as half:
            _write(Path(half), case, compress=compress)
            written = {path.name for path in Path(half).iterdir()}
            for name in written:
                (Path(half) / name).replace(folder / name)
        for name in {*CASE_ROWS, *_SIGNALS} - written:
            (folder / name).unlink(missing_ok=True)


def _write(folder: Path, case: Case, *, compress: bool) -> None:
    about: dict[str, Any] = {
        name: [window.start, window.end]
        for name, window in (
            ("before", case.before),
            ("after", case.after),
            ("searched", case.searched),
        )
        if window is not None
    }
    about["metric"] = case.metric
    if case.budget is not None:
        about["budget"] = _plain_budget(case.budget)
    if case.note is not None:
        about["note"] = case.note
    _write_json(folder / "case.json", about)
    write_columns(folder / ("rows.jsonl.gz" if compress else "rows.jsonl"), case.rows)
    lines = (
        json.dumps(sample, separators=(",", ":")) + "\n" for sample in samples_of(case.signals)
    )
    if compress:
        with gzip.open(folder / "signals.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(lines)
    else:
        with (folder / "signals.jsonl").open("w", encoding="utf-8") as plain:
            plain.writelines(lines)
    events = [{"t": e.t, "kind": e.kind, "text": e.text} for e in case.facts.events]
    instances = {name: dict(facts) for name, facts in case.facts.instances.items()}
    _write_json(folder / "facts.json", {**instances, "events": events})


def facts_from(given: Mapping[str, Any]) -> tuple[Facts, tuple[str, ...]]:
    """Read `facts.json`: facts by instance, and `events`; return also what was odd."""
    odd: Counter[str] = Counter()
    given = dict(given)
    events, named = [], given.pop("events", None)
    for event in named if isinstance(named, list) else ():
        t: object = event.get("t") if isinstance(event, Mapping) else None
        if not _finite(t):
            odd["event: no usable time"] += 1
            continue
        events.append(Event(float(t), str(event.get("kind", "")), str(event.get("text", ""))))
    inner = given.pop("instances", {})
    if isinstance(inner, list):
        named = [one for one in inner if isinstance(one, Mapping)]
        inner = {f["instance"]: f for f in named if isinstance(f.get("instance"), str)}
    instances: dict[str, Mapping[str, Any]] = {}
    for name, facts in {**given, **(inner if isinstance(inner, Mapping) else {})}.items():
        if not isinstance(facts, Mapping):
            odd["facts: not an object"] += 1
            continue
        instances[short(str(name))] = {
            str(key): value
            for key, value in facts.items()
            if value is None or isinstance(value, str | bool) or _finite(value)
        }
    events.sort(key=lambda event: event.t)
    warnings = tuple(f"{what}: {count} ignored" for what, count in odd.items())
    return Facts(instances, tuple(events)), warnings


def _read_json(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _window(folder: Path, about: Mapping[str, Any], name: str) -> Window | None:
    given = about.get(name)
    if given is None:
        return None
    fits = isinstance(given, list) and len(given) == 2 and all(_finite(t) for t in given)  # noqa: PLR2004
    if not fits or not 0 <= given[0] < given[1] <= _LATEST_S:
        raise DataError(
            f"{folder / 'case.json'}: {name} is {given!r}; wanted [start, end] in unix seconds"
        )
    return Window(float(given[0]), float(given[1]))


def _plain_budget(budget: Budget) -> dict[str, Any]:
    """Write a budget as `read_budget` reads it: its fields without their unit."""
    plain = {part.name.removesuffix("_s"): getattr(budget, part.name) for part in fields(budget)}
    plain["stages"] = dict(budget.stages_s)
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in plain.items()
        if value not in (None, (), {})
    }


def _labels(given: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(given, Mapping):
        return ()
    found = ((short(str(k)), short(str(v))) for k, v in list(given.items())[:_MAX_LABELS])
    return tuple(sorted(found))


def _finite(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
