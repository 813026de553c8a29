"""Explain one request: which stage took unusually long for such a request, and by how much.

Pure functions over rows and samples of engines. The request is compared with those of the hour
before it that did the same work: of the same model, route and operation, and, where there are
enough, of the same size, which is prompt and output within a factor of 2 in tokens. Decode is
compared for as many output tokens as the request has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from llmtrace.core.row import Row
from llmtrace.core.stages import PARTITION
from llmtrace.stats.quantiles import quantile

HOUR_NS: Final = 3600 * 1_000_000_000
# Fewer requests do not show what is usual.
MIN_PEERS: Final = 20
# A stage is unusual if it took longer than this share of its peers, by this share of the request.
_UNUSUAL_RANK: Final = 0.9
_UNUSUAL_SHARE: Final = 0.05
_SIZE_FACTOR: Final = 2
_SIZE: Final = ("prompt_tokens", "output_tokens")
_SAME: Final = ("operation", "agent", "model", "route", "stream")
# What is shown of an engine: the signal, its words, and whether it counts up.
ENGINE_SIGNALS: Final[Mapping[str, tuple[str, bool]]] = {
    "waiting": ("waiting", False),
    "running": ("running", False),
    "kv_usage": ("KV cache in use", False),
    "preemptions": ("preemptions", True),
    "gpu_sm_clock": ("clock", False),
    "gpu_throttled": ("throttled", False),
}
# Scrapes are seconds apart: samples so shortly before or after a request count as during it.
_MARGIN_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class PeerComparison:
    """One duration of a request beside what its peers took.

    Attributes:
        name: a stage, `unattributed`, `e2e` or `ttft`.
        took_s: of the request.
        median_s: of the peers that know it.
        p95_s: of the same.
        rank: share of them that took less, 0 to 1.
        peers: how many they are.
    """

    name: str
    took_s: float
    median_s: float
    p95_s: float
    rank: float
    peers: int

    @property
    def excess_s(self) -> float:
        """How much longer than the median it took."""
        return self.took_s - self.median_s


@dataclass(frozen=True, slots=True)
class EngineSeconds:
    """One signal of an engine while a request ran, beside the hour before.

    Attributes:
        instance: the engine.
        signal: one of `ENGINE_SIGNALS`.
        highest: of its samples during the request; of a counter, by how much it grew.
        usual: their median in the hour before; `None` = not sampled, or a counter.
    """

    instance: str
    signal: str
    highest: float
    usual: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of one request beside its peers.

    Attributes:
        row: the request.
        peers: how many requests it is compared with.
        alike: what they have in common, in words.
        compared: each known stage, the longest excess first; then `ttft` and `e2e`.
        unusual: the stage to look at; `None` = none stands out, or there are too few peers.
        engines: what engines did in those seconds.
    """

    row: Row
    peers: int
    alike: str
    compared: tuple[PeerComparison, ...]
    unusual: PeerComparison | None
    engines: tuple[EngineSeconds, ...] = ()


def explain(
    row: Row, others: Iterable[Row], samples: Iterable[Mapping[str, Any]] = ()
) -> Explanation:
    """Compare a request with what the same work took in the hour before it.

    Others that did other work, or failed, are left out. Samples are of engines, as the collector's
    `/api/v1/signals` has them.
    """
    peers, alike = _peers(row, others)
    stages = [compared for compared in (_compare(row, peers, f"{stage}_s") for stage in PARTITION)
              if compared is not None]  # fmt: skip
    stages.sort(key=lambda one: -one.excess_s)
    totals = [one for name in ("ttft_s", "e2e_s") if (one := _compare(row, peers, name))]
    threshold = row.e2e_s * _UNUSUAL_SHARE
    unusual = next(
        (one for one in stages if one.rank >= _UNUSUAL_RANK and one.excess_s > threshold
         and one.peers >= MIN_PEERS), None,
    )  # fmt: skip
    engines = tuple(_engines(row, samples))
    return Explanation(row, len(peers), alike, (*stages, *totals), unusual, engines)


def _peers(row: Row, others: Iterable[Row]) -> tuple[list[Row], str]:
    """Return the requests that did the same work in the hour before, and what they share."""
    same = [
        other
        for other in others
        if row.start - HOUR_NS <= other.start < row.start
        and other.outcome == "success"
        and all(getattr(other, name) == getattr(row, name) for name in _SAME)
    ]
    sized = [other for other in same if _alike_in_size(row, other)]
    if len(sized) >= MIN_PEERS:
        return sized, "the same model, route, operation and size"
    few = f"{len(sized)} of them known to be of its size; decode for as many tokens"
    return same, f"the same model, route and operation ({few})"


def _alike_in_size(row: Row, other: Row) -> bool:
    return all(
        mine is not None and theirs is not None
        and mine <= theirs * _SIZE_FACTOR and theirs <= mine * _SIZE_FACTOR
        for mine, theirs in ((getattr(row, name), getattr(other, name)) for name in _SIZE)
    )  # fmt: skip


def _compare(row: Row, peers: Sequence[Row], name: str) -> PeerComparison | None:
    took = _seconds(row, name)
    known = sorted(value for peer in peers if (value := _as_long(row, peer, name)) is not None)
    if took is None or not known:
        return None
    return PeerComparison(
        name.removesuffix("_s"),
        took,
        median(known),
        quantile(known, 0.95),
        (bisect_left(known, took) + bisect_right(known, took)) / 2 / len(known),
        len(known),
    )


def _as_long(row: Row, peer: Row, name: str) -> float | None:
    """Return what a peer took, of decode for as many output tokens as the request has."""
    took, mine, theirs = _seconds(peer, name), row.output_tokens, peer.output_tokens
    if took is None or not mine or name != "decode_s":
        return took
    return took * mine / theirs if theirs else None


def _seconds(row: Row, name: str) -> float | None:
    if name in {"ttft_s", "e2e_s"}:
        value: float | None = getattr(row, name)
        return value
    ns = getattr(row.stages, name.removesuffix("_s"))
    return None if ns is None else ns / 1e9


def _engines(row: Row, samples: Iterable[Mapping[str, Any]]) -> Iterator[EngineSeconds]:
    began = row.start / 1e9
    ended = began + row.e2e_s
    series: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for sample in samples:
        if sample["signal"] in ENGINE_SIGNALS:
            key = str(sample["instance"]), str(sample["signal"])
            series.setdefault(key, []).append((float(sample["t"]), float(sample["value"])))
    instances = {instance for instance, _ in series}
    # The engine that answered, where it can be known among several.
    mine = {name for name in instances if name in {row.replica, row.server}} or instances
    for (instance, signal), points in sorted(series.items(), key=_in_order):
        during = [value for t, value in points if began - _MARGIN_S <= t <= ended + _MARGIN_S]
        if instance not in mine or not during:
            continue
        if ENGINE_SIGNALS[signal][1]:
            yield EngineSeconds(instance, signal, max(during) - min(during), None)
        else:
            before = [value for t, value in points if t < began - _MARGIN_S]
            usual = median(before) if before else None
            yield EngineSeconds(instance, signal, max(during), usual)


def _in_order(item: tuple[tuple[str, str], Any]) -> tuple[str, int]:
    (instance, signal), _ = item
    return instance, list(ENGINE_SIGNALS).index(signal)


# --- as text -------------------------------------------------------------------------------------

_SHOWN_STAGES: Final = 3
_SHOWN_ENGINES: Final = 2


def as_lines(explanation: Explanation) -> list[str]:
    """Write an explanation in about ten lines."""
    row = explanation.row
    named = " ".join(filter(None, (row.operation, row.model, row.route)))
    ttft = "" if row.ttft_s is None else f"  ttft {_ms(row.ttft_s)}"
    known = [f"{name.replace('_', ' ')} {n:,}" for name in _SIZE if (n := getattr(row, name))]
    head = "  ".join([f"{named}  {row.outcome}  e2e {_ms(row.e2e_s)}{ttft}", *known])
    lines = [head, verdict(explanation)]
    if explanation.peers:
        lines.append(f"Beside {explanation.peers} of the hour before with {explanation.alike}:")
    stages = [one for one in explanation.compared if one.name not in {"ttft", "e2e"}]
    totals = [one for one in explanation.compared if one.name in {"ttft", "e2e"}]
    lines += [
        f"  {one.name:<12}{_ms(one.took_s):>12}  median {_ms(one.median_s):>11}"
        f"  p95 {_ms(one.p95_s):>11}  over {int(100 * one.rank)} %"
        for one in (*stages[:_SHOWN_STAGES], *totals)
    ]
    lines += _engine_lines(explanation.engines)
    if row.client_lag_ns:
        lines.append(f"Client lag: {_ms(row.client_lag_ns / 1e9)} at least of the waits")
    unknown = [stage for stage, ns in row.stages if ns is None]
    if unknown:
        lines.append(f"Not reported: {', '.join(unknown)}")
    return lines


def verdict(explanation: Explanation) -> str:
    """Say in a sentence which stage took unusually long, or why that cannot be said."""
    unusual = explanation.unusual
    if unusual is not None:
        return (
            f"Unusual: {unusual.name}, {_ms(unusual.took_s)} where {_ms(unusual.median_s)} is "
            f"usual: {_ms(unusual.excess_s)} more"
        )
    if explanation.peers < MIN_PEERS:
        return (
            f"Cannot say what is usual: {explanation.peers} such requests in the hour before, "
            f"and {MIN_PEERS} are needed"
        )
    return "Nothing unusual: no stage took longer than in 9 of 10 such requests, to any effect"


def _engine_lines(engines: Sequence[EngineSeconds]) -> Iterator[str]:
    if not engines:
        yield "Engine: no samples of those seconds"
        return
    named: dict[str, list[str]] = {}
    for one in engines:
        named.setdefault(one.instance, []).append(_signal(one))
    for instance, parts in list(named.items())[:_SHOWN_ENGINES]:
        yield f"Engine {instance}: {', '.join(parts)}"
    if len(named) > _SHOWN_ENGINES:
        yield f"and {len(named) - _SHOWN_ENGINES} engines more"


def _signal(one: EngineSeconds) -> str:
    words, counts = ENGINE_SIGNALS[one.signal]
    text = f"{words} {signal_value(one.signal, one.highest)}"
    if counts or one.usual is None:
        return text
    return f"{text} (usually {signal_value(one.signal, one.usual)})"


def signal_value(signal: str, value: float) -> str:
    """Write a sample of one of `ENGINE_SIGNALS`, with its unit."""
    if signal == "kv_usage":
        return f"{value:.0%}"
    return f"{value / 1e6:,.0f} MHz" if signal == "gpu_sm_clock" else f"{value:,.0f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Flatten an explanation to JSON-ready keys; durations in seconds."""

    def flat(one: PeerComparison) -> dict[str, Any]:
        return {**asdict(one), "excess_s": one.excess_s}

    return {
        "row": explanation.row.as_dict(),
        "peers": explanation.peers,
        "alike": explanation.alike,
        "unusual": None if explanation.unusual is None else flat(explanation.unusual),
        "compared": [flat(one) for one in explanation.compared],
        "engines": [asdict(one) for one in explanation.engines],
    }
