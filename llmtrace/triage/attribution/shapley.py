"""Compute each stage's exact Shapley value of a change of a quantile.

Stages are swapped one by one between two sets of requests, keeping each request's rank within the
stage. A stage's Shapley value is its average effect on the quantile over all orders of swapping.
This is done on the requests of each window, so that exchanging the windows flips every sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.stats.arrays import Floats
from llmtrace.stats.significance import quantile

Index = NDArray[np.intp]

_NOTHING_S: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Staged:
    """Requests by stage, sorted once, however often samples are drawn from them.

    Attributes:
        parts: a row per request, a column per stage, seconds.
        orders: for each stage, the requests in ascending order of it. Ties are in a pseudo-random
            order that is the same in every set.
    """

    parts: Floats
    orders: tuple[Index, ...]


def staged(parts: Floats, start_ns: NDArray[np.int64], value: Floats) -> Staged:
    """Sort requests by stage.

    Args:
        parts: a row per request, a column per stage, seconds.
        start_ns: unix nanoseconds of each request; with `value`, its fingerprint.
        value: the sum of its parts.
    """
    shuffled = np.argsort(_fingerprint(start_ns, value), kind="stable")
    orders = []
    for column in parts.T:
        if np.abs(column).max(initial=0.0) <= _NOTHING_S:
            orders.append(shuffled)
        else:
            orders.append(shuffled[np.argsort(column[shuffled], kind="stable")])
    return Staged(parts, tuple(orders))


@dataclass(frozen=True, slots=True)
class Swap:
    """The effect of each stage on a change, and of their interaction; the sum is the change."""

    stages: Floats
    together: float


def swap(before: Staged, after: Staged, drawn: tuple[Index, Index], q: float) -> Swap:
    """Attribute the change of the quantile `q`, 0 to 1, of the requests' sums to the stages.

    `drawn` are indices into each side; an index may occur many times.
    """
    b, a = (_Drawn(one, index) for one, index in zip((before, after), drawn, strict=True))
    stages = np.zeros(before.parts.shape[1])
    # Leaving out a stage that is 0 in both windows halves the work.
    active = [
        s
        for s in range(len(stages))
        if max(abs(one.parts[:, s]).max(initial=0.0) for one in (b, a)) > _NOTHING_S
    ]
    low, high = (quantile(one.parts[:, active].sum(axis=1), q) for one in (b, a))
    if len(active) < 2:  # noqa: PLR2004 - a single stage is the whole change
        stages[active] = high - low
        return Swap(stages, 0.0)
    own_a, none_a = _game(a, b, active, q)
    own_b, none_b = _game(b, a, active, q)
    stages[active] = (own_a - own_b) / 2
    return Swap(stages, ((none_a - low) + (high - none_b)) / 2)


class _Drawn:
    """A sample with repeats, ranked by stage without sorting again."""

    def __init__(self, one: Staged, index: Index) -> None:
        self._orders = one.orders
        self._counts = np.bincount(index, minlength=len(one.parts))
        self._first = np.cumsum(self._counts) - self._counts
        self._all = one.parts
        self.parts = one.parts[np.repeat(np.arange(len(one.parts)), self._counts)]
        self.n = len(self.parts)

    def ascending(self, stage: int) -> Floats:
        """Return the stage's times in ascending order."""
        order = self._orders[stage]
        return np.repeat(self._all[order, stage], self._counts[order])

    def places(self, stage: int) -> Index:
        """Return the positions in `parts` of the requests in ascending order of the stage."""
        order = self._orders[stage]
        counts = self._counts[order]
        begin = np.cumsum(counts) - counts
        places: Index = np.arange(self.n) + np.repeat(self._first[order] - begin, counts)
        return places


def _game(own: _Drawn, other: _Drawn, active: list[int], q: float) -> tuple[Floats, float]:
    """Return each stage's Shapley value in `own`, and the quantile with all stages of `other`."""
    players = len(active)
    mine = own.parts[:, active].T.copy()
    swapped = np.empty_like(mine)
    ranks = (np.arange(own.n) + 0.5) / own.n * other.n - 0.5
    for i, stage in enumerate(active):
        times = np.interp(ranks, np.arange(other.n), other.ascending(stage))
        swapped[i, own.places(stage)] = times
    difference = mine - swapped
    worth = np.empty(1 << players)
    total = swapped.sum(axis=0)
    rank = max(math.ceil(len(total) * q - 1e-9), 1) - 1
    members = 0
    scratch = np.empty_like(total)
    for step in range(1 << players):
        if step:
            # Gray code: consecutive coalitions differ by a single player.
            player = (step & -step).bit_length() - 1
            members ^= 1 << player
            if members >> player & 1:
                total += difference[player]
            else:
                total -= difference[player]
        np.copyto(scratch, total)
        scratch.partition(rank)
        worth[members] = scratch[rank]
    values: Floats = _weights(players) @ worth
    return values, float(worth[0])


@lru_cache(maxsize=16)
def _weights(players: int) -> Floats:
    """Return the matrix that turns the worth of every coalition into Shapley values."""
    weights = np.zeros((players, 1 << players))
    for members in range(1 << players):
        size = members.bit_count()
        for player in range(players):
            if members >> player & 1:
                share = math.factorial(size - 1) * math.factorial(players - size)
                weights[player, members] += share / math.factorial(players)
            else:
                share = math.factorial(size) * math.factorial(players - size - 1)
                weights[player, members] -= share / math.factorial(players)
    return weights


def _fingerprint(start_ns: NDArray[np.int64], value: Floats) -> NDArray[np.uint64]:
    """Hash each request to a number that does not depend on its position."""
    bits = start_ns.astype(np.uint64) ^ np.ascontiguousarray(value).view(np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
