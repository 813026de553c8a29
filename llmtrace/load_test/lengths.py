"""Read and draw lengths in tokens: a number, a range, or a distribution."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from typing import Final, Literal

from llmtrace.core.errors import ConfigError

_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_FIXED: Final = re.compile(_NUMBER)
_UNIFORM: Final = re.compile(rf"{_NUMBER}-{_NUMBER}")
_LOG_NORMAL: Final = re.compile(rf"lognormal:{_NUMBER},{_NUMBER}")
_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens.

    Attributes:
        kind: "uniform" between `first` and `second`, or "lognormal" with the median `first` and
            the spread `second` (the standard deviation of the logarithm).
    """

    kind: Literal["uniform", "lognormal"]
    first: float
    second: float

    def draw(self, draws: random.Random) -> int:
        """Return a length in tokens, 1 or more."""
        if self.kind == "uniform":
            length = draws.uniform(self.first, self.second)
        else:
            length = draws.lognormvariate(math.log(self.first), self.second)
        return max(1, min(round(length), _MAX))


def read_lengths(text: str) -> Lengths:
    """Read `256`, `100-400` or `lognormal:256,0.8`.

    Raises:
        ConfigError: it is none of them, or less than 1 token.
    """
    if found := _LOG_NORMAL.fullmatch(text):
        lengths = Lengths("lognormal", float(found[1]), float(found[2]))
    elif found := _UNIFORM.fullmatch(text):
        lengths = Lengths("uniform", float(found[1]), float(found[2]))
    elif found := _FIXED.fullmatch(text):
        lengths = Lengths("uniform", float(found[1]), float(found[1]))
    else:
        raise ConfigError(f"{text!r} is no length; write 256, 100-400 or lognormal:256,0.8")
    backwards = lengths.kind == "uniform" and lengths.second < lengths.first
    if not 1 <= lengths.first <= _MAX or backwards:
        raise ConfigError(f"{text!r}: lengths are from 1 to {_MAX:,} tokens, the smaller first")
    return lengths
