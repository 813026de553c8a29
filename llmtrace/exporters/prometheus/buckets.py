"""The bucket bounds of duration histograms.

Fine enough for LLM latencies, with every bound of OpenTelemetry's GenAI metrics and each threshold
of a budget among them: the first fold out exactly, the share within the second is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from llmtrace.core.errors import ConfigError
from llmtrace.core.request_clock import GAP_BOUNDS_NS
from llmtrace.core.stages import PARTITION

_NS: Final = 1_000_000_000

# Limits in seconds, by metric or stage.
Thresholds = Mapping[str, float | Sequence[float]]


# Upper bounds in seconds. OpenTelemetry's are 10 ms doubling to 82 s.
LATENCY_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
    1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 40.96, 81.92, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
TPOT_S: Final = (
    0.001, 0.002, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08,
    0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
)  # fmt: skip

# The time in each stage is added up by the total time of its request. These bounds are among those
# of `e2e`, so that the two can be compared.
BANDS_S: Final = (
    0.32, 0.64, 0.96, 1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 20.48,
)  # fmt: skip
# TTFT is added up by the length of the prompt, in tokens.
PROMPT_BANDS: Final = (256, 1024, 4096, 16384, 65536)
BANDS_NS: Final = tuple(round(bound * _NS) for bound in BANDS_S)

_DEFAULT_S: Final[Mapping[str, tuple[float, ...]]] = {
    "e2e": LATENCY_S,
    "ttft": LATENCY_S,
    "tpot": TPOT_S,
    "turn_ttft": LATENCY_S,
    **dict.fromkeys(PARTITION, LATENCY_S),
}
_GAP: Final = "inter_chunk_gap"


def edges(thresholds_s: Thresholds) -> dict[str, tuple[int, ...]]:
    """Return the bounds of each metric and stage in nanoseconds, with the thresholds among them.

    Args:
        thresholds_s: seconds, one or several, by metric (`e2e`, `ttft`, `tpot`,
            `turn_ttft`, `inter_chunk_gap`) or stage. Gaps are counted as they happen, so that a
            threshold for them must be a bound already. One for `ttft` becomes a bound of `e2e`,
            too: a request that was cancelled before its first content is in `e2e` alone.

    Raises:
        ConfigError: a threshold is for no known metric or stage, or cannot be a bound.
    """
    for name in thresholds_s:
        if name not in _DEFAULT_S and name != _GAP:
            msg = f"threshold for {name!r}: there is none; take one of {', '.join(_DEFAULT_S)}"
            raise ConfigError(msg)
        for seconds in _thresholds(thresholds_s, name):
            if not 0 < seconds < float("inf"):
                raise ConfigError(f"threshold of {seconds!r} s for {name!r} must be above 0")
    for gap in _thresholds(thresholds_s, _GAP):
        if round(gap * _NS) not in GAP_BOUNDS_NS:
            allowed = ", ".join(f"{bound / _NS:g}" for bound in GAP_BOUNDS_NS)
            raise ConfigError(
                f"threshold of {gap!r} s for {_GAP!r} must be a bound gaps are counted by: "
                f"{allowed}"
            )
    given = limits(thresholds_s)
    return {
        name: tuple(sorted({*(round(bound * _NS) for bound in bounds), *given[name]}))
        for name, bounds in _DEFAULT_S.items()
    }


def limits(thresholds_s: Thresholds) -> dict[str, tuple[int, ...]]:
    """Return the bounds that are thresholds, in nanoseconds, by metric and stage."""
    given = {name: tuple(_thresholds(thresholds_s, name)) for name in _DEFAULT_S}
    given["e2e"] += given["ttft"]
    return {
        name: tuple(sorted({round(bound * _NS) for bound in bounds}))
        for name, bounds in given.items()
    }


def _thresholds(thresholds_s: Thresholds, name: str) -> Sequence[float]:
    given = thresholds_s.get(name, ())
    return (given,) if isinstance(given, int | float) else given
