"""How is what came as JSON, or as some framework's object, read like an SDK's own?

The readers of chunks and answers look at attributes. A view has every attribute: what is not there
is `None`. Nothing is copied; what is inside is looked at when it is asked for.
"""

from __future__ import annotations

from typing import Any


class View:
    """Looks at a dictionary."""

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


class Lenient:
    """Looks at an object whose class may lack what is asked for."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return lenient(getattr(self._value, name, None))

    @property
    def model_extra(self) -> Lenient:
        """Itself: what one class calls an extra is another's own field."""
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
