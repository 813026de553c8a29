"""Requests drawn from known distributions: what changed between two windows is what a test says.

Not a simulator: stages are independent of each other and of the load, so the truth of a change is
the factor it was made with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmtrace.dataset.case import Case, Window, no_signals
from llmtrace.dataset.columns import Builder, Columns, concatenate

START = 1_700_000_000.0
TENANTS = 6
REPLICAS = 4


@dataclass(frozen=True)
class Kind:
    """What requests of a window are like; factors of 1 are the usual."""

    rate: float = 3.0
    network: float = 1.0
    queue: float = 1.0
    queued_share: float = 0.0
    queued_s: float = 3.0
    prefill: float = 1.0
    decode: float = 1.0
    prompts: float = 1.0
    outputs: float = 1.0
    long_share: float = 0.08
    slow_replica: float = 1.0
    failed: float = 0.0
    cancelled: float = 0.0
    reports: bool = True
    model: str = "m"
    weight: float = 1.0


def requests(n: int, kind: Kind, seed: int, start: float = START) -> Columns:
    """Draw n requests from `start` on."""
    r = np.random.default_rng(seed)
    t = start + np.cumsum(r.exponential(1 / kind.rate, n))
    long = r.random(n) < kind.long_share
    prompt = np.where(long, 8000 * np.exp(r.normal(0, 0.3, n)), np.exp(r.normal(6, 0.8, n)))
    prompt = np.round(prompt * kind.prompts)
    output = np.round(np.exp(r.normal(4.5, 0.6, n)) * kind.outputs) + 2
    replica = r.integers(0, REPLICAS, n)
    network = r.gamma(4, 0.01, n) * kind.network
    gateway = r.gamma(2, 0.005, n)
    queue = r.exponential(0.05, n) * (r.random(n) < 0.5) * kind.queue
    queue += (r.random(n) < kind.queued_share) * r.exponential(kind.queued_s, n)
    prefill = (0.05 + 6e-5 * prompt) * np.exp(r.normal(0, 0.15, n)) * kind.prefill
    prefill *= np.where(replica == 0, kind.slow_replica, 1.0)
    first = r.gamma(2, 0.005, n)
    tpot = 0.03 * np.exp(r.normal(0, 0.2, n)) * kind.decode
    ttft = network + gateway + queue + prefill + first
    decode = tpot * (output - 1)
    zero = np.zeros(n)
    numbers = {
        "network_s": network, "gateway_s": gateway, "decode_s": decode, "render_s": zero,
        "ttft_s": ttft, "tpot_s": tpot, "e2e_s": ttft + decode, "attempts": zero + 1,
        "prompt_tokens": prompt, "output_tokens": output, "weight": zero + kind.weight,
    }  # fmt: skip
    if kind.reports:
        numbers |= {"queue_s": queue, "prefill_s": prefill, "first_chunk_s": first}
        numbers["unattributed_s"] = zero
    else:
        numbers["unattributed_s"] = queue + prefill + first
    ends = r.random(n)
    outcome = np.where(ends < kind.failed, 1, np.where(ends < kind.failed + kind.cancelled, 2, 0))
    for name in ("tpot_s", "ttft_s"):
        numbers[name] = np.where(outcome == 1, np.nan, numbers[name])
    words = {
        "tenant": (r.integers(0, TENANTS, n), [f"t{i}" for i in range(TENANTS)]),
        "replica": (replica, [f"vllm-{i}" for i in range(REPLICAS)]),
        "model": (np.zeros(n), [kind.model]),
        "outcome": (outcome, ["success", "error", "cancelled"]),
    }
    unknown = np.full(n, np.nan)
    builder = Builder()
    builder.add_arrays(
        (t * 1e9).astype(np.int64),
        lambda name: numbers.get(name, unknown),
        lambda name: (
            (words[name][0].astype(np.int32), words[name][1])
            if name in words
            else (np.full(n, -1, np.int32), [])
        ),
        lambda name: np.array([f"{name}-{seed}-{i}" for i in range(n)], np.bytes_),
    )
    return builder.done()


def day(
    before: Kind | None = None,
    after: Kind | None = None,
    *,
    n: tuple[int, int] = (4000, 800),
    seed: int = 1,
    windows: bool = True,
    metric: str | None = None,
) -> Case:
    """Make a case of two windows with a minute between them."""
    before, after = before or Kind(), after or Kind()
    quiet = requests(n[0], before, seed)
    end = START + n[0] / before.rate * 1.2 if not len(quiet) else quiet.start[-1] / 1e9
    late = requests(n[1], after, seed + 1000, end + 10)
    last = late.start[-1] / 1e9 if len(late) else end + 100
    return Case(
        concatenate([quiet, late]),
        no_signals(),
        before=Window(START, end + 1) if windows else None,
        after=Window(end + 10, last + 1) if windows else None,
        metric=metric,
    )
