"""Measure several endpoints in turn, block by block, and the first once more at the end.

What changes meanwhile, on the client or around it, is then in all of them alike; that the first
one is measured again shows how much it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from llmtrace.budget import Budget
from llmtrace.load_test.measure import measure_prepared, prepare
from llmtrace.load_test.requests import Request
from llmtrace.load_test.send_plan import Done, Measured, Plan, joined

AGAIN: Final = "endpoint-1-again"


def blocks_of(requests: Sequence[Request], count: int) -> list[list[Request]]:
    """Split requests into so many blocks, each with times of its own from 0 on."""
    edges = [round(i * len(requests) / count) for i in range(count + 1)]
    found = []
    for low, high in pairwise(edges):
        block = list(requests[low:high])
        first = block[0].at_s if block else None
        if first is not None:
            block = [replace(one, at_s=(one.at_s or 0.0) - first) for one in block]
        found.append(block)
    return [block for block in found if block]


def run_interleaved(
    plans: Sequence[Plan], budget: Budget, blocks: int, done: Done
) -> list[Measured]:
    """Return what each plan measured, in their order; the last one runs after all others.

    Plans are one for each endpoint, then the one that repeats the first; the requests of each but
    the last are sent in `blocks`. Limits of the budget are exact in the rows' histograms; `done`
    gets each request's `Answered` as it is over.
    """
    ready = [prepare(plan, budget) for plan in plans]
    found: list[list[Measured]] = [[] for _ in ready]
    split = [blocks_of(plan.requests, blocks) for plan in ready[:-1]]
    turns = [
        (i, split[i][block])
        for block in range(max(map(len, split)))
        # The order changes from block to block, so that none is always the first.
        for i in [(block + k) % len(split) for k in range(len(split))]
        if block < len(split[i])
    ]
    turns.append((len(plans) - 1, list(ready[-1].requests)))
    for i, requests in turns:
        found[i].append(measure_prepared(replace(ready[i], requests=requests), budget, done))
        if found[i][-1].interrupted:
            break
    return [joined(parts) for parts in found]
