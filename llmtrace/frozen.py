"""How are the few dataclasses made that every request is measured in?

Nobody may change them, and type checkers see to that. A freeze at run time would cost four fifths
of making one: its `__init__` sets each field past it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as checked_dataclass
else:

    def checked_dataclass(*, frozen: bool, **options: Any) -> Any:
        """Make a dataclass that is frozen to type checkers alone; the options are its own."""
        return dataclass(unsafe_hash=frozen, **options)


__all__ = ["checked_dataclass"]
