"""Schedule the requests of one engine, step by step.

Pure functions over frozen data: a state and a time go in, the next state comes out. Nothing here
sleeps or reads a clock: `simulate` runs it in virtual time, `realtime` in real time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from llmtrace.core.errors import DataError
from llmtrace.simulator.engine.state import (
    EngineConfig,
    EngineState,
    Figures,
    Request,
    Sequence,
    Step,
    Token,
)

__all__ = [
    "EngineConfig",
    "EngineState",
    "Figures",
    "Request",
    "Sequence",
    "Step",
    "Token",
    "abort",
    "complete",
    "kv_usage",
    "schedule",
    "simulate",
    "submit",
]


def submit(
    config: EngineConfig, state: EngineState, request: Request, now_s: float
) -> EngineState:
    """Put a request at the end of the queue. Call it between steps, as a real engine does.

    Raises:
        DataError: the request is empty, or longer than `max_model_len`.
    """
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise DataError(f"request {request.request_id!r}: prompt and output need a token each")
    if request.prompt_tokens + request.output_tokens > config.max_model_len:
        raise DataError(
            f"request {request.request_id!r}: {request.prompt_tokens} prompt and "
            f"{request.output_tokens} output tokens exceed max_model_len {config.max_model_len}"
        )
    return replace(state, waiting=(*state.waiting, Sequence(request, queued_s=now_s)))


def abort(state: EngineState, request_id: str) -> EngineState:
    """Forget a request wherever it is; an unknown id changes nothing."""
    return replace(
        state,
        waiting=tuple(s for s in state.waiting if s.request.request_id != request_id),
        running=tuple(s for s in state.running if s.request.request_id != request_id),
    )


def kv_usage(config: EngineConfig, state: EngineState) -> float:
    """Return the share of the KV cache in use, from 0 to 1."""
    return min(1.0, _held(config, state.running) / config.kv_capacity_tokens)


def schedule(
    config: EngineConfig, state: EngineState, now_s: float
) -> tuple[EngineState, Step | None]:
    """Choose the work of the next step, first come first served; `None` if there is none.

    Running sequences come first, a prompt taking as much of the token budget as is left (chunked
    prefill). While the KV cache is over-full the youngest running sequence gives way and starts
    again later. The head of the queue waits until a slot, budget and room for its whole prompt
    are free, and everyone behind it waits too.
    """
    running, preempted = _make_room(config, state.running)
    waiting = preempted + state.waiting
    budget = config.max_num_batched_tokens
    batch: list[tuple[Sequence, int]] = []
    for sequence in running:
        tokens = min(sequence.known - sequence.computed, budget)
        budget -= tokens
        batch.append((sequence, tokens))
    admitted: list[Sequence] = []
    free = config.kv_capacity_tokens - _held(config, running)
    while waiting and budget and len(batch) < config.max_num_seqs:
        sequence = _admit(config, waiting[0], now_s)
        free -= _held(config, (sequence,))
        if free < 0:
            break
        if waiting[0].scheduled_s is None:
            admitted.append(sequence)
        tokens = min(sequence.known - sequence.computed, budget)
        budget -= tokens
        batch.append((sequence, tokens))
        waiting = waiting[1:]
    state = replace(state, waiting=waiting, running=tuple(s for s, _ in batch))
    if not batch:
        return state, None
    step = Step(
        started_s=now_s,
        duration_s=_step_seconds(config, state.steps, batch),
        work={s.request.request_id: tokens for s, tokens in batch},
        prefill_tokens=sum(tokens for s, tokens in batch if not s.decoding),
        admitted=tuple(admitted),
        preempted=len(preempted),
    )
    return state, step


def complete(
    state: EngineState, step: Step, now_s: float
) -> tuple[EngineState, tuple[Token, ...]]:
    """Book a step that ended at `now_s`, and return the tokens it made.

    What was aborted meanwhile is not in the state any more, and its work is lost.
    """
    running: list[Sequence] = []
    tokens: list[Token] = []
    for before in state.running:
        computed = before.computed + step.work.get(before.request.request_id, 0)
        if computed < before.known:  # part of a prompt, or the budget did not reach it
            running.append(replace(before, computed=computed))
            continue
        first = now_s if before.first_token_s is None else before.first_token_s
        after = replace(
            before,
            computed=computed,
            produced=before.produced + 1,
            first_token_s=first,
            last_token_s=now_s,
        )
        gap = None if before.last_token_s is None else now_s - before.last_token_s
        done = after.produced == after.request.output_tokens
        figures = _figures(after, first, now_s) if done else None
        tokens.append(Token(after.request, before.produced, now_s, gap, figures))
        if not done:
            running.append(after)
    return replace(state, running=tuple(running), steps=state.steps + 1), tuple(tokens)


def simulate(config: EngineConfig, requests: Iterable[Request]) -> Iterator[Figures]:
    """Serve requests in virtual time, each from its `arrived_s`; yield figures as they finish.

    >>> alone = Request("a", prompt_tokens=1000, output_tokens=50)
    >>> [figures] = simulate(EngineConfig(jitter=0.0), [alone])
    >>> round(figures.ttft_s, 3), round(1000 * figures.tpot_s, 1)
    (0.099, 7.9)
    """
    coming = deque(sorted(requests, key=lambda request: request.arrived_s))
    state, now_s = EngineState(), 0.0
    while coming or state.waiting or state.running:
        if not (state.waiting or state.running):
            now_s = max(now_s, coming[0].arrived_s)
        while coming and coming[0].arrived_s <= now_s:
            state = submit(config, state, coming.popleft(), now_s)
        state, step = schedule(config, state, now_s)
        if step is not None:
            now_s += step.duration_s
            state, tokens = complete(state, step, now_s)
            yield from (token.figures for token in tokens if token.figures is not None)


def _held(config: EngineConfig, sequences: Iterable[Sequence]) -> int:
    """Return the KV tokens sequences take; what a prefix cache had of them is held by them too."""
    return sum(config.blocks(s.known) for s in sequences)


def _make_room(
    config: EngineConfig, running: tuple[Sequence, ...]
) -> tuple[tuple[Sequence, ...], tuple[Sequence, ...]]:
    """Split running sequences into those that fit and the youngest, which lose their blocks."""
    keep = len(running)
    held = _held(config, running)
    while held > config.kv_capacity_tokens and keep > 1:
        keep -= 1
        held -= _held(config, running[keep : keep + 1])
    return running[:keep], tuple(
        replace(s, computed=0, preemptions=s.preemptions + 1) for s in running[keep:]
    )


def _admit(config: EngineConfig, sequence: Sequence, now_s: float) -> Sequence:
    """Start a sequence, or start a preempted one again, from what the prefix cache holds."""
    request = sequence.request
    hit = request.cached_tokens
    if hit is None:
        hit = int(request.prompt_tokens * config.prefix_hit_share)
    # Whole blocks only, and the last prompt token is always computed: it yields the first output.
    hit = min(hit, request.prompt_tokens - 1) // config.block_size * config.block_size
    scheduled = now_s if sequence.scheduled_s is None else sequence.scheduled_s
    return replace(sequence, scheduled_s=scheduled, cached=hit, computed=hit)


def _step_seconds(config: EngineConfig, index: int, batch: list[tuple[Sequence, int]]) -> float:
    """Return what a step costs: the base, prompt tokens, running sequences, their context."""
    seconds = config.base_s
    for sequence, tokens in batch:
        context = sequence.computed
        if sequence.decoding and tokens:
            seconds += config.sequence_s + context * config.context_token_s
        else:
            attention = (context + tokens / 2) * config.attention_s
            seconds += tokens * (config.prefill_token_s + attention)
    # A generator of its own for each step: the draw does not depend on earlier steps.
    noise = random.Random(config.seed * 1_000_003 + index).gauss(0.0, config.jitter)  # noqa: S311
    return seconds * max(0.1, 1.0 + noise)


def _figures(sequence: Sequence, first_s: float, finished_s: float) -> Figures:
    """Sum up a sequence that made its last token."""
    if sequence.scheduled_s is None:
        raise AssertionError("a sequence cannot finish before it was scheduled")
    return Figures(
        request=sequence.request,
        cached_tokens=sequence.cached,
        queued_s=sequence.queued_s,
        scheduled_s=sequence.scheduled_s,
        first_token_s=first_s,
        finished_s=finished_s,
        preemptions=sequence.preemptions,
    )
