"""Send a workload's requests, each at its intended time or as soon as there is room.

An open loop starts a request when it is due, however many are still open: a server that stalls is
seen to make later requests wait. A closed loop waits for one of its clients to be free, and hides
that.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import llmtrace
from llmtrace.demo.target import Target
from llmtrace.load_test.requests import Request

ROUTE = "bench"
WARM_UP = "warm-up"


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of one request beside its row.

    Attributes:
        number: of the request.
        late_s: seconds between its intended and its actual start; `None` in a closed loop.
        sha256: hash of the text answered; `None` if it failed.
    """

    number: int
    late_s: float | None
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How requests are sent.

    Attributes:
        target: the endpoint.
        stream: whether responses are streamed.
        ignore_eos: ask for all of `max_tokens`, which vLLM and SGLang understand.
        temperature: of the sampling; `None` = the endpoint's own.
    """

    target: Target
    stream: bool = True
    ignore_eos: bool = False
    temperature: float | None = 0.0


async def drive(
    client: Any,
    sending: Sending,
    requests: Sequence[Request],
    *,
    concurrency: int | None,
    seconds: float | None,
    done: Callable[[Answered], None],
) -> None:
    """Send requests and read their responses to the end.

    Args:
        client: `openai.AsyncOpenAI` or alike.
        sending: how.
        requests: what, in order; in an open loop all of them have a time.
        concurrency: clients of a closed loop; `None` = an open loop.
        seconds: no request starts later than so long after the first; `None` = all start.
        done: called as each is over.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    due = (request for request in requests if seconds is None or clock() - began < seconds)
    async with asyncio.TaskGroup() as group:
        if concurrency is not None:
            for _ in range(concurrency):
                group.create_task(_client(client, sending, due, done))
            return
        for request in due:
            at = began + (request.at_s or 0.0)
            if seconds is not None and at - began >= seconds:
                break
            await asyncio.sleep(at - clock())
            group.create_task(_timed(client, sending, request, at, done))


async def _client(
    client: Any, sending: Sending, due: Iterator[Request], done: Callable[[Answered], None]
) -> None:
    for request in due:
        done(Answered(request.number, None, await _send(client, sending, request)))


async def _timed(
    client: Any, sending: Sending, request: Request, at: float, done: Callable[[Answered], None]
) -> None:
    late_s = max(0.0, asyncio.get_running_loop().time() - at)
    done(Answered(request.number, late_s, await _send(client, sending, request)))


async def _send(client: Any, sending: Sending, request: Request) -> str | None:
    try:
        text = await (_streamed if sending.stream else _whole)(client, sending, request)
    except Exception:  # noqa: BLE001 - its row has the error
        return None
    return hashlib.sha256(text.encode()).hexdigest()


async def _streamed(client: Any, sending: Sending, request: Request) -> str:
    async with await _create(client, sending, request) as stream:
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return "".join(parts)


async def _whole(client: Any, sending: Sending, request: Request) -> str:
    answer = await _create(client, sending, request)
    return answer.choices[0].message.content or ""


@llmtrace.trace
async def _create(client: Any, sending: Sending, request: Request) -> Any:
    target = sending.target
    llmtrace.annotate(
        route=WARM_UP if request.number < 0 else ROUTE,
        request=request.number,
        simulated=target.simulated,
    )
    more: dict[str, Any] = {}
    if request.max_tokens is not None:
        more[target.limit] = request.max_tokens
    if sending.ignore_eos:
        more["ignore_eos"] = True
    if sending.temperature is not None:
        more["temperature"] = sending.temperature
    return await client.chat.completions.create(
        model=target.model,
        messages=list(request.messages),
        stream=sending.stream,
        extra_body=more,
    )
