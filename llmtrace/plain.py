"""What can be shown of a value of any kind, within bounds?

A copy of it that is plain data: numbers, texts, lists, dictionaries. What is something else is
shown by its type, since to ask it for a text would be to run somebody's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOST_ITEMS: Final = 1_000
_DEEPEST: Final = 8
CUT: Final = "…[cut]"


def plain(value: Any, characters: int) -> Any:
    """Copy a value as plain data.

    What is too deep, too long or too much is replaced by a mark; what is no data, by its type.

    Args:
        value: anything.
        characters: most characters of text to copy in all.
    """
    return _Copy(characters).of(value, 0)


class _Copy:
    """One copying, within bounds."""

    __slots__ = ("_characters", "_items")

    def __init__(self, characters: int) -> None:
        self._characters = characters
        self._items = _MOST_ITEMS

    def of(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self._text(value)
        if depth > _DEEPEST:
            return CUT
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._list(value, depth)
        fields = getattr(type(value), "__dataclass_fields__", None)
        if fields is not None:
            return self._mapping({name: getattr(value, name, None) for name in fields}, depth)
        return f"<{type(value).__name__}>"

    def _text(self, text: str) -> str:
        taken = text[: self._characters]
        self._characters -= len(taken)
        return taken if len(taken) == len(text) else taken + CUT

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        copied: dict[str, Any] = {}
        for key, one in value.items():
            if self._full():
                copied[CUT] = CUT
                break
            copied[self._text(str(key))] = self.of(one, depth + 1)
        return copied

    def _list(self, value: Any, depth: int) -> list[Any]:
        copied: list[Any] = []
        for one in value:
            if self._full():
                copied.append(CUT)
                break
            copied.append(self.of(one, depth + 1))
        return copied

    def _full(self) -> bool:
        self._items -= 1
        return self._items < 0 or self._characters <= 0
