"""Read the profiles: where each engine, gateway and GPU exporter keeps which signal.

One YAML file each, in `profiles/`; read here, and checked to the last key when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

import yaml

from llmtrace.budget.yaml_loader import load_yaml
from llmtrace.core.errors import ConfigError, explain_error
from llmtrace_collector.signals.definitions import SIGNALS, Signal, suffixes

Evidence = Literal[
    "seen",  # on a page of a real process
    "source",  # read in the project's source
    "docs",  # documents, or programs that read it
    "memory",  # not verified at all
]
ProfileKind = Literal["engine", "gateway", "gpu"]
Probe = Literal[
    "missing",  # shown where the signal is missing
    "buckets",  # shown where the signal's first bucket is too wide
    "inband",  # shown where a response carries no engine figures
    "request_id",  # shown where a response's headers carry no request id
    "unseen",  # cannot be seen from outside: always shown
]

# What a page's value is multiplied by, for seconds, bytes, hertz, watts, joules and ratios.
UNITS: Final[Mapping[str, float]] = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "percent": 0.01, "MiB": 1048576.0, "MHz": 1e6, "mJ": 1e-3,
    "mW": 1e-3,
}  # fmt: skip

BLOCK_SIZE: Final = "block_size"  # the one size that is the same for all engines of a page
_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_VERSION: Final = re.compile(r"[0-9]+(\.[0-9]+)*")
_MAX_BYTES: Final = 1 << 20
_PROFILE_KEYS: Final = (
    "engine", "title", "kind", "checked", "path", "prefix", "prefix_aliases", "recognise",
    "unless", "skip_labels", "labels", "one_of", "version", "kv_cache", "signals", "absent",
    "advice",
)  # fmt: skip
_FAMILY_KEYS: Final = (
    "name", "evidence", "since", "until", "unit", "where", "label", "say", "also", "help",
    "per_block", "less", "when", "note",
)  # fmt: skip
_ADVICE_KEYS: Final = ("set", "why", "since", "probe", "signal", "finest_s")

Version = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family that gives a signal.

    Attributes:
        since: first version that has it; `until` = the last. `None` = not known.
        factor: what its values are multiplied by.
        where: labels and the value each must have.
        label: the label that gives the signal's own; `say` = a fixed value for it instead.
        also: used in addition to the family before it, not instead of it.
        help: words its HELP line must have, where versions differ in nothing but the unit.
        per_block: counts blocks of the KV cache, not tokens.
        less: a histogram whose time this one includes, and which is subtracted: only the means of
            two distributions can be subtracted, so no buckets are left.
        when: the condition under which it is there at all.
    """

    name: str
    evidence: Evidence
    since: Version | None = None
    until: Version | None = None
    factor: float = 1.0
    where: tuple[tuple[str, str], ...] = ()
    label: str | None = None
    say: str | None = None
    also: bool = False
    help: str | None = None
    per_block: bool = False
    less: str | None = None
    when: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A setting that an operator may want, and how to see whether it is in effect."""

    set: str
    why: str
    probe: Probe
    since: Version | None = None
    signal: str | None = None
    finest_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheInfo:
    """One way in which a page reports how large the KV cache is; `None` = it does not.

    Attributes:
        name: of an info metric that has the others as labels; `None` = the others are gauges.
        block_size: tokens in a block.
        blocks, tokens, bytes: of the whole cache.
    """

    name: str | None = None
    block_size: str | None = None
    blocks: str | None = None
    tokens: str | None = None
    bytes: str | None = None

    @property
    def sizes(self) -> Mapping[str, str]:
        """Labels, or gauges, by the names of the facts they hold."""
        facts = {
            "kv_cache_tokens": self.tokens, "kv_cache_blocks": self.blocks,
            "kv_cache_bytes": self.bytes, BLOCK_SIZE: self.block_size,
        }  # fmt: skip
        return {fact: name for fact, name in facts.items() if name is not None}

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that it is read from."""
        return tuple(self.sizes.values()) if self.name is None else (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All that is known of one engine's, gateway's or exporter's page.

    Attributes:
        path: where the page is.
        prefix_aliases: prefixes that another exporter or format uses in place of `prefix`.
        recognise: names that identify the page, one is enough; a name of `unless` rules it out.
        skip_labels: a series with one of these is another exporter's.
        labels: our labels, and the page's labels that each value is made from.
        one_of: labels that distinguish series which report the same thing.
        version: where the version is reported: path, and key of the JSON there.
        kv_cache: ways in which its size may be reported; the first that is on a page counts.
        absent: signals that are not available, and why.
        sample_names: all samples that are read, by their canonical names.
    """

    engine: str
    title: str
    kind: ProfileKind
    path: str
    prefix: str
    recognise: tuple[str, ...]
    labels: tuple[tuple[str, tuple[str, ...]], ...]
    signals: Mapping[str, tuple[Family, ...]]
    checked: str | None = None
    prefix_aliases: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    skip_labels: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    version: tuple[str, str] | None = None
    kv_cache: tuple[KvCacheInfo, ...] = ()
    absent: Mapping[str, str]
    advice: tuple[Advice, ...] = ()
    sample_names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Collect the names of all samples that are read."""
        names = {name for info in self.kv_cache for name in info.metrics}
        for signal, _, family in self.families():
            for name in filter(None, (family.name, family.less)):
                names |= {name + suffix for suffix in suffixes(signal.kind)}
        object.__setattr__(self, "sample_names", frozenset(names))

    def canonical(self, name: str) -> str:
        """Return a name on the page with this profile's own prefix."""
        for alias in self.prefix_aliases:
            if name.startswith(alias):
                return self.prefix + name[len(alias) :]
        return name

    def spellings(self, name: str) -> list[str]:
        """Return every name that a canonical name may have on a page, itself first."""
        if not name.startswith(self.prefix):
            return [name]
        heads = (self.prefix, *self.prefix_aliases)
        return [head + name[len(self.prefix) :] for head in heads]

    def wants(self, name: str) -> bool:
        """Say whether a sample of this name is of any use to this profile."""
        return self.canonical(name) in self.sample_names

    def families(self) -> Iterator[tuple[Signal, int, Family]]:
        """Yield every family with its signal and its place in the signal's list."""
        for signal, families in self.signals.items():
            for place, family in enumerate(families):
                yield SIGNALS[signal], place, family


def parse_version(text: str) -> Version:
    """Read `0.10.2` (and what follows it, as in `0.10.2.dev3+cpu`) as numbers.

    Raises:
        ValueError: it does not begin with a number.

    Example:
        >>> parse_version("0.10.2rc1")
        (0, 10, 2)
    """
    found = _VERSION.match(text.removeprefix("v"))
    if found is None:
        raise ValueError(f"{text!r} is not a version such as 0.32.0")
    return tuple(int(part[:9]) for part in found[0].split("."))


def show_version(version: Version | None) -> str:
    """Write a version as its project does; `?` if it is not known."""
    return ".".join(str(part) for part in version) if version else "?"


@cache
def builtin_profiles() -> tuple[Profile, ...]:
    """Return the profiles that come with the collector, engines first."""
    folder = files("llmtrace_collector") / "profiles"
    found = [
        parse_profile(entry.read_text(encoding="utf-8"), f"profiles/{entry.name}")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".yaml")
    ]
    return _in_order(found)


def load_profiles(folder: Path) -> tuple[Profile, ...]:
    """Return the built-in profiles and those of a folder, which replace those of the same name.

    Raises:
        ConfigError: a file is not a profile; says which, where in it, and how to fix it.
    """
    own = []
    try:
        paths = sorted(folder.glob("*.yaml"))
        for path in paths:
            if path.stat().st_size > _MAX_BYTES:
                raise ConfigError(f"{path}: larger than 1 MiB, which no profile is")
            own.append(parse_profile(path.read_text(encoding="utf-8"), str(path)))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{folder}: cannot read the profiles there: {explain_error(error)}"
        ) from error
    if not own:
        raise ConfigError(f"{folder}: no *.yaml in it; a profile is one YAML file")
    replaced = {profile.engine for profile in own}
    return _in_order([*own, *(one for one in builtin_profiles() if one.engine not in replaced)])


def _in_order(profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    kinds = get_args(ProfileKind)
    return tuple(sorted(profiles, key=lambda one: (kinds.index(one.kind), one.engine)))


def parse_profile(text: str, where: str) -> Profile:
    """Read one profile from YAML; `where` names the file in errors.

    Raises:
        ConfigError: it is not a profile; says which file and key, and how to fix it.
    """
    try:
        content = load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not YAML: {explain_error(error)}") from error
    read = _Reader(where)
    top = read.mapping(content, "", _PROFILE_KEYS)
    kind = read.one_of(top.get("kind"), "kind", get_args(ProfileKind))
    prefix = read.text(top.get("prefix"), "prefix")
    profile = Profile(
        engine=read.text(top.get("engine"), "engine"),
        title=read.text(top.get("title"), "title"),
        kind=kind,
        path=_path(read, top.get("path")),
        prefix=prefix,
        prefix_aliases=(
            *read.texts(top.get("prefix_aliases", []), "prefix_aliases"),
            # As a newer prometheus_client writes it in OpenMetrics, where `:` is `_`.
            *([f"{prefix[:-1]}_"] if prefix.endswith(":") else []),
        ),
        recognise=read.names(top.get("recognise"), "recognise"),
        unless=read.texts(top.get("unless", []), "unless"),
        skip_labels=read.texts(top.get("skip_labels", []), "skip_labels"),
        labels=_labels(read, top.get("labels"), kind),
        one_of=read.texts(top.get("one_of", []), "one_of"),
        version=_version(read, top.get("version")),
        kv_cache=_kv_cache(read, top.get("kv_cache")),
        checked=read.maybe_text(top.get("checked"), "checked"),
        signals=_signals(read, top.get("signals")),
        absent=_absent(read, top.get("absent", {})),
        advice=_advice(read, top.get("advice", [])),
    )
    _check_whole(read, profile)
    return profile


class _Reader:
    """Reads and checks the values in parsed YAML; its errors say which key is wrong."""

    def __init__(self, where: str) -> None:
        self._where = where

    def wrong(self, key: str, words: str) -> ConfigError:
        """Make the error that names the profile's file and the key."""
        return ConfigError(f"{self._where}: {key}: {words}" if key else f"{self._where}: {words}")

    def mapping(self, value: Any, key: str, known: Sequence[str]) -> Mapping[str, Any]:
        """Return a value that must be a mapping with no other keys than the known ones."""
        if not isinstance(value, Mapping):
            raise self.wrong(key, f"must be a mapping with the keys {', '.join(known)}")
        for name in value:
            if name not in known:
                raise self.wrong(key, f"unknown key {name!r}; there are {', '.join(known)}")
        return value

    def listing(self, value: Any, key: str) -> list[Any]:
        """Return a value that must be a list."""
        if not isinstance(value, list):
            raise self.wrong(key, f"must be a list, not {value!r}")
        return value

    def text(self, value: Any, key: str) -> str:
        """Return a text that is not empty."""
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, f"must be a text, not {value!r}; quote it if it is one")
        return value

    def maybe_text(self, value: Any, key: str) -> str | None:
        """Return a text, or `None` if there is none."""
        return None if value is None else self.text(value, key)

    def texts(self, value: Any, key: str) -> tuple[str, ...]:
        """Return a value that must be a list of texts."""
        return tuple(self.text(one, key) for one in self.listing(value, key))

    def names(self, value: Any, key: str) -> tuple[str, ...]:
        """Return metric names, one at least."""
        names = self.texts(value, key)
        if not names:
            raise self.wrong(key, "name at least one metric that only this page has")
        return tuple(self.name(one, key) for one in names)

    def name(self, value: Any, key: str) -> str:
        """Return a value that must be a metric's name."""
        text = self.text(value, key)
        if _NAME.fullmatch(text) is None:
            raise self.wrong(key, f"{text!r} is not the name of a metric")
        return text

    def flag(self, value: Any, key: str) -> bool:
        """Return a value that must be true or false."""
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, not {value!r}")
        return value

    def version(self, value: Any, key: str) -> Version | None:
        """Return a version, or `None` if there is none."""
        if value is None:
            return None
        try:
            return parse_version(self.text(value, key))
        except ValueError as error:
            raise self.wrong(key, str(error)) from error

    def one_of(self, value: Any, key: str, choices: Sequence[T]) -> T:
        """Return a value that must be one of those allowed."""
        for choice in choices:
            if value == choice:
                return choice
        shown = ", ".join(str(choice) for choice in choices)
        raise self.wrong(key, f"{value!r} is none of {shown}")


def _path(read: _Reader, value: Any) -> str:
    path = read.text(value, "path")
    if not path.startswith("/"):
        raise read.wrong("path", f"{path!r} must start with /")
    return path


def _labels(read: _Reader, value: Any, kind: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    allowed = (
        ("gpu", "uuid", "model", "host", "instance") if kind == "gpu" else ("model", "replica")
    )
    found = read.mapping(value, "labels", allowed)
    return tuple(
        (name, read.texts(found[name], f"labels.{name}")) for name in allowed if name in found
    )


def _version(read: _Reader, value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    found = read.mapping(value, "version", ("path", "key", "evidence"))
    path, key = (read.text(found.get(name), f"version.{name}") for name in ("path", "key"))
    return path, key


def _kv_cache(read: _Reader, value: Any) -> tuple[KvCacheInfo, ...]:
    """Read one way to report the size, or a list of them."""
    if value is None:
        return ()
    if not isinstance(value, list):
        return (_kv_cache_info(read, value, "kv_cache"),)
    return tuple(
        _kv_cache_info(read, one, f"kv_cache[{place}]") for place, one in enumerate(value)
    )


def _kv_cache_info(read: _Reader, value: Any, where: str) -> KvCacheInfo:
    found = read.mapping(value, where, [one.name for one in fields(KvCacheInfo)])
    return KvCacheInfo(**{name: read.text(found[name], f"{where}.{name}") for name in found})


def _signals(read: _Reader, value: Any) -> Mapping[str, tuple[Family, ...]]:
    found = read.mapping(value, "signals", tuple(SIGNALS))
    return {
        name: tuple(
            _family(read, one, f"signals.{name}[{place}]", SIGNALS[name], first=place == 0)
            for place, one in enumerate(read.listing(families, f"signals.{name}"))
        )
        for name, families in found.items()
    }


def _family(read: _Reader, value: Any, key: str, signal: Signal, *, first: bool) -> Family:
    found = read.mapping(value, key, _FAMILY_KEYS)
    where = found.get("where", {})
    if not isinstance(where, Mapping):
        raise read.wrong(f"{key}.where", "must map a label to the value it has")
    unit = found.get("unit")
    if unit is not None:
        read.one_of(unit, f"{key}.unit", tuple(UNITS))
    family = Family(
        name=read.name(found.get("name"), f"{key}.name"),
        evidence=read.one_of(found.get("evidence"), f"{key}.evidence", get_args(Evidence)),
        since=read.version(found.get("since"), f"{key}.since"),
        until=read.version(found.get("until"), f"{key}.until"),
        factor=UNITS[unit] if unit is not None else 1.0,
        where=tuple((str(k), read.text(v, f"{key}.where.{k}")) for k, v in where.items()),
        label=read.maybe_text(found.get("label"), f"{key}.label"),
        say=read.maybe_text(found.get("say"), f"{key}.say"),
        also=read.flag(found.get("also", False), f"{key}.also"),
        help=read.maybe_text(found.get("help"), f"{key}.help"),
        less=None if found.get("less") is None else read.name(found["less"], f"{key}.less"),
        per_block=read.flag(found.get("per_block", False), f"{key}.per_block"),
        when=read.maybe_text(found.get("when"), f"{key}.when"),
        note=read.maybe_text(found.get("note"), f"{key}.note"),
    )
    if family.also and first:
        raise read.wrong(f"{key}.also", "there is none before it that it could be beside")
    if family.less is not None and signal.kind != "histogram":
        raise read.wrong(f"{key}.less", f"{signal.name} is no histogram")
    if family.since and family.until and family.since > family.until:
        raise read.wrong(f"{key}.until", "is before since")
    if (family.label is None and family.say is None) == (signal.label is not None):
        if signal.label is None:
            raise read.wrong(key, f"{signal.name} has no label of its own; drop label and say")
        raise read.wrong(key, f"{signal.name} needs label (where its {signal.label} is) or say")
    return family


def _absent(read: _Reader, value: Any) -> Mapping[str, str]:
    found = read.mapping(value, "absent", tuple(SIGNALS))
    return {name: read.text(why, f"absent.{name}") for name, why in found.items()}


def _advice(read: _Reader, value: Any) -> tuple[Advice, ...]:
    made = []
    for place, one in enumerate(read.listing(value, "advice")):
        key = f"advice[{place}]"
        found = read.mapping(one, key, _ADVICE_KEYS)
        signal = found.get("signal")
        if signal is not None:
            read.one_of(signal, f"{key}.signal", tuple(SIGNALS))
        finest = found.get("finest_s")
        if finest is not None and (
            isinstance(finest, bool) or not isinstance(finest, int | float)
        ):
            raise read.wrong(f"{key}.finest_s", f"must be seconds, not {finest!r}")
        probe = read.one_of(found.get("probe"), f"{key}.probe", get_args(Probe))
        if probe in {"missing", "buckets"} and signal is None:
            raise read.wrong(key, f"probe {probe} needs the signal it looks at")
        if probe == "buckets" and finest is None:
            raise read.wrong(
                key, "probe buckets needs finest_s, the widest first bucket that does"
            )
        made.append(
            Advice(
                set=read.text(found.get("set"), f"{key}.set"),
                why=read.text(found.get("why"), f"{key}.why"),
                probe=probe,
                since=read.version(found.get("since"), f"{key}.since"),
                signal=signal,
                finest_s=finest,
            )
        )
    return tuple(made)


def _check_whole(read: _Reader, profile: Profile) -> None:
    both = set(profile.signals) & set(profile.absent)
    if both:
        raise read.wrong("absent", f"{', '.join(sorted(both))} is among the signals too")
    if not profile.signals:
        raise read.wrong("signals", "a profile without a signal reads nothing")
    if not any(one.name and one.block_size for one in profile.kv_cache):
        for signal, place, family in profile.families():
            if family.per_block:
                key = f"signals.{signal.name}[{place}].per_block"
                raise read.wrong(key, "needs kv_cache, which tells the tokens in a block")
