"""Read settings from a file, the environment and the command line, and check them.

Settings are dataclasses whose fields say how their value is read. An error names the file and
line, the key, and what would be valid.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import yaml

from llmtrace.api_clients.http_client import read_token
from llmtrace.budget.yaml_loader import load_yaml
from llmtrace.core.errors import ConfigError, explain_error

T = TypeVar("T")
Key = tuple[str, ...]

_MAX_BYTES: Final = 1 << 20
_MIN_TOKEN: Final = 16


@dataclass(frozen=True, slots=True)
class Where:
    """Where a value was given.

    Attributes:
        text: for people: file, line and key; a variable; a flag.
        base: the folder that relative paths start from.
    """

    text: str
    base: Path

    def wrong(self, words: str) -> ConfigError:
        """Make an error that says where the setting was given."""
        return ConfigError(f"{self.text}: {words}")

    def at(self, part: str) -> Where:
        """Return the place of a part of this value."""
        return Where(f"{self.text}{part}", self.base)


Read = Callable[[Any, Where], T]


@dataclass(frozen=True, slots=True)
class Given:
    """A value of a setting, as it was written."""

    value: Any
    where: Where


def setting(default: T, read: Read[T], words: str) -> T:
    """Make a field that is a setting.

    Args:
        default: the value where the setting is left out.
        read: converts what was given; raises `ConfigError`.
        words: what it is, for the documentation.
    """
    made: T = field(default=default, metadata={"read": read, "words": words})
    return made


def leaves(kind: type[Any], above: Key = ()) -> Iterator[tuple[Key, Any, str]]:
    """Yield the key, default and description of every setting below a class of settings."""
    hints = get_type_hints(kind)
    for one in fields(kind):
        key = (*above, one.name)
        if is_dataclass(hints[one.name]) and "read" not in one.metadata:
            yield from leaves(hints[one.name], key)
        else:
            yield key, one.default, one.metadata["words"]


def variable(prefix: str, key: Key) -> str:
    """Name the environment variable of a setting."""
    return "_".join((prefix, *key)).upper()


def from_file(file: Path) -> dict[Key, Given]:
    """Return the values in a YAML file, by key, at every depth.

    Raises:
        ConfigError: it cannot be read, or is not a mapping.
    """
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{file}: larger than 1 MiB, which no configuration is")
        written = file.read_text(encoding="utf-8")
        content = load_yaml(written)
        root = yaml.compose(written, Loader=yaml.SafeLoader)
        found = dict(_walk(content, root, file, ()))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}: cannot read this configuration: {explain_error(error)}"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not YAML: {explain_error(error)}") from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigError(f"{file}: a configuration is a mapping such as {{listen: {{...}}}}")
    return found


def _walk(content: Any, node: Any, file: Path, above: Key) -> Iterator[tuple[Key, Given]]:
    if not isinstance(content, Mapping):
        return
    nodes = {str(name.value): (name, value) for name, value in node.value}
    for name, value in content.items():
        key = (*above, str(name))
        # A merged mapping (`<<`) has its keys elsewhere.
        at, below = nodes.get(str(name), (node, None))
        where = Where(f"{file}:{at.start_mark.line + 1}: {'.'.join(key)}", file.parent)
        yield key, Given(value, where)
        if below is not None:
            yield from _walk(value, below, file, key)


def from_environment(
    kind: type[Any], prefix: str, environment: Mapping[str, str]
) -> dict[Key, Given]:
    """Return the values in the environment: YAML, as in the file, or else the text itself.

    Raises:
        ConfigError: a variable that begins with the prefix names no setting.
    """
    named = {variable(prefix, key): key for key, _, _ in leaves(kind)}
    found = {}
    for name, written in environment.items():
        if not name.startswith(f"{prefix}_"):
            continue
        where = Where(name, Path())
        if name not in named:
            raise where.wrong(f"no such setting{_nearest(name, named)}")
        value: Any = written
        # Text such as `[::]:4319` is not YAML without quotes, which the shell has removed.
        with suppress(yaml.YAMLError, ValueError, RecursionError):
            value = yaml.safe_load(written)
        found[named[name]] = Given(value, where)
    return found


def build(kind: type[T], *given: Mapping[Key, Given]) -> T:
    """Make the settings from layers of given values; the first layer takes precedence.

    Raises:
        ConfigError: a key names no setting, or a value is wrong.
    """
    known = {key for key, _, _ in leaves(kind)}
    groups = {key[:depth] for key in known for depth in range(1, len(key))}
    for one in given:
        for key, found in one.items():
            if any(key[:depth] in known for depth in range(1, len(key))):
                continue  # inside a setting's own value
            if key in groups and found.value is not None and not isinstance(found.value, Mapping):
                raise found.where.wrong("must hold settings, as in {name: value}")
            if key not in known and key not in groups:
                near = [".".join(one) for one in (*known, *groups) if len(one) == len(key)]
                raise found.where.wrong(f"no such setting{_nearest('.'.join(key), near)}")
    return _build(kind, (), given)


def _build(kind: type[T], above: Key, given: tuple[Mapping[Key, Given], ...]) -> T:
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]  # a dataclass, as its callers see to
        key = (*above, one.name)
        if "read" not in one.metadata:
            values[one.name] = _build(hints[one.name], key, given)
            continue
        # An empty value is none: the next layer's is taken.
        layers = (layer[key] for layer in given if key in layer)
        if found := next((one for one in layers if one.value is not None), None):
            values[one.name] = one.metadata["read"](found.value, found.where)
        elif one.default is MISSING:
            raise ConfigError(f"{'.'.join(key)} must be given")
    return kind(**values)


def _nearest(name: str, names: Any) -> str:
    near = difflib.get_close_matches(name, [*names], n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(names))}"


# --- how values are read ------------------------------------------------------------------------


def text(value: Any, where: Where) -> str:
    """Read a text that has one line."""
    if isinstance(value, str) and value and value.isprintable():
        return value
    raise where.wrong(f"{value!r} is not a text of one line")


def flag(value: Any, where: Where) -> bool:
    """Read a switch: true or false."""
    if isinstance(value, bool):
        return value
    raise where.wrong(f"{value!r} is neither true nor false")


def number(least: float, most: float, what: str) -> Read[float]:
    """Return a reader of numbers within bounds."""

    def read(value: Any, where: Where) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):  # noqa: SIM102
            if least <= value <= most:
                return value
        raise where.wrong(f"{value!r} is not {what} from {least:g} to {most:g}")

    return read


def whole(least: int, most: int, what: str) -> Read[int]:
    """Return a reader of whole numbers within bounds."""

    def read(value: Any, where: Where) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise where.wrong(f"{value!r} is not {what} from {least} to {most}, a whole number")

    return read


def one_of(*words: str) -> Read[str]:
    """Return a reader of one of these words."""

    def read(value: Any, where: Where) -> str:
        # In YAML 1.1 on, off, yes and no are booleans.
        said = {True: "on", False: "off"}.get(value) if isinstance(value, bool) else value
        if said in words:
            return str(said)
        raise where.wrong(f"{value!r} is not one of {', '.join(words)}")

    return read


def path(value: Any, where: Where) -> Path:
    """Read a path; a relative one starts from the folder of the file it is in."""
    if re.search(r"\$[{\w]", text(value, where)):
        raise where.wrong(f"{value}: variables are not expanded here; write the path itself")
    try:
        said = Path(value).expanduser()
    except RuntimeError:
        raise where.wrong(f"{value}: no such home folder; write a whole path") from None
    return said if said.is_absolute() else where.base / said


def token_there(value: Any, where: Where) -> Path:
    """Read the path of a file, and check that it holds a token, however short: another's."""
    found = path(value, where)
    read_token(found, where.text)
    return found


def token_file(value: Any, where: Where) -> Path:
    """Read the path of a file, and check that it holds a token that cannot be guessed."""
    found = path(value, where)
    if len(read_token(found, where.text)) < _MIN_TOKEN:
        raise where.wrong(
            f"{found} must hold {_MIN_TOKEN} characters at least, such as "
            "`openssl rand -hex 32` prints"
        )
    return found


def file_there(value: Any, where: Where) -> Path:
    """Read the path of a file that exists."""
    found = path(value, where)
    if not found.is_file():
        raise where.wrong(f"there is no file {found}")
    return found


def each(read: Read[T]) -> Read[tuple[T, ...]]:
    """Return a reader of lists; a single value is a list of one."""

    def read_all(value: Any, where: Where) -> tuple[T, ...]:
        listed = value if isinstance(value, list) else [value]
        return tuple(read(one, where.at(f"[{place}]")) for place, one in enumerate(listed))

    return read_all
