"""Does code that uses the public API pass `mypy --strict`, and is a slip in it found?

Nothing here runs: it is read by the type checker, which also fails over an ignore it did not need.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, assert_type

import llmtrace
from llmtrace import gateway, grpc, propagate, websocket
from llmtrace.testing import FakeClock, capture, make_row


class Sink:
    """A user's own sink, with all of a sink's methods."""

    every_row: bool = False

    def write(self, row: llmtrace.Row) -> None:
        """Take a row."""

    def flush(self, timeout_s: float) -> bool:
        """Send everything."""
        return timeout_s > 0

    def close(self) -> None:
        """Stop."""


class WriteOnly:
    """A user's own sink as the documentation shows it."""

    every_row = True

    def write(self, row: llmtrace.Row) -> None:
        """Take a row."""


def set_up() -> None:
    """Setting up takes every form the documentation promises."""
    llmtrace.init()
    llmtrace.init("shop", exporters=["otlp", "prometheus:9464", Sink()], budget="budget.yaml")
    llmtrace.init(exporters=[WriteOnly()])
    llmtrace.init(budget=Path("budget.yaml"), instrument=(), sample=0.1, region="eu", version="1")
    llmtrace.init(budget={"total": "2s"}, tenant_metrics=True, ask_usage=False)
    llmtrace.init(budget=llmtrace.Budget(total_s=2.0, stages_s={"queue": 0.1}))
    llmtrace.init(record_content=True, redact=lambda text: text.upper(), content_limit=1000)
    assert_type(llmtrace.flush(1.0), bool)
    llmtrace.shutdown()
    for row in llmtrace.read_rows("rows.jsonl", token_file=Path("token")):
        assert_type(row, llmtrace.Row)
    llmtrace.read_rows(5)  # type: ignore[arg-type]
    llmtrace.init(service=5)  # type: ignore[arg-type]
    llmtrace.init(exporters=[object()])  # type: ignore[list-item]
    llmtrace.Budget(stages_s={"que": 0.1})  # type: ignore[dict-item]


@llmtrace.trace
def words(prompt: str, *, most: int = 5) -> Iterator[str]:
    """A decorated generator keeps its signature."""
    yield prompt[:most]


@llmtrace.trace(model="tiny", route="chat", tenant=None, tags=["beta"], tries=2)
async def answer(prompt: str) -> str:
    """A decorated coroutine function keeps its signature."""
    llmtrace.annotate(model="tiny", route=None, tries=3, user="ada", tags=["beta"])
    return prompt


@llmtrace.trace
async def stream(prompt: str) -> AsyncIterator[str]:
    """A decorated async generator keeps its signature."""
    yield prompt


@llmtrace.tool
async def search(query: str) -> list[str]:
    """A tool keeps its signature."""
    return [query]


@llmtrace.tool(name="weather", unit="C")
def weather(city: str) -> float:
    """So does one with a name of its own."""
    return len(city) / 2


@llmtrace.turn("trip", session="s-1", user=7, tags=["beta"], route="travel")
async def trip(city: str) -> str:
    """A decorated turn keeps its signature."""
    with llmtrace.turn("plan"):
        assert_type(weather(city), float)
    async with llmtrace.turn("look up"):
        assert_type(await search(city), list[str])
    return city


@llmtrace.turn
def reply(question: str) -> int:
    """Used bare, a turn keeps the signature too."""
    return len(question)


class Bot:
    """Methods of every kind can be decorated."""

    @llmtrace.trace
    def ask(self, prompt: str) -> int:
        """Ask."""
        return len(prompt)


async def call() -> None:
    """Decorated functions are called as what they were."""
    assert_type(words("hi", most=2), Iterator[str])
    assert_type(await answer("hi"), str)
    assert_type(stream("hi"), AsyncIterator[str])
    assert_type(Bot().ask("hi"), int)
    assert_type(reply("hi"), int)
    words(5)  # type: ignore[arg-type]
    words("hi", least=1)  # type: ignore[call-arg]
    llmtrace.trace(model=5)  # type: ignore[call-overload]
    llmtrace.annotate(user=object())  # type: ignore[arg-type]


def wrap(lines: Iterator[bytes]) -> None:
    """A wrapped stream is what it was."""
    assert_type(llmtrace.wrap(lines), Iterator[bytes])
    assert_type(llmtrace.wrap(lines, model="tiny", route="chat", tries=2), Iterator[bytes])
    llmtrace.wrap(lines, model=5)  # type: ignore[arg-type]


@llmtrace.stage("gateway")
def mark() -> None:
    """Marks are context managers and decorators, of the stages there are."""
    with llmtrace.stage("render"), llmtrace.render():
        pass
    with contextlib.ExitStack() as stack:
        stack.enter_context(llmtrace.stage("queue"))
    llmtrace.stage("rendering")  # type: ignore[arg-type]
    llmtrace.stage("decode")  # type: ignore[arg-type]


@llmtrace.stage("gateway")
def _marked(number: int) -> str:
    return str(number)


@llmtrace.render()
async def _rendered(number: int) -> str:
    return str(number)


assert_type(_marked(1), str)
_marked("1")  # type: ignore[arg-type]


async def pass_on(scope: Any, receive: Any, send: Any) -> None:
    """A gateway's application is any ASGI application; so is what the middleware makes of it."""
    app = gateway.Middleware(pass_on, name="edge", tell=True, skip=["/health"])
    await gateway.Middleware(app)(scope, receive, send)
    with gateway.upstream() as headers:
        assert_type(headers, dict[str, str])
    gateway.cache_hit()
    gateway.cache_hit("semantic")
    gateway.Middleware(5)  # type: ignore[arg-type]


class Connection:
    """Stands for one of a library that the type checker knows."""


def over_other_protocols(connection: Connection) -> None:
    """A wrapped connection stays of its type; what classifies messages returns what it may."""
    assert_type(websocket.wrap(connection), Connection)
    websocket.wrap(connection, done="close", classify=lambda _: "text", tags=["beta"], user="ada")
    websocket.wrap(connection, done=lambda message: message == "[END]", asks=lambda _: True)
    websocket.wrap(connection, done="end")  # type: ignore[arg-type]
    grpc.client_interceptors(methods=["package.Service/Method"], classify=lambda _: None)
    grpc.aio_client_interceptors(classify=lambda _: {"kind": "text", "finish_reason": "stop"})
    grpc.client_interceptors(classify=lambda _: "words")  # type: ignore[arg-type,return-value]
    grpc.server_interceptor(name="router", tell=False)
    grpc.aio_server_interceptor()
    assert_type(propagate.trace_headers(), dict[str, str])
    with gateway.serving(connection, {"traceparent": "…"}, name="edge") as timing:
        assert_type(timing(), str)


def instrument(client: Any) -> None:
    """Instrumenting gives a handle that undoes it."""
    handle = llmtrace.instrument(client)
    assert_type(handle, llmtrace.Instrumented)
    handle.undo()
    with llmtrace.instrument([client]):
        pass


def read(row: llmtrace.Row) -> None:
    """What may be unknown is typed as such."""
    assert_type(row.ttft_s, float | None)
    assert_type(row.e2e_s, float)
    assert_type(row.stages, llmtrace.Stages)
    assert_type(row.stages.queue, int | None)
    assert_type(row.stages.unattributed, int)
    assert_type(llmtrace.split(llmtrace.Timeline(e2e=1)), llmtrace.Stages)
    assert_type(llmtrace.internal_errors(), dict[str, int])
    for name, ns in row.stages:
        assert name in llmtrace.STAGES
        assert_type(ns, int | None)
    assert row.outcome in llmtrace.OUTCOMES
    row.e2e_s + row.stages.queue  # type: ignore[operator]
    row.model = "tiny"  # type: ignore[misc]
    llmtrace.Timeline(1)  # type: ignore[call-arg]


def fail() -> None:
    """One class catches everything llmtrace raises on purpose."""
    kinds: list[type[llmtrace.LlmtraceError]] = [
        llmtrace.ConfigError,
        llmtrace.DataError,
        llmtrace.SourceError,
    ]
    del kinds


def test() -> None:
    """What is shipped for tests is typed too."""
    with capture(service="shop", clock=FakeClock(5)) as rows:
        assert_type(rows, list[llmtrace.Row])
    assert_type(make_row(model="tiny"), llmtrace.Row)
