"""Draw random trace and span ids, many at a time, without disturbing `random`."""

from __future__ import annotations

import os
from collections import deque
from typing import Final

# Random 8-byte words in hex that are not used yet. They come from the operating system: an
# application may seed `random` and rely on its sequence.
_words: deque[str] = deque()
_WORDS_AT_ONCE: Final = 256
_NO_WORD: Final = "0" * 16

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_words.clear)


def random_id(size: int) -> str:
    """Make a random id of `size` bytes in hex: 16 for a trace, 8 for a span, 24 for both."""
    try:
        if size == 8:  # noqa: PLR2004
            return _words.pop()
        return "".join([_words.pop() for _ in range(size // 8)])
    except IndexError:
        drawn = os.urandom(8 * _WORDS_AT_ONCE).hex()
        words = [drawn[at : at + 16] for at in range(0, len(drawn), 16)]
        _words.extend([word for word in words if word != _NO_WORD])  # which would be no id
        return random_id(size)
