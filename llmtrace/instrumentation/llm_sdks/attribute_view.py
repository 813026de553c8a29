"""Read JSON, or a framework's object, by attributes as an SDK's own objects are read.

The classifiers of chunks and responses read attributes. A view has every attribute: a missing one
is `None`. Nothing is copied; nested values are wrapped when they are read.
"""

from __future__ import annotations

from typing import Any


class View:
    """View of a dictionary by attributes; a missing key is `None`."""

    __slots__ = ("model_extra",)

    def __init__(self, fields: dict[str, Any]) -> None:
        # Where the SDKs' objects keep what their classes do not know.
        self.model_extra = fields

    def __getattr__(self, name: str) -> Any:
        value = self.model_extra.get(name)
        if isinstance(value, dict):
            return View(value)
        if isinstance(value, list):
            return [View(one) if isinstance(one, dict) else one for one in value]
        return value


def viewed(value: Any) -> Any:
    """Return a view of JSON that a client hands over as it is; an SDK's object is read itself."""
    return View(value) if isinstance(value, dict) else value


class Lenient:
    """View of an object whose class may lack attributes; a missing one is `None`."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return lenient(getattr(self._value, name, None))

    @property
    def model_extra(self) -> Lenient:
        """Return the view itself: an extra of one class is a field of another."""
        return self

    def get(self, name: str) -> Any:
        """Return an attribute, plain as it is."""
        return getattr(self._value, name, None)


def lenient(value: Any) -> Any:
    """Return a view of whatever is not plain data already."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [lenient(one) for one in value]
    return View(value) if isinstance(value, dict) else Lenient(value)
