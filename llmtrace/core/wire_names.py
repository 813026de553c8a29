"""Declare a field's name on the wire and its meaning where the field itself is declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

Kind = Literal["string", "string[]", "int", "double", "boolean", "seconds"]

_KINDS: Final[dict[str, Kind]] = {
    "str": "string", "Outcome": "string", "bool": "boolean", "int": "int", "float": "double",
    "Reported": "seconds",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attribute:
    """One line of the tables: a field, its name on the wire, and what it means.

    Attributes:
        field: its name in the code, without the unit of nanoseconds.
        name: of the span attribute.
        kind: of its values; `seconds` are doubles on the wire and nanoseconds in the code.
        meaning: for people.
        key: its name in a row's JSON, without the unit of `seconds`.
        in_columns: whether analyses keep it in memory for each of a million rows.
    """

    field: str
    name: str
    kind: Kind
    meaning: str
    key: str = ""
    in_columns: bool = True


def wired(
    name: str,
    meaning: str,
    default: Any = None,
    *,
    key: str | None = None,
    in_columns: bool = True,
) -> Any:
    """Declare a field of a dataclass that has a name on the wire.

    Args:
        name: of the span attribute.
        meaning: for people, in documents and in the store.
        default: of the field.
        key: its name in a row's JSON, where that is not the field's.
        in_columns: whether analyses keep it in memory for each of a million rows.
    """
    return field(default=default, metadata={"wire": (name, meaning, key, in_columns)})


def wired_fields(owner: type, *, seconds: bool = False) -> Iterator[Attribute]:
    """Yield the wired fields of a dataclass in their order; whole numbers may be `seconds`."""
    for one in fields(owner):
        if "wire" not in one.metadata:
            continue
        name, meaning, key, in_columns = one.metadata["wire"]
        plain = one.name.removesuffix("_ns")
        duration = seconds or plain != one.name
        kind = "seconds" if duration else _KINDS[str(one.type).removesuffix(" | None")]
        yield Attribute(plain, name, kind, meaning, key or plain, in_columns)
