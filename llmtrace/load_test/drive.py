"""Send a workload's requests, each at its intended time or as soon as there is room.

An open loop starts a request when it is due, however many are still open: a server that stalls is
seen to make later requests wait. A closed loop waits for one of its clients to be free, and hides
that.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmtrace.load_test.endpoint_apis import Sending, respond
from llmtrace.load_test.requests import Request


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of one request beside its row.

    Attributes:
        number: of the request.
        late_s: seconds between its intended and its actual start; `None` in a closed loop, and of
            a conversation's later turns.
        sha256: hash of the text answered; `None` if it failed.
    """

    number: int
    late_s: float | None
    sha256: str | None


async def drive(
    client: Any,
    sending: Sending,
    requests: Sequence[Request],
    *,
    began: float,
    concurrency: int | None,
    seconds: float | None,
    done: Callable[[Answered], None],
) -> None:
    """Send requests and read their responses to the end.

    Args:
        client: of the endpoint, from `client_of`.
        sending: how.
        requests: what, in order; in an open loop all of them have a time.
        began: when the first request is due, in monotonic seconds.
        concurrency: clients of a closed loop; `None` = an open loop.
        seconds: no request starts later than so long after the first; `None` = all start.
        done: called as each is over.
    """
    clock = time.monotonic
    await asyncio.sleep(began - clock())
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
        await _converse(client, sending, request, None, done)


async def _timed(
    client: Any, sending: Sending, request: Request, at: float, done: Callable[[Answered], None]
) -> None:
    late_s = max(0.0, time.monotonic() - at)
    await _converse(client, sending, request, late_s, done)


async def _converse(
    client: Any,
    sending: Sending,
    request: Request,
    late_s: float | None,
    done: Callable[[Answered], None],
) -> None:
    """Send a request, and those that follow it once its response is there."""
    while True:
        text = await _send(client, sending, request)
        digest = None if text is None else hashlib.sha256(text.encode()).hexdigest()
        done(Answered(request.number, late_s, digest))
        if text is None or request.then is None:
            return
        said = {"role": "assistant", "content": text or "-"}  # neither API takes an empty one
        messages = (*request.messages, said, *request.then.messages)
        request, late_s = replace(request.then, messages=messages), None


async def _send(client: Any, sending: Sending, request: Request) -> str | None:
    try:
        return await respond(client, sending, request)
    except Exception:  # noqa: BLE001 - its row has the error
        return None
