"""By which bounds are durations counted?

Fine enough for LLM latencies, with every bound of OpenTelemetry's GenAI metrics and each threshold
of a budget among them: the first fold out exactly, the share within the second is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llmtrace.errors import ConfigError
from llmtrace.record import GAP_BOUNDS_NS
from llmtrace.stages import STAGES

_NS: Final = 1_000_000_000

STAGE_LABELS: Final = (*STAGES, "unattributed")

# Upper bounds in seconds. OpenTelemetry's are 10 ms doubling to 82 s.
LATENCY_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
    1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 40.96, 81.92, 120.0,
)  # fmt: skip
TPOT_S: Final = (
    0.001, 0.002, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08,
    0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5,
)  # fmt: skip

_DEFAULT_S: Final[Mapping[str, tuple[float, ...]]] = {
    "e2e": LATENCY_S,
    "ttft": LATENCY_S,
    "tpot": TPOT_S,
    **dict.fromkeys(STAGE_LABELS, LATENCY_S),
}
_GAP: Final = "inter_chunk_gap"


def edges(thresholds_s: Mapping[str, float]) -> dict[str, tuple[int, ...]]:
    """Return the bounds of each metric and stage in nanoseconds, with the thresholds among them.

    Args:
        thresholds_s: seconds by metric (`e2e`, `ttft`, `tpot`, `inter_chunk_gap`) or stage. Gaps
            are counted as they happen, so that a threshold for them must be a bound already.

    Raises:
        ConfigError: a threshold is for nothing there is, or cannot be a bound.
    """
    for name, seconds in thresholds_s.items():
        if name not in _DEFAULT_S and name != _GAP:
            msg = f"threshold for {name!r}: there is none; take one of {', '.join(_DEFAULT_S)}"
            raise ConfigError(msg)
        if not 0 < seconds < float("inf"):
            msg = f"threshold of {seconds!r} s for {name!r} must be above 0"
            raise ConfigError(msg)
    gap = thresholds_s.get(_GAP)
    if gap is not None and round(gap * _NS) not in GAP_BOUNDS_NS:
        allowed = ", ".join(f"{bound / _NS:g}" for bound in GAP_BOUNDS_NS)
        msg = f"threshold of {gap!r} s for {_GAP!r} must be a bound gaps are counted by: {allowed}"
        raise ConfigError(msg)
    return {
        name: tuple(
            sorted({round(bound * _NS) for bound in (*bounds, *_threshold(thresholds_s, name))})
        )
        for name, bounds in _DEFAULT_S.items()
    }


def _threshold(thresholds_s: Mapping[str, float], name: str) -> tuple[float, ...]:
    return (thresholds_s[name],) if name in thresholds_s else ()
