"""Compute each stage's exact share (Shapley value) of a change of a quantile.

Swap stages one by one between two sets of requests, keeping every request's rank within the stage,
and watch the quantile: each stage's Shapley value is its average effect over all orders of
swapping. Played once on the requests of each window, so that exchanging them flips every sign.
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
    """Requests by stage, sorted once however often they are drawn from.

    Attributes:
        parts: a row a request, a column a stage, seconds.
        orders: by stage, the requests in ascending order of it. Those that took equally long come
            in an order that has nothing to do with them, and is the same in every set.
    """

    parts: Floats
    orders: tuple[Index, ...]


def staged(parts: Floats, start_ns: NDArray[np.int64], value: Floats) -> Staged:
    """Sort requests by stage.

    Args:
        parts: a row a request, a column a stage, seconds.
        start_ns: unix nanoseconds of each request: together with `value` its fingerprint.
        value: the sum of its parts.
    """
    by_chance = np.argsort(_fingerprint(start_ns, value), kind="stable")
    orders = []
    for column in parts.T:
        if np.abs(column).max(initial=0.0) <= _NOTHING_S:
            orders.append(by_chance)
        else:
            orders.append(by_chance[np.argsort(column[by_chance], kind="stable")])
    return Staged(parts, tuple(orders))


@dataclass(frozen=True, slots=True)
class Swap:
    """What the stages and their going together add to a change; the sum is the change."""

    stages: Floats
    together: float


def swap(before: Staged, after: Staged, drawn: tuple[Index, Index], q: float) -> Swap:
    """Attribute the change of the quantile `q` of the requests' sums to the stages.

    Args:
        before: requests.
        after: the requests to compare them with.
        drawn: which of either are meant; one may be there many times.
        q: between 0 and 1.
    """
    b, a = (_Drawn(one, index) for one, index in zip((before, after), drawn, strict=True))
    stages = np.zeros(before.parts.shape[1])
    # A stage that is nothing on both sides has no effect, and halves the work by its absence.
    active = [
        s
        for s in range(len(stages))
        if max(abs(one.parts[:, s]).max(initial=0.0) for one in (b, a)) > _NOTHING_S
    ]
    low, high = (quantile(one.parts[:, active].sum(axis=1), q) for one in (b, a))
    if len(active) < 2:  # noqa: PLR2004 - one stage is the whole, and nothing is with it
        stages[active] = high - low
        return Swap(stages, 0.0)
    own_a, none_a = _game(a, b, active, q)
    own_b, none_b = _game(b, a, active, q)
    stages[active] = (own_a - own_b) / 2
    return Swap(stages, ((none_a - low) + (high - none_b)) / 2)


class _Drawn:
    """A multiset of requests, ranked by stage without sorting again."""

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
        times: Floats = np.repeat(self._all[order, stage], self._counts[order])
        return times

    def places(self, stage: int) -> Index:
        """Return where in `parts` the requests in ascending order of the stage are."""
        order = self._orders[stage]
        counts = self._counts[order]
        begin = np.cumsum(counts) - counts
        places: Index = np.arange(self.n) + np.repeat(self._first[order] - begin, counts)
        return places


def _game(own: _Drawn, other: _Drawn, active: list[int], q: float) -> tuple[Floats, float]:
    """Return each stage's worth in `own`, and the quantile with all of them from `other`."""
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
            # Gray code: from one coalition to the next a single player comes or goes.
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
    """Return a number a request that is the same wherever it stands, and else says nothing."""
    bits = start_ns.astype(np.uint64) ^ np.ascontiguousarray(value).view(np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
