"""Map an engine's metrics to the signals that every engine shares.

A page and the profiles that know it give a `Reading`: normalised signals in base units (seconds,
ratios of 1, tokens), one series an engine replica, and what is missing with the reason why.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeVar

from llmtrace.core.errors import DataError
from llmtrace_collector.signals.definitions import SIGNALS, Signal, suffixes
from llmtrace_collector.signals.exposition_parser import ExpositionParser, Limits, Series
from llmtrace_collector.signals.profile import BLOCK_SIZE, Family, Profile, Version, show_version

STARTED: Final = "process_start_time_seconds"
CPU_USED: Final = "process_cpu_seconds_total"
_INFINITY: Final = float("inf")
# Checking a page against all profiles costs more than reading it.
_PAGES_BETWEEN_LOOKS: Final = 100
_SAMPLE: Final = re.compile(r"^[a-zA-Z_:][\w:]*(?:\{.*\})?[ \t]+[-+]?[\dIN.]", re.MULTILINE)
_MAX_DIGITS: Final = 15  # of a whole number in a label
_MAX_TEXT: Final = 200  # characters of a label's value that are kept

Labels = tuple[tuple[str, str], ...]
T = TypeVar("T")

_LESS: Final = "less"  # series that are subtracted from another


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram since its engine started.

    Attributes:
        bounds: upper bounds of the buckets, rising; the last is infinity if there are buckets.
        counts: how many were at or below each bound.
        sum: of all that was observed.
        count: how many were observed.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float
    count: float


class Measured(NamedTuple):
    """One normalised series and its value.

    Attributes:
        labels: `engine` and what the profile maps (`model`, `replica`, or a GPU's), then the
            signal's own. Empty ones are left out.
    """

    signal: Signal
    labels: Labels
    value: float | Distribution


@dataclass(frozen=True, slots=True)
class Missing:
    """A signal its profile knows and the page does not have.

    Attributes:
        names: what was looked for.
        why: the condition or version that explains it; `None` = it should have been there.
    """

    engine: str
    signal: str
    names: tuple[str, ...]
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The normalised contents of one page.

    Attributes:
        profiles: those that recognise this page; empty = none does.
        started: when its process started, unix seconds by its own clock; `None` = not reported.
        cpu_s: CPU seconds that process has used since; `None` = not reported.
        kv_cache: the reported sizes of its KV cache, by the names of facts.
        no_value: signals that have a series without a usable value, such as NaN.
        oldest: the oldest version that has every name on the page; `newest` = the last.
    """

    profiles: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()
    missing: tuple[Missing, ...] = ()
    no_value: tuple[Missing, ...] = ()
    started: float | None = None
    cpu_s: float | None = None
    kv_cache: Mapping[str, int] = field(default_factory=dict)
    oldest: Version | None = None
    newest: Version | None = None


@dataclass(slots=True)
class _Group:
    """The slots of a page that one normalised series is made of."""

    signal: Signal
    labels: Labels
    factor: float
    values: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    buckets: dict[float, list[int]] = field(default_factory=dict)
    less: list[int] = field(default_factory=list)
    bounds: tuple[float, ...] = ()
    # Picks sum, count and the buckets in order, where there is one slot for each; else `None`.
    pick: Callable[[list[float | None]], tuple[Any, ...]] | None = None

    def finish(self) -> None:
        """Fix the order of the buckets, by their upper bounds."""
        self.bounds = tuple(sorted(self.buckets))
        slots = [self.buckets[bound] for bound in self.bounds]
        if self.less:
            # Only the means of two distributions can be subtracted.
            self.buckets = {one: s for one, s in self.buckets.items() if one == _INFINITY}
            self.bounds = tuple(self.buckets)
        elif all(len(one) == 1 for one in slots) and len(self.sums) == len(self.counts) == 1:
            self.pick = itemgetter(self.sums[0], self.counts[0], *(one[0] for one in slots))


@dataclass(frozen=True, slots=True)
class _CacheSizes:
    """Sizes of a page's KV caches by the names of facts: what labels say, and slots of gauges."""

    labels: Mapping[str, Sequence[int | None]]
    slots: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the slots of one layout become normalised series."""

    groups: tuple[_Group, ...]
    missing: tuple[Missing, ...]
    started: int | None
    cpu: int | None
    kv_cache: _CacheSizes
    oldest: Version | None
    newest: Version | None


class Normaliser:
    """Turns the pages of one target, one after another, into readings.

    Args:
        profiles: the candidates; the page itself shows which of them apply.
        limits: how much of a page is read.

    Attributes:
        profiles: those that recognised this target's last pages.
    """

    def __init__(self, profiles: Sequence[Profile], limits: Limits | None = None) -> None:
        self.profiles: tuple[Profile, ...] = ()
        self._candidates = tuple(profiles)
        self._limits = limits or Limits()
        self._reader: ExpositionParser | None = None
        self._plan: _Plan | None = None
        self._layout = -1
        self._until_look = 0
        self._dropped: Counter[str] = Counter()

    @property
    def dropped(self) -> Mapping[str, int]:
        """How much was not read, by reason, over all pages."""
        # Copies: another thread may read a page meanwhile.
        now = self._reader.dropped.copy() if self._reader else Counter()
        return self._dropped.copy() + now

    def read(self, text: str) -> Reading:
        """Return the normalised contents of a page.

        Raises:
            DataError: it is not a metrics page, or has no sample where others had.
        """
        reading = self._read(text) if self._until_look > 0 else None
        if reading is None or not reading.measured:
            # A target may become another engine, or more of one, behind the same address.
            known = recognise(self._candidates, text)
            if not known:
                ExpositionParser.check(text)
                # What was an engine still is one: its metrics are gone.
                known = tuple(one for one in self.profiles if one.kind == "engine")
            self._until_look = _PAGES_BETWEEN_LOOKS
            if known != self.profiles or self._reader is None:
                self._begin(known)
                reading = None
            reading = self._read(text) if reading is None else reading
            # Some engines make their metrics with the first request, beside those of the process.
            if known and not reading.measured and not _SAMPLE.search(text):
                raise DataError("the page has no metrics")
        self._until_look -= 1
        return reading

    def _read(self, text: str) -> Reading:
        reader = self._reader
        if reader is None or not self.profiles:
            return Reading()
        values = reader.read(text)
        if self._plan is None or reader.layout != self._layout:
            self._plan, self._layout = _plan(self.profiles, reader), reader.layout
        return _reading(self.profiles, self._plan, values)

    def _begin(self, known: tuple[Profile, ...]) -> None:
        if self._reader is not None:
            self._dropped += self._reader.dropped
        self.profiles, self._plan = known, None
        self._reader = ExpositionParser(_wanted(known), self._limits)


def recognise(profiles: Sequence[Profile], text: str) -> tuple[Profile, ...]:
    """Return the profiles that recognise a page, by the names on it."""
    return tuple(one for one in profiles if _knows(one, text))


def _knows(profile: Profile, text: str) -> bool:
    heads = (profile.prefix, *profile.prefix_aliases)
    strange = any(not name.startswith(profile.prefix) for name in profile.recognise)
    if not strange and not any(head in text for head in heads):
        return False  # the quick way out: most profiles are not on a page

    def on_page(names: Sequence[str]) -> bool:
        return any(_on_page(text, one) for name in names for one in profile.spellings(name))

    return on_page(profile.recognise) and not on_page(profile.unless)


def _on_page(text: str, name: str) -> bool:
    """Say whether a sample of this name begins a line."""
    return name in text and any(
        f"\n{start}" in text or text.startswith(start)
        for start in (f"{name}{{", f"{name} ", f'{{"{name}"')
    )


def _wanted(profiles: tuple[Profile, ...]) -> Callable[[str], bool]:
    known: dict[str, bool] = {STARTED: True, CPU_USED: True}
    most = Limits().series

    def wanted(name: str) -> bool:
        found = known.get(name)
        if found is None:
            found = any(profile.wants(name) for profile in profiles)
            if len(known) < most:
                known[name] = found
        return found

    return wanted


def _plan(profiles: tuple[Profile, ...], reader: ExpositionParser) -> _Plan:
    groups: list[_Group] = []
    missing: list[Missing] = []
    oldest = newest = None
    taken_engine = False
    kv_cache = _CacheSizes({}, {})
    for profile in profiles:
        chosen = _choose(profile, reader, leave_engine=taken_engine)
        if not (kv_cache.labels or kv_cache.slots):
            kv_cache = _kv_cache(profile, reader)
        groups += _groups(profile, chosen)
        profile_oldest, profile_newest = _versions(profile, reader, chosen)
        if oldest is None:
            oldest, newest = profile_oldest, profile_newest
        missing += _missing(profile, chosen, profile_oldest, skip_engine=taken_engine)
        taken_engine = taken_engine or profile.kind == "engine"
    names = [one.name for one in reader.series]
    started, cpu = (names.index(one) if one in names else None for one in (STARTED, CPU_USED))
    return _Plan(tuple(groups), tuple(missing), started, cpu, kv_cache, oldest, newest)


@dataclass(frozen=True, slots=True)
class _Hit:
    """A slot of the page that belongs to a family."""

    slot: int
    series: Series
    part: str
    family: Family
    factor: float


@dataclass(frozen=True, slots=True)
class _Page:
    """A page as one profile sees it: its series by canonical name, tokens in a block of KV."""

    profile: Profile
    by_name: Mapping[str, Sequence[tuple[int, Series]]]
    helps: Mapping[str, str]
    block_size: float | None


def _choose(
    profile: Profile, reader: ExpositionParser, *, leave_engine: bool
) -> dict[str, list[_Hit]]:
    """Return the slots of each signal: those of its first family on the page, and of its `also`.

    `leave_engine`: another profile on the page already provides the engine's signals.
    """
    by_name = _by_name(profile, reader, skip=profile.skip_labels)
    page = _Page(profile, by_name, reader.helps, _block_size(profile, by_name))
    chosen: dict[str, list[_Hit]] = {}
    for name, families in profile.signals.items():
        signal = SIGNALS[name]
        if leave_engine and signal.subsystem == "engine":
            continue
        hits: list[_Hit] = []
        for family in families:
            if hits and not family.also:
                break
            hits += _hits(page, signal, family)
        if hits:
            chosen[name] = _lowest_rank(hits, profile.one_of, attrgetter("series"))
    return chosen


def _by_name(
    profile: Profile, reader: ExpositionParser, skip: Sequence[str] = ()
) -> Mapping[str, Sequence[tuple[int, Series]]]:
    """Return the series without the labels to skip, each with its slot, by canonical name."""
    by_name: dict[str, list[tuple[int, Series]]] = defaultdict(list)
    for slot, series in enumerate(reader.series):
        if not any(label in series.labels for label in skip):
            by_name[profile.canonical(series.name)].append((slot, series))
    return by_name


def _hits(page: _Page, signal: Signal, family: Family) -> list[_Hit]:
    if family.help is not None and not _help_has(page, family):
        return []
    if family.per_block and page.block_size is None:
        return []
    factor = family.factor * (page.block_size or 1.0 if family.per_block else 1.0)
    found = [
        _Hit(slot, series, part, family, factor)
        for part in suffixes(signal.kind)
        for slot, series in page.by_name.get(family.name + part, ())
        if all(series.labels.get(label) == value for label, value in family.where)
    ]
    if found and family.less is not None:
        own = page.by_name.get(f"{family.less}_sum", ())
        found += [_Hit(slot, series, _LESS, family, factor) for slot, series in own]
    return found


def _help_has(page: _Page, family: Family) -> bool:
    # The HELP line of a counter has its name with or without `_total`, as its exporter pleases.
    names = {family.name, family.name.removesuffix("_total")}
    spelled = [one for name in sorted(names) for one in page.profile.spellings(name)]
    return any((family.help or "") in page.helps[name] for name in spelled if name in page.helps)


def _block_size(
    profile: Profile, by_name: Mapping[str, Sequence[tuple[int, Series]]]
) -> float | None:
    for info in profile.kv_cache:
        for _, series in by_name.get(info.name or "", ()):
            found = _whole(series, info.block_size)
            if found is not None:
                return float(found)
    return None


def _whole(series: Series, label: str | None) -> int | None:
    """Return the whole number above 0 in a label; `None` = there is none."""
    text = series.labels.get(label or "", "")
    digits = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return (int(text) or None) if digits else None


def _kv_cache(profile: Profile, reader: ExpositionParser) -> _CacheSizes:
    """Return where a page reports how large its KV caches are."""
    by_name = _by_name(profile, reader)
    labels: dict[str, Sequence[int | None]] = {}
    slots: dict[str, Sequence[int]] = {}
    for info in profile.kv_cache:
        for fact, name in info.sizes.items():
            series = by_name.get(info.name or name, ())
            found = _lowest_rank(series, profile.one_of, itemgetter(1))
            if not found or fact in labels or fact in slots:
                continue
            if info.name is None:
                slots[fact] = [slot for slot, _ in found]
            else:
                labels[fact] = [_whole(one, name) for _, one in found]
    return _CacheSizes(labels, slots)


def _kv_facts(sizes: _CacheSizes, values: Sequence[float | None]) -> dict[str, int]:
    """Return the sizes of the KV caches of a page, added up over its engines."""
    read = {fact: [_size(values[slot]) for slot in slots] for fact, slots in sizes.slots.items()}
    known: dict[str, list[int]] = {}
    for fact, each in {**sizes.labels, **read}.items():
        whole = [one for one in each if one is not None]
        if len(whole) == len(each):
            known[fact] = whole
    blocks, block = known.get("kv_cache_blocks", ()), known.get(BLOCK_SIZE, ())
    if "kv_cache_tokens" not in known and blocks and len(blocks) == len(block):
        known["kv_cache_tokens"] = [n * size for n, size in zip(blocks, block, strict=True)]
    if len(set(block)) > 1:
        del known[BLOCK_SIZE]
    return {fact: each[0] if fact == BLOCK_SIZE else sum(each) for fact, each in known.items()}


def _size(value: float | None) -> int | None:
    """Return a gauge as a whole number above 0; an engine that starts reports 0."""
    return int(value) if value is not None and 1 <= value < _INFINITY else None


def _lowest_rank(hits: Sequence[T], ranks: tuple[str, ...], of: Callable[[T], Series]) -> list[T]:
    """Of series that differ only in their rank, keep the one with the lowest."""
    if not ranks:
        return list(hits)
    first: dict[object, tuple[object, T]] = {}
    for hit in hits:
        series = of(hit)
        rest = tuple(sorted((k, v) for k, v in series.labels.items() if k not in ranks))
        rank = tuple(_number(series.labels.get(label, "")) for label in ranks)
        key = (series.name, rest)
        if key not in first or rank < first[key][0]:  # type: ignore[operator]
            first[key] = (rank, hit)
    return [hit for _, hit in first.values()]


def _number(text: str) -> tuple[int, str]:
    return (int(text[:9]), "") if text[:9].isdecimal() else (-1, text)


def _groups(profile: Profile, chosen: Mapping[str, list[_Hit]]) -> list[_Group]:
    groups: dict[tuple[str, Labels], _Group] = {}
    for name, hits in chosen.items():
        signal = SIGNALS[name]
        for hit in hits:
            labels = _labels(profile, signal, hit)
            key = (name, labels)
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group(signal, labels, hit.factor)
            if hit.part == "_bucket":
                bound = _bound(hit.series.labels.get("le", ""))
                if bound is not None:
                    group.buckets.setdefault(bound * hit.factor, []).append(hit.slot)
            elif hit.part == "_sum":
                group.sums.append(hit.slot)
            elif hit.part == "_count":
                group.counts.append(hit.slot)
            elif hit.part == _LESS:
                group.less.append(hit.slot)
            else:
                group.values.append(hit.slot)
    for group in groups.values():
        group.finish()
    return list(groups.values())


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if bound != bound else bound  # noqa: PLR0124 - NaN is no bound


def _labels(profile: Profile, signal: Signal, hit: _Hit) -> Labels:
    found = [("engine", profile.engine)]
    for ours, theirs in profile.labels:
        values = [hit.series.labels.get(label, "")[:_MAX_TEXT] for label in theirs]
        there = [value for value in values if value]
        if there:
            # A replica joins all its labels; of the others the first that is there counts.
            found.append((ours, "/".join(there) if ours == "replica" else there[0]))
    if signal.label is not None:
        family = hit.family
        own = family.say or hit.series.labels.get(family.label or "", "")[:_MAX_TEXT]
        if own:
            found.append((signal.label, own))
    return tuple(found)


def _versions(
    profile: Profile, reader: ExpositionParser, chosen: Mapping[str, list[_Hit]]
) -> tuple[Version | None, Version | None]:
    """Return the oldest and newest version that has the names on the page."""
    names = {profile.canonical(series.name) for series in reader.series}
    used = {hit.family for hits in chosen.values() for hit in hits}
    oldest: Version | None = None
    newest: Version | None = None
    for _, _, family in profile.families():
        there = family in used or (
            family.help is None and any(family.name + part in names for part in ("", "_count"))
        )
        if there:
            if family.since and (oldest is None or family.since > oldest):
                oldest = family.since
            if family.until and (newest is None or family.until < newest):
                newest = family.until
    if oldest and newest and newest < oldest:
        newest = None
    return oldest, newest


def _missing(
    profile: Profile,
    chosen: Mapping[str, list[_Hit]],
    oldest: Version | None,
    *,
    skip_engine: bool,
) -> list[Missing]:
    found = []
    for name, families in profile.signals.items():
        if name in chosen or (skip_engine and SIGNALS[name].subsystem == "engine"):
            continue
        names = tuple(dict.fromkeys(family.name for family in families))
        found.append(Missing(profile.engine, name, names, _why(families, oldest)))
    found += [Missing(profile.engine, name, (), why) for name, why in profile.absent.items()]
    return found


def _why(families: Sequence[Family], oldest: Version | None) -> str | None:
    """Explain why a signal is missing; `None` = nothing explains it.

    Names on the page bound its version from below. What came later may well be missing.
    """
    untils = [family.until for family in families if family.until]
    if oldest and len(untils) == len(families) and max(untils) < oldest:
        return f"gone after {show_version(max(untils))}"
    sinces = [family.since for family in families if family.since]
    if oldest and len(sinces) == len(families) and min(sinces) > oldest:
        return f"from {show_version(min(sinces))} on"
    conditions = [family.when for family in families if family.when]
    if len(conditions) == len(families):
        return f"only when {conditions[0]}"
    return None


def _reading(profiles: tuple[Profile, ...], plan: _Plan, values: list[float | None]) -> Reading:
    measured, no_value = [], []
    partial = None in values
    for group in plan.groups:
        value = (
            _distribution(group, values, partial=partial)
            if group.signal.kind == "histogram"
            else _merged(group, values)
        )
        if value is not None:
            measured.append(Measured(group.signal, group.labels, value))
        else:
            no_value.append(Missing(dict(group.labels)["engine"], group.signal.name, (), None))
    return Reading(
        profiles=tuple(profile.engine for profile in profiles),
        measured=tuple(measured),
        missing=plan.missing,
        no_value=tuple(dict.fromkeys(no_value)),
        started=values[plan.started] if plan.started is not None else None,
        cpu_s=values[plan.cpu] if plan.cpu is not None else None,
        kv_cache=_kv_facts(plan.kv_cache, values),
        oldest=plan.oldest,
        newest=plan.newest,
    )


def _merged(group: _Group, values: list[float | None]) -> float | None:
    """Merge a group's values; one that is negative, infinite or NaN counts as missing."""
    there = [v for v in (values[slot] for slot in group.values) if v is not None and _counts(v)]
    if not there:
        return None
    if group.signal.merge == "mean":
        merged = sum(there) / len(there)
    else:
        merged = max(there) if group.signal.merge == "max" else sum(there)
    merged *= group.factor
    return merged if _counts(merged) else None


def _counts(value: float) -> bool:
    """Return whether a value is valid for a signal: finite, and not below 0."""
    return 0 <= value < _INFINITY


def _distribution(
    group: _Group, values: list[float | None], *, partial: bool
) -> Distribution | None:
    if group.pick is not None:
        total, count, *rest = group.pick(values)
        if total is None or count is None or (partial and None in rest):
            return None
        counts: tuple[float, ...] = tuple(rest)
    else:
        sums = [v for v in (values[slot] for slot in group.sums) if v is not None]
        numbers = [v for v in (values[slot] for slot in group.counts) if v is not None]
        if not sums or not numbers:
            return None
        total, count = sum(sums), sum(numbers)
        total = max(0.0, total - sum(values[slot] or 0.0 for slot in group.less))
        counts = tuple(
            sum(v for v in (values[slot] for slot in group.buckets[bound]) if v is not None)
            for bound in group.bounds
        )
    if not (_counts(total) and _counts(count)):
        return None
    return Distribution(group.bounds, counts, total * group.factor, count)
