"""Change the workload of a day without any fault.

The engines have room for all of it: the requests change, and not how they are served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.simulator.fleet.faults import keep_cool, long_prompts, longer_outputs
from llmtrace.simulator.fleet.plan import Arrays, Day


def routes(day: Day) -> None:
    """More questions over documents and code, fewer chats."""
    there = day.deployment
    heavy = {"rag": 3.2, "code": 1.8, "chat": 0.45}
    day.mix["route"] = tuple(r.share * heavy.get(r.name, 1.0) for r in there.routes)
    keep_cool(day, prompt=1.6, output=1.2)


def tenants(day: Day) -> None:
    """A tenant with long prompts moves in."""
    shares = np.array(day.deployment.tenants)
    tenant = int(np.argmin(shares))
    shares[tenant] = 0.6 * shares.sum()
    day.mix["tenant"] = tuple(shares.tolist())

    def edit(w: Arrays, _after: NDArray[np.bool_], _rng: np.random.Generator) -> None:
        own = (w["prompt"] - w["group_tokens"]) * 2.5
        longer = w["group_tokens"] + own.astype(np.int64)
        w["prompt"] = np.where(w["tenant"] == tenant, longer, w["prompt"])

    day.edits.append(edit)
    keep_cool(day, prompt=2.0)


def prompts(day: Day) -> None:
    """Make prompts longer from the incident on."""
    long_prompts(day, float(day.rng.uniform(1.2, 2.6)))


def outputs(day: Day) -> None:
    """Make responses longer from the incident on."""
    longer_outputs(day, float(day.rng.uniform(1.2, 2.6)))


SHIFTS: Final[Mapping[str, Callable[[Day], None]]] = {
    "routes": routes,
    "tenants": tenants,
    "prompts": prompts,
    "outputs": outputs,
}
