"""Send a workload from several processes, each its share, and put together what they measured."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Final

from llmtrace.budget import Budget
from llmtrace.core.errors import SourceError
from llmtrace.load_test.drive import Answered
from llmtrace.load_test.send_plan import Done, Measured, Plan, joined, send

_AHEAD_S: Final = 0.2  # the processes begin together


def shares(plan: Plan) -> list[Plan]:
    """Return what each process sends: every n-th request, or its share of the clients."""
    count = plan.processes
    if plan.concurrency is not None:
        count = min(count, plan.concurrency)
    clients: list[int | None] = [None] * count
    if plan.concurrency is not None:
        clients = [(plan.concurrency + i) // count for i in range(count)]
    return [
        replace(plan, requests=plan.requests[i::count], concurrency=some, processes=1)
        for i, some in enumerate(clients)
    ]


def send_split(plan: Plan, budget: Budget, done: Done) -> Measured:
    """Send the requests of a plan from its processes; its endpoint was checked.

    Limits of the budget are exact in the rows' histograms; `done` gets each request's `Answered`
    as it is over.

    Raises:
        SourceError: a process ended before it had reported.
    """
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for share in shares(plan):
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, share, budget), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        found = _collect(pipes, done)
    finally:
        for process in processes:
            process.join(5.0)
            process.kill()
    return replace(joined(found), active_s=max(one.active_s for one in found))


def _collect(pipes: Sequence[Connection], done: Done) -> list[Measured]:
    """Let the processes begin together, and return what each measured."""
    found: list[Measured] = []
    open_pipes = list(pipes)
    try:
        for pipe in pipes:
            pipe.recv()
        begin = time.monotonic() + _AHEAD_S
        for pipe in pipes:
            pipe.send(begin)
        while open_pipes:
            with suppress(KeyboardInterrupt):  # the processes get it, too, and report
                ready = wait(open_pipes)
                for pipe in [one for one in open_pipes if one in ready]:
                    message = pipe.recv()
                    if isinstance(message, Answered):
                        done(message)
                    else:
                        found.append(message)
                        open_pipes.remove(pipe)
    except (EOFError, ConnectionError):
        raise SourceError("a process of the client ended before it had reported") from None
    return found


def _work(pipe: Connection, plan: Plan, budget: Budget) -> None:
    def start_at() -> float:
        pipe.send("ready")
        return float(pipe.recv())

    pipe.send(send(plan, budget, pipe.send, start_at))
