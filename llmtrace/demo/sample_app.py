"""A sample application that llmtrace records.

Users of a help desk, each sending requests through the OpenAI SDK and reading the stream.
`ask` is all that llmtrace needs of an application; the rest makes the users come and go.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import openai

import llmtrace
from llmtrace.demo.options import Phase
from llmtrace.demo.simulated_users import Job, jobs, replayed
from llmtrace.demo.target import Target

if TYPE_CHECKING:
    from llmtrace.dataset.arrivals import Arrivals

_TIMEOUT_S: Final = 120.0
# A user reads and types between two requests, much faster here than in life.
_PAUSE_S: Final = (0.05, 0.25)
_PAUSE_AFTER_ERROR_S: Final = 1.0


@llmtrace.trace
async def ask(client: Any, target: Target, job: Job, phase: Phase) -> Any:
    """Ask for one answer, as a stream."""
    llmtrace.annotate(route=job.route, phase=phase.name, simulated=target.simulated)
    return await client.chat.completions.create(
        model=target.model,
        messages=job.messages,
        stream=True,
        extra_body={target.limit: job.max_tokens},
    )


async def read(client: Any, target: Target, job: Job, phase: Phase) -> None:
    """Read a response as one user does: at their own pace, and not always to the end."""
    async with await ask(client, target, job, phase) as stream:
        shown = 0
        async for _ in stream:
            shown += 1
            if job.render_s:
                await asyncio.sleep(job.render_s)  # drawing the chunk
            if shown == job.leaves_after:
                break


async def drive(
    target: Target,
    phases: Sequence[Phase],
    started: Callable[[Phase], None],
    jobs_in: Callable[[Phase, Iterator[Job]], Iterator[Job]] = lambda _, work: work,
    trace: Arrivals | None = None,
) -> None:
    """Let the users of each phase send requests until it is over, and read the last responses.

    `started` is called with each phase; `jobs_in` makes a phase's jobs out of the usual ones,
    which are of a help desk or, in their times and lengths, of `trace`.
    """
    longest = target.longest_prompt
    work = jobs(longest_prompt=longest) if trace is None else replayed(trace, longest)
    clock = asyncio.get_running_loop().time
    async with make_client(target) as client:
        for phase in phases:
            started(phase)
            mine = due(share(jobs_in(phase, work), phase, clock), clock)
            async with asyncio.TaskGroup() as group:
                for number in range(phase.users):
                    group.create_task(_user(client, target, mine, phase, number))


def share(work: Iterator[Job], phase: Phase, clock: Callable[[], float]) -> Iterator[Job]:
    """Yield jobs until the phase is over, by a clock of seconds."""
    over_at = None if phase.seconds is None else clock() + phase.seconds
    for number in itertools.count():
        limits = []
        if over_at is not None:
            limits.append(clock() >= over_at)
        if phase.requests is not None:
            limits.append(number >= phase.requests)
        if limits and (all(limits) if phase.both else any(limits)):
            return
        yield next(work)


def due(work: Iterator[Job], clock: Callable[[], float]) -> Iterator[tuple[float, Job]]:
    """Yield each job and when it is due, by a clock of seconds: a trace's pattern is kept."""
    at = clock()
    for job in work:
        at += job.after_s
        yield at - clock(), job


async def _user(
    client: Any, target: Target, work: Iterator[tuple[float, Job]], phase: Phase, number: int
) -> None:
    pauses = random.Random(number)  # noqa: S311 - no secret
    await asyncio.sleep(pauses.uniform(*_PAUSE_S))
    for wait_s, job in work:
        await asyncio.sleep(max(wait_s, 0.0))
        try:
            await read(client, target, job, phase)
        except Exception:  # noqa: BLE001 - its row has the error; a user tries again
            await asyncio.sleep(_PAUSE_AFTER_ERROR_S)
        await asyncio.sleep(pauses.uniform(*_PAUSE_S))


def make_client(target: Target, **options: Any) -> Any:
    """Make the OpenAI client of a target; options of `AsyncOpenAI` replace the demo's."""
    if target.ours:  # a proxy named in the environment is not for loopback
        options["http_client"] = openai.DefaultAsyncHttpxClient(trust_env=False)
    options = {"timeout": _TIMEOUT_S, **options}
    return openai.AsyncOpenAI(base_url=target.url, api_key=target.api_key, **options)
