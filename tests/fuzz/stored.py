"""How much does a recording hold, with all that hangs on it?"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from llmtrace.core.recording import Recording


def deep_size(thing: Any, seen: set[int] | None = None) -> int:
    """Return the bytes of a thing and all it refers to, classes and functions left out."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, type) or callable(thing):
        return 0
    seen.add(id(thing))
    size = sys.getsizeof(thing)
    if isinstance(thing, Mapping):
        return size + sum(deep_size(one, seen) for pair in thing.items() for one in pair)
    if isinstance(thing, list | tuple | set | frozenset):
        return size + sum(deep_size(one, seen) for one in thing)
    return size + sum(deep_size(value, seen) for value in _fields(thing))


def _fields(thing: Any) -> Iterable[Any]:
    yield from getattr(thing, "__dict__", {}).values()
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name != "__weakref__" and hasattr(thing, name):
                yield getattr(thing, name)


def held(recording: Recording) -> int:
    """Return the bytes that a recording holds."""
    return deep_size(recording)
