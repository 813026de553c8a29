"""Call a scripted server through an SDK, sync or async, and return the row."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, TypeVar

import pytest

from llmtrace.core.row import Row
from llmtrace.testing import capture
from tests.support.machine_noise import Waits, allowed_s, allowing
from tests.support.sse_server import Server
from tests.support.taking_time import aspend, spend
from tests.support.waiting import until

MODES: Final = ("sync", "async")
HI: Final = ({"role": "user", "content": "hi"},)

# How an endpoint is called: the SDK, the method, its arguments.
CALLS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "chat": ("openai", "chat.completions.create", {"messages": HI}),
    "completions": ("openai", "completions.create", {"prompt": "hi"}),
    "responses": ("openai", "responses.create", {"input": "hi"}),
    "messages": ("anthropic", "messages.create", {"messages": HI, "max_tokens": 5}),
}
_CLASSES: Final = {
    ("openai", "sync"): "OpenAI",
    ("openai", "async"): "AsyncOpenAI",
    ("anthropic", "sync"): "Anthropic",
    ("anthropic", "async"): "AsyncAnthropic",
}
_HTTP_CLASSES: Final = {"sync": "DefaultHttpxClient", "async": "DefaultAsyncHttpxClient"}
# Reading the system's certificates takes longer than most tests.
_NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

T = TypeVar("T")


def client(mode: str, server: Server, sdk: str = "openai", **options: Any) -> Any:
    """Make an SDK's client of a server, without retries by default; skip where it is missing."""
    module = pytest.importorskip(sdk)
    url = server.url if sdk == "openai" else server.root
    made = getattr(module, _CLASSES[sdk, mode])
    if "http_client" not in options:
        options["http_client"] = getattr(module, _HTTP_CLASSES[mode])(verify=_NO_TLS)
    return made(**{"base_url": url, "api_key": "none", "max_retries": 0, **options})


def method(made: Any, endpoint: str = "chat") -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return a client's method for an endpoint, and the arguments to call it with."""
    _, path, call_options = CALLS[endpoint]
    try:
        return attrgetter(path)(made), {"model": "tiny", **call_options}
    except AttributeError:
        pytest.skip("this version has no such endpoint")


def read(
    mode: str,
    server: Server,
    endpoint: str = "chat",
    *,
    late_s: float = 0.0,
    each_s: float = 0.0,
    options: dict[str, Any] | None = None,
    **call_options: Any,
) -> list[Any]:
    """Read a stream to its end and return its chunks.

    Args:
        mode: `sync` or `async`.
        server: the scripted server to call.
        endpoint: one of `CALLS`.
        late_s: how late the reader is.
        each_s: how long it is busy with each chunk.
        options: the client's.
        **call_options: further arguments of the call.
    """
    sdk = CALLS[endpoint][0]
    chunks = []
    if mode == "sync":
        with client(mode, server, sdk, **options or {}) as made:
            create, fixed = method(made, endpoint)
            stream = create(**{**fixed, "stream": True, **call_options})
            if late_s:
                spend(late_s)
            for chunk in stream:
                chunks.append(chunk)
                if each_s:
                    spend(each_s)
        return chunks

    async def main() -> None:
        async with client(mode, server, sdk, **options or {}) as made:
            create, fixed = method(made, endpoint)
            stream = await create(**{**fixed, "stream": True, **call_options})
            if late_s:
                await aspend(late_s)
            async for chunk in stream:
                chunks.append(chunk)
                if each_s:
                    await aspend(each_s)

    asyncio.run(main())
    return chunks


def answer(
    mode: str,
    server: Server,
    endpoint: str = "chat",
    *,
    options: dict[str, Any] | None = None,
    **call_options: Any,
) -> Any:
    """Request a unary response and return it."""
    sdk = CALLS[endpoint][0]
    if mode == "sync":
        with client(mode, server, sdk, **options or {}) as made:
            create, fixed = method(made, endpoint)
            return create(**{**fixed, **call_options})

    async def main() -> Any:
        async with client(mode, server, sdk, **options or {}) as made:
            create, fixed = method(made, endpoint)
            return await create(**{**fixed, **call_options})

    return asyncio.run(main())


def recorded(act: Callable[[], object], **settings: Any) -> Row:
    """Do something that makes one row, and return it. Its stages add up, or the test fails."""
    with capture(**settings) as rows:
        act()
    [row] = rows
    assert row.stages.total == row.e2e_ns
    return row


def raised_by(act: Callable[[], object]) -> Exception:
    """Do something that must raise, and return what it raises: versions differ in what that is."""
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def eventually(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Wait for what another thread is about to do: rows that the garbage collector ends."""
    until(condition, within_s=within_s)


def near(actual_s: float | None, expected_s: float) -> None:
    """Check that a duration is what it should be, within 5 % or 2 ms, and the machine's noise."""
    bound_s = max(0.002, 0.05 * abs(expected_s)) + allowed_s()
    assert actual_s == pytest.approx(expected_s, rel=0, abs=bound_s)


def seconds(row: Row, stage: str) -> float | None:
    """Return a stage of a row in seconds; `None` is unknown."""
    ns: int | None = getattr(row.stages, stage)
    return None if ns is None else ns / 1e9


def settled(measure: Callable[[], T], check: Callable[[T], None], attempts: int = 8) -> T:
    """Measure until a check passes, since a busy machine is late at times; else the last failure.

    The check allows what this process waited for a CPU meanwhile. What is wrong by design is wrong
    every time.
    """
    for left in reversed(range(attempts)):
        waits = Waits()
        measured = measure()
        try:
            with allowing(waits):
                check(measured)
        except AssertionError:
            if not left:
                raise
            time.sleep(0.1)  # what keeps the machine busy may be over by then
        else:
            break
    return measured
