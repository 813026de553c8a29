"""Estimate the cost of a real engine's step from its requests, and replay them.

`fit` estimates a `StepCost` from requests of a real engine that served nothing else; `replay` asks
a simulated one the same, at the same times, so that both can be laid side by side. The figures,
and how far off they are: docs/develop/simulator.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.errors import DataError
from llmtrace.simulator.fleet.array_layout import Engine
from llmtrace.simulator.fleet.deployment import App, Deployment, Region, Route
from llmtrace.simulator.fleet.event_loop import WORK
from llmtrace.simulator.fleet.plan import Day
from llmtrace.simulator.fleet.run_fleet import run_requests
from llmtrace.simulator.fleet.step_cost import StepCost

_Floats = NDArray[np.float64]

_MIN_COUNT: Final = 30
_ROUNDS: Final = 8
_TRIM: Final = 3.0
_MAX_JITTER: Final = 0.3
_UNLIMITED: Final = 1e9
_IDLE_PERCENT: Final = 5
_SIDE_BY_SIDE: Final = 16


@dataclass(frozen=True, slots=True)
class Served:
    """Requests an engine served, an array a figure: seconds, as the engine reported, and tokens.

    Attributes:
        start: of the request, on the client's clock.
        prompt: tokens that had to be computed.
        front_s: what the client waited besides the other three.
    """

    start: _Floats
    prompt: _Floats
    output: _Floats
    queue_s: _Floats
    prefill_s: _Floats
    decode_s: _Floats
    front_s: _Floats

    @property
    def ttft_s(self) -> _Floats:
        """From the start to the first token."""
        return self.front_s + self.queue_s + self.prefill_s

    @property
    def tpot_s(self) -> _Floats:
        """A token after the first."""
        return self.decode_s / np.maximum(self.output - 1, 1)


def read_served(path: Path) -> Served:
    """Read what `tests/real/measure_steps.py` wrote.

    Raises:
        DataError: a line lacks a figure.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    try:
        column = {
            name: np.array([row[name] for row in rows], np.float64)
            for name in ("start", "prompt", "output", "queue_s", "prefill_s", "decode_s", "e2e_s")
        }
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: a line lacks {error}") from error
    e2e = column.pop("e2e_s")
    known = column["queue_s"] + column["prefill_s"] + column["decode_s"]
    return Served(**column, front_s=np.maximum(0.0, e2e - known))


def fit(served: Served, max_tokens: int) -> StepCost:
    """Estimate the cost of a step.

    A prompt's time and a token's time are sums of what lies in their steps, so both are equations
    in the same unknowns: the base, a prompt token, a pair of them, a sequence. Solved by least
    squares of the relative error, leaving out what lies far off.

    Args:
        served: all requests of a stretch of time.
        max_tokens: the engine's budget of tokens in a step.

    Raises:
        DataError: too few requests.
    """
    if len(served.start) < _MIN_COUNT:
        raise DataError(f"{len(served.start)} requests are too few to fit; wanted {_MIN_COUNT}")
    scheduled = served.start + served.front_s + served.queue_s
    first = scheduled + served.prefill_s
    end = first + served.decode_s
    # A prompt: its steps, every prompt's tokens computed beside it, and who decodes meanwhile.
    beside = _tokens_beside(scheduled, first, served.prompt, scheduled, first)
    steps = np.maximum(1.0, np.ceil(beside / max_tokens))
    pairs = served.prompt**2 / 2
    beside_pairs = _tokens_beside(scheduled, first, pairs, scheduled, first)
    others = _overlap(first, end, scheduled, first) * steps
    prompts = np.stack([steps, beside, beside_pairs, others], axis=1)
    prompts = prompts / served.prefill_s[:, None]
    # A token: its step, the sequences, and its share of the prompts computed meanwhile.
    tokens = np.maximum(served.output - 1, 1)
    meanwhile = _tokens_beside(scheduled, first, served.prompt, first, end) / tokens
    meanwhile_pairs = _tokens_beside(scheduled, first, pairs, first, end) / tokens
    many = served.output > 5
    ones = np.ones(len(tokens))
    running = _overlap(first, end, first, end)
    decodes = np.stack([ones, meanwhile, meanwhile_pairs, running], axis=1)
    decodes = (decodes / served.tpot_s[:, None])[many]
    equations = np.concatenate([prompts, decodes])
    (base, prefill, attention, sequence), left = _robust(equations, np.ones(len(equations)))
    # Most of it is waiting for the step under way; requests that met an idle engine give the rest.
    front = float(np.percentile(served.front_s, _IDLE_PERCENT))
    return StepCost(
        base_s=base,
        prefill_token_s=prefill,
        attention_s=attention,
        sequence_s=sequence,
        context_s=0.0,
        jitter=min(_MAX_JITTER, left),
        front_request_s=front,
        front_prompt_s=0.0,
        front_token_s=0.0,
        measured=True,
    )


def replay(
    served: Served, cost: StepCost, *, seats: int, max_tokens: int, seed: int = 1
) -> Served:
    """Send a simulated engine the requests of a real one, at the same times.

    Args:
        served: the real one's requests.
        cost: of a step of the simulated one.
        seats: how many sequences run at once, as on the real one.
        max_tokens: its budget of tokens in a step.
        seed: for the noise of its steps.
    """
    order = np.argsort(served.start, kind="stable")
    work = np.zeros(len(order), WORK).view(np.recarray)
    work.start = served.start[order] - served.start.min()
    work.prompt, work.output = served.prompt[order], served.output[order]
    for name in ("group", "adapter", "follow", "break_at"):
        work[name] = -1
    work.patience = work.timeout = _UNLIMITED
    deployment = Deployment(
        model="measured", cost=cost, replicas=1, rate=1.0, max_seqs=seats,
        max_tokens=max_tokens, max_model_len=131_072, blocks=1_000_000,
        routes=(Route("any", 1, 1, 0, 1, 0),), regions=(Region("here", 1, 0.0),),
        apps=(App("any", 1, 0.0),), tenants=(1.0,), gateway_s=0.0,
    )  # fmt: skip
    day = Day(np.random.default_rng(seed), deployment, 1.0, 1.0)
    # Most of what a request takes outside the engine is waiting for sockets and pipes, which
    # those who come together do side by side.
    day.change(Engine.FRONT_PROCESSES, _SIDE_BY_SIDE, at=0.0)
    fate, _ = run_requests(day, work, seed)
    return Served(
        start=np.asarray(work.start, np.float64),
        prompt=work.prompt.astype(np.float64),
        output=work.output.astype(np.float64),
        queue_s=fate.queue_s,
        prefill_s=fate.prefill_s,
        decode_s=fate.last_token - fate.first_token,
        front_s=fate.front_s,
    )


def _overlap(begin: _Floats, end: _Floats, low: _Floats, high: _Floats) -> _Floats:
    """Return how many of [begin, end] are under way, on average, within each [low, high]."""
    shared: _Floats = np.maximum(
        0.0,
        np.minimum(end[None, :], high[:, None]) - np.maximum(begin[None, :], low[:, None]),
    ).sum(axis=1)
    return shared / np.maximum(high - low, 1e-9)


def _tokens_beside(
    begin: _Floats, end: _Floats, tokens: _Floats, low: _Floats, high: _Floats
) -> _Floats:
    """Return the prompt tokens computed within each [low, high], evenly over each [begin, end]."""
    shared = np.minimum(end[None, :], high[:, None]) - np.maximum(begin[None, :], low[:, None])
    share = np.clip(shared / np.maximum(end - begin, 1e-9)[None, :], 0.0, 1.0)
    found: _Floats = share @ tokens
    return found


def _robust(a: _Floats, b: _Floats) -> tuple[tuple[float, ...], float]:
    """Solve for figures that are not negative, leaving out again and again what lies far off."""
    keep = np.ones(len(b), bool)
    found = np.zeros(a.shape[1])
    spread = 0.0
    for _ in range(_ROUNDS):
        free = list(range(a.shape[1]))
        while free:
            found = np.zeros(a.shape[1])
            found[free] = np.linalg.lstsq(a[keep][:, free], b[keep], rcond=None)[0]
            bad = [k for k in free if found[k] < 0]
            if not bad:
                break
            free = [k for k in free if k not in bad]
        left = np.abs(a @ found - b)
        spread = 1.4826 * float(np.median(left))
        keep = left <= _TRIM * spread
    return tuple(found.tolist()), spread
