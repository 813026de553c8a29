"""The rows of one window as columns: fields of the row, and fields derived from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.stages import BEFORE_CONTENT
from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask

_ENOUGH: Final = 40_000  # rows; more make a p95 no more certain than it varies
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True)
class Side:
    """The rows of one window, with fields derived from several of a row's."""

    rows: Columns
    window: Window
    _memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return self.rows.n

    @cached_property
    def t(self) -> Floats:
        """Start of each row, unix seconds."""
        return self.rows.start / 1e9

    @cached_property
    def _sample(self) -> NDArray[np.int64] | None:
        if self.rows.n <= _ENOUGH:
            return None
        # Not every n-th row: load balancers assign requests in turn.
        drawn = np.random.default_rng(1).choice(self.rows.n, _ENOUGH, replace=False)
        return np.sort(drawn)

    def sampled(self, column: NDArray[_T]) -> NDArray[_T]:
        """Return a column of as many rows as percentiles need, the same rows each time."""
        return column if self._sample is None else column[self._sample]

    def number(self, name: str) -> Floats:
        """Return a column of the row, or one of `DERIVED`; NaN = unknown."""
        if name not in DERIVED:
            return self.rows.numbers[name]
        if name not in self._memo:
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                self._memo[name] = DERIVED[name](self)
        found: Floats = self._memo[name]
        return found

    def known(self, name: str) -> bool:
        """Return whether any row has this field."""
        return bool(np.isfinite(self.number(name)).any())

    def where(self, column: str, *words: str) -> Mask:
        """Return which rows have one of these values in a column."""
        return self.rows.words[column].where(*words)

    @property
    def ends(self) -> Floats:
        """End of each row, unix seconds, by its client's clock."""
        return self.t + self.number("e2e_s")


def _found_prefix(side: Side) -> Floats:
    """Prompt tokens found in an engine's cache; NaN for responses from a response cache."""
    return np.where(side.number("cache_hit") > 0, np.nan, side.number("cached_tokens"))


def _computed(side: Side) -> Floats:
    """Prompt tokens that had to be computed; all of them if no cache is reported."""
    prompt, cached = side.number("prompt_tokens"), side.number("cached_tokens")
    return np.maximum(prompt - np.nan_to_num(cached), 0.0)


def _network_path(side: Side) -> Floats:
    """Network time without waiting for the client's own pool; only of requests sent once."""
    path = side.number("network_s") - np.nan_to_num(side.number("network_client_wait_s"))
    once = ~(side.number("attempts") > 1)
    return np.where(once, np.maximum(path, 0.0), np.nan)


def _client_delay(side: Side) -> Floats:
    """The application's own time before a request, and its wait for a connection.

    Old rows have no `client_s` and count both as the wait for a connection.
    """
    own, pool = side.number("client_s"), side.number("network_client_wait_s")
    known = ~(np.isnan(own) & np.isnan(pool))
    return np.where(known, np.nan_to_num(own) + np.nan_to_num(pool), np.nan)


def _client_held(side: Side) -> Floats:
    """What a busy client adds: its delay before a request, and received data not read yet."""
    delay, lag = side.number("client_delay_s"), side.number("client_lag_s")
    known = ~(np.isnan(delay) & np.isnan(lag))
    return np.where(known, np.nan_to_num(delay) + np.nan_to_num(lag), np.nan)


def _client_setup(side: Side) -> Floats:
    """Everything before a request is on a connection: imports, pools, DNS, TCP, TLS."""
    parts = ["client_s", *(f"network_{one}_s" for one in ("client_wait", "dns", "connect", "tls"))]
    found = [side.number(name) for name in parts]
    known = ~np.all([np.isnan(one) for one in found], axis=0)
    return np.where(known, np.sum([np.nan_to_num(one) for one in found], axis=0), np.nan)


def _network_and_client(side: Side) -> Floats:
    """Network time, and the client's own time before it."""
    return side.number("network_s") + np.nan_to_num(side.number("client_s"))


def _gateway_once(side: Side) -> Floats:
    """The gateway's own time, only of requests sent once and served.

    If a gateway gives up on an upstream, its row counts that wait as the gateway's.
    """
    once = ~(side.number("attempts") > 1) & ~side.rows.failed
    return np.where(once, side.number("gateway_s"), np.nan)


def _render_own(side: Side) -> Floats:
    own = side.number("render_s") - np.nan_to_num(side.number("tool_wall_s"))
    return np.maximum(own, 0.0)


def _unread(side: Side) -> Floats:
    """The least time for which the first content waited for the client to read it."""
    late = side.number("ttft_s") - side.number("arrived_by_s")
    known = np.isfinite(side.number("client_lag_s"))
    return np.where(known, np.maximum(np.nan_to_num(late), 0.0), np.nan)


def in_progress(side: Side, by: str = "replica", after: str | None = None) -> Floats:
    """Return how many requests were in progress as each one started, itself included.

    Args:
        side: the rows.
        by: the column whose value they must share.
        after: field of a wait; only requests that are past it count as begun.
    """
    codes, ends, found = side.rows.words[by].codes, side.ends, np.full(len(side), np.nan)
    begins = side.t if after is None else side.t + np.nan_to_num(side.number(after))
    for code in np.unique(codes):
        mine = (codes == code) & np.isfinite(ends)
        begun = np.searchsorted(np.sort(begins[mine]), side.t[mine], side="right")
        found[mine] = begun - np.searchsorted(np.sort(ends[mine]), side.t[mine], side="right")
    return found


def _unattributed(side: Side) -> Floats:
    """Time without a stage; if no row reports it, what is left of the time to first content."""
    staged = sum(np.nan_to_num(side.number(f"{one}_s")) for one in BEFORE_CONTENT)
    known = (side.rows.numbers["unattributed_s"], np.maximum(side.number("ttft_s") - staged, 0.0))
    return next((one for one in known if np.isfinite(one).any()), side.number("e2e_s"))


def _wait_per_token(side: Side) -> Floats:
    tokens = side.number("output_tokens")
    return np.where(tokens > 1, side.number("decode_s") / (tokens - 1), np.nan)


def _less(whole: str, part: str) -> Callable[[Side], Floats]:
    return lambda side: np.maximum(side.number(whole) - side.number(part), 0.0)


def _over(above: str, below: str, least: float = 1.0) -> Callable[[Side], Floats]:
    def divide(side: Side) -> Floats:
        denominator = side.number(below)
        return np.where(denominator >= least, side.number(above) / denominator, np.nan)

    return divide


DERIVED: Final[Mapping[str, Callable[[Side], Floats]]] = {
    "uncached_tokens": _less("prompt_tokens", "cached_tokens"),
    "computed_tokens": _computed,
    "found_prefix_tokens": _found_prefix,
    "cached_share": _over("cached_tokens", "prompt_tokens"),
    "network_path_s": _network_path,
    "client_delay_s": _client_delay,
    "client_held_s": _client_held,
    "client_setup_s": _client_setup,
    "network_and_client_s": _network_and_client,
    "gateway_once_s": _gateway_once,
    "render_own_s": _render_own,
    "in_progress": in_progress,
    "tool_waste_s": _less("tool_wall_s", "tool_critical_path_s"),
    "unread_s": _unread,
    "unattributed_s": _unattributed,
    "wait_per_token_s": _wait_per_token,
    "acceptance": _over("spec_accepted", "spec_drafted"),
    "burst_share": _over("burst_chunks", "chunks", 4.0),
    "chunks_per_token": _over("chunks", "output_tokens", 4.0),
    "decode_per_chunk_s": _over("decode_s", "chunks", 4.0),
    "gap_per_token": _over("max_gap_s", "tpot_s", 0.0),
}
